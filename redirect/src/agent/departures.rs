// SPDX-License-Identifier: Apache-2.0
//! Plugins that take a sandbox down, and wait a moment for ztunnel to let go of it: once the network is gone, nobody can
//! tell the peers of its connections any more, and they would wait for an answer until their own patience ends.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::debug;

use super::Agent;

/// The plugin gives up after 500 ms; a pod must be able to go, whatever ztunnel does.
const PATIENCE: Duration = Duration::from_millis(400);

/// A plugin that waits for ztunnel.
#[derive(Debug)]
pub(super) struct Leaving {
    uids: Vec<String>,
    reply: oneshot::Sender<()>,
    since: Instant,
}

impl Leaving {
    pub(super) fn new(uids: Vec<String>, reply: oneshot::Sender<()>) -> Self {
        Self {
            uids,
            reply,
            since: Instant::now(),
        }
    }

    pub(super) fn gives_up_at(&self) -> Instant {
        self.since + PATIENCE
    }
}

impl Agent {
    /// Answers the plugins whose pods ztunnel serves no more, and those that have waited long enough.
    pub(super) fn see_off(&mut self) {
        let answers = self.parts.answers.borrow().clone();
        let now = Instant::now();
        for leaving in std::mem::take(&mut self.leaving) {
            let served = leaving.uids.iter().any(|uid| answers.contains_key(uid));
            if served && now < leaving.gives_up_at() {
                self.leaving.push(leaving);
                continue;
            }
            if served {
                debug!(uids = ?leaving.uids, "ztunnel has not let go in time");
            }
            // Who has stopped waiting need not be told.
            let _ = leaving.reply.send(());
        }
    }
}
