// SPDX-License-Identifier: Apache-2.0
//! Whom a policy would concern that is not in force.

use super::Index;
use crate::{
    facts::{NamespacedName, policy::Reach},
    translate::{policy::TargetKey, workload},
};

impl Index {
    /// The namespace whose policies hold for all.
    pub fn root_namespace(&self) -> &str {
        &self.mesh.root_namespace
    }

    /// The uids of the pods that a policy's selector chooses; none where it has none.
    pub fn pods_chosen_by(&self, namespace: &str, reach: &Reach) -> Vec<String> {
        let Reach::Selected(labels) = reach else {
            return Vec::new();
        };
        let everywhere = namespace == self.mesh.root_namespace;
        let all = self.world.namespaces.iter();
        let within = all.filter(|(name, _)| everywhere || ***name == *namespace);
        let chosen = within.flat_map(|(namespace, here)| {
            let pods = here.selected_pods(labels);
            pods.map(|pod| NamespacedName::new(namespace.clone(), pod.clone()))
        });
        chosen
            .map(|name| workload::pod_uid(&self.mesh, &name))
            .collect()
    }

    /// The services that a target stands for alone, as "namespace/host name".
    pub fn services_of(&self, target: &TargetKey) -> Vec<String> {
        match target {
            TargetKey::Gateway(_) | TargetKey::Class(_) => Vec::new(),
            TargetKey::Service(name) => {
                let host = self.mesh.hostname(&name.namespace, &name.name);
                vec![format!("{}/{host}", name.namespace)]
            }
            TargetKey::Entry(name) => {
                let here = self.world.inhabitants(&name.namespace);
                let entry = here.and_then(|here| here.entries.get(&name.name));
                let hosts = entry.into_iter().flat_map(|entry| &entry.hosts);
                hosts
                    .map(|host| format!("{}/{host}", name.namespace))
                    .collect()
            }
        }
    }
}
