// SPDX-License-Identifier: Apache-2.0
//! The objects that questions are about: accounts, pods on two nodes that need not exist, and the proxies there.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use spiffe::SpiffeId;

use super::Authority;
use crate::kubernetes::Admin;
use crate::manifests::random_uid;

/// Two nodes; nobody looks for them within the seconds that this takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    One,
    Other,
}

/// What was made.
pub(super) struct Ground<'a> {
    pub(super) authority: &'a Authority,
    pub(super) admin: Admin,
    namespace: String,
    tag: String,
    /// All pods, also those that cases make; what is gone already is no matter.
    pods: std::sync::Mutex<Vec<Value>>,
}

impl<'a> Ground<'a> {
    pub(super) async fn prepare(authority: &'a Authority) -> Result<Self> {
        let admin = Admin::of(&authority.kubeconfig).await?;
        let tag: String = random_uid().chars().take(8).collect();
        let ground = Self {
            authority,
            admin,
            namespace: format!("ca-conformance-{tag}"),
            tag,
            pods: std::sync::Mutex::default(),
        };
        let made = ground.admin.put(&ground.own_namespace()).await;
        made.context("a namespace for the accounts")?;
        Ok(ground)
    }

    fn own_namespace(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
    }

    /// Makes an account.
    pub(super) async fn account(&self, name: &str) -> Result<()> {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": self.namespace, "name": name},
        });
        self.admin.put(&account).await
    }

    /// What an account's certificate says.
    pub(super) fn identity(&self, account: &str) -> Result<SpiffeId> {
        let identity = SpiffeId::new(&self.authority.trust_domain, &self.namespace, account);
        identity.with_context(|| format!("the identity of {account}"))
    }

    /// Makes a running pod of an account and of its name.
    pub(super) async fn pod(&self, account: &str, node: Node) -> Result<Value> {
        self.put(pod(&self.namespace, account, account, &self.node(node)))
            .await
    }

    /// Makes a running proxy of a node.
    pub(super) async fn proxy(&self, name: &str, node: Node) -> Result<Value> {
        let (namespace, account) = &self.authority.proxy;
        let name = format!("ca-conformance-{}-{name}", self.tag);
        self.put(pod(namespace, &name, account, &self.node(node)))
            .await
    }

    async fn put(&self, pod: Value) -> Result<Value> {
        self.pods
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(pod.clone());
        self.admin.put(&pod).await?;
        Ok(pod)
    }

    /// Lets a pod end.
    pub(super) async fn end(&self, pod: &Value, phase: &str) -> Result<()> {
        let mut ended = pod.clone();
        ended["status"]["phase"] = phase.into();
        self.admin.put(&ended).await
    }

    /// A pod's token, as a kubelet mounts it.
    pub(super) async fn token(&self, pod: &Value) -> Result<String> {
        self.admin.token(pod, &self.authority.audience).await
    }

    fn node(&self, node: Node) -> String {
        let number = match node {
            Node::One => 1,
            Node::Other => 2,
        };
        format!("ca-conformance-{}-{number}", self.tag)
    }

    /// Takes away what was made. The namespace goes when the cluster has the time.
    pub(super) async fn clear(self) -> Result<()> {
        let pods = self.pods.into_inner();
        for pod in pods.unwrap_or_else(std::sync::PoisonError::into_inner) {
            if self.admin.get(&pod).await.is_ok() {
                self.admin.delete(&pod).await.context("clearing up")?;
            }
        }
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        let deleted = self.admin.begin_delete(&namespace).await;
        deleted.context("clearing up")
    }
}

/// A pod that is said to run.
fn pod(namespace: &str, name: &str, account: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "nodeName": node, "serviceAccountName": account,
            "containers": [{"name": "none", "image": "none"}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}
