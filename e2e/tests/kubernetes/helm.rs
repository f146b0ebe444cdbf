// SPDX-License-Identifier: Apache-2.0
//! Helm at a real API server: what `deploy/chart` puts there is what the base says, another value changes it, and when it goes
//! the kinds, the policies and the authority's namespace stay.

use anyhow::{Context as _, Result, ensure};
use e2e::clients::Client::Helm;
use e2e::deploy;
use e2e::kubernetes::Cluster;
use serde_json::{Value, json};

use super::ground::{namespace, policy};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart");

/// What Helm says to these words, in the cluster.
fn helm(cluster: &Cluster, words: &[&str]) -> Result<String> {
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().context("no text")?;
    let place = ["--namespace", "istio-system", "--kubeconfig", kubeconfig];
    // It blocks its thread, which the cluster's gate may have been using.
    tokio::task::block_in_place(|| Helm.run(cluster.folder(), &[words, &place].concat()))
}

async fn replicas(cluster: &Cluster) -> Result<Value> {
    let istiod = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": "istio-system", "name": "istiod"},
    });
    Ok(cluster.get(&istiod).await?["spec"]["replicas"].take())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_is_installed_upgraded_and_removed_and_policies_outlive_it() -> Result<()> {
    let cluster = Cluster::start().await?;
    let objects = deploy::objects()?;
    let (kept, others): (Vec<&Value>, Vec<&Value>) = objects.iter().partition(|object| {
        ["Namespace", "CustomResourceDefinition"]
            .iter()
            .any(|kind| object["kind"] == *kind)
    });
    cluster.put(&objects[0]).await?;

    helm(&cluster, &["install", "culvert", CHART])?;
    for object in &objects {
        cluster.get(object).await?;
    }
    ensure!(replicas(&cluster).await? == 2);
    // It is the base: whoever goes on by kustomize has nothing to change but the fields' owner.
    for object in &others {
        cluster.check(object).await?;
    }

    let all = [
        "upgrade",
        "culvert",
        CHART,
        "--set=istiod.replicas=3,revision=next,trustDomain=corp.example,clusterId=east,logLevel=debug",
        "--set=image.registry=r.example,cni.binDir=/bin,ztunnel.gracePeriodSeconds=300",
        "--set=meshConfig.trustDomainAliases[0]=old",
    ];
    helm(&cluster, &all)?;
    ensure!(replicas(&cluster).await? == 3);
    let mesh = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "istio-system", "name": "istio"},
    });
    let settings = cluster.get(&mesh).await?["data"]["mesh"].take();
    assert_eq!(settings, "trustDomainAliases:\n- old\n");
    // As the README upgrades: what was said before still holds.
    let again = ["upgrade", "culvert", CHART, "--reset-then-reuse-values"];
    helm(&cluster, &again)?;
    ensure!(replicas(&cluster).await? == 3);
    helm(&cluster, &["rollback", "culvert", "1"])?;
    ensure!(replicas(&cluster).await? == 2);
    ensure!(cluster.get(&mesh).await.is_err(), "it went with its value");

    cluster.put(&namespace("shop")).await?;
    let policy = policy("nobody", &json!([{}]));
    cluster.put(&policy).await?;
    helm(&cluster, &["uninstall", "culvert"])?;
    for object in &others {
        let left = cluster.get(object).await;
        let gone = format!("{:#}", left.err().context("it is still there")?);
        ensure!(gone.contains("not found"), "{gone}");
    }
    for object in kept.iter().chain([&&policy]) {
        cluster.get(object).await?;
    }
    // And the chart takes its own kinds up again.
    helm(&cluster, &["install", "culvert", CHART])?;
    ensure!(replicas(&cluster).await? == 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_that_somebody_else_has_defined_are_left_to_them() -> Result<()> {
    let cluster = Cluster::start().await?;
    let objects = deploy::objects()?;
    cluster.put(&objects[0]).await?;
    let theirs = objects
        .iter()
        .find(|object| object["kind"] == "CustomResourceDefinition");
    let mut theirs = theirs.context("no definition")?.clone();
    theirs["metadata"]["labels"] = json!({"whose": "istio"});
    cluster.put(&theirs).await?;

    let refused = helm(&cluster, &["install", "culvert", CHART]);
    let refused = format!("{:#}", refused.err().context("it took them over")?);
    let name = theirs["metadata"]["name"].as_str().context("no name")?;
    ensure!(
        refused.contains(name) && refused.contains("invalid ownership metadata"),
        "{refused}"
    );
    helm(&cluster, &["install", "culvert", CHART, "--set=crds=false"])?;
    ensure!(replicas(&cluster).await? == 2);
    let now = cluster.get(&theirs).await?;
    assert_eq!(now["metadata"]["labels"], json!({"whose": "istio"}));
    Ok(())
}
