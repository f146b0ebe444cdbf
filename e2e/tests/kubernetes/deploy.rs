// SPDX-License-Identifier: Apache-2.0
//! What `deploy/base` holds, at a real API server: every object is taken to the letter, pods are admitted where they
//! belong, and the rights that it grants are enough for those who get them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::{Connection, Kind};
use e2e::binaries;
use e2e::deploy;
use e2e::environment::Environment;
use e2e::kubernetes::Cluster;
use e2e::plane::client::Clients;
use e2e::plane::{ControlPlane, Source};
use e2e::tokens::AUDIENCE;
use http::Request;
use serde_json::{Value, json};

use super::ground::{Ground, account, deny, namespace, pod, policy, running, workload, ztunnel};
use super::waypoints;

const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster that has the Gateway API, as the base asks for, and the namespace of the base.
async fn prepared(objects: &[Value]) -> Result<Cluster> {
    let cluster = Cluster::start().await?;
    for kind in Kind::ALL
        .iter()
        .filter(|kind| kind.group() == "gateway.networking.k8s.io")
    {
        cluster.define(*kind).await?;
    }
    cluster.put(&objects[0]).await?;
    Ok(cluster)
}

#[tokio::test]
async fn every_object_is_accepted_to_the_letter_and_every_pod_is_admitted() -> Result<()> {
    let objects = deploy::objects()?;
    assert_eq!(objects[0]["kind"], "Namespace");
    let cluster = prepared(&objects).await?;
    for object in &objects {
        cluster.check(object).await?;
    }
    let mut misspelt = objects[0].clone();
    misspelt["spec"] = json!({"finalizer": []});
    assert!(cluster.check(&misspelt).await.is_err(), "to the letter");

    let mut strict = namespace("strict");
    strict["metadata"]["labels"] = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    cluster.put(&strict).await?;
    let pods: Vec<Value> = objects.iter().filter_map(deploy::pod_of).collect();
    assert_eq!(pods.len(), 3);
    for mut pod in pods {
        let is_control_plane = pod["metadata"]["labels"]["app"] == "istiod";
        pod["metadata"]["name"] = json!("one");
        cluster.check(&pod).await?;
        // Of the three none but the control plane would do with less than the namespace allows.
        pod["metadata"]["namespace"] = json!("strict");
        let admitted = cluster.check(&pod).await;
        assert_eq!(admitted.is_ok(), is_control_plane, "{admitted:?}");
    }
    Ok(())
}

/// Shapes of Istio's published samples, in our own words.
const SAMPLES: [&str; 2] = [
    include_str!("../../../crates/cluster/tests/samples/mesh.yaml"),
    include_str!("../../../crates/cluster/tests/samples/traffic.yaml"),
];

fn samples() -> Result<Vec<Value>> {
    let each = SAMPLES.map(e2e::manifests::documents);
    Ok(each
        .into_iter()
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect())
}

#[tokio::test]
async fn definitions_take_what_istio_documents_and_refuse_what_is_misshapen() -> Result<()> {
    let objects = deploy::objects()?;
    let cluster = prepared(&objects).await?;
    let samples = samples()?;
    for object in &objects {
        if let Some(kind) = defined(object)
            && samples.iter().any(|sample| sample["kind"] == kind.as_str())
        {
            cluster.define_as(object).await?;
        }
    }
    cluster.put(&namespace("shop")).await?;
    let sample = |kind: &str| {
        let found = samples.iter().find(|sample| sample["kind"] == kind);
        found
            .cloned()
            .with_context(|| format!("no sample of {kind}"))
    };
    for sample in &samples {
        cluster.check(sample).await?;
        cluster.put(sample).await?;
        let stored = cluster.get(sample).await?;
        assert_eq!(stored["spec"], sample["spec"], "nothing is dropped");
    }
    for (kind, field, wrong) in [
        ("AuthorizationPolicy", "/spec/action", json!("MAYBE")),
        (
            "AuthorizationPolicy",
            "/spec/rules/0/from/0/source/principals",
            json!("all"),
        ),
        ("PeerAuthentication", "/spec/mtls/mode", json!("SOMETIMES")),
        ("ServiceEntry", "/spec/ports/0/number", json!("https")),
        ("ServiceEntry", "/spec/resolution", json!("GUESS")),
        ("WorkloadEntry", "/spec/weight", json!(-1)),
        (
            "VirtualService",
            "/spec/http/4/route/0/weight",
            json!("much"),
        ),
        ("VirtualService", "/spec/hosts", json!("books")),
        (
            "DestinationRule",
            "/spec/trafficPolicy/loadBalancer/simple",
            json!("BEST"),
        ),
        (
            "DestinationRule",
            "/spec/subsets/0/labels/version",
            json!(1),
        ),
        (
            "RequestAuthentication",
            "/spec/jwtRules/0/issuer",
            json!({}),
        ),
        (
            "Telemetry",
            "/spec/metrics/0/overrides/0/match/mode",
            json!("BOTH"),
        ),
        ("WasmPlugin", "/spec/failStrategy", json!("FAIL_LATER")),
    ] {
        let mut object = sample(kind)?;
        *object.pointer_mut(field).context("no such field")? = wrong;
        let refused = cluster.check(&object).await;
        let refused = format!(
            "{:#}",
            refused.err().with_context(|| format!("{kind} {field}"))?
        );
        let name = field.rsplit('/').next().unwrap_or_default();
        assert!(refused.contains(name), "{refused}");
    }
    Ok(())
}

