// SPDX-License-Identifier: Apache-2.0
//! What writers say about an object, and how that is laid over its manifest. Pure.
//!
//! ```text
//! .status/<Kind>/<namespace or _>/<name>/<manager>.json
//! {"uid": "…", "metadata": {"annotations": {"k": "v"}}, "status": {"podIP": "…", "conditions": […]}}
//! ```
//!
//! Annotations are merged by key, the status by its top-level keys, its `conditions` by `type`, and the `parents` of a
//! route by `controllerName`. What a writer says takes precedence over the manifest. Two writers of one field are a problem; the first by name is then believed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::decode::{DecodeError, decode};
use crate::object::{Kind, Object, ObjectKey, Resource, Scope, with_object, with_type};
use crate::parse::{check_label, check_subdomain};
use crate::tree::{self, Node};

/// The directory, beside the manifests, that holds what writers say.
pub(crate) const STATUS_DIRECTORY: &str = ".status";

/// Stands for the namespace of objects that have none.
const NO_NAMESPACE: &str = "_";

/// The lists in which controllers speak, each for itself.
const OF_CONTROLLERS: [&str; 2] = ["parents", "ancestors"];

/// What one writer has to say about one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partial {
    pub annotations: BTreeMap<String, String>,
    /// Merged by top-level key, except that `conditions` are merged by their `type`, `parents` and `ancestors` by
    /// their `controllerName`.
    pub status: Map<String, Value>,
    /// What others say in the same list, `parents` of a route, `ancestors` of a policy, and else `conditions`, as it was read. Files are merged; an
    /// API server may take the list as a whole.
    pub others: Vec<Value>,
    /// The version of the object in which `others` stood: at an API server nothing is written upon a later one, since what
    /// somebody has said meanwhile would be lost. Empty: whatever the version.
    pub version: String,
}

/// A partial as it stands in its file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartialFile {
    /// Of the object that is meant, so that nothing is said about one that was created later under the same name.
    pub(crate) uid: String,
    #[serde(default, skip_serializing_if = "PartialMetadata::is_empty")]
    pub(crate) metadata: PartialMetadata,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) status: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartialMetadata {
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

impl PartialMetadata {
    fn is_empty(&self) -> bool {
        self.annotations.is_empty()
    }
}

/// What several writers say about one object, by their names. There may be some for each pod, so they take little
/// memory.
#[derive(Debug, Default)]
pub(crate) struct Partials(Vec<(Box<str>, Said)>);

#[derive(Debug)]
enum Said {
    Json(Box<[u8]>),
    /// Its JSON would not read back as the same.
    Whole(Box<PartialFile>),
}

impl Partials {
    pub(crate) fn insert(&mut self, manager: &str, partial: PartialFile) {
        self.remove(manager);
        let said = match serde_json::to_vec(&partial) {
            Ok(json)
                if serde_json::from_slice(&json).is_ok_and(|back: PartialFile| back == partial) =>
            {
                Said::Json(json.into())
            }
            _ => Said::Whole(Box::new(partial)),
        };
        // Hardly any object has more than one or two writers.
        self.0.reserve_exact(1);
        self.0.push((manager.into(), said));
    }

    pub(crate) fn remove(&mut self, manager: &str) {
        self.0.retain(|(known, _)| **known != *manager);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn managers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(manager, _)| &**manager)
    }

    pub(crate) fn read(&self) -> BTreeMap<String, PartialFile> {
        let read = |(manager, said): &(Box<str>, Said)| {
            let partial = match said {
                Said::Json(json) => serde_json::from_slice(json)
                    .expect("broken invariant: it was read back when it was taken in"),
                Said::Whole(partial) => PartialFile::clone(partial),
            };
            (String::from(&**manager), partial)
        };
        self.0.iter().map(read).collect()
    }
}

/// Who says something about which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Statement {
    pub(crate) object: ObjectKey,
    pub(crate) manager: String,
}

