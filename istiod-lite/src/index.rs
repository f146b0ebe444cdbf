// SPDX-License-Identifier: Apache-2.0
//! Cluster events in, changed resources out; pure and incremental.
//!
//! ```text
//!  event ─► fold: facts + which subjects that touches ─► derive each once ─► compare ─► changes
//! ```
//!
//! A *subject* is an object that resources are made of: a pod, a service, a slice,
//! a policy. Folding an event marks the subjects that depend on it (by selectors,
//! by node, by the Gateways they look at); deriving a subject is a function of the
//! facts alone, so that the outcome is that of building all from scratch, which a
//! property test checks. What does not change in content is no change.

mod allocate;
mod derive;
mod fold;
mod hosts;
mod networks;
mod selection;
mod sharing;
mod told;
mod tried;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use bytes::Bytes;
use cluster::{Event, Kind, ObjectKey, kinds::ServiceEntryAddress};

use crate::{
    authenticate::{PodFacts, PodLife, PodLookup},
    catalogue::{Change, Place, ResourceType, Version},
    facts::{NamespacedName, Problem, pod::Life},
    status::{Condition, routes::ParentStatus},
    translate::{Mesh, authentication::KeySource, route::RouteId},
    wellknown,
    xds_server::node::Instances,
};
use allocate::Allocator;
use sharing::Sharing;
use told::Told;
pub use world::Standing;
use world::World;

/// What resources are made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Subject {
    Pod(NamespacedName),
    Slice(NamespacedName),
    Service(NamespacedName),
    /// A ServiceEntry's hosts and the endpoints that are written into it.
    Entry(NamespacedName),
    WorkloadEntry(NamespacedName),
    /// The gateways that lead into a network.
    Network(Arc<str>),
    Policy(NamespacedName),
    /// A Gateway, as what it comes to for its instances.
    Waypoint(NamespacedName),
    /// What the author of a route is told; what it does is its services'.
    Route(RouteId),
    /// The same of a DestinationRule.
    Rule(NamespacedName),
    /// And of a WasmPlugin.
    Plugin(NamespacedName),
    /// And of a BackendTLSPolicy.
    TlsPolicy(NamespacedName),
    /// And of a Telemetry.
    Telemetry(NamespacedName),
    /// And of a RequestAuthentication.
    Authentication(NamespacedName),
    /// What is told of the connections of a namespace.
    ConnectionLogs(Arc<str>),
    PeerAuthentication(NamespacedName),
    /// The policy that denies all plaintext: there is one, once anyone asks for it.
    StaticStrict,
    /// The policy that denies all that did not come through one of these waypoints, while pods ask for it. Last in order:
    /// deriving pods finds out.
    OnlyThrough(Arc<[NamespacedName]>),
}

/// What one subject comes to.
#[derive(Debug, Default)]
struct Derived {
    resources: Vec<(ResourceType, String, Bytes)>,
    /// Resources for one waypoint alone.
    served: Vec<(ResourceType, NamespacedName, String, Bytes)>,
    /// What its author is told.
    conditions: Vec<Condition>,
    /// What the author of a route is told, for each of its services.
    parents: Vec<ParentStatus>,
    /// What is wrong with it only in view of others.
    problems: Vec<Problem>,
    /// The Gateways that it looked at, whether they exist or not.
    gateways: Vec<NamespacedName>,
    /// The waypoints that alone may send to it, where that is so.
    only_through: Option<Arc<[NamespacedName]>>,
}

/// What an application of events has changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// Resources, each once.
    pub resources: Vec<Change>,
    /// Objects whose conditions may have to be written.
    pub conditions: BTreeSet<ObjectKey>,
}

impl Changes {
    /// These and then others, of which the later ones of a resource count.
    pub fn followed_by(mut self, later: Self) -> Self {
        let places: BTreeSet<_> = later.resources.iter().map(|one| &one.place).collect();
        self.resources.retain(|one| !places.contains(&one.place));
        drop(places);
        self.resources.extend(later.resources);
        self.conditions.extend(later.conditions);
        self
    }
}

