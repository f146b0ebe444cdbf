// SPDX-License-Identifier: Apache-2.0
//! Learns of this node's pods from the node agent and acknowledges what was done for them.
//!
//! In: packets of the agent's socket, each a message with at most one network namespace beside it. Out: proxies started
//! and stopped, one acknowledgement per message, readiness. What is to run is decided by [`crate::pods`]; whatever comes
//! over the socket, the worst that happens is that the connection is dropped and made anew. Running proxies never depend
//! on it.

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod message;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use capture::Netns;
use capture::seqpacket::SeqPacket;
use ops::health::ReadyHandle;
use ops::metrics::Metrics;
use ops::shutdown::DrainSignal;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use self::message::{Message, MessageError, decode, encode_ack, encode_hello};
use crate::handover::{Predecessor, Sockets};
use crate::pods::{Action, Added, Pod, PodUid, Pods, ProtocolError};
use crate::proxy::{PodProxy, Proxies, Remaining};

/// Far more than the longest names make up; longer packets are cut off and refused.
const MAX_MESSAGE: usize = 4096;
/// How long pods whose start failed wait for the next attempt.
const RETRY_PERIOD: Duration = Duration::from_secs(5);
const FIRST_DELAY: Duration = Duration::from_millis(10);
const LONGEST_DELAY: Duration = Duration::from_secs(15);

pub struct ZdsClient {
    socket: PathBuf,
    pods: Pods<Netns>,
    proxies: Arc<Proxies>,
    /// The process whose listeners this one takes over.
    predecessor: Option<Arc<Predecessor>>,
    ready: ReadyHandle,
    drain: DrainSignal,
    /// Another process serves in this one's place: what goes is heard of, nothing new is taken on.
    relieved: DrainSignal,
    active: metrics::Gauge,
    pending: metrics::Gauge,
    retry_at: Option<Instant>,
    /// Stopped, and what was open not yet let go.
    leaving: Vec<Arc<PodProxy>>,
}

/// What ends the client's work.
pub struct Signals {
    /// This process ends.
    pub drain: DrainSignal,
    /// Another process serves in this one's place.
    pub relieved: DrainSignal,
}

