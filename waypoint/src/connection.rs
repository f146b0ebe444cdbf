// SPDX-License-Identifier: Apache-2.0
//! A connection that may come: what is spoken on it decides who carries it on.
//!
//! ```text
//!  declared as bytes ─► an endpoint, then 200 ─► relay
//!  declared as HTTP ──► 200 ─► requests
//!  not declared ──────► 200, and an endpoint meanwhile ─► whoever speaks first: a request ─► requests
//!                                                                               anything else ─► relay
//! ```
//!
//! A server that speaks first is never kept waiting for its client. Where HTTP was spoken before, no endpoint is
//! connected to until the client has kept silent for a while.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hbone::{Heard, Incoming, Stream};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::time::sleep;

use crate::destination::Destination;
use crate::detect::{self, Spoken};
use crate::failure::Failure;
use crate::http::{self, Conversation};
use crate::route::{Protocol, Table};
use crate::tcp;
use crate::upstream::{self, Upstream, Version};

/// How long a client may keep silent where HTTP was spoken before, until an endpoint is asked what it says.
const SILENCE: Duration = Duration::from_millis(500);

/// How long a client may say something after no endpoint could be reached, to be told so in its own words.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Destinations that are remembered.
const REMEMBERED: usize = 4096;

/// Where HTTP was spoken though nobody had declared it.
#[derive(Default)]
pub struct Habits(Mutex<HashSet<Arc<str>>>);

impl Habits {
    fn is_http(&self, destination: &str) -> bool {
        self.0.lock().contains(destination)
    }

    fn learn(&self, destination: &str, is_http: bool) {
        let mut known = self.0.lock();
        if !is_http {
            known.remove(destination);
        } else if known.len() < REMEMBERED {
            known.insert(destination.into());
        }
    }
}

/// Carries a connection to its end.
pub async fn serve(conversation: Arc<Conversation>, incoming: Box<Incoming>) {
    match protocol(&conversation) {
        Protocol::Tcp | Protocol::Tls => tcp::serve(&conversation, incoming).await,
        Protocol::Http1 | Protocol::Http2 | Protocol::Grpc | Protocol::WebSocket => {
            if let Some(client) = accept(&conversation, *incoming) {
                http::serve(conversation, client).await;
            }
        }
        Protocol::Detect => {
            if let Some(client) = accept(&conversation, *incoming) {
                // Boxed: most of it is over soon.
                Box::pin(find_out(conversation, client)).await;
            }
        }
    }
}

/// What is declared, or follows from the routes that concern the client.
fn protocol(conversation: &Conversation) -> Protocol {
    let destination = &conversation.destination;
    let Some(port) = destination.port() else {
        return Protocol::Detect;
    };
    let client = conversation.arrival.identity.namespace();
    match port.table(client) {
        Some(Table::Tcp(_) | Table::Tls(_)) => Protocol::Tcp,
        // Whoever writes routes for requests means requests, whatever the port declares.
        Some(Table::Http(_)) => match port.protocol {
            Protocol::Tcp | Protocol::Tls => Protocol::Http1,
            declared => declared,
        },
        None => port.protocol,
    }
}

fn accept(conversation: &Conversation, incoming: Incoming) -> Option<Stream> {
    match incoming.accept(None) {
        Ok(client) => Some(client),
        Err(error) => {
            let failure = Failure::ClientGone(error.to_string().into());
            let recorder = &conversation.waypoint.recorder;
            recorder.refuse(&conversation.arrival.ends(), &failure);
            None
        }
    }
}

/// What was found out.
enum Found {
    Http(Version),
    Opaque(Box<Upstream>),
    Failed(Failure),
}

