// SPDX-License-Identifier: Apache-2.0
//! The authority is kept in the cluster, so that replicas and restarts share it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use e2e::authority::Ca;
use e2e::plane::client::Clients;
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
    let next = ca.ending(std::time::Duration::from_secs(24 * 60 * 60))?;
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
