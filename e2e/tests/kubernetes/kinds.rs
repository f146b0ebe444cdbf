// SPDX-License-Identifier: Apache-2.0
//! Kinds come and go while the control plane runs.

use anyhow::Result;
use cluster::Kind;
use e2e::kubernetes::definition;

use super::ground::{Ground, deny, pod, policy, workload};

#[tokio::test]
async fn kinds_are_followed_once_they_are_defined_and_given_up_with_their_definition() -> Result<()>
{
    let ground = Ground::with(&[pod("web", "10.1.0.1")]).await?;
    ground.served(&workload("web"), true).await?;
    let kind = Kind::AuthorizationPolicy;
    for _round in 0..2 {
        ground.cluster.define(kind).await?;
        ground.cluster.put(&policy("deny", &deny(&["80"]))).await?;
        ground.served("shop/deny", true).await?;
        ground.cluster.delete(&definition(kind)).await?;
        ground.served("shop/deny", false).await?;
    }
    // All the while others are followed.
    ground.cluster.put(&pod("api", "10.1.0.2")).await?;
    ground.served(&workload("api"), true).await
}