/// Waits for whoever speaks first.
async fn find_out(conversation: Arc<Conversation>, mut client: Stream) {
    let habits = &conversation.waypoint.habits;
    let name = name(&conversation.destination);
    let mut heard = [BytesMut::new(), BytesMut::new()];
    let found = listen(
        &conversation,
        &mut client,
        &mut heard,
        habits.is_http(&name),
    );
    let found = Box::pin(found).await;
    let [near, far] = heard.map(BytesMut::freeze);
    match found {
        Found::Http(version) => {
            habits.learn(&name, true);
            http::serve_as(version, conversation, near, client).await;
        }
        Found::Opaque(upstream) => {
            habits.learn(&name, false);
            let heard = Heard { near, far };
            match tcp::may_carry(&conversation) {
                Ok(decided) => {
                    tcp::relay(&conversation, client, heard, (*upstream, decided)).await;
                }
                Err(failure) => {
                    client.reset();
                    let recorder = &conversation.waypoint.recorder;
                    recorder.refuse(&conversation.arrival.ends(), &failure);
                }
            }
        }
        Found::Failed(failure) => {
            client.reset();
            let recorder = &conversation.waypoint.recorder;
            recorder.refuse(&conversation.arrival.ends(), &failure);
        }
    }
}

async fn listen(
    conversation: &Conversation,
    client: &mut Stream,
    [near, far]: &mut [BytesMut; 2],
    is_http: bool,
) -> Found {
    let forbidden = tcp::forbidden(conversation);
    let is_forbidden = forbidden.is_some();
    let connecting = async {
        if is_forbidden {
            // Requests may be allowed where bytes are not: the client has to say which it sends.
            std::future::pending::<()>().await;
        }
        if is_http {
            sleep(SILENCE).await;
        }
        let (waypoint, arrival) = (&conversation.waypoint, &conversation.arrival);
        upstream::connect(waypoint, arrival, &conversation.destination).await
    };
    let mut connecting = pin!(connecting);
    let stop = conversation.tracked.stop();
    let mut upstream: Option<Box<Upstream>> = None;
    let mut client_ended = false;
    loop {
        let spoken = match client_ended {
            true => Spoken::Other,
            false => detect::anything(near),
        };
        match (spoken, upstream.take()) {
            (Spoken::Http(version), _) => return Found::Http(version),
            (Spoken::Other, Some(upstream)) => return Found::Opaque(upstream),
            (Spoken::Other, None) if is_forbidden => {
                return Found::Failed(forbidden.unwrap_or(Failure::Drained));
            }
            (_, before) => upstream = before,
        }
        let listens = spoken == Spoken::Unclear;
        tokio::select! {
            biased;
            reason = stop.stopped() => return Found::Failed(Failure::PolicyChanged(reason)),
            read = client.read_buf(near), if listens => match read {
                Ok(0) => client_ended = true,
                Ok(_) => {}
                Err(error) => return Found::Failed(Failure::ClientGone(error.to_string().into())),
            },
            connected = &mut connecting, if upstream.is_none() => match connected {
                Ok(connected) => upstream = Some(Box::new(connected)),
                Err(failure) => return last_words(client, near, failure).await,
            },
            read = first_of(&mut upstream, far), if upstream.is_some() => match (read, upstream.take()) {
                // Its end is heard by the relay.
                (Ok(_), Some(upstream)) => return Found::Opaque(upstream),
                (Ok(_), None) => {}
                (Err(error), _) => return Found::Failed(Failure::Broken(error.to_string().into())),
            },
        }
    }
}

/// What an endpoint says before its client does.
async fn first_of(
    upstream: &mut Option<Box<Upstream>>,
    far: &mut BytesMut,
) -> std::io::Result<usize> {
    match upstream {
        Some(upstream) => upstream.leg.read_buf(far).await,
        None => std::future::pending().await,
    }
}

/// No endpoint was reached. A client that speaks HTTP is told so by an answer.
async fn last_words(client: &mut Stream, near: &mut BytesMut, failure: Failure) -> Found {
    let mut patience = pin!(sleep(LAST_WORDS));
    loop {
        match detect::anything(near) {
            Spoken::Http(version) => return Found::Http(version),
            Spoken::Other => return Found::Failed(failure),
            Spoken::Unclear => {}
        }
        tokio::select! {
            () = &mut patience => return Found::Failed(failure),
            read = client.read_buf(near) => if !matches!(read, Ok(1..)) {
                return Found::Failed(failure);
            },
        }
    }
}

/// By which a destination is remembered.
fn name(destination: &Destination) -> String {
    match destination {
        Destination::Service { service, port, .. } | Destination::Routed { service, port, .. } => {
            format!("{}:{port}", service.key())
        }
        Destination::Workload { workload, address } => {
            format!("{}:{}", workload.uid, address.port())
        }
    }
}
