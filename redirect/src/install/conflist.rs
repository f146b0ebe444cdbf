// SPDX-License-Identifier: Apache-2.0
//! Pure: what the folder from which a container runtime takes its network configuration should hold, so that our plugin
//! is asked about each pod.
//!
//! In: the folder's files. Out: the changes to make, and by which file the plugin is in force, or why it is not. A runtime
//! takes the first file by name that it can use; so do we. Two ways:
//!
//! ```text
//!  Own        10-primary.conflist            stays as it is
//!             02-istio-cni.conflist          [the primary's plugins …, istio-cni]: comes first
//!  Chained    10-primary.conflist            [its plugins …, istio-cni]
//! ```
//! In its own file the plugin is in force from a node's first moment: a primary that writes its file anew as the node
//! starts takes nothing away. All that is not ours is kept, unknown fields and order with it; the list's name above all,
//! by which address managers know what they have given out.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::cni::VERSIONS;

/// The plugin's type, and so the name of its program.
pub const PLUGIN: &str = "istio-cni";
/// What a lone plugin's list is called, as Istio calls it.
const LIST_NAME: &str = "k8s-pod-network";

/// Files by name; a file that can't be read has the reason in its place.
pub type Folder = BTreeMap<String, Result<Vec<u8>, String>>;

#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    pub place: Place,
    /// The file that is ours with [`Place::Own`]; with the other one left from then is removed.
    pub own: String,
    /// The plugin's part of the configuration, an object.
    pub entry: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a file of its own, a copy of the primary's.
    Own,
    /// In the primary's file.
    Chained,
}

/// The plugin's part of a list.
pub fn entry(run_dir: &std::path::Path, excluded: &[String], own_namespace: &str) -> Value {
    json!({
        "type": PLUGIN,
        "name": PLUGIN,
        "ambient_enabled": true,
        "cni_agent_run_dir": run_dir,
        "exclude_namespaces": excluded,
        "pod_namespace": own_namespace,
    })
}

#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The whole of the file, new or in place of what it held.
    Write {
        name: String,
        list: Value,
    },
    Remove {
        name: String,
    },
}

#[derive(Debug, PartialEq)]
pub struct Plan {
    pub changes: Vec<Change>,
    /// The file by which the plugin is in force once the changes are made.
    pub file: Result<String, Missing>,
}

/// Why the plugin is not in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("no network configuration of another plugin is there yet{}", skipped(.0))]
    Primary(Vec<String>),
    #[error(
        "{own} does not come first: the runtime takes {first}; name ours by ISTIO_OWNED_CNI_CONFIG_FILENAME so that it sorts before"
    )]
    Second { own: String, first: String },
    #[error("{file}: cniVersion {version:?}: the plugin speaks {VERSIONS:?}")]
    Version { file: String, version: String },
}

fn skipped(files: &[String]) -> String {
    match files {
        [] => String::new(),
        files => format!("; no use: {}", files.join(", ")),
    }
}

/// Whether a runtime would read a file of this name.
pub fn is_configuration(name: &str) -> bool {
    let hidden = name.starts_with('.');
    !hidden
        && [".conf", ".conflist", ".json"]
            .iter()
            .any(|end| name.ends_with(end))
}

/// What has to change for the plugin to be in force.
pub fn plan(folder: &Folder, wanted: &Wanted) -> Plan {
    let (first, list) = match primary(folder, &wanted.own) {
        Ok(found) => found,
        // Ours, if there is one, stays: without it the next primary's pods would start unasked.
        Err(missing) => {
            return Plan {
                changes: Vec::new(),
                file: Err(missing),
            };
        }
    };
    if let Err(missing) = spoken(first, &list) {
        return Plan {
            changes: Vec::new(),
            file: Err(missing),
        };
    }
    let with_us = with_plugin(list, &wanted.entry);
    let mut changes = Vec::new();
    let name = match wanted.place {
        Place::Own => wanted.own.clone(),
        Place::Chained => as_list(first),
    };
    if held(folder, &name).as_ref() != Some(&with_us) {
        changes.push(Change::Write {
            name: name.clone(),
            list: with_us,
        });
    }
    let replaced = match wanted.place {
        Place::Own => None,
        Place::Chained if name != *first => Some(first),
        Place::Chained => Some(&wanted.own).filter(|own| folder.contains_key(*own)),
    };
    changes.extend(replaced.map(|name| Change::Remove { name: name.clone() }));
    let file = match name <= *first {
        true => Ok(name),
        false if wanted.place == Place::Chained => Ok(name),
        false => Err(Missing::Second {
            own: name,
            first: first.clone(),
        }),
    };
    Plan { changes, file }
}

