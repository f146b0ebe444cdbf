// SPDX-License-Identifier: Apache-2.0
//! A pod as the agent sees it, and what its annotation may say.

use std::net::IpAddr;

use crate::enroll::{Labels, Network};

/// A pod of this node, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub service_account: String,
    pub labels: Labels,
    pub annotations: Labels,
    pub network: Network,
    pub life: Life,
    pub ips: Vec<IpAddr>,
    /// What its annotation says.
    pub redirection: Option<Redirection>,
}

/// Set by the kubelet on the pod that stands in the API for a static one.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The UID by which the kubelet and the runtime know a static pod.
const STATIC_UID: &str = "kubernetes.io/config.hash";

impl Pod {
    /// The UIDs by which the cluster, the kubelet and the runtime know it: one, unless it is a static pod.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        let of_static = self.annotations.get(STATIC_UID);
        let of_static = of_static.filter(|_| self.annotations.contains_key(MIRROR));
        std::iter::once(&*self.uid).chain(of_static.map(String::as_str))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Running,
    /// Succeeded or failed: its containers are gone for good.
    Ended,
}

/// The values of the annotation `ambient.istio.io/redirection`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirection {
    Enabled,
    /// It is to be in the mesh; ztunnel has not consented, or the rules are not in place.
    Pending,
}

pub const REDIRECTION_ANNOTATION: &str = "ambient.istio.io/redirection";

impl Redirection {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Pending => "pending",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Enabled, Self::Pending]
            .into_iter()
            .find(|value| value.as_str() == text)
    }
}
