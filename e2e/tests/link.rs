// SPDX-License-Identifier: Apache-2.0
//! The mesh over links that are late, lossy, out of order or narrow: every byte arrives, nothing stands still.
//!
//! One lab; its nodes are joined by a link whose terms each test sets for its turn.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use e2e::handle::{Lab, Link, Shared};
use e2e::link::Terms;
use e2e::load::{Line, Volume, now};
use e2e::traffic::{Outcome, Report};
use e2e::trial::{Course, Trial, Verdict};

static SHARED: Shared = Shared::new("link", env!("CARGO_BIN_EXE_e2e"));
static LINK: OnceLock<Mutex<Link>> = OnceLock::new();

/// The lab over a link of these terms, until it is dropped.
struct Turn {
    lab: &'static Lab,
    link: MutexGuard<'static, Link>,
}

fn over(terms: &str) -> Turn {
    let lab = SHARED.lab();
    let link = LINK.get_or_init(|| Mutex::new(lab.link(&Terms::default()).unwrap()));
    let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
    link.change(&terms.parse().unwrap()).unwrap();
    Turn { lab, link }
}

impl Turn {
    fn change(&mut self, terms: &str) {
        self.link.change(&terms.parse().unwrap()).unwrap();
    }

    /// On the other node.
    fn web_b(&self, port: u16) -> SocketAddr {
        self.lab.v4("shop/web-b", port).unwrap()
    }

    fn talk(&self, place: &str, arguments: &[&str]) -> Report {
        let report = self.lab.traffic(place, arguments).unwrap();
        assert_eq!(report.outcome, Outcome::Done, "{arguments:?}: {report:?}");
        report
    }

    /// Bulk both ways at once, by IPv4 and IPv6, then each way alone.
    fn bulk(&self, what: &str, bytes: u64, bound: Duration) {
        let started = Instant::now();
        let count = bytes.to_string();
        for target in [self.web_b(9000), self.lab.v6("shop/web-b", 9000).unwrap()] {
            let report = self.talk(
                "shop/client",
                &["echo", &target.to_string(), "--bytes", &count],
            );
            assert_eq!((report.sent, report.received), (bytes, bytes));
        }
        let target = self.web_b(9002).to_string();
        self.talk(
            "shop/client",
            &["finish-after-sending", &target, "--bytes", &count],
        );
        let (target, receipts) = (self.web_b(9003).to_string(), self.web_b(8080).to_string());
        let arguments = [
            "finish-after-server",
            &target,
            "--receipts",
            &receipts,
            "--bytes",
            &count,
        ];
        self.talk("shop/client", &arguments);
        bounded(
            &format!("{what}: 6 x {bytes} bytes"),
            started.elapsed(),
            bound,
        );
    }

    fn many_small(&self, what: &str, connections: u32, bound: Duration) {
        let started = Instant::now();
        let target = self.web_b(9000).to_string();
        let count = connections.to_string();
        let report = self.talk(
            "shop/client",
            &["parallel", &target, "--connections", &count],
        );
        assert_eq!(report.connections, u64::from(connections));
        bounded(
            &format!("{what}: {connections} connections, each used twice"),
            started.elapsed(),
            bound,
        );
    }

    fn begin(&self, volume: Volume) -> Trial<'static> {
        let course = Course {
            from: "shop/client",
            to: vec![self.web_b(9000)],
            volume,
        };
        Trial::begin(self.lab, &course).unwrap()
    }
}

fn bounded(what: &str, took: Duration, bound: Duration) {
    println!("{what}: {took:?} (bound {bound:?})");
    assert!(took <= bound, "{what}: {took:?}, more than {bound:?}");
}

