// SPDX-License-Identifier: Apache-2.0
//! What is known of Gateways and of what was made for them, and what is to be done about it: pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cluster::{Batch, Event, Kind, Object, ObjectKey, k8s_openapi::jiff::Timestamp, kinds};
use serde_json::{Map, Value, json};

use super::{
    overlay::Overlay,
    plan::{self, Names, Settings},
    status::{self, Found, Standing},
};
use crate::{facts::annotation, wellknown};

/// Gateways of this class are waypoints.
pub(super) const CLASS: &str = "istio-waypoint";
/// What our way to make waypoints is counted as among Istio's: Gateways that ask for a later one are not ours.
const VERSION: u32 = 5;
/// What says nothing of a revision is for the control plane that answers to this one.
const DEFAULT_REVISION: &str = "default";

/// What is to be done about one object.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    /// Have it say this.
    Make { object: ObjectKey, body: Value },
    /// Have its status say this.
    Say { object: ObjectKey, body: Value },
    /// Have it gone, if it is the one with this uid: nobody asks for it any more.
    Remove { object: ObjectKey, uid: String },
}

impl Task {
    pub(super) fn object(&self) -> &ObjectKey {
        match self {
            Self::Make { object, .. } | Self::Say { object, .. } | Self::Remove { object, .. } => {
                object
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    settings: Settings,
    network: String,
    /// The revision that a namespace is for, where it says so.
    revisions: BTreeMap<String, String>,
    gateways: BTreeMap<ObjectKey, Arc<kinds::Gateway>>,
    classes: BTreeMap<ObjectKey, Arc<kinds::GatewayClass>>,
    /// Whether somebody has just taken our class away.
    class_is_gone: bool,
    /// What holds for all Gateways of our class, in ConfigMaps of which the oldest counts.
    defaults: BTreeMap<ObjectKey, Arc<kinds::ConfigMap>>,
    /// What bears our mark.
    made: BTreeMap<ObjectKey, Value>,
    /// What was looked up: an object that a Gateway names, or one that is in the way of ours. None: there is no such.
    known: BTreeMap<ObjectKey, Option<Value>>,
}

/// What a Gateway asks for.
enum Wish {
    /// All that a waypoint needs.
    Managed,
    /// Nothing: somebody else runs this Service for it.
    Manual(ObjectKey),
    /// What can't be had, by Gateway API's word for it.
    Refused { reason: &'static str, words: String },
}

impl State {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            network: String::new(),
            revisions: BTreeMap::new(),
            gateways: BTreeMap::new(),
            classes: BTreeMap::new(),
            class_is_gone: false,
            defaults: BTreeMap::new(),
            made: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    pub(super) fn take(&mut self, batch: Batch) {
        batch.events.into_iter().for_each(|event| self.hear(event));
        // What no Gateway asks about any more.
        let wanted: BTreeSet<ObjectKey> =
            self.ours().flat_map(|(_, one)| self.named(one)).collect();
        self.known.retain(|key, _| wanted.contains(key));
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Applied(object) => self.put(object),
            Event::Deleted(key) => {
                self.gateways.remove(&key);
                self.class_is_gone |= self.classes.remove(&key).is_some() && key.name == CLASS;
                self.defaults.remove(&key);
                self.made.remove(&key);
                if key.kind == Kind::Namespace {
                    self.revisions.remove(&key.name);
                }
            }
        }
    }

    fn put(&mut self, object: Object) {
        let key = object.key();
        match object {
            Object::Namespace(namespace) => {
                let labels = namespace.metadata.labels.as_ref();
                let label = |key| labels.and_then(|labels| labels.get(key)).cloned();
                if key.name == self.settings.root_namespace {
                    self.network = label(wellknown::NETWORK).unwrap_or_default();
                }
                match label(wellknown::REVISION) {
                    Some(revision) => self.revisions.insert(key.name, revision),
                    None => self.revisions.remove(&key.name),
                };
            }
            Object::Gateway(gateway) => {
                self.gateways.insert(key, gateway);
            }
            Object::GatewayClass(class) => {
                self.classes.insert(key, class);
            }
            Object::ConfigMap(config) => {
                self.defaults.insert(key, config);
            }
            other => {
                let json = serde_json::from_slice(&other.to_json()).unwrap_or_default();
                self.made.insert(key, json);
            }
        }
    }

    /// The Gateways that are waypoints of ours.
    fn ours(&self) -> impl Iterator<Item = (&ObjectKey, &kinds::Gateway)> {
        let gateways = self.gateways.iter().map(|(key, one)| (key, &**one));
        gateways.filter(|(_, one)| self.is_ours(one))
    }

    /// What is to be looked up because it is not followed: all of that where it is due, else only what is not known.
    pub(super) fn lookups(&self, due: bool) -> Vec<ObjectKey> {
        let named = self.ours().flat_map(|(_, gateway)| self.named(gateway));
        let named: BTreeSet<ObjectKey> = named.collect();
        let unknown = |key: &ObjectKey| due || !self.known.contains_key(key);
        named.into_iter().filter(unknown).collect()
    }

    pub(super) fn learn(&mut self, object: ObjectKey, found: Option<Value>) {
        self.known.insert(object, found);
    }

    /// What an object has become by a task: nobody has to wait until it is heard from the server.
    pub(super) fn done(&mut self, task: Task, now: Value) {
        match task {
            Task::Make { object, .. } if object.kind != Kind::GatewayClass => {
                self.made.insert(object, now);
            }
            Task::Remove { object, .. } => {
                self.made.remove(&object);
                self.known.insert(object, None);
            }
            Task::Say { object, .. } if object.kind == Kind::Gateway => {
                if let Ok(gateway) = serde_json::from_value(now) {
                    self.gateways.insert(object, Arc::new(gateway));
                }
            }
            Task::Say { object, .. } | Task::Make { object, .. } => {
                if let Ok(class) = serde_json::from_value(now) {
                    self.classes.insert(object, Arc::new(class));
                }
            }
        }
    }

    /// What has to be known before anything is made for a Gateway.
    fn named(&self, gateway: &kinds::Gateway) -> Vec<ObjectKey> {
        match wish(gateway, &self.settings.cluster_domain) {
            Wish::Refused { .. } => Vec::new(),
            Wish::Manual(service) => vec![service],
            Wish::Managed => {
                // Somebody else's of that name is left alone, so it has to be known whose it is.
                let names = Names::of(gateway);
                let overlay = self.overlay(gateway).and_then(Result::ok);
                let overlay = overlay.unwrap_or_default();
                let own = ALWAYS.into_iter().chain(plan::asked_for(&overlay));
                let own = own.map(|kind| names.of_kind(kind));
                let missing = own.filter(|key| !self.made.contains_key(key));
                missing.chain(parameters(gateway).ok().flatten()).collect()
            }
        }
    }

    /// What is to be done, in this order. Where it is `time_to_look` the class is made if there is none, since only the
    /// server can say whether it knows classes.
    pub(super) fn due(&mut self, now: Timestamp, time_to_look: bool) -> Vec<Task> {
        let mut tasks = Vec::new();
        let look = std::mem::take(&mut self.class_is_gone) || time_to_look;
        let class = ObjectKey::cluster_wide(Kind::GatewayClass, CLASS);
        if look && !self.classes.contains_key(&class) {
            tasks.push(plan::class(class));
        }
        for (key, class) in &self.classes {
            if class.spec.controller_name == wellknown::MESH_CONTROLLER {
                tasks.extend(status::of_class(key, class, now));
            }
        }
        for (key, gateway) in self.ours() {
            let standing = self.standing(gateway, &mut tasks);
            tasks.extend(self.surplus(gateway));
            if let Some(standing) = standing {
                let domain = &self.settings.cluster_domain;
                tasks.extend(status::of_gateway(key, gateway, &standing, domain, now));
            }
        }
        tasks
    }

    /// How a Gateway stands, noting what is to be made for it. None where that can't be told yet.
    fn standing<'a>(
        &'a self,
        gateway: &kinds::Gateway,
        tasks: &mut Vec<Task>,
    ) -> Option<Standing<'a>> {
        match wish(gateway, &self.settings.cluster_domain) {
            Wish::Refused { reason, words } => Some(Standing::Refused { reason, words }),
            Wish::Manual(service) => Some(Standing::Found(Found {
                service: self.known.get(&service)?.as_ref(),
                deployment: None,
                name: service.name,
                namespace: service.namespace.unwrap_or_default(),
            })),
            Wish::Managed => {
                let overlay = match self.overlay(gateway)? {
                    Ok(overlay) => overlay,
                    Err(words) => {
                        let reason = "InvalidParameters";
                        return Some(Standing::Refused { reason, words });
                    }
                };
                let made = plan::objects(gateway, &self.settings, &self.network, &overlay);
                let made = match made {
                    Ok(made) => made,
                    Err(words) => {
                        let reason = "InvalidParameters";
                        return Some(Standing::Refused { reason, words });
                    }
                };
                for (object, body) in made {
                    match (self.made.get(&object), self.known.get(&object)) {
                        (Some(actual), _) if holds(&body, actual) => {}
                        (Some(_), _) | (None, Some(None)) => {
                            tasks.push(Task::Make { object, body })
                        }
                        (None, Some(Some(found))) if is_ours_to_make(found, gateway) => {
                            tasks.push(Task::Make { object, body });
                        }
                        (None, Some(Some(_))) => return Some(Standing::InTheWay(object)),
                        (None, None) => return None,
                    }
                }
                let names = Names::of(gateway);
                let service = names.of_kind(Kind::Service);
                Some(Standing::Found(Found {
                    service: self.made.get(&service),
                    deployment: Some(self.made.get(&names.of_kind(Kind::Deployment))),
                    name: service.name,
                    namespace: service.namespace.unwrap_or_default(),
                }))
            }
        }
    }

    /// What was made for a Gateway that its overlay does not ask for any more. While the overlay can't be read, nothing is.
    fn surplus(&self, gateway: &kinds::Gateway) -> Vec<Task> {
        let Some(Ok(overlay)) = self.overlay(gateway) else {
            return Vec::new();
        };
        if !matches!(wish(gateway, &self.settings.cluster_domain), Wish::Managed) {
            return Vec::new();
        }
        let names = Names::of(gateway);
        let unasked = plan::OPTIONAL.into_iter();
        let unasked = unasked.filter(|kind| overlay.of(*kind).is_empty());
        let remove = |kind| {
            let object = names.of_kind(kind);
            let made = self.made.get(&object)?;
            is_owned(made, gateway).then(|| Task::Remove {
                uid: made["metadata"]["uid"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                object,
            })
        };
        unasked.filter_map(remove).collect()
    }

    /// What its class and the Gateway itself add to its objects. None where that can't be told yet.
    fn overlay(&self, gateway: &kinds::Gateway) -> Option<Result<Overlay, String>> {
        let at = "spec.infrastructure.parametersRef";
        let own = match parameters(gateway) {
            Err(words) => Err(format!("{at}: {words}")),
            Ok(None) => Ok(Overlay::default()),
            Ok(Some(config)) => match self.known.get(&config)? {
                None => Err(format!("{at}: there is no {config}")),
                Some(found) => {
                    let nothing = Map::new();
                    let data = found["data"].as_object().unwrap_or(&nothing);
                    Overlay::read(data).map_err(|why| format!("{config}: {why}"))
                }
            },
        };
        let of_class = self.class_overlay();
        Some(of_class.and_then(|of_class| Ok(of_class.then(own?))))
    }

    fn class_overlay(&self) -> Result<Overlay, String> {
        let age = |(key, config): &(&ObjectKey, &Arc<kinds::ConfigMap>)| {
            let made = config.metadata.creation_timestamp.as_ref();
            (made.map(|made| made.0), (*key).clone())
        };
        let Some((key, config)) = self.defaults.iter().min_by_key(age) else {
            return Ok(Overlay::default());
        };
        let data = config.data.iter().flatten();
        let data = data.map(|(name, text)| (name.clone(), json!(text)));
        Overlay::read(&data.collect()).map_err(|why| format!("{key}: {why}"))
    }

    fn is_ours(&self, gateway: &kinds::Gateway) -> bool {
        let meta = &gateway.metadata;
        let labels = meta.labels.as_ref();
        let said = labels.and_then(|labels| labels.get(wellknown::REVISION));
        let of_namespace = || {
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            self.revisions.get(namespace)
        };
        let revision = said.or_else(of_namespace).map(String::as_str);
        let revision = revision.filter(|revision| !revision.is_empty());
        let revision = revision.unwrap_or(DEFAULT_REVISION);
        let version = annotation(meta, wellknown::CONTROLLER_VERSION);
        let ours = |text: &str| text.parse::<u32>().is_ok_and(|version| version <= VERSION);
        gateway.spec.gateway_class_name == CLASS
            && meta.deletion_timestamp.is_none()
            && self.settings.revisions.iter().any(|own| own == revision)
            && version.is_none_or(ours)
    }
}

/// What every Gateway has.
const ALWAYS: [Kind; 3] = [Kind::ServiceAccount, Kind::Deployment, Kind::Service];

fn wish(gateway: &kinds::Gateway, domain: &str) -> Wish {
    let refused = |words: &str| Wish::Refused {
        reason: "UnsupportedAddress",
        words: format!("spec.addresses: {words}"),
    };
    match &gateway.spec.addresses[..] {
        [] => Wish::Managed,
        [one] if one.address_type.as_deref() == Some("Hostname") => {
            let own = gateway.metadata.namespace.as_deref().unwrap_or_default();
            let host = one
                .value
                .strip_suffix(domain)
                .and_then(|rest| rest.strip_suffix(".svc."));
            let host = host.unwrap_or(&one.value);
            let (name, namespace) = host.split_once('.').unwrap_or((host, own));
            if [name, namespace].iter().any(|part| !is_label(part)) {
                return refused("names no Service of this cluster");
            }
            Wish::Manual(ObjectKey::namespaced(Kind::Service, namespace, name))
        }
        [_] => refused("only a Hostname can be asked for: that of a Service that is there"),
        _ => refused("only one address can be asked for"),
    }
}

/// A name as Services and namespaces have it, so that nothing else gets into a path.
fn is_label(text: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len()) && text.chars().all(good)
}

/// The ConfigMap with the overlay.
fn parameters(gateway: &kinds::Gateway) -> Result<Option<ObjectKey>, String> {
    let wanted = gateway.spec.infrastructure.as_ref();
    let Some(wanted) = wanted.and_then(|infrastructure| infrastructure.parameters_ref.as_ref())
    else {
        return Ok(None);
    };
    if !wanted.group.is_empty() || wanted.kind != "ConfigMap" {
        return Err(format!(
            "{} of group {:?} is no ConfigMap",
            wanted.kind, wanted.group
        ));
    }
    if !wanted.name.split('.').all(is_label) {
        return Err(format!("{:?} is no name of a ConfigMap", wanted.name));
    }
    let namespace = gateway.metadata.namespace.as_deref().unwrap_or_default();
    Ok(Some(ObjectKey::namespaced(
        Kind::ConfigMap,
        namespace,
        wanted.name.as_str(),
    )))
}

/// Whether an object bears our mark, or is the Gateway's own though somebody took the mark away.
fn is_ours_to_make(object: &Value, gateway: &kinds::Gateway) -> bool {
    object["metadata"]["labels"][plan::MANAGED.0] == plan::MANAGED.1 || is_owned(object, gateway)
}

fn is_owned(object: &Value, gateway: &kinds::Gateway) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let uid = json!(gateway.metadata.uid);
    owners
        .into_iter()
        .flatten()
        .any(|owner| owner["uid"] == uid)
}

/// Whether an object says all of this, whatever else it says.
fn holds(wanted: &Value, actual: &Value) -> bool {
    match (wanted, actual) {
        (Value::Object(wanted), _) => wanted.iter().all(|(name, field)| {
            // Of which version and kind it is, is known from where it was found.
            matches!(name.as_str(), "apiVersion" | "kind") && actual.get(name).is_none()
                || actual
                    .get(name)
                    .map_or(is_nothing(field), |actual| holds(field, actual))
        }),
        (Value::Array(wanted), Value::Array(actual)) => wanted
            .iter()
            .all(|item| actual.iter().any(|actual| holds(item, actual))),
        _ => wanted == actual,
    }
}

/// Which servers leave out, since it says nothing.
fn is_nothing(value: &Value) -> bool {
    *value == json!({})
        || *value == json!([])
        || *value == json!("")
        || value.is_null()
        || *value == json!(false)
}

#[cfg(test)]
mod tests;
