// SPDX-License-Identifier: Apache-2.0
//! Joins the source of events, the index, the catalogue and the status writer.
//!
//! What happens within a moment is taken in together. Resources are published
//! before conditions are written; writing never delays the next publication.

use std::{
    collections::BTreeSet,
    mem,
    sync::Arc,
    time::{Duration, SystemTime},
};

use cluster::{Batch, ObjectKey, Source, StatusWriter, k8s_openapi::jiff::Timestamp};
use ops::{health::ReadyHandle, shutdown::DrainSignal};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::Notify, time::Instant};

use crate::{
    catalogue::{Catalogue, ResourceType},
    index::Index,
    leader::Leadership,
    status::{self, Task},
};

/// Events that follow each other this closely are taken in together …
const QUIET: Duration = Duration::from_millis(15);
/// … but none waits for longer than this.
const LATEST: Duration = Duration::from_millis(50);
/// Conditions that could not be written, as on a full disk or while another replica leads, are looked at again this often.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// What the control plane knows and says, shared by all its parts.
#[derive(Debug, Clone)]
pub struct State {
    /// What is known of the cluster.
    pub index: Arc<RwLock<Index>>,
    /// What clients are told.
    pub catalogue: Arc<Catalogue>,
    /// What is wrong with the source's input now.
    pub source_problems: Arc<RwLock<Vec<cluster::Problem>>>,
}

/// Feeds the index, for as long as the process lives.
#[derive(Debug)]
pub struct Controller {
    source: Source,
    state: State,
    due: Arc<Due>,
    reported: BTreeSet<String>,
}

/// How conditions are written, and whether they are for this replica to write.
#[derive(Debug, Clone)]
pub struct Conditions {
    pub writer: StatusWriter,
    pub leadership: Leadership,
}

/// Objects whose conditions have to be looked at.
#[derive(Debug, Default)]
struct Due {
    pending: Mutex<BTreeSet<ObjectKey>>,
    more: Notify,
}

impl Controller {
    /// Starts to feed `state` from `source`, and to write conditions.
    pub fn start(
        source: Source,
        state: State,
        conditions: Conditions,
        ready: ReadyHandle,
        drain: DrainSignal,
    ) {
        let due = Arc::new(Due::default());
        let controller = Self {
            source,
            state: state.clone(),
            due: Arc::clone(&due),
            reported: BTreeSet::new(),
        };
        let first = Arc::new(Notify::new());
        tokio::spawn(Box::pin(controller.run(
            ready,
            Arc::clone(&first),
            drain.clone(),
        )));
        tokio::spawn(Box::pin(write_conditions(
            state, due, conditions, first, drain,
        )));
    }

    async fn run(mut self, ready: ReadyHandle, first: Arc<Notify>, drain: DrainSignal) {
        let batch = self.source.next().await;
        self.take_in(batch);
        let counts = {
            let tables = self.state.catalogue.read();
            let served = tables
                .waypoints(ResourceType::WaypointService)
                .map(|(_, table)| table.len())
                .sum();
            [
                tables.of(ResourceType::Address).len(),
                tables.of(ResourceType::Authorization).len(),
                served,
            ]
        };
        tracing::info!(
            addresses = counts[0],
            authorizations = counts[1],
            waypoint_services = counts[2],
            "the cluster is known"
        );
        ready.ready();
        first.notify_one();
        loop {
            let batch = tokio::select! {
                batch = self.source.next() => batch,
                () = drain.requested() => return,
            };
            let batch = self.gather(batch).await;
            self.take_in(batch);
        }
    }

    /// Adds what follows closely.
    async fn gather(&mut self, mut batch: Batch) -> Batch {
        let latest = Instant::now() + LATEST;
        loop {
            let deadline = latest.min(Instant::now() + QUIET);
            match tokio::time::timeout_at(deadline, self.source.next()).await {
                Ok(more) => {
                    batch.events.append(more.events);
                    batch.problems = more.problems;
                }
                Err(_) => return batch,
            }
        }
    }

    fn take_in(&mut self, batch: Batch) {
        let (changes, problems) = {
            let mut index = self.state.index.write();
            let changes = index.apply(batch.events);
            let problems = index
                .problems()
                .map(|(object, problem)| format!("{object}: {problem}"));
            (changes, problems.collect::<BTreeSet<String>>())
        };
        tracing::debug!(
            resources = changes.resources.len(),
            "took in changes of the cluster"
        );
        self.state.catalogue.publish(changes.resources);
        self.report(problems, &batch.problems);
        *self.state.source_problems.write() = batch.problems;
        if !changes.conditions.is_empty() {
            self.due.pending.lock().extend(changes.conditions);
            self.due.more.notify_one();
        }
    }

    /// Logs each problem once for as long as it lasts.
    fn report(&mut self, mut problems: BTreeSet<String>, of_source: &[cluster::Problem]) {
        let serious = of_source
            .iter()
            .filter(|p| p.severity != cluster::Severity::Info);
        problems.extend(serious.map(ToString::to_string));
        for problem in problems.difference(&self.reported) {
            tracing::warn!(problem, "an object can't be used as it is written");
        }
        let count = u32::try_from(problems.len()).unwrap_or(u32::MAX);
        metrics::gauge!("culvert_config_problems").set(f64::from(count));
        self.reported = problems;
    }
}

/// Kubernetes keeps times of whole seconds.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

async fn write_conditions(
    state: State,
    due: Arc<Due>,
    conditions: Conditions,
    first: Arc<Notify>,
    drain: DrainSignal,
) {
    first.notified().await;
    let Conditions { writer, leadership } = conditions;
    let (index, cleaner) = (Arc::clone(&state.index), writer.clone());
    let retained = tokio::task::spawn_blocking(move || {
        cleaner.retain(|object| index.read().standing(object).is_some())
    });
    if let Ok(Err(error)) = retained.await {
        tracing::warn!(%error, "old conditions could not be cleared");
    }
    let mut failed = BTreeSet::new();
    loop {
        tokio::select! {
            () = due.more.notified() => {}
            () = tokio::time::sleep(TRY_AGAIN), if !failed.is_empty() => {}
            () = drain.requested() => return,
        }
        due.pending.lock().append(&mut failed);
        let objects = mem::take(&mut *due.pending.lock());
        if !leadership.is_held() {
            // What is gone from an API server took its conditions along, so that no more waits here than there is.
            let index = state.index.read();
            failed = objects;
            failed.retain(|object| index.standing(object).is_some());
            continue;
        }
        let tasks: Vec<Task> = status::tasks(&state.index.read(), &objects, now());
        if tasks.is_empty() {
            continue;
        }
        let (writer, leadership) = (writer.clone(), leadership.clone());
        // A panic in there is reported by the runtime; the next change tries again.
        let performed =
            tokio::task::spawn_blocking(move || status::perform(&writer, &leadership, &tasks));
        failed.append(&mut performed.await.unwrap_or_default());
    }
}
