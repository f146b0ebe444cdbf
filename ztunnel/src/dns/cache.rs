// SPDX-License-Identifier: Apache-2.0
//! Pure: what upstream servers have answered to one pod, for as long as they said that it holds.
//!
//! In: queries, responses, the time. Out: the response to the same query, its times to live as much shorter as it has
//! aged (RFC 1035 §3.2.1). The same is a query in the same words, over the same transport, but for its id. That a name or
//! a record does not exist is kept as RFC 2308 §5 has it; what is cut short, failed, or can't be read to its end is not.
//!
//! Bounds: [`MOST_ENTRIES`], [`MOST_BYTES`], [`LONGEST`]; the oldest goes first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::Transport;
use super::message::{self, Query, Rcode};

/// Responses of one pod.
pub const MOST_ENTRIES: usize = 512;
/// Bytes of all queries and responses of one pod.
pub const MOST_BYTES: usize = 128 << 10;
/// However long an upstream server lets a response live: whoever corrects a mistake there waits no longer.
pub const LONGEST: Duration = Duration::from_secs(60);

type Key = (Transport, Arc<[u8]>);

/// The responses to one pod.
#[derive(Debug, Default)]
pub struct Cache {
    entries: HashMap<Key, Entry>,
    /// The keys of the entries in the order in which they came.
    order: VecDeque<Key>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    response: Box<[u8]>,
    since: Instant,
    until: Instant,
}

impl Entry {
    fn size(&self, key: &Key) -> usize {
        self.response.len() + key.1.len()
    }
}

impl Cache {
    /// The response to a query, if one is known that still holds.
    pub fn response(&self, query: &Query, transport: Transport, now: Instant) -> Option<Vec<u8>> {
        let entry = self.entries.get(&key(query, transport))?;
        if entry.until <= now {
            return None;
        }
        let age = now.saturating_duration_since(entry.since).as_secs();
        let mut response = entry.response.to_vec();
        message::age(&mut response, u32::try_from(age).unwrap_or(u32::MAX));
        message::set_id(&mut response, query.id());
        Some(response)
    }

    /// Keeps a response, if it says for how long it holds.
    pub fn keep(&mut self, query: &Query, transport: Transport, response: &[u8], now: Instant) {
        let Some(lifetime) = lifetime(response) else {
            return;
        };
        let key = key(query, transport);
        let entry = Entry {
            response: response.into(),
            since: now,
            until: now + lifetime,
        };
        let size = entry.size(&key);
        if size > MOST_BYTES {
            return;
        }
        self.forget(&key);
        while self.entries.len() >= MOST_ENTRIES || self.bytes + size > MOST_BYTES {
            let Some(oldest) = self.order.front().cloned() else {
                break;
            };
            self.forget(&oldest);
        }
        self.bytes += size;
        self.order.push_back(key.clone());
        self.entries.insert(key, entry);
    }

    fn forget(&mut self, key: &Key) {
        let Some(entry) = self.entries.remove(key) else {
            return;
        };
        self.bytes -= entry.size(key);
        // Nearly always it is the first.
        if let Some(at) = self.order.iter().position(|known| known == key) {
            self.order.remove(at);
        }
    }
}

/// All of a query but its id.
fn key(query: &Query, transport: Transport) -> Key {
    (transport, query.bytes()[2..].into())
}

/// How long a response holds; none where it is not to be kept.
fn lifetime(response: &[u8]) -> Option<Duration> {
    if message::is_truncated(response) {
        return None;
    }
    let seconds = match message::rcode_of(response) {
        Rcode::NO_ERROR if message::answer_count(response) > 0 => message::shortest_life(response)?,
        Rcode::NO_ERROR | Rcode::NAME_ERROR => message::life_of_absence(response)?,
        _ => return None,
    };
    let lifetime = Duration::from_secs(seconds.into()).min(LONGEST);
    (!lifetime.is_zero()).then_some(lifetime)
}

#[cfg(test)]
mod tests;
