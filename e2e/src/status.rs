// SPDX-License-Identifier: Apache-2.0
//! What runs in a lab and how it is: read from the manifests with their status, the runtime's records and the daemons.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;
use cluster::kinds::Pod;
use cluster::object::Resource as _;
use cluster::{Object, ObjectKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::handle::Access;
use crate::lab::{control_plane, in_force};
use crate::manifests;
use crate::sniff::Traffic;
use crate::state::PodRecord;
use crate::topology::{Node, TRUST_DOMAIN};

/// The whole picture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    pub nodes: Vec<NodeStatus>,
    pub daemons: Vec<Daemon>,
    pub pods: Vec<PodStatus>,
    pub services: Vec<ServiceStatus>,
    pub policies: Vec<PolicyStatus>,
    /// What is wrong with the manifests.
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeStatus {
    pub name: String,
    pub address: String,
    pub pods: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Daemon {
    pub name: String,
    pub place: String,
    pub pid: Option<u32>,
    pub restarts: u32,
    pub healthy: bool,
    pub health: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodStatus {
    pub name: String,
    pub node: String,
    pub ip: String,
    pub identity: String,
    /// What the node agent wrote: `enabled`, `pending`, or nothing.
    pub redirection: String,
    pub phase: String,
    pub ready: bool,
    pub message: Option<String>,
    /// What is wrong with its manifest, of which the last good version is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub name: String,
    pub address: String,
    pub ports: String,
    pub selector: String,
    /// As of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PolicyStatus {
    pub kind: String,
    pub name: String,
    pub summary: String,
    pub conditions: Vec<String>,
    /// As of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// Asks everybody.
pub async fn gather(access: &Access) -> Result<Status> {
    let state = access.state();
    let (mut objects, problems, kept) = match access.has_api_server()? {
        // Who looks from outside does not reach the server; what it has said last lies here.
        true => {
            let (objects, problems) = manifests::read_all(&state.in_force()).await?;
            (objects, problems, Vec::new())
        }
        false => {
            let (objects, problems) = manifests::read_all(&state.manifests()).await?;
            let kept = in_force::kept(&state.in_force(), &objects, &problems).await?;
            (objects, problems, kept)
        }
    };
    let broken: BTreeMap<ObjectKey, String> = kept
        .iter()
        .map(|(object, why)| (object.key(), why.clone()))
        .collect();
    objects.extend(kept.into_iter().map(|(object, _)| object));
    objects.sort_by_key(Object::key);
    let records = state.pods()?;
    let mut status = Status {
        nodes: Vec::new(),
        daemons: vec![ask_control_plane(access)],
        pods: Vec::new(),
        services: Vec::new(),
        policies: Vec::new(),
        problems: problems.iter().map(ToString::to_string).collect(),
    };
    for node in Node::ALL {
        let pods = records
            .iter()
            .filter(|record| record.node == node && !record.host_network)
            .count();
        status.nodes.push(NodeStatus {
            name: node.to_string(),
            address: node.uplink().v4.to_string(),
            pods,
        });
    }
    for record in records.iter().filter(|record| record.host_network) {
        status.daemons.push(daemon(record));
    }
    for object in &objects {
        let broken = broken.get(&object.key()).cloned();
        match object {
            Object::Pod(pod) if !host_network(pod) => status.pods.push(PodStatus {
                broken,
                ..pod_status(pod, &records)
            }),
            Object::Service(service) => status.services.push(ServiceStatus {
                broken,
                ..service_status(service)
            }),
            Object::AuthorizationPolicy(policy) => {
                let action = serde_json::to_value(&policy.spec).unwrap_or_default();
                let action = action["action"].as_str().unwrap_or("ALLOW").to_owned();
                let said = policy.status_json().unwrap_or_default();
                status.policies.push(PolicyStatus {
                    broken,
                    ..policy_status(object, action, said)
                });
            }
            Object::PeerAuthentication(policy) => {
                let spec = serde_json::to_value(&policy.spec).unwrap_or_default();
                let mode = spec["mtls"]["mode"].as_str().unwrap_or("UNSET").to_owned();
                let said = policy.status_json().unwrap_or_default();
                status.policies.push(PolicyStatus {
                    broken,
                    ..policy_status(object, mode, said)
                });
            }
            _ => {}
        }
    }
    Ok(status)
}

fn ask_control_plane(access: &Access) -> Daemon {
    let name = access.state().cluster().daemon();
    let answer = access.traffic(name, &["get", &control_plane::ADMIN.to_string(), "/ready"]);
    let (healthy, health) = match answer {
        Ok(report) => (
            report.is_done(),
            report
                .answer
                .unwrap_or_else(|| report.outcome.to_string())
                .trim()
                .to_owned(),
        ),
        Err(error) => (false, format!("{error:#}")),
    };
    let health = if healthy && health.is_empty() {
        "ready".into()
    } else {
        health
    };
    let pid = std::fs::read_to_string(access.state().control_plane_pid());
    let pid = pid.ok().and_then(|pid| pid.parse().ok());
    Daemon {
        name: name.into(),
        place: "control plane".into(),
        pid,
        restarts: 0,
        healthy,
        health,
    }
}

fn daemon(record: &PodRecord) -> Daemon {
    let container = record.containers.first();
    let healthy =
        !record.containers.is_empty() && record.containers.iter().all(|container| container.ready);
    Daemon {
        name: record.pod.name.clone(),
        place: record.node.to_string(),
        pid: container.and_then(|container| container.pid),
        restarts: container.map_or(0, |container| container.restarts),
        healthy,
        health: if healthy {
            "ready".into()
        } else {
            record.message.clone().unwrap_or_else(|| "not ready".into())
        },
    }
}

fn host_network(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.host_network)
        .unwrap_or(false)
}

fn pod_status(pod: &Pod, records: &[PodRecord]) -> PodStatus {
    let metadata = &pod.metadata;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let name = format!(
        "{namespace}/{}",
        metadata.name.as_deref().unwrap_or_default()
    );
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let account = spec.service_account_name.as_deref().unwrap_or("default");
    let ready = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let record = records.iter().find(|record| record.pod.to_string() == name);
    PodStatus {
        node: spec
            .node_name
            .clone()
            .unwrap_or_else(|| "not scheduled".into()),
        ip: status.pod_ip.unwrap_or_default(),
        identity: format!("spiffe://{TRUST_DOMAIN}/ns/{namespace}/sa/{account}"),
        redirection: metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get("ambient.istio.io/redirection"))
            .cloned()
            .unwrap_or_default(),
        phase: status.phase.unwrap_or_else(|| "Pending".into()),
        ready,
        message: record.and_then(|record| record.message.clone()),
        broken: None,
        name,
    }
}

fn service_status(service: &cluster::kinds::Service) -> ServiceStatus {
    let metadata = &service.metadata;
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec
        .ports
        .unwrap_or_default()
        .iter()
        .map(|port| port.port.to_string())
        .collect::<Vec<_>>()
        .join(",");
    let selector = spec
        .selector
        .unwrap_or_default()
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",");
    ServiceStatus {
        name: format!(
            "{}/{}",
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default()
        ),
        address: spec
            .cluster_ips
            .map_or_else(|| spec.cluster_ip.unwrap_or_default(), |ips| ips.join(",")),
        ports,
        selector,
        broken: None,
    }
}

fn policy_status(object: &Object, summary: String, status: Value) -> PolicyStatus {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.map(|condition| {
        let word = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        format!(
            "{}={} {} {}",
            word("type"),
            word("status"),
            word("reason"),
            word("message")
        )
        .trim_end()
        .to_owned()
    });
    PolicyStatus {
        kind: object.kind().to_string(),
        name: format!("{}/{}", object.namespace(), object.name()),
        summary,
        conditions: conditions.collect(),
        broken: None,
    }
}

/// For the table: that what is shown is not what the manifest says now.
fn outdated(broken: Option<&String>) -> String {
    broken
        .map(|why| format!("last good version, as its manifest is broken: {why}"))
        .unwrap_or_default()
}

impl Status {
    /// The picture for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut section = |title: &str, rows: Vec<Vec<String>>| {
            // Writing to a string can't fail.
            let _infallible = writeln!(text, "{title}\n{}", columns(&rows));
        };
        section(
            "NODES",
            self.nodes
                .iter()
                .map(|node| {
                    vec![
                        node.name.clone(),
                        node.address.clone(),
                        format!("{} pods", node.pods),
                    ]
                })
                .collect(),
        );
        section("DAEMONS", self.daemons.iter().map(Daemon::row).collect());
        section("PODS", self.pods.iter().map(PodStatus::row).collect());
        section(
            "SERVICES",
            self.services
                .iter()
                .map(|service| {
                    vec![
                        service.name.clone(),
                        service.address.clone(),
                        service.ports.clone(),
                        service.selector.clone(),
                        outdated(service.broken.as_ref()),
                    ]
                })
                .collect(),
        );
        section(
            "POLICIES",
            self.policies
                .iter()
                .map(|policy| {
                    vec![
                        policy.kind.clone(),
                        policy.name.clone(),
                        policy.summary.clone(),
                        policy.conditions.join("; "),
                        outdated(policy.broken.as_ref()),
                    ]
                })
                .collect(),
        );
        if !self.problems.is_empty() {
            section(
                "PROBLEMS",
                self.problems
                    .iter()
                    .map(|problem| vec![problem.clone()])
                    .collect(),
            );
        }
        text
    }
}