/// What has to change for the plugin to be in no configuration.
pub fn removal(folder: &Folder, wanted: &Wanted) -> Vec<Change> {
    let of_file = |(name, content): (&String, &Result<Vec<u8>, String>)| {
        let remove = || Change::Remove { name: name.clone() };
        if *name == wanted.own {
            return Some(remove());
        }
        let mut list: Value = serde_json::from_slice(content.as_ref().ok()?).ok()?;
        let plugins = list.get_mut("plugins")?.as_array_mut()?;
        let before = plugins.len();
        plugins.retain(|plugin| !is_ours(plugin));
        match plugins.len() {
            0 if before > 0 => Some(remove()),
            left if left < before => Some(Change::Write {
                name: name.clone(),
                list,
            }),
            _ => None,
        }
    };
    folder.iter().filter_map(of_file).collect()
}

/// The first file, other than ours, that a runtime can use, as a list.
fn primary<'a>(folder: &'a Folder, own: &str) -> Result<(&'a String, Map<String, Value>), Missing> {
    let mut skipped = Vec::new();
    for (name, content) in folder.iter().filter(|(name, _)| *name != own) {
        let list = content.as_ref().map_err(String::clone);
        match list.and_then(|bytes| list_of(name, bytes)) {
            Ok(list) => return Ok((name, list)),
            Err(reason) => skipped.push(format!("{name}: {reason}")),
        }
    }
    Err(Missing::Primary(skipped))
}

/// A file's content as a list of plugins; a lone plugin becomes one.
fn list_of(name: &str, bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|cause| cause.to_string())?;
    let Value::Object(mut object) = value else {
        return Err("no JSON object".to_owned());
    };
    if name.ends_with(".conflist") {
        let plugins = object.get("plugins").and_then(Value::as_array);
        let plugins = plugins.ok_or("`plugins` is no list")?;
        let other = plugins.iter().filter(|plugin| !is_ours(plugin));
        let mut others = 0;
        for plugin in other {
            kind(plugin)?;
            others += 1;
        }
        return match others {
            0 => Err("`plugins` names no other plugin".to_owned()),
            _ => Ok(object),
        };
    }
    let alone = Value::Object(object.clone());
    if kind(&alone)? == PLUGIN {
        return Err("it is our plugin alone".to_owned());
    }
    let version = object.remove("cniVersion");
    let known = version.filter(|version| {
        let known = |version: &str| VERSIONS.contains(&version);
        version.as_str().is_some_and(known)
    });
    let name = object.get("name").cloned();
    let list = json!({
        "cniVersion": known.unwrap_or_else(|| VERSIONS[0].into()),
        // A lone plugin gives out addresses under its own name.
        "name": name.unwrap_or_else(|| LIST_NAME.into()),
        "plugins": [object],
    });
    match list {
        Value::Object(list) => Ok(list),
        _ => unreachable!("it was written as an object"),
    }
}

fn kind(plugin: &Value) -> Result<&str, String> {
    let kind = plugin.get("type").and_then(Value::as_str);
    kind.filter(|kind| !kind.is_empty())
        .ok_or_else(|| "a plugin without `type`".to_owned())
}

fn is_ours(plugin: &Value) -> bool {
    plugin.get("type").and_then(Value::as_str) == Some(PLUGIN)
}

/// A plugin that is asked in a version that it does not speak starts no pod at all.
fn spoken(file: &str, list: &Map<String, Value>) -> Result<(), Missing> {
    let version = list
        .get("cniVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    // Of several the runtime takes the highest that it knows itself.
    let offered = list.get("cniVersions").and_then(Value::as_array);
    let offered = offered.into_iter().flatten().filter_map(Value::as_str);
    let unknown = offered
        .chain(
            [version]
                .into_iter()
                .filter(|_| !list.contains_key("cniVersions")),
        )
        .find(|version| !VERSIONS.contains(version));
    match unknown {
        None => Ok(()),
        Some(version) => Err(Missing::Version {
            file: file.to_owned(),
            version: version.to_owned(),
        }),
    }
}

fn with_plugin(mut list: Map<String, Value>, entry: &Value) -> Value {
    if let Some(plugins) = list.get_mut("plugins").and_then(Value::as_array_mut) {
        plugins.retain(|plugin| !is_ours(plugin));
        plugins.push(entry.clone());
    }
    Value::Object(list)
}

/// What a file holds already, if it is JSON.
fn held(folder: &Folder, name: &str) -> Option<Value> {
    serde_json::from_slice(folder.get(name)?.as_ref().ok()?).ok()
}

fn as_list(name: &str) -> String {
    match name.strip_suffix(".conf") {
        Some(stem) => format!("{stem}.conflist"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
