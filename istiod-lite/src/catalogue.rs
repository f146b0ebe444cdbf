// SPDX-License-Identifier: Apache-2.0
//! The resources as clients are served them: serialized once, shared by all.
//!
//! In: what the index says has changed. Out: for each client, what is new since
//! the generation that it has seen. No client's names are remembered here: each
//! resource knows the generation of its last change, and what was removed is
//! remembered for the last [`MAX_TOMBSTONES`] removals. A client that has missed
//! more than that has to come again with the versions it holds.

pub mod lookup;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::{RwLock, RwLockReadGuard};
use proto::{
    ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL, CONNECTION_LOGS_TYPE_URL, WAYPOINT_SERVICE_TYPE_URL,
    WAYPOINT_TYPE_URL,
};
use tokio::sync::watch;
use xxhash_rust::xxh64::xxh64;

use self::lookup::Lookup;
use crate::facts::NamespacedName;

/// How many removals of a type are remembered.
const MAX_TOMBSTONES: usize = 65_536;
/// What a resource takes while it is being sent, beside its name and its body.
const RESOURCE_BYTES: usize = 256;

/// Waypoints that serve nothing any longer, whose removals are remembered all the same.
const MAX_IDLE_WAYPOINTS: usize = 1024;

/// The types that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// Workloads and services.
    Address,
    /// Policies.
    Authorization,
    /// What holds for all that a waypoint serves: each is for that one alone.
    Waypoint,
    /// What a waypoint does with a service's traffic: each is for one waypoint alone.
    WaypointService,
    /// What nodes' proxies tell of connections.
    ConnectionLogs,
}

impl ResourceType {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Address,
        Self::Authorization,
        Self::Waypoint,
        Self::WaypointService,
        Self::ConnectionLogs,
    ];

    /// The type that a URL names.
    pub fn from_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|of| of.url() == url)
    }

    /// Its URL.
    pub fn url(self) -> &'static str {
        match self {
            Self::Address => ADDRESS_TYPE_URL,
            Self::Authorization => AUTHORIZATION_TYPE_URL,
            Self::Waypoint => WAYPOINT_TYPE_URL,
            Self::WaypointService => WAYPOINT_SERVICE_TYPE_URL,
            Self::ConnectionLogs => CONNECTION_LOGS_TYPE_URL,
        }
    }

    /// Its name in logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Authorization => "authorization",
            Self::Waypoint => "waypoint",
            Self::WaypointService => "waypoint_service",
            Self::ConnectionLogs => "connection_logs",
        }
    }
}

/// The version of a resource: a hash of its bytes, so that a restart of the
/// control plane changes no version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(u64);

impl Version {
    /// The version of these bytes.
    pub fn of(body: &[u8]) -> Self {
        Self(xxh64(body, 0))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A resource as it is now.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its version.
    pub version: Version,
    /// Its bytes.
    pub body: Bytes,
    changed: u64,
}

impl Entry {
    /// About how many bytes of memory it takes to send it: name and body as they are and
    /// encoded, and the message around them.
    pub fn weight(&self, name: &str) -> usize {
        2 * (name.len() + self.body.len()) + RESOURCE_BYTES
    }
}

/// Where a resource stands: there is one at each place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its type.
    pub of: ResourceType,
    /// The waypoint that it is for; none where it is for everyone.
    pub waypoint: Option<NamespacedName>,
    /// Its name.
    pub name: Arc<str>,
}

impl Place {
    /// Names a place.
    pub fn new(
        of: ResourceType,
        waypoint: Option<NamespacedName>,
        name: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            of,
            waypoint,
            name: name.into(),
        }
    }
}

/// One resource's change.
#[derive(Debug, Clone)]
pub struct Change {
    /// Where it stands.
    pub place: Place,
    /// Its bytes, unless it is gone.
    pub body: Option<Bytes>,
}

/// All resources of one type.
#[derive(Debug, Default)]
pub struct Table {
    live: BTreeMap<Arc<str>, Entry>,
    by_change: BTreeSet<(u64, Arc<str>)>,
    gone: BTreeSet<(u64, Arc<str>)>,
    gone_at: BTreeMap<Arc<str>, u64>,
    weight: usize,
    /// Removals up to this generation may have been forgotten.
    horizon: u64,
}

