// SPDX-License-Identifier: Apache-2.0
//! The buckets of all routes and clients, a bounded number.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use super::{Bucket, HeaderMap, Instant, Mutex, RateLimit, SpiffeId, Taken, nanoseconds};

/// Buckets that are not full, of all routes.
pub const MOST: usize = SHARDS * MOST_OF_SHARD;

const SHARDS: usize = 16;
const MOST_OF_SHARD: usize = 4096;

/// How long at least between two searches of one shard for buckets that are full again.
const SWEEP: u64 = 100_000_000;

/// All buckets, by route and client.
pub struct Buckets {
    since: Instant,
    /// Unknown to clients, so that none can choose to share another's bucket.
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    buckets: HashMap<u64, Bucket>,
    swept: u64,
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            hasher: RandomState::new(),
            shards: Default::default(),
        }
    }
}

impl Buckets {
    /// Whether a request of a route may come now; then it has been counted.
    pub fn take(&self, limit: &RateLimit, identity: &SpiffeId, headers: &HeaderMap) -> Taken {
        let now = nanoseconds(self.since.elapsed());
        self.take_at(limit, limit.key(identity, headers), now)
    }

    pub(super) fn take_at(&self, limit: &RateLimit, client: &[u8], now: u64) -> Taken {
        let key = self.hasher.hash_one((&limit.route, client));
        let shard = &self.shards[usize::try_from(key % SHARDS as u64).unwrap_or_default()];
        let mut shard = shard.lock();
        if let Some(bucket) = shard.buckets.get_mut(&key) {
            return limit.rate.take(bucket, now);
        }
        if shard.has_room(now) {
            return limit.rate.take(shard.buckets.entry(key).or_default(), now);
        }
        limit.rate.take(&mut limit.others.lock(), now)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().buckets.len())
            .sum()
    }
}

impl Shard {
    /// Forgets those that are full again, where that is needed and not just been done.
    fn has_room(&mut self, now: u64) -> bool {
        if self.buckets.len() >= MOST_OF_SHARD && now.saturating_sub(self.swept) >= SWEEP {
            self.swept = now;
            self.buckets.retain(|_, bucket| bucket.0 > now);
        }
        self.buckets.len() < MOST_OF_SHARD
    }
}
