// SPDX-License-Identifier: Apache-2.0
//! The server is lost, for a while or with its memory; and the control plane's clock jumps.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::clock;
use super::conditions::condition;
use super::ground::{Ground, Replica, deny, pod, policy, populated, replica_with, workload};
use super::leader::holder;

#[tokio::test]
async fn a_lost_server_takes_nothing_back() -> Result<()> {
    let objects = [pod("web", "10.1.0.1"), policy("deny", &deny(&["80"]))];
    let mut ground = Ground::with(&objects).await?;
    ground.served("shop/deny", true).await?;
    let (mut client, held) = ground.addresses().await?;
    assert!(held.contains_key(&workload("web")), "{held:?}");
    ground.cluster.kill().await?;
    let lost = |said: &serde_json::Value| {
        said["source"]
            .to_string()
            .contains("Pod: can't be followed")
    };
    ground.eventually("/debug/problems", lost).await?;
    ground.served("shop/deny", true).await?;
    ground.served(&workload("web"), true).await?;

    ground.cluster.restart().await?;
    ground.cluster.put(&pod("api", "10.1.0.2")).await?;
    // On the stream that was open all the while, and without a word in between.
    let pushed = client.next_addresses().await?;
    let names: Vec<_> = pushed.resources.iter().map(|one| &one.name).collect();
    assert_eq!(
        (names, pushed.removed_resources.len()),
        (vec![&workload("api")], 0)
    );
    ground.cluster.delete(&objects[0]).await?;
    ground.served(&workload("web"), false).await?;
    ground.served("shop/deny", true).await?;
    ground
        .eventually("/debug/problems", |said| !lost(said))
        .await
}

#[tokio::test]
async fn what_happened_in_a_time_that_is_forgotten_is_found_out() -> Result<()> {
    let objects = [
        pod("web", "10.1.0.1"),
        pod("old", "10.1.0.2"),
        policy("deny", &deny(&["80"])),
        policy("gone", &deny(&["81"])),
    ];
    let mut ground = Ground::with(&objects).await?;
    ground.served("shop/gone", true).await?;

    ground.cluster.gate.cut();
    ground.cluster.delete(&objects[1]).await?;
    ground.cluster.delete(&objects[3]).await?;
    ground.cluster.put(&pod("new", "10.1.0.3")).await?;
    ground.cluster.forget_the_past().await?;
    // The server itself remembers more than its store, until it starts again.
    ground.cluster.kill().await?;
    ground.cluster.restart().await?;
    ground.cluster.gate.open();

    ground.served(&workload("new"), true).await?;
    ground.served(&workload("old"), false).await?;
    ground.served("shop/gone", false).await?;
    ground.served(&workload("web"), true).await?;
    ground.served("shop/deny", true).await?;
    // Else nothing had expired.
    ground.logged("all is listed again").await
}

/// Seconds of a day.
const DAY: i64 = 86_400;

#[tokio::test]
async fn a_clock_that_jumps_takes_nothing_back_and_the_leader_stays() -> Result<()> {
    let object = policy("deny", &deny(&["80"]));
    let cluster = populated(&[pod("web", "10.1.0.1"), object.clone()]).await?;
    let (library, file) = (clock::build()?, cluster.folder().join("clock"));
    let variables = [("LD_PRELOAD", &*library), ("CLOCK_OFFSET", &*file)];
    let plane = replica_with(&cluster, Replica::A, "", &variables).await?;
    let ground = Ground { plane, cluster };
    let cluster = &ground.cluster;
    condition(cluster, &object, 1).await?;
    let leader = holder(cluster, |holder| !holder.is_empty()).await?;
    let (mut client, held) = ground.addresses().await?;
    assert!(held.contains_key(&workload("web")), "{held:?}");

    for (round, offset) in [(1, DAY), (2, -DAY)] {
        clock::set(&file, offset)?;
        let name = format!("api-{round}");
        cluster
            .put(&pod(&name, &format!("10.1.0.1{round}")))
            .await?;
        // On the stream that was open all the while, and nothing else with it.
        let pushed = client.next_addresses().await?;
        let names: Vec<_> = pushed.resources.iter().map(|one| &one.name).collect();
        assert_eq!(
            (names, pushed.removed_resources.len()),
            (vec![&workload(&name)], 0)
        );
        let ports = deny(&[&round.to_string()]);
        cluster
            .merge(&object, &serde_json::json!({"spec": {"rules": ports}}))
            .await?;
        condition(cluster, &object, round + 1).await?;
        // It renews the Lease every two seconds.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(holder(cluster, |_| true).await?, leader);
    }

    // Certificates of another day go with it: whoever comes now is answered.
    clock::set(&file, 0)?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let held = loop {
        match ground.addresses().await {
            Ok((_, held)) => break held,
            Err(error) => ensure!(Instant::now() < deadline, "{error:#}; {}", ground.log()),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    for name in ["web", "api-1", "api-2"] {
        assert!(held.contains_key(&workload(name)), "{name}: {held:?}");
    }
    Ok(())
}
