// SPDX-License-Identifier: Apache-2.0
//! A Kubernetes API server as a source of events.
//!
//! ```text
//!  API server ══ a watch per kind ══► followers ──reports──► ledger ──► Batch { events, problems }
//! ```
//!
//! A thread of its own asks and decodes, so that a large change delays nobody else's work. It hands over one batch at a
//! time; what happens while nobody takes it is merged by object. Objects are decoded one by one, each for itself: one
//! that can't be read is a problem of that object and of nothing else.

pub(crate) mod apply;
mod connection;
mod follower;
mod ledger;
mod protocol;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use connection::{Client, Connection, ConnectionError, RequestError};
pub use protocol::Follow;

use crate::source::{Batch, OpenError, Source};
use follower::Follower;
use ledger::Ledger;

/// Reports on their way from the followers: a reader that is slow stalls them, and them alone.
const REPORTS: usize = 256;
/// Changes that follow each other this closely come in one batch …
const QUIET: Duration = Duration::from_millis(5);
/// … but none waits for longer than this. After as long without any, the next one waits for none: what comes alone, as most
/// changes do, is told at once.
const LATEST: Duration = Duration::from_millis(50);

/// The objects of an API server. Use it through the [`Source`] that `open` gives.
///
/// - The first batch comes once all kinds that are followed have been listed. Kinds that the server does not have
///   count as empty, are looked for again and again, and followed when they are there.
/// - A server that can't be reached, or that forgot what a watch is about, takes nothing back: objects stay as they
///   were until it is known what became of them.
/// - An object that can't be read keeps its last good state, and is listed in the batches' problems until it is mended.
#[derive(Debug)]
pub struct Api {
    batches: mpsc::Receiver<Batch>,
}

impl Api {
    /// Starts to follow. Needs no runtime; the thread ends when the source is dropped. Whether the server can be
    /// reached shows later: until then there is no batch.
    pub fn open(
        connection: &Connection,
        follow: impl IntoIterator<Item = Follow>,
    ) -> Result<Source, OpenError> {
        let follow: Vec<Follow> = follow.into_iter().collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::Thread)?;
        let client = {
            let _inside = runtime.enter();
            connection.client()?
        };
        let (sender, batches) = mpsc::channel(1);
        std::thread::Builder::new()
            .name("cluster-api".to_owned())
            .spawn(move || runtime.block_on(run(client, follow, sender)))
            .map_err(OpenError::Thread)?;
        Ok(Self { batches }.into())
    }

    pub(crate) async fn next(&mut self) -> Batch {
        self.batches
            .recv()
            .await
            .expect("broken invariant: the following thread outlives its source")
    }
}

/// Joins what the followers report, until nobody reads any more.
async fn run(client: Client, follow: Vec<Follow>, batches: mpsc::Sender<Batch>) {
    let (sender, mut reports) = mpsc::channel(REPORTS);
    let mut ledger = Ledger::new(follow.iter().map(|follow| follow.kind));
    let mut followers = JoinSet::new();
    for follow in follow {
        followers.spawn(Follower::new(client.clone(), follow, sender.clone()).run());
    }
    let mut due = Due::default();
    loop {
        tokio::select! {
            () = batches.closed() => return,
            Some((kind, report)) = reports.recv() => {
                ledger.take(kind, report);
                due.later(Instant::now());
            }
            permit = async { tokio::time::sleep_until(due.at()).await; batches.reserve().await },
                if ledger.has_news() =>
            {
                let Ok(permit) = permit else { return };
                due = Due::told(Instant::now());
                if let Some(batch) = ledger.commit() {
                    permit.send(batch);
                }
            }
            Some(ended) = followers.join_next() => {
                ended.expect("broken invariant: following a kind never panics");
            }
        }
    }
}

/// When what has been heard is to be told.
#[derive(Default)]
struct Due {
    /// When something was told before.
    told: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Due {
    fn told(now: Instant) -> Self {
        Self {
            told: Some(now),
            ..Self::default()
        }
    }

    fn later(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    fn at(&self) -> Instant {
        match (self.first, self.last) {
            (Some(first), _) if self.told.is_some_and(|told| first >= told + LATEST) => first,
            (Some(first), Some(last)) => (first + LATEST).min(last + QUIET),
            _ => Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_alone_waits_for_nothing_and_a_burst_comes_together() {
        let start = Instant::now();
        let at = |told: Option<u64>, heard: &[u64]| {
            let moment = |millis: u64| start + Duration::from_millis(millis);
            let mut due = told.map_or_else(Due::default, |told| Due::told(moment(told)));
            heard.iter().for_each(|heard| due.later(moment(*heard)));
            (due.at() - start).as_millis()
        };
        // What is there at the start, and what follows closely, has company.
        assert_eq!(at(None, &[100]), 105);
        assert_eq!(at(Some(90), &[100]), 105);
        assert_eq!(at(Some(90), &[100, 103]), 108);
        assert_eq!(at(Some(90), &(100..200).collect::<Vec<_>>()), 150);
        assert_eq!(at(Some(50), &[100]), 100);
    }
}