/// What a client has missed.
#[derive(Debug, Default)]
pub struct Missed<'a> {
    /// New or changed.
    pub updated: Vec<(&'a Arc<str>, &'a Entry)>,
    /// Gone.
    pub removed: Vec<&'a Arc<str>>,
}

/// A client has missed more than is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFarBehind;

impl Table {
    /// The resource of this name.
    pub fn get(&self, name: &str) -> Option<(&Arc<str>, &Entry)> {
        self.live.get_key_value(name)
    }

    /// All resources, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Entry)> {
        self.live.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// About how many bytes of memory it takes to send them all.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// About how many bytes of memory it takes to send what has changed after this
    /// generation.
    pub fn weight_since(&self, generation: u64) -> usize {
        let after = (generation.saturating_add(1), Arc::from(""));
        let names = self.by_change.range(after..).map(|(_, name)| name);
        names
            .filter_map(|name| Some(self.live.get(name)?.weight(name)))
            .sum()
    }

    /// What has changed after this generation.
    ///
    /// # Errors
    /// When removals after it may have been forgotten.
    pub fn since(&self, generation: u64) -> Result<Missed<'_>, TooFarBehind> {
        if generation < self.horizon {
            return Err(TooFarBehind);
        }
        let after = (generation.saturating_add(1), Arc::from(""));
        let updated = self
            .by_change
            .range(after.clone()..)
            .filter_map(|(_, name)| self.live.get_key_value(name))
            .collect();
        let removed = self.gone.range(after..).map(|(_, name)| name).collect();
        Ok(Missed { updated, removed })
    }

    fn apply(&mut self, generation: u64, name: Arc<str>, body: Option<Bytes>) {
        let before = self.live.remove(&name);
        if let Some(before) = &before {
            self.by_change.remove(&(before.changed, name.clone()));
            self.weight -= before.weight(&name);
        }
        if let Some(body) = body {
            if let Some(at) = self.gone_at.remove(&name) {
                self.gone.remove(&(at, name.clone()));
            }
            let entry = Entry {
                version: Version::of(&body),
                body,
                changed: generation,
            };
            self.by_change.insert((generation, name.clone()));
            self.weight += entry.weight(&name);
            self.live.insert(name, entry);
        } else if before.is_some() {
            self.gone_at.insert(name.clone(), generation);
            self.gone.insert((generation, name));
            while self.gone.len() > MAX_TOMBSTONES {
                let Some((at, name)) = self.gone.pop_first() else {
                    break;
                };
                self.gone_at.remove(&name);
                self.horizon = at;
            }
        }
    }
}

/// What is for one waypoint alone, by waypoint.
#[derive(Debug, Default)]
struct Served {
    tables: BTreeMap<NamespacedName, Table>,
    /// Stands for those that have none, and remembers when one was dropped.
    nothing: Table,
}

impl Served {
    fn apply(
        &mut self,
        generation: u64,
        waypoint: NamespacedName,
        name: Arc<str>,
        body: Option<Bytes>,
    ) {
        let horizon = self.nothing.horizon;
        let table = self.tables.entry(waypoint).or_insert_with(|| Table {
            horizon,
            ..Table::default()
        });
        table.apply(generation, name, body);
        if !table.is_empty() {
            return;
        }
        let idle = self.tables.iter().filter(|(_, table)| table.is_empty());
        if idle.clone().count() > MAX_IDLE_WAYPOINTS {
            let longest = idle.min_by_key(|(_, table)| table.gone.last().map(|(at, _)| *at));
            if let Some(waypoint) = longest.map(|(waypoint, _)| waypoint.clone()) {
                self.tables.remove(&waypoint);
                self.nothing.horizon = generation;
            }
        }
    }
}

/// All tables at one generation.
#[derive(Debug, Default)]
pub struct Tables {
    generation: u64,
    addresses: Table,
    authorizations: Table,
    connection_logs: Table,
    waypoints: Served,
    served: Served,
    /// Kept from the first client on that asks by key.
    lookup: Option<Lookup>,
}

impl Tables {
    /// Counts the publications; 0 while nothing is known yet.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Workloads and services by what can be asked for; none before
    /// [`Catalogue::keep_lookup`].
    pub fn lookup(&self) -> Option<&Lookup> {
        self.lookup.as_ref()
    }