#[tokio::test]
async fn the_control_plane_does_all_of_its_work_with_the_rights_of_its_account() -> Result<()> {
    let objects = deploy::objects()?;
    let cluster = prepared(&objects).await?;
    for object in &objects {
        match defined(object) {
            Some(_) => cluster.define_as(object).await?,
            None => cluster.put(object).await?,
        }
    }
    let istiod = running("istio-system", "istiod-0", "istiod", "node-a", "10.0.0.9");
    let policy = policy("deny", &deny(&["80"]));
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": "shop", "name": "web", "labels": {"istio.io/use-waypoint": "nobody"},
        },
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    let entry = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"namespace": "shop", "name": "far"},
        "spec": {
            "hosts": ["far.example"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
            "resolution": "DNS",
        },
    });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}],
        },
    });
    let traffic = samples()?;
    let traffic: Vec<Value> = traffic
        .into_iter()
        .filter(|sample| {
            let followed = [
                "VirtualService",
                "DestinationRule",
                "WasmPlugin",
                "Telemetry",
                "RequestAuthentication",
            ];
            followed.iter().any(|kind| sample["kind"] == *kind)
        })
        .collect();
    let tls = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "validation": {
                "hostname": "web.example.com",
                "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "more"}],
            },
        },
    });
    let mut gateway = waypoints::gateway("waypoint");
    let more = json!({"group": "", "kind": "ConfigMap", "name": "more"});
    gateway["spec"]["infrastructure"] = json!({"parametersRef": more});
    let more = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "shop", "name": "more"},
        "data": {"deployment": "spec: {replicas: 2}"},
    });
    let shop = [
        namespace("shop"),
        more,
        gateway.clone(),
        account("shop", "default"),
        pod("web", "10.1.0.1"),
        policy.clone(),
        service.clone(),
        entry.clone(),
        route.clone(),
        tls.clone(),
    ];
    for object in shop.iter().chain(&traffic).chain([&ztunnel(), &istiod]) {
        cluster.put(object).await?;
    }
    let kubeconfig = cluster.kubeconfig_of(&istiod).await?;
    let environment = Environment::of_process();
    let e2e = Path::new(env!("CARGO_BIN_EXE_e2e"));
    let programs = binaries::build_only(&["istiod-lite"], &environment, e2e)?;
    let source = Source::Kubernetes {
        kubeconfig: &kubeconfig,
        token: cluster.token(&ztunnel(), AUDIENCE).await?,
    };
    let plane = ControlPlane::start(&programs, cluster.folder(), source).await?;
    let ground = Ground { plane, cluster };

    ground.served(&workload("web"), true).await?;
    ground.served("shop/deny", true).await?;
    let identity = "spiffe://cluster.local/ns/shop/sa/default";
    let identity = identity.parse().expect("an identity");
    Clients::new(&ground.plane)?.certify(&identity).await?;
    says(&ground, &policy, |status| {
        status["conditions"][0]["type"] == "ZtunnelAccepted"
    })
    .await?;
    says(&ground, &service, |status| {
        status["conditions"]
            .to_string()
            .contains("istio.io/WaypointBound")
    })
    .await?;
    says(&ground, &entry, |status| {
        status["addresses"][0]["host"] == "far.example"
    })
    .await?;
    says(&ground, &route, |status| {
        status["parents"][0]["controllerName"] == "istio.io/mesh-controller"
    })
    .await?;
    says(&ground, &tls, |status| {
        status["ancestors"]
            .to_string()
            .contains("has no key ca.crt")
    })
    .await?;
    for object in &traffic {
        says(&ground, object, |status| {
            status["conditions"][0]["type"] == "WaypointAccepted"
        })
        .await?;
    }
    let made = waypoints::of("waypoint", "Deployment");
    eventually(&ground, &made, |made| made["spec"]["replicas"] == 2).await?;
    says(&ground, &gateway, |status| {
        status["conditions"][0]["type"] == "Accepted" && status["conditions"][0]["status"] == "True"
    })
    .await?;
    says(&ground, &waypoints::class(), |status| {
        status["conditions"][0]["status"] == "True"
    })
    .await?;
    let roots = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "shop", "name": "istio-ca-root-cert"},
    });
    let written = |roots: &Value| roots["data"]["root-cert.pem"].is_string();
    eventually(&ground, &roots, written).await?;
    // Another's word stays where it is, and ours is put back.
    ground
        .cluster
        .merge(&roots, &json!({"data": {"root-cert.pem": "another"}}))
        .await?;
    let restored = |roots: &Value| roots["data"]["root-cert.pem"] != "another";
    eventually(&ground, &roots, restored).await?;

    let problems = ground.plane.page("/debug/problems").await?;
    assert_eq!(problems["source"], json!([]), "all kinds are followed");
    assert!(!ground.log().contains("orbidden"), "{}", ground.log());

    // And it has no others.
    let client = Connection::kubeconfig(&kubeconfig).await?.client()?;
    for path in [
        "/api/v1/namespaces/shop/secrets",
        "/api/v1/namespaces/istio-system/secrets",
        "/api/v1/namespaces/shop/configmaps",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    ] {
        let refused = client.call(Request::get(path).body(Vec::new())?).await;
        let refused = refused.expect_err(path);
        assert_eq!(refused.code(), Some(403), "{path}: {refused}");
    }
    Ok(())
}

