// SPDX-License-Identifier: Apache-2.0
//! A waypoint is kept for each Gateway that asks for one.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::environment::Environment;
use e2e::kubernetes::Cluster;
use e2e::{binaries, deploy};
use serde_json::{Value, json};

use super::ground::{Ground, namespace};

pub(crate) fn gateway(name: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {
            "gatewayClassName": "istio-waypoint",
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
        },
    })
}

pub(crate) fn class() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "istio-waypoint"},
        "spec": {"controllerName": "istio.io/mesh-controller"},
    })
}

/// An object that a Gateway has, by kind.
pub(crate) fn of(gateway: &str, kind: &str) -> Value {
    let version = if kind == "Deployment" {
        "apps/v1"
    } else {
        "v1"
    };
    json!({
        "apiVersion": version, "kind": kind, "metadata": {"namespace": "shop", "name": gateway},
    })
}

/// Waits until an object is as hoped for.
pub(crate) async fn seen(
    cluster: &Cluster,
    object: &Value,
    hoped: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = cluster.get(object).await;
        if let Ok(now) = &now
            && hoped(now)
        {
            return Ok(now.clone());
        }
        ensure!(Instant::now() < deadline, "it is {now:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn says(object: &Value, kind: &str, status: &str, reason: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == kind && one["status"] == status && one["reason"] == reason)
}

#[tokio::test]
async fn a_waypoint_is_made_for_a_gateway_kept_as_it_is_and_told_of_in_its_status() -> Result<()> {
    let mut strict = namespace("shop");
    strict["metadata"]["labels"] = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let theirs = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "taken"},
        "spec": {"ports": [{"port": 80}]},
    });
    let objects = [
        strict,
        class(),
        theirs.clone(),
        gateway("waypoint"),
        gateway("taken"),
    ];
    let ground = Ground::with(&objects).await?;
    let cluster = &ground.cluster;
    seen(cluster, &class(), |class| {
        says(class, "Accepted", "True", "Accepted")
    })
    .await?;

    let own = seen(cluster, &gateway("waypoint"), |gateway| {
        says(gateway, "Accepted", "True", "Accepted")
            && says(gateway, "Programmed", "False", "AddressNotAssigned")
    })
    .await?;
    for kind in ["ServiceAccount", "Deployment", "Service"] {
        let made = seen(cluster, &of("waypoint", kind), |_| true).await?;
        let owner = &made["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["uid"]),
            (&json!("Gateway"), &own["metadata"]["uid"])
        );
        let managed = &made["metadata"]["labels"]["gateway.istio.io/managed"];
        assert_eq!(managed, "istio.io-mesh-controller", "{kind}");
    }

    // Its pods are admitted where hardly anything is, and the program knows all that it is told.
    let deployment = cluster.get(&of("waypoint", "Deployment")).await?;
    let mut pod = deploy::pod_of(&deployment).context("no template")?;
    pod["metadata"]["name"] = json!("one");
    pod["metadata"]
        .as_object_mut()
        .context("no metadata")?
        .remove("creationTimestamp");
    cluster.check(&pod).await?;
    let environment = Environment::of_process();
    let e2e = Path::new(env!("CARGO_BIN_EXE_e2e"));
    let programs = binaries::build_only(&["waypoint"], &environment, e2e)?;
    let help = Command::new(programs.join("waypoint"))
        .arg("help")
        .env_clear()
        .output()?;
    let help = String::from_utf8(help.stdout)?;
    let env = pod["spec"]["containers"][0]["env"]
        .as_array()
        .context("no environment")?;
    for name in env.iter().filter_map(|one| one["name"].as_str()) {
        let known = name == "RUST_BACKTRACE" || name.starts_with("ISTIO_META_");
        assert!(known || help.contains(name), "the waypoint knows no {name}");
    }

    // Addresses come with the first instance that is ready.
    let mut ready = of("waypoint", "Deployment");
    ready["status"] = json!({"replicas": 1, "readyReplicas": 1, "availableReplicas": 1});
    cluster.put_status(&ready).await?;
    let programmed = seen(cluster, &gateway("waypoint"), |gateway| {
        says(gateway, "Programmed", "True", "Programmed")
    })
    .await?;
    let service = cluster.get(&of("waypoint", "Service")).await?;
    assert_eq!(
        programmed["status"]["addresses"],
        json!([
            {"type": "IPAddress", "value": service["spec"]["clusterIP"]},
            {"type": "Hostname", "value": "waypoint.shop.svc.cluster.local"},
        ])
    );
    assert_eq!(
        programmed["status"]["listeners"][0]["conditions"][1]["status"],
        "True"
    );

    // What somebody changes is put back, what somebody adds stays, and what is deleted is made again.
    let deployment = of("waypoint", "Deployment");
    let patch = json!({"spec": {"replicas": 3, "template": {"spec": {"terminationGracePeriodSeconds": 1}}}});
    cluster.merge(&deployment, &patch).await?;
    let restored = seen(cluster, &deployment, |deployment| {
        deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 30
    })
    .await?;
    assert_eq!(restored["spec"]["replicas"], 3);
    let uid = service["metadata"]["uid"].clone();
    cluster.delete(&service).await?;
    seen(cluster, &of("waypoint", "Service"), |again| {
        again["metadata"]["uid"] != uid
    })
    .await?;

    // What nobody made for it is left alone, and said.
    seen(cluster, &gateway("taken"), |gateway| {
        says(gateway, "Programmed", "False", "Invalid")
    })
    .await?;
    let untouched = cluster.get(&theirs).await?;
    assert!(
        untouched["metadata"].get("ownerReferences").is_none(),
        "{untouched}"
    );
    assert!(
        !ground.log().contains("can't be read or written"),
        "{}",
        ground.log()
    );
    Ok(())
}
