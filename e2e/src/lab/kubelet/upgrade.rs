// SPDX-License-Identifier: Apache-2.0
//! A new process of a container beside the one that runs, as a rolling upgrade with a surge has it.
//!
//! ```text
//!  order ─► the new process is the container's; the old one ends by itself
//!                │ ends before it has lived for long
//!                └─► the old one is the container's again
//! ```

use std::time::{Duration, Instant};

use tokio::process::Child;

use super::running::{FIRST_BACKOFF, Running};
use crate::lab::container::Programs;
use crate::lab::progress;

/// A new process that ends sooner has failed; longer than any daemon keeps its predecessor waiting.
const TRIAL: Duration = Duration::from_secs(12);

impl Running {
    /// Carries out an order, and takes note of old processes that have ended; true if something changed.
    pub(super) fn upgrade(&mut self, programs: &Programs, netns: &std::path::Path) -> bool {
        let before = self.relieved.len();
        let (name, log) = (&self.name, self.log.display());
        self.relieved.retain_mut(|child| match child.try_wait() {
            Ok(Some(status)) => {
                progress(format!("{name}, relieved, ended: {status}; log: {log}"));
                false
            }
            _ => true,
        });
        let ended = self.relieved.len() != before;
        // An order that could not be recorded yet is not carried out twice.
        if self.carried_out {
            return ended;
        }
        let Ok(order) = std::fs::read_to_string(&self.upgrade_order) else {
            return ended;
        };
        let mut process = self.process.clone();
        let more = order.lines().filter_map(|line| line.split_once('='));
        process
            .environment
            .extend(more.map(|(name, value)| (name.to_owned(), value.to_owned())));
        match process.start(programs, netns, &self.log) {
            Ok(child) => {
                self.relieved.extend(self.child.replace(child));
                self.start.not_before = Instant::now() + FIRST_BACKOFF;
            }
            Err(error) => progress(format!("{}: no upgrade: {error:#}", self.name)),
        }
        self.carried_out = true;
        true
    }

    /// Takes an order away that has been carried out. Whoever gave it looks for the new process then, so that the pod's
    /// record has to name it by now.
    pub(super) fn order_recorded(&mut self) {
        if !std::mem::take(&mut self.carried_out) {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.upgrade_order) {
            progress(format!("{}: its order stays: {error}", self.name));
        }
    }

    /// The process that goes on where a new one has just failed.
    pub(super) fn before_failed_upgrade(&mut self) -> Option<Child> {
        let started = self.start.not_before - FIRST_BACKOFF;
        (started.elapsed() < TRIAL)
            .then(|| self.relieved.pop())
            .flatten()
    }

    /// All its processes.
    pub(super) fn children(&mut self) -> impl Iterator<Item = &mut Child> {
        self.child.iter_mut().chain(&mut self.relieved)
    }
}
