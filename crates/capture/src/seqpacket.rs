// SPDX-License-Identifier: Apache-2.0
//! Unix sockets of type SEQPACKET: whole packets, in order, with file descriptors beside them.
//!
//! Bytes and descriptors come from another process. Nothing is received without a bound, every descriptor has an owner
//! before anything else can fail, and whatever the kernel had to cut off is reported.

use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, socket, socketpair,
    sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The kernel's limit of descriptors in one packet (SCM_MAX_FD). With room for all of them none is ever cut off, which
/// would leave descriptors open without an owner.
const MAX_FDS: usize = 253;

const BACKLOG: i32 = 16;

/// One packet. No bytes and no descriptors means that the peer closed the connection.
#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// Part of the packet didn't fit and is lost.
    pub truncated: bool,
}

impl Packet {
    /// Did the peer close the connection? (An empty packet without descriptors looks the same.)
    pub fn is_end(&self) -> bool {
        self.bytes.is_empty() && self.fds.is_empty() && !self.truncated
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct SeqPacket {
    fd: AsyncFd<OwnedFd>,
}

impl SeqPacket {
    /// Connects to a listener's path. Local connects don't wait, except while the listener's queue is full: then this
    /// fails with `WouldBlock`.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        let fd = new_socket()?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path.as_ref())?)?;
        Self::from_fd(fd)
    }

    /// Two connected ends, for tests and child processes.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags())?;
        Ok((Self::from_fd(a)?, Self::from_fd(b)?))
    }

    fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: register(fd)? })
    }

    /// Sends one packet, with a descriptor if given; waits while the peer's buffer is full.
    pub async fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_with(bytes, fd.as_slice()).await
    }

    /// Sends one packet with any number of descriptors, up to the kernel's limit of 253.
    pub async fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let sent = self
            .fd
            .async_io(Interest::WRITABLE, |socket| {
                let parts = [IoSlice::new(bytes)];
                let rights = [ControlMessage::ScmRights(&raw)];
                let control = if raw.is_empty() { &[][..] } else { &rights[..] };
                Ok(sendmsg::<()>(
                    socket.as_raw_fd(),
                    &parts,
                    control,
                    MsgFlags::MSG_NOSIGNAL,
                    None,
                )?)
            })
            .await?;
        if sent != bytes.len() {
            return Err(io::Error::new(
                io::ErrorKind::WriteZero,
                format!("packet cut to {sent} of {} bytes", bytes.len()),
            ));
        }
        Ok(())
    }

    /// The user that the peer ran as when it connected, by the kernel's word.
    pub fn peer_uid(&self) -> io::Result<u32> {
        Ok(getsockopt(self, sockopt::PeerCredentials)?.uid())
    }

    /// Takes an end that another process has handed over.
    pub fn from_received(fd: OwnedFd) -> io::Result<Self> {
        if getsockopt(&fd, sockopt::SockType)? != SockType::SeqPacket {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a socket of packets",
            ));
        }
        Self::from_fd(fd)
    }

    /// Receives one packet of at most `max` bytes; what is longer arrives cut off and marked as such.
    pub async fn recv(&self, max: usize) -> io::Result<Packet> {
        self.fd
            .async_io(Interest::READABLE, |socket| receive(socket.as_fd(), max))
            .await
    }
}

impl AsFd for SeqPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

/// Waits for connections at a path, and removes the path once dropped.
#[derive(Debug)]
pub struct SeqPacketListener {
    fd: AsyncFd<OwnedFd>,
    path: PathBuf,
    /// Device and inode of our socket file.
    file: (u64, u64),
}

impl SeqPacketListener {
    /// Listens at `path`, in place of a socket that an earlier process left there.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        match std::fs::symlink_metadata(path) {
            Ok(found) => {
                if !found.file_type().is_socket() {
                    return Err(io::Error::new(
                        io::ErrorKind::AlreadyExists,
                        format!(
                            "{}: something that is no socket is in the way",
                            path.display()
                        ),
                    ));
                }
                std::fs::remove_file(path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let fd = new_socket()?;
        bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        listen(&fd, Backlog::new(BACKLOG)?)?;
        let file = std::fs::symlink_metadata(path)?;
        Ok(Self {
            fd: register(fd)?,
            path: path.to_owned(),
            file: (file.dev(), file.ino()),
        })
    }

    /// As [`Self::bind`], for our own user alone. Whoever may have connected in the moment before that is for
    /// [`SeqPacket::peer_uid`] to tell.
    pub fn bind_private(path: impl AsRef<Path>) -> io::Result<Self> {
        let listener = Self::bind(path)?;
        std::fs::set_permissions(&listener.path, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    pub async fn accept(&self) -> io::Result<SeqPacket> {
        let fd = self
            .fd
            .async_io(Interest::READABLE, |listener| {
                let fd = accept4(listener.as_raw_fd(), flags())?;
                Ok(own(fd))
            })
            .await?;
        SeqPacket::from_fd(fd)
    }
}

impl Drop for SeqPacketListener {
    fn drop(&mut self) {
        // A newer process may have put its own socket there already.
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn receive(socket: BorrowedFd<'_>, max: usize) -> io::Result<Packet> {
    let mut bytes = vec![0; max];
    let mut control = nix::cmsg_space!([RawFd; MAX_FDS]);
    let mut fds = Vec::new();
    let (length, truncated) = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = recvmsg::<()>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::MSG_CMSG_CLOEXEC,
        )?;
        let cut = message
            .flags
            .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
        match message.cmsgs() {
            Ok(messages) => {
                for message in messages {
                    if let ControlMessageOwned::ScmRights(received) = message {
                        fds.extend(received.into_iter().map(own));
                    }
                }
            }
            // Control data was cut off; there was room for all descriptors that the kernel passes, so none is lost.
            Err(Errno::ENOBUFS) => {}
            Err(error) => return Err(error.into()),
        }
        (message.bytes, cut)
    };
    bytes.truncate(length);
    Ok(Packet {
        bytes,
        fds,
        truncated,
    })
}

#[expect(
    unsafe_code,
    reason = "the kernel hands out new descriptors as integers"
)]
fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: every caller passes a descriptor that the kernel has just created for this process in accept4 or
    // recvmsg, once, and that nobody else has seen.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[expect(
    unsafe_code,
    reason = "tokio asks its caller to vouch for the descriptor"
)]
fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, names the same description for its whole life, and the AsyncFd takes it over.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        flags(),
        None,
    )?)
}

fn flags() -> SockFlag {
    SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK
}
