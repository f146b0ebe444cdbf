// SPDX-License-Identifier: Apache-2.0
//! What authors are told about their objects.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::status::Written;
use cluster::{Connection, Kind, ObjectKey, Partial, StatusWriter};
use e2e::kubernetes::Cluster;
use serde_json::{Value, json};

use super::ground::{Ground, deny, policy};
use super::waypoints::seen;

#[tokio::test]
async fn conditions_are_written_once_and_follow_the_object() -> Result<()> {
    let object = policy("deny", &deny(&["80"]));
    let ground = Ground::with(std::slice::from_ref(&object)).await?;
    let accepted = condition(&ground.cluster, &object, 1).await?;
    assert_eq!(accepted["status"], "True");
    assert_eq!(accepted["reason"], "Accepted");
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let written = ground.cluster.get(&object).await?;
    let managed = written["metadata"]["managedFields"].as_array();
    let mut writers = managed.into_iter().flatten();
    assert!(
        writers.any(|of| of["manager"] == "istiod-lite" && of["subresource"] == "status"),
        "{written}"
    );
    // Our own word comes back to us and is nothing new.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        version(&ground.cluster.get(&object).await?),
        version(&written)
    );

    let audit = serde_json::json!({"spec": {"action": "AUDIT"}});
    ground.cluster.merge(&object, &audit).await?;
    let refused = condition(&ground.cluster, &object, 2).await?;
    assert_eq!(refused["status"], "False");
    assert_eq!(refused["reason"], "UnsupportedValue");
    Ok(())
}

