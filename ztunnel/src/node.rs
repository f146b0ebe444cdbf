// SPDX-License-Identifier: Apache-2.0
//! How this process introduces itself to the control plane.

use proto::ads;

use crate::config::Node;

/// Fixed keys first; metadata of the configuration wins over them.
pub fn node(config: &Node) -> ads::Node {
    let name = config.name.as_deref().unwrap_or_default();
    let address = config.instance_ip.as_deref().unwrap_or("1.1.1.1");
    let (pod, namespace) = (&*config.pod_name, &*config.pod_namespace);
    let fixed = [
        ("NAME", pod.into()),
        ("NAMESPACE", namespace.into()),
        ("INSTANCE_IPS", address.into()),
        ("NODE_NAME", name.into()),
    ];
    let itself = (address, pod, namespace);
    xds::node("ztunnel", itself, fixed, &config.metadata)
}
