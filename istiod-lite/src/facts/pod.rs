// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a Pod.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{Labels, Problem, Read, annotation, first_label, is_service_account, waypoint::Bypass};
use crate::wellknown;

/// A pod, as far as the mesh needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`: tells two pods of one name apart.
    pub uid: String,
    /// Its labels.
    pub labels: Arc<Labels>,
    /// Its addresses; none while it has none, or when one of them, or its service account, can't be read.
    pub addresses: Vec<IpAddr>,
    /// The node it was scheduled to, or empty.
    pub node: Arc<str>,
    /// The service account that it runs as.
    pub service_account: Arc<str>,
    /// Whether it still runs.
    pub life: Life,
    /// Whether it takes connections.
    pub health: Health,
    /// Whose network namespace it is in.
    pub network: PodNetwork,
    /// How it is reached.
    pub tunnel: Tunnel,
    /// Whether it takes what went around its waypoint, where it says so.
    pub bypass: Option<Bypass>,
    /// Its named TCP ports.
    pub named_ports: Arc<[(String, u16)]>,
    /// The name of what it is a replica of.
    pub workload_name: Arc<str>,
}

impl Pod {
    /// Its TCP port of a name.
    pub fn port(&self, name: &str) -> Option<u16> {
        let named = self.named_ports.iter().find(|(known, _)| known == name);
        named.map(|(_, number)| *number)
    }
}

/// Whether a pod still runs, or may run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Pending or running.
    Live,
    /// Succeeded or failed: it takes no traffic and gets no certificate.
    Ended,
}

/// Whether a pod or endpoint takes connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Ready and not being deleted.
    Ready,
    /// All else.
    NotReady,
}

/// Whose network namespace a pod is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodNetwork {
    /// Its own.
    Own,
    /// The node's: its address is shared with others.
    Host,
}

/// How a pod is reached.
///
/// Labels that ask for enrolment never count: only what is already true does,
/// which is the agent's annotation, or a pod that terminates tunnels itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    /// In plaintext.
    None,
    /// By HBONE, terminated by the node's proxy.
    Captured,
    /// By HBONE, terminated by the pod.
    Native,
}

/// Reads a pod.
pub fn read(pod: &core::Pod) -> Read<Pod> {
    let meta = &pod.metadata;
    let labels: Labels = meta.labels.clone().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let mut problems = Vec::new();
    let life = match status.and_then(|s| s.phase.as_deref()) {
        Some("Succeeded" | "Failed") => Life::Ended,
        _ => Life::Live,
    };
    let ready = status
        .and_then(|s| s.conditions.as_deref())
        .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    let health = if ready && meta.deletion_timestamp.is_none() {
        Health::Ready
    } else {
        Health::NotReady
    };
    let host_network = spec.and_then(|s| s.host_network).unwrap_or_default();
    let service_account = spec.and_then(service_account).unwrap_or("default");
    let known = is_service_account(
        service_account,
        "spec.serviceAccountName",
        "the pod",
        &mut problems,
    );
    let facts = Pod {
        uid: meta.uid.clone().unwrap_or_default(),
        addresses: status
            .filter(|_| known)
            .map(|s| addresses(s, &mut problems))
            .unwrap_or_default(),
        node: spec
            .and_then(|s| s.node_name.as_deref())
            .unwrap_or_default()
            .into(),
        service_account: service_account.into(),
        life,
        health,
        network: if host_network {
            PodNetwork::Host
        } else {
            PodNetwork::Own
        },
        tunnel: tunnel(&labels, meta),
        bypass: Bypass::read(meta),
        named_ports: spec.map(named_ports).unwrap_or_default().into(),
        workload_name: workload_name(pod, &labels).into(),
        labels: Arc::new(labels),
    };
    Read { facts, problems }
}

/// The account that is written, under its name of today or of old.
fn service_account(spec: &core::PodSpec) -> Option<&str> {
    let written = spec.service_account_name.as_deref();
    written
        .or(spec.service_account.as_deref())
        .filter(|name| !name.is_empty())
}

