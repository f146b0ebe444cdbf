// SPDX-License-Identifier: Apache-2.0
//! Does one piece of the data path's pure work so many times, to have its instructions counted: `instructions CASE TIMES`.
//!
//! Who counts runs it twice, with few times and with many; the difference is what the work costs, without what it takes
//! to get there. `e2e bench instructions` does.

#![expect(
    clippy::unwrap_used,
    reason = "a program for the bench; what it needs and does not get ends it"
)]

use std::fmt::Write as _;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use hbone::hot::{Frames, Records, Requests};
use hbone::wire::{Baggage, ConnectRequest, Forwarded, TraceParent, WorkloadKind};
use mesh::{LocalConfig, Recent, Seen, Standings, Store};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use ztunnel::config::Socks5;
use ztunnel::connections::InboundFacts;
use ztunnel::route;

/// Its name, and what does it so many times.
type Case = (&'static str, fn(usize));

const CASES: [Case; 7] = [
    ("record-16k", |times| records(16 << 10, times)),
    ("record-64", |times| records(64, times)),
    ("frames-64", frames),
    ("connect-request", requests),
    ("route", routes),
    ("authorize", decisions),
    ("remember", memories),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let case = words
        .first()
        .and_then(|word| CASES.iter().find(|(name, _)| name == word));
    let times = words.get(1).and_then(|word| word.parse().ok());
    let (Some((_, work)), Some(times)) = (case, times) else {
        let names = CASES.map(|(name, _)| name).join(" | ");
        eprintln!("instructions CASE TIMES, where CASE is {names}");
        return ExitCode::FAILURE;
    };
    work(times);
    ExitCode::SUCCESS
}

fn records(content: usize, times: usize) {
    let mut records = Records::new(content);
    for _ in 0..times {
        assert_eq!(black_box(&mut records).seal_and_open(), content);
    }
}

fn frames(times: usize) {
    let mut frames = Frames::new();
    for _ in 0..times {
        assert_eq!(black_box(&mut frames).write_and_read(), 64 << 10);
    }
}

fn requests(times: usize) {
    let text = |text: &str| Some(text.to_owned());
    let request = ConnectRequest {
        authority: "10.1.2.3:8080".parse().unwrap(),
        baggage: Some(Baggage {
            cluster: text("Kubernetes"),
            namespace: text("shop"),
            workload: Some((WorkloadKind::Deployment, "client".into())),
            service: text("client"),
            revision: text("v1"),
            region: text("north"),
            zone: text("north-1"),
        }),
        forwarded: Some(Forwarded {
            source: Some("10.1.1.9:40000".parse().unwrap()),
            host: text("web.shop.svc.cluster.local"),
        }),
        traceparent: Some(TraceParent::new(0x1234_5678_9abc_def0, 7)),
        network: None,
        caller: None,
    };
    let mut requests = Requests::new();
    for _ in 0..times {
        let read = requests.write_and_read(black_box(&request));
        assert_eq!(read.authority, request.authority);
    }
}

/// 30 services of six pods each, and twenty policies for all of them.
fn mesh() -> Store {
    let mut text = String::from("workloads:\n");
    for pod in 0..180 {
        let service = pod / 6;
        let _ = write!(
            text,
            r#"- uid: w{pod}
  name: pod-{pod}
  namespace: shop
  serviceAccount: account-{service}
  trustDomain: cluster.local
  workloadIps: ["10.1.0.{pod}"]
  protocol: HBONE
  node: n{}
  services: {{"shop/svc-{service}.shop.svc.cluster.local": {{80: 8080}}}}
"#,
            pod % 3 + 1
        );
    }
    text.push_str("services:\n");
    for service in 0..30 {
        let _ = writeln!(
            text,
            r#"- {{name: svc-{service}, namespace: shop, hostname: svc-{service}.shop.svc.cluster.local, vips: ["/10.96.0.{service}"], ports: {{80: 8080}}}}"#
        );
    }
    text.push_str("policies:\n");
    for policy in 0..20 {
        let _ = write!(
            text,
            r"- name: allow-{policy}
  namespace: shop
  scope: Namespace
  action: Allow
  dryRun: false
  rules: [[[ {{ serviceAccounts: [ {{ namespace: shop, serviceAccount: account-{policy} }} ], destinationPorts: [8080] }} ]]]
"
        );
    }
    let mut store = Store::new(Some("n1"));
    LocalConfig::parse(&text).unwrap().load_into(&mut store);
    store
}

fn routes(times: usize) {
    let store = mesh();
    let standings = Standings::default();
    let source = store.workload("w0").unwrap();
    let mut rng = StdRng::seed_from_u64(7);
    let now = Instant::now();
    for time in 0..times {
        let service = (time % 30) as u8;
        let connection = route::Outbound {
            source,
            source_ip: [10, 1, 0, 0].into(),
            destination: ([10, 96, 0, service], 80).into(),
            network: "",
            own_ports: route::OwnPorts::with(Socks5::Off),
            seen: Seen {
                standings: &standings,
                tried: &[],
                now,
            },
        };
        let route = route::route(black_box(&store), connection, &mut rng);
        assert!(matches!(route, route::Route::Hbone { .. }), "{route:?}");
    }
}

fn decisions(times: usize) {
    let store = mesh();
    let pod = store.workload("w0").unwrap();
    let policies = store.policies_for(pod);
    // The one that allows it is the last.
    let identity = "spiffe://cluster.local/ns/shop/sa/account-19"
        .parse()
        .unwrap();
    for _ in 0..times {
        let decision = mesh::authorize(
            black_box(&policies),
            &mesh::Connection {
                source_ip: [10, 1, 0, 120].into(),
                identity: Some(&identity),
                caller: None,
                destination: ([10, 1, 0, 0], 8080).into(),
            },
        );
        assert!(decision.is_allowed(), "{decision:?}");
    }
}

/// One kind of connection after the other, as a pod with eight clients remembers them.
fn memories(times: usize) {
    let facts = |client: u8| InboundFacts {
        source_ip: [10, 1, 0, client].into(),
        identity: Some(
            format!("spiffe://cluster.local/ns/shop/sa/account-{client}")
                .parse()
                .unwrap(),
        ),
        claimed: None,
        destination: ([10, 1, 1, 1], 8080).into(),
    };
    let all: Vec<InboundFacts> = (0..8).map(facts).collect();
    let mut recent = Recent::new();
    for facts in all.iter().cycle().take(times) {
        let facts = black_box(facts);
        recent.note(1, facts, |known| known == facts, || facts.clone());
    }
    assert!(recent.lately(1).count() <= all.len());
}
