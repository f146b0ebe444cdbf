// SPDX-License-Identifier: Apache-2.0
//! How much a peer may send on one stream: little at first, more while the application keeps up, little again when it
//! stalls (RFC 9113 §5.2 leaves the policy to us).
//!
//! ```text
//!   window = in flight or unused (granted) + held for the application + taken and not yet granted again
//! ```
//!
//! Granted credit can't be withdrawn, so budgets count it: what a stalled application makes us hold is never more than
//! its window, and what all of them have above their first windows is bounded for a tunnel and for the process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Up to here a window grows without much proof.
const EASY: u32 = 256 * 1024;

/// Beyond [`EASY`] an application must have taken so many times the window: more than the kernel may have taken for it.
const PROOF: u64 = 8;

/// An application that has been behind for so long has stalled.
const STALL: Duration = Duration::from_millis(250);

/// Half a window must have been taken within two round trips, or this, for the window to grow.
const BRISK: Duration = Duration::from_millis(20);

/// What all windows of the process have above their first sizes.
static GROWN: AtomicUsize = AtomicUsize::new(0);

/// Bounds on windows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowLimits {
    pub(crate) first: u32,
    pub(crate) most: u32,
    /// Growth of all windows of one tunnel together.
    pub(crate) tunnel: usize,
    /// Growth of all windows of the process together.
    pub(crate) process: usize,
}

/// The growth that one tunnel has taken.
#[derive(Debug, Default)]
pub(super) struct Grown(usize);

