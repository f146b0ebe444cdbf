// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a WasmPlugin: plugins are not run, so all that counts is whom that concerns.

use cluster::kinds::{
    self,
    extension::{FailStrategy, PluginType, WorkloadMode},
};

use super::{NamespacedName, Problem, Read, service::port_number};

const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
const ISTIO_GROUP: &str = "networking.istio.io";

/// A plugin, and what becomes of the traffic that was to pass it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// Whose traffic.
    pub targets: Vec<Target>,
    /// What of it.
    pub covers: Covers,
    /// These ports; all of them where there is none.
    pub ports: Vec<u16>,
    /// Whether it goes on without the plugin.
    pub fails: Fails,
}

/// Whose traffic a plugin is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// All that a waypoint serves.
    Gateway(NamespacedName),
    /// All that the waypoints of a class serve.
    Class(String),
    /// That of a Kubernetes service.
    Service(NamespacedName),
    /// That of a ServiceEntry's hosts.
    Entry(NamespacedName),
}

/// What of the traffic passes a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covers {
    /// Requests.
    Requests,
    /// Connections, whatever they carry.
    Connections,
}

/// What becomes of traffic that can't pass a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fails {
    /// It is refused.
    Closed,
    /// It goes on without.
    Open,
}

/// Reads a WasmPlugin. What can't be read covers more rather than less.
pub fn read(plugin: &kinds::WasmPlugin, root_namespace: &str) -> Read<Plugin> {
    let spec = &plugin.spec;
    let namespace = plugin.metadata.namespace.as_deref().unwrap_or_default();
    let mut problems = Vec::new();
    for field in spec.unknown_fields.keys() {
        problems.push(Problem::new(
            format!("spec.{field}"),
            "is not known, and left out",
        ));
    }
    let references = spec.target_refs.iter().chain(&spec.target_ref);
    let mut targets = Vec::new();
    for (position, reference) in references.enumerate() {
        let name = NamespacedName::new(namespace, reference.name.as_str());
        match (reference.group.as_str(), reference.kind.as_str()) {
            (GATEWAY_GROUP, "Gateway") => targets.push(Target::Gateway(name)),
            (GATEWAY_GROUP, "GatewayClass") if namespace == root_namespace => {
                targets.push(Target::Class(reference.name.clone()));
            }
            ("", "Service") => targets.push(Target::Service(name)),
            (ISTIO_GROUP, "ServiceEntry") => targets.push(Target::Entry(name)),
            (group, kind) => problems.push(Problem::new(
                format!("spec.targetRefs[{position}]"),
                format!("{kind} of group {group:?} is nothing that a plugin can be for here"),
            )),
        }
    }
    let mut ports = Vec::new();
    let mut all = spec.r#match.is_empty();
    for (position, selector) in spec.r#match.iter().enumerate() {
        if selector.mode == Some(WorkloadMode::Client) {
            // A waypoint is the server's side.
            continue;
        }
        all |= selector.ports.is_empty();
        for port in &selector.ports {
            match i32::try_from(port.number).ok().and_then(port_number) {
                Some(port) => ports.push(port),
                None => {
                    all = true;
                    problems.push(Problem::new(
                        format!("spec.match[{position}].ports"),
                        format!(
                            "{} is no port number: it stands for all of them",
                            port.number
                        ),
                    ));
                }
            }
        }
    }
    if all {
        ports.clear();
    } else if ports.is_empty() {
        targets.clear();
    }
    Read {
        facts: Plugin {
            targets,
            covers: match spec.r#type {
                Some(PluginType::Network) => Covers::Connections,
                _ => Covers::Requests,
            },
            ports,
            fails: match spec.fail_strategy {
                Some(FailStrategy::Open) => Fails::Open,
                _ => Fails::Closed,
            },
        },
        problems,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_spec(spec: Value) -> Read<Plugin> {
        let plugin = json!({"metadata": {"namespace": "shop", "name": "p"}, "spec": spec});
        read(
            &serde_json::from_value(plugin).expect("a plugin"),
            "istio-system",
        )
    }

    #[test]
    fn whom_a_plugin_is_for_and_what_becomes_of_them() {
        let gateway =
            json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "wp"}]);
        let read = read_spec(json!({
            "targetRefs": gateway, "match": [{"mode": "SERVER", "ports": [{"number": 80}]}],
        }));
        let expected = Plugin {
            targets: vec![Target::Gateway(NamespacedName::new("shop", "wp"))],
            covers: Covers::Requests,
            ports: vec![80],
            fails: Fails::Closed,
        };
        assert_eq!((read.facts, read.problems), (expected, Vec::new()));
        let open = read_spec(json!({
            "targetRefs": gateway, "type": "NETWORK", "failStrategy": "FAIL_OPEN",
        }));
        assert_eq!(
            (open.facts.covers, open.facts.fails),
            (Covers::Connections, Fails::Open)
        );
        let client = read_spec(json!({"targetRefs": gateway, "match": [{"mode": "CLIENT"}]}));
        assert_eq!(client.facts.targets, []);
    }

    #[test]
    fn what_can_not_be_read_covers_more_and_a_class_is_the_root_namespaces() {
        let service = json!({"group": "", "kind": "Service", "name": "web"});
        let class =
            json!({"group": "gateway.networking.k8s.io", "kind": "GatewayClass", "name": "c"});
        let read = read_spec(json!({
            "targetRefs": [service, class], "failStrategy": "FAIL_LATER",
            "match": [{"ports": [{"number": 80}, {"number": 0}]}],
        }));
        let service = Target::Service(NamespacedName::new("shop", "web"));
        assert_eq!(read.facts.targets, [service]);
        assert_eq!(
            (read.facts.ports.len(), read.facts.fails),
            (0, Fails::Closed)
        );
        assert_eq!(read.problems.len(), 2);
    }
}
