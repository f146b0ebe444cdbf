// SPDX-License-Identifier: Apache-2.0
//! What the CNI plugin and the agent say to each other: small JSON bodies over HTTP on the agent's unix socket.
//!
//! The keys of [`AddRequest`] are Istio's; those with a default are ours and may be absent.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The agent's socket inside its run directory.
pub const SOCKET: &str = "pluginevent.sock";

pub const ADD: &str = "/cmdadd";
pub const DEL: &str = "/cmddel";
pub const CHECK: &str = "/cmdcheck";
pub const GC: &str = "/cmdgc";
pub const STATUS: &str = "/status";

/// A pod's sandbox exists; also the body of CHECK.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AddRequest {
    pub netns: String,
    pub pod_name: String,
    pub pod_namespace: String,
    #[serde(rename = "IPs", default)]
    pub ips: Option<Vec<PodIp>>,
    #[serde(
        rename = "ContainerID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub container_id: Option<String>,
    #[serde(rename = "PodUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PodIp {
    #[serde(default)]
    pub interface: Option<i64>,
    pub address: PodAddress,
    #[serde(default)]
    pub gateway: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddress {
    #[serde(rename = "IP")]
    pub ip: IpAddr,
    /// The bytes of the mask in base64.
    #[serde(rename = "Mask", default)]
    pub mask: String,
}

impl AddRequest {
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.ips
            .iter()
            .flatten()
            .map(|ip| ip.address.ip.to_canonical())
            .collect()
    }
}

/// What became of the pod. Nothing but this counts as success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddReply {
    pub enrolled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A sandbox is about to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DelRequest {
    #[serde(rename = "ContainerID")]
    pub container_id: String,
    /// Its network namespace, for a sandbox whose container nobody told us of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
}

/// Every sandbox that the runtime still knows of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct GcRequest {
    #[serde(rename = "ContainerIDs")]
    pub container_ids: Vec<String>,
}
