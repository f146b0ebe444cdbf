// SPDX-License-Identifier: Apache-2.0
//! Signal → stop accepting → drain → deadline.
//!
//! [`Shutdown`] is held by whoever runs the process, [`DrainSignal`] by each part that must wind down. The first
//! SIGTERM or SIGINT asks all parts to drain; a second one, or the deadline, means that waiting is over.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The side that asks for the drain.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<bool>);

/// The side that learns of it; clones are cheap.
#[derive(Debug, Clone)]
pub struct DrainSignal(watch::Receiver<bool>);

/// A connected pair.
pub fn channel() -> (Shutdown, DrainSignal) {
    let (sender, receiver) = watch::channel(false);
    (Shutdown(sender), DrainSignal(receiver))
}

impl Shutdown {
    /// Asks every part to drain; asking twice is the same as once.
    pub fn start(&self) {
        self.0.send_replace(true);
    }

    /// Another listener of the same drain.
    pub fn subscribe(&self) -> DrainSignal {
        DrainSignal(self.0.subscribe())
    }
}

impl DrainSignal {
    /// Whether the drain was asked for.
    pub fn is_draining(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the drain is asked for. A vanished [`Shutdown`] counts as asking.
    pub async fn requested(&self) {
        let mut receiver = self.0.clone();
        // An error means that the sender is gone: there is nobody left to wait for.
        let _ = receiver.wait_for(|draining| *draining).await;
    }

    /// The bare watch, for crates that do not use this one.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.0.clone()
    }
}

/// Waits for SIGTERM or SIGINT and names it.
///
/// # Errors
/// Fails if the handlers cannot be installed.
pub async fn terminated() -> io::Result<&'static str> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = term.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}

/// How long connections may live on after the drain began.
///
/// An explicit deadline wins. Otherwise a pod's grace period leaves a margin for the exit itself: five seconds of a
/// long one, one of a short one, and never less than one second in all. Five seconds where nothing is set.
pub fn drain_deadline(explicit: Option<Duration>, grace_period: Option<Duration>) -> Duration {
    const SECOND: Duration = Duration::from_secs(1);
    match (explicit, grace_period) {
        (Some(deadline), _) => deadline,
        (None, Some(grace)) if grace > 10 * SECOND => grace - 5 * SECOND,
        (None, Some(grace)) => grace.saturating_sub(SECOND).max(SECOND),
        (None, None) => 5 * SECOND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_listener_learns_of_the_drain_also_those_that_come_late() {
        let (shutdown, early) = channel();
        assert!(!early.is_draining());
        shutdown.start();
        early.requested().await;
        shutdown.subscribe().requested().await;
        assert!(early.is_draining());
    }

    #[tokio::test]
    async fn a_vanished_owner_counts_as_a_drain() {
        let (shutdown, drain) = channel();
        drop(shutdown);
        drain.requested().await;
    }

    #[test]
    fn the_deadline_leaves_a_margin_of_the_grace_period() {
        let seconds = Duration::from_secs;
        for (explicit, grace, want) in [
            (None, None, 5),
            (None, Some(30), 25),
            (None, Some(11), 6),
            (None, Some(10), 9),
            (None, Some(1), 1),
            (None, Some(0), 1),
            (Some(3), Some(30), 3),
        ] {
            let got = drain_deadline(explicit.map(seconds), grace.map(seconds));
            assert_eq!(got, seconds(want), "explicit {explicit:?}, grace {grace:?}");
        }
    }
}
