// SPDX-License-Identifier: Apache-2.0
//! The roots of the mesh in every namespace, as the ConfigMap `istio-ca-root-cert` that pods mount to trust the control
//! plane. What somebody edits or deletes is restored, by the replica that leads.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cluster::{Batch, Client, Event, Follow, Kind, Object, Source};
use ops::shutdown::DrainSignal;
use serde_json::json;

use crate::{ca::LiveAuthority, leader::Leadership, status};

const NAME: &str = "istio-ca-root-cert";
const KEY: &str = "root-cert.pem";
/// Tells Istio's own tools that the ConfigMap is configuration of the mesh.
const LABEL: (&str, &str) = ("istio.io/config", "true");
/// Nothing of the mesh runs there.
const WITHOUT: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];
/// How often to look for new roots, and to try again what failed.
const LOOK: Duration = Duration::from_secs(1);

/// What has to be followed for it.
pub fn followed() -> [Follow; 2] {
    [
        Follow::metadata(Kind::Namespace),
        Follow::all(Kind::ConfigMap).only(format!("metadata.name={NAME}")),
    ]
}

/// Keeps the roots in every namespace until the drain. `source` yields what is [`followed`].
pub async fn keep(
    mut source: Source,
    client: Client,
    authority: Arc<LiveAuthority>,
    leadership: Leadership,
    drain: DrainSignal,
) {
    let mut distribution = Distribution::default();
    distribution.take(source.next().await);
    let mut failing = BTreeSet::new();
    loop {
        let roots = authority.in_force().root_bundle_pem().to_owned();
        for namespace in distribution.due(&roots) {
            if !leadership.is_held() {
                break;
            }
            match write(&client, &namespace, &roots).await {
                Ok(()) => {
                    failing.remove(&namespace);
                    distribution.written(namespace, &roots);
                }
                Err(error) => {
                    metrics::counter!("culvert_root_configmap_write_failures_total").increment(1);
                    // Said once for as long as it lasts.
                    if failing.insert(namespace.clone()) {
                        tracing::warn!(namespace, %error, "the mesh's roots could not be written to ConfigMap {NAME}");
                    }
                }
            }
        }
        tokio::select! {
            batch = source.next() => distribution.take(batch),
            () = tokio::time::sleep(LOOK) => {}
            () = drain.requested() => return,
        }
    }
}

async fn write(client: &Client, namespace: &str, roots: &str) -> Result<(), cluster::RequestError> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{NAME}");
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {LABEL.0: LABEL.1}},
        "data": {KEY: roots},
    });
    client
        .apply(&path, status::MANAGER, &object)
        .await
        .map(drop)
}

/// Which namespaces there are and what each holds. Pure.
#[derive(Debug, Default)]
struct Distribution {
    namespaces: BTreeSet<String>,
    /// The roots of each that has any, under the right label.
    held: BTreeMap<String, String>,
}

impl Distribution {
    fn take(&mut self, batch: Batch) {
        batch.events.into_iter().for_each(|event| self.hear(event));
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Applied(Object::Namespace(namespace)) => {
                let name = namespace.metadata.name.clone().unwrap_or_default();
                // Nothing can be made any more in one that ends.
                if namespace.metadata.deletion_timestamp.is_some() {
                    self.namespaces.remove(&name);
                } else if !WITHOUT.contains(&name.as_str()) {
                    self.namespaces.insert(name);
                }
            }
            Event::Applied(object) => self.found(&object),
            Event::Deleted(key) if key.kind == Kind::Namespace => {
                self.namespaces.remove(&key.name);
            }
            Event::Deleted(key) => {
                self.held
                    .remove(key.namespace.as_deref().unwrap_or_default());
            }
        }
    }

    fn found(&mut self, object: &Object) {
        let Object::ConfigMap(config) = object else {
            return;
        };
        let labelled = object
            .labels()
            .get(LABEL.0)
            .is_some_and(|value| value == LABEL.1);
        let roots = config.data.as_ref().and_then(|data| data.get(KEY));
        match roots.filter(|_| labelled) {
            Some(roots) => self
                .held
                .insert(object.namespace().to_owned(), roots.clone()),
            None => self.held.remove(object.namespace()),
        };
    }

    /// What we wrote is held, though the server has not told us yet.
    fn written(&mut self, namespace: String, roots: &str) {
        self.held.insert(namespace, roots.to_owned());
    }

    /// The namespaces that don't hold these roots.
    fn due(&self, roots: &str) -> Vec<String> {
        let lacks = |name: &&String| self.held.get(*name).is_none_or(|held| held != roots);
        self.namespaces.iter().filter(lacks).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use cluster::{ObjectKey, kinds, object::Resource as _};

    use super::*;

    fn namespace(name: &str) -> Event {
        let namespace = json!({"metadata": {"name": name}});
        let namespace: kinds::Namespace = serde_json::from_value(namespace).expect("a namespace");
        Event::Applied(namespace.into_object())
    }

    fn config(namespace: &str, label: &str, roots: &str) -> Event {
        let config = json!({
            "metadata": {"name": NAME, "namespace": namespace, "labels": {LABEL.0: label}},
            "data": {KEY: roots},
        });
        let config: kinds::ConfigMap = serde_json::from_value(config).expect("a ConfigMap");
        Event::Applied(config.into_object())
    }

    #[track_caller]
    fn check(distribution: &mut Distribution, events: Vec<Event>, expected: &[&str]) {
        events
            .into_iter()
            .for_each(|event| distribution.hear(event));
        assert_eq!(distribution.due("r2"), expected);
    }

    #[test]
    fn whoever_does_not_hold_the_roots_is_due() {
        let mut it = Distribution::default();
        check(
            &mut it,
            vec![namespace("shop"), namespace("kube-public")],
            &["shop"],
        );
        check(&mut it, vec![config("shop", "true", "r1")], &["shop"]);
        it.written("shop".to_owned(), "r2");
        check(&mut it, vec![config("shop", "true", "r2")], &[]);
        check(&mut it, vec![config("shop", "false", "r2")], &["shop"]);
        check(&mut it, vec![config("shop", "true", "r2")], &[]);
        let gone = ObjectKey::namespaced(Kind::ConfigMap, "shop", NAME);
        check(&mut it, vec![Event::Deleted(gone)], &["shop"]);
        let gone = ObjectKey::cluster_wide(Kind::Namespace, "shop");
        check(&mut it, vec![Event::Deleted(gone)], &[]);
    }
}
