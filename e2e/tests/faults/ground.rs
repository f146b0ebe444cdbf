// SPDX-License-Identifier: Apache-2.0
//! What the tests stand on: the lab, whose turn it is, and the usual traffic.

mod holding;
mod hostile;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::handle::{Lab, Shared, eventually};
use e2e::load::{Line, Volume};
use e2e::topology::{Node, PodName};
use e2e::trial::{Course, Trial, Verdict};

pub(crate) use self::holding::until_let_go;
pub(crate) use self::hostile::Background;

static SHARED: Shared = Shared::new("faults", env!("CARGO_BIN_EXE_e2e"));
static TURN: Mutex<()> = Mutex::new(());

/// The lab, for one test at a time, all its daemons running.
pub(crate) struct Turn {
    pub(crate) lab: &'static Lab,
    _turn: MutexGuard<'static, ()>,
}

/// Waits for the turn of the calling test. What an earlier one left broken is made whole first.
pub(crate) fn turn() -> Turn {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = SHARED.lab();
    for entry in std::fs::read_dir(lab.state().root().join("down")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let turn = Turn { lab, _turn: turn };
    turn.all_ready();
    turn
}

impl Turn {
    /// Waits until the control plane answers and every pod is ready.
    pub(crate) fn all_ready(&self) {
        eventually("everything is ready", Duration::from_secs(60), || {
            let status = self.lab.must(&["status", "--output", "json"])?;
            let status: e2e::status::Status = serde_json::from_str(&status)?;
            let daemon = status.daemons.iter().find(|daemon| !daemon.healthy);
            ensure!(daemon.is_none(), "{daemon:?}");
            let pod = status.pods.iter().find(|pod| !pod.ready);
            ensure!(pod.is_none(), "{pod:?}");
            Ok(())
        })
        .unwrap();
    }

    pub(crate) fn echo(&self, pod: &str) -> SocketAddr {
        self.lab.v4(pod, 9000).unwrap()
    }

    /// The usual traffic, from node a to both nodes.
    pub(crate) fn begin(&self) -> Trial<'static> {
        self.begin_with(Volume::default())
    }

    pub(crate) fn begin_with(&self, volume: Volume) -> Trial<'static> {
        let course = Course {
            from: "shop/client",
            to: vec![self.echo("shop/web-b"), self.echo("shop/web-a")],
            volume,
        };
        Trial::begin(self.lab, &course).unwrap()
    }

    /// A pod of its own account, which serves like all others.
    pub(crate) fn apply_pod(&self, name: &str, node: Node) {
        self.lab.apply(&pod(name, node)).unwrap();
    }

    /// Waits until the client's connections to a pod go through the mesh, and work.
    pub(crate) fn spoken_to(&self, pod: &str) {
        let echo = self.echo(pod);
        eventually(
            &format!("{pod} is spoken to"),
            Duration::from_secs(20),
            || {
                let report = self
                    .lab
                    .traffic("shop/client", &["echo", &echo.to_string()])?;
                ensure!(report.is_done(), "{report:?}");
                let entries = self.lab.access_log(Node::A)?;
                let of_it = entries
                    .iter()
                    .rev()
                    .find(|entry| entry.source() == report.local);
                ensure!(
                    of_it.is_some_and(|entry| entry.field("dst.hbone_addr").is_some()),
                    "not through a tunnel: {of_it:?}"
                );
                Ok(())
            },
        )
        .unwrap();
    }

    /// Removes a pod and waits until nothing is left of it.
    pub(crate) fn remove_pod(&self, name: &str) {
        self.lab.delete("pod", name).unwrap();
        self.wait_until_gone(name);
    }

    pub(crate) fn wait_until_gone(&self, name: &str) {
        let name: PodName = name.parse().unwrap();
        eventually("the pod is gone", Duration::from_secs(30), || {
            ensure!(
                !self.lab.state().pod_record(&name).exists(),
                "it still has a record"
            );
            Ok(())
        })
        .unwrap();
    }
}

fn pod(name: &str, node: Node) -> String {
    let name: PodName = name.parse().unwrap();
    let (namespace, name) = (name.namespace, name.name);
    format!(
        "apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: {namespace}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}
spec:
  nodeName: {node}
  serviceAccountName: {name}
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: culvert/app
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"
    )
}

/// Ends a trial, wants what no fault may cost, and prints what it was.
pub(crate) fn judge(name: &str, trial: Trial<'_>) -> Verdict {
    let verdict = trial.end().unwrap();
    let traffic = &verdict.traffic;
    println!(
        "{name}: {} bytes echoed, {} visits, {} answers, {} failures",
        traffic.bytes(),
        traffic.answered(Line::Visit),
        traffic.answered(Line::Talk),
        traffic.failures().len(),
    );
    if let Err(error) = verdict.check() {
        panic!("{name}: {error:#}");
    }
    verdict
}

/// Says how long something took, and holds it against its bound.
pub(crate) fn bounded(what: &str, took: Duration, bound: Duration) {
    println!("{what}: {took:?} (bound {bound:?})");
    assert!(took <= bound, "{what} took {took:?}, more than {bound:?}");
}

/// Connections that the usual traffic has open at a time, its tunnels included, at most.
pub(crate) const TRAFFIC: usize = 40;

/// More new connections than usual, so that the slowest of a few seconds says something.
pub(crate) const BUSY: Volume = Volume {
    visits: 40,
    ..Volume::USUAL
};

/// Holds new connections beside a fault against those of the quiet time before it, the first of the phases: 99 of 100
/// may take three times as long, which is their share of a processor that as many others are busy on, or as long as a
/// user bears. `phases` are named by when they began.
pub(crate) fn beside(verdict: &Verdict, phases: &[(&str, u64)], end: u64, borne: Duration) {
    let ends = phases.iter().skip(1).map(|(_, begun)| *begun).chain([end]);
    for ((name, begun), end) in phases.iter().zip(ends) {
        let visits = verdict.traffic.between(*begun, end).latency(Line::Visit);
        if let Some(visits) = visits {
            println!("  {name}: {visits}");
        }
    }
    let during = |begun, end| {
        let visits = verdict.traffic.between(begun, end).latency(Line::Visit);
        visits.expect("no new connection").p99
    };
    let fault = phases[1].1;
    let bound = (during(phases[0].1, fault) * 3).max(borne);
    bounded("  p99 of new connections", during(fault, end), bound);
}

pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    (work(), started.elapsed())
}
