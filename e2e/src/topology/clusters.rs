// SPDX-License-Identifier: Apache-2.0
//! How the lab's nodes are grouped: into one cluster, or into two that stand on networks of their own. Pure.
//!
//! ```text
//!   one-cluster                          two-networks
//!   node-a ═══ node-b                    node-a ─── link ─── node-b
//!    pods reach each other                network-1           network-2: pods reach no pod of the other, only the
//!                                                              address of the other's node, where its gateway listens
//! ```

use serde::{Deserialize, Serialize};

use super::{CONTROL_PLANE_NAME, Node, Pair};

/// Which clusters there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Both nodes in one cluster, on one network.
    #[default]
    OneCluster,
    /// A cluster for each node, with a control plane of its own, on a network of its own. Both trust the same root.
    TwoNetworks,
}

/// A cluster of the lab.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cluster {
    #[default]
    First,
    Second,
}

impl Layout {
    pub fn clusters(self) -> &'static [Cluster] {
        match self {
            Self::OneCluster => &[Cluster::First],
            Self::TwoNetworks => &[Cluster::First, Cluster::Second],
        }
    }

    /// The nodes of a cluster.
    pub fn nodes(self, cluster: Cluster) -> &'static [Node] {
        match (self, cluster) {
            (Self::OneCluster, Cluster::First) => &Node::ALL,
            (Self::OneCluster, Cluster::Second) => &[],
            (Self::TwoNetworks, Cluster::First) => &[Node::A],
            (Self::TwoNetworks, Cluster::Second) => &[Node::B],
        }
    }

    /// What a cluster's network is called.
    pub fn network(self, cluster: Cluster) -> &'static str {
        match (self, cluster) {
            (Self::OneCluster, _) => "",
            (Self::TwoNetworks, Cluster::First) => "network-1",
            (Self::TwoNetworks, Cluster::Second) => "network-2",
        }
    }

    /// The word for it on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneCluster => "one-cluster",
            Self::TwoNetworks => "two-networks",
        }
    }
}

impl Cluster {
    /// The number by which people name it.
    pub fn number(self) -> u8 {
        match self {
            Self::First => 1,
            Self::Second => 2,
        }
    }

    /// Its id, part of every workload's uid.
    pub fn id(self) -> &'static str {
        match self {
            Self::First => super::CLUSTER_ID,
            Self::Second => "Kubernetes-2",
        }
    }

    /// Where its istiod-lite listens.
    pub fn control_plane(self) -> Pair {
        match self {
            Self::First => Pair::of(0, 10),
            Self::Second => Pair::of(0, 11),
        }
    }

    /// Under this name daemons dial it.
    pub fn control_plane_name(self) -> &'static str {
        match self {
            Self::First => CONTROL_PLANE_NAME,
            Self::Second => "istiod-2.istio-system.svc",
        }
    }

    /// What its control plane is called as a place and by its log.
    pub fn daemon(self) -> &'static str {
        match self {
            Self::First => "istiod-lite",
            Self::Second => "istiod-lite-2",
        }
    }

    /// A name that tells the clusters' files apart.
    pub fn file(self, name: &str) -> String {
        match self {
            Self::First => name.to_owned(),
            Self::Second => format!("{name}-2"),
        }
    }
}

impl std::str::FromStr for Cluster {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1" => Ok(Self::First),
            "2" => Ok(Self::Second),
            other => Err(format!(
                "there is no cluster `{other}`; a lab has 1 and, with two networks, 2"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_in_one_cluster() {
        for layout in [Layout::OneCluster, Layout::TwoNetworks] {
            let clusters = layout.clusters().iter();
            let mut nodes: Vec<Node> = clusters.flat_map(|c| layout.nodes(*c)).copied().collect();
            nodes.sort();
            assert_eq!(nodes, Node::ALL, "{layout:?}");
        }
    }
}
