// SPDX-License-Identifier: Apache-2.0
//! The CustomResourceDefinitions of the kinds that are described by their types, as `deploy/base` holds them.
//!
//! After a wanted change, `BLESS=1 cargo test -p cluster definitions` writes the file anew.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::described::Described;
use super::destination_rule::DestinationRuleSpec;
use super::extension::{RequestAuthenticationSpec, TelemetrySpec, WasmPluginSpec};
use super::virtual_service::VirtualServiceSpec;
use crate::object::Kind;
use crate::parse::{self, Format, Item};

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../deploy/base/crds-traffic.yaml"
);
const HEAD: &str = "\
# SPDX-License-Identifier: Apache-2.0
# Istio's kinds that say what waypoints do with traffic. Made from the types of crates/cluster, and held to them by a test
# there: `BLESS=1 cargo test -p cluster definitions` writes this file.
#
# Unknown fields are kept everywhere: a rule that loses one may mean something else. What the control plane does not know
# it holds against the rule, and says so in the object's status.
";

struct Definition {
    kind: Kind,
    description: &'static str,
    short: &'static str,
    /// What is shown in lists, besides the age: name and path.
    columns: &'static [(&'static str, &'static str)],
    spec: Value,
}

fn definitions() -> Vec<Definition> {
    vec![
        Definition {
            kind: Kind::DestinationRule,
            description: "How a host is spoken to",
            short: "dr",
            columns: &[("Host", ".spec.host")],
            spec: DestinationRuleSpec::schema(),
        },
        Definition {
            kind: Kind::VirtualService,
            description: "Where requests to a host go",
            short: "vs",
            columns: &[("Gateways", ".spec.gateways"), ("Hosts", ".spec.hosts")],
            spec: VirtualServiceSpec::schema(),
        },
        Definition {
            kind: Kind::RequestAuthentication,
            description: "Whose tokens requests may carry",
            short: "ra",
            columns: &[],
            spec: RequestAuthenticationSpec::schema(),
        },
        Definition {
            kind: Kind::Telemetry,
            description: "What is told of traffic",
            short: "telemetry",
            columns: &[],
            spec: TelemetrySpec::schema(),
        },
        Definition {
            kind: Kind::WasmPlugin,
            description: "A program that traffic passes",
            short: "wasm",
            columns: &[],
            spec: WasmPluginSpec::schema(),
        },
    ]
}

impl Definition {
    fn object(&self) -> Value {
        let (plural, group) = (self.kind.plural(), self.kind.group());
        let columns = self
            .columns
            .iter()
            .chain(&[("Age", ".metadata.creationTimestamp")]);
        let columns: Vec<Value> = columns
            .map(|(name, path)| {
                let kind = if *name == "Age" { "date" } else { "string" };
                json!({"name": name, "type": kind, "jsonPath": path})
            })
            .collect();
        let texts = ["type", "status", "reason", "message", "lastTransitionTime"];
        let mut condition: serde_json::Map<String, Value> = texts
            .iter()
            .map(|name| ((*name).to_owned(), json!({"type": "string"})))
            .collect();
        condition.insert("observedGeneration".to_owned(), json!({"type": "integer"}));
        let status = json!({
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "required": ["type"], "properties": condition,
                },
            }},
        });
        let schema = json!({"openAPIV3Schema": {
            "type": "object", "description": self.description,
            "properties": {"spec": self.spec, "status": status},
        }});
        let versions: Vec<Value> = self
            .kind
            .versions()
            .iter()
            .enumerate()
            .map(|(position, name)| {
                let shared = |field: &str, value: Value| match position {
                    0 => value,
                    _ => json!(field),
                };
                json!({
                    "name": name, "served": true, "storage": position == 0,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": shared("additionalPrinterColumns", json!(columns)),
                    "schema": shared("schema", schema.clone()),
                })
            })
            .collect();
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}"), "labels": {"app": "istiod"}},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {
                    "kind": self.kind.as_str(), "listKind": format!("{}List", self.kind),
                    "plural": plural, "singular": self.kind.as_str().to_lowercase(),
                    "shortNames": [self.short],
                    "categories": ["istio-io", group.replace('.', "-")],
                },
                "versions": versions,
            },
        })
    }
}

