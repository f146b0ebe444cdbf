// SPDX-License-Identifier: Apache-2.0
//! Resources of a hostile control plane into the store, and every question that a proxy asks it afterwards.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use mesh::workload::NetworkMode;
use mesh::{
    AddressBatch, Connection, PolicyBatch, PortRule, Seen, Standings, Store, Update, authorize,
    balance,
};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

fuzz_target!(|data: &[u8]| {
    let mut store = Store::new(Some("node-a"));
    for (number, (kind, body)) in fuzz::parts(data).enumerate() {
        let name = format!("ns/{}", number % 4).into();
        let update = Update { name: &name, body };
        let text = || String::from_utf8_lossy(body).into_owned();
        match kind % 4 {
            0 => _ = store.apply_addresses(AddressBatch::decode([update], Vec::new()).0),
            1 => _ = store.apply_policies(PolicyBatch::decode([update], Vec::new()).0),
            2 => _ = store.apply_addresses(AddressBatch::decode([], vec![text()]).0),
            _ => _ = store.apply_policies(PolicyBatch::decode([], vec![text()]).0),
        }
    }
    ask(&store);
    serde_json::to_vec(&mesh::dump::Dump::of(&store)).expect("a dump is valid JSON");
    let names: Vec<_> = store
        .workloads()
        .map(|workload| workload.uid.to_string())
        .chain(
            store
                .services()
                .map(|(service, _)| service.key().to_string()),
        )
        .collect();
    // Twice, since a workload may have the name of a service, and goes first.
    for _ in 0..2 {
        store.apply_addresses(AddressBatch::decode([], names.clone()).0);
    }
    assert_eq!((store.workload_count(), store.service_count()), (0, 0));
    assert_eq!(
        store.staged().count(),
        0,
        "endpoints of workloads that are gone"
    );
});

fn ask(store: &Store) {
    let id = "spiffe://cluster.local/ns/ns/sa/sa"
        .parse()
        .expect("an identity");
    let mut rng = StdRng::seed_from_u64(1);
    for workload in store.workloads() {
        let policies = store.policies_for(workload);
        let clients = [
            ("10.0.0.1:1", Some(&id), None),
            ("10.0.0.1:1", Some(&id), Some(&id)),
            ("[::1]:1", None, None),
        ];
        for (source, identity, caller) in clients {
            let source: SocketAddr = source.parse().expect("an address");
            let connection = Connection {
                source_ip: source.ip(),
                identity,
                caller,
                destination: source,
            };
            let decision = authorize(&policies, &connection);
            assert_eq!(decision, authorize(&policies, &connection));
        }
        for address in &*workload.addresses {
            // One that shares its node's address is never found by it.
            let found = store.workload_by_ip(&workload.network, *address);
            match workload.network_mode {
                NetworkMode::Standard => assert!(found.is_some()),
                NetworkMode::HostNetwork => {
                    assert!(found.is_none_or(|found| found.uid != workload.uid));
                }
            }
            let _ = balance::choose_address(workload, None, *address);
        }
        let seen = Seen {
            standings: &Standings::default(),
            tried: &[],
            now: std::time::Instant::now(),
        };
        for (service, _) in store.services() {
            for port in [80, 443] {
                for rule in [PortRule::Defined, PortRule::DefinedOrTunnelled] {
                    if let Ok(picked) =
                        balance::pick(store, service, workload, port, rule, seen, &mut rng)
                    {
                        assert!(store.endpoints(service).contains(&picked.workload));
                    }
                }
            }
        }
    }
}
