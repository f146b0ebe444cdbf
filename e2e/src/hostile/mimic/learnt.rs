// SPDX-License-Identifier: Apache-2.0
//! All that the real control plane says to a proxy of a node.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use prost::Message as _;
use proto::ads::{self, DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use proto::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL};
use serde::{Deserialize, Serialize};
use xds::{Handler, Rejection, Resource};

use crate::member::Member;

pub(super) struct Learnt {
    pub(super) addresses: Vec<Resource>,
    pub(super) policies: Vec<Resource>,
}

/// How much that is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Count {
    pub addresses: usize,
    pub policies: usize,
}

impl Learnt {
    pub(super) async fn from(member: &Member) -> Result<Self> {
        let kinds = [ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL].map(Recorder::of);
        let handlers = kinds
            .iter()
            .cloned()
            .map(|kind| -> Box<dyn Handler> { Box::new(kind) });
        let control_plane = member.control_plane()?;
        let connect = move || -> xds::BoxFuture<'static, _> {
            let control_plane = control_plane.clone();
            Box::pin(async move { control_plane.channel().await })
        };
        let account = &member.account;
        let node = ads::Node {
            id: format!(
                "ztunnel~0.0.0.0~mimic.{0}~{0}.svc.cluster.local",
                account.namespace
            ),
            ..ads::Node::default()
        };
        let client = xds::Client::new(connect, node, handlers.collect(), ());
        let mut synced = client.synced();
        let following = tokio::spawn(client.run());
        let learnt = synced.wait_for(|synced| *synced).await.map(drop);
        following.abort();
        learnt.context("the control plane says nothing")?;
        let [addresses, policies] = kinds.map(|kind| std::mem::take(&mut *kind.heard.lock()));
        Ok(Self {
            addresses,
            policies,
        })
    }

    pub(super) fn count(&self) -> Count {
        Count {
            addresses: self.addresses.len(),
            policies: self.policies.len(),
        }
    }

    fn of(&self, type_url: &str) -> &[Resource] {
        match type_url {
            ADDRESS_TYPE_URL => &self.addresses,
            AUTHORIZATION_TYPE_URL => &self.policies,
            _ => &[],
        }
    }

    /// What a client lacks of it, if it lacks anything.
    pub(super) fn beyond(&self, request: &DeltaDiscoveryRequest) -> Option<Vec<u8>> {
        let held = &request.initial_resource_versions;
        let lacks = |resource: &&Resource| held.get(&*resource.name) != Some(&resource.version);
        let resources: Vec<_> = self
            .of(&request.type_url)
            .iter()
            .filter(lacks)
            .cloned()
            .collect();
        (!resources.is_empty()).then(|| {
            response(&request.type_url, "what was learnt", &resources, &[]).encode_to_vec()
        })
    }
}

/// A response in order.
pub(super) fn response(
    type_url: &str,
    nonce: &str,
    resources: &[Resource],
    removed: &[&str],
) -> DeltaDiscoveryResponse {
    let resource = |resource: &Resource| ads::Resource {
        name: resource.name.to_string(),
        version: resource.version.clone(),
        resource: Some(ads::ResourceBody {
            type_url: type_url.to_owned(),
            value: resource.body.clone(),
        }),
        ..ads::Resource::default()
    };
    DeltaDiscoveryResponse {
        type_url: type_url.to_owned(),
        nonce: nonce.to_owned(),
        resources: resources.iter().map(resource).collect(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..DeltaDiscoveryResponse::default()
    }
}

/// Keeps all that comes of one type.
#[derive(Clone)]
struct Recorder {
    type_url: &'static str,
    heard: Arc<Mutex<Vec<Resource>>>,
}

impl Recorder {
    fn of(type_url: &'static str) -> Self {
        Self {
            type_url,
            heard: Arc::default(),
        }
    }
}

impl Handler for Recorder {
    fn type_url(&self) -> &'static str {
        self.type_url
    }

    fn apply(&mut self, resources: Vec<Resource>, _removed: Vec<String>) -> Vec<Rejection> {
        self.heard.lock().extend(resources);
        Vec::new()
    }
}
