// SPDX-License-Identifier: Apache-2.0
//! All control planes serve, one writes, and another takes over.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::kubernetes::Cluster;
use e2e::plane::ControlPlane;
use e2e::plane::client::Clients;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::certificates::{config, identity};
use super::conditions::condition;
use super::ground::{Replica, deny, namespace, pod, policy, populated, replica};
use super::waypoints::{gateway, of, seen};

/// Two control planes, of which the first leads.
struct Pair {
    first: ControlPlane,
    second: ControlPlane,
    cluster: Cluster,
}

impl Pair {
    async fn start(objects: &[Value]) -> Result<Self> {
        let cluster = populated(objects).await?;
        let first = replica(&cluster, Replica::A, "a").await?;
        holder(&cluster, |holder| !holder.is_empty()).await?;
        let second = replica(&cluster, Replica::B, "b").await?;
        Ok(Self {
            first,
            second,
            cluster,
        })
    }

    /// What a user has written but for its claim to lead, what it tells other replicas of its certificates, and what it asked
    /// the server to judge.
    fn writes(&self, user: &str) -> Result<Vec<String>> {
        const EVERYBODYS: [&str; 3] = ["/leases", "/tokenreviews", "/istiod-lite-authority"];
        let everybodys = |uri: &str| EVERYBODYS.iter().any(|of| uri.contains(of));
        let writes = self.cluster.writes()?.into_iter();
        let of_user = writes.filter(|write| write.user == user && !everybodys(&write.uri));
        Ok(of_user
            .map(|write| format!("{} {}", write.verb, write.uri))
            .collect())
    }

    /// Waits until the roots are in a namespace.
    async fn roots_in(&self, name: &str) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.cluster.get(&config(name)).await.is_err() {
            ensure!(Instant::now() < deadline, "no roots in {name}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// Waits until the Lease is held by whoever is hoped for.
pub(crate) async fn holder(cluster: &Cluster, hoped: impl Fn(&str) -> bool) -> Result<String> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"namespace": "istio-system", "name": "istiod-lite-leader"},
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = cluster.get(&lease).await;
        let now = found.as_ref().ok();
        let now = now.and_then(|lease| lease["spec"]["holderIdentity"].as_str());
        if let Some(holder) = now.filter(|holder| hoped(holder)) {
            return Ok(holder.to_owned());
        }
        ensure!(Instant::now() < deadline, "it is held by {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn one_writes_and_all_serve_and_another_takes_over_from_a_leader_that_is_killed() -> Result<()>
{
    let object = policy("deny", &deny(&["80"]));
    let objects = [pod("web", "10.1.0.1"), object.clone(), gateway("waypoint")];
    let mut pair = Pair::start(&objects).await?;
    seen(&pair.cluster, &of("waypoint", "Service"), |_| true).await?;
    condition(&pair.cluster, &object, 1).await?;
    pair.roots_in("shop").await?;
    let before = holder(&pair.cluster, |_| true).await?;
    // It serves, and does no more.
    Clients::new(&pair.second)?
        .certify(&identity("default"))
        .await?;
    assert_eq!(pair.writes("replica-b")?, Vec::<String>::new());

    pair.first.signal(Signal::SIGKILL)?;
    let audit = json!({"spec": {"action": "AUDIT"}});
    pair.cluster.merge(&object, &audit).await?;
    pair.cluster.put(&namespace("late")).await?;
    pair.cluster.delete(&of("waypoint", "Service")).await?;
    let refused = condition(&pair.cluster, &object, 2).await?;
    assert_eq!(refused["status"], "False");
    pair.roots_in("late").await?;
    // The waypoint is the other's now: what is missing is made, and what is there is left as it is.
    seen(&pair.cluster, &of("waypoint", "Service"), |_| true).await?;
    let applied = |user: &str, kind: &str| {
        let made = format!("/{kind}/waypoint?");
        let writes = pair.writes(user)?.into_iter();
        anyhow::Ok(writes.filter(|write| write.contains(&made)).count())
    };
    assert_eq!(applied("replica-a", "deployments")?, 1);
    assert_eq!(applied("replica-b", "deployments")?, 0);
    assert_eq!(applied("replica-b", "services")?, 1);
    let after = holder(&pair.cluster, |_| true).await?;
    assert_ne!(after, before);
    assert!(!pair.writes("replica-b")?.is_empty());

    // One that ends in good order gives the Lease back.
    pair.first = replica(&pair.cluster, Replica::A, "a").await?;
    let began = Instant::now();
    pair.second.signal(Signal::SIGTERM)?;
    holder(&pair.cluster, |now| now != after && !now.is_empty()).await?;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(12), "as after a death: {took:?}");
    Ok(())
}

#[tokio::test]
async fn a_leader_that_slept_past_its_lease_writes_nothing_more() -> Result<()> {
    let object = policy("deny", &deny(&["80"]));
    let pair = Pair::start(std::slice::from_ref(&object)).await?;
    condition(&pair.cluster, &object, 1).await?;
    pair.roots_in("shop").await?;
    let before = holder(&pair.cluster, |_| true).await?;

    pair.first.signal(Signal::SIGSTOP)?;
    // It has to wake up to work that it has not done, and that waits in its sockets.
    let audit = json!({"spec": {"action": "AUDIT"}});
    pair.cluster.merge(&object, &audit).await?;
    pair.cluster.put(&namespace("late")).await?;
    holder(&pair.cluster, |holder| holder != before).await?;
    condition(&pair.cluster, &object, 2).await?;
    pair.roots_in("late").await?;
    // And to some that nobody has done yet.
    pair.cluster
        .merge(&object, &json!({"spec": {"action": "DENY"}}))
        .await?;
    let written = pair.writes("replica-a")?;
    pair.first.signal(Signal::SIGCONT)?;
    condition(&pair.cluster, &object, 3).await?;
    for (round, generation) in [(1, 4), (2, 5)] {
        let ports = deny(&[&round.to_string()]);
        pair.cluster
            .merge(&object, &json!({"spec": {"rules": ports}}))
            .await?;
        condition(&pair.cluster, &object, generation).await?;
        pair.cluster
            .put(&namespace(&format!("later-{round}")))
            .await?;
        pair.roots_in(&format!("later-{round}")).await?;
        // It hears of all that as well, and looks for what is due each second or two.
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(pair.writes("replica-a")?, written);
    Ok(())
}
