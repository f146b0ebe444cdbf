// SPDX-License-Identifier: Apache-2.0
//! Manifests to resources: whatever is written, ztunnel and the waypoint accept what comes out; and withdrawing all
//! leaves nothing.
#![no_main]

use std::collections::BTreeMap;

use cluster::Event;
use istiod_lite::catalogue::{Change, Place, ResourceType};
use istiod_lite::index::Index;
use istiod_lite::translate::Mesh;
use libfuzzer_sys::fuzz_target;
use mesh::{AddressBatch, PolicyBatch, Store, Update};
use prost::Message as _;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let objects: BTreeMap<_, _> = cluster::fuzzing::manifests(text, false)
        .into_iter()
        .map(|object| (object.key(), object))
        .collect();
    let mut index = Index::new(Mesh {
        cluster_id: "Kubernetes".into(),
        cluster_domain: "cluster.local".into(),
        trust_domain: Default::default(),
        root_namespace: "istio-system".into(),
        auto_allocate: Some(Default::default()),
        dry_run_at_ztunnels: true,
    });
    let applied = objects.values().cloned().map(Event::Applied);
    let made = index.apply(applied).resources;
    accept(&made);
    // One after the other comes to the same.
    let mut stepwise = Index::new(Mesh {
        cluster_id: "Kubernetes".into(),
        cluster_domain: "cluster.local".into(),
        trust_domain: Default::default(),
        root_namespace: "istio-system".into(),
        auto_allocate: Some(Default::default()),
        dry_run_at_ztunnels: true,
    });
    let mut last = BTreeMap::new();
    for object in objects.values().rev() {
        let changes = stepwise.apply([Event::Applied(object.clone())]).resources;
        last.extend(
            changes
                .into_iter()
                .map(|change| (key(&change), change.body)),
        );
    }
    last.retain(|_, body| body.is_some());
    let made: BTreeMap<_, _> = made
        .into_iter()
        .map(|change| (key(&change), change.body))
        .collect();
    assert_eq!(made, last);
    let mut left = made;
    for change in index
        .apply(objects.into_keys().map(Event::Deleted))
        .resources
    {
        assert!(change.body.is_none(), "{change:?}");
        left.remove(&key(&change));
    }
    assert!(left.is_empty(), "{left:?}");
});

fn key(change: &Change) -> Place {
    change.place.clone()
}

fn accept(made: &[Change]) {
    let of = |of: ResourceType| {
        made.iter()
            .filter(move |change| change.place.of == of)
            .map(|change| Update {
                name: &change.place.name,
                body: change
                    .body
                    .as_deref()
                    .expect("nothing was there to be removed"),
            })
    };
    let (addresses, refused) = AddressBatch::decode(of(ResourceType::Address), Vec::new());
    assert!(refused.is_empty(), "{refused:?}");
    let (policies, refused) = PolicyBatch::decode(of(ResourceType::Authorization), Vec::new());
    assert!(refused.is_empty(), "{refused:?}");
    for Update { name, body } in of(ResourceType::Waypoint) {
        let message = proto::waypoint::Waypoint::decode(body).expect("it was encoded just now");
        let compiled = waypoint::settings::Settings::compile(&message);
        assert!(compiled.is_ok(), "{name}: {compiled:?}");
    }
    for Update { name, body } in of(ResourceType::WaypointService) {
        let message = proto::waypoint::Service::decode(body).expect("it was encoded just now");
        let compiled = waypoint::route::Service::compile(&message);
        assert!(compiled.is_ok(), "{name}: {compiled:?}");
    }
    let mut store = Store::new(Some("node-a"));
    store.apply_policies(policies);
    store.apply_addresses(addresses);
}
