// SPDX-License-Identifier: Apache-2.0
//! Names of the mesh are answered by the proxy, in every spelling, and lead there.

use std::collections::BTreeSet;

use e2e::topology::Node;
use e2e::traffic::Outcome;

use crate::ground::{addresses, answer, ask, asked_upstream, lab};

#[test]
fn a_service_is_known_by_every_name_that_a_cluster_gives_it() {
    let (lab, _peace) = lab();
    for name in [
        "web",
        "web.shop",
        "web.shop.svc",
        "web.shop.svc.cluster.local",
        "Web.Shop.SVC.cluster.local",
    ] {
        for how in [
            &[][..],
            &["--tcp"],
            &["--server", "fd77::53"],
            &["--server", "10.9.9.9"],
        ] {
            let question = [&[name, "A"][..], how].concat();
            let answered = answer(lab, "shop/client", &question);
            assert_eq!(addresses(&answered, "A"), ["10.96.0.10"], "{question:?}");
        }
        let answered = answer(lab, "shop/client", &[name, "AAAA"]);
        assert_eq!(addresses(&answered, "AAAA"), ["fd96::10"], "{name}");
    }
    // From another namespace the short name means nothing.
    assert_eq!(
        ask(lab, "names/asker", &["web"]).message().unwrap().rcode,
        "NXDOMAIN"
    );
    assert_eq!(
        asked_upstream(lab, "web.shop.svc.cluster.local.", &["A", "AAAA"]),
        [""; 0]
    );
}

#[test]
fn an_answer_of_the_mesh_is_whole() {
    let (lab, _peace) = lab();
    let question = ["web.shop", "A", "--edns", "1232", "--dnssec"];
    let answered = answer(lab, "shop/client", &question);
    let message = answered.message().unwrap();
    assert_eq!(message.flags, ["qr", "aa", "rd", "ra"]);
    assert_eq!(message.answers[0].ttl, 30);
    assert_eq!(message.answers[0].name, "web.shop.");
    let edns = message.edns.as_ref().unwrap();
    assert_eq!(
        (edns.payload, edns.version, edns.dnssec_ok),
        (1232, 0, true)
    );
    // What the search list of a pod's resolv.conf makes of the name first.
    let searched = answer(lab, "shop/client", &["web.shop.shop.svc.cluster.local"]);
    let message = searched.message().unwrap();
    let shown: Vec<String> = message
        .answers
        .iter()
        .map(|record| format!("{} {} {}", record.name, record.record_type, record.data))
        .collect();
    assert_eq!(
        shown,
        [
            "web.shop.shop.svc.cluster.local. CNAME web.shop.",
            "web.shop. A 10.96.0.10"
        ]
    );
    // A family that the service lacks: the name exists, the record doesn't.
    let nothing = answer(lab, "names/asker", &["x.wild.test", "AAAA"]);
    let message = nothing.message().unwrap();
    assert_eq!(
        (message.rcode.as_str(), message.answers.len()),
        ("NOERROR", 0)
    );
}

#[test]
fn a_headless_service_is_answered_with_its_pods_in_any_order() {
    let (lab, _peace) = lab();
    let pods: BTreeSet<String> = ["shop/web-a", "shop/web-b"]
        .iter()
        .map(|pod| lab.v4(pod, 0).unwrap().ip().to_string())
        .collect();
    let mut firsts = BTreeSet::new();
    for _ in 0..40 {
        let answered = answer(lab, "shop/client", &["web-headless.shop"]);
        let data = answered.message().unwrap().data("A");
        assert_eq!(
            data.iter()
                .map(|ip| (*ip).to_owned())
                .collect::<BTreeSet<_>>(),
            pods
        );
        firsts.insert(data[0].to_owned());
        if firsts.len() == 2 {
            return;
        }
    }
    panic!("always {firsts:?} first");
}

#[test]
fn hosts_of_service_entries_are_known_and_wildcards_cover_what_is_below_them() {
    let (lab, _peace) = lab();
    let answered = |pod, host| addresses(&answer(lab, pod, &[host]), "A");
    assert_eq!(answered("names/asker", "api.test"), ["240.240.0.1"]);
    assert_eq!(answered("shop/client", "api.test"), ["240.240.0.1"]);
    assert_eq!(answered("shop/client", "x.wild.test"), ["240.240.0.2"]);
    assert_eq!(answered("shop/client", "y.x.wild.test"), ["240.240.0.2"]);
    let v6 = answer(lab, "names/asker", &["api.test", "AAAA"]);
    assert_eq!(addresses(&v6, "AAAA"), ["2001:2::1"]);
    for name in ["api.test.", "x.wild.test."] {
        assert_eq!(asked_upstream(lab, name, &["A", "AAAA"]), [""; 0]);
    }
}

#[test]
fn names_lead_to_what_they_name_by_the_c_librarys_resolver() {
    let (lab, _peace) = lab();
    for (pod, target, expected) in [
        ("shop/client", "web:80", "web-"),
        ("shop/client", "web.shop:80", "web-"),
        ("names/asker", "web.shop.svc.cluster.local:80", "web-"),
        ("names/asker", "api.test:80", "backend"),
        ("shop/client", "api.test:80", "backend"),
    ] {
        let report = lab.traffic(pod, &["get", target]).unwrap();
        assert_eq!(report.outcome, Outcome::Done, "{pod} {target}: {report:?}");
        let page = report.answer.unwrap();
        assert!(
            page.contains(&format!("\"pod\":\"{expected}")),
            "{pod} {target}: {page}"
        );
    }
    let entry = lab
        .access_entry(Node::A, "the connection to the name", |entry| {
            entry.is_final() && entry.is("dst.service", "api.test")
        })
        .unwrap();
    assert!(
        entry.is("dst.identity", "spiffe://cluster.local/ns/names/sa/names"),
        "{entry}"
    );
}

#[test]
fn many_questions_of_one_socket_are_all_answered() {
    let (lab, _peace) = lab();
    for name in ["web.shop", "host.lab.example"] {
        let answered = answer(lab, "shop/client", &[name, "A", "--times", "300"]);
        assert_eq!(answered.answered, 300);
    }
}

#[test]
fn lookups_are_counted() {
    let (lab, _peace) = lab();
    let count = |name: &str, query_type: &str, protocol: &str| {
        let labels = [
            ("request_query_type", query_type),
            ("request_protocol", protocol),
            ("source_canonical_service", "stranger"),
        ];
        lab.metrics(Node::A).unwrap().sum(name, &labels) as u64
    };
    let families = [
        "istio_dns_requests_total",
        "istio_dns_upstream_requests_total",
    ];
    let counts = || {
        [("a", "udp"), ("srv", "tcp")].map(|(query_type, protocol)| {
            families.map(|family| count(family, query_type, protocol))
        })
    };
    let before = counts();
    answer(lab, "shop/stranger", &["web.shop"]);
    answer(lab, "shop/stranger", &["host.lab.example"]);
    answer(
        lab,
        "shop/stranger",
        &["_echo._tcp.lab.example", "SRV", "--tcp"],
    );
    let after = counts();
    let grown = |n: usize| [after[n][0] - before[n][0], after[n][1] - before[n][1]];
    assert_eq!([grown(0), grown(1)], [[2, 1], [1, 1]]);
}
