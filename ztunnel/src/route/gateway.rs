// SPDX-License-Identifier: Apache-2.0
//! Destinations on another network: through which gateway, asked for what, and who must answer at either end.
//!
//! Addresses of another network mean nothing here, so both the gateway and the destination are asked for the service by
//! its name. The gateway is trusted with that name only: who the destination is, it proves to the source itself, by one
//! of the identities that the service names.

use std::net::SocketAddr;
use std::sync::Arc;

use hbone::wire::Authority;
use mesh::balance::{PortRule, Upstream, identities};
use mesh::{GatewayDestination, Service, Store};
use rand::Rng;

use super::{Outbound, Place, Refusal, Role, Route, resolve};

/// The way to an endpoint, or a waypoint, that is on another network than the source.
pub(super) fn through_gateway(
    store: &Store,
    connection: &Outbound<'_>,
    upstream: Upstream,
    meant: Option<&Arc<Service>>,
    rng: &mut impl Rng,
) -> Result<Route, Refusal> {
    let Upstream {
        workload,
        port,
        service,
    } = upstream;
    let network = || Arc::clone(&workload.network);
    let Some(reference) = &workload.network_gateway else {
        return Err(Refusal::NoGateway {
            workload: workload.uid.clone(),
            network: network(),
        });
    };
    let Some(meant) = meant else {
        return Err(Refusal::NotAService {
            workload: workload.uid.clone(),
            network: network(),
        });
    };
    let answering = service.as_ref().unwrap_or(meant);
    if answering.subject_alt_names.is_empty() {
        return Err(Refusal::NobodyExpected {
            service: answering.key(),
            network: network(),
        });
    }
    let role = Role::NetworkGateway;
    let hop = resolve(store, reference, connection, PortRule::Defined, role, rng)?;
    let family = match &reference.destination {
        GatewayDestination::Hostname(_) => connection.destination.ip(),
        GatewayDestination::Address(address) => address.address,
    };
    let place = Place::of(&hop.workload, hop.service.as_deref(), family)?;
    let expected_behind = answering.subject_alt_names.iter().cloned().collect();
    let authority = Authority::Host(
        meant.hostname.to_ascii_lowercase(),
        connection.destination.port(),
    );
    Ok(place.route(family, |ip| Route::Gateway {
        tunnel: SocketAddr::new(ip, hop.port),
        authority,
        expected: identities(&hop.workload, hop.service.as_deref()),
        gateway: hop.workload,
        expected_behind,
        workload,
        port,
        service: Arc::clone(meant),
    }))
}
