// SPDX-License-Identifier: Apache-2.0
//! The entries that an index can mean: 61 that everyone knows, then those that the peer has sent, newest first.
//!
//! The bytes of all dynamic entries lie in one buffer, oldest first. Evicted ones stay at its front until they are as
//! many as the live ones, then the live ones move up: each byte is paid for once more, and the buffer stays below
//! three times the table's limit. The 32 bytes that HPACK adds to each entry pay for its place in the list.

use std::collections::VecDeque;
use std::ops::Range;

/// What an entry, or a field of a list, counts beyond its name and value (RFC 7541 §4.1, RFC 9113 §6.5.2).
pub(super) const OVERHEAD: usize = 32;

/// Index of the newest dynamic entry.
const FIRST_DYNAMIC: usize = STATIC.len() + 1;

/// The buffer's bound, in multiples of the table's limit: live, dead but not yet overwritten, new.
const SLACK: usize = 3;

/// The name of an entry that is about to be inserted.
pub(super) enum Name<'a> {
    Given(&'a [u8]),
    /// Where a dynamic entry has it.
    Held(Range<usize>),
}

pub(super) struct Table {
    /// Newest first.
    entries: VecDeque<Entry>,
    bytes: Vec<u8>,
    /// How many bytes were removed from the front of `bytes`; wraps, as do all positions.
    removed: usize,
    size: usize,
    limit: usize,
}

struct Entry {
    /// The name's first byte, counted from the first one ever; the value follows it.
    position: usize,
    name: usize,
    value: usize,
}

impl Table {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: Vec::new(),
            removed: 0,
            size: 0,
            limit,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        if let Some((name, value)) = static_entry(index) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        let entry = self.dynamic_entry(index)?;
        let name = self.name_of(entry);
        let value = name.end..name.end + entry.value;
        Some((&self.bytes[name], &self.bytes[value]))
    }

    /// The name alone; it has to be used before anything is changed.
    pub(super) fn name(&self, index: usize) -> Option<Name<'static>> {
        if let Some((name, _)) = static_entry(index) {
            return Some(Name::Given(name.as_bytes()));
        }
        let entry = self.dynamic_entry(index)?;
        Some(Name::Held(self.name_of(entry)))
    }

    pub(super) fn resolve<'a>(&'a self, name: &Name<'a>) -> &'a [u8] {
        match name {
            Name::Given(name) => name,
            Name::Held(range) => &self.bytes[range.clone()],
        }
    }

    /// Makes room and inserts; what is larger than the whole table just empties it (RFC 7541 §4.4).
    pub(super) fn insert(&mut self, name: Name<'_>, value: &[u8]) {
        let name_length = self.resolve(&name).len();
        let length = name_length + value.len();
        let size = length + OVERHEAD;
        // The name may be that of an entry which has to go: its bytes are there until `reclaim`.
        self.evict(self.limit.saturating_sub(size));
        if size <= self.limit {
            self.reserve(length);
            self.entries.push_front(Entry {
                position: self.removed.wrapping_add(self.bytes.len()),
                name: name_length,
                value: value.len(),
            });
            match name {
                Name::Given(name) => self.bytes.extend_from_slice(name),
                Name::Held(range) => self.bytes.extend_from_within(range),
            }
            self.bytes.extend_from_slice(value);
            self.size += size;
        }
        self.reclaim();
    }

    pub(super) fn resize(&mut self, limit: usize) {
        self.limit = limit;
        self.evict(limit);
        self.reclaim();
        self.bytes.shrink_to(SLACK * limit);
        self.entries.shrink_to(limit / OVERHEAD);
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Lets the oldest entries go until no more than `size` is used.
    fn evict(&mut self, size: usize) {
        while self.size > size
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.name + entry.value + OVERHEAD;
        }
    }

    /// Removes the bytes of evicted entries once there are as many as live ones.
    fn reclaim(&mut self) {
        let dead = match self.entries.back() {
            Some(oldest) => self.offset(oldest),
            None => self.bytes.len(),
        };
        if dead > 0 && dead >= self.bytes.len() - dead {
            self.bytes.drain(..dead);
            self.removed = self.removed.wrapping_add(dead);
        }
    }

    /// Grows by doubling, like any `Vec`, but not beyond what can be needed.
    fn reserve(&mut self, more: usize) {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            let doubled = (2 * self.bytes.capacity()).min(SLACK * self.limit);
            self.bytes
                .reserve_exact(doubled.max(needed) - self.bytes.len());
        }
    }

    fn dynamic_entry(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index.checked_sub(FIRST_DYNAMIC)?)
    }

    fn name_of(&self, entry: &Entry) -> Range<usize> {
        let start = self.offset(entry);
        start..start + entry.name
    }

    fn offset(&self, entry: &Entry) -> usize {
        entry.position.wrapping_sub(self.removed)
    }
}

fn static_entry(index: usize) -> Option<(&'static str, &'static str)> {
    STATIC.get(index.checked_sub(1)?).copied()
}

/// How many entries of [`STATIC`] come first and have names that start with a colon; no others have.
pub(super) const STATIC_PSEUDO: usize = 14;

/// From index 1 on (RFC 7541 Appendix A).
pub(super) static STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
