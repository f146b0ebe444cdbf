// SPDX-License-Identifier: Apache-2.0
//! Answers a request so many times, to have the instructions counted: `waypoint_instructions CASE TIMES`.
//!
//! Who counts runs it twice, with few times and with many, as for `instructions` of ztunnel. The same request is
//! answered by a service of one route and by one of a thousand, which should be no different.

#![expect(
    clippy::unwrap_used,
    reason = "a program for the bench; what it needs and does not get ends it"
)]

use std::hint::black_box;
use std::process::ExitCode;

use http::{HeaderMap, Method, Uri, Version};
use proto::waypoint::path_match::Kind;
use proto::waypoint::value_match::Value;
use proto::waypoint::{
    Destination, HttpBackend, HttpMatch, HttpRoute, HttpRule, PathMatch, Port, RouteTable,
    Service as Wire, ValueMatch, http_backend,
};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use waypoint::authz::{self, Access, ServerName};
use waypoint::hygiene;
use waypoint::memory::OfService;
use waypoint::path::{self, Normalization};
use waypoint::route::{Answer, Request, Service, Table};
use waypoint::session::UnixTime;

/// Its name, and what does it so many times.
type Case = (&'static str, fn(usize));

const CASES: [Case; 3] = [
    ("request-1", |times| requests(1, times)),
    ("request-1000", |times| requests(1000, times)),
    ("remember-request", memories),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let case = words
        .first()
        .and_then(|word| CASES.iter().find(|(name, _)| name == word));
    let times = words.get(1).and_then(|word| word.parse().ok());
    let (Some((_, work)), Some(times)) = (case, times) else {
        let names = CASES.map(|(name, _)| name).join(" | ");
        eprintln!("waypoint_instructions CASE TIMES, where CASE is {names}");
        return ExitCode::FAILURE;
    };
    work(times);
    ExitCode::SUCCESS
}

/// For each of `/app-0`, `/app-1`, ... a canary by a header, and two backends by weight.
fn service(routes: usize) -> Service {
    let backend = |name: &str, weight| HttpBackend {
        weight,
        target: Some(http_backend::Target::Destination(Destination {
            namespace: "shop".into(),
            hostname: format!("{name}.shop.svc.cluster.local"),
            port: 80,
            protocol: 0,
            traffic_policy: None,
        })),
        filters: Vec::new(),
    };
    let by = |at: usize, headers: Vec<ValueMatch>| HttpMatch {
        path: Some(PathMatch {
            kind: Some(Kind::Prefix(format!("/app-{at}"))),
        }),
        headers,
        ..HttpMatch::default()
    };
    let canary = || ValueMatch {
        name: "x-canary".into(),
        value: Some(Value::Exact("yes".into())),
        inverted: false,
    };
    let route = |at: usize| HttpRoute {
        rate_limit: None,
        kind: "HTTPRoute".into(),
        namespace: "shop".into(),
        name: format!("route-{at}"),
        created: 0,
        rules: vec![
            HttpRule {
                matches: vec![by(at, vec![canary()])],
                backends: vec![backend("canary", 1)],
                ..HttpRule::default()
            },
            HttpRule {
                matches: vec![by(at, Vec::new())],
                backends: vec![backend("v1", 90), backend("v2", 10)],
                ..HttpRule::default()
            },
        ],
    };
    let table = RouteTable {
        http: (0..routes).map(route).collect(),
        ..RouteTable::default()
    };
    let port = Port {
        number: 80,
        protocol: 0,
        tables: vec![table],
        traffic_policy: None,
    };
    let wire = Wire {
        namespace: "shop".into(),
        hostname: "cart.shop.svc.cluster.local".into(),
        policies: Vec::new(),
        token_rules: Vec::new(),
        telemetry: None,
        ports: vec![port],
    };
    Service::compile(&wire).unwrap()
}

fn requests(routes: usize, times: usize) {
    let service = service(routes);
    let last = format!("/app-{}/items/42?page=7", routes - 1);
    let uri: Uri = last.parse().unwrap();
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "cart.shop"),
        ("user-agent", "bench/1.0"),
        ("accept", "*/*"),
        ("x-request-id", "0123456789abcdef"),
        ("x-canary", "no"),
        ("content-type", "application/json"),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..times {
        let (uri, headers) = black_box((&uri, &headers));
        let target = hygiene::read(&Method::GET, Version::HTTP_11, uri, headers).unwrap();
        let path = path::normalize(target.path, Normalization::default()).unwrap();
        let request = Request {
            method: &Method::GET,
            scheme: "http",
            authority: target.authority,
            port: 80,
            path: &path,
            query: target.query,
            headers,
            claims: None,
        };
        let table = service.port(80).and_then(|port| port.table("shop"));
        let Some(Table::Http(table)) = table else {
            panic!("it has HTTP routes")
        };
        let answer = table.answer(&request, UnixTime(0), &mut rng);
        assert!(matches!(black_box(answer), Answer::Forward(_)));
    }
}

/// One kind of request after the other, as a service with eight paths remembers them.
fn memories(times: usize) {
    let identity = "spiffe://cluster.local/ns/shop/sa/client".parse().unwrap();
    let paths: Vec<String> = (0..8).map(|at| format!("/app-{at}/things")).collect();
    let headers = HeaderMap::new();
    let memory = OfService::default();
    for path in paths.iter().cycle().take(times) {
        memory.note(&Access {
            identity: black_box(&identity),
            source_ip: [10, 1, 0, 1].into(),
            remote_ip: [10, 1, 0, 1].into(),
            destination_ips: &[],
            destination_port: 80,
            trust_domains: &[],
            server_name: ServerName::Absent,
            request: Some(authz::Request {
                method: "GET",
                authority: "cart.shop.svc.cluster.local",
                path: black_box(path),
                headers: &headers,
                token: None,
                doubt: None,
            }),
        });
    }
}
