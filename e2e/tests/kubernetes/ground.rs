// SPDX-License-Identifier: Apache-2.0
//! A cluster, a control plane that follows it, and what there is to see from the outside.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cluster::Kind;
use e2e::binaries;
use e2e::environment::Environment;
use e2e::kubernetes::Cluster;
use e2e::plane::client::{Client, Clients, Held};
use e2e::plane::{ControlPlane, Source};
use e2e::tokens::AUDIENCE;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Ground {
    // Ended in this order.
    pub(crate) plane: ControlPlane,
    pub(crate) cluster: Cluster,
}

impl Ground {
    /// A cluster with these objects and the kinds that they need, followed.
    pub(crate) async fn with(objects: &[Value]) -> Result<Self> {
        Self::begin(objects, |_| {}).await
    }

    /// The same; `prepare` has the last word before the control plane starts.
    pub(crate) async fn begin(objects: &[Value], prepare: impl FnOnce(&Cluster)) -> Result<Self> {
        let cluster = populated(objects).await?;
        prepare(&cluster);
        let plane = replica(&cluster, Replica::A, "").await?;
        Ok(Self { plane, cluster })
    }

    /// What the authority of a replica is said to be.
    pub(crate) async fn authority(&self) -> Result<Value> {
        self.plane.page("/debug/ca").await
    }

    /// Everything that a client that knows nothing is sent about workloads and services.
    pub(crate) async fn addresses(&self) -> Result<(Client, Held)> {
        let who = Clients::new(&self.plane)?;
        let client = Client::open(&who, 0, &Held::default()).await?;
        client.complete().await
    }

    /// Waits until resources of this name are served, or no longer are.
    pub(crate) async fn served(&self, name: &str, expected: bool) -> Result<()> {
        self.eventually(&format!("/debug/config_dump?name={name}"), |dump| {
            dump.to_string().contains(name) == expected
        })
        .await
    }

    /// Waits until a page says what is hoped for.
    pub(crate) async fn eventually(
        &self,
        page: &str,
        hoped: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.plane.page(page).await?;
            if hoped(&said) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{page} still says {said}; log: {}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the log says this; it is written a moment after what it is about.
    pub(crate) async fn logged(&self, text: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            if Instant::now() > deadline {
                bail!("not logged: {text}; log: {}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.cluster.folder().join("log")).unwrap_or_default()
    }
}

/// A cluster with these objects and the kinds that they need, and the proxy of a node; nobody follows it yet.
pub(crate) async fn populated(objects: &[Value]) -> Result<Cluster> {
    let cluster = Cluster::start().await?;
    let node = [
        namespace("istio-system"),
        account("istio-system", "ztunnel"),
        ztunnel(),
    ];
    for object in node.iter().chain([&namespace("shop")]).chain(objects) {
        if let Some(kind) = custom(object) {
            cluster.define(kind).await?;
        }
        cluster.put(object).await?;
    }
    Ok(cluster)
}

/// Which of the users that the API server tells apart a control plane is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Replica {
    A,
    B,
}

/// A control plane that follows a cluster. Its state and its log go below a folder of this name; one that is started where
/// another ended finds what that left.
pub(crate) async fn replica(
    cluster: &Cluster,
    user: Replica,
    folder: &str,
) -> Result<ControlPlane> {
    replica_with(cluster, user, folder, &[]).await
}

/// The same with variables besides those of this process.
pub(crate) async fn replica_with(
    cluster: &Cluster,
    user: Replica,
    folder: &str,
    variables: &[(&str, &Path)],
) -> Result<ControlPlane> {
    let environment = Environment::of_process();
    let e2e = Path::new(env!("CARGO_BIN_EXE_e2e"));
    let programs = binaries::build_only(&["istiod-lite"], &environment, e2e)?;
    let kubeconfig = match user {
        Replica::A => cluster.kubeconfig(),
        Replica::B => cluster.second_kubeconfig(),
    };
    let source = Source::Kubernetes {
        kubeconfig: &kubeconfig,
        token: cluster.token(&ztunnel(), AUDIENCE).await?,
    };
    let root = cluster.folder().join(folder);
    ControlPlane::start_with(&programs, &root, source, variables).await
}

/// The kind, if it has to be defined.
fn custom(object: &Value) -> Option<Kind> {
    let kind = Kind::ALL
        .iter()
        .find(|kind| object["kind"] == kind.as_str())?;
    (kind.group().contains('.') && *kind != Kind::EndpointSlice).then_some(*kind)
}

pub(crate) fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

pub(crate) fn account(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"namespace": namespace, "name": name},
    })
}

/// The proxy of node-a.
pub(crate) fn ztunnel() -> Value {
    running("istio-system", "ztunnel-a", "ztunnel", "node-a", "10.0.0.1")
}

/// A pod of the shop, on node-a, as account `default`.
pub(crate) fn pod(name: &str, ip: &str) -> Value {
    running("shop", name, "default", "node-a", ip)
}

/// A running pod, as a kubelet would report it.
pub(crate) fn running(namespace: &str, name: &str, account: &str, node: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node, "serviceAccountName": account,
            "containers": [{"name": "app", "image": "app"}],
        },
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// What a pod of the shop is called among the resources.
pub(crate) fn workload(name: &str) -> String {
    format!("Kubernetes//Pod/shop/{name}")
}

pub(crate) fn policy(name: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"action": "DENY", "rules": rules},
    })
}

pub(crate) fn deny(ports: &[&str]) -> Value {
    json!([{"to": [{"operation": {"ports": ports}}]}])
}
