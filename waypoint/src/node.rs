// SPDX-License-Identifier: Apache-2.0
//! How this process introduces itself to the control plane.

use proto::ads;
use serde_json::json;

use crate::config::Own;

/// The label that says which Gateway a pod belongs to.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// Fixed keys first; metadata of the configuration wins over them.
pub fn node(own: &Own) -> ads::Node {
    let address = own.address.to_string();
    let fixed = [
        ("NAME", json!(own.pod)),
        ("NAMESPACE", json!(own.namespace)),
        ("SERVICE_ACCOUNT", json!(own.service_account)),
        ("INSTANCE_IPS", json!(address)),
        ("NODE_NAME", json!(own.node)),
        ("CLUSTER_ID", json!(own.cluster_id)),
        ("NETWORK", json!(own.network)),
        ("LABELS", json!({ GATEWAY_NAME: own.gateway })),
    ];
    let itself = (&*address, &*own.pod, &*own.namespace);
    xds::node("waypoint", itself, fixed, &own.metadata)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost_types::value::Kind;

    use super::*;

    #[test]
    fn the_gateway_is_named_by_the_pods_label() {
        let own = Own {
            gateway: "wp".into(),
            pod: "wp-1".into(),
            namespace: "shop".into(),
            service_account: "wp".into(),
            identity: "spiffe://cluster.local/ns/shop/sa/wp".parse().unwrap(),
            address: [10, 0, 0, 7].into(),
            node: "n".into(),
            network: "".into(),
            cluster_id: "c".into(),
            istio_version: "unknown".into(),
            metadata: BTreeMap::from([("X".into(), serde_json::json!([1, null]))]),
        };
        let node = node(&own);
        assert_eq!(
            node.id,
            "waypoint~10.0.0.7~wp-1.shop~shop.svc.cluster.local"
        );
        let fields = node.metadata.unwrap().fields;
        let text = |text: &str| Some(Kind::StringValue(text.into()));
        let Some(Kind::StructValue(labels)) = &fields["LABELS"].kind else {
            panic!("labels are an object");
        };
        assert_eq!(labels.fields[GATEWAY_NAME].kind, text("wp"));
        assert_eq!(fields["NAMESPACE"].kind, text("shop"));
    }
}
