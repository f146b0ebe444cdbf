// SPDX-License-Identifier: Apache-2.0
//! Which identities a caller may have certificates for: its own, and as a node proxy those of its node's pods. Pure.
//!
//! Stricter than Istio: a foreign trust domain, a pod that has ended and a token that contradicts its pod's node are
//! refused.

use std::collections::BTreeSet;
use std::str::FromStr;

use spiffe::{SpiffeError, SpiffeId, TrustDomain};

use super::{Caller, OPAQUE_REFUSAL};

/// A service account whose pods act for the pods of their node (`CA_TRUSTED_NODE_ACCOUNTS`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAccount {
    pub namespace: String,
    pub service_account: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node account {0:?}: expected <namespace>/<service account>")]
pub struct NodeAccountError(String);

impl FromStr for NodeAccount {
    type Err = NodeAccountError;

    fn from_str(text: &str) -> Result<Self, NodeAccountError> {
        match text.split_once('/') {
            Some((namespace, account))
                if !namespace.is_empty() && !account.is_empty() && !account.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    service_account: account.to_owned(),
                })
            }
            _ => Err(NodeAccountError(text.to_owned())),
        }
    }
}

/// What is known of pods.
pub trait PodLookup {
    /// The pod of this name, whatever state it is in.
    fn pod(&self, namespace: &str, name: &str) -> Option<PodFacts>;

    /// Whether a pod that has not ended runs on the node with this service account.
    fn has_live_pod(&self, node: &str, namespace: &str, service_account: &str) -> bool;
}

/// What matters of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    pub uid: String,
    pub service_account: String,
    /// None until it is scheduled.
    pub node: Option<String>,
    pub life: PodLife,
}

/// Whether a pod still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLife {
    Live,
    /// Its phase is Succeeded or Failed.
    Ended,
}

/// Why an identity is refused. Its text is for the log; clients get [`Refusal::for_client`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "{namespace}/{service_account} is not among the accounts trusted to act for their node"
    )]
    NotTrusted {
        namespace: String,
        service_account: String,
    },
    #[error("the caller's pod {namespace}/{name} does not exist")]
    NoPod { namespace: String, name: String },
    #[error("the caller's pod {namespace}/{name} has uid {found}, the token is for {expected}")]
    OtherUid {
        namespace: String,
        name: String,
        found: String,
        expected: String,
    },
    #[error("the caller's pod {namespace}/{name} runs as {found}, the token is for {expected}")]
    OtherServiceAccount {
        namespace: String,
        name: String,
        found: String,
        expected: String,
    },
    #[error("the caller's pod {namespace}/{name} has ended")]
    Ended { namespace: String, name: String },
    #[error("the caller's pod {namespace}/{name} is not scheduled to a node")]
    NoNode { namespace: String, name: String },
    #[error(
        "the caller's pod {namespace}/{name} runs on node {found}, the token is for {expected}"
    )]
    OtherNode {
        namespace: String,
        name: String,
        found: String,
        expected: String,
    },
    #[error("identity {requested} is not of trust domain {ours}")]
    ForeignTrustDomain {
        requested: SpiffeId,
        ours: TrustDomain,
    },
    #[error("no live pod on node {node} runs as {requested}")]
    NotOnNode { requested: SpiffeId, node: String },
    #[error("the caller's account is no identity: {0}")]
    NoIdentity(SpiffeError),
}

impl Refusal {
    /// The same for all, so that nobody learns by asking what runs where.
    pub fn for_client(&self) -> &'static str {
        OPAQUE_REFUSAL
    }
}

/// The rules.
#[derive(Clone, Debug)]
pub struct NodeAuthorizer {
    trust_domain: TrustDomain,
    trusted: BTreeSet<NodeAccount>,
}

impl NodeAuthorizer {
    pub fn new(trust_domain: TrustDomain, trusted: impl IntoIterator<Item = NodeAccount>) -> Self {
        Self {
            trust_domain,
            trusted: trusted.into_iter().collect(),
        }
    }

    /// The caller's own identity, if its pod is what its token says.
    pub fn own_identity(
        &self,
        caller: &Caller,
        pods: &impl PodLookup,
    ) -> Result<SpiffeId, Refusal> {
        proven_pod(caller, pods)?;
        SpiffeId::new(
            &self.trust_domain,
            &caller.namespace,
            &caller.service_account,
        )
        .map_err(Refusal::NoIdentity)
    }

    /// Whether the caller may have a certificate for a pod of its node.
    pub fn may_impersonate(
        &self,
        caller: &Caller,
        requested: &SpiffeId,
        pods: &impl PodLookup,
    ) -> Result<(), Refusal> {
        self.check_trusted(caller)?;
        let pod = proven_pod(caller, pods)?;
        let Some(node) = pod.node else {
            return Err(Refusal::NoNode {
                namespace: caller.namespace.clone(),
                name: caller.pod.name.clone(),
            });
        };
        if requested.trust_domain() != self.trust_domain.as_str() {
            return Err(Refusal::ForeignTrustDomain {
                requested: requested.clone(),
                ours: self.trust_domain.clone(),
            });
        }
        if !pods.has_live_pod(&node, requested.namespace(), requested.service_account()) {
            return Err(Refusal::NotOnNode {
                requested: requested.clone(),
                node,
            });
        }
        Ok(())
    }

    fn check_trusted(&self, caller: &Caller) -> Result<(), Refusal> {
        let account = NodeAccount {
            namespace: caller.namespace.clone(),
            service_account: caller.service_account.clone(),
        };
        if self.trusted.contains(&account) {
            return Ok(());
        }
        let NodeAccount {
            namespace,
            service_account,
        } = account;
        Err(Refusal::NotTrusted {
            namespace,
            service_account,
        })
    }
}

/// The caller's pod, if it is there and is the one that the token was issued for.
fn proven_pod(caller: &Caller, pods: &impl PodLookup) -> Result<PodFacts, Refusal> {
    let (namespace, name) = (caller.namespace.clone(), caller.pod.name.clone());
    let Some(pod) = pods.pod(&namespace, &name) else {
        return Err(Refusal::NoPod { namespace, name });
    };
    if pod.uid != caller.pod.uid {
        return Err(Refusal::OtherUid {
            namespace,
            name,
            found: pod.uid,
            expected: caller.pod.uid.clone(),
        });
    }
    if pod.service_account != caller.service_account {
        let (found, expected) = (pod.service_account, caller.service_account.clone());
        return Err(Refusal::OtherServiceAccount {
            namespace,
            name,
            found,
            expected,
        });
    }
    if pod.life == PodLife::Ended {
        return Err(Refusal::Ended { namespace, name });
    }
    match (&pod.node, &caller.node) {
        (Some(found), Some(expected)) if found != expected => {
            let (found, expected) = (found.clone(), expected.clone());
            Err(Refusal::OtherNode {
                namespace,
                name,
                found,
                expected,
            })
        }
        _ => Ok(pod),
    }
}
