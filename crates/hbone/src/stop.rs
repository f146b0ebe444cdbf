// SPDX-License-Identifier: Apache-2.0
//! Ends relays from outside, with a reason: a policy changed, a certificate was revoked, a pod is gone.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// Handed to a relay and kept by whoever may have to end it. Cloning shares it; one `Stop` can end several relays.
#[derive(Clone, Default)]
pub struct Stop(Arc<Inner>);

#[derive(Default)]
struct Inner {
    reason: OnceLock<Arc<str>>,
    notify: Notify,
}

impl Stop {
    /// Nothing stopped yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every relay that holds this `Stop`: both sides are reset. Only the first reason counts.
    pub fn stop(&self, reason: impl Into<Arc<str>>) {
        if self.0.reason.set(reason.into()).is_ok() {
            self.0.notify.notify_waiters();
        }
    }

    /// The reason, once stopped.
    pub fn reason(&self) -> Option<Arc<str>> {
        self.0.reason.get().cloned()
    }

    /// Waits until stopped.
    pub async fn stopped(&self) -> Arc<str> {
        loop {
            let notified = self.0.notify.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            notified.await;
        }
    }
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Stop").field(&self.0.reason.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_reason_counts_and_late_waiters_see_it() {
        let stop = Stop::new();
        let waiter = tokio::spawn({
            let stop = stop.clone();
            async move { stop.stopped().await }
        });
        tokio::task::yield_now().await;
        stop.stop("policy change");
        stop.stop("too late");
        assert_eq!(&*waiter.await.unwrap(), "policy change");
        assert_eq!(&*stop.stopped().await, "policy change");
    }
}
