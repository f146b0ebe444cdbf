// SPDX-License-Identifier: Apache-2.0
//! A member of the mesh that sends frames without end: what breaks the protocol or the bounds is ended with a reason, what
//! is only useless costs its sender; everybody else goes on.

use std::time::Duration;

use e2e::hostile::flood::Flooded;
use e2e::hostile::forge::{Forger, Validity};
use e2e::load::now;
use e2e::topology::Node;

use crate::ground::{BUSY, Background, TRAFFIC, beside, bounded, judge, timed, turn};

const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";

/// What must be answered or undone, what is malformed, and a word of the reason.
const ENDED: [(&str, &[&str], &str); 6] = [
    ("settings", &[], "PING and SETTINGS"),
    ("ping", &[], "PING and SETTINGS"),
    // Whoever takes no answer is not waited for.
    ("ping", &["--deaf"], ""),
    ("reset", &[], "streams that are opened and given up"),
    ("continuation", &[], "field"),
    ("push-promise", &[], "PUSH_PROMISE"),
];
/// What costs little: it may go on, and nobody must notice.
const BORNE: [&str; 5] = [
    "empty-data",
    "priority",
    "window-update",
    "unknown",
    "zero-window",
];

#[test]
fn a_flood_of_frames_is_ended_or_borne_and_nobody_else_notices() {
    let turn = turn();
    let before = turn.holding(Node::B).unwrap();
    let memory = || turn.lab.process("ztunnel-b").unwrap().memory().unwrap();
    let memory_before = memory();
    let trial = turn.begin_with(BUSY);
    let mut phases = vec![("quiet", now())];
    trial.load().go_on(Duration::from_secs(4));
    let stolen = Forger::with_the_stolen_key(turn.lab.state()).unwrap();
    let member = stolen.certificate(&[CLIENT], Validity::Now).unwrap();
    let file = turn.credentials(&member);
    let target = turn.tunnel("shop/web-b");
    let own = turn.echo("shop/web-b").to_string();
    let arguments = |kind: &'static str| {
        let file = file.to_str().unwrap().to_owned();
        [
            "flood",
            &target,
            "--kind",
            kind,
            "--authority",
            &own,
            "--credentials",
            &file,
        ]
        .map(str::to_owned)
    };
    let broken = || {
        let metrics = turn.lab.metrics(Node::B).unwrap();
        let flag = [("response_flags", "H2_HANDSHAKE_FAILURE")];
        metrics.sum("istio_tcp_connections_failed_total", &flag)
    };
    for (kind, more, reason) in ENDED {
        let counted = broken();
        phases.push((kind, now()));
        let arguments = arguments(kind);
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.extend(["--seconds", "20"]);
        arguments.extend(more);
        let flooded: Flooded = turn.hostile(Node::A, None, &arguments);
        println!("{kind} {more:?}: {flooded:?}");
        if kind == "reset" && flooded.ended_after.is_none() {
            // On a machine too slow for it to be a flood its streams are refused one by one (REFUSED_STREAM).
            assert_eq!(flooded.heard.reset, Some(7), "{flooded:?}");
            continue;
        }
        let after = flooded.ended_after.unwrap_or(Duration::MAX);
        bounded(
            &format!("{kind}: until it was ended"),
            after,
            Duration::from_secs(20),
        );
        // Whoever is not deaf is told by name what it did.
        if more.is_empty() {
            let (code, _) = flooded.heard.goaway.expect("no GOAWAY");
            assert_ne!(code, 0, "{kind}");
        }
        let entry = turn
            .lab
            .access_entry(Node::B, kind, |entry| {
                entry.error().is_some_and(|error| {
                    error.contains("broke the protocol") && error.contains(reason)
                })
            })
            .unwrap();
        println!("  {entry}");
        assert!(broken() > counted, "{kind} is not counted");
    }
    phases.push(("what is borne", now()));
    let floods: Vec<(&str, Background<Flooded>)> = BORNE
        .into_iter()
        .map(|kind| {
            let arguments = arguments(kind);
            let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            arguments.extend(["--seconds", "4"]);
            (kind, Background::start(&turn, Node::A, &arguments))
        })
        .collect();
    for (kind, flood) in floods {
        let flooded = flood.end();
        println!("{kind}: {flooded:?}");
        assert!(flooded.sent > 10_000, "{kind}: {flooded:?}");
    }
    let end = now();
    let ((), took) = timed(|| turn.until_released(Node::B, before, TRAFFIC));
    bounded(
        "until nothing was left of them",
        took,
        Duration::from_secs(30),
    );
    let verdict = judge("floods", trial);
    assert!(
        verdict.traffic.failures().is_empty(),
        "{:?}",
        verdict.traffic.failures()
    );
    beside(&verdict, &phases, end, Duration::from_millis(500));
    let grown = memory().saturating_sub(memory_before);
    println!("  memory grown by {} KiB", grown >> 10);
    assert!(grown < 64 << 20, "{grown} bytes more than before");
}
