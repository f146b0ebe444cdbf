// SPDX-License-Identifier: Apache-2.0
//! What an operator can ask the process: what it believes, what it logs, and to end. The routes of the admin port (15000,
//! loopback only).

mod dry_run;
mod explain;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use identity::CertificateState;
use ops::admin::{AdminRequest, AdminResponse, Routes, answer, json, lines, text};
use ops::logging::Logs;
use ops::shutdown::Shutdown;
use serde::Serialize;

use crate::config::Config;
use crate::endpoints::Out;
use crate::record::{Refusal, Wish};
use crate::route::Service;
use crate::token::TokenRule;
use crate::waypoint::Waypoint;

const INDEX: &str = "<!DOCTYPE html><title>waypoint</title><ul>\
<li><a href=\"/config_dump\">config_dump</a>: what this process believes\
<li><a href=\"/debug/rules\">debug/rules</a>: what the rules of routes and policies did\
<li><a href=\"/debug/requests?seconds=10\">debug/requests</a>: requests as they end, one line each; \
?method=, path= (its beginning), status= (404, 5xx), source=, service=, slower_than_ms=, limit=, seconds=\
<li><a href=\"/debug/explain?service=NAMESPACE/HOST&port=PORT&source=SPIFFE&method=GET&path=/\">debug/explain</a>: what \
would become of a request\
<li><a href=\"/debug/dry-run\">debug/dry-run</a>: what policies in dry run would have done in the last minutes; \
POST tries out another one\
<li><a href=\"/debug/drain\">debug/drain</a>: what is still open\
<li>POST /logging?level=...: log level\
<li>POST /quitquitquit: graceful shutdown</ul>\n";

const LOGGING_USAGE: &str = "usage: POST /logging                              (shows the filter)\n\
usage: POST /logging?level=<level or target=level>,... (adds to the filter)\n\
usage: POST /logging?reset                        (back to the filter of the start)\n";

/// What can be shown.
#[derive(Clone)]
pub struct Shown {
    waypoint: Arc<Waypoint>,
    config: Arc<BTreeMap<String, String>>,
    drain_deadline: Duration,
}

impl Shown {
    pub fn of(waypoint: &Arc<Waypoint>, config: &Config) -> Self {
        Self {
            waypoint: Arc::clone(waypoint),
            config: Arc::new(config.effective.clone()),
            drain_deadline: config.drain_deadline,
        }
    }
}

