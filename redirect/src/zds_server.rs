// SPDX-License-Identifier: Apache-2.0
//! Hands pods to ztunnel over a unix socket, and collects its answers.
//!
//! In: the wanted pods (a watch). Out: what the newest ztunnel answered about each (a watch). One task for each
//! connection says what [`Link`] finds, one message at a time, and waits for the answer; an answer has no name, so it
//! belongs to the message before it, and a connection whose answer is late or malformed is closed rather than
//! misunderstood later. Several ztunnels may be connected, as during an upgrade.

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capture::NetnsId;
use capture::seqpacket::{Packet, SeqPacket, SeqPacketListener};
use parking_lot::Mutex;
use prost::Message as _;
use proto::zds::{
    AddWorkload, DelWorkload, Extension, KeepWorkload, ReleaseWorkload, SnapshotSent, WorkloadInfo,
    WorkloadRequest, WorkloadResponse, ZdsHello, workload_request, workload_response,
};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::zds_link::{Link, Message, Next, Releases, Role, Wanted};

/// The peer's bound on a message, and ours on its answers.
const MAX_PACKET: usize = 1024;
const DEADLINE: Duration = Duration::from_secs(5);
/// At most five connections a second are taken on.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(200);
const MAX_CONNECTIONS: usize = 16;

/// What ztunnel said about each pod, by UID.
pub type Answers = BTreeMap<String, Answer>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The namespace that it was asked to serve.
    pub netns: NetnsId,
    /// Empty: it serves the pod.
    pub error: String,
    /// Which connection's ztunnel said so.
    pub by: u64,
    /// What each connected ztunnel says of the pod while it is let go.
    pub reports: BTreeMap<u64, Report>,
}

/// How far a ztunnel is with a pod that leaves the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Connections that it still carries.
    pub open: u64,
    /// The control plane has told it that the pod is no longer reached by HBONE.
    pub plain: bool,
}

impl Answer {
    pub fn new(netns: NetnsId, error: String, by: u64) -> Self {
        Self {
            netns,
            error,
            by,
            reports: BTreeMap::new(),
        }
    }

