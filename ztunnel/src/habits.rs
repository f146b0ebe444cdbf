// SPDX-License-Identifier: Apache-2.0
//! What connections to a destination use to carry, as far as that decides on which worker the next one lives.

use std::collections::HashMap;
use std::net::SocketAddr;

use hbone::Meter;
use ops::workers::Expected;
use parking_lot::Mutex;

/// What a connection carries that is worth a second worker, in bytes.
const MUCH: u64 = 16 << 20;

/// Connections that carry little until a destination is taken for one of those again.
const PATIENCE: u8 = 16;

/// Destinations that are remembered.
const MOST: usize = 256;

/// Of one pod. Those that nothing is known of are expected to carry little.
#[derive(Debug, Default)]
pub struct Habits {
    /// Where connections carried much, and how many may carry little until that is forgotten.
    much: Mutex<HashMap<SocketAddr, u8>>,
}

impl Habits {
    pub fn expected(&self, destination: SocketAddr) -> Expected {
        match self.much.lock().contains_key(&destination) {
            true => Expected::Much,
            false => Expected::Little,
        }
    }

    /// Notes what a connection has carried both ways, now that it is over.
    pub fn learn(&self, destination: SocketAddr, carried: &Meter) {
        self.learn_bytes(
            destination,
            carried.sent().saturating_add(carried.received()),
        );
    }

    fn learn_bytes(&self, destination: SocketAddr, bytes: u64) {
        let mut much = self.much.lock();
        if bytes >= MUCH {
            if much.len() < MOST || much.contains_key(&destination) {
                much.insert(destination, PATIENCE);
            }
        } else if let Some(patience) = much.get_mut(&destination) {
            *patience -= 1;
            if *patience == 0 {
                much.remove(&destination);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_is_expected_where_much_was_carried_until_that_is_long_ago() {
        let habits = Habits::default();
        let to = SocketAddr::from(([10, 0, 0, 1], 80));
        habits.learn_bytes(to, MUCH - 1);
        assert_eq!(habits.expected(to), Expected::Little);
        habits.learn_bytes(to, MUCH);
        for _ in 0..PATIENCE {
            assert_eq!(habits.expected(to), Expected::Much);
            habits.learn_bytes(to, 1);
        }
        assert_eq!(habits.expected(to), Expected::Little);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let habits = Habits::default();
        for port in 0..1000 {
            habits.learn_bytes(SocketAddr::from(([10, 0, 0, 1], port)), MUCH);
        }
        assert_eq!(habits.much.lock().len(), MOST);
    }
}
