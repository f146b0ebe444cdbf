// SPDX-License-Identifier: Apache-2.0
//! A value that every worker reads without waiting for anybody, and that is replaced as a whole by the few who change it.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

#[derive(Default)]
pub(super) struct Snapshot<T> {
    now: ArcSwap<T>,
    /// Held by who changes it.
    changing: Mutex<()>,
}

impl<T> Snapshot<T> {
    /// As it is now, or was a moment ago.
    pub(super) fn read(&self) -> Guard<Arc<T>> {
        self.now.load()
    }

    /// As it is once it is right: replaced by what follows from it where it is not.
    pub(super) fn settled(
        &self,
        is_right: impl Fn(&T) -> bool,
        next: impl FnOnce(&T) -> T,
    ) -> Guard<Arc<T>> {
        let now = self.read();
        if is_right(&now) {
            return now;
        }
        let _one_at_a_time = self.changing.lock();
        // Somebody else may have done it.
        let now = self.read();
        if is_right(&now) {
            return now;
        }
        self.now.store(Arc::new(next(&now)));
        self.read()
    }

    /// Changes a copy, which is then what others read.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R
    where
        T: Clone,
    {
        let _one_at_a_time = self.changing.lock();
        let mut next = T::clone(&self.read());
        let result = change(&mut next);
        self.now.store(Arc::new(next));
        result
    }
}
