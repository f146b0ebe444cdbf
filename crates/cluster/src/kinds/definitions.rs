// SPDX-License-Identifier: Apache-2.0
//! The CustomResourceDefinitions of the kinds that are described by their types, as `deploy/base` holds them.
//!
//! After a wanted change, `BLESS=1 cargo test -p cluster definitions` writes the file anew.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::described::Described;
use super::destination_rule::DestinationRuleSpec;
use super::extension::{RequestAuthenticationSpec, TelemetrySpec, WasmPluginSpec};
use super::policy::{AuthorizationPolicySpec, PeerAuthenticationSpec};
use super::service_entry::{ServiceEntryAddress, ServiceEntrySpec, WorkloadEntrySpec};
use super::virtual_service::VirtualServiceSpec;
use crate::object::Kind;
use crate::parse::{self, Format, Item};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/base");

/// The files, how they begin, and what they hold.
fn files() -> [(&'static str, &'static str, Vec<Definition>); 2] {
    [
        ("crds.yaml", MESH_HEAD, mesh()),
        ("crds-traffic.yaml", TRAFFIC_HEAD, traffic()),
    ]
}

const MESH_HEAD: &str = "\
# SPDX-License-Identifier: Apache-2.0
# Istio's kinds that say who may connect, and what there is besides the cluster's own services: those that the control plane
# reads and no more. A cluster that has Istio's own definitions keeps them (README.md). Made from the types of
# crates/cluster, and held to them by a test there: `BLESS=1 cargo test -p cluster definitions` writes this file.
#
# Unknown fields are kept everywhere: a server that drops a misspelt `principals` would make a rule for one a rule for all.
# The control plane sees such a field, holds the rule for what it can't have meant, and says so in the object's status.
";

const TRAFFIC_HEAD: &str = "\
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
    /// What its status holds besides conditions.
    said: Vec<(&'static str, Value)>,
}

impl Definition {
    fn new(kind: Kind, description: &'static str, short: &'static str, spec: Value) -> Self {
        Self {
            kind,
            description,
            short,
            columns: &[],
            spec,
            said: Vec::new(),
        }
    }
}

fn mesh() -> Vec<Definition> {
    vec![
        Definition {
            columns: &[("Action", ".spec.action")],
            ..Definition::new(
                Kind::AuthorizationPolicy,
                "Who may connect to which workloads",
                "ap",
                AuthorizationPolicySpec::schema(),
            )
        },
        Definition {
            columns: &[("Mode", ".spec.mtls.mode")],
            ..Definition::new(
                Kind::PeerAuthentication,
                "Whether workloads accept plaintext",
                "pa",
                PeerAuthenticationSpec::schema(),
            )
        },
        Definition {
            columns: &[
                ("Hosts", ".spec.hosts"),
                ("Location", ".spec.location"),
                ("Resolution", ".spec.resolution"),
            ],
            // What the hosts are given where the entry names no address.
            said: vec![("addresses", Vec::<ServiceEntryAddress>::schema())],
            ..Definition::new(
                Kind::ServiceEntry,
                "A service that Kubernetes does not know",
                "se",
                ServiceEntrySpec::schema(),
            )
        },
        Definition {
            columns: &[("Address", ".spec.address")],
            ..Definition::new(
                Kind::WorkloadEntry,
                "A workload outside of Kubernetes",
                "we",
                WorkloadEntrySpec::schema(),
            )
        },
    ]
}

fn traffic() -> Vec<Definition> {
    vec![
        Definition {
            columns: &[("Host", ".spec.host")],
            ..Definition::new(
                Kind::DestinationRule,
                "How a host is spoken to",
                "dr",
                DestinationRuleSpec::schema(),
            )
        },
        Definition {
            columns: &[("Gateways", ".spec.gateways"), ("Hosts", ".spec.hosts")],
            ..Definition::new(
                Kind::VirtualService,
                "Where requests to a host go",
                "vs",
                VirtualServiceSpec::schema(),
            )
        },
        Definition::new(
            Kind::RequestAuthentication,
            "Whose tokens requests may carry",
            "ra",
            RequestAuthenticationSpec::schema(),
        ),
        Definition::new(
            Kind::Telemetry,
            "What is told of traffic",
            "telemetry",
            TelemetrySpec::schema(),
        ),
        Definition::new(
            Kind::WasmPlugin,
            "A program that traffic passes",
            "wasm",
            WasmPluginSpec::schema(),
        ),
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
        let mut status = json!({
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
        for (field, schema) in &self.said {
            status["properties"][field] = schema.clone();
        }
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
const SAMPLES: [&str; 2] = [
    include_str!("../../tests/samples/mesh.yaml"),
    include_str!("../../tests/samples/traffic.yaml"),
];

#[test]
fn every_field_of_the_samples_is_known_and_read() {
    let documents = SAMPLES.map(|text| parse::documents(text, Format::Yaml));
    let items = documents
        .iter()
        .flatten()
        .flat_map(|document| parse::parse(document.text, Format::Yaml));
    let definitions: Vec<Definition> = files().into_iter().flat_map(|file| file.2).collect();
    let mut kinds = BTreeSet::new();
    for item in items {
        let object = match item {
            Item::Object { object, .. } => object,
            Item::Finding(finding) => panic!("{}", finding.reason),
        };
        kinds.insert(object.kind());
        let read: Value = serde_json::from_slice(&object.to_json()).expect("JSON");
        let definition = definitions.iter().find(|one| one.kind == object.kind());
        let definition = definition.unwrap_or_else(|| panic!("{} is described", object.key()));
        known(
            &read["spec"],
            &definition.spec,
            &format!("{}: spec", object.key()),
        );
    }
    assert_eq!(kinds.len(), definitions.len(), "{kinds:?}");
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
    for (file, head, definitions) in files() {
        let file = format!("{DEPLOY}/{file}");
        let mut expected = head.to_owned();
        for (position, definition) in definitions.iter().enumerate() {
            if position > 0 {
                expected.push_str("---\n");
            }
            yaml(&definition.object(), 0, &mut expected);
        }
        if std::env::vars().any(|(name, _)| name == "BLESS") {
            std::fs::write(&file, &expected).expect("written");
        }
        let held = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            held == expected,
            "{file} is not what follows from the types: BLESS=1"
        );
    }
}
