// SPDX-License-Identifier: Apache-2.0
//! One direction from a socket: read what is there, send it on, and end as the socket ends.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::io::Interest;
use tokio::net::TcpStream;

use super::inlet::{Held, Inlet};
use super::sink::Sink;
use super::splice::{self, Left};
use super::{Broken, Progress};
use crate::meter::{Meter, Way};
use crate::turn::TURN;

/// What broke a direction.
pub(crate) enum Fault {
    /// The socket that is read.
    Source(io::Error),
    /// The side that is written.
    Sink(Broken),
}

/// Runs until something breaks. Once the end is read and passed on, it notes so in `progress` and only watches.
pub(crate) async fn carry<S: Sink>(
    inlet: &mut Inlet<'_>,
    sink: &mut S,
    meter: &Meter,
    way: Way,
    progress: &Progress,
) -> Fault {
    match copy(inlet, sink, meter, way, progress).await {
        Ok(()) => progress.done(way),
        Err(fault) => return fault,
    }
    Fault::Source(Box::pin(until_reset(inlet.socket())).await)
}

async fn copy<S: Sink>(
    inlet: &mut Inlet<'_>,
    sink: &mut S,
    meter: &Meter,
    way: Way,
    progress: &Progress,
) -> Result<(), Fault> {
    let mut moved = 0;
    loop {
        if inlet.is_bulk()
            && let Some(to) = sink.socket()
        {
            // Large, and most connections never come here.
            match Box::pin(splice::carry(inlet.socket(), to, meter, way)).await? {
                Left::Copy => inlet.not_bulk(),
                Left::Ended => return finish(sink).await,
            }
        }
        let count = poll_fn(|cx| {
            // A far side that has ended its own direction is no longer read, so that nobody else would notice.
            if progress.is_done(Way::Received)
                && let Poll::Ready(broken) = sink.poll_broken(cx)
            {
                return Poll::Ready(Err(Fault::Sink(broken)));
            }
            inlet.poll_read(cx).map_err(Fault::Source)
        })
        .await?;
        if count == 0 {
            return finish(sink).await;
        }
        while !inlet.held.is_empty() {
            let sent = send(inlet.half.as_ref(), &mut inlet.held, sink).await?;
            meter.add(way, sent);
            moved += sent;
        }
        if moved >= TURN {
            moved = 0;
            tokio::task::yield_now().await;
        }
    }
}

async fn finish<S: Sink>(sink: &mut S) -> Result<(), Fault> {
    poll_fn(|cx| sink.poll_finish(cx))
        .await
        .map_err(Fault::Sink)
}

/// Sends some of what is held. While there is no room nothing is read, so the source is watched for a reset.
async fn send<S: Sink>(source: &TcpStream, held: &mut Held, sink: &mut S) -> Result<usize, Fault> {
    if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(sink.poll_send(cx, held))).await {
        return result.map_err(Fault::Sink);
    }
    held.settle();
    let mut reset = Box::pin(until_reset(source));
    poll_fn(|cx| {
        if let Poll::Ready(result) = sink.poll_send(cx, held) {
            return Poll::Ready(result.map_err(Fault::Sink));
        }
        reset
            .as_mut()
            .poll(cx)
            .map(|error| Err(Fault::Source(error)))
    })
    .await
}

/// Waits for the socket to be reset, without reading it. Large and seldom needed, therefore boxed where it is.
pub(super) async fn until_reset(source: &TcpStream) -> io::Error {
    match source.ready(Interest::ERROR).await {
        Ok(_) => io::ErrorKind::ConnectionReset.into(),
        Err(error) => error,
    }
}
