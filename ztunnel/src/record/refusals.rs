// SPDX-License-Identifier: Apache-2.0
//! The latest refusals and failures, for the admin view: a person who asks "why" shall not need the logs of the moment.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;
use spiffe::SpiffeId;

use super::{Labels, Reporter};
use crate::failure::{Failure, Flag};

/// How many are kept; the oldest goes first.
const KEPT: usize = 256;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusalEntry {
    /// Milliseconds since 1970.
    pub unix_milliseconds: u128,
    pub direction: &'static str,
    pub src: SocketAddr,
    /// Who spoke, where that was proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_identity: Option<SpiffeId>,
    pub dst: SocketAddr,
    pub flag: &'static str,
    pub reason: String,
}

impl RefusalEntry {
    pub(super) fn new(
        labels: &Labels,
        src: SocketAddr,
        dst: SocketAddr,
        failure: &Failure,
    ) -> Self {
        let (flag, reason) = (failure.flag(), failure.to_string());
        Self {
            src_identity: labels.source_identity().cloned(),
            ..Self::of(labels.reporter, src, dst, flag, reason)
        }
    }

    /// Of somebody of whom nothing but the address is known.
    pub(super) fn of(
        reporter: Reporter,
        src: SocketAddr,
        dst: SocketAddr,
        flag: Flag,
        reason: String,
    ) -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            unix_milliseconds: since.as_millis(),
            direction: reporter.direction(),
            src,
            src_identity: None,
            dst,
            flag: flag.as_str(),
            reason,
        }
    }
}

#[derive(Default)]
pub struct Refusals(Mutex<VecDeque<RefusalEntry>>);

impl Refusals {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn push(&self, entry: RefusalEntry) {
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
