// SPDX-License-Identifier: Apache-2.0
//! What the mesh has nothing to say to is forwarded, and comes back as a pod outside of the mesh would have got it.

use e2e::dns::zone::ODD_OPTION;
use e2e::topology::Node;
use e2e::traffic::Outcome;

use crate::ground::{answer, ask, asked_upstream, bytes, lab};

#[test]
fn captured_pods_get_the_very_bytes_that_others_get() {
    let (lab, _peace) = lab();
    let check = |question: &[&str], seen: &dyn Fn(&e2e::dns::message::Message) -> bool| {
        let direct = answer(lab, "outside/legacy", question);
        let captured = answer(lab, "shop/client", question);
        assert_eq!(captured.transport, direct.transport, "{question:?}");
        assert_eq!(bytes(&captured), bytes(&direct), "{question:?}");
        // And it is the answer that this test is about.
        let message = captured.message().unwrap();
        assert!(seen(message), "{question:?}: {message:?}");
    };
    check(&["host-itself.lab.example"], &|m| {
        m.data("A") == ["10.77.0.53"] && m.answers[0].ttl == 17
    });
    check(&["HoSt.LaB.example", "AAAA"], &|m| {
        m.questions[0].name == "HoSt.LaB.example."
    });
    check(&["alias.lab.example"], &|m| m.answers.len() == 2);
    check(&["_echo._tcp.lab.example", "SRV"], &|m| {
        m.additionals.len() == 1
    });
    check(&["mail.lab.example", "MX"], &|m| {
        m.data("MX") == ["10 host.lab.example."]
    });
    check(&["words.lab.example", "TXT"], &|m| {
        m.data("TXT")[0].contains("\\xff\\x00")
    });
    check(&["odd.lab.example", "TYPE65280"], &|m| {
        m.data("TYPE65280") == ["\\# 4 0001feff"]
    });
    // No such record and no such name, each with what says for how long.
    check(&["words.lab.example"], &|m| {
        m.rcode == "NOERROR" && m.authorities[0].ttl == 33
    });
    check(&["none.lab.example"], &|m| {
        m.rcode == "NXDOMAIN" && m.authorities[0].ttl == 33
    });
    check(&["none.shop.svc.cluster.local"], &|m| m.rcode == "NXDOMAIN");
    check(&["broken.lab.example"], &|m| m.rcode == "SERVFAIL");
    check(&["refused.lab.example"], &|m| m.rcode == "REFUSED");
    // Cut short, then over TCP; and so large a datagram as the client takes.
    check(&["large.lab.example", "TXT", "--udp"], &|m| {
        m.has("tc") && m.answers.is_empty()
    });
    check(&["large.lab.example", "TXT"], &|m| m.answers.len() == 40);
    check(&["many.lab.example", "A", "--tcp"], &|m| {
        m.answers.len() == 100
    });
    check(&["large.lab.example", "TXT", "--edns", "8000"], &|m| {
        m.answers.len() == 40
    });
    let option = [
        "host.lab.example",
        "A",
        "--edns",
        "1232",
        "--dnssec",
        "--option",
        "10=0011",
    ];
    check(&option, &|m| {
        let edns = m.edns.as_ref().unwrap();
        let expected = [
            (10, "0011".to_owned()),
            (ODD_OPTION.0, ODD_OPTION.1.to_owned()),
        ];
        edns.options == expected && edns.dnssec_ok
    });
}

#[test]
fn the_upstream_is_asked_by_the_pod_itself_over_the_same_transport() {
    let (lab, _peace) = lab();
    let client = lab.v4("shop/client", 0).unwrap().ip();
    let name = "only-once.lab.example";
    ask(lab, "shop/client", &[name, "A", "--udp"]);
    ask(lab, "shop/client", &[name, "SRV", "--tcp"]);
    assert_eq!(
        asked_upstream(lab, &format!("{name}."), &["A", "SRV"]),
        [
            format!("udp {client} {name}. A"),
            format!("tcp {client} {name}. SRV")
        ]
    );
}

#[test]
fn a_name_of_the_mesh_exists_whatever_record_is_asked_for() {
    let (lab, _peace) = lab();
    // Upstream knows no such name; a client that hears so forgets the addresses too.
    let plain = answer(lab, "outside/legacy", &["api.test", "HTTPS"]);
    assert_eq!(plain.message().unwrap().rcode, "NXDOMAIN");
    let answered = answer(lab, "names/asker", &["api.test", "HTTPS"]);
    let message = answered.message().unwrap();
    assert_eq!(message.rcode, "NOERROR");
    assert_eq!(message.authorities[0].record_type, "SOA");
}

#[test]
fn an_upstream_that_says_nothing_is_a_failure_with_its_reason() {
    let (lab, _peace) = lab();
    let question = ["silence.lab.example", "A", "--edns", "1232"];
    let answered = answer(lab, "shop/client", &question);
    let message = answered.message().unwrap();
    assert_eq!(message.rcode, "SERVFAIL");
    let option = &message.edns.as_ref().unwrap().options[0];
    let reason = String::from_utf8(e2e::dns::message::unhex(&option.1[4..]).unwrap()).unwrap();
    assert!(
        reason.starts_with("no upstream server answered: 10.77.0.53:53: no answer within 2s"),
        "{reason}"
    );
    // In time for a client that would ask again after five seconds.
    assert!(answered.milliseconds < 5000, "{answered:?}");
    let dump = lab
        .traffic("node-a", &["get", "127.0.0.1:15000", "/config_dump"])
        .unwrap();
    assert_eq!(dump.outcome, Outcome::Done);
    assert!(
        dump.answer
            .unwrap()
            .contains("silence.lab.example. no upstream server answered")
    );
    let refused = lab.metrics(Node::A).unwrap();
    assert!(refused.sum("culvert_dns_refused_total", &[("reason", "upstream")]) >= 1.0);
}
