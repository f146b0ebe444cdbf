// SPDX-License-Identifier: Apache-2.0
//! What Gateway API's conformance suite asks of routes in a mesh, and of routes at gateways as far as it holds in a mesh.
//! The names of cases are those of the facts that they were taken from.
//!
//! Some are of gateways alone: I04 and I06 (a route of a mesh needs no ReferenceGrant: whom it leads to may be led to from
//! everywhere), I07 and I10 (listeners that admit routes of a namespace; a mesh's route has no listener), Z03 (a connection
//! of a browser that is used for a host of another certificate).

use std::collections::HashMap;

use super::*;

/// Each case: its name, a request, where it goes.
#[track_caller]
fn check(table: &HttpTable, cases: &[(&str, &str, &str)]) {
    for (case, request, expected) in cases {
        assert_eq!(&outcome(table, request), expected, "{case}: {request}");
    }
}

#[test]
fn all_to_one() {
    check(
        &table(&["-> v1"]),
        &[
            ("S01", "/", "v1"),
            ("M04", "/", "v1"),
            ("M04", "/any?a=b x:y", "v1"),
        ],
    );
    let split = table(&["=/v1 -> v1", "=/v2 -> v2"]);
    check(
        &split,
        &[
            ("M02", "/v1", "v1"),
            ("M02", "/v2", "v2"),
            ("M02", "/", "404"),
        ],
    );
}

#[test]
fn prefixes_and_headers() {
    let table = table(&["/ or version:one -> v1", "/v2 or version:two -> v2"]);
    check(
        &table,
        &[
            ("T01", "/", "v1"),
            ("T02", "/example", "v1"),
            ("T03", "/ version:one", "v1"),
            ("T04", "/v2", "v2"),
            ("T05", "/v2/example", "v2"),
            ("T06", "/ version:two", "v2"),
            ("T07", "/v2/", "v2"),
            ("T08", "/v2example", "v1"),
            ("T09", "/foo/v2/example", "v1"),
            // M03 has the same nine.
        ],
    );
}

/// Host names of routes are not looked at in a mesh; conditions on `Host` do what they did.
#[test]
fn several_routes_by_host() {
    let all = route(
        "all",
        [rule(
            "/ host:example.com or / host:example.net or host:example.com version:one \
        or host:example.net version:one -> v1",
        )],
    );
    let com = route(
        "com",
        [rule(
            "/v2 host:example.com or host:example.com version:two -> v2",
        )],
    );
    check(
        &HttpTable::compile(&[all, com]),
        &[
            ("A01", "@example.com /", "v1"),
            ("A02", "@example.com /example", "v1"),
            ("A03", "@example.net /example", "v1"),
            ("A04", "@example.com /example version:one", "v1"),
            ("A05", "@example.com /v2", "v2"),
            ("A06", "@example.net /v2", "v1"),
            ("A07", "@example.com /v2/example", "v2"),
            ("A08", "@example.com / version:two", "v2"),
            ("L04", "@example.org /", "404"),
        ],
    );
    let port = table(&[
        r"host~very\.specific\.com(:\d+)? -> v1",
        r"host~(.+\.)wildcard\.io -> v2",
    ]);
    check(
        &port,
        &[
            ("L01", "@very.specific.com:1234 /", "v1"),
            ("L02", "@a.b.wildcard.io /", "v2"),
            ("L03", "@wildcard.io /", "404"),
        ],
    );
}

#[test]
fn exact_paths() {
    let table = table(&["=/one -> v1", "=/two -> v2"]);
    check(
        &table,
        &[
            ("E01", "/one", "v1"),
            ("E02", "/two", "v2"),
            ("E03", "/", "404"),
            ("E04", "/one/example", "404"),
            ("E05", "/two/", "404"),
            ("E06", "/Two", "404"),
            ("E01", "/one?with=query", "v1"),
        ],
    );
}

#[test]
fn longer_paths_first() {
    let table = table(&[
        "=/match -> v1",
        "=/match/exact -> v2",
        "=/match/exact/one -> v3",
        "/match/ -> v3",
        "/match/prefix/ -> v1",
        "/match/prefix/one -> v2",
    ]);
    check(
        &table,
        &[
            ("P01", "/match/exact/one", "v3"),
            ("P02", "/match/exact", "v2"),
            ("P03", "/match", "v1"),
            ("P04", "/match/prefix/one/any", "v2"),
            ("P05", "/match/prefix/any", "v1"),
            ("P06", "/match/any", "v3"),
        ],
    );
}

const HEADERS: [&str; 5] = [
    "version:one -> v1",
    "version:two -> v2",
    "version:two color:orange -> v1",
    "color:blue or color:green -> v1",
    "color:red or color:yellow -> v2",
];

