// SPDX-License-Identifier: Apache-2.0
//! With Kubernetes' own controllers: what they make of what is applied is followed, and what they take away is let go.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::Kind;
use e2e::kubernetes::Cluster;
use serde_json::{Value, json};

use super::ground::{Ground, Replica, namespace, populated, replica, workload};
use super::waypoints::{class, gateway, of, says, seen};

const PATIENCE: Duration = Duration::from_secs(60);
const OF_WAYPOINT: &str = "gateway.networking.k8s.io/gateway-name=waypoint";

#[tokio::test]
async fn a_waypoint_runs_by_kubernetes_controllers_and_goes_with_its_gateway() -> Result<()> {
    let defaults = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "istio-system", "name": "defaults",
            "labels": {"gateway.istio.io/defaults-for-class": "istio-waypoint"},
        },
        "data": {"podDisruptionBudget": "spec: {minAvailable: 1}", "deployment": "spec: {replicas: 2}"},
    });
    let mut cluster = populated(&[gateway("waypoint"), defaults.clone()]).await?;
    cluster.define(Kind::GatewayClass).await?;
    // Pods of a node that is not there are nobody's endpoints.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
    cluster.put(&node).await?;
    cluster.start_controllers()?;
    let plane = replica(&cluster, Replica::A, "").await?;
    let ground = Ground { plane, cluster };
    let cluster = &ground.cluster;
    // Nobody makes the class but the control plane, also once somebody has deleted it.
    for _round in 0..2 {
        seen(cluster, &class(), |class| {
            says(class, "Accepted", "True", "Accepted")
        })
        .await?;
        cluster.delete(&class()).await?;
    }

    let pods = eventually("two pods", async || {
        let pods = cluster.list(Kind::Pod, "shop", OF_WAYPOINT).await?;
        Ok((pods.len() == 2).then_some(pods))
    })
    .await?;
    for (pod, ip) in pods.iter().zip(["10.1.0.1", "10.1.0.2"]) {
        run(cluster, pod, ip).await?;
    }
    let programmed = seen(cluster, &gateway("waypoint"), |gateway| {
        says(gateway, "Programmed", "True", "Programmed")
    })
    .await?;
    let service = cluster.get(&of("waypoint", "Service")).await?;
    let address = &programmed["status"]["addresses"][0]["value"];
    assert_eq!(address, &service["spec"]["clusterIP"]);
    eventually("endpoints of both", async || {
        let of_service = "kubernetes.io/service-name=waypoint";
        let slices = cluster
            .list(Kind::EndpointSlice, "shop", of_service)
            .await?;
        let said = json!(slices).to_string();
        let both = ["10.1.0.1", "10.1.0.2"].iter().all(|ip| said.contains(ip));
        Ok(both.then_some(()))
    })
    .await?;
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().context("no name")?;
        ground.served(&workload(name), true).await?;
    }

    // Nobody asks for a disruption budget any more.
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "shop", "name": "waypoint"},
    });
    let made = seen(cluster, &budget, |_| true).await?;
    assert_eq!(made["spec"]["minAvailable"], 1);
    cluster.delete(&defaults).await?;
    gone(cluster, &budget).await?;

    // One command takes all of it, and no pod is served any more.
    cluster.delete(&gateway("waypoint")).await?;
    for kind in ["Deployment", "Service", "ServiceAccount"] {
        gone(cluster, &of("waypoint", kind)).await?;
    }
    eventually("pods end", async || {
        let pods = cluster.list(Kind::Pod, "shop", OF_WAYPOINT).await?;
        for pod in &pods {
            end(cluster, pod).await?;
        }
        Ok(pods.is_empty().then_some(()))
    })
    .await?;
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().context("no name")?;
        ground.served(&workload(name), false).await?;
    }
    assert!(
        !ground.log().contains("can't be read or written"),
        "{}",
        ground.log()
    );
    Ok(())
}

#[tokio::test]
async fn a_namespace_comes_with_what_pods_need_and_goes_with_all_that_is_in_it() -> Result<()> {
    let mut ground = Ground::with(&[]).await?;
    ground.cluster.start_controllers()?;
    let cluster = &ground.cluster;
    cluster.put(&namespace("late")).await?;
    let config = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "late", "name": name}});
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "late", "name": "default"},
    });
    for object in [
        &account,
        &config("kube-root-ca.crt"),
        &config("istio-ca-root-cert"),
    ] {
        seen(cluster, object, |_| true).await?;
    }
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "late", "name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    cluster.put(&service).await?;
    ground
        .served("late/web.late.svc.cluster.local", true)
        .await?;

    cluster.begin_delete(&namespace("late")).await?;
    gone(cluster, &namespace("late")).await?;
    ground
        .served("late/web.late.svc.cluster.local", false)
        .await?;
    // Nothing was put into it while it went.
    assert!(
        !ground.log().contains("could not be written"),
        "{}",
        ground.log()
    );
    Ok(())
}

/// Plays the scheduler and a kubelet: the pod runs and is ready.
async fn run(cluster: &Cluster, pod: &Value, ip: &str) -> Result<()> {
    let mut pod = named(pod);
    cluster.bind(&pod, "node-a").await?;
    pod["status"] = json!({
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    cluster.put_status(&pod).await
}

/// Nothing of it runs any more: what the kubelet says of a pod that somebody has deleted.
async fn end(cluster: &Cluster, pod: &Value) -> Result<()> {
    if pod["metadata"]["deletionTimestamp"].is_string() {
        // It may be gone by now.
        _ = cluster.begin_delete(&named(pod)).await;
    }
    Ok(())
}

/// No more of a pod than who it is; lists don't say of what kind they are.
fn named(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": metadata["namespace"], "name": metadata["name"]},
    })
}

async fn gone(cluster: &Cluster, object: &Value) -> Result<()> {
    let name = format!("{} {} goes", object["kind"], object["metadata"]["name"]);
    eventually(&name, async || {
        Ok(cluster.get(object).await.is_err().then_some(()))
    })
    .await
}

async fn eventually<T>(what: &str, attempt: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = attempt().await? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
