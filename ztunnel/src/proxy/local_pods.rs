// SPDX-License-Identifier: Apache-2.0
//! The pods that this process serves, for connections from one of them to another.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use mesh::Workload;
use parking_lot::RwLock;

use super::PodProxy;

type ByName = HashMap<Arc<str>, Weak<PodProxy>>;

/// By namespace and name. Who is served no more is not found, whenever its entry goes.
#[derive(Default)]
pub struct LocalPods(RwLock<HashMap<Arc<str>, ByName>>);

impl LocalPods {
    pub(super) fn add(&self, pod: &Arc<PodProxy>) {
        let mut pods = self.0.write();
        // Pods come seldom enough to look at all of them.
        pods.retain(|_, names| {
            names.retain(|_, pod| pod.strong_count() > 0);
            !names.is_empty()
        });
        let namespace = pods.entry(Arc::clone(&pod.info.namespace)).or_default();
        namespace.insert(Arc::clone(&pod.info.name), Arc::downgrade(pod));
    }

    /// The pod that is this very workload at this address, if it is served here and takes connections.
    pub fn find(&self, workload: &Workload, address: IpAddr) -> Option<Arc<PodProxy>> {
        let found = {
            let pods = self.0.read();
            pods.get(&workload.namespace)?
                .get(&workload.name)?
                .upgrade()
        };
        let pod = found.filter(|pod| pod.is_accepting())?;
        let own = pod.workload_now_at(address).ok()?;
        (own.uid == workload.uid).then_some(pod)
    }
}
