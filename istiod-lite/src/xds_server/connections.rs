// SPDX-License-Identifier: Apache-2.0
//! The open streams, for the debug page: who is connected, and what was accepted.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use parking_lot::Mutex;

use super::{
    node::Node,
    session::{Session, TypeReport},
};
use crate::serving::Peer;

/// All open streams.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<BTreeMap<u64, Report>>,
    last_id: AtomicU64,
}

/// One stream, as the debug page shows it.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The client's node id.
    pub node: String,
    /// Its Kubernetes node.
    pub node_name: Option<String>,
    /// Its address.
    pub peer: Option<String>,
    /// Seconds since the epoch.
    pub opened: u64,
    /// What was sent and accepted, by type.
    pub types: BTreeMap<&'static str, TypeReport>,
    /// The types of responses that it has not answered yet.
    pub unanswered: Vec<&'static str>,
}

/// An open stream; dropping it closes the entry.
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    id: u64,
    node: String,
}

impl Connections {
    /// Enters a stream.
    pub fn open(self: &Arc<Self>, node: &Node, peer: Option<Peer>) -> Connection {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let report = Report {
            node: node.id.clone(),
            node_name: node.node_name.clone(),
            peer: peer.map(|peer| peer.0.to_string()),
            opened: since_epoch.map(|since| since.as_secs()).unwrap_or_default(),
            types: BTreeMap::new(),
            unanswered: Vec::new(),
        };
        self.open.lock().insert(id, report);
        metrics::gauge!("pilot_xds").increment(1.0);
        Connection {
            all: Arc::clone(self),
            id,
            node: node.id.clone(),
        }
    }

    /// All streams, by id.
    pub fn reports(&self) -> BTreeMap<u64, Report> {
        self.open.lock().clone()
    }
}

impl Connection {
    /// Counts the streams of this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The client's node id.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Notes what the session has come to.
    pub fn update(&self, session: &Session) {
        if let Some(report) = self.all.open.lock().get_mut(&self.id) {
            report.types = session.report();
            report.unanswered = session.unanswered();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.open.lock().remove(&self.id);
        metrics::gauge!("pilot_xds").decrement(1.0);
    }
}