#[test]
fn programs_know_every_flag_and_variable_that_they_are_given() -> Result<()> {
    let environment = Environment::of_process();
    let e2e = Path::new(env!("CARGO_BIN_EXE_e2e"));
    let names = ["istiod-lite", "redirect", "ztunnel"];
    let programs = binaries::build_only(&names, &environment, e2e)?;
    let mut tried = Vec::new();
    for pod in deploy::objects()?.iter().filter_map(deploy::pod_of) {
        let container = &pod["spec"]["containers"][0];
        let image = container["image"].as_str().context("no image")?;
        let name = names.into_iter().find(|name| image.contains(*name));
        let name = name.with_context(|| format!("{image}: which program"))?;
        let mut command = Command::new(programs.join(name));
        match name {
            "ztunnel" => command.arg("help"),
            // Whoever is asked for help has read what stands before.
            _ => {
                let given = container["args"].as_array().into_iter().flatten();
                command.args(given.filter_map(Value::as_str)).arg("--help")
            }
        };
        let output = command.env_clear().output()?;
        ensure!(output.status.success(), "{name}: {output:?}");
        if name == "ztunnel" {
            let help = String::from_utf8(output.stdout)?;
            for variable in container["env"].as_array().context("no environment")? {
                let variable = variable["name"].as_str().context("no name")?;
                // Read by the language, and taken whatever follows.
                let known = variable == "RUST_BACKTRACE" || variable.starts_with("ISTIO_META_");
                ensure!(known || help.contains(variable), "ztunnel: {variable}");
            }
        }
        tried.push(name);
    }
    tried.sort_unstable();
    assert_eq!(tried, names);
    Ok(())
}

/// The kind that an object of the base defines.
fn defined(object: &Value) -> Option<Kind> {
    let name = object["spec"]["names"]["kind"].as_str()?;
    Kind::ALL.iter().copied().find(|kind| kind.as_str() == name)
}

/// Waits until an object's status is as hoped for.
async fn says(ground: &Ground, object: &Value, hoped: impl Fn(&Value) -> bool) -> Result<()> {
    eventually(ground, object, |now| hoped(&now["status"])).await
}

async fn eventually(ground: &Ground, object: &Value, hoped: impl Fn(&Value) -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = ground.cluster.get(object).await.context("not there");
        if now.as_ref().is_ok_and(&hoped) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{now:?}; log: {}", ground.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
