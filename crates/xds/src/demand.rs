// SPDX-License-Identifier: Apache-2.0
//! Resources asked for by key, one by one, where not all of a type are wanted.
//!
//! ```text
//!            ask()            request leaves           response names it
//!  unknown ─────────► queued ──────────────► sent ─────────────────────► answered
//!                       ▲                                                    │
//!                       └─────────────────── ask() again ◄───────────────────┘
//! ```
//!
//! A key is answered by a resource of its name, by one that lists it as an alias, or by
//! its removal, which says that it stands for nothing. A key once asked for stays asked
//! for, so that the control plane tells of changes, until [`MAX_KEYS`] are: then those
//! used least recently are dropped.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// How many keys are asked for at a time.
pub const MAX_KEYS: usize = 16_384;
/// How many are dropped at once, when there are too many.
const DROPPED_AT_ONCE: usize = MAX_KEYS / 8;
/// How many go into one request.
const KEYS_PER_REQUEST: usize = 1_000;

/// Asks for resources of one type by key. Clones ask together.
#[derive(Debug, Clone, Default)]
pub struct Demand(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    keys: Mutex<Keys>,
    more: Notify,
}

/// All keys that may be asked for are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyKeys;

impl Demand {
    /// Asks for nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// When the control plane last spoke of a key that stays asked for. That it was of
    /// use now keeps it longer.
    pub fn answered(&self, key: &str) -> Option<Instant> {
        self.0.keys.lock().answered(key, Instant::now())
    }

    /// Asks for a key, again if it was before; the future ends with the answer.
    ///
    /// # Errors
    /// When as many keys as may be asked for are waited for.
    pub fn ask(&self, key: &str) -> Result<impl Future<Output = ()> + Send + use<>, TooManyKeys> {
        let answer = self.0.keys.lock().ask(key, Instant::now())?;
        self.0.more.notify_one();
        Ok(async {
            // What was dropped unanswered is over as well.
            let _ = answer.await;
        })
    }

    /// The keys that a new stream has to ask for.
    pub(crate) fn open(&self) -> Vec<Arc<str>> {
        self.0.keys.lock().open()
    }

    /// What is to be asked for next, or no longer; waits until there is something.
    pub(crate) async fn next(&self) -> Batch {
        loop {
            let more = self.0.more.notified();
            if let Some(batch) = self.0.keys.lock().next() {
                return batch;
            }
            more.await;
        }
    }

    /// Takes note of the names in a response that has been applied.
    pub(crate) fn respond<'a>(&self, names: impl Iterator<Item = &'a str>) {
        self.0.keys.lock().respond(names, Instant::now());
    }
}

