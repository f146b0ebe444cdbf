// SPDX-License-Identifier: Apache-2.0
//! All pods of the node that are served: starting and stopping them, following policy for them, draining them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use capture::{Netns, NetnsId};
use ops::metrics::Metrics;
use parking_lot::Mutex;
use tokio::time::{sleep_until, timeout};
use tracing::{info, warn};

use super::{PodProxy, Shared, StartError};
use crate::binding::Unbound;
use crate::connections::ConnectionsView;
use crate::handover::Sockets;
use crate::limits::GatesView;
use crate::pods::{Pod, PodInfo, PodUid};
use crate::route::OwnPorts;
use crate::trial::{Candidates, Trials};

/// How far a pod is that leaves the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// Connections that are still carried here.
    pub open: usize,
    /// The control plane no longer says that the pod is reached by HBONE.
    pub plain: bool,
}

/// A pod as the admin view shows it.
pub struct PodView {
    pub uid: PodUid,
    pub info: PodInfo,
    pub state: PodState,
    /// Why its connections are refused, where it is not the workload of its name.
    pub unbound: Option<Unbound>,
    /// None while it waits to be served.
    pub connections: Option<ConnectionsView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum PodState {
    Pending,
    Up,
    /// It leaves the mesh; what is open goes on.
    Draining,
}

/// All pods that are served.
pub struct Proxies {
    shared: Arc<Shared>,
    running: Mutex<BTreeMap<PodUid, Arc<PodProxy>>>,
    pending: Mutex<Vec<(PodUid, PodInfo)>>,
    started: metrics::Counter,
    stopped: metrics::Counter,
}

impl Proxies {
    pub fn new(shared: Arc<Shared>, metrics: &Metrics) -> Self {
        Self {
            shared,
            running: Mutex::default(),
            pending: Mutex::default(),
            started: metrics.counter("workload_manager_proxies_started_total", &[]),
            stopped: metrics.counter("workload_manager_proxies_stopped_total", &[]),
        }
    }

    /// Once this returns, the pod's listeners take connections.
    pub fn start(&self, pod: &Pod<Netns>, inherited: Sockets) -> Result<(), StartError> {
        let handed_over = inherited.len();
        let proxy = PodProxy::start(pod, &self.shared, inherited)?;
        info!(uid = %pod.uid, pod = %pod.info, netns = %pod.netns.id(), source = ?proxy.source, handed_over, "proxy started");
        self.started.increment(1);
        self.shared.local.add(&proxy);
        let replaced = self.running.lock().insert(pod.uid.clone(), proxy);
        if let Some(replaced) = replaced {
            self.end(&replaced);
        }
        Ok(())
    }

    /// Serves the pod no more: its network is about to vanish. What is open still is for [`PodProxy::let_go`].
    #[must_use = "what is open has to be let go"]
    pub fn stop(&self, uid: &PodUid) -> Option<Arc<PodProxy>> {
        let removed = self.running.lock().remove(uid);
        removed.inspect(|proxy| {
            proxy.stop_accepting();
            self.count_stopped(proxy);
        })
    }

    /// The pod leaves the mesh: what is open goes on, and peers that have not heard are still served. Says how far it
    /// is; nothing if it is not served here.
    pub fn release(&self, uid: &PodUid) -> Option<Remaining> {
        let proxy = self.running.lock().get(uid).cloned()?;
        let open = proxy.connections.count();
        if proxy.set_leaving(true) {
            info!(uid = %proxy.uid, pod = %proxy.info, open, "pod leaves the mesh");
        }
        let plain = proxy.is_plain();
        Some(Remaining { open, plain })
    }

    /// The pod stays in the mesh, whatever was said before.
    pub fn stay(&self, uid: &PodUid) {
        let proxy = self.running.lock().get(uid).cloned();
        if let Some(proxy) = proxy
            && proxy.set_leaving(false)
        {
            info!(uid = %proxy.uid, pod = %proxy.info, "pod stays in the mesh");
        }
    }

    /// Duplicates of the listeners of a pod in this namespace; none if it is not served here.
    pub fn listeners(&self, uid: &PodUid, netns: NetnsId) -> io::Result<Sockets> {
        let mut sockets = Sockets::default();
        let proxy = self.running.lock().get(uid).cloned();
        if let Some(proxy) = proxy.filter(|proxy| proxy.netns.id() == netns) {
            proxy.hand_on(&mut sockets)?;
        }
        Ok(sockets)
    }

    /// Whether listeners accept. They stay open, and what comes meanwhile waits.
    pub fn set_accepting(&self, accepting: bool) {
        self.shared.gate.set_open(accepting);
    }

