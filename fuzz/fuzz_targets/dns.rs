// SPDX-License-Identifier: Apache-2.0
//! What a pod asks, what an upstream server answers, and the file that names those servers.
//!
//! The first byte chooses: 0 a query, 1 a query and a response to it (each begun by its length), 2 a resolv.conf.
#![no_main]

use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use mesh::{LocalConfig, Store};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use ztunnel::config::Ipv6;
use ztunnel::dns::answer::{self, Answer, ExtendedError, Transport};
use ztunnel::dns::cache::{Cache, LONGEST};
use ztunnel::dns::message::{self, Family, Query, Rcode};
use ztunnel::dns::names::{self, Client, Decision, Domains, Name};
use ztunnel::dns::resolv_conf::ResolvConf;

const MESH: &str = r#"
workloads:
- {uid: w, name: w, namespace: shop, serviceAccount: w, trustDomain: cluster.local, workloadIps: ["10.0.0.1", "fd00::1"],
   protocol: HBONE, node: n, network: "", services: {shop/headless.shop.svc.cluster.local: {80: 80}}}
policies: []
services:
- {name: cart, namespace: shop, hostname: cart.shop.svc.cluster.local, vips: ["/10.96.0.1", "/fd96::1"], ports: {80: 80}}
- {name: headless, namespace: shop, hostname: headless.shop.svc.cluster.local, vips: [], ports: {80: 80}}
- {name: all, namespace: shop, hostname: "*.example.com", vips: ["/10.96.0.2"], ports: {80: 80}}
- {name: api, namespace: other, hostname: api.example.com, vips: ["/10.96.0.3"], ports: {80: 80}}
"#;

static STORE: LazyLock<Store> = LazyLock::new(|| {
    let mut store = Store::new(None);
    let _changes = LocalConfig::parse(MESH)
        .expect("it is a mesh")
        .load_into(&mut store);
    store
});

static DOMAINS: LazyLock<Domains> = LazyLock::new(|| Domains {
    cluster: "cluster.local".into(),
    preferred_namespace: None,
});

const CLIENT: Client<'static> = Client {
    namespace: "shop",
    network: "",
    ipv6: Ipv6::Enabled,
};

fuzz_target!(|data: &[u8]| {
    match data.split_first() {
        Some((0, message)) => asked(message),
        Some((1, rest)) => {
            let mut parts = fuzz::parts(rest).map(|(_, part)| part);
            if let (Some(query), Some(response)) = (parts.next(), parts.next()) {
                answered(query, response);
            }
        }
        Some((_, text)) => {
            let Ok(text) = std::str::from_utf8(text) else {
                return;
            };
            let conf = ResolvConf::parse(text);
            assert!(conf.servers.len() <= 8 && conf.attempts <= 5);
            assert!(!conf.patience.is_zero() && conf.patience.as_secs() <= 30);
            assert!(conf.servers.iter().all(|server| !server.ip().is_loopback()));
        }
        None => {}
    }
});

/// A message of a pod.
fn asked(message: &[u8]) {
    let query = match Query::parse(message) {
        Ok(query) => query,
        Err(error) => {
            let refused = error
                .rcode()
                .and_then(|rcode| message::refuse_unreadable(message, rcode));
            if let Some(refused) = refused {
                assert_eq!(refused[..2], message[..2]);
                assert!(refused.len() <= message.len(), "it amplifies nothing");
                assert_ne!(message::rcode_of(&refused), Rcode::NO_ERROR);
            }
            return;
        }
    };
    let _shown = query.shown_name();
    if let Some(host) = query.host() {
        let again = Query::for_host(&host, query.record_type).expect("a host can be asked for");
        assert_eq!(again.host(), Some(host));
    }
    for transport in [Transport::Udp, Transport::Tcp] {
        let limit = match (transport, query.edns) {
            (Transport::Tcp, _) => 65_535,
            (Transport::Udp, Some(edns)) => usize::from(edns.payload.max(512)),
            (Transport::Udp, None) => 512,
        };
        let check = |response: &[u8]| {
            assert!(message::is_response_to(&query, query.id(), response));
            assert!(response.len() <= limit, "{} of {limit}", response.len());
        };
        let reason = "r".repeat(300);
        check(&answer::refuse(
            &query,
            transport,
            Rcode::SERVER_FAILURE,
            ExtendedError::Other,
            &reason,
        ));
        let many = Answer {
            alias_of: Some(1),
            addresses: (0..5000u32)
                .map(|n| IpAddr::from(n.to_be_bytes()))
                .collect(),
        };
        check(&answer::answer(&query, transport, &many));
        let decide = || {
            names::decide(
                &STORE,
                &DOMAINS,
                CLIENT,
                &query,
                &mut StdRng::seed_from_u64(1),
            )
        };
        let decided = decide();
        assert_eq!(decided, decide(), "it is a function");
        let Decision::Answer(given) = decided else {
            assert!(
                matches!(decided, Decision::Forward(Name::Foreign)) || query.family().is_none()
            );
            continue;
        };
        let response = answer::answer(&query, transport, &given);
        check(&response);
        let current = query.edns.is_none_or(|edns| edns.version == 0);
        if let Some(family) = query.family()
            && current
            && !message::is_truncated(&response)
        {
            assert_eq!(message::addresses_in(&response, family), given.addresses);
        }
    }
}

/// What came back for a query.
fn answered(query: &[u8], response: &[u8]) {
    let found = [Family::V4, Family::V6].map(|family| message::records_in(response, family));
    let most = usize::from(message::answer_count(response)).min(response.len() / 11);
    assert!(found.iter().map(Vec::len).sum::<usize>() <= most);
    let Ok(query) = Query::parse(query) else {
        return;
    };
    if !message::is_response_to(&query, query.id(), response) {
        return;
    }
    let mut changed = response.to_vec();
    message::deny_record_only(&mut changed);
    assert_ne!(message::rcode_of(&changed), Rcode::NAME_ERROR);
    message::set_id(&mut changed, 7);
    assert!(
        message::is_response_to(&query, 7, &changed)
            || message::rcode_of(&changed) == Rcode::NO_ERROR
    );
    assert_eq!(
        message::is_truncated(response),
        message::is_truncated(&changed)
    );
    // What is kept is given again for a while, older and otherwise the same.
    let now = Instant::now();
    let mut cache = Cache::default();
    cache.keep(&query, Transport::Udp, response, now);
    if let Some(again) = cache.response(&query, Transport::Udp, now) {
        assert_eq!(again, response);
        let life = message::shortest_life(response).expect("it is kept for a time");
        let half = u64::from(life.min(60) / 2);
        let then = now + Duration::from_secs(half);
        if let Some(older) = cache.response(&query, Transport::Udp, then) {
            assert_eq!(older.len(), response.len());
            assert_eq!(message::shortest_life(&older), Some(life - half as u32));
        }
        assert!(
            cache
                .response(&query, Transport::Udp, now + LONGEST)
                .is_none()
        );
    }
}
