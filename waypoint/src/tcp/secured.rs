// SPDX-License-Identifier: Apache-2.0
//! Copies between a client and an endpoint with whom TLS was begun here: by the rules of other relays, but that the far end
//! is one only where TLS says so.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hbone::{Heard, Meter, Stop, Stream};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf, copy_bidirectional};

use crate::failure::Failure;

/// Until both directions have ended, or `stop` says so. Whatever doesn't end in order resets the client.
pub(super) async fn relay(
    mut client: Stream,
    far: impl AsyncRead + AsyncWrite + Unpin,
    heard: Heard,
    meter: &Meter,
    stop: &Stop,
) -> Result<(), Failure> {
    let mut far = Counted {
        stream: far,
        meter,
        broken: false,
    };
    let carrying = async {
        far.write_all(&heard.near).await?;
        far.flush().await?;
        client.write_all(&heard.far).await?;
        meter.moved_before(0, heard.far.len());
        copy_bidirectional(&mut client, &mut far).await
    };
    let carried = tokio::select! {
        carried = carrying => carried.map(|_| ()),
        reason = stop.stopped() => {
            client.reset();
            return Err(Failure::PolicyChanged(reason));
        }
    };
    carried.map_err(|error| {
        client.reset();
        match far.broken {
            true => Failure::Broken(error.to_string().into()),
            false => Failure::ClientGone(error.to_string().into()),
        }
    })
}

/// The far side, which knows whether it was what broke.
struct Counted<'m, S> {
    stream: S,
    meter: &'m Meter,
    broken: bool,
}

impl<S> Counted<'_, S> {
    fn noted<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.broken |= matches!(polled, Poll::Ready(Err(_)));
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.meter.moved_before(0, buf.filled().len() - before);
        self.noted(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &written {
            self.meter.moved_before(*count, 0);
        }
        self.noted(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.noted(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.noted(shut)
    }
}
