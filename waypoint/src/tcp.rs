// SPDX-License-Identifier: Apache-2.0
//! A connection whose bytes are nobody's business here: pick an endpoint, connect, relay.
//!
//! The client's proxy hears 200 only once an endpoint was reached: what can't be connected is refused, not cut. But for
//! connections that are routed or judged by their TLS server name: to hear it, they have to be let in first, and are reset
//! if nothing comes of them.

mod secured;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hbone::{End as RelayEnd, Heard, Incoming, Outcome, Side, Stop, Stream, relay_streams};
use rand::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::authorize::Rules;
use crate::destination::Destination;
use crate::failure::{Failure, Flag};
use crate::hello::{self, Asked, Hello};
use crate::http::Conversation;
use crate::record::{Connection, Decided, Labels, Near, Opening};
use crate::route::{Protocol, Table};
use crate::upstream::{self, Leg, Upstream};

/// How long a client may take to say which server it wants.
const HELLO: Duration = Duration::from_secs(10);

/// Carries a connection to its end.
pub async fn serve(conversation: &Conversation, mut incoming: Box<Incoming>) {
    let Conversation {
        waypoint, arrival, ..
    } = conversation;
    let (decided, looks) = match begun(conversation) {
        Ok(begun) => begun,
        Err(failure) => {
            waypoint.recorder.refuse(&arrival.ends(), &failure);
            return incoming.reject(failure.status());
        }
    };
    let decided = match (decided, looks) {
        (Some(decided), Looks::Not) => decided,
        (decided, _) => return Box::pin(by_name(conversation, incoming, decided)).await,
    };
    // Boxed: large, and over soon, while what follows lives for days.
    let connected = Box::pin(async {
        let destination = destination(conversation, None, &mut rand::rng())?;
        tokio::select! {
            connected = upstream::connect(waypoint, arrival, &destination) => connected,
            gone = incoming.abandoned() => Err(Failure::ClientGone(gone.to_string().into())),
        }
    });
    let upstream = match connected.await {
        Ok(upstream) => upstream,
        Err(failure) => {
            waypoint.recorder.refuse(&arrival.ends(), &failure);
            return incoming.reject(failure.status());
        }
    };
    match incoming.accept(None) {
        Ok(client) => relay(conversation, client, Heard::default(), (upstream, decided)).await,
        Err(error) => {
            let failure = Failure::ClientGone(error.to_string().into());
            waypoint.recorder.refuse(&arrival.ends(), &failure);
        }
    }
}

/// Whether the client's first message is looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    Not,
    /// Routes go by the server that it asks for.
    ToRoute,
    /// So do policies, which can say nothing before.
    BeforeDeciding,
}

fn looks(conversation: &Conversation) -> Result<Looks, Failure> {
    let client = conversation.arrival.identity.namespace();
    let Some(port) = conversation.destination.port() else {
        return Ok(Looks::Not);
    };
    let is_routed = matches!(port.table(client), Some(Table::Tls(_)));
    if !is_routed && port.protocol != Protocol::Tls {
        return Ok(Looks::Not);
    }
    let facts = conversation.tracked.facts();
    let rules = Rules::of(&conversation.waypoint.state.read(), facts.service.as_ref())?;
    Ok(match (rules.look_at_server_names(), is_routed) {
        (true, _) => Looks::BeforeDeciding,
        (false, true) => Looks::ToRoute,
        (false, false) => Looks::Not,
    })
}

/// What can be decided before the client says anything.
fn begun(conversation: &Conversation) -> Result<(Option<Decided>, Looks), Failure> {
    let looks = looks(conversation)?;
    let decided = match looks {
        Looks::BeforeDeciding => None,
        Looks::ToRoute | Looks::Not => Some(may_carry(conversation)?),
    };
    Ok((decided, looks))
}

