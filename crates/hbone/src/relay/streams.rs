// SPDX-License-Identifier: Apache-2.0
//! Between two streams, for whoever stands in the middle of a connection: by the rules of the relay to a socket.
//!
//! Each direction holds at most one read's bytes, and nothing while it waits for more. A stream that is not being read is
//! watched, so that its reset is mirrored at once.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite as _;

use super::inlet::Held;
use super::{End, Fault, Outcome, Progress, Side, outcome};
use crate::error::TunnelError;
use crate::meter::{Meter, Way};
use crate::stop::Stop;
use crate::stream::Stream;
use crate::turn::{TURN, again};

/// What is read at once.
const READ: usize = 32 * 1024;

/// What was read from two streams before they are relayed; it goes ahead of all else.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// From the near one.
    pub near: Bytes,
    /// From the far one.
    pub far: Bytes,
}

/// Copies between two streams until both directions have ended, one was reset, or `stop` says so. FIN and RST are mirrored; whenever it does not end in order, both are
/// reset, also when the future is dropped.
pub fn relay_streams<'a>(
    near: Stream,
    far: Stream,
    heard: Heard,
    meter: &'a Meter,
    stop: &'a Stop,
) -> impl Future<Output = Outcome> + Send + use<'a> {
    let mut pair = Pair {
        near,
        far,
        progress: Progress::default(),
        in_order: false,
    };
    let (mut up, mut down) = (Held::from(heard.near), Held::from(heard.far));
    async move {
        let mut stopped = pin!(stop.stopped());
        let end = poll_fn(|cx| {
            if let Poll::Ready(reason) = stopped.as_mut().poll(cx) {
                return Poll::Ready(End::Stopped { reason });
            }
            pair.poll(&mut up, &mut down, meter, cx)
        })
        .await;
        pair.in_order = matches!(end, End::Finished);
        drop(pair);
        outcome(meter, end)
    }
}

struct Pair {
    near: Stream,
    far: Stream,
    progress: Progress,
    in_order: bool,
}

impl Pair {
    fn poll(
        &mut self,
        up: &mut Held,
        down: &mut Held,
        meter: &Meter,
        cx: &mut Context<'_>,
    ) -> Poll<End> {
        let Self {
            near,
            far,
            progress,
            ..
        } = self;
        let upwards = Direction {
            from: &mut *near,
            to: &mut *far,
            held: up,
            way: Way::Sent,
        };
        let mut fault = upwards.poll(meter, progress, cx);
        if fault.is_pending() {
            let downwards = Direction {
                from: far,
                to: near,
                held: down,
                way: Way::Received,
            };
            fault = downwards.poll(meter, progress, cx);
        }
        if progress.is_done(Way::Sent) && progress.is_done(Way::Received) {
            return Poll::Ready(End::Finished);
        }
        fault.map(|fault| fault.into_end(progress))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.in_order {
            self.near.reset();
            self.far.reset();
        }
    }
}

/// One way through the pair, for one turn.
struct Direction<'s> {
    from: &'s mut Stream,
    to: &'s mut Stream,
    /// Bytes that were read and that the other side has no room for yet.
    held: &'s mut Held,
    way: Way,
}

impl Direction<'_> {
    /// Ready only when something broke.
    fn poll(self, meter: &Meter, progress: &Progress, cx: &mut Context<'_>) -> Poll<Fault> {
        let Self {
            from,
            to,
            held,
            way,
        } = self;
        let (source, sink) = match way {
            Way::Sent => (Side::Near, Side::Far),
            Way::Received => (Side::Far, Side::Near),
        };
        let mut moved = 0;
        while !progress.is_done(way) {
            while !held.is_empty() {
                match Pin::new(&mut *to).poll_write(cx, held.as_slice()) {
                    Poll::Ready(Ok(count)) => {
                        meter.add(way, count);
                        moved += count;
                        held.advance(count);
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(why(to, sink, cx)),
                    Poll::Pending => return watch(from, source, cx),
                }
            }
            if moved >= TURN {
                again(cx);
                return Poll::Pending;
            }
            match held.poll_fill(Pin::new(&mut *from), READ, cx) {
                // A stream's end is queued at once; what breaks it is seen where it is watched.
                Poll::Ready(Ok(0)) => {
                    let _ = Pin::new(&mut *to).poll_shutdown(cx);
                    progress.done(way);
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(why(from, source, cx)),
                // Whoever is written to is read by the other direction, until that has ended.
                Poll::Pending => return watch(to, sink, cx),
            }
        }
        watch(from, source, cx)
    }
}

/// Waits for a stream to be reset.
fn watch(stream: &mut Stream, side: Side, cx: &mut Context<'_>) -> Poll<Fault> {
    stream.poll_broken(cx).map(|error| at(side, error))
}

/// What broke a stream that could not be read or written.
fn why(stream: &mut Stream, side: Side, cx: &mut Context<'_>) -> Fault {
    match stream.poll_broken(cx) {
        Poll::Ready(error) => at(side, error),
        Poll::Pending => at(side, TunnelError::closed()),
    }
}

fn at(side: Side, error: TunnelError) -> Fault {
    match side {
        Side::Near => Fault::near(error),
        Side::Far => Fault::far(error),
    }
}
