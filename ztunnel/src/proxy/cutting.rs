// SPDX-License-Identifier: Apache-2.0
//! Work that ends when a pod's connections are cut.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

pin_project! {
    /// Does the work unless it is cut, which is looked at first: work that sees the cut itself, at its other end, would take
    /// it for an end in order. No async block, which would have room for the work twice.
    pub struct UntilCut<F> {
        #[pin]
        cut: WaitForCancellationFutureOwned,
        #[pin]
        work: F,
    }
}

impl<F> UntilCut<F> {
    pub(super) fn new(cut: CancellationToken, work: F) -> Self {
        Self {
            cut: cut.cancelled_owned(),
            work,
        }
    }
}

impl<F: Future<Output = ()>> Future for UntilCut<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        match this.cut.poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => this.work.poll(cx),
        }
    }
}
