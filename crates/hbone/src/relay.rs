// SPDX-License-Identifier: Apache-2.0
//! Copies a connection both ways until both directions have ended, and mirrors how each of them ended.
//!
//! ```text
//!            inlet (read)        sink              END_STREAM / FIN after the last byte
//!   near ──────────────────────────────────► far
//!   near ◄────────────────────────────────── far   RST on one side resets both
//!            write          held frames
//! ```
//!
//! The two directions are independent: each has its own end. A side that is not being read is watched for a reset,
//! so that an abort is mirrored at once and not only with the next byte. Whatever else ends a relay, be it the death of
//! the process, resets its sockets too: an application never takes for the end what was cut off.

mod carry;
mod deliver;
mod inlet;
mod sink;
mod splice;
mod streams;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use socket2::SockRef;
use tokio::net::TcpStream;

use carry::carry;
use deliver::deliver;
use inlet::Inlet;
use sink::{TcpSink, TunnelSink};

use crate::error::{TunnelError, TunnelFault};
use crate::meter::{Meter, Way};
use crate::stop::Stop;
use crate::stream::LibraryStream;

pub use streams::{Heard, relay_streams};

/// How a relay went.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Bytes near → far.
    pub sent: u64,
    /// Bytes far → near.
    pub received: u64,
    /// Why it ended.
    pub end: End,
}

/// Why a relay ended.
#[derive(Debug, Clone)]
pub enum End {
    /// Both directions were closed in order.
    Finished,
    /// One side aborted its connection; the other was reset likewise.
    Reset {
        /// Who aborted.
        by: Side,
    },
    /// One side failed: a time-out of the kernel, a broken tunnel. The other was reset.
    Failed {
        /// Who failed.
        side: Side,
        /// How.
        error: Arc<io::Error>,
    },
    /// [`Stop`] was called; both sides were reset.
    Stopped {
        /// The reason given.
        reason: Arc<str>,
    },
    /// The tunnel was ended because its peer may no longer be who it proved to be; the near side was reset.
    Withdrawn {
        /// What took the peer's standing.
        reason: Arc<str>,
    },
}

/// One of the two sides of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The socket that the relay was given first.
    Near,
    /// The tunnel's stream, or the second socket.
    Far,
}

/// What ended one side early.
#[derive(Debug)]
pub(crate) enum Broken {
    Socket(io::Error),
    Stream(TunnelError),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl From<TunnelError> for Broken {
    fn from(error: TunnelError) -> Self {
        Self::Stream(error)
    }
}

/// A side and what ended it.
pub(crate) struct Fault {
    side: Side,
    broken: Broken,
}

impl Fault {
    pub(crate) fn near(broken: impl Into<Broken>) -> Self {
        Self {
            side: Side::Near,
            broken: broken.into(),
        }
    }

    pub(crate) fn far(broken: impl Into<Broken>) -> Self {
        Self {
            side: Side::Far,
            broken: broken.into(),
        }
    }

    pub(crate) fn into_end(self, progress: &Progress) -> End {
        let side = self.side;
        match self.broken {
            Broken::Stream(error) => match error.fault() {
                // The peer has sent all it had and reads no more, which is how a server closes both directions at
                // once (RFC 9113 §8.1).
                TunnelFault::Reset { code: 0 } if progress.is_done(Way::Received) => End::Finished,
                TunnelFault::Reset { .. } => End::Reset { by: side },
                TunnelFault::Withdrawn => End::Withdrawn {
                    reason: error.to_string().into(),
                },
                _ => End::Failed {
                    side,
                    error: Arc::new(error.into_io()),
                },
            },
            Broken::Socket(error) => match error.kind() {
                io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionAborted => End::Reset { by: side },
                _ => End::Failed {
                    side,
                    error: Arc::new(error),
                },
            },
        }
    }
}

/// Which directions have ended in order.
#[derive(Default)]
pub(crate) struct Progress {
    sent: AtomicBool,
    received: AtomicBool,
}

impl Progress {
    pub(crate) fn is_done(&self, way: Way) -> bool {
        self.flag(way).load(Ordering::Relaxed)
    }

    pub(crate) fn done(&self, way: Way) {
        self.flag(way).store(true, Ordering::Relaxed);
    }

