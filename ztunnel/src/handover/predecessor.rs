// SPDX-License-Identifier: Apache-2.0
//! The process before this one, as this one asks it.
//!
//! In: the handover socket. Out: the predecessor's listeners, and its promise to accept no more. A predecessor that does
//! not answer costs nothing: this process then opens listeners of its own, as if there had been none.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use capture::NetnsId;
use capture::seqpacket::SeqPacket;
use proto::handover::{Hello, request, response};
use tokio::sync::Mutex;
use tracing::{info, warn};

use super::Sockets;
use super::wire::{self, HandoverError, malformed, read_response};
use crate::pods::PodUid;

pub struct Predecessor {
    channel: Arc<SeqPacket>,
    /// One question at a time.
    asking: Mutex<()>,
    pid: u32,
    netns: Option<NetnsId>,
    relieved: AtomicBool,
}

impl Predecessor {
    /// Greets the process that listens at `path`; nothing if there is none.
    ///
    /// # Errors
    /// There is one, and it can't or won't hand over.
    pub async fn meet(path: &Path, hello: Hello) -> Result<Option<Self>, HandoverError> {
        let channel = match SeqPacket::connect(path) {
            Ok(channel) => channel,
            // Never was, or has ended without a word.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(cause) => {
                return Err(HandoverError::Io {
                    doing: "connecting",
                    cause,
                });
            }
        };
        let (answer, _) = match ask(&channel, request::Kind::Hello(hello)).await {
            Ok(answer) => answer,
            // It ended in this moment.
            Err(HandoverError::Gone) => return Ok(None),
            Err(error) => return Err(error),
        };
        let response::Kind::Hello(said) = answer else {
            return Err(malformed("it does not say hello"));
        };
        info!(pid = said.pid, build = said.build, socket = %path.display(), "taking over from another process");
        Ok(Some(Self {
            channel: Arc::new(channel),
            asking: Mutex::new(()),
            pid: said.pid,
            netns: wire::netns_of(said.netns),
            relieved: AtomicBool::new(false),
        }))
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the process's own ports are the same as ours.
    pub fn is_in(&self, netns: NetnsId) -> bool {
        self.netns == Some(netns)
    }

    /// The listeners of a pod; empty where it has none, for whatever reason, and once it has been relieved.
    pub async fn listeners(&self, uid: &PodUid, netns: NetnsId) -> Sockets {
        if self.relieved.load(Ordering::Relaxed) {
            return Sockets::default();
        }
        let asked = wire::pod(uid, netns);
        match self.sockets(asked).await {
            Ok(sockets) => sockets,
            Err(error) => {
                warn!(%uid, %error, "no listeners from the process before");
                Sockets::default()
            }
        }
    }

    /// The listeners of the process itself, and its lines to those before it.
    ///
    /// # Errors
    /// It can't hand them over.
    pub async fn operators(&self) -> Result<Sockets, HandoverError> {
        self.sockets(wire::operators()).await
    }

    /// Tells it to accept no more. Once this returns, this process alone does.
    ///
    /// # Errors
    /// It has not said that it does so.
    pub async fn relieve(&self) -> Result<(), HandoverError> {
        let _asking = self.asking.lock().await;
        self.relieved.store(true, Ordering::Relaxed);
        match ask(&self.channel, wire::serving()).await?.0 {
            response::Kind::Done(_) => Ok(()),
            _ => Err(malformed("it does not say that it is done")),
        }
    }

    /// The line on which it reports what it still carries, once it has been relieved.
    pub fn line(&self) -> Arc<SeqPacket> {
        Arc::clone(&self.channel)
    }

    async fn sockets(&self, asked: request::Kind) -> Result<Sockets, HandoverError> {
        let _asking = self.asking.lock().await;
        match ask(&self.channel, asked).await? {
            (response::Kind::Sockets(_), sockets) => Ok(sockets),
            _ => Err(malformed("it answers without sockets")),
        }
    }
}

async fn ask(
    channel: &SeqPacket,
    asked: request::Kind,
) -> Result<(response::Kind, Sockets), HandoverError> {
    match wire::send(channel, &wire::request(asked), &Sockets::default()).await {
        // It may have refused already, and closed.
        Ok(()) | Err(HandoverError::Gone) => {}
        Err(error) => return Err(error),
    }
    read_response(wire::receive_in_time(channel).await?)
}
