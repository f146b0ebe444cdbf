// SPDX-License-Identifier: Apache-2.0
//! How this process introduces itself to the control plane.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use proto::ads;

use crate::config::Node;

/// Fixed keys first; metadata of the configuration wins over them.
pub fn node(config: &Node) -> ads::Node {
    let name = config.name.as_deref().unwrap_or_default();
    let address = config.instance_ip.as_deref().unwrap_or("1.1.1.1");
    let (pod, namespace) = (&config.pod_name, &config.pod_namespace);
    let fixed = [
        ("NAME", &**pod),
        ("NAMESPACE", &**namespace),
        ("INSTANCE_IPS", address),
        ("NODE_NAME", name),
    ];
    let mut fields: BTreeMap<String, Value> = fixed
        .into_iter()
        .map(|(key, value)| (key.to_owned(), text(value.to_owned())))
        .collect();
    for (key, json) in &config.metadata {
        fields.insert(key.clone(), value(json));
    }
    ads::Node {
        // The suffix is literal, whatever the cluster's domain is called.
        id: format!("ztunnel~{address}~{pod}.{namespace}~{namespace}.svc.cluster.local"),
        metadata: Some(Struct { fields }),
        ..ads::Node::default()
    }
}

fn text(text: String) -> Value {
    Value {
        kind: Some(Kind::StringValue(text)),
    }
}

fn value(json: &serde_json::Value) -> Value {
    let kind = match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(value) => Kind::BoolValue(*value),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(items) => Kind::ListValue(ListValue {
            values: items.iter().map(value).collect(),
        }),
        serde_json::Value::Object(map) => {
            let fields = map
                .iter()
                .map(|(key, json)| (key.clone(), value(json)))
                .collect();
            Kind::StructValue(Struct { fields })
        }
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Node {
        Node {
            name: Some("n1".into()),
            network: "".into(),
            cluster_id: "c".into(),
            instance_ip: None,
            pod_name: "ztunnel-x".into(),
            pod_namespace: "istio-system".into(),
            istio_version: "unknown".into(),
            metadata: BTreeMap::new(),
        }
    }

    #[test]
    fn the_id_has_istios_form() {
        let node = node(&config());
        assert_eq!(
            node.id,
            "ztunnel~1.1.1.1~ztunnel-x.istio-system~istio-system.svc.cluster.local"
        );
        let metadata = node.metadata.expect("is there");
        assert_eq!(metadata.fields["NODE_NAME"], text("n1".into()));
        assert_eq!(metadata.fields["INSTANCE_IPS"], text("1.1.1.1".into()));
    }

    #[test]
    fn configured_metadata_wins_and_keeps_its_types() {
        let mut config = config();
        config.metadata.insert("NAME".into(), "other".into());
        config
            .metadata
            .insert("X".into(), serde_json::json!({"a": [1, true, null]}));
        let metadata = node(&config).metadata.expect("is there");
        assert_eq!(metadata.fields["NAME"], text("other".into()));
        let Some(Kind::StructValue(x)) = &metadata.fields["X"].kind else {
            panic!("is a struct")
        };
        let Some(Kind::ListValue(a)) = &x.fields["a"].kind else {
            panic!("is a list")
        };
        assert_eq!(a.values[0].kind, Some(Kind::NumberValue(1.0)));
        assert_eq!(a.values[2].kind, Some(Kind::NullValue(0)));
    }
}