/// A connection of which it is looked for which server its client's TLS asks for.
async fn by_name(conversation: &Conversation, incoming: Box<Incoming>, decided: Option<Decided>) {
    let Conversation {
        waypoint, arrival, ..
    } = conversation;
    let mut client = match incoming.accept(None) {
        Ok(client) => client,
        Err(error) => {
            let failure = Failure::ClientGone(error.to_string().into());
            return waypoint.recorder.refuse(&arrival.ends(), &failure);
        }
    };
    let mut near = BytesMut::new();
    let connected = async {
        let asked = tokio::select! {
            asked = timeout(HELLO, hello(&mut client, &mut near)) => asked,
            reason = conversation.tracked.stop().stopped() => return Err(Failure::PolicyChanged(reason)),
        };
        let asked = asked.unwrap_or_else(|_| {
            let words = format!("it did not begin with TLS within {HELLO:?}");
            Err(Failure::ClientTls(words.into()))
        })?;
        // Only this sets it.
        let _first = conversation.tracked.facts().server_name.set(asked.server);
        let decided = match decided {
            Some(decided) => decided,
            None => may_carry(conversation)?,
        };
        let name = conversation.tracked.facts().server_name.get();
        let name = name.and_then(Option::as_deref);
        let destination = destination(conversation, name, &mut rand::rng())?;
        let upstream = upstream::connect(waypoint, arrival, &destination).await?;
        Ok((upstream, decided))
    };
    match Box::pin(connected).await {
        Ok((upstream, decided)) => {
            let heard = Heard {
                near: near.freeze(),
                ..Heard::default()
            };
            relay(conversation, client, heard, (upstream, decided)).await;
        }
        Err(failure) => {
            client.reset();
            waypoint.recorder.refuse(&arrival.ends(), &failure);
        }
    }
}

/// Why bytes may not be carried, as far as that is clear before any have come.
pub fn forbidden(conversation: &Conversation) -> Option<Failure> {
    let facts = conversation.tracked.facts();
    let state = &conversation.waypoint.state;
    let rules = match Rules::of(&state.read(), facts.service.as_ref()) {
        Ok(rules) => rules,
        Err(unserved) => return Some(unserved.into()),
    };
    rules.carry(facts).err().map(Failure::Denied)
}

/// Whether bytes may be carried that nobody looks into; what was decided, for the log.
pub fn may_carry(conversation: &Conversation) -> Result<Decided, Failure> {
    let Conversation {
        waypoint,
        arrival,
        tracked,
        ..
    } = conversation;
    let decided = |decision| waypoint.recorder.decided(arrival.worker, &decision);
    tracked.carries_bytes();
    let facts = tracked.facts();
    let rules = Rules::of(&waypoint.state.read(), facts.service.as_ref())?;
    if let Some(memory) = &conversation.memory {
        memory.note(&rules.carrying(facts));
    }
    if rules.is_empty() {
        return Ok(Decided::default());
    }
    match rules.carry(facts) {
        Ok(decision) => Ok(decided(decision)),
        Err(words) => {
            decided(rules.decide(&rules.carrying(facts)));
            Err(Failure::Denied(words))
        }
    }
}

/// The first message of a TLS client, whose bytes are kept.
async fn hello(client: &mut Stream, near: &mut BytesMut) -> Result<Asked, Failure> {
    let mut hello = Hello::default();
    let broke = |words: String| Failure::ClientTls(words.into());
    while near.len() < hello::LONGEST {
        let before = near.len();
        let read = client.read_buf(near).await;
        match read.map_err(|error| Failure::ClientGone(error.to_string().into()))? {
            0 => return Err(broke("it ended before it asked for a server".to_owned())),
            _ => match hello.read(&near[before..]) {
                Ok(Some(asked)) => return Ok(asked),
                Ok(None) => {}
                Err(error) => return Err(broke(error.to_string())),
            },
        }
    }
    Err(broke("its first message is too long".to_owned()))
}

/// Where the routes send it, if they concern its client; else what it was meant for.
fn destination(
    conversation: &Conversation,
    server_name: Option<&str>,
    rng: &mut impl Rng,
) -> Result<Destination, Failure> {
    let meant = &conversation.destination;
    let client = conversation.arrival.identity.namespace();
    let answer = match meant.port().and_then(|port| port.table(client)) {
        Some(Table::Tcp(table)) => table.answer(rng),
        Some(Table::Tls(table)) => table.answer(server_name, rng),
        Some(Table::Http(_)) | None => return Ok(meant.clone()),
    };
    let to = answer.map_err(|reason| Failure::Routed {
        flag: Flag::NoRoute,
        reason: reason.to_string().into(),
    })?;
    let known = conversation.waypoint.state.read();
    let service = known.mesh.service(&to.namespace, &to.hostname);
    let service = service.cloned().ok_or_else(|| Failure::Routed {
        flag: Flag::NoRoute,
        reason: format!("no service {}/{} is known", to.namespace, to.hostname).into(),
    })?;
    Ok(Destination::Routed {
        service,
        port: to.port,
        policy: Arc::clone(&to.policy),
    })
}

