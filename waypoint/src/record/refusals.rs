// SPDX-License-Identifier: Apache-2.0
//! The latest failures, for the admin view: who asks "why" shall not need the logs of the moment.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;

use crate::failure::Failure;

/// How many are kept; the oldest goes first.
const KEPT: usize = 256;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Milliseconds since 1970.
    pub unix_milliseconds: u128,
    pub source: SocketAddr,
    /// Who spoke, where that was proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// What was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    pub flag: &'static str,
    pub reason: String,
}

#[derive(Default)]
pub struct Refusals(Mutex<VecDeque<Refusal>>);

impl Refusals {
    pub(super) fn push(
        &self,
        source: SocketAddr,
        identity: Option<&str>,
        destination: Option<&str>,
        failure: &Failure,
    ) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let refusal = Refusal {
            unix_milliseconds: since.unwrap_or_default().as_millis(),
            source,
            identity: identity.map(str::to_owned),
            destination: destination.map(str::to_owned),
            flag: failure.flag().as_str(),
            reason: failure.to_string(),
        };
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(refusal);
    }

    /// Oldest first.
    pub fn latest(&self) -> Vec<Refusal> {
        self.0.lock().iter().cloned().collect()
    }
}
