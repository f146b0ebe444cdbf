// SPDX-License-Identifier: Apache-2.0
//! The body of an answer: there as a whole, or lines as they come.

use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};

/// The body of an answer.
#[derive(Debug)]
pub struct AdminBody(Kind);

#[derive(Debug)]
enum Kind {
    /// Empty once it was sent.
    Whole(Bytes),
    Lines(mpsc::Receiver<Bytes>, Pin<Box<Sleep>>),
}

impl AdminBody {
    /// Ends with its sender, or after this time.
    pub(super) fn lines(lines: mpsc::Receiver<Bytes>, limit: Duration) -> Self {
        Self(Kind::Lines(lines, Box::pin(sleep(limit))))
    }

    /// All of it.
    ///
    /// # Errors
    /// Itself, where lines are still to come.
    pub fn whole(self) -> Result<Bytes, Self> {
        match self.0 {
            Kind::Whole(bytes) => Ok(bytes),
            Kind::Lines(..) => Err(self),
        }
    }
}

impl From<Bytes> for AdminBody {
    fn from(bytes: Bytes) -> Self {
        Self(Kind::Whole(bytes))
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut self.get_mut().0 {
            Kind::Whole(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Kind::Lines(lines, limit) => match limit.as_mut().poll(cx) {
                Poll::Ready(()) => None,
                Poll::Pending => ready!(lines.poll_recv(cx)),
            },
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Kind::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Lines(..) => SizeHint::default(),
        }
    }
}
