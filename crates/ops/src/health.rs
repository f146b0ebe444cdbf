// SPDX-License-Identifier: Apache-2.0
//! Readiness: which parts of the process are not ready yet.
//!
//! Each part registers by name and says when it is ready, and when no longer. The process is ready while no part is
//! missing. The answer of `/healthz/ready` names those that are, so that a person need not guess.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;

/// All parts of this process; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, bool>>>);

/// One part's say; not ready until it says otherwise.
#[derive(Debug, Clone)]
pub struct ReadyHandle {
    parts: Readiness,
    name: &'static str,
}

impl Readiness {
    /// Registers a part, not ready.
    pub fn register(&self, name: &'static str) -> ReadyHandle {
        self.0.lock().insert(name, false);
        ReadyHandle {
            parts: self.clone(),
            name,
        }
    }

    /// The names of the parts that are not ready, sorted.
    pub fn pending(&self) -> Vec<&'static str> {
        let parts = self.0.lock();
        parts
            .iter()
            .filter(|(_, ready)| !**ready)
            .map(|(name, _)| *name)
            .collect()
    }

    /// The body of a readiness answer: `Ok` when ready, `Err` naming what is missing.
    ///
    /// # Errors
    /// The text lists the pending parts, sorted and separated by commas.
    pub fn report(&self) -> Result<String, String> {
        let pending = self.pending();
        if pending.is_empty() {
            return Ok("ready\n".into());
        }
        let mut text = String::from("not ready, pending: ");
        for (i, name) in pending.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            let _ = write!(text, "{separator}{name}");
        }
        text.push('\n');
        Err(text)
    }
}

impl ReadyHandle {
    /// This part is ready from now on.
    pub fn ready(&self) {
        self.set(true);
    }

    /// This part is not ready any more.
    pub fn not_ready(&self) {
        self.set(false);
    }

    fn set(&self, ready: bool) {
        let before = self.parts.0.lock().insert(self.name, ready);
        if before != Some(ready) {
            tracing::info!(part = self.name, ready, "readiness changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_names_the_parts_that_are_missing() {
        let readiness = Readiness::default();
        let workloads = readiness.register("workload proxy manager");
        let state = readiness.register("state manager");
        assert_eq!(
            readiness.report(),
            Err("not ready, pending: state manager, workload proxy manager\n".into())
        );
        state.ready();
        workloads.ready();
        assert_eq!(readiness.report(), Ok("ready\n".into()));
        workloads.not_ready();
        assert_eq!(readiness.pending(), ["workload proxy manager"]);
    }
}
