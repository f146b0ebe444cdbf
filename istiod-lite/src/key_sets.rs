// SPDX-License-Identifier: Apache-2.0
//! The keys of token issuers that RequestAuthentications name by address, fetched here so that no waypoint need reach
//! them: each is told the keys themselves.
//!
//! ```text
//!  index: which are wanted ─► schedule (pure: when) ─► fetch (where to, pure: address) ─► controller ─► index
//! ```
//!
//! A set that was fetched once stays until a newer one is there. A fetch that fails is tried again, less and less often.

mod address;
mod fetch;
mod schedule;

use std::collections::BTreeSet;
use std::sync::Arc;

use ops::shutdown::DrainSignal;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

pub use self::fetch::Fetcher;
use self::schedule::Schedule;
use crate::translate::authentication::KeySource;

/// Fetches under way at a time.
const MOST_AT_A_TIME: usize = 16;

/// A set of keys as it was fetched, or why there is none.
pub type Fetched = (KeySource, Result<String, String>);

/// Keeps fetching what is wanted; tells of each set, and of a failure where there was none before.
pub async fn keep(
    mut wanted: watch::Receiver<BTreeSet<KeySource>>,
    told: mpsc::Sender<Fetched>,
    fetcher: Fetcher,
    drain: DrainSignal,
) {
    let fetcher = Arc::new(fetcher);
    let mut schedule = Schedule::default();
    let mut running = JoinSet::new();
    loop {
        schedule.want(&wanted.borrow_and_update(), Instant::now());
        while running.len() < MOST_AT_A_TIME
            && let Some(source) = schedule.take_due(Instant::now())
        {
            let fetcher = Arc::clone(&fetcher);
            running.spawn(async move {
                let fetched = fetcher.fetch(&source).await;
                (source, fetched)
            });
        }
        let next = schedule.next().filter(|_| running.len() < MOST_AT_A_TIME);
        let due = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = drain.requested() => return,
            () = due => {}
            Some(ended) = running.join_next() => {
                // A panic in there is reported by the runtime.
                let Ok((source, fetched)) = ended else { continue };
                let result = if fetched.is_ok() { "fetched" } else { "failed" };
                metrics::counter!("culvert_jwks_fetches_total", "result" => result).increment(1);
                if let Err(reason) = &fetched {
                    tracing::warn!(%source, reason, "the keys of an issuer could not be fetched");
                }
                let fresh = fetched.as_ref().map(|set| set.fresh_for).map_err(|_| ());
                let is_first = schedule.ended(&source, fresh, Instant::now(), rand::random());
                if fetched.is_err() && !is_first {
                    continue;
                }
                let keys = fetched.map(|set| set.keys);
                if told.send((source, keys)).await.is_err() {
                    return;
                }
            }
        }
    }
}
