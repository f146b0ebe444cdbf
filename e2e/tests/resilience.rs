// SPDX-License-Identifier: Apache-2.0
//! Endpoints that refuse, hang, come and go: a service with another endpoint loses no new connection.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use e2e::access_log::Entry;
use e2e::handle::{Lab, Process, Shared, eventually};
use e2e::load::{Line, Tally, Volume};
use e2e::topology::{Node, PodName};
use e2e::trial::{Course, Trial};
use nix::sys::signal::Signal;

static SHARED: Shared = Shared::new("resilience", env!("CARGO_BIN_EXE_e2e"));
static TURN: Mutex<()> = Mutex::new(());

/// The lab, for one test at a time: what one does to a node is felt by all pods there.
fn turn() -> (&'static Lab, MutexGuard<'static, ()>) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (SHARED.lab(), turn)
}

/// A service of its own pods, to be found by the label `app`.
fn service(name: &str, address: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{app: {name}}}
  clusterIP: {address}
  clusterIPs: [{address}]
  ports: [{{name: tcp-echo, port: 9000}}]
"
    )
}

/// A pod behind the service `app`, which serves only what `serves` names, or everything.
fn pod(app: &str, name: &str, node: Node, serves: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}
spec:
  nodeName: {node}
  serviceAccountName: web
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: culvert/app
    args: [{serves}]
    env: [{{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"
    )
}

/// A second.
const VISITS: u32 = 50;

/// New connections all the time, each with one request and its answer, and everybody watching.
fn visits(lab: &'static Lab, to: SocketAddr) -> Trial<'static> {
    let volume = Volume {
        transfers: 0,
        talks: 0,
        visits: VISITS,
        ..Volume::default()
    };
    let course = Course {
        from: "shop/client",
        to: vec![to],
        volume,
    };
    Trial::begin(lab, &course).unwrap()
}

/// Nothing of it was felt, by so many connections at least; tells what they were.
fn none_failed(trial: Trial<'_>, at_least: usize) -> Tally {
    let verdict = trial.end().unwrap();
    verdict.check().unwrap();
    let tally = verdict.traffic;
    let (failed, answered) = (tally.failed(Line::Visit), tally.answered(Line::Visit));
    assert!(
        failed.is_empty(),
        "{} of {answered}: {failed:?}",
        failed.len()
    );
    assert!(answered >= at_least, "only {answered} connections");
    tally
}

fn retries(lab: &Lab, service: &str) -> f64 {
    let service = format!("{service}.shop.svc.cluster.local");
    let labels = [("destination_service", service.as_str())];
    lab.metrics(Node::A)
        .unwrap()
        .sum("culvert_connect_retries_total", &labels)
}

/// Waits until the client's proxy knows so many endpoints of the service.
fn known_endpoints(lab: &Lab, service: &str, count: usize) {
    eventually("the endpoints are known", Duration::from_secs(30), || {
        let dump = lab.traffic("node-a", &["get", "127.0.0.1:15000", "/config_dump"])?;
        let dump: serde_json::Value = serde_json::from_str(&dump.answer.unwrap_or_default())?;
        let services = dump["services"].as_array().into_iter().flatten();
        let found = services
            .filter(|known| known["name"] == service)
            .find_map(|known| Some(known["endpoints"].as_object()?.len()));
        anyhow::ensure!(found == Some(count), "{found:?} are known");
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_endpoint_that_refuses_costs_no_connection() {
    let (lab, _turn) = turn();
    let objects = [
        service("half", "10.96.0.50"),
        pod("half", "half-a", Node::A, "http"),
        pod("half", "half-b", Node::B, ""),
        pod("half", "half-c", Node::B, "http"),
    ];
    lab.apply(&objects.join("---\n")).unwrap();
    for name in ["half-a", "half-b", "half-c"] {
        lab.wait_ready(&format!("shop/{name}")).unwrap();
    }
    known_endpoints(lab, "half", 3);
    let trial = visits(lab, "10.96.0.50:9000".parse().unwrap());
    trial.load().go_on(Duration::from_secs(4));
    none_failed(trial, 150);
    assert!(retries(lab, "half") >= 2.0);
    let entry = lab
        .access_entry(Node::A, "a connection that was tried twice", |entry| {
            entry.is_final()
                && entry.is("dst.workload", "half-b")
                && entry
                    .number("attempts")
                    .is_some_and(|attempts| attempts > 1)
        })
        .unwrap();
    assert!(entry.error().is_none(), "{entry}");
}

/// A process that does nothing until this is dropped.
struct Halted(Process);

impl Halted {
    fn new(process: Process) -> Self {
        process.signal(Signal::SIGSTOP).unwrap();
        Self(process)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        let _gone_anyway = self.0.signal(Signal::SIGCONT);
    }
}

#[test]
fn a_node_whose_proxy_hangs_costs_no_connection() {
    let (lab, _turn) = turn();
    let before = retries(lab, "web");
    let trial = visits(lab, "10.96.0.10:9000".parse().unwrap());
    trial.load().go_on(Duration::from_secs(1));
    let halted = Halted::new(lab.process("ztunnel-b").unwrap());
    trial.load().go_on(Duration::from_secs(7));
    drop(halted);
    trial.load().go_on(Duration::from_secs(1));
    let tally = none_failed(trial, 300);
    assert!(retries(lab, "web") > before);
    // Who was on the way when it began waited for a while; nobody after that but the attempts on trial.
    let slow = tally.latency(Line::Visit).unwrap();
    assert!(slow.median < Duration::from_secs(1), "{slow}");
    lab.wait_ready("istio-system/ztunnel-b").unwrap();
}

#[test]
fn a_rolling_update_costs_no_connection() {
    let (lab, _turn) = turn();
    let name = |number| format!("roll-{number}");
    let node = |number| match number % 2 {
        0 => Node::B,
        _ => Node::A,
    };
    let start = |number| pod("roll", &name(number), node(number), "");
    let ready = |number| lab.wait_ready(&format!("shop/{}", name(number))).unwrap();
    let objects = [service("roll", "10.96.0.51"), start(1), start(2)];
    lab.apply(&objects.join("---\n")).unwrap();
    ready(1);
    ready(2);
    known_endpoints(lab, "roll", 2);
    let (trial, begun) = (
        visits(lab, "10.96.0.51:9000".parse().unwrap()),
        Instant::now(),
    );
    // As a Deployment does it: the next is ready before the last has to go.
    for old in 1..=4 {
        lab.apply(&start(old + 2)).unwrap();
        ready(old + 2);
        lab.delete("pod", &format!("shop/{}", name(old))).unwrap();
    }
    for old in 1..=4 {
        let pod: PodName = format!("shop/{}", name(old)).parse().unwrap();
        eventually("it is gone", Duration::from_secs(30), || {
            let there = lab.state().pod_record(&pod).exists();
            anyhow::ensure!(!there, "{pod} is still there");
            Ok(())
        })
        .unwrap();
    }
    trial.load().go_on(Duration::from_secs(2));
    let half = begun.elapsed().as_secs() * u64::from(VISITS) / 2;
    none_failed(trial, usize::try_from(half).unwrap());
    // Every one of them had its share, by a tunnel: those that went had something to lose.
    let log = lab.access_log(Node::A).unwrap();
    for number in 1..=6 {
        let of_it = |entry: &&Entry| entry.is_final() && entry.is("dst.workload", &name(number));
        let (tunnelled, plain): (Vec<&Entry>, _) = log
            .iter()
            .filter(of_it)
            .partition(|entry| entry.field("dst.hbone_addr").is_some());
        assert!(plain.is_empty(), "{plain:?}");
        let (pod, served) = (name(number), tunnelled.len());
        assert!(served >= 5, "{pod} served {served} connections");
    }
    known_endpoints(lab, "roll", 2);
}
