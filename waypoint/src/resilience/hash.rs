// SPDX-License-Identifier: Apache-2.0
//! Consistent hash: what has the same key goes to the same endpoint, and when endpoints come or go, only what was theirs
//! or becomes theirs moves.
//!
//! In: a key, endpoints with weights. Out: the one whose own draw for this key is highest (rendezvous hashing). No ring has
//! to be built or kept, each endpoint gets its share by weight exactly, and a choice costs one hash per endpoint.

use mesh::Endpoint;
use xxhash_rust::xxh64::{Xxh64, xxh64};

/// What requests are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// Of a header's, cookie's or parameter's value, or of an address.
    pub fn new(value: &[u8]) -> Self {
        Self(xxh64(value, 0))
    }

    /// A number for it, spread over all that there are.
    pub fn ticket(self) -> u64 {
        xxh64(&self.0.to_be_bytes(), 1)
    }
}

/// The place of the endpoint for a key; none where nothing weighs anything.
pub fn choose<'e>(
    key: Key,
    endpoints: impl IntoIterator<Item = (&'e Endpoint, u64)>,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (place, (endpoint, weight)) in endpoints.into_iter().enumerate() {
        if weight == 0 {
            continue;
        }
        let score = draw(key, endpoint) / weight as f64;
        if best.is_none_or(|(_, least)| score < least) {
            best = Some((place, score));
        }
    }
    best.map(|(place, _)| place)
}

/// As of an exponential distribution: the least of several, each divided by its weight, is each one's in proportion.
fn draw(key: Key, endpoint: &Endpoint) -> f64 {
    let mut hasher = Xxh64::new(key.0);
    hasher.update(endpoint.workload.as_bytes());
    hasher.update(&endpoint.port.to_be_bytes());
    // 53 bits, as many as the number holds, and never zero.
    let uniform = ((hasher.digest() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn endpoints(count: usize) -> Vec<(Endpoint, u64)> {
        let endpoint = |at: usize| Endpoint {
            workload: format!("pod-{at}").into(),
            port: 8080,
        };
        (0..count).map(|at| (endpoint(at), 1)).collect()
    }

    fn chosen(endpoints: &[(Endpoint, u64)], key: u32) -> Option<&Endpoint> {
        let key = Key::new(&key.to_be_bytes());
        let weighted = endpoints
            .iter()
            .map(|(endpoint, weight)| (endpoint, *weight));
        choose(key, weighted).map(|place| &endpoints[place].0)
    }

    #[test]
    fn keys_are_shared_by_weight() {
        let mut endpoints = endpoints(3);
        endpoints[0].1 = 2;
        endpoints[2].1 = 0;
        let mut counts = HashMap::<_, u32>::new();
        for key in 0..9000 {
            *counts.entry(chosen(&endpoints, key)).or_default() += 1;
        }
        let count = |at: usize| {
            counts
                .get(&Some(&endpoints[at].0))
                .copied()
                .unwrap_or_default()
        };
        assert!((5800..6200).contains(&count(0)), "{counts:?}");
        assert_eq!(count(0) + count(1), 9000);
    }

    #[test]
    fn only_keys_of_an_endpoint_that_goes_move() {
        let all = endpoints(10);
        let fewer = &all[1..];
        for key in 0..2000 {
            let before = chosen(&all, key);
            if before != Some(&all[0].0) {
                assert_eq!(chosen(fewer, key), before);
            }
        }
    }

    #[test]
    fn nothing_is_chosen_of_nothing() {
        assert_eq!(chosen(&[], 1), None);
        let mut weightless = endpoints(1);
        weightless[0].1 = 0;
        assert_eq!(chosen(&weightless, 1), None);
    }
}
