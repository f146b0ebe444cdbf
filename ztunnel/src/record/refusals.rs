// SPDX-License-Identifier: Apache-2.0
//! The latest refusals and failures, for the admin view: a person who asks "why" shall not need the logs of the moment.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;

use super::Reporter;
use crate::failure::Flag;

/// How many are kept; the oldest goes first.
const KEPT: usize = 256;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusalEntry {
    /// Milliseconds since 1970.
    pub unix_milliseconds: u128,
    pub direction: &'static str,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub flag: &'static str,
    pub reason: String,
}

#[derive(Default)]
pub struct Refusals(Mutex<VecDeque<RefusalEntry>>);

impl Refusals {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn push(
        &self,
        reporter: Reporter,
        src: SocketAddr,
        dst: SocketAddr,
        flag: Flag,
        reason: String,
    ) {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let entry = RefusalEntry {
            unix_milliseconds: since.as_millis(),
            direction: reporter.direction(),
            src,
            dst,
            flag: flag.as_str(),
            reason,
        };
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(entry);
    }

    /// Oldest first.
    pub fn latest(&self) -> Vec<RefusalEntry> {
        self.0.lock().iter().cloned().collect()
    }
}