    /// All ztunnels together: during an upgrade the older one carries connections too.
    pub fn report(&self) -> Option<Report> {
        let all = self.reports.values().copied();
        all.reduce(|a, b| Report {
            open: a.open + b.open,
            plain: a.plain && b.plain,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ZdsError {
    #[error("{doing}: {cause}")]
    Io {
        doing: &'static str,
        cause: io::Error,
    },
    #[error("{0}: no answer within 5 s")]
    Late(&'static str),
    #[error("ztunnel closed the connection")]
    Closed,
    #[error("ztunnel sent something unasked")]
    Unasked,
    #[error("{what}: {cause}")]
    Malformed { what: &'static str, cause: String },
    #[error("pod {uid}: its message has {length} bytes, more than {MAX_PACKET}")]
    TooLong { uid: String, length: usize },
}

/// Accepts ztunnels for as long as it is polled. Connections are answered once `wanted` has a value: a snapshot given
/// too early would make a ztunnel drop its pods.
#[derive(Debug)]
pub struct ZdsServer {
    listener: SeqPacketListener,
    shared: Shared,
}

#[derive(Debug, Clone)]
struct Shared {
    wanted: watch::Receiver<Option<Arc<Wanted>>>,
    answers: watch::Sender<Answers>,
    connections: Arc<Mutex<BTreeSet<u64>>>,
    newest: watch::Sender<u64>,
}

impl ZdsServer {
    /// Listens at `path`, in place of what an earlier agent left there.
    pub fn bind(
        path: impl AsRef<Path>,
        wanted: watch::Receiver<Option<Arc<Wanted>>>,
    ) -> io::Result<(Self, watch::Receiver<Answers>)> {
        let (answers, receiver) = watch::channel(Answers::new());
        let shared = Shared {
            wanted,
            answers,
            connections: Arc::default(),
            newest: watch::channel(0).0,
        };
        Ok((
            Self {
                listener: SeqPacketListener::bind(path)?,
                shared,
            },
            receiver,
        ))
    }

    pub async fn run(mut self) {
        if self.shared.wanted.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let mut tasks = tokio::task::JoinSet::new();
        for id in 1.. {
            let socket = match self.listener.accept().await {
                Ok(socket) => socket,
                Err(error) => {
                    // Out of descriptors, most likely: that passes.
                    metrics::counter!("culvert_accept_exhausted_total", "listener" => "zds")
                        .increment(1);
                    warn!(%error, "cannot accept a ztunnel's connection; it waits");
                    tokio::time::sleep(ACCEPT_INTERVAL).await;
                    continue;
                }
            };
            while tasks.try_join_next().is_some() {}
            if tasks.len() >= MAX_CONNECTIONS {
                warn!(
                    limit = MAX_CONNECTIONS,
                    "ztunnel connection refused: too many of them"
                );
                continue;
            }
            let shared = self.shared.clone();
            tasks.spawn(async move {
                info!(connection = id, "ztunnel connected");
                let error = converse(&socket, &shared, id).await.err();
                shared.leave(id);
                match error {
                    None | Some(ZdsError::Closed) => info!(connection = id, "ztunnel disconnected"),
                    Some(error) => {
                        metrics::counter!("redirect_ztunnel_dropped_total").increment(1);
                        warn!(connection = id, %error, "ztunnel connection dropped");
                    }
                }
            });
            tokio::time::sleep(ACCEPT_INTERVAL).await;
        }
    }
}

impl Shared {
    fn join(&self, id: u64) {
        self.connections.lock().insert(id);
        self.newest.send_replace(id);
    }

    fn leave(&self, id: u64) {
        let mut connections = self.connections.lock();
        connections.remove(&id);
        self.newest
            .send_replace(connections.last().copied().unwrap_or(0));
        self.answers.send_if_modified(|answers| {
            let removed = answers
                .values_mut()
                .filter_map(|answer| answer.reports.remove(&id));
            removed.count() > 0
        });
    }

    fn role(&self, id: u64) -> Role {
        if *self.newest.borrow() == id {
            Role::Newest
        } else {
            Role::Older
        }
    }

    fn note(&self, uid: &str, id: u64, report: Report) {
        self.answers.send_if_modified(|answers| {
            answers
                .get_mut(uid)
                .is_some_and(|answer| answer.reports.insert(id, report) != Some(report))
        });
    }

    fn wanted(&self) -> Option<Arc<Wanted>> {
        self.wanted.borrow().clone()
    }
}

/// A connection's life: hello, then one message and one answer after the other.
async fn converse(socket: &SeqPacket, shared: &Shared, id: u64) -> Result<(), ZdsError> {
    let mut link = Link::new(hello(socket).await?);
    // Whoever says nothing sensible first never stands in a ztunnel's place.
    shared.join(id);
    let mut wanted = shared.wanted.clone();
    let mut newest = shared.newest.subscribe();
    loop {
        wanted.borrow_and_update();
        newest.borrow_and_update();
        let Some(pods) = shared.wanted() else {
            return Ok(());
        };
        match link.next(&pods, shared.role(id), Instant::now()) {
            Next::Send(message) => {
                let Acknowledged { error, report } = exchange(socket, &message).await?;
                tell(&message, &error, shared, id);
                if let (Message::Release { uid }, Some(report)) = (&message, report) {
                    shared.note(uid, id, report);
                }
                link.answered(&message, &error, Instant::now());
            }
            Next::Wait(until) => {
                let retry = async {
                    match until {
                        Some(until) => tokio::time::sleep_until(until.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = wanted.changed() => if changed.is_err() { return Ok(()) },
                    _ = newest.changed() => {}
                    () = retry => {}
                    packet = socket.recv(MAX_PACKET) => {
                        let packet = packet.map_err(|cause| ZdsError::Io { doing: "waiting", cause })?;
                        return Err(if packet.is_end() { ZdsError::Closed } else { ZdsError::Unasked });
                    }
                }
            }
        }
    }
}

fn tell(message: &Message, error: &str, shared: &Shared, id: u64) {
    match message {
        Message::Add { uid, pod, netns } => {
            let (namespace, name) = (&pod.namespace, &pod.name);
            if error.is_empty() {
                debug!(
                    connection = id,
                    uid, namespace, name, "ztunnel serves the pod"
                );
            } else {
                warn!(
                    connection = id,
                    uid, namespace, name, error, "ztunnel refuses the pod"
                );
            }
            if shared.role(id) == Role::Newest {
                let answer = Answer::new(netns.id(), error.to_owned(), id);
                shared.answers.send_modify(|answers| {
                    answers.insert(uid.clone(), answer);
                });
            }
        }
        Message::Del { uid } => {
            if !error.is_empty() {
                warn!(
                    connection = id,
                    uid, error, "ztunnel could not remove a pod"
                );
            }
            shared
                .answers
                .send_if_modified(|answers| answers.remove(uid).is_some());
        }
        Message::Release { uid } => {
            if !error.is_empty() {
                warn!(connection = id, uid, error, "ztunnel can't let a pod go");
                shared.answers.send_if_modified(|answers| {
                    answers
                        .get_mut(uid)
                        .is_some_and(|answer| answer.reports.remove(&id).is_some())
                });
            }
        }
        Message::Keep { .. } | Message::SnapshotSent => {
            if !error.is_empty() {
                warn!(
                    connection = id,
                    error, "ztunnel answered the snapshot with an error"
                );
            }
        }
    }
}

async fn hello(socket: &SeqPacket) -> Result<Releases, ZdsError> {
    let packet = receive(socket, "hello").await?;
    let hello = ZdsHello::decode(packet.bytes.as_slice()).map_err(|cause| ZdsError::Malformed {
        what: "hello",
        cause: cause.to_string(),
    })?;
    debug!(version = hello.version, extensions = ?hello.extensions, "ztunnel says hello");
    Ok(if hello.extensions.contains(&Extension::Release.into()) {
        Releases::Gently
    } else {
        Releases::AtOnce
    })
}

/// A ztunnel's answer.
#[derive(Debug, Default, PartialEq, Eq)]
struct Acknowledged {
    /// Empty for none.
    error: String,
    report: Option<Report>,
}

/// Sends a message and returns its answer.
async fn exchange(socket: &SeqPacket, message: &Message) -> Result<Acknowledged, ZdsError> {
    let (payload, netns) = match message {
        Message::Add { uid, pod, netns } => {
            let workload_info = WorkloadInfo {
                name: pod.name.clone(),
                namespace: pod.namespace.clone(),
                service_account: pod.service_account.clone(),
            };
            let add = AddWorkload {
                uid: uid.clone(),
                workload_info: Some(workload_info),
            };
            (workload_request::Payload::Add(add), Some(netns))
        }
        Message::Keep { uid } => (
            workload_request::Payload::Keep(KeepWorkload { uid: uid.clone() }),
            None,
        ),
        Message::Del { uid } => (
            workload_request::Payload::Del(DelWorkload { uid: uid.clone() }),
            None,
        ),
        Message::Release { uid } => (
            workload_request::Payload::Release(ReleaseWorkload { uid: uid.clone() }),
            None,
        ),
        Message::SnapshotSent => (
            workload_request::Payload::SnapshotSent(SnapshotSent {}),
            None,
        ),
    };
    let bytes = WorkloadRequest {
        payload: Some(payload),
    }
    .encode_to_vec();
    if bytes.len() > MAX_PACKET
        && let Message::Add { uid, .. }
        | Message::Keep { uid }
        | Message::Del { uid }
        | Message::Release { uid } = message
    {
        // Said to nobody, so that one odd pod does not end the connection.
        let error = ZdsError::TooLong {
            uid: uid.clone(),
            length: bytes.len(),
        };
        return Ok(Acknowledged {
            error: error.to_string(),
            report: None,
        });
    }
    tokio::time::timeout(
        DEADLINE,
        socket.send(&bytes, netns.map(|netns| netns.as_fd())),
    )
    .await
    .map_err(|_| ZdsError::Late("sending"))?
    .map_err(|cause| ZdsError::Io {
        doing: "sending",
        cause,
    })?;
    let packet = receive(socket, "answer").await?;
    parse_answer(&packet.bytes)
}

async fn receive(socket: &SeqPacket, what: &'static str) -> Result<Packet, ZdsError> {
    let packet = tokio::time::timeout(DEADLINE, socket.recv(MAX_PACKET))
        .await
        .map_err(|_| ZdsError::Late(what))?
        .map_err(|cause| ZdsError::Io { doing: what, cause })?;
    if packet.is_end() {
        return Err(ZdsError::Closed);
    }
    if packet.truncated || !packet.fds.is_empty() {
        return Err(ZdsError::Malformed {
            what,
            cause: "it is too long, or brings descriptors along".into(),
        });
    }
    Ok(packet)
}

fn parse_answer(bytes: &[u8]) -> Result<Acknowledged, ZdsError> {
    let malformed = |cause: String| ZdsError::Malformed {
        what: "answer",
        cause,
    };
    let response = WorkloadResponse::decode(bytes).map_err(|cause| malformed(cause.to_string()))?;
    match response.payload {
        Some(workload_response::Payload::Ack(ack)) => Ok(Acknowledged {
            error: ack.error,
            report: ack.release.map(|release| Report {
                open: release.open,
                plain: release.plain,
            }),
        }),
        None => Err(malformed("it acknowledges nothing".into())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_are_read_from_their_bytes() {
        let error = |bytes: &[u8]| parse_answer(bytes).unwrap().error;
        assert_eq!(error(&[0x0a, 0x00]), "");
        assert_eq!(error(b"\x0a\x05\x0a\x03bad"), "bad");
        // A field of a newer peer does no harm.
        assert_eq!(error(&[0x0a, 0x02, 0x10, 0x07]), "");
        let report = Report {
            open: 2,
            plain: true,
        };
        let bytes = [0x0a, 0x07, 0xca, 0x3e, 0x04, 0x08, 0x02, 0x10, 0x01];
        assert_eq!(parse_answer(&bytes).unwrap().report, Some(report));
        for bytes in [&b"\x0a\x09\x0a"[..], b"\xff", b"\x12\x00"] {
            assert!(parse_answer(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            _ = parse_answer(&bytes);
        }
    }
}
