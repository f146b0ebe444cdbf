// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a WorkloadEntry.

use cluster::kinds;

use super::{
    Labels, Read, annotation,
    endpoint::{self, Endpoint},
    first_label,
    pod::{Tunnel, tunnel},
};
use crate::wellknown;

/// A workload outside of Kubernetes that is an object of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadEntry {
    /// Where it is and what it says of itself; its labels are those of the object as well.
    pub endpoint: Endpoint,
    /// The name of what it is a replica of.
    pub workload_name: String,
    /// How it is reached.
    pub tunnel: Tunnel,
}

/// Reads a WorkloadEntry. Labels may stand in its metadata and in its spec; of two
/// values for one key, that of the metadata counts.
pub fn read(entry: &kinds::WorkloadEntry) -> Read<Option<WorkloadEntry>> {
    let meta = &entry.metadata;
    let mut problems = Vec::new();
    let endpoint = endpoint::read(&entry.spec, "spec", &mut problems);
    let facts = endpoint.map(|mut endpoint| {
        let own: Labels = meta.labels.clone().unwrap_or_default();
        endpoint.labels.extend(own);
        let named = annotation(meta, wellknown::REGISTRATION_GROUP)
            .filter(|group| !group.is_empty())
            .or_else(|| first_label(&endpoint.labels, &wellknown::WORKLOAD_NAME))
            .or(meta.name.as_deref());
        WorkloadEntry {
            workload_name: named.unwrap_or_default().to_owned(),
            tunnel: tunnel(&endpoint.labels, meta),
            endpoint,
        }
    });
    Read { facts, problems }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(json: serde_json::Value) -> WorkloadEntry {
        let entry: kinds::WorkloadEntry = serde_json::from_value(json).expect("an entry");
        read(&entry).facts.expect("it is somewhere")
    }

    #[test]
    fn labels_of_metadata_and_spec_are_merged() {
        let entry = entry(serde_json::json!({
            "metadata": {"name": "vm", "labels": {"app": "db", "tier": "back"}},
            "spec": {"address": "192.0.2.1",
                     "labels": {"app": "other", "networking.istio.io/tunnel": "http"}},
        }));
        assert_eq!(entry.endpoint.labels["app"], "db");
        assert_eq!(entry.endpoint.labels["tier"], "back");
        assert_eq!(entry.tunnel, Tunnel::Native);
    }

    #[test]
    fn it_is_named_after_its_group_its_label_or_itself() {
        let named = |meta: serde_json::Value| {
            let object = serde_json::json!({"metadata": meta, "spec": {"address": "192.0.2.1"}});
            entry(object).workload_name
        };
        assert_eq!(named(serde_json::json!({"name": "vm"})), "vm");
        let label = serde_json::json!({"service.istio.io/workload-name": "chosen"});
        assert_eq!(
            named(serde_json::json!({"name": "vm", "labels": label})),
            "chosen"
        );
        let group = serde_json::json!({"istio.io/autoRegistrationGroup": "group"});
        assert_eq!(
            named(serde_json::json!({"name": "vm", "labels": label, "annotations": group})),
            "group"
        );
    }
}
