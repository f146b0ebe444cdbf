// SPDX-License-Identifier: Apache-2.0
//! Bodies on their way: streamed piece by piece, counted, and never held as a whole.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::messages::{Messages, Received};
use crate::pool::Lease;

/// What bodies here fail with.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A body of any kind.
pub type AnyBody = UnsyncBoxBody<Bytes, Error>;

/// How long a client that waits for a go-ahead is kept waiting where the endpoint says nothing (RFC 9110 §10.1.1).
const GO_AHEAD: Duration = Duration::from_secs(1);

pub fn empty() -> AnyBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub fn text(text: impl Into<Bytes>) -> AnyBody {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body that comes piece by piece.
pub fn streamed<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes, Error: Into<Error>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Reads what nobody wants, so that its connection can be used again; whether it came to its end.
pub async fn read_to_end(mut body: Incoming) -> bool {
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return false;
        }
    }
    true
}

/// What a client sends, counted; not before the endpoint wants it where the client waits for that.
pub struct Upward {
    inner: Incoming,
    count: Arc<Received>,
    messages: Messages,
    awaited: Option<(oneshot::Receiver<()>, Pin<Box<Sleep>>)>,
    copies: Vec<mpsc::Sender<Frame<Bytes>>>,
    /// What was read before it could be sent.
    ahead: Option<Ahead>,
}

struct Ahead {
    frames: VecDeque<Frame<Bytes>>,
    bytes: u64,
    _place: OwnedSemaphorePermit,
}

impl Upward {
    pub fn new(inner: Incoming, count: Arc<Received>) -> Self {
        Self {
            inner,
            count,
            messages: Messages::default(),
            awaited: None,
            copies: Vec::new(),
            ahead: None,
        }
    }

    /// The first `most` bytes, and whether that is all; they are sent nevertheless. `place` is held while they are.
    ///
    /// # Errors
    /// If it breaks off.
    pub async fn read_ahead(
        &mut self,
        most: usize,
        place: OwnedSemaphorePermit,
    ) -> Result<(Bytes, bool), Error> {
        let ahead = self.ahead.get_or_insert(Ahead {
            frames: VecDeque::new(),
            bytes: 0,
            _place: place,
        });
        let whole = loop {
            if ahead.bytes > most as u64 {
                break false;
            }
            match self.inner.frame().await {
                None => break true,
                Some(frame) => {
                    let frame = frame?;
                    ahead.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                    ahead.frames.push_back(frame);
                }
            }
        };
        let mut bytes = BytesMut::with_capacity(most.min(ahead.bytes as usize));
        for data in ahead.frames.iter().filter_map(Frame::data_ref) {
            let room = most - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
        }
        Ok((bytes.freeze(), whole))
    }

    /// What was read ahead first.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(ahead) = &mut self.ahead {
            if let Some(frame) = ahead.frames.pop_front() {
                ahead.bytes -= frame.data_ref().map_or(0, |data| data.len() as u64);
                return Poll::Ready(Some(Ok(frame)));
            }
            self.ahead = None;
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_over(&self) -> bool {
        let ahead = self.ahead.as_ref();
        ahead.is_none_or(|ahead| ahead.frames.is_empty()) && self.inner.is_end_stream()
    }

    /// A copy of what will pass. Whoever reads it too slowly loses it: the body itself waits for nobody.
    pub fn copied(&mut self) -> AnyBody {
        let (copy, pieces) = mpsc::channel(COPIED);
        self.copies.push(copy);
        Copied {
            pieces,
            ended: false,
        }
        .boxed_unsync()
    }

    /// Holds the body back until whoever has the sender says so, or a second has passed.
    pub fn awaiting(self) -> (Self, oneshot::Sender<()>) {
        let (go, awaited) = oneshot::channel();
        let body = Self {
            awaited: Some((awaited, Box::pin(sleep(GO_AHEAD)))),
            ..self
        };
        (body, go)
    }
}

impl Body for Upward {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        if let Some((awaited, patience)) = &mut this.awaited {
            let go = Pin::new(awaited).poll(cx).is_ready() || patience.as_mut().poll(cx).is_ready();
            if !go {
                return Poll::Pending;
            }
            this.awaited = None;
        }
        let frame = ready!(this.poll_next(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.count.pass(data, &mut this.messages);
            this.copies
                .retain(|copy| copy.try_send(Frame::data(data.clone())).is_ok());
        }
        if frame.is_none() || this.is_over() {
            // An empty piece is the end; a copy that only breaks off is none.
            for copy in this.copies.drain(..) {
                let _too_slow = copy.try_send(Frame::data(Bytes::new()));
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.inner.size_hint(), SizeHint::new());
        let ahead = self.ahead.as_ref().map_or(0, |ahead| ahead.bytes);
        if let Some(most) = rest.upper() {
            hint.set_upper(most + ahead);
        }
        hint.set_lower(rest.lower() + ahead);
        hint
    }
}

/// Pieces of a copy that wait for their reader.
const COPIED: usize = 32;

struct Copied {
    pieces: mpsc::Receiver<Frame<Bytes>>,
    ended: bool,
}

impl Body for Copied {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        match ready!(this.pieces.poll_recv(cx)) {
            Some(piece) if piece.data_ref().is_some_and(Bytes::is_empty) => {
                this.ended = true;
                Poll::Ready(None)
            }
            Some(piece) => Poll::Ready(Some(Ok(piece))),
            None => Poll::Ready(Some(Err("the copy is incomplete".into()))),
        }
    }
}

/// What the client gets: counted, ended by the request's deadline, and with its end the exchange is over.
pub struct Downward {
    inner: AnyBody,
    exchange: Option<Box<Exchange>>,
    /// The connection to the endpoint, for the next request once this one's answer was read.
    lease: Option<Lease>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Downward {
    pub fn new(
        inner: AnyBody,
        exchange: Box<Exchange>,
        lease: Option<Lease>,
        deadline: Option<Instant>,
    ) -> Self {
        let mut body = Self {
            inner,
            exchange: Some(exchange),
            lease,
            deadline: deadline.map(|at| Box::pin(sleep_until(at))),
        };
        if body.inner.is_end_stream() {
            body.end(Ok(()));
        }
        body
    }

    /// A body that is no exchange's any more.
    pub fn detached(inner: AnyBody) -> Self {
        Self {
            inner,
            exchange: None,
            lease: None,
            deadline: None,
        }
    }

    fn end(&mut self, result: Result<(), Failure>) {
        if let Some(lease) = self.lease.take().filter(|_| result.is_ok()) {
            lease.give_back();
        }
        if let Some(exchange) = self.exchange.take() {
            exchange.finish(result);
        }
    }
}

impl Body for Downward {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        if let Some(deadline) = &mut this.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            this.end(Err(Failure::Timeout));
            return Poll::Ready(Some(Err(Failure::Timeout.into())));
        }
        match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Some(exchange) = &mut this.exchange {
                    exchange.note(&frame);
                }
                if this.inner.is_end_stream() {
                    this.end(Ok(()));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                this.end(Err(Failure::Broken(error.to_string().into())));
                Poll::Ready(Some(Err(error)))
            }
            None => {
                this.end(Ok(()));
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Downward {
    fn drop(&mut self) {
        self.end(Err(Failure::ClientGone(
            "it did not wait for the end of the answer".into(),
        )));
    }
}
