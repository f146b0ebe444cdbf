// SPDX-License-Identifier: Apache-2.0
//! One copy of each value that many pods have in common: labels, nodes, service accounts, ports.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use crate::facts::{Labels, pod::Pod};

/// Never sweep below this size: it costs more than it frees.
const SMALLEST_SWEEP: usize = 1024;

/// What pods share.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    texts: Pool<str>,
    labels: Pool<Labels>,
    ports: Pool<[(String, u16)]>,
}

impl Sharing {
    /// The shared copy of a text.
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        match self.texts.known.get(text) {
            Some(shared) => Arc::clone(shared),
            None => self.texts.share(text.into()),
        }
    }

    /// Replaces what a pod may have in common with others by the shared copies.
    pub(super) fn share(&mut self, pod: Pod) -> Pod {
        Pod {
            labels: self.labels.share(pod.labels),
            node: self.texts.share(pod.node),
            service_account: self.texts.share(pod.service_account),
            named_ports: self.ports.share(pod.named_ports),
            workload_name: self.texts.share(pod.workload_name),
            ..pod
        }
    }
}

/// Values in use. What nobody else holds is dropped each time the pool has doubled, so that it stays in proportion to
/// what is alive.
#[derive(Debug)]
struct Pool<T: ?Sized> {
    known: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            sweep_at: SMALLEST_SWEEP,
        }
    }
}

impl<T: Eq + Hash + ?Sized> Pool<T> {
    fn share(&mut self, value: Arc<T>) -> Arc<T> {
        if let Some(shared) = self.known.get(&*value) {
            return Arc::clone(shared);
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = SMALLEST_SWEEP.max(self.known.len() * 2);
        }
        self.known.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_become_one() {
        let mut sharing = Sharing::default();
        let (first, second) = (sharing.text("shop"), sharing.text("shop"));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &sharing.text("other")));
    }

    #[test]
    fn values_that_nobody_holds_do_not_pile_up() {
        let mut sharing = Sharing::default();
        let kept = sharing.text("kept");
        for number in 0..100_000 {
            sharing.text(&number.to_string());
        }
        assert!(sharing.texts.known.len() <= SMALLEST_SWEEP);
        assert!(Arc::ptr_eq(&kept, &sharing.text("kept")));
    }
}