/// What the control plane knows of the cluster.
#[derive(Debug)]
pub struct Index {
    mesh: Mesh,
    /// Those that objects of Istio's kinds may be for; empty where they may be for any.
    revisions: Vec<String>,
    world: World,
    sharing: Sharing,
    dirty: BTreeSet<Subject>,
    resources: HashMap<Subject, Vec<(Place, Version)>>,
    /// Which subjects looked at a Gateway, and the other way round.
    users: HashMap<NamespacedName, BTreeSet<Subject>>,
    looked_at: HashMap<Subject, Vec<NamespacedName>>,
    /// What each pod asks for as to who may send to it, and how many ask for the same.
    only_through: HashMap<Subject, Arc<[NamespacedName]>>,
    only_through_demanded: HashMap<Arc<[NamespacedName]>, usize>,
    conditions: BTreeMap<ObjectKey, Vec<Condition>>,
    parents: BTreeMap<ObjectKey, Vec<ParentStatus>>,
    /// What each object says wrongly by itself, and in view of others.
    problems: BTreeMap<ObjectKey, Vec<Problem>>,
    conflicts: BTreeMap<ObjectKey, Vec<Problem>>,
    /// Gives addresses to hosts of ServiceEntries, where that is wanted.
    allocator: Option<Allocator>,
    unallocated: BTreeSet<NamespacedName>,
    allocations: BTreeMap<ObjectKey, Vec<ServiceEntryAddress>>,
    exhaustions: BTreeMap<ObjectKey, Vec<Problem>>,
}

impl Index {
    /// An index of nothing.
    pub fn new(mesh: Mesh) -> Self {
        Self {
            allocator: mesh.auto_allocate.map(Allocator::new),
            mesh,
            revisions: Vec::new(),
            world: World::default(),
            sharing: Sharing::default(),
            dirty: BTreeSet::new(),
            resources: HashMap::new(),
            users: HashMap::new(),
            looked_at: HashMap::new(),
            only_through: HashMap::new(),
            only_through_demanded: HashMap::new(),
            conditions: BTreeMap::new(),
            parents: BTreeMap::new(),
            problems: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            unallocated: BTreeSet::new(),
            allocations: BTreeMap::new(),
            exhaustions: BTreeMap::new(),
        }
    }

    /// The same, of a control plane that answers to these revisions: an object of Istio's kinds that is for another one
    /// (label `istio.io/rev`) is as if it were not there. What names none is for all.
    #[must_use]
    pub fn answering_to(self, revisions: Vec<String>) -> Self {
        Self { revisions, ..self }
    }

    /// Takes in events, and says what they have changed.
    pub fn apply(&mut self, events: impl IntoIterator<Item = Event>) -> Changes {
        let mut changes = Changes::default();
        for event in events {
            if let Some(object) = self.fold(event) {
                changes.conditions.insert(object);
            }
        }
        self.derive_all(changes)
    }

    /// Takes in a set of keys as it was fetched, or why there is none.
    pub fn set_keys(&mut self, source: KeySource, keys: Result<String, String>) -> Changes {
        self.fold_keys(source, keys);
        self.derive_all(Changes::default())
    }

    /// Takes in the certificates that a ConfigMap holds, or why there are none; nothing where there is no such ConfigMap.
    pub fn set_bundle(
        &mut self,
        name: &NamespacedName,
        bundle: Option<Result<String, String>>,
    ) -> Changes {
        self.fold_bundle(name, bundle);
        self.derive_all(Changes::default())
    }

    fn derive_all(&mut self, mut changes: Changes) -> Changes {
        changes.conditions.extend(self.allocate());
        let mut told = Told::default();
        while let Some(subject) = self.dirty.pop_first() {
            let derived = self.derive(&subject);
            self.remember_gateways(&subject, derived.gateways);
            self.demand(&subject, derived.only_through);
            if let Some(object) = subject.object() {
                put(&mut self.conflicts, &object, derived.problems);
                if put(&mut self.conditions, &object, derived.conditions)
                    | put(&mut self.parents, &object, derived.parents)
                {
                    changes.conditions.insert(object);
                }
            }
            let for_all = derived.resources.into_iter();
            let for_all = for_all.map(|(of, name, body)| (Place::new(of, None, name), body));
            let for_one = derived.served.into_iter();
            let for_one = for_one
                .map(|(of, waypoint, name, body)| (Place::new(of, Some(waypoint), name), body));
            self.compare(subject, for_all.chain(for_one), &mut told);
        }
        changes.resources = told.changes();
        changes
    }

