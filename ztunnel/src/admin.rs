// SPDX-License-Identifier: Apache-2.0
//! What an operator can ask the process: what it believes, what it logs, where its time goes, and to end.
//!
//! In: the parts whose state is shown. Out: the routes of the admin port (15000, loopback only). Paths and answers are
//! those of Istio's ztunnel; `/debug/drain`, `/debug/dry-run` and `/debug/explain` are ours.

mod dry_run;
mod dump;
mod explain;
mod heap;
pub mod pprof_format;
mod profile;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use identity::Certificates;
use ops::admin::{AdminRequest, AdminResponse, Routes, answer, json, text};
use ops::logging::Logs;
use ops::shutdown::Shutdown;
use serde::Serialize;

use crate::config::Local;
use crate::dns::Resolver;
use crate::endpoints::Endpoints;
use crate::handover::Predecessors;
use crate::mesh_state::MeshState;
use crate::proxy::Proxies;
use crate::record::Recorder;

const INDEX: &str = "<!DOCTYPE html><title>ztunnel</title><ul>\
<li><a href=\"/config_dump\">config_dump</a>: what this process believes\
<li><a href=\"/debug/pprof/profile?seconds=10\">debug/pprof/profile</a>: where processor time goes, for pprof\
<li><a href=\"/debug/pprof/heap\">debug/pprof/heap</a>: what holds memory, for pprof\
<li><a href=\"/debug/pprof/heap/profiling\">debug/pprof/heap/profiling</a>: whether that is recorded; ?activate=true, false\
<li><a href=\"/debug/drain\">debug/drain</a>: what is still open\
<li><a href=\"/debug/explain?source=NAMESPACE/POD&destination=SERVICE&port=PORT\">debug/explain</a>: what would become of a connection\
<li><a href=\"/debug/dry-run\">debug/dry-run</a>: what policies in dry run would have done in the last minutes; \
POST tries out another one\
<li>POST /logging?level=...: log level\
<li>POST /quitquitquit: graceful shutdown</ul>\n";

const LOGGING_USAGE: &str = "usage: POST /logging                              (shows the filter)\n\
usage: POST /logging?level=<level or target=level>,... (adds to the filter)\n\
usage: POST /logging?reset                        (back to the filter of the start)\n";

/// What can be shown.
#[derive(Clone)]
pub struct Shown {
    pub mesh: Arc<MeshState>,
    pub certificates: Certificates,
    pub proxies: Arc<Proxies>,
    pub recorder: Arc<Recorder>,
    pub endpoints: Arc<Endpoints>,
    pub resolver: Option<Arc<Resolver>>,
    pub local: Option<Local>,
    pub config: Arc<BTreeMap<String, String>>,
    pub istio_version: Arc<str>,
    pub predecessors: Arc<Predecessors>,
    pub drain_deadline: Duration,
}

pub fn routes(shown: Shown, logs: Logs, shutdown: Shutdown) -> Routes {
    let quit = shutdown.clone();
    let proxies = Arc::clone(&shown.proxies);
    let tried = Arc::clone(&shown.proxies);
    let asked = shown.clone();
    let limit = shown.drain_deadline;
    Routes::new()
        .any("/", |_| {
            answer(StatusCode::OK, "text/html; charset=utf-8", INDEX)
        })
        .any("/config_dump", move |_| dump::config_dump(&shown))
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
            json(&Drain::of(&shutdown, &proxies, limit))
        })
        .get("/debug/explain", move |request| {
            explain::page(&asked, &request)
        })
        .any("/debug/dry-run", move |request| {
            dry_run::page(&tried, &request)
        })
        .any_async("/debug/pprof/profile", profile::cpu)
        .any_async("/debug/pprof/heap", |_| heap::profile())
        .any_async("/debug/pprof/heap/profiling", heap::switch)
}

/// How far a drain is. It begins by a POST, as by a signal, and ends the process once nothing is open.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Drain {
    draining: bool,
    /// How long what is open may stay so, from the beginning of the drain on.
    limit_seconds: f64,
    open_connections: usize,
    /// By pod, those without any left out.
    open_by_pod: BTreeMap<String, usize>,
}

impl Drain {
    fn of(shutdown: &Shutdown, proxies: &Proxies, limit: Duration) -> Self {
        let open_by_pod = proxies.open_connections();
        Self {
            draining: shutdown.subscribe().is_draining(),
            limit_seconds: limit.as_secs_f64(),
            open_connections: open_by_pod.values().sum(),
            open_by_pod,
        }
    }
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