    /// The resources of a type that are for everyone.
    pub fn of(&self, of: ResourceType) -> &Table {
        match of {
            ResourceType::Address => &self.addresses,
            ResourceType::Authorization => &self.authorizations,
            ResourceType::Waypoint => &self.waypoints.nothing,
            ResourceType::WaypointService => &self.served.nothing,
            ResourceType::ConnectionLogs => &self.connection_logs,
        }
    }

    /// The resources of a type that a client gets that is an instance of this waypoint.
    pub fn of_waypoint(&self, of: ResourceType, waypoint: &NamespacedName) -> &Table {
        let own = self
            .for_waypoints(of)
            .and_then(|all| all.tables.get(waypoint));
        own.unwrap_or_else(|| self.of(of))
    }

    /// The waypoints that anything of a type is or was for, with that.
    pub fn waypoints(&self, of: ResourceType) -> impl Iterator<Item = (&NamespacedName, &Table)> {
        self.for_waypoints(of)
            .into_iter()
            .flat_map(|all| &all.tables)
    }

    fn for_waypoints(&self, of: ResourceType) -> Option<&Served> {
        match of {
            ResourceType::Address | ResourceType::Authorization | ResourceType::ConnectionLogs => {
                None
            }
            ResourceType::Waypoint => Some(&self.waypoints),
            ResourceType::WaypointService => Some(&self.served),
        }
    }
}

/// The published resources, and the news that there are others.
#[derive(Debug)]
pub struct Catalogue {
    tables: RwLock<Tables>,
    generation: watch::Sender<u64>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self {
            tables: RwLock::default(),
            generation: watch::Sender::new(0),
        }
    }
}

impl Catalogue {
    /// Publishes changes together. The first call, even with none, says that the
    /// state is complete and that clients may be answered.
    pub fn publish(&self, changes: Vec<Change>) {
        let generation = {
            let mut tables = self.tables.write();
            if changes.is_empty() && tables.generation > 0 {
                return;
            }
            tables.generation += 1;
            let generation = tables.generation;
            for Change { place, body } in changes {
                let Place { of, waypoint, name } = place;
                if of == ResourceType::Address
                    && let Some(lookup) = &mut tables.lookup
                {
                    match &body {
                        Some(body) => lookup.insert(&name, body),
                        None => lookup.remove(&name),
                    }
                }
                match (of, waypoint) {
                    (ResourceType::Address, _) => tables.addresses.apply(generation, name, body),
                    (ResourceType::Authorization, _) => {
                        tables.authorizations.apply(generation, name, body);
                    }
                    (ResourceType::ConnectionLogs, _) => {
                        tables.connection_logs.apply(generation, name, body);
                    }
                    (ResourceType::Waypoint, Some(waypoint)) => {
                        tables.waypoints.apply(generation, waypoint, name, body);
                    }
                    (ResourceType::WaypointService, Some(waypoint)) => {
                        tables.served.apply(generation, waypoint, name, body);
                    }
                    // For no waypoint: nobody is to get it.
                    (ResourceType::Waypoint | ResourceType::WaypointService, None) => {}
                }
            }
            generation
        };
        self.generation.send_replace(generation);
    }

