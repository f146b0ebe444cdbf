// SPDX-License-Identifier: Apache-2.0
//! What authors are told about their objects.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::kubernetes::Cluster;
use serde_json::Value;

use super::ground::{Ground, deny, policy};

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