    fn flag(&self, way: Way) -> &AtomicBool {
        match way {
            Way::Sent => &self.sent,
            Way::Received => &self.received,
        }
    }
}

/// Between a socket and a stream of a tunnel.
///
/// Not an `async fn`: a future that is dropped before its first poll resets both sides too, and it keeps no second
/// copy of its arguments.
pub(crate) fn relay_stream(
    stream: LibraryStream,
    socket: TcpStream,
    meter: &Arc<Meter>,
    stop: &Stop,
) -> impl Future<Output = Outcome> + Send + use<> {
    let (meter, stop) = (Arc::clone(meter), stop.clone());
    let mut near = SocketGuard::new(socket);
    let mut far = StreamGuard::new(stream);
    let progress = Progress::default();
    async move {
        let end = {
            let (read, mut write) = near.socket.split();
            let mut inlet = Inlet::new(read);
            let mut sink = TunnelSink(&mut far.stream.transmit);
            let receive = &mut far.stream.receive;
            let up = async {
                match carry(&mut inlet, &mut sink, &meter, Way::Sent, &progress).await {
                    carry::Fault::Source(error) => Fault::near(error),
                    carry::Fault::Sink(broken) => Fault::far(broken),
                }
            };
            let down = async {
                match deliver(receive, &mut write, &meter, &progress).await {
                    deliver::Fault::Source(error) => Fault::far(error),
                    deliver::Fault::Sink(error) => Fault::near(error),
                }
            };
            until_end(up, down, &progress, &stop).await
        };
        let end = match (end, far.stream.fate.withdrawn()) {
            (End::Finished, _) => End::Finished,
            (_, Some(reason)) => End::Withdrawn { reason },
            (end, None) => end,
        };
        match end {
            End::Finished => {
                near.in_order();
                far.in_order();
            }
            // What was read just before the reset has been handed to the tunnel, whose task now gets the turn in
            // which it sends: a reset overtakes what is still queued.
            End::Reset { by: Side::Near } => tokio::task::yield_now().await,
            _ => {}
        }
        outcome(&meter, end)
    }
}

/// Copies between two sockets, for traffic that takes no tunnel, by the same rules as
/// [`Stream::relay`](crate::Stream::relay). A direction that has become bulk is spliced: its bytes stay in the kernel.
pub fn relay_tcp(
    near: TcpStream,
    far: TcpStream,
    meter: &Arc<Meter>,
    stop: &Stop,
) -> impl Future<Output = Outcome> + Send + use<> {
    let (meter, stop) = (Arc::clone(meter), stop.clone());
    let mut near = SocketGuard::new(near);
    let mut far = SocketGuard::new(far);
    let progress = Progress::default();
    async move {
        let end = {
            let (near_read, near_write) = near.socket.split();
            let (far_read, far_write) = far.socket.split();
            let (mut near_inlet, mut far_inlet) = (Inlet::new(near_read), Inlet::new(far_read));
            let (mut near_sink, mut far_sink) = (TcpSink(near_write), TcpSink(far_write));
            let up = async {
                match carry(&mut near_inlet, &mut far_sink, &meter, Way::Sent, &progress).await {
                    carry::Fault::Source(error) => Fault::near(error),
                    carry::Fault::Sink(broken) => Fault::far(broken),
                }
            };
            let down = async {
                match carry(
                    &mut far_inlet,
                    &mut near_sink,
                    &meter,
                    Way::Received,
                    &progress,
                )
                .await
                {
                    carry::Fault::Source(error) => Fault::far(error),
                    carry::Fault::Sink(broken) => Fault::near(broken),
                }
            };
            until_end(up, down, &progress, &stop).await
        };
        if matches!(end, End::Finished) {
            near.in_order();
            far.in_order();
        }
        outcome(&meter, end)
    }
}

pub(crate) fn outcome(meter: &Meter, end: End) -> Outcome {
    Outcome {
        sent: meter.sent(),
        received: meter.received(),
        end,
    }
}

/// Drives both directions. Neither future ends by itself unless its direction broke: one that has finished goes on
/// watching for a reset, and says in `progress` that it has finished.
async fn until_end(
    up: impl Future<Output = Fault>,
    down: impl Future<Output = Fault>,
    progress: &Progress,
    stop: &Stop,
) -> End {
    let mut up = pin!(up);
    let mut down = pin!(down);
    let mut stopped = pin!(stop.stopped());
    poll_fn(|cx| {
        if let Poll::Ready(reason) = stopped.as_mut().poll(cx) {
            return Poll::Ready(End::Stopped { reason });
        }
        // Down first: when it finishes, up has to know in the same turn.
        let fault = match down.as_mut().poll(cx) {
            Poll::Ready(fault) => Poll::Ready(fault),
            Poll::Pending => up.as_mut().poll(cx),
        };
        if progress.is_done(Way::Sent) && progress.is_done(Way::Received) {
            return Poll::Ready(End::Finished);
        }
        fault.map(|fault| fault.into_end(progress))
    })
    .await
}

/// A socket that is reset whenever it is closed, unless all went in order.
struct SocketGuard {
    socket: TcpStream,
}

impl SocketGuard {
    fn new(socket: TcpStream) -> Self {
        // Closing with a linger time of zero sends RST instead of FIN. Set from the beginning, because the kernel closes
        // the sockets of a process that is killed, and a FIN would look like the end of all there was.
        let _ = socket.set_zero_linger();
        Self { socket }
    }

    fn in_order(&mut self) {
        let _ = SockRef::from(&self.socket).set_linger(None);
    }
}

/// A stream that is reset when dropped, unless all went in order.
struct StreamGuard {
    stream: LibraryStream,
    in_order: bool,
}

impl StreamGuard {
    fn new(stream: LibraryStream) -> Self {
        Self {
            stream,
            in_order: false,
        }
    }

    fn in_order(&mut self) {
        self.in_order = true;
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if !self.in_order {
            self.stream.transmit.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_closed_by_reset_until_all_went_in_order() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, _accepted) = tokio::join!(client, listener.accept());
        let mut guard = SocketGuard::new(client.unwrap());
        let linger = |guard: &SocketGuard| SockRef::from(&guard.socket).linger().unwrap();
        // Nothing of ours runs when the process is killed: this alone decides.
        assert_eq!(linger(&guard), Some(std::time::Duration::ZERO));
        guard.in_order();
        assert_eq!(linger(&guard), None);
    }

    /// Of the future that a function returns, without calling it.
    fn size_of_future<A, F>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn futures_of_relays_stay_small() {
        type Given<'a, S> = (S, TcpStream, &'a Arc<Meter>, &'a Stop);
        let stream = size_of_future(|(a, b, c, d): Given<'_, _>| relay_stream(a, b, c, d));
        let tcp = size_of_future(|(a, b, c, d): Given<'_, _>| relay_tcp(a, b, c, d));
        assert!(
            stream <= 1536,
            "relay between stream and socket: {stream} bytes"
        );
        assert!(tcp <= 1536, "relay between sockets: {tcp} bytes");
    }
}