#[tokio::test]
async fn what_was_said_of_an_object_goes_when_it_becomes_another_revisions() -> Result<()> {
    let logs = json!({
        "apiVersion": "telemetry.istio.io/v1", "kind": "Telemetry",
        "metadata": {"namespace": "shop", "name": "logs"},
        "spec": {"accessLogging": [{"providers": [{"name": "envoy"}]}]},
    });
    let tokens = json!({
        "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
        "metadata": {"namespace": "shop", "name": "tokens"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    });
    let ground = Ground::with(&[logs.clone(), tokens.clone()]).await?;
    for (object, verdict, reason) in [
        (&logs, "True", "Accepted"),
        (&tokens, "False", "UnsupportedValue"),
    ] {
        let said = eventually_said(&ground.cluster, object, 1).await?;
        assert_eq!(
            (&said[0]["status"], &said[0]["reason"]),
            (&json!(verdict), &json!(reason))
        );
        let mut theirs = object.clone();
        theirs["status"] = json!({"conditions": [another()]});
        ground.cluster.put_status(&theirs).await?;
        eventually_said(&ground.cluster, object, 2).await?;
        let left = json!({"metadata": {"labels": {"istio.io/rev": "next"}}});
        ground.cluster.merge(object, &left).await?;
        let said = eventually_said(&ground.cluster, object, 1).await?;
        assert_eq!(said[0]["type"], "example.com/Other");
        let back = json!({"metadata": {"labels": {"istio.io/rev": null}}});
        ground.cluster.merge(object, &back).await?;
        eventually_said(&ground.cluster, object, 2).await?;
    }
    Ok(())
}

/// J03, J07 and J08 of the Gateway API's cases: a policy follows the ConfigMap that it names, which nobody lists or watches.
#[tokio::test]
async fn a_policy_for_tls_follows_the_authorities_that_it_names() -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    });
    let mut policy = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "validation": {
                "hostname": "web.example.com",
                "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "authority"}],
            },
        },
    });
    let ground = Ground::with(&[service, policy.clone()]).await?;
    let authority = |pem: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "shop", "name": "authority"},
            "data": {"ca.crt": pem},
        })
    };
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key)?.pem();
    let refused = ["NoValidCACertificate", "InvalidCACertificateRef"];
    let cluster = &ground.cluster;
    accepted(cluster, &policy, (1, refused)).await?;
    cluster.put(&authority(&pem)).await?;
    accepted(cluster, &policy, (1, ["Accepted", "ResolvedRefs"])).await?;
    let theirs = json!({
        "controllerName": "example/other",
        "ancestorRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"},
        "conditions": [{
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    let mut said = cluster.get(&policy).await?["status"].clone();
    said["ancestors"]
        .as_array_mut()
        .context("no list")?
        .push(theirs.clone());
    cluster
        .merge_status(&policy, &json!({"status": said}))
        .await?;
    policy["spec"]["validation"]["hostname"] = "other.example.com".into();
    cluster.put(&policy).await?;
    accepted(cluster, &policy, (2, ["Accepted", "ResolvedRefs"])).await?;
    cluster.put(&authority("")).await?;
    accepted(cluster, &policy, (2, refused)).await?;
    cluster.put(&authority(&pem)).await?;
    accepted(cluster, &policy, (2, ["Accepted", "ResolvedRefs"])).await?;
    cluster.delete(&authority("")).await?;
    accepted(cluster, &policy, (2, refused)).await?;
    let now = cluster.get(&policy).await?;
    let all = now["status"]["ancestors"].as_array().context("no list")?;
    ensure!(all.contains(&theirs), "what others say is gone: {now}");
    Ok(())
}

/// Waits until that is what we say of a generation of a policy, by the reasons.
async fn accepted(cluster: &Cluster, policy: &Value, expected: (i64, [&str; 2])) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = cluster.get(policy).await?;
        let all = now["status"]["ancestors"].as_array().cloned();
        let mut all = all.into_iter().flatten();
        let own = all.find(|one| one["controllerName"] == "istio.io/mesh-controller");
        let reason = |kind: &str| {
            let said = own.as_ref()?["conditions"].as_array()?;
            let said = said.iter().find(|one| one["type"] == kind)?;
            let reason = said["reason"].as_str()?.to_owned();
            (said["observedGeneration"] == expected.0).then_some(reason)
        };
        let reasons = [reason("Accepted"), reason("ResolvedRefs")];
        if reasons.each_ref().map(Option::as_deref) == expected.1.map(Some) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{expected:?} is not said: {now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A condition of somebody else.
fn another() -> Value {
    json!({
        "type": "example.com/Other", "status": "True", "reason": "Seen", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

#[tokio::test]
async fn where_conditions_have_writers_of_their_own_none_is_anybody_elses() -> Result<()> {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"ports": [{"port": 80}]},
    });
    let ground = Ground::with(std::slice::from_ref(&service)).await?;
    service["status"] = json!({"conditions": [another()]});
    ground.cluster.put_status(&service).await?;
    let asks = json!({"metadata": {"labels": {"istio.io/use-waypoint": "nobody"}}});
    ground.cluster.merge(&service, &asks).await?;
    eventually_said(&ground.cluster, &service, 2).await?;
    let owned = |now: &Value| {
        let managed = now["metadata"]["managedFields"].as_array().cloned();
        let mut managed = managed.into_iter().flatten();
        let own = managed.find(|of| of["manager"] == "istiod-lite")?;
        let owned = own["fieldsV1"]["f:status"]["f:conditions"].as_object()?;
        Some(owned.keys().cloned().collect::<Vec<_>>())
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = ground.cluster.get(&service).await?;
        let own = [r#"k:{"type":"istio.io/WaypointBound"}"#.to_owned()];
        if owned(&now).as_deref() == Some(&own) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "others' are ours: {now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until an object carries so many conditions.
async fn eventually_said(cluster: &Cluster, object: &Value, count: usize) -> Result<Vec<Value>> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = cluster.get(object).await?;
        let said = now["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if said.len() == count {
            return Ok(said);
        }
        ensure!(
            Instant::now() < deadline,
            "{count} conditions are not there: {now}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits for what is said of this generation of the object.
pub(crate) async fn condition(cluster: &Cluster, object: &Value, generation: i64) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = cluster.get(object).await?;
        let conditions = now["status"]["conditions"].as_array().cloned();
        let said = conditions.into_iter().flatten().find(|condition| {
            condition["type"] == "ZtunnelAccepted" && condition["observedGeneration"] == generation
        });
        if let Some(said) = said {
            return Ok(said);
        }
        ensure!(Instant::now() < deadline, "nothing is said: {now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What another controller says of the route, as of a round.
fn theirs(round: u64) -> Value {
    json!({
        "controllerName": "example/other", "parentRef": {"group": "", "kind": "Service", "name": "web"},
        "conditions": [{
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": round.to_string(),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    })
}

fn said_by<'a>(route: &'a Value, controller: &str) -> Option<&'a Value> {
    let parents = route["status"]["parents"].as_array()?;
    parents
        .iter()
        .find(|one| one["controllerName"] == controller)
}

#[tokio::test]
async fn what_others_say_of_a_route_meanwhile_is_never_lost() -> Result<()> {
    const OURS: &str = "istio.io/mesh-controller";
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}],
        },
    });
    let ground = Ground::with(&[service, route.clone()]).await?;
    let cluster = &ground.cluster;
    let stale = seen(cluster, &route, |route| said_by(route, OURS).is_some()).await?;

    // Both write at once, again and again: nobody's last word is written over by a list that was read before it.
    for round in 0..20 {
        let hosts = json!({"spec": {"hostnames": [format!("{round}.example")]}});
        cluster.merge(&route, &hosts).await?;
        loop {
            let now = cluster.get(&route).await?;
            let others = now["status"]["parents"].as_array().into_iter().flatten();
            let others = others.filter(|one| one["controllerName"] != "example/other");
            let parents: Vec<Value> = others.cloned().chain([theirs(round)]).collect();
            let version = &now["metadata"]["resourceVersion"];
            let patch =
                json!({"metadata": {"resourceVersion": version}, "status": {"parents": parents}});
            if cluster.merge_status(&route, &patch).await? {
                break;
            }
        }
        let generation = cluster.get(&route).await?["metadata"]["generation"].clone();
        let both = seen(cluster, &route, |route| {
            let observed =
                said_by(route, OURS).map(|own| &own["conditions"][0]["observedGeneration"]);
            observed == Some(&generation)
        })
        .await?;
        assert_eq!(said_by(&both, "example/other"), Some(&theirs(round)));
    }

    // What was made of what was read long ago is refused as such.
    let connection = Connection::open(Some(&cluster.kubeconfig())).await?;
    let writer = StatusWriter::to_server(connection.client()?, "istiod-lite")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut partial = Partial {
        version: text(&stale["metadata"]["resourceVersion"]),
        ..Partial::default()
    };
    partial.status.insert("parents".to_owned(), json!([]));
    let key = ObjectKey::namespaced(Kind::HTTPRoute, "shop", "web");
    let uid = text(&stale["metadata"]["uid"]);
    let written = tokio::task::spawn_blocking(move || writer.write(&key, &uid, &partial));
    assert_eq!(written.await??, Written::Outdated);
    let still = cluster.get(&route).await?;
    assert_eq!(said_by(&still, "example/other"), Some(&theirs(19)));
    Ok(())
}
