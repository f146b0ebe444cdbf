// SPDX-License-Identifier: Apache-2.0
//! The gateway of a network: it lets in what other networks send to services of this one, and reads none of it.
//!
//! ```text
//!  client's proxy ═ tunnel: "cart.shop.svc.cluster.local:80" ═► gateway ── bytes as they are ──► 15008 of an endpoint
//!        └────────────── tunnel inside, of which the gateway sees TLS records ────────────────────────┘
//! ```
//! Clients prove who they are by the outer tunnel, to be let in at all; what they may do is decided where the inner one
//! ends, by who they are there. Which endpoints a service has it learns from its network's control plane.

mod discovery;
mod endpoints;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use hbone::wire::Authority;
use hbone::{Handler, Incoming, Meter, Stop};
use http::StatusCode;
use serde::Serialize;
use tokio::net::TcpStream;

use self::discovery::Discovery;
use self::endpoints::{Unavailable, endpoint};
use crate::member::{self, Member};

/// How a gateway is to be.
#[derive(Debug, Clone, clap::Args)]
pub struct Gateway {
    #[command(flatten)]
    pub member: Member,
    /// Its pod's name, by which it introduces itself to the control plane
    #[arg(long)]
    pub pod: String,
    /// The network that it leads into
    #[arg(long)]
    pub network: String,
    /// Where it takes tunnels
    #[arg(long, default_value_t = hbone::wire::PORT)]
    pub port: u16,
    /// Let in what goes to this service only; may be given again. Without it, to any service
    #[arg(long = "service", value_name = "HOST")]
    pub services: Vec<String>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until SIGTERM.
pub async fn serve(gateway: Gateway) -> Result<()> {
    let identity = gateway.member.identity()?;
    let certificates = gateway.member.certificates()?;
    let discovery = Discovery::start(&gateway).await?;
    // Nobody is let in before there is something to choose from.
    let listener = member::listen(gateway.port)?;
    println!(
        "gateway of {:?} as {identity} on port {}",
        gateway.network, gateway.port
    );
    let passing = Arc::new(Passing {
        network: gateway.network,
        exposed: gateway.services,
        discovery,
    });
    member::serve_tunnels(listener, identity, certificates, passing).await
}

struct Passing {
    network: String,
    exposed: Vec<String>,
    discovery: Discovery,
}

/// One connection, as it is logged once it is over.
#[derive(Debug, Serialize)]
struct Record<'a> {
    peer: String,
    authority: String,
    endpoint: Option<SocketAddr>,
    sent: u64,
    received: u64,
    outcome: &'a str,
}

impl Handler for Passing {
    async fn connect(self: Arc<Self>, mut incoming: Incoming) {
        let meter = Arc::new(Meter::new());
        let (peer, authority) = (
            incoming.peer.to_string(),
            incoming.request.authority.to_string(),
        );
        let log = |endpoint, outcome: &str| {
            let record = Record {
                peer: peer.clone(),
                authority: authority.clone(),
                endpoint,
                sent: meter.sent(),
                received: meter.received(),
                outcome,
            };
            println!("{}", serde_json::json!(record));
        };
        let chosen = match self.choose(&incoming.request.authority) {
            Ok(endpoint) => endpoint,
            Err(refusal) => {
                log(None, &refusal.to_string());
                return incoming.reject(refusal.status());
            }
        };
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(chosen));
        let connected = tokio::select! {
            connected = connecting => connected,
            gone = incoming.abandoned() => return log(Some(chosen), &format!("the client gave up: {gone}")),
        };
        let onward = match connected {
            Ok(Ok(onward)) => onward,
            failed => {
                let why = match failed {
                    Ok(Err(error)) => format!("cannot connect: {error}"),
                    _ => format!("cannot connect within {CONNECT_TIMEOUT:?}"),
                };
                log(Some(chosen), &why);
                return incoming.reject(StatusCode::SERVICE_UNAVAILABLE);
            }
        };
        let _ = onward.set_nodelay(true);
        match incoming.accept(None) {
            Ok(stream) => {
                let outcome = stream.relay(onward, &meter, &Stop::new()).await;
                log(Some(chosen), &format!("{:?}", outcome.end));
            }
            Err(error) => log(Some(chosen), &error.to_string()),
        }
    }
}

impl Passing {
    fn choose(&self, authority: &Authority) -> Result<SocketAddr, Unavailable> {
        let Authority::Host(host, port) = authority else {
            return Err(Unavailable::NoService(authority.to_string()));
        };
        if !self.exposed.is_empty() && !self.exposed.iter().any(|exposed| exposed == host) {
            return Err(Unavailable::NotExposed(host.clone()));
        }
        let store = self.discovery.read();
        endpoint(&store, &self.network, host, *port, &mut rand::rng())
    }
}
