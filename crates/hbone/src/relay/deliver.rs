// SPDX-License-Identifier: Apache-2.0
//! One direction from a tunnel: frames are taken as they come and written in as few calls as possible.

use std::future::{pending, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio::net::tcp::WriteHalf;

use super::Progress;
use super::sink::poll_fin;
use crate::chunks::SLICES;
use crate::error::TunnelError;
use crate::meter::{Meter, Way};
use crate::stream::{Receive, Supply};
use crate::turn::{TURN, again};

/// What broke the direction.
pub(crate) enum Fault {
    /// The tunnel or the stream.
    Source(TunnelError),
    /// The socket that is written.
    Sink(io::Error),
}

/// Runs until something breaks. Once END_STREAM is passed on as FIN, it notes so in `progress` and waits; a reset
/// that comes later is seen by the other direction.
pub(crate) async fn deliver(
    receive: &mut Receive,
    socket: &mut WriteHalf<'_>,
    meter: &Meter,
    progress: &Progress,
) -> Fault {
    if let Err(fault) = poll_fn(|cx| poll_copy(receive, socket, meter, cx)).await {
        return fault;
    }
    if let Err(error) = poll_fn(|cx| poll_fin(socket, cx)).await {
        return Fault::Sink(error);
    }
    progress.done(Way::Received);
    pending().await
}

fn poll_copy(
    receive: &mut Receive,
    socket: &mut WriteHalf<'_>,
    meter: &Meter,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Fault>> {
    let mut moved = 0;
    loop {
        // Also while the application does not read: small frames are merged here instead of piling up in the
        // library, and a reset is noticed.
        let supply = receive.fill(cx);
        if receive.chunks.is_empty() {
            return match supply {
                Ok(Supply::Open) => Poll::Pending,
                Ok(Supply::Ended) => Poll::Ready(Ok(())),
                Err(error) => Poll::Ready(Err(Fault::Source(error))),
            };
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let filled = receive.chunks.slices(&mut slices);
        match Pin::new(&mut *socket).poll_write_vectored(cx, &slices[..filled]) {
            Poll::Ready(Ok(0)) => {
                return Poll::Ready(Err(Fault::Sink(io::ErrorKind::WriteZero.into())));
            }
            Poll::Ready(Ok(written)) => {
                receive.taken(written);
                meter.add(Way::Received, written);
                moved += written;
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Fault::Sink(error))),
            Poll::Pending => {
                receive.chunks.settle();
                return match supply {
                    Err(error) => Poll::Ready(Err(Fault::Source(error))),
                    Ok(_) => Poll::Pending,
                };
            }
        }
        if moved >= TURN {
            again(cx);
            return Poll::Pending;
        }
    }
}
