// SPDX-License-Identifier: Apache-2.0
//! The authority is kept in the cluster, so that replicas and restarts share it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::authority::Ca;
use e2e::plane::ControlPlane;
use e2e::plane::client::Clients;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::certificates::identity;
use super::ground::{Ground, Replica, pod, populated, replica};

fn secret(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": "istio-system", "name": name},
    })
}

/// The Secret of a plugged-in authority that signs as `ca`; `wrong` has the last word.
fn cacerts(ca: &Ca, roots: &[&str], wrong: &[(&str, &str)]) -> Value {
    let mut parts = BTreeMap::from(ca.parts(roots));
    parts.extend(wrong.iter().map(|(name, text)| (*name, (*text).to_owned())));
    let mut secret = secret("cacerts");
    secret["stringData"] = json!(parts);
    secret
}

#[tokio::test]
async fn replicas_that_start_at_once_and_restarts_have_one_root() -> Result<()> {
    let cluster = populated(&[pod("web", "10.1.0.1")]).await?;
    let (first, second) = tokio::try_join!(
        replica(&cluster, Replica::A, "a"),
        replica(&cluster, Replica::B, "b")
    )?;
    let roots = std::fs::read_to_string(first.roots())?;
    assert_eq!(std::fs::read_to_string(second.roots())?, roots);
    let kept = cluster.get(&secret("istio-ca-secret")).await?;
    assert_eq!(kept["type"], "istio.io/ca-root");
    assert!(kept["data"]["ca-key.pem"].is_string(), "what Istio reads");

    first.stop().await?;
    second.stop().await?;
    // On another machine, so that nothing but the cluster remembers.
    let third = replica(&cluster, Replica::A, "c").await?;
    assert_eq!(std::fs::read_to_string(third.roots())?, roots);
    let chain = Clients::new(&third)?.certify(&identity("default")).await?;
    assert_eq!(chain.last(), Some(&roots), "it signs under that root");
    Ok(())
}

#[tokio::test]
async fn a_plugged_in_authority_is_followed_and_a_bad_one_is_named_and_changes_nothing()
-> Result<()> {
    let ca = Ca::new("plugged in")?;
    let cluster = populated(&[pod("web", "10.1.0.1")]).await?;
    cluster.put(&cacerts(&ca, &[&ca.root], &[])).await?;
    let plane = replica(&cluster, Replica::A, "").await?;
    let ground = Ground { plane, cluster };
    let node = Clients::new(&ground.plane)?;
    let intermediate = async || -> Result<String> {
        let mut chain = node.certify(&identity("default")).await?;
        ensure!(chain.len() == 3, "{chain:?}");
        Ok(chain.swap_remove(1))
    };
    let before = intermediate().await?;
    assert_eq!(
        ground.authority().await?["place"],
        "Secret istio-system/cacerts"
    );
    assert!(
        ground
            .cluster
            .get(&secret("istio-ca-secret"))
            .await
            .is_err()
    );

    for (wrong, said) in [
        (
            ("ca-key.pem", "no key"),
            "the CA's Secret istio-system/cacerts, key ca-key.pem: not a private key in PEM",
        ),
        (
            ("cert-chain.pem", ""),
            "the CA in Secret istio-system/cacerts is incomplete: cert-chain.pem is missing",
        ),
    ] {
        let bad = cacerts(&ca, &[&ca.root], &[wrong]);
        ground.cluster.put(&bad).await?;
        ground
            .eventually("/debug/ca", |ca| {
                ca["problem"]
                    .as_str()
                    .is_some_and(|problem| problem.contains(said))
            })
            .await?;
        assert_eq!(intermediate().await?, before);
    }
    ground.logged("key ca-key.pem: not a private key").await?;

    // The same root with another intermediate: it signs without a restart.
    let next = ca.ending(Duration::from_secs(24 * 60 * 60))?;
    ground
        .cluster
        .put(&cacerts(&next, &[&next.root], &[]))
        .await?;
    ground
        .eventually("/debug/ca", |ca| ca["problem"].is_null())
        .await?;
    let after = intermediate().await?;
    assert_ne!(after, before);

    // Nobody gives it back, so that what is in force stays so.
    ground.cluster.delete(&secret("cacerts")).await?;
    ground
        .eventually("/debug/ca", |ca| {
            ca["problem"]
                .as_str()
                .is_some_and(|problem| problem.contains("are gone"))
        })
        .await?;
    assert_eq!(intermediate().await.context("it goes on")?, after);
    Ok(())
}

/// Waits until a replica's view of the authority is as hoped for.
async fn eventually(plane: &ControlPlane, hoped: impl Fn(&Value) -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let said = plane.page("/debug/ca").await?;
        if hoped(&said) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "it still says {said}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_change_of_roots_waits_for_those_whom_another_replica_has_certified() -> Result<()> {
    let (old, new) = (Ca::new("old")?, Ca::new("new")?);
    let cluster = populated(&[pod("web", "10.1.0.1")]).await?;
    cluster.put(&cacerts(&old, &[&old.root], &[])).await?;
    let (first, second) = tokio::try_join!(
        replica(&cluster, Replica::A, "a"),
        replica(&cluster, Replica::B, "b")
    )?;
    // The second certifies nobody itself.
    let clients = Clients::new(&first)?;
    clients.certify(&identity("default")).await?;
    let elsewhere = |said: &Value| {
        let replicas = said["replicas"].as_object().into_iter().flatten();
        replicas
            .filter_map(|(_, count)| count.as_u64())
            .sum::<u64>()
    };
    eventually(&second, |said| elsewhere(said) == 1).await?;

    // New roots are handed out at once; nobody signs under one that the first's client has not got.
    let both = [&*old.root, &*new.root];
    cluster.put(&cacerts(&old, &both, &[])).await?;
    let roots = |said: &Value| said["roots"].as_array().map_or(0, Vec::len);
    for plane in [&first, &second] {
        eventually(plane, |said| roots(said) == 2).await?;
    }
    cluster.put(&cacerts(&new, &both, &[])).await?;
    let waits = |said: &Value, what: &str| {
        let said = said["waits"].to_string();
        said.contains(what) && said.contains("1 certified by replica istiod-lite.")
    };
    eventually(&second, |said| waits(said, "signing under")).await?;
    clients.certify(&identity("default")).await?;
    for plane in [&first, &second] {
        eventually(plane, |said| {
            let signer = said["signer"]["subject"].to_string();
            said["waits"] == json!([]) && signer.contains("new")
        })
        .await?;
    }

    // That certificate leads to the old root, also once the replica that has signed it is gone.
    first.signal(Signal::SIGKILL)?;
    cluster.put(&cacerts(&new, &[&new.root], &[])).await?;
    eventually(&second, |said| waits(said, "dropping")).await?;
    assert_eq!(roots(&second.page("/debug/ca").await?), 2);
    // Somebody who knows better says so.
    let told = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "istio-system", "name": "istiod-lite-authority"},
    });
    let entries = cluster.get(&told).await?["data"].take();
    let entries = entries.as_object().context("no entries")?.iter();
    let others = entries.filter(|(_, text)| !text.to_string().contains("certificates\\\":[]"));
    let gone: serde_json::Map<_, _> = others
        .map(|(name, _)| (name.clone(), Value::Null))
        .collect();
    assert_eq!(gone.len(), 1, "the second has certified nobody");
    cluster.merge(&told, &json!({ "data": gone })).await?;
    eventually(&second, |said| roots(said) == 1).await
}