/// Ends a trial in which nothing at all may fail, and tells how long it stood still at most.
fn flawless(what: &str, trial: Trial<'_>) -> Verdict {
    let verdict = trial.end().unwrap();
    verdict.check().unwrap();
    let failures = verdict.traffic.failures();
    assert!(failures.is_empty(), "{what}: {failures:?}");
    for line in [Line::Talk, Line::Visit] {
        println!(
            "{what}: {line:?}: {}",
            verdict.traffic.latency(line).unwrap()
        );
    }
    verdict
}

#[test]
fn a_millisecond_of_delay() {
    let turn = over("delay=1ms");
    turn.bulk("1 ms", 16 << 20, Duration::from_secs(30));
    turn.many_small("1 ms", 500, Duration::from_secs(15));
}

#[test]
fn twenty_milliseconds_of_delay() {
    let turn = over("delay=20ms");
    turn.bulk("20 ms", 4 << 20, Duration::from_secs(30));
    turn.many_small("20 ms", 80, Duration::from_secs(20));
    let trial = turn.begin(Volume::default());
    trial.load().go_on(Duration::from_secs(2));
    let verdict = flawless("20 ms", trial);
    // One way and back: a request waits for no second round.
    let talk = verdict.traffic.latency(Line::Talk).unwrap();
    assert!(talk.median >= Duration::from_millis(40), "{talk}");
    assert!(talk.median < Duration::from_millis(75), "{talk}");
}

#[test]
fn one_packet_in_a_hundred_lost() {
    let turn = over("delay=1ms,loss=1%,seed=3");
    turn.bulk("1 % lost", 4 << 20, Duration::from_secs(60));
    turn.many_small("1 % lost", 200, Duration::from_secs(30));
    let trial = turn.begin(Volume {
        rate: 256 << 10,
        ..Volume::default()
    });
    trial.load().go_on(Duration::from_secs(5));
    let verdict = flawless("1 % lost", trial);
    bounded(
        "1 % lost: the longest silence",
        verdict.traffic.longest_silence(),
        Duration::from_secs(4),
    );
}

#[test]
fn packets_that_overtake_each_other() {
    let turn = over("delay=4ms,jitter=3ms,reorder=5%");
    turn.bulk("reordered", 4 << 20, Duration::from_secs(60));
    turn.many_small("reordered", 100, Duration::from_secs(20));
    let trial = turn.begin(Volume::default());
    trial.load().go_on(Duration::from_secs(2));
    let verdict = flawless("reordered", trial);
    bounded(
        "reordered: the longest silence",
        verdict.traffic.longest_silence(),
        Duration::from_secs(3),
    );
}

#[test]
fn a_narrower_link_than_the_pods_believe() {
    let turn = over("mtu=1400");
    turn.bulk("mtu 1400", 16 << 20, Duration::from_secs(30));
    turn.many_small("mtu 1400", 200, Duration::from_secs(15));
}

#[test]
fn a_slow_link_serves_small_talk_beside_bulk() {
    let turn = over("delay=5ms,rate=40mbit");
    turn.bulk("40 Mbit/s", 2 << 20, Duration::from_secs(40));
    turn.many_small("40 Mbit/s", 200, Duration::from_secs(20));
}

#[test]
fn a_link_that_goes_dark_for_a_while_costs_no_connection() {
    let mut turn = over("delay=1ms");
    let trial = turn.begin(Volume::default());
    let fault = now();
    turn.change("loss=100%");
    trial.load().go_on(Duration::from_secs(3));
    turn.change("delay=1ms");
    let light = now();
    trial
        .load()
        .wait_for_connections(light, Duration::from_secs(20))
        .unwrap();
    trial
        .load()
        .wait_for_visits(light, 20, Duration::from_secs(20))
        .unwrap();
    let verdict = flawless("3 s of darkness", trial);
    bounded(
        "the longest silence around 3 s of darkness",
        verdict.traffic.longest_silence(),
        Duration::from_secs(12),
    );
    let dark = verdict.traffic.between(fault, light);
    assert!(dark.answered(Line::Talk) < 20, "the link was not dark");
}
