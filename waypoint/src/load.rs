// SPDX-License-Identifier: Apache-2.0
//! How many requests are under way, and how many of them on a retry: what the budget for retries goes by.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::resilience::retry::Budget;

#[derive(Debug, Default)]
pub struct Load {
    under_way: AtomicU32,
    retrying: AtomicU32,
}

/// One request, counted until this is dropped.
pub struct Counted<'l>(&'l AtomicU32);

impl Load {
    pub fn under_way(&self) -> Counted<'_> {
        Counted::of(&self.under_way)
    }

    pub fn retrying(&self) -> Counted<'_> {
        Counted::of(&self.retrying)
    }

    pub fn allows_retry(&self, budget: Budget) -> bool {
        let count = |of: &AtomicU32| of.load(Ordering::Relaxed);
        budget.allows(count(&self.under_way), count(&self.retrying))
    }
}

impl<'l> Counted<'l> {
    fn of(count: &'l AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