impl Statement {
    /// The file's place, relative to the directory of manifests.
    pub(crate) fn path(&self) -> PathBuf {
        object_directory(&self.object).join(format!("{}.json", self.manager))
    }

    /// Reads a place as `path` writes it.
    pub(crate) fn from_path(path: &Path) -> Result<Self, String> {
        const EXPECTED: &str = "expected .status/<Kind>/<namespace or _>/<name>/<manager>.json";
        let parts: Vec<&str> = path
            .components()
            .map(|component| match component {
                Component::Normal(part) => part.to_str().ok_or(EXPECTED),
                _ => Err(EXPECTED),
            })
            .collect::<Result<_, _>>()?;
        let [STATUS_DIRECTORY, kind, namespace, name, file] = parts[..] else {
            return Err(EXPECTED.to_owned());
        };
        let kind = Kind::ALL
            .iter()
            .copied()
            .find(|known| known.as_str() == kind);
        let kind = kind.ok_or_else(|| "ignored: no such kind is read".to_owned())?;
        let namespace = match (kind.scope(), namespace) {
            (Scope::Cluster, NO_NAMESPACE) => None,
            (Scope::Cluster, _) => {
                return Err(format!("a {kind} lives outside of namespaces: expected _"));
            }
            (Scope::Namespace, namespace) => {
                check_label(namespace)
                    .map_err(|reason| format!("namespace {namespace:?} {reason}"))?;
                Some(namespace.to_owned())
            }
        };
        check_subdomain(name).map_err(|reason| format!("name {name:?} {reason}"))?;
        let manager = file.strip_suffix(".json").ok_or(EXPECTED)?;
        Ok(Self {
            object: ObjectKey {
                kind,
                namespace,
                name: name.to_owned(),
            },
            manager: manager.to_owned(),
        })
    }
}

/// Where all that is said about the object lies.
pub(crate) fn object_directory(object: &ObjectKey) -> PathBuf {
    [
        STATUS_DIRECTORY,
        object.kind.as_str(),
        object.namespace.as_deref().unwrap_or(NO_NAMESPACE),
        object.name.as_str(),
    ]
    .iter()
    .collect()
}

/// Reads a partial, as strictly as its object's kind would be: what is accepted here can be merged.
pub(crate) fn read(node: &Node<'_>, kind: Kind) -> Result<PartialFile, DecodeError> {
    let partial: PartialFile = decode(node)?;
    with_type!(kind, T => decode::<T>(node).map(drop))?;
    Ok(partial)
}

/// Reads the file's text. The error is the line, the field and the reason.
pub(crate) fn parse(
    text: &str,
    kind: Kind,
) -> Result<PartialFile, (Option<u32>, Option<String>, String)> {
    let node = tree::from_json(text).map_err(|error| (error.line, None, error.reason))?;
    read(&node, kind).map_err(|error| {
        (
            tree::json_line(text, &error.path()),
            error.field(),
            error.reason,
        )
    })
}

/// Two writers of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) field: String,
    pub(crate) believed: String,
    pub(crate) other: String,
}

/// The manifest with all that is said about it.
pub(crate) struct Merged {
    pub(crate) object: Object,
    pub(crate) conflicts: Vec<Conflict>,
}

/// Lays what the writers say over an object. Partials about an object of another uid are left aside.
pub(crate) fn merge<'p>(
    base: &Object,
    partials: impl IntoIterator<Item = (&'p String, &'p PartialFile)>,
) -> Result<Merged, serde_json::Error> {
    let mut said = Merging::default();
    for (manager, partial) in partials
        .into_iter()
        .filter(|(_, partial)| partial.uid == base.uid())
    {
        said.take(manager, partial);
    }
    if said.writers.is_empty() {
        return Ok(Merged {
            object: base.clone(),
            conflicts: Vec::new(),
        });
    }
    let object = with_object!(base, object => said.lay_over(object))?;
    Ok(Merged {
        object,
        conflicts: said.conflicts,
    })
}

