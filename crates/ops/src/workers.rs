// SPDX-License-Identifier: Apache-2.0
//! The proxy threads, and which of them takes a connection.
//!
//! Each worker is a thread with a runtime of its own; a connection, its stream and the tunnel that carries it live and
//! die on one of them. Small requests are packed: they stay with the worker that accepts for their pod until it is busy,
//! since waking a second thread, and carrying half as much in each of two tunnels, costs more than it gains. What
//! carries much is spread, a tunnel that comes in or a connection to where others carried much.

mod busy;
mod observe;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::watch;

use self::busy::Busy;

/// How much a connection is expected to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// It is packed.
    Little,
    /// It is spread.
    Much,
}

/// Index of a worker; shards of shared state are chosen by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerId(usize);

impl WorkerId {
    /// From 0.
    pub fn index(self) -> usize {
        self.0
    }
}

struct Worker {
    runtime: Handle,
    places: Arc<Places>,
    busy: Busy,
}

/// What is open on a worker.
#[derive(Debug, Default)]
struct Places {
    all: AtomicUsize,
    /// Those of which much is expected.
    much: AtomicUsize,
}

/// All of them; the threads end when it is dropped.
pub struct Workers {
    workers: Box<[Worker]>,
    next_home: AtomicUsize,
    /// Dropping it ends the threads.
    _stop: watch::Sender<()>,
}

/// One connection's place on its worker; dropping it frees the place.
pub struct Place {
    /// Where it is.
    pub worker: WorkerId,
    expected: Expected,
    places: Arc<Places>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.all.fetch_sub(1, Ordering::Relaxed);
        if self.expected == Expected::Much {
            self.places.much.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Workers {
    /// Starts that many.
    ///
    /// # Errors
    /// Where the system gives no further runtime or thread.
    pub fn start(count: usize) -> io::Result<Self> {
        tracing::info!(count, "proxy workers");
        let stop = watch::Sender::new(());
        let mut workers = Vec::with_capacity(count);
        for index in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let handle = runtime.handle().clone();
            let mut stopped = stop.subscribe();
            let (started, thread) = std::sync::mpsc::sync_channel(1);
            std::thread::Builder::new()
                .name(format!("proxy-{index}"))
                .spawn(move || {
                    let _ = started.send(nix::unistd::gettid());
                    runtime.block_on(async move { while stopped.changed().await.is_ok() {} });
                    runtime.shutdown_background();
                })?;
            let ended = |_| io::Error::other(format!("proxy worker {index} ended at once"));
            let thread = thread.recv().map_err(ended)?;
            workers.push(Worker {
                runtime: handle,
                places: Arc::default(),
                busy: Busy::of(thread),
            });
        }
        Ok(Self {
            workers: workers.into(),
            next_home: AtomicUsize::new(0),
            _stop: stop,
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.workers.len()
    }

    /// The worker that accepts a new pod's connections.
    pub fn assign_home(&self) -> WorkerId {
        WorkerId(self.next_home.fetch_add(1, Ordering::Relaxed) % self.workers.len())
    }

    /// Takes a place for a connection that `home` has accepted.
    pub fn place(&self, home: WorkerId, expected: Expected) -> Place {
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        let all = |index: usize| &self.workers[index];
        let index = match expected {
            Expected::Much => fewest(home.0, self.workers.len(), |index| {
                count(&all(index).places.much)
            }),
            Expected::Little => {
                let now = Instant::now();
                let is_busy = |index: usize| all(index).busy.is_busy(now);
                let open = |index: usize| count(&all(index).places.all);
                packed(home.0, self.workers.len(), is_busy, open)
            }
        };
        let places = Arc::clone(&self.workers[index].places);
        places.all.fetch_add(1, Ordering::Relaxed);
        if expected == Expected::Much {
            places.much.fetch_add(1, Ordering::Relaxed);
        }
        Place {
            worker: WorkerId(index),
            expected,
            places,
        }
    }

    /// Sockets made while the guard is held belong to this worker.
    pub fn enter(&self, worker: WorkerId) -> EnterGuard<'_> {
        self.workers[worker.0].runtime.enter()
    }

    /// Runs a task on a worker.
    pub fn spawn(&self, worker: WorkerId, task: impl Future<Output = ()> + Send + 'static) {
        self.workers[worker.0].runtime.spawn(task);
    }
}

/// Home first, then those behind it, until one is not busy; where all are, the one with the fewest connections.
fn packed(
    home: usize,
    count: usize,
    is_busy: impl Fn(usize) -> bool,
    open: impl Fn(usize) -> usize,
) -> usize {
    let mut from_home = (0..count).map(|step| (home + step) % count);
    from_home
        .find(|index| !is_busy(*index))
        .unwrap_or_else(|| fewest(home, count, open))
}

/// Home where nobody has fewer.
fn fewest(home: usize, count: usize, open: impl Fn(usize) -> usize) -> usize {
    (0..count)
        .min_by_key(|index| (open(*index), *index != home))
        .unwrap_or(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_keeps_a_connection_where_nobody_has_fewer() {
        let check = |open: &[usize], home, chosen| {
            let found = fewest(home, open.len(), |index| open[index]);
            assert_eq!(found, chosen, "{open:?} from {home}");
        };
        check(&[0], 0, 0);
        check(&[3, 3, 3], 1, 1);
        check(&[3, 4, 3], 1, 0);
        check(&[5, 4, 3], 0, 2);
        check(&[2, 1], 1, 1);
    }

    #[test]
    fn small_ones_stay_at_home_until_it_is_busy() {
        let check = |busy: &[bool], open: &[usize], home, chosen| {
            let found = packed(home, busy.len(), |index| busy[index], |index| open[index]);
            assert_eq!(found, chosen, "{busy:?} {open:?} from {home}");
        };
        check(&[false, false], &[90, 0], 0, 0);
        check(&[true, false], &[90, 0], 0, 1);
        check(&[true, false], &[90, 0], 1, 1);
        check(&[false, true, true], &[9, 9, 9], 1, 0);
        check(&[true, true, true], &[9, 9, 2], 1, 2);
        check(&[true, true], &[9, 9], 1, 1);
    }

    #[test]
    fn places_are_counted_and_given_back() {
        let workers = Workers::start(2).expect("start");
        let home = workers.assign_home();
        let first = workers.place(home, Expected::Much);
        assert_eq!(first.worker, home);
        let second = workers.place(home, Expected::Much);
        assert_ne!(second.worker, home);
        drop(first);
        assert_eq!(workers.place(home, Expected::Much).worker, home);
        let small: Vec<_> = (0..9)
            .map(|_| workers.place(home, Expected::Little))
            .collect();
        assert!(small.iter().all(|place| place.worker == home));
    }

    #[test]
    fn a_thread_that_works_without_pause_is_busy_and_one_that_waits_is_not() {
        let workers = Workers::start(2).expect("start");
        let (worked, ready) = std::sync::mpsc::channel();
        workers.spawn(WorkerId(0), async move {
            let started = Instant::now();
            // Its own share of a machine that others use as well.
            while started.elapsed() < std::time::Duration::from_secs(1) {
                std::hint::spin_loop();
            }
            worked.send(()).expect("somebody waits");
        });
        let mut seen = false;
        let pause = std::time::Duration::from_millis(10);
        while ready.recv_timeout(pause).is_err() {
            seen |= workers.workers[0].busy.share(Instant::now()) > 0.2;
            assert!(workers.workers[1].busy.share(Instant::now()) < 0.2);
        }
        assert!(seen);
    }
}
