// SPDX-License-Identifier: Apache-2.0
//! The streams of one connection: found by id while frames may come for them, kept until their user lets go.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

use super::super::flow::Window;

/// A stream's place; valid until its user releases it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Slot(u32);

/// What may still be sent on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// The answer is outstanding: nothing but headers.
    Answer,
    Open,
    Ended,
}

/// What may still be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// The peer's answer is outstanding.
    Answer,
    Open,
    Ended,
}

/// How a stream was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// By this side.
    Here,
    /// By this side, because the peer broke the protocol on it.
    Fault { code: u32 },
    /// By the peer, with RST_STREAM.
    Peer { code: u32 },
    /// The peer goes away and has not taken it.
    GoneAway { code: u32 },
}

/// One stream, and what its user keeps with it.
pub(crate) struct Entry<U> {
    pub(super) id: u32,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) cut: Option<Cut>,
    /// What this side may still send; the peer's settings can make it negative.
    pub(super) send_window: i64,
    pub(super) window: Window,
    pub(crate) user: U,
}

impl<U> Entry<U> {
    pub(super) fn new(id: u32, send_window: i64, window: Window, user: U) -> Self {
        Self {
            id,
            sending: Sending::Answer,
            receiving: Receiving::Answer,
            cut: None,
            send_window,
            window,
            user,
        }
    }

    pub(crate) fn sending(&self) -> Sending {
        self.sending
    }

    pub(crate) fn receiving(&self) -> Receiving {
        self.receiving
    }

    pub(crate) fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// Notes that the application had no room for what came.
    pub(crate) fn stalls(&mut self, now: Instant) {
        self.window.stalls(now);
    }

    /// Whether it has ended both ways, or is cut.
    pub(crate) fn is_over(&self) -> bool {
        self.cut.is_some() || self.sending == Sending::Ended && self.receiving == Receiving::Ended
    }
}

/// Ids grow by two; mixing them well is no use.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = (self.0 ^ u64::from(id))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(20);
    }
}

pub(super) struct Streams<U> {
    entries: Vec<Option<Entry<U>>>,
    free: Vec<u32>,
    by_id: HashMap<u32, Slot, BuildHasherDefault<IdHasher>>,
}

impl<U> Streams<U> {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::default(),
        }
    }

    pub(super) fn insert(&mut self, entry: Entry<U>) -> Slot {
        let id = entry.id;
        let slot = match self.free.pop() {
            Some(free) => {
                self.entries[free as usize] = Some(entry);
                Slot(free)
            }
            None => {
                self.entries.push(Some(entry));
                Slot((self.entries.len() - 1) as u32)
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    /// Streams whose user has not let go.
    pub(super) fn held(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Streams for which frames may come or go.
    pub(super) fn live(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn slot(&self, id: u32) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// # Panics
    /// If the user has released it: a slot is released once, by its only owner.
    pub(super) fn get(&mut self, slot: Slot) -> &mut Entry<U> {
        self.entries[slot.0 as usize]
            .as_mut()
            .expect("broken invariant: a slot lives until its owner releases it")
    }

    pub(super) fn peek(&self, slot: Slot) -> &Entry<U> {
        self.entries[slot.0 as usize]
            .as_ref()
            .expect("broken invariant: a slot lives until its owner releases it")
    }

    /// No frame counts for it any more.
    pub(super) fn forget(&mut self, id: u32) {
        self.by_id.remove(&id);
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<Entry<U>> {
        let entry = self.entries[slot.0 as usize].take()?;
        self.by_id.remove(&entry.id);
        self.free.push(slot.0);
        if self.free.len() == self.entries.len() {
            // What a burst needed is not kept by an idle tunnel.
            self.entries = Vec::new();
            self.free = Vec::new();
            self.by_id.shrink_to_fit();
        }
        Some(entry)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut Entry<U>)> {
        self.entries
            .iter_mut()
            .enumerate()
            .filter_map(|(at, entry)| Some((Slot(at as u32), entry.as_mut()?)))
    }
}