/// What one request asks for; one of the two is empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) subscribe: Vec<Arc<str>>,
    pub(crate) unsubscribe: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Keys {
    known: HashMap<Arc<str>, Key>,
    /// To be asked for, in the order of names.
    queued: BTreeSet<Arc<str>>,
    /// To be dropped first: a name that is asked for again is dropped before, since a
    /// control plane need not answer a request that changes nothing.
    dropped: BTreeSet<Arc<str>>,
    /// What the first request of this stream asked for, until its response is there.
    opening: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Key {
    state: State,
    used: Instant,
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Queued,
    Sent,
    Answered(Instant),
}

impl Keys {
    fn answered(&mut self, key: &str, now: Instant) -> Option<Instant> {
        let key = self.known.get_mut(key)?;
        key.used = now;
        match key.state {
            State::Answered(at) => Some(at),
            State::Queued | State::Sent => None,
        }
    }

    fn ask(&mut self, name: &str, now: Instant) -> Result<oneshot::Receiver<()>, TooManyKeys> {
        let (answer, waits) = oneshot::channel();
        if let Some((name, key)) = self.known.get_key_value(name) {
            let again = matches!(key.state, State::Answered(_));
            let name = name.clone();
            if again {
                self.dropped.insert(name.clone());
                self.queued.insert(name.clone());
            }
            if let Some(key) = self.known.get_mut(&name) {
                key.used = now;
                key.waiting.push(answer);
                if again {
                    key.state = State::Queued;
                }
            }
            return Ok(waits);
        }
        if self.known.len() >= MAX_KEYS {
            self.make_room()?;
        }
        let name: Arc<str> = name.into();
        let key = Key {
            state: State::Queued,
            used: now,
            waiting: vec![answer],
        };
        self.known.insert(name.clone(), key);
        self.queued.insert(name);
        Ok(waits)
    }

    /// Drops the keys that were used least recently, among those that nobody waits for.
    fn make_room(&mut self) -> Result<(), TooManyKeys> {
        let idle = self.known.iter();
        let idle = idle.filter(|(_, key)| matches!(key.state, State::Answered(_)));
        let mut idle: Vec<_> = idle.map(|(name, key)| (key.used, name.clone())).collect();
        if idle.is_empty() {
            return Err(TooManyKeys);
        }
        idle.sort_unstable();
        for (_, name) in idle.into_iter().take(DROPPED_AT_ONCE) {
            self.known.remove(&name);
            self.dropped.insert(name);
        }
        Ok(())
    }

    fn open(&mut self) -> Vec<Arc<str>> {
        self.queued.clear();
        self.dropped.clear();
        self.opening.clear();
        for (name, key) in &mut self.known {
            if key.state == State::Queued {
                key.state = State::Sent;
            }
            if key.state == State::Sent {
                self.opening.push(name.clone());
            }
        }
        self.known.keys().cloned().collect()
    }

    fn next(&mut self) -> Option<Batch> {
        let take = |from: &mut BTreeSet<Arc<str>>| {
            let take = std::iter::from_fn(|| from.pop_first());
            take.take(KEYS_PER_REQUEST).collect::<Vec<_>>()
        };
        if !self.dropped.is_empty() {
            return Some(Batch {
                unsubscribe: take(&mut self.dropped),
                ..Batch::default()
            });
        }
        let subscribe = take(&mut self.queued);
        for name in &subscribe {
            if let Some(key) = self.known.get_mut(name)
                && key.state == State::Queued
            {
                key.state = State::Sent;
            }
        }
        (!subscribe.is_empty()).then(|| Batch {
            subscribe,
            ..Batch::default()
        })
    }

    fn respond<'a>(&mut self, names: impl Iterator<Item = &'a str>, now: Instant) {
        for name in std::mem::take(&mut self.opening) {
            self.answer(&name, now);
        }
        for name in names {
            self.answer(name, now);
        }
    }

    fn answer(&mut self, name: &str, now: Instant) {
        if let Some(key) = self.known.get_mut(name) {
            key.state = State::Answered(now);
            for waiting in key.waiting.drain(..) {
                // Who has given up needs no answer.
                let _ = waiting.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn texts(names: &[Arc<str>]) -> Vec<&str> {
        names.iter().map(|name| &**name).collect()
    }

    fn is_over(answer: &mut oneshot::Receiver<()>) -> bool {
        !matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[track_caller]
    fn asks(keys: &mut Keys, subscribe: &[&str], unsubscribe: &[&str]) {
        let batch = keys.next().unwrap_or_default();
        assert_eq!(texts(&batch.subscribe), subscribe);
        assert_eq!(texts(&batch.unsubscribe), unsubscribe);
    }

    #[test]
    fn everybody_who_waits_for_a_key_gets_the_one_answer() {
        let (mut keys, now) = (Keys::default(), Instant::now());
        let mut first = keys.ask("a", now).expect("room");
        let mut second = keys.ask("a", now).expect("room");
        let mut other = keys.ask("b", now).expect("room");
        asks(&mut keys, &["a", "b"], &[]);
        asks(&mut keys, &[], &[]);
        keys.respond(["a", "c"].into_iter(), now);
        assert!(is_over(&mut first) && is_over(&mut second) && !is_over(&mut other));
        assert_eq!(keys.answered("a", now), Some(now));
        assert_eq!(keys.answered("b", now), None);
        assert_eq!(keys.answered("c", now), None, "nobody asked");
    }

    #[test]
    fn a_key_that_is_asked_for_again_is_dropped_before() {
        let (mut keys, now) = (Keys::default(), Instant::now());
        let _first = keys.ask("a", now);
        asks(&mut keys, &["a"], &[]);
        keys.respond(["a"].into_iter(), now);
        let mut again = keys.ask("a", now).expect("room");
        asks(&mut keys, &[], &["a"]);
        asks(&mut keys, &["a"], &[]);
        assert!(!is_over(&mut again));
        keys.respond(["a"].into_iter(), now);
        assert!(is_over(&mut again));
    }

    #[test]
    fn a_new_stream_asks_for_all_keys_and_its_first_response_answers_them() {
        let (mut keys, now) = (Keys::default(), Instant::now());
        let _known = keys.ask("known", now);
        asks(&mut keys, &["known"], &[]);
        keys.respond(["known"].into_iter(), now);
        let mut sent = keys.ask("sent", now).expect("room");
        asks(&mut keys, &["sent"], &[]);
        let mut queued = keys.ask("queued", now).expect("room");
        let mut all = keys.open();
        all.sort();
        assert_eq!(texts(&all), ["known", "queued", "sent"]);
        asks(&mut keys, &[], &[]);
        let mut late = keys.ask("late", now).expect("room");
        keys.respond(std::iter::empty(), now);
        assert!(is_over(&mut sent) && is_over(&mut queued));
        assert!(!is_over(&mut late), "it was not in the first request");
    }

    #[test]
    fn the_least_recently_used_make_room_and_those_waited_for_never_do() {
        let (mut keys, start) = (Keys::default(), Instant::now());
        let at = |second: u64| start + Duration::from_secs(second);
        for i in 0..MAX_KEYS {
            let second = u64::try_from(i).expect("a second");
            let _ = keys.ask(&format!("{i:06}"), at(second));
        }
        assert!(
            matches!(keys.ask("more", start), Err(TooManyKeys)),
            "all are waited for"
        );
        while keys.next().is_some() {}
        let names: Vec<_> = keys.known.keys().cloned().collect();
        let answered = names
            .iter()
            .map(|name| &**name)
            .filter(|name| *name != "000001");
        keys.respond(answered, start);
        assert!(
            keys.answered("000000", at(1_000_000)).is_some(),
            "it is used now"
        );
        let _more = keys.ask("more", start).expect("room");
        let batch = keys.next().expect("something is dropped");
        assert_eq!(
            batch.unsubscribe.first().map(|name| &**name),
            Some("000002")
        );
        assert!(keys.known.contains_key("000000") && keys.known.contains_key("000001"));
        assert_eq!(keys.known.len(), MAX_KEYS - DROPPED_AT_ONCE + 1);
    }
}