/// Why a connection to the agent ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("this process is draining")]
    Draining,
    #[error("the agent closed it")]
    Closed,
    #[error("socket error: {0}")]
    Io(#[from] std::io::Error),
    #[error("message can't be read: {0}")]
    Unreadable(#[from] MessageError),
    #[error("protocol error: {0}")]
    Protocol(#[from] ProtocolError),
}

impl Ended {
    /// For a counter.
    fn word(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::Protocol(_) => "protocol",
            Self::Draining | Self::Closed | Self::Io(_) => "connection",
        }
    }
}

/// What goes back to the agent.
enum Answer {
    Done,
    /// How far a pod is that leaves the mesh.
    Remaining(Remaining),
    /// This message could not be carried out; the connection goes on.
    Failed(String),
    /// The connection can't be trusted any further.
    Broken(Ended),
}

impl ZdsClient {
    /// `own` is the namespace that this process is in.
    pub fn new(
        socket: PathBuf,
        own: Netns,
        proxies: Arc<Proxies>,
        predecessor: Option<Arc<Predecessor>>,
        ready: ReadyHandle,
        signals: Signals,
        metrics: &Metrics,
    ) -> Self {
        let Signals { drain, relieved } = signals;
        Self {
            socket,
            pods: Pods::beside(own),
            proxies,
            predecessor,
            ready,
            drain,
            relieved,
            active: metrics.gauge("workload_manager_active_proxy_count", &[]),
            pending: metrics.gauge("workload_manager_pending_proxy_count", &[]),
            retry_at: None,
            leaving: Vec::new(),
        }
    }

    /// Follows the agent until this process drains.
    pub async fn run(mut self) {
        let mut delay = FIRST_DELAY;
        loop {
            let connected_at = Instant::now();
            let ended = match SeqPacket::connect(&self.socket) {
                Ok(channel) => {
                    info!(socket = %self.socket.display(), "connected to the node agent");
                    self.serve(&channel).await
                }
                Err(error) => Ended::Io(error),
            };
            self.pods.disconnected();
            self.ready.not_ready();
            if matches!(ended, Ended::Draining) {
                return;
            }
            if self.relieved.is_draining() {
                // The agent takes whoever comes last for the one that serves.
                info!(reason = %ended, "not connected to the node agent any more; another process is");
                return;
            }
            // A connection that lasted shows that the agent is well; one that broke at once must not be made in a loop.
            if connected_at.elapsed() > LONGEST_DELAY {
                delay = FIRST_DELAY;
            }
            warn!(socket = %self.socket.display(), reason = %ended, retry_in = ?delay, "not connected to the node agent");
            tokio::select! {
                () = self.drain.requested() => return,
                () = sleep(delay) => {}
            }
            delay = (delay * 2).min(LONGEST_DELAY);
        }
    }

    async fn serve(&mut self, channel: &SeqPacket) -> Ended {
        self.pods.connected();
        self.retry_at = None;
        self.report();
        if let Err(error) = channel.send(&encode_hello(), None).await {
            return error.into();
        }
        loop {
            let retry_at = self.retry_at;
            let packet = tokio::select! {
                biased;
                () = self.drain.requested() => return Ended::Draining,
                () = async { match retry_at { Some(at) => sleep_until(at).await, None => std::future::pending().await } } => {
                    self.retry().await;
                    continue;
                }
                packet = channel.recv(MAX_MESSAGE) => packet,
            };
            let packet = match packet {
                Ok(packet) if packet.is_end() => return Ended::Closed,
                Ok(packet) => packet,
                Err(error) => return error.into(),
            };
            let answer = match decode(packet) {
                Ok(message) => self.handle(message).await,
                Err(error) if error.is_about_one_pod() => Answer::Failed(error.to_string()),
                Err(error) => Answer::Broken(error.into()),
            };
            self.report();
            // Before the agent hears of it: what it does next may take the network away.
            for proxy in std::mem::take(&mut self.leaving) {
                proxy.let_go().await;
            }
            let (text, remaining, broken) = match answer {
                Answer::Done => (String::new(), None, None),
                Answer::Remaining(remaining) => (String::new(), Some(remaining), None),
                Answer::Failed(text) => {
                    metrics::counter!("culvert_zds_refused_total", "reason" => "pod").increment(1);
                    warn!(error = text, "request of the node agent failed");
                    (text, None, None)
                }
                Answer::Broken(ended) => {
                    metrics::counter!("culvert_zds_refused_total", "reason" => ended.word())
                        .increment(1);
                    (ended.to_string(), None, Some(ended))
                }
            };
            let ack = encode_ack(&text, remaining);
            if let Err(error) = channel.send(&ack, None).await {
                return broken.unwrap_or_else(|| error.into());
            }
            if let Some(ended) = broken {
                return ended;
            }
        }
    }

    async fn handle(&mut self, message: Message) -> Answer {
        match message {
            Message::Add(pod) if self.relieved.is_draining() && !self.pods.runs(&pod) => {
                Answer::Failed(format!(
                    "pod {}: another process serves in this one's place",
                    pod.uid
                ))
            }
            Message::Add(pod) => {
                debug!(uid = %pod.uid, pod = %pod.info, netns = %pod.netns.id(), "pod added");
                let uid = pod.uid.clone();
                let Added { actions, refusal } = self.pods.add(pod);
                let answer = self.carry_out(actions, Some(&uid)).await;
                match refusal {
                    None => answer,
                    Some(refusal) => {
                        self.arm_retry();
                        Answer::Failed(format!("pod {uid}: {refusal}"))
                    }
                }
            }
            Message::Keep(uid) => match self.pods.keep(uid) {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Broken(error.into()),
            },
            Message::Delete(uid) => {
                debug!(%uid, "pod deleted");
                let actions = self.pods.delete(&uid);
                self.carry_out(actions, None).await
            }
            Message::Release(uid) => match self.proxies.release(&uid) {
                Some(remaining) => Answer::Remaining(remaining),
                None => Answer::Failed(format!("pod {uid} is not served here")),
            },
            Message::SnapshotSent => match self.pods.snapshot_sent() {
                Ok(actions) => {
                    let answer = self.carry_out(actions, None).await;
                    info!(
                        running = self.pods.running_count(),
                        pending = self.pods.pending_count(),
                        "snapshot of this node's pods received"
                    );
                    answer
                }
                Err(error) => Answer::Broken(error.into()),
            },
        }
    }

    /// Failed starts stay pending; only the start of `asked` decides the answer.
    async fn carry_out(&mut self, actions: Vec<Action<Netns>>, asked: Option<&PodUid>) -> Answer {
        let mut answer = Answer::Done;
        for action in actions {
            match action {
                Action::Stop(uid) => self.leaving.extend(self.proxies.stop(&uid)),
                Action::Stay(uid) => self.proxies.stay(&uid),
                Action::Start(pod) => {
                    if let Err(text) = self.start(pod.clone()).await
                        && asked == Some(&pod.uid)
                    {
                        answer = Answer::Failed(text);
                    }
                }
            }
        }
        answer
    }

    async fn start(&mut self, pod: Pod<Netns>) -> Result<(), String> {
        let inherited = match &self.predecessor {
            Some(predecessor) => predecessor.listeners(&pod.uid, pod.netns.id()).await,
            None => Sockets::default(),
        };
        match self.proxies.start(&pod, inherited) {
            Ok(()) => {
                self.pods.started(pod);
                Ok(())
            }
            Err(error) => {
                let text = format!("pod {} ({}): {error}", pod.uid, pod.info);
                self.pods.failed(pod);
                self.arm_retry();
                Err(text)
            }
        }
    }

    async fn retry(&mut self) {
        self.retry_at = None;
        let actions = self.pods.retry();
        self.carry_out(actions, None).await;
        self.arm_retry();
        self.report();
    }

    fn arm_retry(&mut self) {
        if self.pods.pending_count() == 0 {
            self.retry_at = None;
        } else if self.retry_at.is_none() {
            self.retry_at = Some(Instant::now() + RETRY_PERIOD);
        }
    }

    fn report(&self) {
        self.active.set(self.pods.running_count() as f64);
        self.pending.set(self.pods.pending_count() as f64);
        self.proxies.set_pending(
            self.pods
                .pending()
                .map(|pod| (pod.uid.clone(), pod.info.clone()))
                .collect(),
        );
        if self.pods.is_ready() {
            self.ready.ready();
        } else {
            self.ready.not_ready();
        }
    }
}
