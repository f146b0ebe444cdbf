// SPDX-License-Identifier: Apache-2.0
//! What is open in one pod; ends what a change of policy forbids.
//!
//! In: connections as they open and end, and the decision function to run again on a change. Out: each connection that
//! lost its permission is stopped with the reason; a list for the admin view. A connection is registered before it is
//! first decided on, so a change in between is not missed. Sharded by worker: opening a connection contends with nobody.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hbone::Stop;
use parking_lot::Mutex;
use serde::Serialize;
use spiffe::SpiffeId;

use ops::workers::WorkerId;

/// What policies decide on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InboundFacts {
    pub source_ip: IpAddr,
    pub identity: Option<SpiffeId>,
    /// For whom the peer says that it speaks. It counts while the peer is a waypoint of the pod.
    pub claimed: Option<SpiffeId>,
    pub destination: SocketAddr,
}

impl InboundFacts {
    /// As policies see it; `vouches` says whether the peer may speak for others.
    pub fn connection(&self, vouches: impl FnOnce(&SpiffeId) -> bool) -> mesh::Connection<'_> {
        let identity = self.identity.as_ref();
        mesh::Connection {
            source_ip: self.source_ip,
            identity,
            caller: self
                .claimed
                .as_ref()
                .filter(|_| identity.is_some_and(vouches)),
            destination: self.destination,
        }
    }
}

/// One connection as the admin view shows it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionView {
    pub src: SocketAddr,
    pub original_dst: Option<Arc<str>>,
    pub actual_dst: Arc<str>,
    pub protocol: &'static str,
    /// The latest decision on it, in words; policies are enforced on inbound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Arc<str>>,
}

#[derive(Debug, Default, Serialize)]
pub struct ConnectionsView {
    pub inbound: Vec<ConnectionView>,
    pub outbound: Vec<ConnectionView>,
}

struct Entry {
    /// None on outbound: nothing is decided again there.
    facts: Option<InboundFacts>,
    stop: Stop,
    view: ConnectionView,
}

/// Boxed: of a map's places about half are free, and would be as large.
type Shard = Mutex<HashMap<u64, Box<Entry>>>;

pub struct Connections {
    shards: Box<[Shard]>,
    next: AtomicU64,
}

/// A registered connection; dropping it takes it off the register.
pub struct Tracked {
    connections: Arc<Connections>,
    worker: WorkerId,
    id: u64,
    stop: Stop,
}

impl Connections {
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..workers).map(|_| Shard::default()).collect(),
            next: AtomicU64::new(0),
        })
    }

    pub fn track(
        self: &Arc<Self>,
        worker: WorkerId,
        facts: Option<InboundFacts>,
        view: ConnectionView,
    ) -> Tracked {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let stop = Stop::new();
        self.shards[worker.index()].lock().insert(
            id,
            Box::new(Entry {
                facts,
                stop: stop.clone(),
                view,
            }),
        );
        Tracked {
            connections: Arc::clone(self),
            worker,
            id,
            stop,
        }
    }

    /// Decides again on every inbound connection. Returns how many were stopped.
    pub fn decide_again(&self, decide: impl Fn(&InboundFacts) -> Verdict) -> usize {
        let mut stopped = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            for entry in shard.values_mut() {
                let Some(facts) = &entry.facts else { continue };
                match decide(facts) {
                    Verdict::Keep(words) => entry.view.verdict = Some(words),
                    Verdict::Stop(reason) => {
                        if entry.stop.reason().is_none() {
                            stopped += 1;
                        }
                        entry.view.verdict = Some(Arc::clone(&reason));
                        entry.stop.stop(reason);
                    }
                }
            }
        }
        stopped
    }

    /// Stops whatever is open, each with this reason.
    pub fn stop_all(&self, reason: &Arc<str>) {
        for shard in &self.shards {
            for entry in shard.lock().values() {
                entry.stop.stop(Arc::clone(reason));
            }
        }
    }

    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub fn view(&self) -> ConnectionsView {
        let mut all = ConnectionsView::default();
        for shard in &self.shards {
            for entry in shard.lock().values() {
                let list = if entry.facts.is_some() {
                    &mut all.inbound
                } else {
                    &mut all.outbound
                };
                list.push(entry.view.clone());
            }
        }
        all.inbound.sort_by_key(|view| view.src);
        all.outbound.sort_by_key(|view| view.src);
        all
    }
}

/// What a decision made again means for a live connection.
#[derive(Debug, Clone)]
pub enum Verdict {
    Keep(Arc<str>),
    Stop(Arc<str>),
}

impl Tracked {
    /// Ends the connection from outside.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Notes what the first decision said.
    pub fn note(&self, words: Arc<str>) {
        self.update(|view| view.verdict = Some(words));
    }

    /// Notes that the connection goes on by another way.
    pub fn moved(&self, to: ConnectionView) {
        self.update(|view| *view = to);
    }

    fn update(&self, change: impl FnOnce(&mut ConnectionView)) {
        let mut shard = self.connections.shards[self.worker.index()].lock();
        if let Some(entry) = shard.get_mut(&self.id) {
            change(&mut entry.view);
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.connections.shards[self.worker.index()]
            .lock()
            .remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::workers::Workers;

    fn tracked(connections: &Arc<Connections>, port: u16, facts: Option<InboundFacts>) -> Tracked {
        let worker = Workers::start(1).expect("starts").assign_home();
        let view = ConnectionView {
            src: SocketAddr::new([10, 0, 0, 1].into(), port),
            original_dst: None,
            actual_dst: "10.0.0.2:80".into(),
            protocol: "TCP",
            verdict: None,
        };
        connections.track(worker, facts, view)
    }

    fn to_port(port: u16) -> Option<InboundFacts> {
        let destination = SocketAddr::new([10, 0, 0, 2].into(), port);
        Some(InboundFacts {
            source_ip: [10, 0, 0, 1].into(),
            identity: None,
            claimed: None,
            destination,
        })
    }

    #[test]
    fn only_what_lost_its_permission_is_stopped_and_only_once() {
        let connections = Connections::new(1);
        let kept = tracked(&connections, 1, to_port(80));
        let lost = tracked(&connections, 2, to_port(81));
        let outbound = tracked(&connections, 3, None);
        let decide = |facts: &InboundFacts| match facts.destination.port() {
            81 => Verdict::Stop("no more".into()),
            _ => Verdict::Keep("allowed".into()),
        };
        assert_eq!(connections.decide_again(decide), 1);
        assert_eq!(connections.decide_again(decide), 0, "it was stopped before");
        assert_eq!(lost.stop().reason().as_deref(), Some("no more"));
        assert!(kept.stop().reason().is_none());
        assert!(outbound.stop().reason().is_none());
        let view = connections.view();
        assert_eq!(view.inbound[0].verdict.as_deref(), Some("allowed"));
        assert_eq!((view.inbound.len(), view.outbound.len()), (2, 1));
    }

    #[test]
    fn a_pod_that_goes_stops_all_that_is_open() {
        let connections = Connections::new(1);
        let open = [
            tracked(&connections, 1, to_port(80)),
            tracked(&connections, 2, None),
        ];
        connections.stop_all(&"gone".into());
        for one in &open {
            assert_eq!(one.stop().reason().as_deref(), Some("gone"));
        }
    }

    #[test]
    fn an_ended_connection_leaves_the_register() {
        let connections = Connections::new(1);
        let one = tracked(&connections, 1, to_port(80));
        assert_eq!(connections.count(), 1);
        drop(one);
        assert_eq!(connections.count(), 0);
    }
}
