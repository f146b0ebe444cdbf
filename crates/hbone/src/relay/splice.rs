// SPDX-License-Identifier: Apache-2.0
//! One direction of bulk between two sockets, whose bytes stay in the kernel: socket → pipe → socket by splice(2).
//!
//! It pays for large reads only; small ones cost more than a copy does. So a direction comes here once it is bulk and goes
//! back to copying once it is not. A pipe is borrowed for as long as bytes are in it: what a worker holds of them is
//! bounded, and an idle connection holds none.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::carry::{Fault, until_reset};
use super::inlet::{LARGE, SMALL};
use crate::meter::{Meter, Way};
use crate::turn::TURN;

/// What is moved at once: the most that a stalled direction holds here.
const MOST: usize = 512 * 1024;
/// The capacity asked of a pipe, of which a page counts whole however little of it is used.
const CAPACITY: i32 = 256 * 1024;
/// Small reads in a row after which a direction is bulk no more.
const SMALL_READS: u32 = 16;
/// Pipes that one worker lends at a time; each takes two descriptors. Whoever gets none copies.
const LENT: usize = 64;
/// Pipes that one worker keeps for the next.
const KEPT: usize = 8;

/// Why a direction is not spliced any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The source has ended, and all of it was passed on.
    Ended,
    /// What comes is small, or no pipe is to be had.
    Copy,
}

/// Runs until the source ends, is bulk no more, or something breaks. Nothing is held when it returns in order.
pub(super) async fn carry(
    from: &TcpStream,
    to: &TcpStream,
    meter: &Meter,
    way: Way,
) -> Result<Left, Fault> {
    let (mut moved, mut small) = (0, 0);
    loop {
        let readable = poll_fn(|cx| from.poll_read_ready(cx)).await;
        readable.map_err(Fault::Source)?;
        let Some(mut pipe) = Lease::take() else {
            return Ok(Left::Copy);
        };
        match from.try_io(Interest::READABLE, || pipe.fill(from)) {
            Ok(0) => return Ok(Left::Ended),
            Ok(count) if count < SMALL => small += 1,
            Ok(count) if count >= LARGE => small = 0,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(Fault::Source(gone(error))),
        }
        while pipe.held > 0 {
            let sent = send(from, to, &mut pipe).await?;
            meter.add_spliced(way, sent);
            moved += sent;
        }
        drop(pipe);
        if small >= SMALL_READS {
            return Ok(Left::Copy);
        }
        if moved >= TURN {
            moved = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Sends some of what is held. While there is no room nothing is read, so the source is watched for a reset.
async fn send(from: &TcpStream, to: &TcpStream, pipe: &mut Lease) -> Result<usize, Fault> {
    let sink = |error: io::Error| Fault::Sink(error.into());
    if let Poll::Ready(sent) = poll_fn(|cx| Poll::Ready(poll_send(to, pipe, cx))).await {
        return sent.map_err(sink);
    }
    let mut reset = Box::pin(until_reset(from));
    poll_fn(|cx| {
        if let Poll::Ready(sent) = poll_send(to, pipe, cx) {
            return Poll::Ready(sent.map_err(sink));
        }
        reset
            .as_mut()
            .poll(cx)
            .map(|error| Err(Fault::Source(error)))
    })
    .await
}

fn poll_send(to: &TcpStream, pipe: &mut Lease, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    loop {
        ready!(to.poll_write_ready(cx))?;
        match to.try_io(Interest::WRITABLE, || pipe.empty(to)) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return Poll::Ready(sent),
        }
    }
}

/// A reset is told once; whoever asks later only learns that there is no connection.
fn gone(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotConnected => io::ErrorKind::ConnectionReset.into(),
        _ => error,
    }
}

struct Pipe {
    read: File,
    write: File,
}

impl Pipe {
    fn new() -> Result<Self, Errno> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // A smaller pipe works as well: users may have used up what they may have.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(CAPACITY));
        Ok(Self {
            read: read.into(),
            write: write.into(),
        })
    }
}

/// The pipes of a worker.
#[derive(Default)]
struct Pipes {
    kept: Vec<Pipe>,
    lent: usize,
}

thread_local! {
    static PIPES: Arc<Mutex<Pipes>> = Arc::default();
}

/// A borrowed pipe and the number of bytes in it. One that is not empty in the end is closed: nobody else may read what
/// is in it.
struct Lease {
    pipe: Option<Pipe>,
    held: usize,
    pipes: Arc<Mutex<Pipes>>,
}

impl Lease {
    /// None if the worker has lent all it may, or there are no descriptors.
    fn take() -> Option<Self> {
        let pipes = PIPES.with(Arc::clone);
        let pipe = {
            let mut pipes = pipes.lock();
            if pipes.lent >= LENT {
                return None;
            }
            let pipe = match pipes.kept.pop() {
                Some(pipe) => pipe,
                None => Pipe::new().ok()?,
            };
            pipes.lent += 1;
            pipe
        };
        Some(Self {
            pipe: Some(pipe),
            held: 0,
            pipes,
        })
    }

    fn pipe(&self) -> &Pipe {
        self.pipe
            .as_ref()
            .expect("broken invariant: taken by drop alone")
    }

    fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let count = transfer(from, &self.pipe().write, MOST)?;
        self.held += count;
        Ok(count)
    }

    fn empty(&mut self, to: &TcpStream) -> io::Result<usize> {
        let count = transfer(&self.pipe().read, to, self.held)?;
        self.held -= count;
        Ok(count)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut pipes = self.pipes.lock();
        pipes.lent -= 1;
        if self.held == 0 && pipes.kept.len() < KEPT {
            pipes.kept.extend(self.pipe.take());
        }
    }
}

fn transfer(from: &impl AsFd, to: &impl AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    Ok(splice(from, None, to, None, most, flags)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_worker_lends_so_many_pipes_and_keeps_only_empty_ones() {
        let mut lent: Vec<_> = std::iter::from_fn(Lease::take).collect();
        assert_eq!(lent.len(), LENT);
        let mut left_full = lent.pop().unwrap();
        left_full
            .pipe
            .as_mut()
            .unwrap()
            .write
            .write_all(b"left")
            .unwrap();
        left_full.held = 4;
        drop(left_full);
        let kept = || PIPES.with(|pipes| pipes.lock().kept.len());
        assert_eq!(kept(), 0, "its bytes are nobody else's");
        assert!(Lease::take().is_some(), "its place is free");
        drop(lent);
        assert_eq!(kept(), KEPT);
        assert_eq!(PIPES.with(|pipes| pipes.lock().lent), 0);
    }
}
