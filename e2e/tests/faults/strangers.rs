// SPDX-License-Identifier: Apache-2.0
//! Peers at a pod's tunnel port that are not of the mesh, or ask for what is not theirs: refused at once, in words, and
//! counted; and many at once, who keep nobody else out.

use std::time::Duration;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::hostile::crowd::Crowded;
use e2e::hostile::forge::{Forger, Validity};
use e2e::hostile::http2::Heard;
use e2e::hostile::shake::Shaken;
use e2e::hostile::stray::Strayed;
use e2e::load::now;
use e2e::topology::Node;

use crate::ground::{BUSY, Background, TRAFFIC, Turn, beside, bounded, judge, timed, turn};

/// Somebody whom the mesh knows and lets in.
const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";

/// A peer that is refused.
struct Stranger<'a> {
    who: &'a str,
    credentials: Option<String>,
    more: &'a [&'a str],
    /// What the counter calls it.
    word: &'a str,
    /// What the log says of it.
    text: &'a str,
    /// What it is told.
    told: &'a str,
}

fn handshakes_refused(turn: &Turn, word: &str) -> f64 {
    let metrics = turn.lab.metrics(Node::B).unwrap();
    metrics.sum("culvert_handshakes_refused_total", &[("reason", word)])
}

#[test]
fn whoever_is_not_of_the_mesh_is_refused_at_once_in_words_and_counted() {
    let turn = turn();
    let trial = turn.begin();
    let stolen = Forger::with_the_stolen_key(turn.lab.state()).unwrap();
    let signed = |names: &[&str], validity| Some(stolen.certificate(names, validity).unwrap());
    let likeness = Forger::with_a_likeness().unwrap();
    let strangers = [
        Stranger {
            who: "nobody",
            credentials: None,
            more: &[],
            word: "no_certificate",
            text: "sent no certificates",
            told: "CertificateRequired",
        },
        Stranger {
            who: "one whose authority only looks like the mesh's",
            credentials: Some(likeness.certificate(&[CLIENT], Validity::Now).unwrap()),
            more: &[],
            word: "unknown_issuer",
            text: "UnknownIssuer",
            told: "UnknownCA",
        },
        Stranger {
            who: "one of another trust domain",
            credentials: signed(&["spiffe://elsewhere/ns/shop/sa/client"], Validity::Now),
            more: &[],
            word: "trust_domain",
            text: "of another trust domain",
            told: "alert",
        },
        Stranger {
            who: "one with two names",
            credentials: signed(
                &[CLIENT, "spiffe://cluster.local/ns/shop/sa/web"],
                Validity::Now,
            ),
            more: &[],
            word: "no_identity",
            text: "exactly one SPIFFE id",
            told: "alert",
        },
        Stranger {
            who: "one whose time is over",
            credentials: signed(&[CLIENT], Validity::Over),
            more: &[],
            word: "expired",
            text: "expired",
            told: "CertificateExpired",
        },
        Stranger {
            who: "one whose time has not come",
            credentials: signed(&[CLIENT], Validity::NotYet),
            more: &[],
            word: "not_valid_yet",
            text: "not valid yet",
            told: "alert",
        },
        Stranger {
            who: "one of yesterday's TLS",
            credentials: signed(&[CLIENT], Validity::Now),
            more: &["--tls", "1.2"],
            word: "incompatible",
            text: "incompatible",
            told: "ProtocolVersion",
        },
        Stranger {
            who: "one who speaks something else inside",
            credentials: signed(&[CLIENT], Validity::Now),
            more: &["--protocol", "http/1.1"],
            word: "protocol",
            text: "protocol",
            told: "NoApplicationProtocol",
        },
    ];
    let target = turn.tunnel("shop/web-b");
    for (place, stranger) in strangers.iter().enumerate() {
        // The log tells of five a second, those that other cases had refused among them.
        if place % 4 == 0 {
            std::thread::park_timeout(Duration::from_millis(1100));
        }
        let Stranger {
            who,
            credentials,
            more,
            word,
            text,
            told,
        } = stranger;
        let before = handshakes_refused(&turn, word);
        let shaken: Shaken = turn.hostile(
            Node::A,
            credentials.as_deref(),
            &[&["shake", &target], *more].concat(),
        );
        println!("{who}: {shaken:?}");
        assert!(!shaken.admitted, "{who}");
        let refusal = shaken.refusal.unwrap_or_default();
        assert!(refusal.contains(told), "{who} was told: {refusal}");
        bounded(
            &format!("{who}: until told"),
            shaken.took,
            Duration::from_secs(5),
        );
        let entry = turn
            .lab
            .access_entry(Node::B, who, |entry| {
                entry.error().is_some_and(|error| error.contains(text))
                    && entry.is_inbound()
                    && entry.is("dst.addr", &target)
            })
            .unwrap();
        println!("  {entry}");
        let counted = handshakes_refused(&turn, word) - before;
        assert_eq!(counted, 1.0, "{who} as {word}");
        assert!(
            turn.refusals(Node::B).contains(text),
            "{who} in the admin view"
        );
    }
    // The same certificate without any of this is let in: it was not refused for something else.
    let good = signed(&[CLIENT], Validity::Now);
    let shaken: Shaken = turn.hostile(Node::A, good.as_deref(), &["shake", &target]);
    assert!(shaken.admitted, "{shaken:?}");
    let verdict = judge("strangers", trial);
    assert!(verdict.traffic.failures().is_empty());
}