/// All addresses, or none if one of them can't be read: half a pod would let
/// traffic for the other half pass as if the mesh did not know it.
fn addresses(status: &core::PodStatus, problems: &mut Vec<Problem>) -> Vec<IpAddr> {
    let listed = status.pod_ips.as_deref().unwrap_or_default();
    let texts: Vec<&str> = if listed.is_empty() {
        status
            .pod_ip
            .as_deref()
            .filter(|ip| !ip.is_empty())
            .into_iter()
            .collect()
    } else {
        listed.iter().map(|entry| entry.ip.as_str()).collect()
    };
    let mut parsed = Vec::with_capacity(texts.len());
    for (position, text) in texts.into_iter().enumerate() {
        match text.parse::<IpAddr>() {
            Ok(ip) if !parsed.contains(&ip) => parsed.push(ip),
            Ok(_) => {}
            Err(_) => {
                problems.push(Problem::new(
                    format!("status.podIPs[{position}].ip"),
                    format!("{text:?} is no IP address; the pod is left out"),
                ));
                return Vec::new();
            }
        }
    }
    parsed
}

/// How a workload with these labels, and this metadata's annotations, is reached.
pub(super) fn tunnel(labels: &Labels, meta: &ObjectMeta) -> Tunnel {
    if labels.get(wellknown::TUNNEL).map(String::as_str) == Some("http") {
        Tunnel::Native
    } else if annotation(meta, wellknown::REDIRECTION) == Some("enabled") {
        Tunnel::Captured
    } else {
        Tunnel::None
    }
}

/// Named TCP ports of the containers that run beside each other: ordinary ones
/// and init containers that never end.
fn named_ports(spec: &core::PodSpec) -> Vec<(String, u16)> {
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let mut ports: Vec<(String, u16)> = Vec::new();
    for port in spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().flatten())
    {
        let tcp = port
            .protocol
            .as_deref()
            .is_none_or(|protocol| protocol == "TCP");
        let (Some(name), Ok(number)) = (&port.name, u16::try_from(port.container_port)) else {
            continue;
        };
        if tcp && !ports.iter().any(|(known, _)| known == name) {
            ports.push((name.clone(), number));
        }
    }
    ports
}

