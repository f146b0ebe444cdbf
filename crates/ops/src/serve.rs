// SPDX-License-Identifier: Apache-2.0
//! The one accept loop.
//!
//! In comes a listener, out goes a task per connection, at most `limit` of them at a time. What can go wrong with
//! `accept` is handled once, here: a peer that left before it was accepted is nobody's fault, and a process that is
//! out of descriptors says so, waits a moment and goes on, since leaving the loop would end the service for good.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::shutdown::DrainSignal;

/// So many are taken before everything else of the thread has its turn.
const IN_A_ROW: u32 = 16;
/// Pause after an `accept` that failed for want of resources.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// How often it is said that this goes on.
const EXHAUSTED_TELL: Duration = Duration::from_secs(10);

/// What a failed `accept` means for the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptError {
    /// The connection was over before it was accepted: take the next one.
    ConnectionGone,
    /// Descriptors or memory ran out: report, pause, go on.
    Exhausted,
    /// The listener itself is broken.
    Fatal,
}

/// Sorts the errors of accept(2).
pub fn classify_accept_error(error: &io::Error) -> AcceptError {
    // accept(2) reports pending network errors of the new socket too.
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
            AcceptError::Exhausted
        }
        Some(
            Errno::EPERM
            | Errno::EPROTO
            | Errno::ENETDOWN
            | Errno::ENOPROTOOPT
            | Errno::EHOSTDOWN
            | Errno::ENONET
            | Errno::EHOSTUNREACH
            | Errno::EOPNOTSUPP
            | Errno::ENETUNREACH,
        ) => AcceptError::ConnectionGone,
        _ if matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
        ) =>
        {
            AcceptError::ConnectionGone
        }
        _ => AcceptError::Fatal,
    }
}

/// A time in which nothing could be accepted.
struct Exhausted {
    since: Instant,
    failed: u64,
    /// When to say so again.
    tell: Instant,
}

/// Takes connections from a listener, one after the other.
///
/// What is established goes before what arrives: a crowd that comes faster than it can be served would otherwise stand
/// in front of every byte of the others.
pub struct Arrivals<'l> {
    listener: &'l TcpListener,
    name: &'static str,
    in_a_row: u32,
}

impl<'l> Arrivals<'l> {
    /// Those of a listener, which logs and counters call by this name.
    pub fn of(listener: &'l TcpListener, name: &'static str) -> Self {
        Self {
            listener,
            name,
            in_a_row: 0,
        }
    }

    /// The next connection, riding out what [`classify_accept_error`] calls passing. May be dropped while it waits.
    ///
    /// # Errors
    /// Only when the listener itself is broken.
    pub async fn next(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        if self.in_a_row == IN_A_ROW {
            self.in_a_row = 0;
            tokio::task::yield_now().await;
        }
        let name = self.name;
        let mut exhausted: Option<Exhausted> = None;
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    if let Some(Exhausted { since, failed, .. }) = exhausted {
                        info!(listener = name, failed, after = ?since.elapsed(), "accepting again");
                    }
                    self.in_a_row += 1;
                    return Ok(accepted);
                }
                Err(error) => match classify_accept_error(&error) {
                    AcceptError::ConnectionGone => {
                        debug!(listener = name, %error, "connection was gone before it was accepted");
                    }
                    AcceptError::Exhausted => {
                        metrics::counter!("culvert_accept_exhausted_total", "listener" => name)
                            .increment(1);
                        let now = Instant::now();
                        let state = exhausted.get_or_insert(Exhausted {
                            since: now,
                            failed: 0,
                            tell: now,
                        });
                        state.failed += 1;
                        if state.tell <= now {
                            state.tell = now + EXHAUSTED_TELL;
                            warn!(listener = name, failed = state.failed, %error, "cannot accept: the process is out of resources; clients wait");
                        }
                        tokio::time::sleep(EXHAUSTED_PAUSE).await;
                    }
                    AcceptError::Fatal => return Err(error),
                },
            }
        }
    }
}

