// SPDX-License-Identifier: Apache-2.0
//! Buffers of a few sizes, borrowed by the tunnels of one worker while they have something in them.
//!
//! An idle tunnel holds none. They are zeroed once, when made, and bounded in number, so that a burst's memory goes back.

use std::cell::RefCell;

/// Sizes, and how many spare ones of each a worker keeps.
const CLASSES: [(usize, usize); 4] = [
    (4 * 1024, 32),
    (32 * 1024, 16),
    (128 * 1024, 4),
    (640 * 1024, 2),
];

thread_local! {
    static SPARE: RefCell<[Vec<Vec<u8>>; CLASSES.len()]> = const { RefCell::new([const { Vec::new() }; CLASSES.len()]) };
}

/// A buffer of at least `size` bytes, all of them usable.
pub(super) fn borrow(size: usize) -> Vec<u8> {
    let Some(class) = CLASSES.iter().position(|(most, _)| size <= *most) else {
        return vec![0; size];
    };
    SPARE
        .with_borrow_mut(|spare| spare[class].pop())
        .unwrap_or_else(|| vec![0; CLASSES[class].0])
}

/// Gives a buffer back. What is in it may be seen by the next borrower's code, but never leaves in its records.
pub(super) fn give_back(buffer: Vec<u8>) {
    let Some(class) = CLASSES.iter().position(|(size, _)| buffer.len() == *size) else {
        return;
    };
    SPARE.with_borrow_mut(|spare| {
        if spare[class].len() < CLASSES[class].1 {
            spare[class].push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_their_number_is_bounded() {
        let buffer = borrow(5000);
        assert_eq!(buffer.len(), 32 * 1024);
        let place = buffer.as_ptr();
        give_back(buffer);
        let again = borrow(32 * 1024);
        assert_eq!(again.as_ptr(), place);
        for _ in 0..10 {
            give_back(vec![0; 640 * 1024]);
        }
        SPARE.with_borrow(|spare| assert_eq!(spare[3].len(), 2));
        assert_eq!(borrow(1 << 20).len(), 1 << 20);
        give_back(vec![0; 1 << 20]);
        give_back(Vec::new());
    }
}
