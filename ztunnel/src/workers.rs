// SPDX-License-Identifier: Apache-2.0
//! The proxy threads, and which of them takes a connection.
//!
//! Each worker is a thread with a runtime of its own; a connection, its stream and the tunnel that carries it live and
//! die on one of them. The worker that accepts hands the socket to the one with the fewest open connections, and keeps
//! it where it is among the least busy itself.

mod observe;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::watch;

/// Index of a worker; shards of shared state are chosen by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerId(usize);

impl WorkerId {
    pub fn index(self) -> usize {
        self.0
    }
}

struct Worker {
    runtime: Handle,
    open: Arc<AtomicUsize>,
}

pub struct Workers {
    workers: Box<[Worker]>,
    next_home: AtomicUsize,
    /// Dropping it ends the threads.
    _stop: watch::Sender<()>,
}

/// One connection's place on its worker; dropping it frees the place.
pub struct Place {
    pub worker: WorkerId,
    open: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    pub fn start(count: usize) -> anyhow::Result<Self> {
        let stop = watch::Sender::new(());
        let mut workers = Vec::with_capacity(count);
        for index in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .with_context(|| format!("cannot start the runtime of proxy worker {index}"))?;
            let handle = runtime.handle().clone();
            let mut stopped = stop.subscribe();
            std::thread::Builder::new()
                .name(format!("proxy-{index}"))
                .spawn(move || {
                    runtime.block_on(async move { while stopped.changed().await.is_ok() {} });
                    runtime.shutdown_background();
                })
                .with_context(|| format!("cannot start the thread of proxy worker {index}"))?;
            workers.push(Worker {
                runtime: handle,
                open: Arc::default(),
            });
        }
        Ok(Self {
            workers: workers.into(),
            next_home: AtomicUsize::new(0),
            _stop: stop,
        })
    }

    pub fn count(&self) -> usize {
        self.workers.len()
    }

    /// The worker that accepts a new pod's connections.
    pub fn assign_home(&self) -> WorkerId {
        WorkerId(self.next_home.fetch_add(1, Ordering::Relaxed) % self.workers.len())
    }

    /// Takes a place on the least busy worker.
    pub fn place(&self, home: WorkerId) -> Place {
        let load = |index: usize| self.workers[index].open.load(Ordering::Relaxed);
        let index = least_busy(home.0, self.workers.len(), load);
        let open = Arc::clone(&self.workers[index].open);
        open.fetch_add(1, Ordering::Relaxed);
        Place {
            worker: WorkerId(index),
            open,
        }
    }

    /// Sockets made while the guard is held belong to this worker.
    pub fn enter(&self, worker: WorkerId) -> EnterGuard<'_> {
        self.workers[worker.0].runtime.enter()
    }

    pub fn spawn(&self, worker: WorkerId, task: impl Future<Output = ()> + Send + 'static) {
        self.workers[worker.0].runtime.spawn(task);
    }
}

fn least_busy(home: usize, count: usize, load: impl Fn(usize) -> usize) -> usize {
    (0..count)
        .min_by_key(|index| (load(*index), *index != home))
        .unwrap_or(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_keeps_a_connection_where_nobody_is_less_busy() {
        let check = |loads: &[usize], home, chosen| {
            assert_eq!(
                least_busy(home, loads.len(), |index| loads[index]),
                chosen,
                "{loads:?} from {home}"
            );
        };
        check(&[0], 0, 0);
        check(&[3, 3, 3], 1, 1);
        check(&[3, 4, 3], 1, 0);
        check(&[5, 4, 3], 0, 2);
        check(&[2, 1], 1, 1);
    }

    #[test]
    fn places_are_counted_and_given_back() {
        let workers = Workers::start(2).expect("start");
        let home = workers.assign_home();
        let first = workers.place(home);
        assert_eq!(first.worker, home);
        let second = workers.place(home);
        assert_ne!(second.worker, home);
        drop(first);
        assert_eq!(workers.place(home).worker, home);
    }
}