    /// Gives addresses to the ServiceEntries that have changed. Returns those to whose
    /// status they are to be written.
    fn allocate(&mut self) -> Vec<ObjectKey> {
        let mut changed = Vec::new();
        let Some(allocator) = &mut self.allocator else {
            return changed;
        };
        for name in mem::take(&mut self.unallocated) {
            let here = self.world.namespaces.get(&name.namespace);
            let entry = here.and_then(|here| here.entries.get(&name.name));
            let object = Subject::Entry(name.clone()).object();
            let Some(object) = object else { continue };
            let Some(entry) = entry else {
                allocator.forget(&name);
                self.allocations.remove(&object);
                self.exhaustions.remove(&object);
                continue;
            };
            let allocated = allocator.allocate(&name, entry);
            let exhausted = allocated.exhausted.iter().map(|(host, range)| {
                Problem::new(
                    "status.addresses",
                    format!("{range} has no address left for {host}"),
                )
            });
            put(&mut self.exhaustions, &object, exhausted.collect());
            let addresses = allocated
                .addresses
                .iter()
                .map(|(host, ip)| ServiceEntryAddress {
                    value: ip.to_string(),
                    host: host.to_string(),
                });
            let addresses: Vec<_> = addresses.collect();
            if self.allocations.get(&object) != Some(&addresses) {
                self.allocations.insert(object.clone(), addresses);
                changed.push(object);
            }
        }
        changed
    }

    /// Tells what is different from before.
    fn compare(
        &mut self,
        subject: Subject,
        derived: impl Iterator<Item = (Place, Bytes)>,
        told: &mut Told,
    ) {
        let mut before = self.resources.remove(&subject).unwrap_or_default();
        let mut now = Vec::with_capacity(derived.size_hint().0);
        for (place, body) in derived {
            let version = Version::of(&body);
            let known = before.iter().position(|(known, _)| *known == place);
            let known = known.map(|position| before.swap_remove(position));
            // The name that is known is shared with the catalogue.
            let (place, before) = match known {
                Some((known, version)) => (known, Some(version)),
                None => (place, None),
            };
            if before != Some(version) {
                told.update(place.clone(), body);
            }
            now.push((place, version));
        }
        for (place, version) in before {
            told.removal(place, version);
        }
        if !now.is_empty() {
            self.resources.insert(subject, now);
        }
    }

    fn remember_gateways(&mut self, subject: &Subject, now: Vec<NamespacedName>) {
        let before = self.looked_at.remove(subject).unwrap_or_default();
        for gateway in before.iter().filter(|gateway| !now.contains(gateway)) {
            if let Some(users) = self.users.get_mut(gateway) {
                users.remove(subject);
                if users.is_empty() {
                    self.users.remove(gateway);
                }
            }
        }
        for gateway in now.iter().filter(|gateway| !before.contains(gateway)) {
            self.users
                .entry(gateway.clone())
                .or_default()
                .insert(subject.clone());
        }
        if !now.is_empty() {
            self.looked_at.insert(subject.clone(), now);
        }
    }

    /// Notes which waypoints a pod takes connections from alone. The policy of those that the first pod asks for, or the
    /// last no longer does, is to be derived.
    fn demand(&mut self, subject: &Subject, now: Option<Arc<[NamespacedName]>>) {
        if self.only_through.get(subject) == now.as_ref() {
            return;
        }
        let before = match &now {
            Some(waypoints) => self.only_through.insert(subject.clone(), waypoints.clone()),
            None => self.only_through.remove(subject),
        };
        if let Some(waypoints) = now {
            let asking = self
                .only_through_demanded
                .entry(waypoints.clone())
                .or_default();
            *asking += 1;
            if *asking == 1 {
                self.dirty.insert(Subject::OnlyThrough(waypoints));
            }
        }
        if let Some(waypoints) = before
            && let Some(asking) = self.only_through_demanded.get_mut(&waypoints)
        {
            *asking -= 1;
            if *asking == 0 {
                self.only_through_demanded.remove(&waypoints);
                self.dirty.insert(Subject::OnlyThrough(waypoints));
            }
        }
    }

    /// What an object's author is to be told.
    pub fn conditions(&self, object: &ObjectKey) -> &[Condition] {
        self.conditions.get(object).map_or(&[], Vec::as_slice)
    }