    /// Reads the resources; publishing waits meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read()
    }

    /// Has workloads and services found by key from now on.
    pub fn keep_lookup(&self) {
        if self.tables.read().lookup.is_some() {
            return;
        }
        let mut tables = self.tables.write();
        if tables.lookup.is_none() {
            let mut lookup = Lookup::default();
            for (name, entry) in tables.addresses.iter() {
                lookup.insert(name, &entry.body);
            }
            tables.lookup = Some(lookup);
        }
    }

    /// Tells of each generation, and at once of the present one.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, body: Option<&'static str>) -> Change {
        let body = body.map(|text| Bytes::from_static(text.as_bytes()));
        Change {
            place: Place::new(ResourceType::Address, None, name),
            body,
        }
    }

    fn for_waypoint(waypoint: &str, name: &str, body: Option<&'static str>) -> Change {
        let waypoint = NamespacedName::new("x", waypoint);
        Change {
            place: Place::new(ResourceType::WaypointService, Some(waypoint), name),
            ..change(name, body)
        }
    }

    #[test]
    fn what_is_for_one_waypoint_is_in_no_other_table() {
        let catalogue = Catalogue::default();
        catalogue.publish(vec![
            for_waypoint("a", "s", Some("1")),
            for_waypoint("b", "t", Some("1")),
        ]);
        catalogue.publish(vec![for_waypoint("a", "s", None)]);
        let tables = catalogue.read();
        let of = |waypoint: &str| {
            let waypoint = NamespacedName::new("x", waypoint);
            let table = tables.of_waypoint(ResourceType::WaypointService, &waypoint);
            let missed = table.since(1).expect("remembered");
            (table.len(), missed.removed.len())
        };
        assert_eq!(of("a"), (0, 1));
        assert_eq!(of("b"), (1, 0));
        assert_eq!(of("c"), (0, 0));
        assert!(tables.of(ResourceType::WaypointService).is_empty());
    }

    #[test]
    fn waypoints_that_serve_nothing_are_forgotten_in_time_and_their_clients_told() {
        let catalogue = Catalogue::default();
        let named = |n: usize| format!("w{n}");
        for n in 0..=MAX_IDLE_WAYPOINTS {
            catalogue.publish(vec![for_waypoint(&named(n), "s", Some("1"))]);
            catalogue.publish(vec![for_waypoint(&named(n), "s", None)]);
        }
        let tables = catalogue.read();
        let of = ResourceType::WaypointService;
        assert_eq!(tables.waypoints(of).count(), MAX_IDLE_WAYPOINTS);
        let since = |n: usize| {
            let table = tables.of_waypoint(of, &NamespacedName::new("x", named(n)));
            table.since(1).err()
        };
        assert_eq!(since(0), Some(TooFarBehind));
        assert_eq!(since(1), None);
    }

    fn names(catalogue: &Catalogue, since: u64) -> (Vec<String>, Vec<String>) {
        let tables = catalogue.read();
        let missed = tables
            .of(ResourceType::Address)
            .since(since)
            .expect("remembered");
        (
            missed
                .updated
                .iter()
                .map(|(name, _)| name.to_string())
                .collect(),
            missed.removed.iter().map(|name| name.to_string()).collect(),
        )
    }

    #[test]
    fn a_client_misses_each_name_once_however_often_it_changed() {
        let catalogue = Catalogue::default();
        catalogue.publish(vec![change("a", Some("1")), change("b", Some("1"))]);
        catalogue.publish(vec![change("a", Some("2"))]);
        catalogue.publish(vec![change("a", Some("3")), change("b", None)]);
        assert_eq!(names(&catalogue, 1), (vec!["a".into()], vec!["b".into()]));
        assert_eq!(names(&catalogue, 3), (vec![], vec![]));
    }

    #[test]
    fn what_comes_back_is_no_longer_gone() {
        let catalogue = Catalogue::default();
        catalogue.publish(vec![change("a", Some("1"))]);
        catalogue.publish(vec![change("a", None)]);
        catalogue.publish(vec![change("a", Some("1"))]);
        assert_eq!(names(&catalogue, 1), (vec!["a".into()], vec![]));
    }

    #[test]
    fn a_client_that_missed_forgotten_removals_is_told_so() {
        let catalogue = Catalogue::default();
        let all = |body: Option<&'static str>| {
            (0..MAX_TOMBSTONES + 1)
                .map(|i| change(&i.to_string(), body))
                .collect::<Vec<_>>()
        };
        catalogue.publish(all(Some("1")));
        catalogue.publish(all(None));
        let tables = catalogue.read();
        let table = tables.of(ResourceType::Address);
        assert_eq!(table.since(1).err(), Some(TooFarBehind));
        assert!(table.since(2).is_ok());
    }

    #[test]
    fn the_first_publication_counts_even_if_it_is_empty() {
        let catalogue = Catalogue::default();
        catalogue.publish(vec![]);
        catalogue.publish(vec![]);
        assert_eq!(catalogue.read().generation(), 1);
    }

    #[test]
    fn a_version_is_the_hash_of_the_bytes_in_lowercase_hex_without_padding() {
        assert_eq!(Version::of(b"").to_string(), "ef46db3751d8e999");
    }
}
