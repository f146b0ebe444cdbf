// SPDX-License-Identifier: Apache-2.0
//! The server is lost, for a while or with its memory.

use anyhow::Result;

use super::ground::{Ground, deny, pod, policy, workload};

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