/// As block YAML. What is the same in all versions of a kind stands there once.
fn yaml(value: &Value, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                out.push_str(&format!("{pad}{name}:"));
                let shared = SHARED.contains(&name.as_str());
                match field {
                    Value::String(reference) if shared => out.push_str(&format!(" *{reference}\n")),
                    Value::Object(_) | Value::Array(_) if !is_empty(field) => {
                        let anchor = if shared {
                            format!(" &{name}")
                        } else {
                            String::new()
                        };
                        out.push_str(&format!("{anchor}\n"));
                        yaml(field, indent + 2, out);
                    }
                    scalar => out.push_str(&format!(" {}\n", plain(scalar))),
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                yaml(item, indent + 2, &mut inner);
                out.push_str(&format!("{pad}- {}\n", inner.trim()));
            }
        }
        scalar => out.push_str(&format!("{pad}{}\n", plain(scalar))),
    }
}

/// Fields that later versions of a kind refer back to.
const SHARED: [&str; 2] = ["additionalPrinterColumns", "schema"];

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
        || value.as_array().is_some_and(Vec::is_empty)
}

/// Texts that can't be taken for anything else go without quotes.
fn plain(scalar: &Value) -> String {
    let words = |text: &&str| {
        let good = |c: char| c.is_ascii_alphanumeric() || " -_./".contains(c);
        let meant = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '.')
            && text.chars().all(good)
            && !meant.contains(&text.to_ascii_lowercase().as_str())
    };
    match scalar.as_str().filter(words) {
        Some(text) => text.to_owned(),
        None => scalar.to_string(),
    }
}

/// Shapes of Istio's published samples, in our own words; the suite that has an API server shows them to one.
const SAMPLES: &str = include_str!("../../tests/samples/traffic.yaml");

#[test]
fn every_field_of_the_samples_is_known_and_read() {
    let documents = parse::documents(SAMPLES, Format::Yaml);
    let items = documents
        .iter()
        .flat_map(|document| parse::parse(document.text, Format::Yaml));
    let mut kinds = BTreeSet::new();
    for item in items {
        let object = match item {
            Item::Object { object, .. } => object,
            Item::Finding(finding) => panic!("{}", finding.reason),
        };
        kinds.insert(object.kind());
        let read: Value = serde_json::from_slice(&object.to_json()).expect("JSON");
        let definitions = definitions();
        let definition = definitions.iter().find(|one| one.kind == object.kind());
        let definition = definition.unwrap_or_else(|| panic!("{} is described", object.key()));
        known(
            &read["spec"],
            &definition.spec,
            &format!("{}: spec", object.key()),
        );
    }
    assert_eq!(kinds.len(), definitions().len(), "{kinds:?}");
}

/// Panics at a field that a schema doesn't name.
fn known(value: &Value, schema: &Value, at: &str) {
    match (value, schema["type"].as_str()) {
        (Value::Object(fields), Some("object")) => {
            for (name, field) in fields {
                let of = schema["properties"]
                    .get(name)
                    .unwrap_or(&schema["additionalProperties"]);
                assert!(!of.is_null(), "{at}.{name} is not known");
                known(field, of, &format!("{at}.{name}"));
            }
        }
        (Value::Array(items), Some("array")) => {
            for (position, item) in items.iter().enumerate() {
                known(item, &schema["items"], &format!("{at}[{position}]"));
            }
        }
        (Value::Null | Value::String(_) | Value::Number(_) | Value::Bool(_), _) | (_, None) => {}
        (other, wanted) => panic!("{at} is {other}, not {wanted:?}"),
    }
}

#[test]
fn deploy_holds_the_definitions_that_follow_from_the_types() {
    let mut expected = HEAD.to_owned();
    for (position, definition) in definitions().iter().enumerate() {
        if position > 0 {
            expected.push_str("---\n");
        }
        yaml(&definition.object(), 0, &mut expected);
    }
    if std::env::vars().any(|(name, _)| name == "BLESS") {
        std::fs::write(FILE, &expected).expect("written");
    }
    let held = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        held == expected,
        "{FILE} is not what follows from the types: BLESS=1"
    );
}
