// SPDX-License-Identifier: Apache-2.0
//! Who gets which certificate, by tokens that the API server issues and reviews.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::cli::Output;
use e2e::conformance::{self, Authority};
use e2e::plane::client::Clients;
use e2e::tokens::AUDIENCE;
use serde_json::{Value, json};
use spiffe::SpiffeId;

use super::ground::{Ground, account, namespace, pod, running, workload, ztunnel};

pub(crate) fn identity(account: &str) -> SpiffeId {
    let text = format!("spiffe://cluster.local/ns/shop/sa/{account}");
    text.parse().expect("an identity")
}

#[tokio::test]
async fn a_node_proxy_gets_certificates_for_the_accounts_of_its_node_alone() -> Result<()> {
    let here = running("shop", "here", "here", "node-a", "10.1.0.1");
    let elsewhere = running("shop", "there", "there", "node-b", "10.1.0.2");
    let ground = Ground::with(&[here.clone(), elsewhere]).await?;
    let node = Clients::new(&ground.plane)?;
    let chain = node.certify(&identity("here")).await?;
    assert!(chain[0].contains("BEGIN CERTIFICATE"), "{chain:?}");
    for other in ["there", "nobody"] {
        let refused = node.certify(&identity(other)).await.expect_err(other);
        assert!(
            format!("{refused:#}").contains("authentication failure"),
            "{refused:#}"
        );
    }

    ground.cluster.delete(&here).await?;
    ground.served(&workload("here"), false).await?;
    assert!(node.certify(&identity("here")).await.is_err());
    Ok(())
}

#[tokio::test]
async fn only_tokens_for_the_mesh_of_pods_that_live_are_accepted() -> Result<()> {
    let objects = [account("shop", "default"), pod("web", "10.1.0.1")];
    let ground = Ground::with(&objects).await?;
    let other = ground.cluster.token(&ztunnel(), "somebody-else").await?;
    let meant_for_another = Clients::with_token(&ground.plane, &other)?;
    assert!(
        meant_for_another
            .certify(&identity("default"))
            .await
            .is_err()
    );
    ground.logged("the API server does not accept it").await?;

    // An account that is no node's proxy may not ask for others.
    let own = ground.cluster.token(&objects[1], AUDIENCE).await?;
    let pod = Clients::with_token(&ground.plane, &own)?;
    assert!(pod.certify(&identity("default")).await.is_err());

    let node = Clients::new(&ground.plane)?;
    node.certify(&identity("default")).await?;
    ground.cluster.delete(&ztunnel()).await?;
    ground
        .served("Kubernetes//Pod/istio-system/ztunnel-a", false)
        .await?;
    assert!(node.certify(&identity("default")).await.is_err());
    Ok(())
}

#[tokio::test]
async fn while_no_server_reviews_tokens_clients_are_told_to_come_again() -> Result<()> {
    let mut ground = Ground::with(&[pod("web", "10.1.0.1")]).await?;
    ground.cluster.kill().await?;
    let node = Clients::new(&ground.plane)?;
    let error = node
        .certify(&identity("default"))
        .await
        .expect_err("no server");
    assert!(
        format!("{error:#}").contains("tokens can't be reviewed now"),
        "{error:#}"
    );
    ground.cluster.restart().await?;
    node.certify(&identity("default")).await?;
    Ok(())
}

#[tokio::test]
async fn the_roots_are_in_every_namespace_and_come_back() -> Result<()> {
    let ground = Ground::with(&[namespace("kube-public")]).await?;
    let roots = std::fs::read_to_string(ground.plane.roots())?;
    for namespace in ["shop", "istio-system", "kube-system"] {
        holds(&ground, namespace, &roots).await?;
    }
    let edited = config("shop");
    ground
        .cluster
        .merge(&edited, &json!({"data": {"root-cert.pem": "another"}}))
        .await?;
    holds(&ground, "shop", &roots).await?;
    ground.cluster.delete(&edited).await?;
    holds(&ground, "shop", &roots).await?;
    ground.cluster.put(&namespace("late")).await?;
    holds(&ground, "late", &roots).await?;
    assert!(ground.cluster.get(&config("kube-public")).await.is_err());
    Ok(())
}

#[tokio::test]
async fn the_authority_meets_what_is_demanded_of_any() -> Result<()> {
    let ground = Ground::with(&[]).await?;
    let authority = Authority {
        kubeconfig: ground.cluster.folder().join("admin.json"),
        address: ground.plane.address().to_string(),
        roots: ground.plane.roots(),
        cluster_id: "Kubernetes".to_owned(),
        trust_domain: "cluster.local".parse()?,
        audience: AUDIENCE.to_owned(),
        proxy: ("istio-system".to_owned(), "ztunnel".to_owned()),
        patience: Duration::from_secs(30),
        case: Vec::new(),
        output: Output::Table,
    };
    let report = conformance::check(&authority).await?;
    assert!(
        report.conforms(),
        "{}\nlog: {}",
        report.table(),
        ground.log()
    );
    // Who is no proxy is refused all that a proxy is given.
    let stranger = Authority {
        proxy: ("shop".to_owned(), "default".to_owned()),
        patience: Duration::from_secs(2),
        case: vec!["own-node".to_owned(), "no-token".to_owned()],
        ..authority
    };
    ground.cluster.put(&account("shop", "default")).await?;
    let demands = conformance::check(&stranger).await?;
    let missed: Vec<_> = demands.cases.iter().map(|case| &case.fault).collect();
    assert!(matches!(missed[..], [Some(_), None]), "{}", demands.table());
    Ok(())
}

pub(crate) fn config(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": "istio-ca-root-cert"},
    })
}

/// Waits until a namespace holds these roots.
async fn holds(ground: &Ground, namespace: &str, roots: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let found = ground.cluster.get(&config(namespace)).await;
        if found
            .as_ref()
            .is_ok_and(|found| found["data"]["root-cert.pem"] == roots)
        {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{namespace} holds {found:?}; log: {}",
            ground.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
