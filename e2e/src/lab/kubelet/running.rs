// SPDX-License-Identifier: Apache-2.0
//! A container of a pod: kept running, started again when it ends.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::process::Child;

use crate::lab::container::{Process, Programs};
use crate::lab::probe::Check;
use crate::lab::progress;
use crate::state::ContainerRecord;

pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(500);
pub(super) const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

pub(super) struct Running {
    pub(super) name: String,
    pub(super) process: Process,
    pub(super) check: Check,
    pub(super) log: PathBuf,
    /// As long as this file is there, it is not started.
    pub(super) held_down: PathBuf,
    /// Once this file is there, another process is started beside the one that runs.
    pub(super) upgrade_order: PathBuf,
    /// The order has been followed, and the pod's record does not tell it yet.
    pub(super) carried_out: bool,
    pub(super) child: Option<Child>,
    /// Processes from before upgrades; they end by themselves.
    pub(super) relieved: Vec<Child>,
    pub(super) restarts: u32,
    /// A container that ends at once is started again later and later.
    pub(super) start: Backoff,
    pub(super) ready: bool,
}

/// When to start next, and how long to wait after that.
pub(super) struct Backoff {
    pub(super) not_before: Instant,
    pub(super) delay: Duration,
}

impl Running {
    /// Starts the container if it does not run; true if something changed.
    pub(super) fn keep_running(
        &mut self,
        programs: &Programs,
        netns: &std::path::Path,
        complaint: &mut Option<String>,
    ) -> bool {
        let upgraded = self.upgrade(programs, netns);
        if self.child.is_none() && Instant::now() < self.start.not_before {
            return upgraded;
        }
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return upgraded,
                Ok(Some(status)) => {
                    *complaint = Some(format!("container {} ended: {status}", self.name));
                    progress(format!(
                        "{} ended: {status}; log: {}",
                        self.name,
                        self.log.display()
                    ));
                    self.restarts += 1;
                }
                Err(error) => *complaint = Some(format!("container {}: {error}", self.name)),
            }
            self.child = self.before_failed_upgrade();
            return true;
        }
        if self.held_down.exists() {
            *complaint = Some(format!("container {}: held down", self.name));
            return false;
        }
        let now = Instant::now();
        // What ran well for a while has earned a quick start.
        let delay = if now > self.start.not_before + LONGEST_BACKOFF {
            FIRST_BACKOFF
        } else {
            self.start.delay
        };
        self.start = Backoff {
            not_before: now + delay,
            delay: (delay * 2).min(LONGEST_BACKOFF),
        };
        self.child = match self.process.start(programs, netns, &self.log) {
            Ok(child) => Some(child),
            Err(error) => {
                *complaint = Some(format!("container {}: {error:#}", self.name));
                None
            }
        };
        true
    }

    pub(super) fn record(&self) -> ContainerRecord {
        ContainerRecord {
            name: self.name.clone(),
            pid: self.child.as_ref().and_then(Child::id),
            restarts: self.restarts,
            ready: self.ready,
            relieved: self.relieved.iter().filter_map(Child::id).collect(),
        }
    }
}
