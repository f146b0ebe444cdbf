// SPDX-License-Identifier: Apache-2.0
//! What is applied is pushed, one object at a time.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::ground::{Ground, deny, pod, policy, workload};

#[tokio::test]
async fn what_is_applied_is_pushed_and_what_is_deleted_is_taken_back() -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    });
    let ground = Ground::with(&[pod("web", "10.1.0.1"), service]).await?;
    let (mut client, held) = ground.addresses().await?;
    assert!(held.contains_key(&workload("web")), "{held:?}");
    let host = "shop/web.shop.svc.cluster.local";
    assert!(held.contains_key(host), "{held:?}");

    ground.cluster.put(&pod("api", "10.1.0.2")).await?;
    let api = workload("api");
    while !(client.next_addresses().await?.resources.iter()).any(|pushed| pushed.name == api) {}

    ground.cluster.delete(&pod("web", "10.1.0.1")).await?;
    let web = workload("web");
    while !(client.next_addresses().await?.removed_resources).contains(&web) {}
    Ok(())
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_reported_and_holds_up_no_other() -> Result<()> {
    let future = policy("future", &json!({"of": "another shape"}));
    let ground = Ground::with(&[future, policy("deny", &deny(&["80"]))]).await?;
    let about = |name: &str, wrong: bool| {
        let about = format!("AuthorizationPolicy shop/{name}: spec.rules");
        move |said: &serde_json::Value| said["source"].to_string().contains(&about) == wrong
    };
    ground.served("shop/deny", true).await?;
    ground
        .eventually("/debug/problems", about("future", true))
        .await?;

    // What it said while it could be read stays in force.
    let deny_all = policy("deny", &deny(&["80"]));
    ground
        .cluster
        .merge(&deny_all, &json!({"spec": {"rules": 7}}))
        .await?;
    ground
        .eventually("/debug/problems", about("deny", true))
        .await?;
    ground.cluster.put(&pod("web", "10.1.0.1")).await?;
    ground.served(&workload("web"), true).await?;
    ground.served("shop/deny", true).await?;
    ground.cluster.put(&policy("other", &deny(&["81"]))).await?;
    ground.served("shop/other", true).await?;

    for name in ["deny", "future"] {
        let mended = json!({"spec": {"rules": deny(&["82"])}});
        ground
            .cluster
            .merge(&policy(name, &json!([])), &mended)
            .await?;
        ground
            .eventually("/debug/problems", about(name, false))
            .await?;
        ground.served(&format!("shop/{name}"), true).await?;
    }
    ground.cluster.delete(&deny_all).await?;
    ground.served("shop/deny", false).await
}

#[tokio::test]
async fn a_slow_server_is_followed_at_its_pace() -> Result<()> {
    let pods: Vec<_> = (1..=100)
        .map(|number| pod(&format!("web-{number}"), &format!("10.1.0.{number}")))
        .collect();
    let slow = Duration::from_millis(100);
    let ground = Ground::begin(&pods, |cluster| cluster.gate.slow(slow)).await?;
    let (_client, held) = ground.addresses().await?;
    let known = held.keys().filter(|name| name.contains("//Pod/shop/web-"));
    assert_eq!(known.count(), pods.len());
    ground.cluster.delete(&pods[99]).await?;
    ground.served(&workload("web-100"), false).await?;
    ground.cluster.put(&pod("late", "10.1.1.1")).await?;
    ground.served(&workload("late"), true).await
}
