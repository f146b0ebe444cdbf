// SPDX-License-Identifier: Apache-2.0
//! How this process introduces itself to the control plane.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use proto::ads;

use crate::config::Own;

/// The label that says which Gateway a pod belongs to.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// Fixed keys first; metadata of the configuration wins over them.
pub fn node(own: &Own) -> ads::Node {
    let address = own.address.to_string();
    let (pod, namespace) = (&own.pod, &own.namespace);
    let labels = BTreeMap::from([(GATEWAY_NAME.to_owned(), text(&own.gateway))]);
    let fixed = [
        ("NAME", text(pod)),
        ("NAMESPACE", text(namespace)),
        ("SERVICE_ACCOUNT", text(&own.service_account)),
        ("INSTANCE_IPS", text(&address)),
        ("NODE_NAME", text(&own.node)),
        ("CLUSTER_ID", text(&own.cluster_id)),
        ("NETWORK", text(&own.network)),
        ("LABELS", object(labels)),
    ];
    let mut fields: BTreeMap<String, Value> = fixed
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    for (key, json) in &own.metadata {
        fields.insert(key.clone(), value(json));
    }
    ads::Node {
        // The suffix is literal, whatever the cluster's domain is called.
        id: format!("waypoint~{address}~{pod}.{namespace}~{namespace}.svc.cluster.local"),
        metadata: Some(Struct { fields }),
        ..ads::Node::default()
    }
}

fn text(text: &str) -> Value {
    of(Kind::StringValue(text.to_owned()))
}

fn object(fields: BTreeMap<String, Value>) -> Value {
    of(Kind::StructValue(Struct { fields }))
}

fn of(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => of(Kind::NullValue(0)),
        serde_json::Value::Bool(value) => of(Kind::BoolValue(*value)),
        serde_json::Value::Number(number) => {
            of(Kind::NumberValue(number.as_f64().unwrap_or_default()))
        }
        serde_json::Value::String(string) => text(string),
        serde_json::Value::Array(items) => of(Kind::ListValue(ListValue {
            values: items.iter().map(value).collect(),
        })),
        serde_json::Value::Object(map) => {
            let fields = map.iter().map(|(key, json)| (key.clone(), value(json)));
            object(fields.collect())
        }
    }
}

#[cfg(test)]
mod tests {
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
        let Some(Kind::StructValue(labels)) = &fields["LABELS"].kind else {
            panic!("labels are an object");
        };
        assert_eq!(labels.fields[GATEWAY_NAME], text("wp"));
        assert_eq!(fields["NAMESPACE"], text("shop"));
    }
}
