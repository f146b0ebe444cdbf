// SPDX-License-Identifier: Apache-2.0
//! What the ConfigMaps of a class and of a Gateway add to its objects: pure. Each of their entries is a patch in YAML, laid over
//! the object in the manner of Kubernetes' strategic merge: maps by key, lists of named things by name, other lists as a whole,
//! and `null` takes away.

use std::collections::BTreeMap;

use cluster::Kind;
use serde_json::{Map, Value};

/// Entries, and the objects that they are for.
const KEYS: [(&str, Kind); 5] = [
    ("deployment", Kind::Deployment),
    ("service", Kind::Service),
    ("serviceAccount", Kind::ServiceAccount),
    ("horizontalPodAutoscaler", Kind::HorizontalPodAutoscaler),
    ("podDisruptionBudget", Kind::PodDisruptionBudget),
];
/// By what elements of lists are told apart, the first that all of them have.
const MERGE_KEYS: [&str; 4] = ["name", "containerPort", "port", "mountPath"];

/// Patches by the object that they are for, in the order in which they are laid over it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Overlay(BTreeMap<Kind, Vec<Value>>);

impl Overlay {
    /// Reads the data of a ConfigMap.
    ///
    /// # Errors
    /// Which entry can't be used, and why.
    pub(super) fn read(data: &Map<String, Value>) -> Result<Self, String> {
        let mut read = BTreeMap::new();
        for (name, text) in data {
            let known = KEYS.iter().find(|(key, _)| key == name);
            let Some((_, kind)) = known else {
                let keys = KEYS.map(|(key, _)| key).join(", ");
                return Err(format!("data.{name}: is none of {keys}"));
            };
            let text = text.as_str().unwrap_or_default();
            let patch: Value =
                serde_saphyr::from_str(text).map_err(|why| format!("data.{name}: {why}"))?;
            if !patch.is_object() {
                return Err(format!("data.{name}: is no object"));
            }
            for identity in [
                "/apiVersion",
                "/kind",
                "/metadata/name",
                "/metadata/namespace",
            ] {
                if patch.pointer(identity).is_some() {
                    let field = identity.trim_start_matches('/').replace('/', ".");
                    return Err(format!("data.{name}: {field} is not for an overlay to say"));
                }
            }
            read.insert(*kind, vec![patch]);
        }
        Ok(Self(read))
    }

    /// This one, then another over it.
    pub(super) fn then(mut self, over: Self) -> Self {
        for (kind, patches) in over.0 {
            self.0.entry(kind).or_default().extend(patches);
        }
        self
    }

    pub(super) fn of(&self, kind: Kind) -> &[Value] {
        self.0.get(&kind).map_or(&[], Vec::as_slice)
    }
}

/// Lays a patch over a value.
pub(super) fn merge(value: &mut Value, patch: &Value) {
    match (value, patch) {
        (Value::Object(fields), Value::Object(patch)) => {
            for (name, change) in patch {
                if change.is_null() {
                    fields.remove(name);
                } else {
                    merge(fields.entry(name).or_insert(Value::Null), change);
                }
            }
        }
        (Value::Array(items), Value::Array(patch)) => match merge_key(items, patch) {
            Some(key) => {
                for change in patch {
                    let same = items.iter_mut().find(|item| item[key] == change[key]);
                    match same {
                        Some(item) => merge(item, change),
                        None => items.push(change.clone()),
                    }
                }
            }
            None => *items = patch.clone(),
        },
        (value, patch) => *value = without_nulls(patch),
    }
}

fn merge_key(items: &[Value], patch: &[Value]) -> Option<&'static str> {
    let all = || items.iter().chain(patch);
    let has = |key: &&str| all().all(|item| item.get(key).is_some());
    MERGE_KEYS.into_iter().find(has)
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, field)| !field.is_null());
            kept.map(|(name, field)| (name.clone(), without_nulls(field)))
                .collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_go_by_key_named_things_by_name_and_null_takes_away() {
        let mut value = json!({"spec": {
            "replicas": 1, "paused": true,
            "containers": [{"name": "a", "image": "x", "args": ["1", "2"], "ports": [{"containerPort": 1}]}],
        }});
        let patch = json!({"spec": {
            "replicas": 3, "paused": null,
            "containers": [
                {"name": "a", "args": ["3"], "ports": [{"containerPort": 2}]}, {"name": "b", "image": "y"},
            ],
            "affinity": {"zone": "z", "none": null},
        }});
        merge(&mut value, &patch);
        let expected = json!({"spec": {
            "replicas": 3,
            "containers": [
                {"name": "a", "image": "x", "args": ["3"], "ports": [{"containerPort": 1}, {"containerPort": 2}]},
                {"name": "b", "image": "y"},
            ],
            "affinity": {"zone": "z"},
        }});
        assert_eq!(value, expected);
    }

    #[test]
    fn an_entry_that_can_not_be_used_is_named() {
        let read = |key: &str, text: &str| {
            let data = Map::from_iter([(key.to_owned(), json!(text))]);
            Overlay::read(&data).map(drop)
        };
        assert_eq!(read("deployment", "spec: {replicas: 2}"), Ok(()));
        for (key, text, expected) in [
            ("pod", "{}", "data.pod: is none of deployment, "),
            ("service", "[1", "data.service: "),
            ("service", "text", "data.service: is no object"),
            (
                "deployment",
                "metadata: {name: other}",
                "data.deployment: metadata.name is not",
            ),
        ] {
            let why = read(key, text).expect_err(text);
            assert!(why.starts_with(expected), "{why}");
        }
    }
}
