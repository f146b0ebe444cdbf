// SPDX-License-Identifier: Apache-2.0
//! How a proxy introduces itself to the control plane.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use proto::ads;
use serde_json::Value as Json;

/// The node of a proxy: its id is `kind~address~pod.namespace~namespace.svc.cluster.local`, as Istio's proxies have it,
/// and its metadata is `fixed` with `configured` laid over it.
pub fn node<'c>(
    kind: &str,
    (address, pod, namespace): (&str, &str, &str),
    fixed: impl IntoIterator<Item = (&'static str, Json)>,
    configured: impl IntoIterator<Item = (&'c String, &'c Json)>,
) -> ads::Node {
    let mut fields: BTreeMap<String, Value> = fixed
        .into_iter()
        .map(|(key, json)| (key.to_owned(), value(&json)))
        .collect();
    for (key, json) in configured {
        fields.insert(key.clone(), value(json));
    }
    ads::Node {
        // The suffix is literal, whatever the cluster's domain is called.
        id: format!("{kind}~{address}~{pod}.{namespace}~{namespace}.svc.cluster.local"),
        metadata: Some(Struct { fields }),
        ..ads::Node::default()
    }
}

fn value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(items) => Kind::ListValue(ListValue {
            values: items.iter().map(value).collect(),
        }),
        Json::Object(map) => {
            let fields = map.iter().map(|(key, json)| (key.clone(), value(json)));
            Kind::StructValue(Struct {
                fields: fields.collect(),
            })
        }
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_metadata_wins_and_keeps_its_types() {
        let configured = BTreeMap::from([
            ("NAME".to_owned(), Json::from("other")),
            ("X".to_owned(), serde_json::json!({"a": [1, true, null]})),
        ]);
        let fixed = [("NAME", Json::from("p")), ("NODE_NAME", Json::from("n1"))];
        let node = node("ztunnel", ("1.1.1.1", "p", "ns"), fixed, &configured);
        assert_eq!(node.id, "ztunnel~1.1.1.1~p.ns~ns.svc.cluster.local");
        let fields = node.metadata.expect("is there").fields;
        let text = |text: &str| Some(Kind::StringValue(text.into()));
        assert_eq!(fields["NAME"].kind, text("other"));
        assert_eq!(fields["NODE_NAME"].kind, text("n1"));
        let Some(Kind::StructValue(x)) = &fields["X"].kind else {
            panic!("is a struct")
        };
        let Some(Kind::ListValue(a)) = &x.fields["a"].kind else {
            panic!("is a list")
        };
        assert_eq!(a.values[0].kind, Some(Kind::NumberValue(1.0)));
        assert_eq!(a.values[1].kind, Some(Kind::BoolValue(true)));
        assert_eq!(a.values[2].kind, Some(Kind::NullValue(0)));
    }
}