#[derive(Default)]
struct Merging {
    annotations: BTreeMap<String, String>,
    status: Map<String, Value>,
    conditions: Vec<Value>,
    /// What controllers say, by the name of its list.
    of_controllers: BTreeMap<String, Vec<Value>>,
    /// Who wrote which field.
    writers: BTreeMap<String, String>,
    conflicts: Vec<Conflict>,
}

impl Merging {
    fn take(&mut self, manager: &str, partial: &PartialFile) {
        for (key, value) in &partial.metadata.annotations {
            if self.claim(format!("metadata.annotations[{key:?}]"), manager) {
                self.annotations.insert(key.clone(), value.clone());
            }
        }
        for (key, value) in &partial.status {
            match value {
                Value::Array(conditions) if key == "conditions" => {
                    for condition in conditions {
                        if self.claim(
                            format!("status.conditions[{}]", condition_type(condition)),
                            manager,
                        ) {
                            self.conditions.push(condition.clone());
                        }
                    }
                }
                Value::Array(said) if OF_CONTROLLERS.contains(&key.as_str()) => {
                    let controllers: BTreeSet<&str> = said.iter().map(controller_name).collect();
                    for controller in controllers {
                        if self.claim(format!("status.{key}[{controller}]"), manager) {
                            let own = said.iter().filter(|p| controller_name(p) == controller);
                            let all = self.of_controllers.entry(key.clone()).or_default();
                            all.extend(own.cloned());
                        }
                    }
                }
                _ => {
                    if self.claim(format!("status.{key}"), manager) {
                        self.status.insert(key.clone(), value.clone());
                    }
                }
            }
        }
    }

    fn claim(&mut self, field: String, manager: &str) -> bool {
        match self.writers.get(&field) {
            Some(believed) => {
                let (believed, other) = (believed.clone(), manager.to_owned());
                self.conflicts.push(Conflict {
                    field,
                    believed,
                    other,
                });
                false
            }
            None => {
                self.writers.insert(field, manager.to_owned());
                true
            }
        }
    }

    fn lay_over<T: Resource>(&self, base: &Arc<T>) -> Result<Object, serde_json::Error> {
        let mut object = T::clone(base);
        if !self.annotations.is_empty() {
            let annotations = object.metadata_mut().annotations.get_or_insert_default();
            annotations.extend(
                self.annotations
                    .iter()
                    .map(|(key, value)| (key.clone(), value.clone())),
            );
        }
        if !self.status.is_empty() || !self.conditions.is_empty() || !self.of_controllers.is_empty()
        {
            let mut status = match base.status_json()? {
                Value::Object(status) => status,
                _ => Map::new(),
            };
            status.extend(
                self.status
                    .iter()
                    .map(|(key, value)| (key.clone(), value.clone())),
            );
            if !self.conditions.is_empty() {
                let mut conditions = match status.remove("conditions") {
                    Some(Value::Array(conditions)) => conditions,
                    _ => Vec::new(),
                };
                let replaced = |old: &Value| {
                    self.conditions
                        .iter()
                        .any(|new| condition_type(new) == condition_type(old))
                };
                conditions.retain(|condition| !replaced(condition));
                conditions.extend(self.conditions.iter().cloned());
                status.insert("conditions".to_owned(), Value::Array(conditions));
            }
            for (list, said) in &self.of_controllers {
                let mut all = match status.remove(list) {
                    Some(Value::Array(all)) => all,
                    _ => Vec::new(),
                };
                let replaced = |old: &Value| {
                    let mut new = said.iter();
                    new.any(|new| controller_name(new) == controller_name(old))
                };
                all.retain(|one| !replaced(one));
                all.extend(said.iter().cloned());
                status.insert(list.clone(), Value::Array(all));
            }
            object.set_status_json(Value::Object(status))?;
        }
        Ok(object.into_object())
    }
}

fn condition_type(condition: &Value) -> &str {
    condition
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn controller_name(parent: &Value) -> &str {
    parent
        .get("controllerName")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