#[test]
fn a_member_that_asks_for_what_is_not_served_is_refused_and_its_tunnel_is_all_it_costs() {
    let turn = turn();
    let trial = turn.begin();
    let stolen = Forger::with_the_stolen_key(turn.lab.state()).unwrap();
    let member = stolen.certificate(&[CLIENT], Validity::Now).unwrap();
    let target = turn.tunnel("shop/web-b");
    let own = turn.echo("shop/web-b").to_string();
    let others = turn.echo("shop/vault").to_string();
    let failed = |flag: &str| {
        let metrics = turn.lab.metrics(Node::B).unwrap();
        metrics.sum(
            "istio_tcp_connections_failed_total",
            &[("response_flags", flag)],
        )
    };
    // What it asks, how it is answered, which flag counts it, and what the log says.
    type Answered = fn(&Heard) -> bool;
    let cases: [(&[&str], Answered, &str, &str); 6] = [
        (
            &["--authority", &others],
            |heard| heard.status.is_some_and(|status| status >= 400),
            "BAD_REQUEST",
            &others,
        ),
        (
            &["--authority", &own, "--method", "GET"],
            |heard| heard.status.is_some_and(|status| status >= 400),
            "BAD_REQUEST",
            "malformed request",
        ),
        (
            &["--authority", "no.such.host.example:9000"],
            |heard| heard.status.is_some_and(|status| status >= 400),
            "BAD_REQUEST",
            "no.such.host.example",
        ),
        (
            &["--authority", "127.0.0.1:15000"],
            |heard| heard.status.is_some_and(|status| status >= 400),
            "BAD_REQUEST",
            "127.0.0.1:15000",
        ),
        (
            &["--authority", &own, "--padding", "200"],
            |heard| heard.status.is_none_or(|status| status >= 400),
            "H2_HANDSHAKE_FAILURE",
            "broke the protocol",
        ),
        (
            &["--authority", &own, "--instead", "GET / HTTP/1.1\r\n\r\n"],
            |heard| heard.status.is_none() && (heard.closed || heard.goaway.is_some()),
            "H2_HANDSHAKE_FAILURE",
            "broke the protocol",
        ),
    ];
    for (arguments, answered, flag, text) in cases {
        let before = failed(flag);
        let heard: Heard = turn.hostile(
            Node::A,
            Some(&member),
            &[&["ask", &target], arguments].concat(),
        );
        println!("{arguments:?}: {heard:?}");
        assert!(answered(&heard), "{arguments:?}: {heard:?}");
        eventually("it is counted and told", Duration::from_secs(10), || {
            ensure!(failed(flag) > before, "{flag} is still {before}");
            ensure!(turn.refusals(Node::B).contains(text), "{text} is not told");
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{arguments:?}: {error:#}"));
    }
    let verdict = judge("what is not served", trial);
    assert!(verdict.traffic.failures().is_empty());
}

#[test]
fn what_arrives_in_plain_text_for_somebody_else_is_refused_with_a_reason() {
    let turn = turn();
    let trial = turn.begin();
    let pod = turn.echo("shop/web-b").ip().to_string();
    let refused = || {
        let metrics = turn.lab.metrics(Node::B).unwrap();
        metrics.sum("istio_tcp_connections_failed_total", &[])
    };
    // Nobody's, and that of a pod which would answer.
    for to in [
        "10.99.9.9:9000".to_owned(),
        turn.echo("shop/web-a").to_string(),
    ] {
        let before = refused();
        let strayed: Strayed = turn.hostile(Node::B, None, &["stray", "--pod", &pod, "--to", &to]);
        println!("{to}: {strayed:?}");
        assert_eq!(strayed.heard, 0, "{to}: {strayed:?}");
        assert!(strayed.error.is_some(), "{to} goes on: {strayed:?}");
        let entry = turn
            .lab
            .access_entry(Node::B, "why", |entry| {
                entry.is_inbound() && entry.is("dst.addr", &to) && entry.error().is_some()
            })
            .unwrap();
        println!("  {entry}");
        assert!(refused() > before, "{to} is not counted");
        assert!(
            turn.refusals(Node::B).contains(&to),
            "{to} in the admin view"
        );
    }
    let verdict = judge("somebody else's", trial);
    assert!(verdict.traffic.failures().is_empty());
}

/// More than a pod may have in their handshake.
const CROWD: u32 = 1500;

#[test]
fn a_crowd_that_never_speaks_keeps_nobody_out_and_leaves_nothing_behind() {
    let turn = turn();
    let before = turn.holding(Node::B).unwrap();
    let memory = || turn.lab.process("ztunnel-b").unwrap().memory().unwrap();
    let memory_before = memory();
    let trial = turn.begin_with(BUSY);
    let quiet = now();
    trial.load().go_on(Duration::from_secs(4));
    let phases = [("quiet", quiet), ("crowds", now())];
    let target = turn.tunnel("shop/web-b");
    let crowd = |target: &str, count: u32, more: &[&str]| {
        let count = count.to_string();
        let arguments = [&["crowd", target, "--count", &count], more].concat();
        Background::<Crowded>::start(&turn, Node::A, &arguments)
    };
    let refused = |reason: &str| {
        let metrics = turn.lab.metrics(Node::B).unwrap();
        metrics.sum("culvert_connections_refused_total", &[("reason", reason)])
    };
    let (timeouts, garbage) = (
        handshakes_refused(&turn, "timeout"),
        handshakes_refused(&turn, "not_tls"),
    );
    let silent = crowd(&target, CROWD, &["--again"]);
    let ledger = turn.tunnel("strict/ledger");
    let dribbling = crowd(&ledger, 50, &["--manner", "dribbling"]);
    let babbling = crowd(&turn.tunnel("shop/vault"), 200, &["--manner", "garbage"]);
    eventually("the pod is full of them", Duration::from_secs(30), || {
        ensure!(
            refused("half_open_tunnels") > 0.0,
            "nobody had to leave yet"
        );
        Ok(())
    })
    .unwrap();
    // Somebody honest who comes now, from elsewhere, is through all the same.
    let stolen = Forger::with_the_stolen_key(turn.lab.state()).unwrap();
    let member = stolen.certificate(&[CLIENT], Validity::Now).unwrap();
    for _ in 0..10 {
        let shaken: Shaken = turn.hostile(Node::B, Some(&member), &["shake", &target]);
        assert!(shaken.admitted, "{shaken:?}");
    }
    turn.lab
        .access_entry(Node::B, "that some had to leave", |entry| {
            entry
                .error()
                .is_some_and(|error| error.contains("MAX_HALF_OPEN_TUNNELS_PER_POD"))
        })
        .unwrap();
    eventually("the slow ones are cut", Duration::from_secs(40), || {
        let cut = handshakes_refused(&turn, "timeout") - timeouts;
        ensure!(cut >= 50.0, "{cut} were");
        let garbage = handshakes_refused(&turn, "not_tls") - garbage;
        ensure!(garbage == 200.0, "{garbage} of those who spoke no TLS");
        Ok(())
    })
    .unwrap();
    let end = now();
    let told = |text: &str| trial.log("ztunnel-b").unwrap().matches(text).count();
    let many = told("MAX_HALF_OPEN_TUNNELS_PER_POD");
    let all = refused("half_open_tunnels");
    println!("{many} of {all} were told one by one");
    assert!((many as f64) < all, "one line for each of {all}");
    for (who, crowd) in [
        ("silent", silent),
        ("dribbling", dribbling),
        ("babbling", babbling),
    ] {
        let crowded = crowd.end();
        println!("{who}: {crowded:?}");
        assert_eq!(crowded.refused, 0, "{who}: {crowded:?}");
        assert!(crowded.sent_away > 0, "{who}: {crowded:?}");
        bounded(
            &format!("{who}: the longest that one was borne with"),
            crowded.longest,
            Duration::from_secs(30),
        );
    }
    let ((), took) = timed(|| turn.until_released(Node::B, before, TRAFFIC));
    bounded(
        "until nothing was left of them",
        took,
        Duration::from_secs(30),
    );
    let verdict = judge("a crowd", trial);
    assert!(
        verdict.traffic.failures().is_empty(),
        "{:?}",
        verdict.traffic.failures()
    );
    // Tens of thousands of connections come and go meanwhile, made and ended by the same few cores.
    beside(&verdict, &phases, end, Duration::from_secs(1));
    let grown = memory().saturating_sub(memory_before);
    println!("  memory grown by {} KiB", grown >> 10);
    assert!(grown < 64 << 20, "{grown} bytes more than before");
}
