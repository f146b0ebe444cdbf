// SPDX-License-Identifier: Apache-2.0
//! The side of the process that runs: answers its successor, stops accepting once that one serves, and goes on where it
//! fails.
//!
//! One successor at a time; another one is refused. As long as a successor has not said that it serves, nothing changes
//! here. When it has, accepting is paused and everything kept at hand for [`PROBATION`].

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use capture::NetnsId;
use capture::seqpacket::{SeqPacket, SeqPacketListener};
use proto::handover::{Hello, response};
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::wire::{self, Asked, HandoverError, malformed};
use super::{PROBATION, Sockets};
use crate::pods::PodUid;

/// What a giver hands over.
pub trait Estate: Send + Sync {
    /// Duplicates of the listeners of a pod in this namespace; none if it is not served here.
    fn listeners(&self, uid: &PodUid, netns: NetnsId) -> io::Result<Sockets>;
    /// Duplicates of the process's own.
    fn operators(&self) -> io::Result<Sockets>;
    /// Accepts nothing more, in pods and by itself.
    fn pause(&self);
    /// Accepts as before.
    fn resume(&self);
}

/// Waits for successors.
pub struct Giver {
    path: PathBuf,
    listener: SeqPacketListener,
    hello: Hello,
}

/// The process that serves now in this one's place.
pub struct Successor {
    pub pid: u32,
    pub(super) channel: SeqPacket,
}

/// Why a successor did not take over.
enum Ended {
    /// Before anything had changed.
    Early(HandoverError),
    /// It had taken over, and failed.
    OnProbation(HandoverError),
}

impl Giver {
    /// Listens at `path`, in place of whoever did before; for our own user alone.
    ///
    /// # Errors
    /// The path can't be listened at.
    pub fn bind(path: &Path, hello: Hello) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            listener: SeqPacketListener::bind_private(path)?,
            hello,
        })
    }

    /// Serves successors until one has taken over for good.
    pub async fn until_relieved(mut self, estate: &dyn Estate) -> Successor {
        loop {
            let channel = match self.listener.accept().await {
                Ok(channel) => channel,
                Err(error) => {
                    // Out of descriptors, most likely: that passes.
                    warn!(%error, "a successor could not be heard");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let relieved = tokio::select! {
                relieved = self.converse(&channel, estate) => relieved,
                never = refuse_others(&self.listener) => match never {},
            };
            match relieved {
                Ok(pid) => return Successor { pid, channel },
                Err(Ended::Early(HandoverError::Gone)) => {
                    info!("a successor gave up before it served")
                }
                Err(Ended::Early(error)) => warn!(%error, "a successor is turned away"),
                Err(Ended::OnProbation(error)) => {
                    error!(%error, "the successor failed, this process goes on");
                    estate.resume();
                    // It may have listened in our place.
                    match SeqPacketListener::bind_private(&self.path) {
                        Ok(listener) => self.listener = listener,
                        Err(error) => {
                            warn!(%error, socket = %self.path.display(), "the next process can't take over")
                        }
                    }
                }
            }
        }
    }

    async fn converse(&self, channel: &SeqPacket, estate: &dyn Estate) -> Result<u32, Ended> {
        let (pid, build) = match self.greet(channel).await {
            Ok(hello) => hello,
            Err(error) => {
                // It should hear why, if it listens at all.
                let _ = wire::answer(channel, wire::refused(&error)).await;
                return Err(Ended::Early(error));
            }
        };
        info!(pid, build, "a successor takes over");
        loop {
            let packet = wire::receive(channel).await.map_err(Ended::Early)?;
            let asked = wire::read_request(&packet).map_err(Ended::Early)?;
            let answered = match asked {
                Asked::Hello { .. } => Err(malformed("a second hello")),
                Asked::Pod { uid, netns } => give(channel, estate.listeners(&uid, netns)).await,
                Asked::Operators => give(channel, estate.operators()).await,
                Asked::Serving => {
                    estate.pause();
                    info!(pid, "the successor serves, nothing more is accepted here");
                    let done = wire::answer(channel, wire::done()).await;
                    done.map_err(Ended::OnProbation)?;
                    return match timeout(PROBATION, wire::receive(channel)).await {
                        Err(_passed) => Ok(pid),
                        Ok(Err(error)) => Err(Ended::OnProbation(error)),
                        Ok(Ok(_)) => Err(Ended::OnProbation(malformed("it speaks unasked"))),
                    };
                }
            };
            answered.map_err(Ended::Early)?;
        }
    }

    async fn greet(&self, channel: &SeqPacket) -> Result<(u32, String), HandoverError> {
        let own = nix::unistd::geteuid().as_raw();
        let found = channel.peer_uid().map_err(|cause| HandoverError::Io {
            doing: "asking who it is",
            cause,
        })?;
        if found != own {
            return Err(HandoverError::Stranger { found, own });
        }
        let packet = wire::receive_in_time(channel).await?;
        let Asked::Hello { pid, build } = wire::read_request(&packet)? else {
            return Err(malformed("it does not say hello"));
        };
        let hello = response::Kind::Hello(self.hello.clone());
        wire::answer(channel, hello).await?;
        Ok((pid, build))
    }
}

async fn give(channel: &SeqPacket, sockets: io::Result<Sockets>) -> Result<(), HandoverError> {
    match sockets {
        Ok(sockets) => wire::answer_sockets(channel, &sockets).await,
        Err(error) => {
            warn!(%error, "sockets can't be handed over");
            wire::answer(channel, wire::refused(error)).await
        }
    }
}

/// Tells whoever comes meanwhile that it comes too late.
async fn refuse_others(listener: &SeqPacketListener) -> Infallible {
    loop {
        if let Ok(channel) = listener.accept().await {
            let reason = wire::refused("another process is taking over just now");
            // Its hello is heard first: a channel that is closed with something unread is reset before the reason
            // has been read at the other end.
            let _heard = timeout(Duration::from_secs(1), channel.recv(4096)).await;
            let _ = wire::answer(&channel, reason).await;
        } else {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
