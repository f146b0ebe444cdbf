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

use cluster::{Batch, Client, ObjectKey, Source, StatusWriter, k8s_openapi::jiff::Timestamp};
use ops::{health::ReadyHandle, shutdown::DrainSignal};
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};

use crate::{
    bundles::{self, Bundle},
    catalogue::{Catalogue, ResourceType},
    facts::NamespacedName,
    index::{Changes, Index},
    key_sets::{self, Fetched, Fetcher},
    leader::Leadership,
    status::{self, Task},
    translate::authentication::KeySource,
};

/// Events that follow each other this closely are taken in together …
const QUIET: Duration = Duration::from_millis(15);
/// … but none waits for longer than this. After as long without any, what an API server tells waits for none: a change there
/// is whole, and mostly comes alone. Files of a folder are written one after the other, and always waited for.
const LATEST: Duration = Duration::from_millis(50);
/// How long a start waits for the keys of token issuers, and for the authorities that policies name, so that no waypoint is
/// told in between that there are none.
const FIRST_KEYS: Duration = Duration::from_secs(5);
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
    wanted: watch::Sender<BTreeSet<KeySource>>,
    fetched: mpsc::Receiver<Fetched>,
    /// ConfigMaps that an API server is asked for.
    named: watch::Sender<BTreeSet<NamespacedName>>,
    bundles: mpsc::Receiver<(NamespacedName, Bundle)>,
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
    /// Starts to feed `state` from `source`, to fetch the keys of token issuers, and to write conditions.
    pub fn start(
        source: Source,
        state: State,
        (conditions, fetcher): (Conditions, Fetcher),
        client: Option<Client>,
        ready: ReadyHandle,
        drain: DrainSignal,
    ) {
        let due = Arc::new(Due::default());
        let (wanted, wants) = watch::channel(BTreeSet::new());
        // Each is taken in within a moment; a fetch can wait.
        let (told, fetched) = mpsc::channel(16);
        let keeping = key_sets::keep(wants, told, fetcher, drain.clone());
        tokio::spawn(Box::pin(keeping));
        let (named, names) = watch::channel(BTreeSet::new());
        let (bundle_told, bundles) = mpsc::channel(16);
        if let Some(client) = client {
            let keeping = bundles::keep(names, bundle_told, client, drain.clone());
            tokio::spawn(Box::pin(keeping));
        }
        let controller = Self {
            source,
            state: state.clone(),
            due: Arc::clone(&due),
            reported: BTreeSet::new(),
            wanted,
            fetched,
            named,
            bundles,
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
        let changes = self.state.index.write().apply(batch.events);
        let with_keys = self.first_keys().await;
        let with_bundles = self.first_bundles().await;
        let changes = changes.followed_by(with_keys).followed_by(with_bundles);
        self.publish(changes, batch.problems);
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
        let mut published = Instant::now();
        loop {
            let batch = tokio::select! {
                batch = self.source.next() => batch,
                Some((source, keys)) = self.fetched.recv() => {
                    let changes = self.state.index.write().set_keys(source, keys);
                    let problems = self.state.source_problems.read().clone();
                    self.publish(changes, problems);
                    continue;
                }
                Some((name, bundle)) = self.bundles.recv() => {
                    let changes = self.state.index.write().set_bundle(&name, bundle);
                    let problems = self.state.source_problems.read().clone();
                    self.publish(changes, problems);
                    continue;
                }
                () = drain.requested() => return,
            };
            let comes_alone = self.source.tells_whole_changes() && published.elapsed() >= LATEST;
            let batch = match comes_alone {
                true => batch,
                false => self.gather(batch).await,
            };
            let changes = self.state.index.write().apply(batch.events);
            self.want_keys();
            self.want_bundles();
            self.publish(changes, batch.problems);
            published = Instant::now();
        }
    }

    /// Says which keys are wanted now.
    fn want_keys(&self) -> BTreeSet<KeySource> {
        let sources = self.state.index.write().key_sources();
        self.wanted.send_if_modified(|wanted| {
            let differs = *wanted != sources;
            if differs {
                wanted.clone_from(&sources);
            }
            differs
        });
        sources
    }

    /// Waits until each set of keys was fetched or could not be, for a while.
    async fn first_keys(&mut self) -> Changes {
        let mut missing = self.want_keys();
        let mut changes = Changes::default();
        let deadline = Instant::now() + FIRST_KEYS;
        while !missing.is_empty() {
            match tokio::time::timeout_at(deadline, self.fetched.recv()).await {
                Ok(Some((source, keys))) => {
                    missing.remove(&source);
                    let set = self.state.index.write().set_keys(source, keys);
                    changes = changes.followed_by(set);
                }
                Ok(None) | Err(_) => break,
            }
        }
        changes
    }

    /// Says which ConfigMaps are wanted now.
    fn want_bundles(&self) -> BTreeSet<NamespacedName> {
        let names = self.state.index.read().wanted_bundles();
        self.named.send_if_modified(|named| {
            let differs = *named != names;
            if differs {
                named.clone_from(&names);
            }
            differs
        });
        names
    }

    /// Waits until an API server has said of each ConfigMap what it holds, for a while.
    async fn first_bundles(&mut self) -> Changes {
        let mut missing = self.want_bundles();
        let mut changes = Changes::default();
        let deadline = Instant::now() + FIRST_KEYS;
        while !missing.is_empty() {
            match tokio::time::timeout_at(deadline, self.bundles.recv()).await {
                Ok(Some((name, bundle))) => {
                    missing.remove(&name);
                    let set = self.state.index.write().set_bundle(&name, bundle);
                    changes = changes.followed_by(set);
                }
                Ok(None) | Err(_) => break,
            }
        }
        changes
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

    fn publish(&mut self, changes: Changes, of_source: Vec<cluster::Problem>) {
        tracing::debug!(
            resources = changes.resources.len(),
            "took in changes of the cluster"
        );
        self.state.catalogue.publish(changes.resources);
        let problems = {
            let index = self.state.index.read();
            let problems = index
                .problems()
                .map(|(object, problem)| format!("{object}: {problem}"));
            problems.collect::<BTreeSet<String>>()
        };
        self.report(problems, &of_source);
        *self.state.source_problems.write() = of_source;
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