const HEADER_CASES: [(&str, &str, &str); 11] = [
    ("H01", "/ version:one", "v1"),
    ("H02", "/ version:two", "v2"),
    ("H03", "/ version:two color:orange", "v1"),
    ("H04", "/ version:two color:blue", "v2"),
    ("H05", "/ color:orange", "404"),
    ("H06", "/ some-other-header:one", "404"),
    ("H07", "/ color:blue", "v1"),
    ("H08", "/ color:green", "v1"),
    ("H09", "/ color:red", "v2"),
    ("H10", "/ color:yellow", "v2"),
    ("H11", "/ color:purple", "404"),
];

#[test]
fn headers() {
    check(&table(&HEADERS), &HEADER_CASES);
}

#[test]
fn methods() {
    let table = table(&[
        "POST -> v1",
        "GET -> v2",
        "/path1 GET -> v1",
        "PUT version:one -> v2",
        "/path2 POST version:two -> v3",
        "/path3 PATCH or /path4 DELETE version:three -> v1",
        "/path5 -> v1",
        "PATCH -> v2",
        "version:four -> v3",
    ]);
    check(
        &table,
        &[
            ("D01", "POST /", "v1"),
            ("D02", "GET /", "v2"),
            ("D03", "HEAD /", "404"),
            ("D04", "GET /path1", "v1"),
            ("D05", "PUT / version:one", "v2"),
            ("D06", "POST /path2 version:two", "v3"),
            ("D07", "PATCH /path3", "v1"),
            ("D08", "DELETE /path4 version:three", "v1"),
            ("D09", "PUT /", "404"),
            ("D10", "DELETE /path4", "404"),
            ("D11", "PATCH /path5", "v1"),
            ("D12", "PATCH / version:four", "v2"),
        ],
    );
}

/// M09 has fifteen of these.
#[test]
fn query_parameters() {
    let table = table(&[
        "?animal=whale -> v1",
        "?animal=dolphin -> v2",
        "?animal=dolphin ?color=blue or ?ANIMAL=Whale -> v3",
        "/path1 ?animal=whale -> v1",
        "version:one ?animal=whale -> v2",
        "/path2 version:two ?animal=whale -> v3",
        "/path3 ?animal=shark or /path4 version:three ?animal=kraken -> v1",
        "/path5 -> v1",
        "?animal=hydra -> v2",
        "version:four -> v3",
    ]);
    check(
        &table,
        &[
            ("Q01", "/?animal=whale", "v1"),
            ("Q02", "/?animal=dolphin", "v2"),
            ("Q03", "/?animal=dolphin&color=blue", "v3"),
            ("Q04", "/?ANIMAL=Whale", "v3"),
            ("Q05", "/?animal=whale&otherparam=irrelevant", "v1"),
            ("Q06", "/?animal=dolphin&color=yellow", "v2"),
            ("Q07", "/?color=blue", "404"),
            ("Q08", "/?animal=dog", "404"),
            ("Q09", "/?animal=whaledolphin", "404"),
            ("Q10", "/", "404"),
            ("Q11", "/path1?animal=whale", "v1"),
            ("Q12", "/?animal=whale version:one", "v2"),
            ("Q13", "/path2?animal=whale version:two", "v3"),
            ("Q14", "/path3?animal=shark", "v1"),
            ("Q15", "/path4?animal=kraken version:three", "v1"),
            ("Q16", "/?animal=shark", "404"),
            ("Q17", "/path4?animal=kraken", "404"),
            ("Q18", "/path5?animal=hydra", "v1"),
            ("Q19", "/?animal=hydra version:four", "v3"),
        ],
    );
}

#[test]
fn backends_that_are_none() {
    let table = table(&[
        "/forward -> v1",
        "/omitted-no-forward",
        "/kind -> invalid-kind",
        "/absent -> invalid-absent",
        "/good -> v1",
        "/zero -> v1*0 v2*0",
        "/v2 -> v2 ! the grant is gone",
    ]);
    check(
        &table,
        &[
            ("B01", "/forward", "v1"),
            ("B02", "/omitted-no-forward", "500"),
            ("B03", "/omitted-no-forward", "500"),
            ("I01", "/kind", "500"),
            ("I02", "/absent", "500"),
            ("I03", "/absent", "500"),
            ("I05", "/v2", "500"),
            ("I05", "/good", "v1"),
            ("W01", "/zero", "500"),
        ],
    );
}