impl Daemon {
    fn row(&self) -> Vec<String> {
        let pid = self.pid.map(|pid| format!("pid {pid}")).unwrap_or_default();
        let restarts = if self.restarts > 0 {
            format!("{} restarts", self.restarts)
        } else {
            String::new()
        };
        vec![
            self.name.clone(),
            self.place.clone(),
            pid,
            restarts,
            self.health.clone(),
        ]
    }
}

impl PodStatus {
    fn row(&self) -> Vec<String> {
        let captured = if self.redirection.is_empty() {
            "not captured".to_owned()
        } else {
            format!("redirection {}", self.redirection)
        };
        let ready = if self.ready {
            "ready".to_owned()
        } else {
            format!(
                "{} ({})",
                self.phase,
                self.message.as_deref().unwrap_or("not ready")
            )
        };
        vec![
            self.name.clone(),
            self.node.clone(),
            self.ip.clone(),
            captured,
            ready,
            self.identity.clone(),
            outdated(self.broken.as_ref()),
        ]
    }
}

/// Rows as aligned columns.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _infallible = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
    text
}

/// Conversations as a table.
pub fn flows_table(traffic: &Traffic) -> String {
    let row = |source: SocketAddr, destination: SocketAddr, rest: [String; 3]| {
        [
            vec![source.to_string(), "→".into(), destination.to_string()],
            rest.to_vec(),
        ]
        .concat()
    };
    let rows: Vec<Vec<String>> = traffic
        .flows
        .iter()
        .map(|flow| {
            let kind = if flow.tls {
                format!("TLS, {} records", flow.tls_records)
            } else {
                flow.first.clone()
            };
            let marker = if flow.marker {
                "the text was seen".to_owned()
            } else {
                String::new()
            };
            row(
                flow.source,
                flow.destination,
                [format!("{} bytes", flow.bytes), kind, marker],
            )
        })
        .collect();
    columns(&rows)
}
