// SPDX-License-Identifier: Apache-2.0
//! How much of a core a worker has used lately, by its thread's own clock: the time that a crowded machine keeps it
//! waiting is no reason to wake another one.

use std::time::{Duration, Instant};

use nix::libc::clockid_t;
use nix::time::ClockId;
use nix::unistd::Pid;
use parking_lot::Mutex;

/// How far back "lately" reaches, at least.
const WINDOW: Duration = Duration::from_millis(100);

/// The share of a core from which on a worker counts as busy.
const BUSY: f32 = 0.7;

pub(super) struct Busy {
    clock: ClockId,
    lately: Mutex<Lately>,
}

struct Lately {
    at: Instant,
    used: Duration,
    share: f32,
}

impl Busy {
    /// Watches a thread of this process.
    pub(super) fn of(thread: Pid) -> Self {
        // How Linux writes the clock of a thread's work (CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED); pthread_getcpuclockid
        // makes the same number, of a handle that the standard library does not give out.
        let clock = ClockId::from_raw((!clockid_t::from(thread.as_raw()) << 3) | 0b110);
        Self {
            clock,
            lately: Mutex::new(Lately {
                at: Instant::now(),
                used: Duration::ZERO,
                share: 0.0,
            }),
        }
    }

    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.share(now) > BUSY
    }

    /// Between 0 and 1. A thread whose clock can't be read has done nothing.
    pub(super) fn share(&self, now: Instant) -> f32 {
        let mut lately = self.lately.lock();
        let passed = now.saturating_duration_since(lately.at);
        if passed >= WINDOW {
            let used = self.clock.now().map_or(lately.used, Duration::from);
            let worked = used.saturating_sub(lately.used);
            *lately = Lately {
                at: now,
                used,
                share: worked.as_secs_f32() / passed.as_secs_f32(),
            };
        }
        lately.share
    }
}