    /// What the author of a route is to be told, for each of its services.
    pub fn parents(&self, object: &ObjectKey) -> &[ParentStatus] {
        self.parents.get(object).map_or(&[], Vec::as_slice)
    }

    /// The addresses that the hosts of a ServiceEntry are to have; none where they
    /// aren't ours to give.
    pub fn allocation(&self, object: &ObjectKey) -> Option<&[ServiceEntryAddress]> {
        self.allocations.get(object).map(Vec::as_slice)
    }

    /// Which object of a kind that gets conditions this is now: its uid, and the
    /// conditions of ours that it carries.
    pub fn standing(&self, object: &ObjectKey) -> Option<&Standing> {
        self.world.standings.get(object)
    }

    /// What could not be used as it was written.
    pub fn problems(&self) -> impl Iterator<Item = (&ObjectKey, &Problem)> {
        [&self.problems, &self.conflicts, &self.exhaustions]
            .into_iter()
            .flatten()
            .flat_map(|(object, all)| all.iter().map(move |one| (object, one)))
    }
}

impl Instances for Index {
    fn gateway_of(&self, namespace: &str, name: &str, uid: &str) -> Option<Option<&str>> {
        let pod = self.world.namespaces.get(namespace)?.pods.get(name)?;
        let live = pod.uid == uid && pod.life == Life::Live;
        live.then(|| pod.labels.get(wellknown::GATEWAY_NAME).map(String::as_str))
    }
}

impl PodLookup for Index {
    fn pod(&self, namespace: &str, name: &str) -> Option<PodFacts> {
        let pod = self.world.namespaces.get(namespace)?.pods.get(name)?;
        Some(PodFacts {
            uid: pod.uid.clone(),
            service_account: pod.service_account.to_string(),
            node: (!pod.node.is_empty()).then(|| pod.node.to_string()),
            life: match pod.life {
                Life::Live => PodLife::Live,
                Life::Ended => PodLife::Ended,
            },
        })
    }

    fn has_live_pod(&self, node: &str, namespace: &str, service_account: &str) -> bool {
        let on_node = self.world.pods_by_node.get(node).into_iter().flatten();
        on_node
            .filter(|pod| *pod.namespace == *namespace)
            .any(|name| {
                let here = self.world.namespaces.get(&name.namespace);
                here.and_then(|here| here.pods.get(&name.name))
                    .is_some_and(|pod| {
                        pod.life == Life::Live && *pod.service_account == *service_account
                    })
            })
    }
}

impl Subject {
    /// The object that conditions of this subject are written to.
    fn object(&self) -> Option<ObjectKey> {
        let (kind, name) = match self {
            Self::Service(name) => (Kind::Service, name),
            Self::Entry(name) => (Kind::ServiceEntry, name),
            Self::WorkloadEntry(name) => (Kind::WorkloadEntry, name),
            Self::Policy(name) => (Kind::AuthorizationPolicy, name),
            Self::Route(id) => (id.kind, &id.name),
            Self::Rule(name) => (Kind::DestinationRule, name),
            Self::Plugin(name) => (Kind::WasmPlugin, name),
            Self::Telemetry(name) => (Kind::Telemetry, name),
            Self::TlsPolicy(name) => (Kind::BackendTLSPolicy, name),
            Self::Authentication(name) => (Kind::RequestAuthentication, name),
            Self::Pod(_)
            | Self::Slice(_)
            | Self::Network(_)
            | Self::Waypoint(_)
            | Self::ConnectionLogs(_)
            | Self::PeerAuthentication(_)
            | Self::StaticStrict
            | Self::OnlyThrough(_) => return None,
        };
        Some(ObjectKey::namespaced(kind, &*name.namespace, &*name.name))
    }
}

/// Puts what is known of an object in place of what was, and says whether that differs.
fn put<T: PartialEq>(
    of: &mut BTreeMap<ObjectKey, Vec<T>>,
    object: &ObjectKey,
    now: Vec<T>,
) -> bool {
    if now.is_empty() {
        return of.remove(object).is_some();
    }
    match of.get_mut(object) {
        Some(before) if *before == now => false,
        Some(before) => {
            *before = now;
            true
        }
        None => {
            of.insert(object.clone(), now);
            true
        }
    }
}