/// Copies both ways, behind what was heard already.
pub async fn relay(
    conversation: &Conversation,
    client: Stream,
    heard: Heard,
    (upstream, decided): (Upstream, Decided),
) {
    let Conversation {
        waypoint,
        arrival,
        destination,
        tracked,
        ..
    } = conversation;
    let Upstream {
        leg,
        chosen,
        using: _using,
        begun: _begun,
    } = upstream;
    let open = move |near| -> Connection {
        let (end, security) = chosen.end();
        let service = destination.service();
        let labels = Labels {
            source: arrival.source.clone(),
            destination: end,
            service: service.map(|service| Labels::service_of(service)),
            security,
        };
        let facts = tracked.facts();
        let rules = Rules::of(&waypoint.state.read(), facts.service.as_ref());
        let opening = Opening {
            ends: arrival.ends(),
            upstream: chosen.address,
            labels,
            near,
            telemetry: rules.ok().and_then(|rules| rules.telemetry().cloned()),
        };
        let mut record = waypoint.recorder.open(arrival.worker, opening);
        record.decided(decided);
        record
    };
    match leg {
        Leg::Tunnel(far) => {
            let record = open(Near::Client);
            let relay = relay_streams(client, far, heard, record.meter(), tracked.stop());
            let outcome = relay.await;
            record.close(result_of(outcome.end, Near::Client));
        }
        Leg::Plain(socket) => {
            let record = open(Near::Endpoint);
            let carried = plain(client, socket, heard, &record, tracked.stop());
            // Boxed, so that it makes no other relay larger.
            let result = match Box::pin(carried).await {
                Ok(outcome) => result_of(outcome.end, Near::Endpoint),
                Err(failure) => Err(failure),
            };
            record.close(result);
        }
        Leg::Secured(far) => {
            let record = open(Near::Client);
            let relay = secured::relay(client, far, heard, record.meter(), tracked.stop());
            // As above.
            let result = Box::pin(relay).await;
            record.close(result);
        }
    }
}

async fn plain(
    mut client: Stream,
    mut socket: TcpStream,
    heard: Heard,
    record: &Connection,
    stop: &Stop,
) -> Result<Outcome, Failure> {
    if !heard.near.is_empty() {
        let written = socket.write_all(&heard.near).await;
        written.map_err(|error| Failure::Broken(error.to_string().into()))?;
    }
    if !heard.far.is_empty() {
        let written = client.write_all(&heard.far).await;
        written.map_err(|error| Failure::ClientGone(error.to_string().into()))?;
    }
    let meter = record.meter();
    meter.moved_before(heard.far.len(), heard.near.len());
    Ok(client.relay(socket, meter, stop).await)
}

/// Whose fault the end was.
fn result_of(end: RelayEnd, near: Near) -> Result<(), Failure> {
    let is_client = |side| (side == Side::Near) == (near == Near::Client);
    match end {
        RelayEnd::Finished => Ok(()),
        RelayEnd::Reset { by } if is_client(by) => {
            Err(Failure::ClientGone("it reset the connection".into()))
        }
        RelayEnd::Reset { .. } => Err(Failure::Broken("the endpoint reset it".into())),
        RelayEnd::Failed { side, error } if is_client(side) => {
            Err(Failure::ClientGone(error.to_string().into()))
        }
        RelayEnd::Failed { error, .. } => Err(Failure::Broken(error.to_string().into())),
        RelayEnd::Stopped { reason } => Err(Failure::PolicyChanged(reason)),
        RelayEnd::Withdrawn { reason } => Err(Failure::Revoked(reason)),
    }
}