impl Grown {
    fn take(&mut self, bytes: u32, limits: &WindowLimits) -> bool {
        let bytes = bytes as usize;
        if self.0 + bytes > limits.tunnel {
            return false;
        }
        let taken = GROWN.fetch_add(bytes, Ordering::Relaxed);
        if taken + bytes > limits.process {
            GROWN.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.0 += bytes;
        true
    }

    fn give_back(&mut self, bytes: u32) {
        let bytes = (bytes as usize).min(self.0);
        self.0 -= bytes;
        GROWN.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        GROWN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The receiving window of one stream.
#[derive(Debug)]
pub(super) struct Window {
    /// What the peer may still send.
    granted: u32,
    /// What has come and was not taken, padding included.
    untaken: u32,
    size: u32,
    /// All that the application has taken.
    taken: u64,
    /// When credit was last given.
    credited: Instant,
    /// Since when the application is behind.
    behind: Option<Instant>,
}

impl Window {
    pub(super) fn new(first: u32, now: Instant) -> Self {
        Self {
            granted: first,
            untaken: 0,
            size: first,
            taken: 0,
            credited: now,
            behind: None,
        }
    }

    /// The peer has sent `count` bytes; false if it was not allowed to.
    pub(super) fn received(&mut self, count: u32) -> bool {
        match self.granted.checked_sub(count) {
            Some(left) => {
                self.granted = left;
                self.untaken = self.untaken.saturating_add(count);
                true
            }
            None => false,
        }
    }

    /// The application has taken `count` bytes and `held` are left; says how much more the peer may send now.
    pub(super) fn taken(
        &mut self,
        count: usize,
        held: usize,
        now: Instant,
        round_trip: Duration,
        limits: &WindowLimits,
        grown: &mut Grown,
    ) -> Option<u32> {
        self.taken += count as u64;
        self.untaken = self.untaken.saturating_sub(count as u32);
        if held == 0 {
            self.behind = None;
        } else if now.duration_since(*self.behind.get_or_insert(now)) > STALL {
            self.shrink(limits, grown);
        }
        let out = self.granted.saturating_add(held as u32);
        if out > self.size / 2 {
            return None;
        }
        let brisk = now.duration_since(self.credited) <= BRISK.max(round_trip * 2);
        if held == 0 && brisk {
            self.grow(limits, grown);
        }
        self.credited = now;
        self.credit(out)
    }

    /// Padding is taken by nobody: it may be sent again, and proves nothing of the application.
    pub(super) fn padding(&mut self, count: u32) -> Option<u32> {
        self.untaken = self.untaken.saturating_sub(count);
        let out = self.granted.saturating_add(self.untaken);
        if out > self.size / 2 {
            return None;
        }
        self.credit(out)
    }

    fn credit(&mut self, out: u32) -> Option<u32> {
        let credit = self.size.saturating_sub(out);
        self.granted += credit;
        (credit > 0).then_some(credit)
    }

    /// The application has no room for what came.
    pub(super) fn stalls(&mut self, now: Instant) {
        self.behind.get_or_insert(now);
    }

    /// The stream is over: what it had above its first window may serve others.
    pub(super) fn close(&mut self, limits: &WindowLimits, grown: &mut Grown) {
        self.shrink(limits, grown);
    }

    fn grow(&mut self, limits: &WindowLimits, grown: &mut Grown) {
        let proven = u32::try_from(self.taken / PROOF).unwrap_or(u32::MAX);
        let wanted = self
            .size
            .saturating_mul(2)
            .min(limits.most)
            .min(proven.max(EASY));
        if wanted > self.size && grown.take(wanted - self.size, limits) {
            self.size = wanted;
        }
    }

    fn shrink(&mut self, limits: &WindowLimits, grown: &mut Grown) {
        if self.size > limits.first {
            grown.give_back(self.size - limits.first);
            self.size = limits.first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1024;

    fn limits() -> WindowLimits {
        WindowLimits {
            first: 64 * KIB,
            most: 4096 * KIB,
            tunnel: 64 << 20,
            process: 1 << 30,
        }
    }

    /// Bytes that pass one by one through an application that keeps up.
    fn pass(window: &mut Window, mut bytes: u64, at: Instant, grown: &mut Grown) {
        while bytes > 0 {
            let count = window.granted.min(bytes as u32).min(16 * KIB);
            assert!(window.received(count));
            window.taken(count as usize, 0, at, Duration::ZERO, &limits(), grown);
            bytes -= u64::from(count);
        }
    }

    #[test]
    fn a_window_grows_only_as_fast_as_the_application_proves_to_keep_up() {
        let (now, mut grown) = (Instant::now(), Grown::default());
        let mut window = Window::new(64 * KIB, now);
        pass(&mut window, 1 << 20, now, &mut grown);
        assert_eq!(window.size, EASY, "what socket buffers swallow is no proof");
        pass(&mut window, 64 << 20, now, &mut grown);
        assert_eq!(window.size, 4096 * KIB);
        assert_eq!(grown.0, 4032 * 1024);
        window.close(&limits(), &mut grown);
        assert_eq!(grown.0, 0);
    }

    #[test]
    fn a_trickle_does_not_grow() {
        let (mut now, mut grown) = (Instant::now(), Grown::default());
        let mut window = Window::new(64 * KIB, now);
        for _ in 0..100 {
            now += Duration::from_millis(100);
            pass(&mut window, 20_000, now, &mut grown);
        }
        assert_eq!(window.size, 64 * KIB);
    }

    #[test]
    fn a_stall_gives_no_credit_until_what_is_held_has_gone() {
        let (mut now, mut grown) = (Instant::now(), Grown::default());
        let mut window = Window::new(64 * KIB, now);
        pass(&mut window, 64 << 20, now, &mut grown);
        // The peer uses all it has; the application takes nothing.
        let mut held = window.granted as usize;
        assert!(window.received(window.granted));
        window.stalls(now);
        now += Duration::from_secs(1);
        while held > 64 * 1024 {
            held -= 10_000.min(held);
            let credit = window.taken(10_000, held, now, Duration::ZERO, &limits(), &mut grown);
            assert!(credit.is_none() || held < 64 * 1024, "{held}");
        }
        assert_eq!((window.size, grown.0), (64 * KIB, 0));
    }

    #[test]
    fn padding_gives_no_credit_for_what_an_application_has_not_taken() {
        let mut window = Window::new(64 * KIB, Instant::now());
        let mut sent = 0;
        // Frames of 1000 bytes and one of padding, to an application that takes nothing.
        while window.received(1001) {
            sent += 1000;
            if let Some(credit) = window.padding(1) {
                assert!(credit <= 64 * KIB - sent, "{credit} after {sent}");
            }
        }
        assert!(sent <= 64 * KIB, "{sent}");
    }

    #[test]
    fn budgets_stop_growth_and_the_peer_may_not_overrun() {
        let now = Instant::now();
        let tight = WindowLimits {
            tunnel: 100_000,
            ..limits()
        };
        let mut grown = Grown::default();
        assert!(grown.take(60_000, &tight) && !grown.take(60_000, &tight));
        grown.give_back(60_000);
        assert!(grown.take(100_000, &tight));
        let mut window = Window::new(100, now);
        assert!(window.received(100) && !window.received(1));
    }
}