/// The name of the Deployment, CronJob or other owner that the pod is a replica of.
fn workload_name(pod: &core::Pod, labels: &Labels) -> String {
    let own_name = || pod.metadata.name.clone().unwrap_or_default();
    if let Some(name) = first_label(labels, &wellknown::WORKLOAD_NAME) {
        return name.to_owned();
    }
    let generated = pod
        .metadata
        .generate_name
        .as_deref()
        .is_some_and(|name| !name.is_empty());
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    let Some(owner) = controller.filter(|_| generated) else {
        return own_name();
    };
    let without_label = |key: &str| {
        let suffix = labels.get(key)?;
        owner.name.strip_suffix(suffix.as_str())?.strip_suffix('-')
    };
    let stripped = match owner.kind.as_str() {
        "ReplicaSet" => without_label("pod-template-hash")
            .or_else(|| without_label("rollouts-pod-template-hash")),
        "ReplicationController" => labels.get("deploymentconfig").map(String::as_str),
        "Job" => owner.name.rsplit_once('-').and_then(|(name, run)| {
            let digits = run.bytes().all(|byte| byte.is_ascii_digit());
            ((8..=10).contains(&run.len()) && digits).then_some(name)
        }),
        _ => None,
    };
    stripped.unwrap_or(&owner.name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: serde_json::Value) -> core::Pod {
        serde_json::from_value(json).expect("a pod")
    }

    fn named_after_owner(kind: &str, owner: &str, labels: &[(&str, &str)]) -> String {
        let labels: Labels = labels
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect();
        read(&pod(serde_json::json!({
            "metadata": {
                "name": "own", "generateName": "own-", "labels": labels,
                "ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": owner,
                                     "uid": "u", "controller": true}],
            },
            "spec": {"containers": []},
        })))
        .facts
        .workload_name
        .to_string()
    }

    #[test]
    fn a_workload_is_named_after_what_it_is_a_replica_of() {
        let hash = [("pod-template-hash", "7d9f")];
        assert_eq!(named_after_owner("ReplicaSet", "web-7d9f", &hash), "web");
        assert_eq!(
            named_after_owner("ReplicaSet", "web-other", &hash),
            "web-other"
        );
        let rollout = [("rollouts-pod-template-hash", "abc")];
        assert_eq!(named_after_owner("ReplicaSet", "web-abc", &rollout), "web");
        assert_eq!(named_after_owner("Job", "nightly-28123456", &[]), "nightly");
        assert_eq!(named_after_owner("Job", "nightly-12", &[]), "nightly-12");
        assert_eq!(named_after_owner("StatefulSet", "db", &[]), "db");
        let config = [("deploymentconfig", "shop")];
        assert_eq!(
            named_after_owner("ReplicationController", "shop-1", &config),
            "shop"
        );
        let label = [("service.istio.io/workload-name", "chosen")];
        assert_eq!(named_after_owner("StatefulSet", "db", &label), "chosen");
    }

    #[test]
    fn a_pod_without_generated_name_keeps_its_own() {
        let facts = read(&pod(serde_json::json!({"metadata": {"name": "solo"}}))).facts;
        assert_eq!(&*facts.workload_name, "solo");
        assert_eq!(&*facts.service_account, "default");
    }

    #[test]
    fn one_unreadable_address_leaves_the_pod_out_and_is_reported() {
        let read = read(&pod(serde_json::json!({
            "metadata": {"name": "p"},
            "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.999"}]},
        })));
        assert_eq!(read.facts.addresses, Vec::<IpAddr>::new());
        assert_eq!(read.problems[0].field, "status.podIPs[1].ip");
    }

    #[test]
    fn a_name_that_no_service_account_has_leaves_the_pod_out_and_is_reported() {
        let read = read(&pod(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {"serviceAccountName": "sid#", "containers": []},
            "status": {"podIPs": [{"ip": "10.0.0.1"}]},
        })));
        assert_eq!(read.facts.addresses, Vec::<IpAddr>::new());
        assert_eq!(
            read.problems[0].to_string(),
            "spec.serviceAccountName: \"sid#\" is not a name: a-z, 0-9 and - inside; the pod is left out"
        );
    }

    #[test]
    fn only_what_the_agent_wrote_makes_a_pod_captured() {
        let check = |meta: serde_json::Value, expected: Tunnel| {
            assert_eq!(
                read(&pod(serde_json::json!({ "metadata": meta })))
                    .facts
                    .tunnel,
                expected
            );
        };
        check(
            serde_json::json!({"labels": {"istio.io/dataplane-mode": "ambient"}}),
            Tunnel::None,
        );
        check(
            serde_json::json!({"annotations": {"ambient.istio.io/redirection": "pending"}}),
            Tunnel::None,
        );
        check(
            serde_json::json!({"annotations": {"ambient.istio.io/redirection": "enabled"}}),
            Tunnel::Captured,
        );
        check(
            serde_json::json!({"labels": {"networking.istio.io/tunnel": "http"}}),
            Tunnel::Native,
        );
    }

    #[test]
    fn ports_of_lasting_init_containers_count_and_udp_ones_do_not() {
        let facts = read(&pod(serde_json::json!({
            "metadata": {"name": "p"},
            "spec": {
                "containers": [{"name": "a", "ports": [
                    {"name": "web", "containerPort": 8080},
                    {"name": "dns", "containerPort": 53, "protocol": "UDP"}]}],
                "initContainers": [
                    {"name": "side", "restartPolicy": "Always",
                     "ports": [{"name": "side", "containerPort": 9000}]},
                    {"name": "once", "ports": [{"name": "once", "containerPort": 9001}]}],
            },
        })))
        .facts;
        assert_eq!(
            *facts.named_ports,
            [("web".to_owned(), 8080), ("side".to_owned(), 9000)]
        );
    }
}