pub fn routes(shown: Shown, logs: Logs, shutdown: Shutdown) -> Routes {
    let quit = shutdown.clone();
    let waypoint = Arc::clone(&shown.waypoint);
    let (by_rule, looked_at) = (Arc::clone(&waypoint), Arc::clone(&waypoint));
    let (tried, asked) = (Arc::clone(&waypoint), Arc::clone(&waypoint));
    let limit = shown.drain_deadline;
    Routes::new()
        .any("/", |_| {
            answer(StatusCode::OK, "text/html; charset=utf-8", INDEX)
        })
        .any("/config_dump", move |_| config_dump(&shown))
        .get("/debug/rules", move |_| {
            json(&BTreeMap::from(by_rule.recorder.by_rule()))
        })
        .get("/debug/requests", move |request| {
            requests(&looked_at, &request)
        })
        .any("/debug/dry-run", move |request| {
            dry_run::page(&tried, &request)
        })
        .get("/debug/explain", move |request| {
            explain::page(&asked, &request)
        })
        .post("/logging", move |request| logging(&logs, &request))
        .any("/logging", |_| {
            text(StatusCode::METHOD_NOT_ALLOWED, LOGGING_USAGE)
        })
        .post("/quitquitquit", move |_| {
            quit.start();
            text(StatusCode::OK, "shutdown now\n")
        })
        .any("/quitquitquit", |_| {
            text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n")
        })
        .any("/debug/drain", move |request| {
            if request.method == http::Method::POST {
                shutdown.start();
            }
            json(&Drain {
                draining: shutdown.subscribe().is_draining(),
                limit_seconds: limit.as_secs_f64(),
                open_connections: waypoint.connections.count(),
            })
        })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Drain {
    draining: bool,
    /// How long what is open may stay so, from the beginning of the drain on.
    limit_seconds: f64,
    open_connections: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Dump<'a> {
    #[serde(flatten)]
    mesh: mesh::dump::Dump<'a>,
    /// What is served here, by service and port.
    served: BTreeMap<String, BTreeMap<u16, String>>,
    /// Rules of routes that can't be honoured, and why.
    problems: Vec<String>,
    config: &'a BTreeMap<String, String>,
    /// The own certificate, and why there is none or it could not be renewed.
    certificates: BTreeMap<String, String>,
    connections: Connections,
    /// Endpoints that are avoided, and why.
    ejected_endpoints: Vec<Out>,
    /// The latest failures, oldest first.
    refusals: Vec<Refusal>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Connections {
    open: usize,
    most: usize,
    upstream_tunnels: usize,
    upstream_streams: usize,
}

fn config_dump(shown: &Shown) -> AdminResponse {
    let waypoint = &shown.waypoint;
    let certificates = waypoint.certificates.states();
    let certificates = certificates.iter().map(|status| {
        let state = match &status.state {
            CertificateState::Initializing => "initializing".to_owned(),
            CertificateState::Available {
                renewal_failure: None,
                ..
            } => "available".to_owned(),
            CertificateState::Available {
                renewal_failure: Some(error),
                ..
            } => format!("available, renewal failed: {error}"),
            CertificateState::Unavailable(error) => format!("unavailable: {error}"),
        };
        (status.identity.to_string(), state)
    });
    let certificates = certificates.collect();
    let (upstream_tunnels, upstream_streams) = waypoint.tunnels_and_streams();
    // Changes wait while this is held, and requests behind them: no longer than it takes.
    let (served, settings) = {
        let known = waypoint.state.read();
        let served = known.served.iter();
        let served = served.map(|(name, served)| (name.to_string(), Arc::clone(served)));
        (served.collect::<Vec<_>>(), known.settings.clone())
    };
    let problems = served.iter().flat_map(|(_, service)| {
        let problems = service.problems();
        problems.map(|(rule, problem)| format!("{rule}: {problem}"))
    });
    let own = settings.iter().flat_map(|held| &held.tokens);
    let tokens = served.iter().flat_map(|(_, service)| service.tokens());
    let keys = own.chain(tokens).flat_map(TokenRule::problems);
    let problems = problems.chain(keys).collect();
    let served = served.into_iter();
    let served = served
        .map(|(name, served)| (name, ports(&served)))
        .collect();
    let known = waypoint.state.read();
    json(&Dump {
        mesh: mesh::dump::Dump::of(&known.mesh),
        served,
        problems,
        config: &shown.config,
        certificates,
        connections: Connections {
            open: waypoint.connections.count(),
            most: waypoint.limits.connections,
            upstream_tunnels,
            upstream_streams,
        },
        ejected_endpoints: waypoint.endpoints.out(),
        refusals: waypoint.recorder.refusals().latest(),
    })
}

/// Requests as they end.
fn requests(waypoint: &Waypoint, request: &AdminRequest) -> AdminResponse {
    let wish = match Wish::read(&request.query) {
        Ok(wish) => wish,
        Err(words) => return text(StatusCode::BAD_REQUEST, format!("{words}\n")),
    };
    let limit = wish.limit;
    match waypoint.recorder.watchers().watch(wish) {
        Some(receiver) => lines("application/jsonl", receiver, limit),
        None => text(StatusCode::TOO_MANY_REQUESTS, "enough look on already\n"),
    }
}

fn ports(served: &Service) -> BTreeMap<u16, String> {
    let ports = served.ports();
    ports
        .map(|(number, port)| (number, format!("{:?}", port.protocol)))
        .collect()
}

fn logging(logs: &Logs, request: &AdminRequest) -> AdminResponse {
    let changed = match (request.query_value("reset"), request.query_value("level")) {
        (None, None) => Ok(logs.filter()),
        (None, Some(level)) => logs.add(level),
        (Some(_), level) => logs.reset(level.unwrap_or_default()),
    };
    match changed {
        Ok(filter) => text(StatusCode::OK, format!("current log level is {filter}\n")),
        Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n{LOGGING_USAGE}")),
    }
}
