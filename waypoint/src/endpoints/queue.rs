// SPDX-License-Identifier: Apache-2.0
//! Who waits for a connection of a destination that has as many as it may.
//!
//! Whoever has waited longest comes first, with one exception: a connection that becomes free goes to a request for the
//! endpoint that it leads to, as another would have to close it and connect anew. The first is passed over only so often.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How often the first is passed over.
const PASSED: u32 = 32;
/// Among so many of the first somebody is looked for to whom the connection is of use.
const LOOKED_AT: usize = 64;

#[derive(Default)]
pub struct Queue {
    line: Mutex<Line>,
    /// Of those that wait or were called, so that the many destinations without a queue take no lock.
    count: AtomicUsize,
}

#[derive(Default)]
struct Line {
    /// By when they came.
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    /// How often the first was passed over.
    passed: u32,
}

struct Waiting {
    to: SocketAddr,
    call: oneshot::Sender<()>,
}

/// A request's place in the queue until this is dropped.
pub struct Queued<'q> {
    queue: &'q Queue,
    ticket: u64,
    to: SocketAddr,
    called: oneshot::Receiver<()>,
}

impl Queue {
    /// Takes a place for a connection to an endpoint. Look for one again before the first [`Queued::room`]: what became
    /// free before this is not told of.
    pub fn join(&self, to: SocketAddr) -> Queued<'_> {
        let mut line = self.line.lock();
        self.count.fetch_add(1, Ordering::SeqCst);
        let ticket = line.next;
        line.next += 1;
        let called = line.wait(ticket, to);
        Queued {
            queue: self,
            ticket,
            to,
            called,
        }
    }

    /// A connection is free that leads there or, with none, there is room for a new one: calls who may look for it.
    pub fn call(&self, free: Option<SocketAddr>) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.line.lock().call(free);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl Line {
    fn wait(&mut self, ticket: u64, to: SocketAddr) -> oneshot::Receiver<()> {
        let (call, called) = oneshot::channel();
        self.waiting.insert(ticket, Waiting { to, call });
        called
    }

    fn call(&mut self, free: Option<SocketAddr>) {
        let Some((&first, _)) = self.waiting.first_key_value() else {
            return;
        };
        let mut looked_at = self.waiting.iter().take(LOOKED_AT);
        let wanted = looked_at.find(|(_, waiting)| Some(waiting.to) == free);
        let wanted = wanted.map(|(&ticket, _)| ticket);
        let ticket = wanted.filter(|_| self.passed < PASSED).unwrap_or(first);
        self.passed = match ticket == first {
            true => 0,
            false => self.passed + 1,
        };
        if let Some(waiting) = self.waiting.remove(&ticket) {
            // Who has just given up passes it on when it leaves.
            let _called = waiting.call.send(());
        }
    }
}

impl Queued<'_> {
    /// Waits until there may be a connection, or room for one. Whoever finds none and waits again keeps its place.
    pub async fn room(&mut self) {
        // An error can't be: whoever takes the sender out calls.
        let _called = (&mut self.called).await;
        self.called = self.queue.line.lock().wait(self.ticket, self.to);
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut line = self.queue.line.lock();
        self.queue.count.fetch_sub(1, Ordering::SeqCst);
        // Called meanwhile, and gone without an answer to it.
        if line.waiting.remove(&self.ticket).is_none() {
            line.call(Some(self.to));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 80))
    }

    fn is_called(queued: &mut Queued<'_>) -> bool {
        queued.room().now_or_never().is_some()
    }

    #[test]
    fn a_free_connection_goes_to_who_can_use_it_and_the_first_is_not_forgotten() {
        let queue = Queue::default();
        let mut first = queue.join(at(1));
        let mut others: Vec<_> = (0..2).map(|_| queue.join(at(2))).collect();
        for turn in 0..PASSED {
            queue.call(Some(at(2)));
            assert!(!is_called(&mut first), "{turn}");
            assert!(is_called(&mut others[0]), "{turn}: and it keeps its place");
        }
        queue.call(Some(at(2)));
        assert!(is_called(&mut first));
        queue.call(None);
        assert!(is_called(&mut first) && !is_called(&mut others[0]));
        assert!(!is_called(&mut others[1]));
    }

    #[test]
    fn what_who_left_was_called_for_goes_to_the_next() {
        let queue = Queue::default();
        let (first, mut second) = (queue.join(at(1)), queue.join(at(1)));
        queue.call(None);
        drop(first);
        assert!(is_called(&mut second));
        drop(second);
        assert_eq!(queue.len(), 0);
        queue.call(None);
        assert!(
            !is_called(&mut queue.join(at(1))),
            "nothing is kept for later"
        );
    }
}