/// Shares of a rule's requests, in percent.
fn shares(table: &HttpTable, request: &str) -> HashMap<String, f64> {
    const TIMES: u32 = 10_000;
    let asked = Asked::new(request);
    let mut rng = rng();
    let mut shares = HashMap::new();
    for _ in 0..TIMES {
        let went = match table.answer(&asked.request(), NOW, &mut rng) {
            Answer::Forward(forward) => forward.destination.hostname.to_string(),
            Answer::Here(Here::Refuse { reason, .. }) => reason.status().as_str().to_owned(),
            other => panic!("{other:?}"),
        };
        *shares.entry(went).or_default() += 100.0 / f64::from(TIMES);
    }
    shares
}

#[track_caller]
fn check_shares(rule: &str, expected: &[(&str, f64)]) {
    let shares = shares(&table(&[rule]), "/");
    assert_eq!(shares.len(), expected.len(), "{shares:?}");
    for (name, percent) in expected {
        let share = shares[*name];
        assert!((share - percent).abs() < 2.0, "{name}: {share}");
    }
}

/// W01, M05, G04, M23, and shares of references that lead nowhere.
#[test]
fn weights() {
    check_shares("-> v1*70 v2*30 v3*0", &[("v1", 70.0), ("v2", 30.0)]);
    check_shares("-> v1*3 invalid-one*1", &[("v1", 75.0), ("500", 25.0)]);
    check_shares("-> v1*1 invalid-one*0", &[("v1", 100.0)]);
}

#[test]
fn grpc_methods() {
    let mut grpc = route(
        "grpc",
        ["grpc:pkg.Echo/Echo -> v1", "grpc:pkg.Echo/EchoTwo -> v2"].map(rule),
    );
    grpc.kind = "GRPCRoute".into();
    let exact = HttpTable::compile(&[grpc]);
    check(
        &exact,
        &[
            ("G01", "POST /pkg.Echo/Echo", "v1"),
            ("G01", "POST /pkg.Echo/EchoTwo", "v2"),
            ("G02", "POST /pkg.Echo/EchoThree", "404"),
            ("G07", "POST /pkg.Other/Echo", "404"),
        ],
    );
    let unimplemented = Reason::NoRoute.grpc_status();
    assert_eq!(unimplemented, Some(12), "G02, G03: UNIMPLEMENTED");
    assert_eq!(
        Reason::InvalidBackend("it").grpc_status(),
        Some(14),
        "UNAVAILABLE"
    );
    // G03: metadata are headers.
    check(&table(&HEADERS), &HEADER_CASES);
    let parts = table(&[
        "-> all",
        "grpc:/Echo -> method",
        "grpc:pkg.Echo/ -> service",
        "grpc:pkg.Echo/Echo -> both",
        r"grpc:~pkg\..+/E.* -> pattern",
        r"grpc:~/X.* -> longest",
    ]);
    check(
        &parts,
        &[
            ("both", "POST /pkg.Echo/Echo", "both"),
            (
                "service before any method",
                "POST /pkg.Echo/Other",
                "service",
            ),
            ("pattern before method", "POST /pkg.Any/Echo", "pattern"),
            ("method", "POST /other/Echo", "method"),
            ("method only", "POST /other/Xyz", "longest"),
            ("nothing said", "POST /other/Other", "all"),
            ("whole service", "POST /pkg.Echo2/Other", "all"),
            ("no deeper", "POST /pkg.Any/Echo/deeper", "all"),
        ],
    );
}

/// B07, M14, and G05 of gRPC's: a name changes nothing but what is said of the rule.
#[test]
fn rules_are_named() {
    let mut named = rule("/named -> v1");
    named.name = "my-rule".into();
    let mut named_method = rule("grpc:pkg.Echo/Echo -> v1");
    named_method.name = "my-rule".into();
    let methods = [named_method, rule("grpc:pkg.Echo/EchoTwo -> v2")];
    let mut grpc = route("r", methods);
    grpc.kind = "GRPCRoute".into();
    let http = HttpTable::compile(&[route("r", [named, rule("/unnamed -> v2")])]);
    let grpc = HttpTable::compile(&[grpc]);
    for (table, request, backend, name) in [
        (&http, "/named", "v1", "HTTPRoute shop/r rule my-rule"),
        (&http, "/unnamed", "v2", "HTTPRoute shop/r rule #1"),
        (
            &grpc,
            "POST /pkg.Echo/Echo",
            "v1",
            "GRPCRoute shop/r rule my-rule",
        ),
        (
            &grpc,
            "POST /pkg.Echo/EchoTwo",
            "v2",
            "GRPCRoute shop/r rule #1",
        ),
    ] {
        assert_eq!(outcome(table, request), backend);
        let asked = Asked::new(request);
        let hit = table.find(&asked.request()).unwrap();
        assert_eq!(hit.rule.name.to_string(), name);
    }
}
