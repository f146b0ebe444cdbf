// SPDX-License-Identifier: Apache-2.0
//! What `deploy/base` brings to a cluster, read as it is written there: plain YAML in the order of its kustomization;
//! and the chart that is made of it.

pub mod chart;

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::manifests::documents;

const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/base");
/// What lists the others.
pub const LIST: &str = "kustomization.yaml";

/// Its files by name, the one that lists them left out, with the objects in each.
///
/// # Errors
/// A file that is listed and missing, or can't be understood.
pub fn files() -> Result<Vec<(String, Vec<Value>)>> {
    let list = read(LIST)?.pop().unwrap_or_default();
    let names = list["resources"].as_array().context("it lists nothing")?;
    let named = names.iter().map(|name| {
        let name = name.as_str().context("a resource is no file's name")?;
        Ok((name.to_owned(), read(name)?))
    });
    named.collect()
}

/// All of its objects.
///
/// # Errors
/// As of [`files`].
pub fn objects() -> Result<Vec<Value>> {
    Ok(files()?.into_iter().flat_map(|(_, found)| found).collect())
}

/// The names of all files that lie there.
///
/// # Errors
/// There is no such folder.
pub fn names() -> Result<Vec<String>> {
    let entries = std::fs::read_dir(BASE).context(BASE)?;
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        Ok(entry?.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

/// The pod that a Deployment or a DaemonSet makes, without a name.
pub fn pod_of(workload: &Value) -> Option<Value> {
    let mut pod = workload["spec"].get("template")?.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["namespace"] = workload["metadata"]["namespace"].clone();
    Some(pod)
}

fn read(name: &str) -> Result<Vec<Value>> {
    let path = Path::new(BASE).join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    documents(&text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_listed() {
        let mut listed: Vec<String> = files()
            .unwrap()
            .into_iter()
            .map(|(name, objects)| {
                assert!(!objects.is_empty(), "{name} is empty");
                name
            })
            .collect();
        listed.push(LIST.to_owned());
        let mut there = names().unwrap();
        listed.sort_unstable();
        there.sort_unstable();
        assert_eq!(there, listed);
    }

    #[test]
    fn images_are_of_this_version() {
        let mut images = Vec::new();
        for pod in objects().unwrap().iter().filter_map(pod_of) {
            for container in pod["spec"]["containers"].as_array().unwrap() {
                images.push(container["image"].as_str().unwrap().to_owned());
                // Those that it has others run.
                let env = container["env"].as_array().into_iter().flatten();
                let named = env.filter(|one| one["name"] == "WAYPOINT_IMAGE");
                images.extend(named.map(|one| one["value"].as_str().unwrap().to_owned()));
            }
        }
        images.sort_unstable();
        let expected = ["istiod-lite", "redirect", "waypoint", "ztunnel"]
            .map(|name| format!("culvert/{name}:{}", env!("CARGO_PKG_VERSION")));
        assert_eq!(images, expected);
    }

    #[test]
    fn every_kind_of_istio_that_is_read_is_defined_in_all_its_versions() {
        let objects = objects().unwrap();
        let ours = |kind: &&cluster::Kind| kind.group().ends_with(".istio.io");
        for kind in cluster::Kind::ALL.iter().filter(ours) {
            let name = format!("{}.{}", kind.plural(), kind.group());
            let definition = objects.iter().find(|object| {
                object["kind"] == "CustomResourceDefinition" && object["metadata"]["name"] == name
            });
            let definition = definition.unwrap_or_else(|| panic!("{name} is not defined"));
            assert_eq!(definition["spec"]["names"]["kind"], kind.as_str());
            let versions: Vec<&str> = definition["spec"]["versions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|version| version["name"].as_str().unwrap())
                .collect();
            assert_eq!(versions, kind.versions(), "{name}");
        }
    }
}