/// Serves `listener` until the drain is asked for, then waits for the connections that are open.
///
/// `limit` connections are served at a time; further ones wait in the backlog of the kernel.
///
/// # Errors
/// Only when the listener itself is broken.
pub async fn serve<F, Fut>(
    listener: TcpListener,
    name: &'static str,
    limit: usize,
    drain: DrainSignal,
    handle: F,
) -> io::Result<()>
where
    F: Fn(TcpStream, SocketAddr) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(limit));
    let tasks = TaskTracker::new();
    let mut arrivals = Arrivals::of(&listener, name);
    let result = loop {
        let accepted = tokio::select! {
            biased;
            () = drain.requested() => break Ok(()),
            accepted = async {
                let slot = Arc::clone(&slots)
                    .acquire_owned()
                    .await
                    .expect("the semaphore is never closed");
                arrivals.next().await.map(|(socket, peer)| (slot, socket, peer))
            } => accepted,
        };
        match accepted {
            Ok((slot, socket, peer)) => {
                let connection = handle(socket, peer);
                tasks.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
            Err(error) => break Err(error),
        }
    };
    drop(listener);
    tasks.close();
    tasks.wait().await;
    result
}

/// Allows the process all the descriptors that it may have: each proxied connection takes two and more, and the soft limit
/// is often 1024.
pub fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map(|()| hard));
    match raised {
        Ok(limit) => info!(limit, "file descriptors"),
        Err(error) => warn!(%error, "cannot raise the limit of file descriptors"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::shutdown;

    #[tokio::test]
    async fn a_drain_stops_accepting_and_waits_for_what_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, drain) = shutdown::channel();
        let served = tokio::spawn(serve(
            listener,
            "test",
            8,
            drain,
            |mut socket, _| async move {
                let mut byte = [0];
                if socket.read_exact(&mut byte).await.is_ok() {
                    let _ = socket.write_all(&byte).await;
                }
            },
        ));
        let mut open = TcpStream::connect(address).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        shutdown.start();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(
            TcpStream::connect(address).await.is_err(),
            "still accepting"
        );
        assert!(!served.is_finished(), "left an open connection");
        open.write_all(b"x").await.unwrap();
        let mut answer = Vec::new();
        open.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"x");
        served.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn no_more_than_the_limit_are_served_at_a_time() {
        static OPEN: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, drain) = shutdown::channel();
        let served = tokio::spawn(serve(
            listener,
            "test",
            2,
            drain,
            |mut socket, _| async move {
                MOST.fetch_max(OPEN.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let mut byte = [0];
                let _ = socket.read_exact(&mut byte).await;
                OPEN.fetch_sub(1, Ordering::SeqCst);
                let _ = socket.write_all(&byte).await;
            },
        ));
        let clients: Vec<_> = (0..6)
            .map(|_| {
                tokio::spawn(async move {
                    let mut socket = TcpStream::connect(address).await.unwrap();
                    socket.write_all(b"x").await.unwrap();
                    let mut byte = [0];
                    socket.read_exact(&mut byte).await.unwrap();
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        assert!(MOST.load(Ordering::SeqCst) <= 2);
        shutdown.start();
        served.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_crowd_does_not_stand_in_front_of_everything_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut crowd = Vec::new();
        for _ in 0..100 {
            crowd.push(TcpStream::connect(address).await.unwrap());
        }
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let mut arrivals = Arrivals::of(&listener, "test");
        for _ in 0..100 {
            arrivals.next().await.unwrap();
        }
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns >= 100 / IN_A_ROW as usize, "{turns} turns of others");
    }

    #[test]
    fn running_out_of_descriptors_does_not_end_the_service() {
        for (code, want) in [
            (Errno::EMFILE, AcceptError::Exhausted),
            (Errno::ENFILE, AcceptError::Exhausted),
            (Errno::ECONNABORTED, AcceptError::ConnectionGone),
            (Errno::EPROTO, AcceptError::ConnectionGone),
            (Errno::EHOSTUNREACH, AcceptError::ConnectionGone),
            (Errno::EBADF, AcceptError::Fatal),
            (Errno::EINVAL, AcceptError::Fatal),
        ] {
            let error = io::Error::from(code);
            assert_eq!(classify_accept_error(&error), want, "{error}");
        }
    }
}
