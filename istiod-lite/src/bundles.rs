// SPDX-License-Identifier: Apache-2.0
//! The ConfigMaps that policies take authorities from, at an API server: asked for by name, again and again.
//!
//! To follow them all would have every ConfigMap of the cluster come by, and take the right to read whatever is in them
//! into a list; to `get` those that somebody names takes less of both. There are few of them, and they change rarely.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::{Client, kinds};
use http::Request;
use ops::shutdown::DrainSignal;
use tokio::sync::{mpsc, watch};

use crate::{facts::NamespacedName, translate::backend_tls};

/// How often they are asked for; one that is named anew is at once.
const AGAIN: Duration = Duration::from_secs(5);

/// The certificates of a ConfigMap, or why there are none; nothing where there is no such ConfigMap.
pub type Bundle = Option<Result<String, String>>;

/// Tells of each that is wanted what it holds, whenever that has changed. One of which the server can't be asked stays as it
/// was.
pub async fn keep(
    mut wanted: watch::Receiver<BTreeSet<NamespacedName>>,
    told: mpsc::Sender<(NamespacedName, Bundle)>,
    client: Client,
    drain: DrainSignal,
) {
    let mut known: BTreeMap<NamespacedName, Bundle> = BTreeMap::new();
    loop {
        let names = wanted.borrow_and_update().clone();
        let gone = known.extract_if(.., |name, _| !names.contains(name));
        for name in gone.map(|(name, _)| name).collect::<Vec<_>>() {
            if told.send((name, None)).await.is_err() {
                return;
            }
        }
        for name in names {
            let found = match ask(&client, &name).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(configmap = %name, %error, "authorities can't be read now");
                    continue;
                }
            };
            if known.get(&name) == Some(&found) {
                continue;
            }
            known.insert(name.clone(), found.clone());
            if told.send((name, found)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGAIN), if !known.is_empty() || !wanted.borrow().is_empty() => {}
            () = drain.requested() => return,
        }
    }
}

async fn ask(client: &Client, name: &NamespacedName) -> Result<Bundle, cluster::RequestError> {
    let NamespacedName { namespace, name } = name;
    // As the server has it at hand; names that make no path are none of an object.
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}?resourceVersion=0");
    let Ok(request) = Request::get(path).body(Vec::new()) else {
        return Ok(None);
    };
    match client.call(request).await {
        Ok(found) => Ok(Some(
            match serde_json::from_value::<kinds::ConfigMap>(found) {
                Ok(map) => backend_tls::certificates(&map),
                Err(error) => Err(format!("it can't be read: {error}")),
            },
        )),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}