    /// The pods that have open connections, with their number.
    pub fn carried(&self) -> Vec<(PodInfo, usize)> {
        let pods = self.running.lock();
        pods.values()
            .map(|pod| (pod.info.clone(), pod.connections.count()))
            .filter(|(_, open)| *open > 0)
            .collect()
    }

    /// Forgets tunnels that carry nothing: no new connection will want one.
    pub fn release_tunnels(&self) {
        for pod in self.running.lock().values() {
            pod.close_pools();
        }
    }

    fn end(&self, proxy: &PodProxy) {
        proxy.stop_accepting();
        proxy.cut_open();
        self.count_stopped(proxy);
    }

    fn count_stopped(&self, proxy: &PodProxy) {
        self.stopped.increment(1);
        info!(uid = %proxy.uid, pod = %proxy.info, "proxy stopped");
    }

    pub fn set_pending(&self, pending: Vec<(PodUid, PodInfo)>) {
        *self.pending.lock() = pending;
    }

    /// What is served, each with its open connections; and what waits to be.
    pub fn view(&self) -> Vec<PodView> {
        let running: Vec<_> = self.running.lock().values().cloned().collect();
        let running = running.into_iter().map(|pod| PodView {
            uid: pod.uid.clone(),
            info: pod.info.clone(),
            state: match pod.is_leaving() {
                true => PodState::Draining,
                false => PodState::Up,
            },
            unbound: pod.workload().err(),
            connections: Some(pod.connections.view()),
        });
        let pending = self.pending.lock().clone();
        let pending = pending.into_iter().map(|(uid, info)| PodView {
            uid,
            info,
            state: PodState::Pending,
            unbound: None,
            connections: None,
        });
        running.chain(pending).collect()
    }

    /// Of this proxy.
    pub fn network(&self) -> &str {
        &self.shared.settings.network
    }

    /// Ports that lead to a pod's own proxy.
    pub fn own_ports(&self) -> OwnPorts {
        OwnPorts::with(self.shared.settings.socks5)
    }

    /// What would come of the last minutes' connections under policies that are tried out.
    pub fn try_out(&self, candidates: &Candidates) -> Trials {
        let pods: Vec<_> = self.running.lock().values().cloned().collect();
        let mut found = Trials::default();
        for pod in pods {
            pod.try_out(candidates, &mut found);
        }
        found
    }

    /// What each pod may have and has, by namespace and name.
    pub fn limits(&self) -> BTreeMap<String, GatesView> {
        let running = self.running.lock();
        let views = running
            .values()
            .map(|pod| (pod.info.to_string(), pod.gates.view()));
        views.collect()
    }

    /// How many connections are open in each pod that has any, by namespace and name.
    pub fn open_connections(&self) -> BTreeMap<String, usize> {
        let running = self.running.lock();
        let counts = running
            .values()
            .map(|pod| (pod.info.to_string(), pod.connections.count()));
        counts.filter(|(_, open)| *open > 0).collect()
    }

    /// Ends what a change of policy or of a workload forbids, for as long as the process lives.
    pub async fn follow_policy(&self) {
        let mut changes = self.shared.mesh.authorization_changes();
        loop {
            changes.borrow_and_update();
            let pods: Vec<_> = self.running.lock().values().cloned().collect();
            let again = pods.iter().filter_map(|pod| pod.decide_again()).min();
            let patience = async {
                match again {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = patience => {}
            }
        }
    }

    /// Accepts nothing more, lets what is open end by itself until the limit, then cuts it.
    pub async fn drain(&self, limit: Duration) {
        let pods: Vec<_> = self.running.lock().values().cloned().collect();
        for pod in &pods {
            pod.stop_accepting();
        }
        let all_ended = async {
            for pod in &pods {
                pod.tasks.wait().await;
            }
        };
        if timeout(limit, all_ended).await.is_err() {
            let open: usize = pods.iter().map(|pod| pod.connections.count()).sum();
            warn!(open, ?limit, "drain deadline reached, cutting what is open");
        }
        self.cut_all().await;
    }

    /// Cuts everything; returns once the records are closed.
    pub async fn cut_all(&self) {
        const LAST_MOMENT: Duration = Duration::from_secs(1);
        let pods: Vec<_> = self.running.lock().values().cloned().collect();
        // All are told before the first tunnel breaks, so that both ends on this node know why.
        for pod in &pods {
            pod.stop_accepting();
            pod.cut.cancel();
        }
        for pod in &pods {
            pod.cut_open();
        }
        let all_closed = async {
            for pod in &pods {
                pod.tasks.wait().await;
            }
        };
        let _ = timeout(LAST_MOMENT, all_closed).await;
    }
}
