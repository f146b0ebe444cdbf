// SPDX-License-Identifier: Apache-2.0
//! What the gateway knows of its network: services and workloads, as the control plane tells them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use mesh::{AddressBatch, Store, Update};
use parking_lot::{RwLock, RwLockReadGuard};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use proto::{ADDRESS_TYPE_URL, ads};
use xds::{Handler, Rejection, Resource};

use super::Gateway;

/// The state as of now; followed for as long as the runtime lives.
#[derive(Clone)]
pub(super) struct Discovery(Arc<RwLock<Store>>);

impl Discovery {
    /// Returns once everything is known.
    pub(super) async fn start(gateway: &Gateway) -> Result<Self> {
        let state = Self(Arc::new(RwLock::new(Store::new(None))));
        let control_plane = gateway.member.control_plane()?;
        let connect = move || -> xds::BoxFuture<'static, _> {
            let control_plane = control_plane.clone();
            Box::pin(async move { control_plane.channel().await })
        };
        let handler: Box<dyn Handler> = Box::new(state.clone());
        let client = xds::Client::new(connect, node(gateway), vec![handler], ());
        let mut synced = client.synced();
        tokio::spawn(client.run());
        synced
            .wait_for(|synced| *synced)
            .await
            .context("the control plane is no longer followed")?;
        Ok(state)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Store> {
        self.0.read()
    }
}

impl Handler for Discovery {
    fn type_url(&self) -> &'static str {
        ADDRESS_TYPE_URL
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        let updates = resources.iter().map(|resource| Update {
            name: &resource.name,
            body: &resource.body,
        });
        let (batch, rejected) = AddressBatch::decode(updates, removed);
        self.0.write().apply_addresses(batch);
        let rejection = |rejected: mesh::Rejection| {
            println!("rejected {}: {}", rejected.name, rejected.reason);
            Rejection {
                name: rejected.name,
                reason: rejected.reason,
            }
        };
        rejected.into_iter().map(rejection).collect()
    }
}

fn node(gateway: &Gateway) -> ads::Node {
    let account = &gateway.member.account;
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.into())),
    };
    let fields = [
        ("NAMESPACE", &account.namespace),
        ("SERVICE_ACCOUNT", &account.name),
    ];
    let fields: BTreeMap<String, Value> = fields
        .into_iter()
        .map(|(key, value)| (key.to_owned(), text(value)))
        .collect();
    let (pod, namespace) = (&gateway.pod, &account.namespace);
    ads::Node {
        id: format!("router~0.0.0.0~{pod}.{namespace}~{namespace}.svc.cluster.local"),
        metadata: Some(Struct { fields }),
        ..ads::Node::default()
    }
}
