// SPDX-License-Identifier: Apache-2.0
//! The way of a connection, hop by hop, until one is refused.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mesh::balance::{self, PortRule};
use mesh::workload::TunnelProtocol;
use mesh::{Endpoint, Found, Seen, Service, Workload};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use spiffe::SpiffeId;

use super::{Explanation, Hop, Knowledge, Party, Verdict};
use crate::route::{self, Outbound, Route};

const NO_POLICIES_OUTSIDE: &str = "no policy of the mesh applies: it is not of the mesh";

/// Whether its connections are captured.
pub(super) fn is_in_mesh(workload: &Workload) -> bool {
    workload.protocol == TunnelProtocol::Hbone
}

pub(super) fn follow(
    knows: Knowledge<'_>,
    source: &Arc<Workload>,
    destination: &SocketAddr,
) -> Explanation {
    let way = Way {
        knows,
        source,
        destination: *destination,
    };
    let meant = match knows
        .store
        .find(knows.network, destination.ip(), Some(&source.namespace))
    {
        Some(Found::Service(service)) => Some(service),
        _ => None,
    };
    let followed = match is_in_mesh(source) {
        true => way.through_the_mesh(),
        false => way.plainly(meant.as_ref()),
    };
    let (hops, refused) = match followed {
        Ok(hops) => (hops, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let denied = hops.iter().find(|hop| !hop.verdict.allowed);
    let deciding = denied.or(hops.last()).map(|hop| hop.verdict.why.clone());
    Explanation {
        source: Party::of(knows, source),
        service: meant.map(|service| service.key().to_string()),
        destination: *destination,
        allowed: refused.is_none() && denied.is_none(),
        why: refused.or(deciding).unwrap_or_default(),
        hops,
    }
}

struct Way<'a> {
    knows: Knowledge<'a>,
    source: &'a Arc<Workload>,
    destination: SocketAddr,
}

impl Way<'_> {
    /// The address that it connects from: of the destination's family if it has one.
    fn source_ip(&self) -> IpAddr {
        let addresses = &self.source.addresses;
        let same = |ip: &&IpAddr| ip.is_ipv4() == self.destination.is_ipv4();
        let found = addresses.iter().find(same).or(addresses.first());
        found.copied().unwrap_or(IpAddr::from([0, 0, 0, 0]))
    }

    fn seen<'t>(&'t self, tried: &'t [Endpoint]) -> Seen<'t> {
        Seen {
            standings: self.knows.standings,
            tried,
            now: self.knows.now,
        }
    }

    /// Not captured: to a service, by whichever endpoint the cluster picks; and past any waypoint.
    fn plainly(&self, meant: Option<&Arc<Service>>) -> Result<Vec<Hop>, String> {
        let store = self.knows.store;
        let (workload, to) = match meant {
            Some(service) => {
                let port = self.destination.port();
                let rule = PortRule::Defined;
                let mut rng = StdRng::seed_from_u64(0);
                let picked = balance::pick(
                    store,
                    service,
                    self.source,
                    port,
                    rule,
                    self.seen(&[]),
                    &mut rng,
                );
                let picked = picked.map_err(|why| format!("service {}: {why}", service.key()))?;
                let ip = picked.workload.addresses.first().copied();
                let ip = ip.ok_or_else(|| format!("{} has no address", picked.workload.uid))?;
                (Some(picked.workload), SocketAddr::new(ip, picked.port))
            }
            None => {
                let ip = self.destination.ip();
                let found = store.workload_by_ip(self.knows.network, ip);
                (found.cloned(), self.destination)
            }
        };
        Ok(vec![match workload {
            Some(workload) => self.plain(&workload, to),
            None => outside(to),
        }])
    }

    /// Plaintext to a workload, whose own node decides if it is of the mesh.
    fn plain(&self, workload: &Arc<Workload>, to: SocketAddr) -> Hop {
        let connection = mesh::Connection {
            source_ip: self.source_ip(),
            identity: None,
            caller: None,
            destination: to,
        };
        Hop {
            server: Some(Party::of(self.knows, workload)),
            to: "endpoint",
            verdict: match is_in_mesh(workload) {
                true => Verdict::of(&self.knows.store.policies_for(workload), &connection),
                false => Verdict::nobodys(NO_POLICIES_OUTSIDE),
            },
            ..outside(to)
        }
    }

    fn through_the_mesh(&self) -> Result<Vec<Hop>, String> {
        let connection = Outbound {
            source: self.source,
            source_ip: self.source_ip(),
            destination: self.destination,
            network: self.knows.network,
            own_ports: self.knows.own_ports,
            seen: self.seen(&[]),
        };
        let mut rng = StdRng::seed_from_u64(0);
        match route::route(self.knows.store, connection, &mut rng) {
            Route::Passthrough { destination } => Ok(vec![outside(destination)]),
            // Who is not of the mesh asks no policies.
            Route::Direct {
                destination,
                workload,
                ..
            } => Ok(vec![self.plain(&workload, destination)]),
            Route::Hbone {
                tunnel,
                authority,
                expected,
                workload,
                ..
            } => {
                let connection = mesh::Connection {
                    source_ip: self.source_ip(),
                    identity: Some(&self.source.identity),
                    caller: None,
                    destination: SocketAddr::new(tunnel.ip(), authority.port()),
                };
                let policies = self.knows.store.policies_for(&workload);
                let hop = Leg {
                    client: &self.source.identity,
                    server: &workload,
                    address: tunnel,
                    authority: authority.to_string(),
                    expected: &expected,
                };
                Ok(vec![hop.tell(
                    self.knows,
                    "endpoint",
                    Verdict::of(&policies, &connection),
                )])
            }
            Route::Waypoint {
                tunnel,
                authority,
                expected,
                waypoint,
                service,
            } => {
                let policies = self.knows.store.policies_named_by(&waypoint);
                let connection = mesh::Connection {
                    source_ip: self.source_ip(),
                    identity: Some(&self.source.identity),
                    caller: None,
                    destination: self.destination,
                };
                let hop = Leg {
                    client: &self.source.identity,
                    server: &waypoint,
                    address: tunnel,
                    authority: authority.to_string(),
                    expected: &expected,
                };
                let verdict = Verdict::of(&policies, &connection);
                let passes = verdict.allowed;
                let mut hops = vec![hop.tell(self.knows, "waypoint", verdict)];
                if passes {
                    hops.push(self.behind(&waypoint, service.as_ref())?);
                }
                Ok(hops)
            }
            Route::Gateway {
                tunnel,
                expected,
                gateway,
                service,
                port,
                ..
            } => {
                let hop = Leg {
                    client: &self.source.identity,
                    server: &gateway,
                    address: tunnel,
                    authority: format!("{}:{port}", service.hostname),
                    expected: &expected,
                };
                let verdict =
                    Verdict::nobodys("the other network's proxies decide, which are asked there");
                Ok(vec![hop.tell(self.knows, "gateway", verdict)])
            }
            Route::Unresolved(at) => Err(format!("its address is found by a name only: {at:?}")),
            Route::Refused { reason, .. } => Err(reason.to_string()),
        }
    }

    /// From the waypoint on, where no route of its own leads elsewhere.
    fn behind(
        &self,
        waypoint: &Arc<Workload>,
        service: Option<&Arc<Service>>,
    ) -> Result<Hop, String> {
        let store = self.knows.store;
        let (workload, port) = match service {
            Some(service) => {
                let mut rng = StdRng::seed_from_u64(0);
                let picked = balance::pick(
                    store,
                    service,
                    waypoint,
                    self.destination.port(),
                    PortRule::Defined,
                    self.seen(&[]),
                    &mut rng,
                );
                let picked = picked.map_err(|why| format!("service {}: {why}", service.key()))?;
                (picked.workload, picked.port)
            }
            None => {
                let ip = self.destination.ip();
                let found = store.workload_by_ip(self.knows.network, ip);
                let found = found.ok_or_else(|| format!("{ip} is nobody's address"))?;
                (found.clone(), self.destination.port())
            }
        };
        let own = waypoint.addresses.first().copied();
        let own = own.ok_or_else(|| format!("waypoint {} has no address", waypoint.uid))?;
        let same = |ip: &&IpAddr| ip.is_ipv4() == own.is_ipv4();
        let ip = workload
            .addresses
            .iter()
            .find(same)
            .or(workload.addresses.first());
        let ip = *ip.ok_or_else(|| format!("{} has no address", workload.uid))?;
        let to = SocketAddr::new(ip, port);
        if !is_in_mesh(&workload) {
            return Ok(Hop {
                server: Some(Party::of(self.knows, &workload)),
                to: "endpoint",
                ..outside(to)
            });
        }
        // The waypoint says for whom it speaks where that decides, and is believed where it is the pod's own.
        let asked = store.policies_ask_beyond(&workload, &waypoint.identity);
        let peer = (&waypoint.identity, own);
        let speaks = asked && route::vouches(store, &workload, self.knows.network, peer);
        let connection = mesh::Connection {
            source_ip: own,
            identity: Some(&waypoint.identity),
            caller: speaks.then_some(&self.source.identity),
            destination: to,
        };
        let verdict = Verdict::of(&store.policies_for(&workload), &connection);
        let expected = balance::identities(&workload, service.map(|service| &**service));
        let tunnel = SocketAddr::new(ip, capture::contract::INBOUND_HBONE_PORT);
        let leg = Leg {
            client: &waypoint.identity,
            server: &workload,
            address: tunnel,
            authority: to.to_string(),
            expected: &expected,
        };
        Ok(Hop {
            on_behalf_of: connection.caller.map(ToString::to_string),
            ..leg.tell(self.knows, "endpoint", verdict)
        })
    }
}

/// To where nothing is known of who decides.
fn outside(to: SocketAddr) -> Hop {
    Hop {
        transport: "plain",
        client_identity: None,
        on_behalf_of: None,
        to: "outside",
        server: None,
        address: to,
        authority: None,
        expected: Vec::new(),
        cipher: None,
        verdict: Verdict::nobodys(NO_POLICIES_OUTSIDE),
    }
}

/// A tunnel.
struct Leg<'a> {
    client: &'a SpiffeId,
    server: &'a Workload,
    address: SocketAddr,
    authority: String,
    expected: &'a [SpiffeId],
}

impl Leg<'_> {
    fn tell(self, knows: Knowledge<'_>, to: &'static str, verdict: Verdict) -> Hop {
        Hop {
            transport: "hbone",
            client_identity: Some(self.client.to_string()),
            on_behalf_of: None,
            to,
            server: Some(Party::of(knows, self.server)),
            address: self.address,
            authority: Some(self.authority),
            expected: self.expected.iter().map(ToString::to_string).collect(),
            cipher: Some(identity::tls::preferred()),
            verdict,
        }
    }
}
