// SPDX-License-Identifier: Apache-2.0
//! What the tests stand on: the lab, whose turn it is, the traffic, and what the authority and the proxies say.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::access_log::Entry;
use e2e::authority::Ca;
use e2e::environment::Environment;
use e2e::handle::{Lab, Start, eventually};
use e2e::load::{Line, Volume};
use e2e::topology::{Layout, Node};
use e2e::trial::{Course, Trial, Verdict};
use serde_json::Value;

use crate::clock;

/// The mesh's own manifests, in which proxies ask for short-lived certificates and have a clock of their own.
const MESH: &str = include_str!("../../manifests/mesh.yaml");
pub(crate) const LIFETIME: Duration = Duration::from_secs(12);
/// How long anything may take that ends by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// A visit that takes longer has met the fault.
pub(crate) const SLOW: Duration = Duration::from_secs(1);

static LAB: OnceLock<Result<(Lab, Mutex<Ca>), String>> = OnceLock::new();
static TURN: Mutex<()> = Mutex::new(());

/// The lab, for one test at a time: every clock right, the authority at work, every proxy ready.
pub(crate) struct Turn {
    pub(crate) lab: &'static Lab,
    /// What signs when the test begins, and has to be kept up to date.
    pub(crate) ca: MutexGuard<'static, Ca>,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) fn turn() -> Turn {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (lab, ca) = match LAB.get_or_init(|| start().map_err(|error| format!("{error:#}"))) {
        Ok(lab) => lab,
        Err(reason) => panic!("the lab of these tests could not be started: {reason}"),
    };
    let turn = Turn {
        lab,
        ca: ca.lock().unwrap_or_else(PoisonError::into_inner),
        _turn: turn,
    };
    for node in Node::ALL {
        turn.set_clock(node.name(), 0);
    }
    turn.set_clock("istiod", 0);
    let held = turn.lab.state().held_down("istiod-lite");
    if held.exists() {
        std::fs::remove_file(held).unwrap();
    }
    // What an earlier test left expired is made good.
    if turn.ca_report().is_ok_and(|report| report["signs"] != true) {
        turn.put_ca(&turn.ca, &[&turn.ca.root]);
    }
    turn.until_ca("signs", |report| {
        ensure!(report["signs"] == true && report["waits"] == serde_json::json!([]));
        Ok(())
    });
    for node in Node::ALL {
        eventually(&format!("{node} is ready"), PATIENCE, || turn.ready(node)).unwrap();
    }
    turn
}

fn start() -> Result<(Lab, Mutex<Ca>)> {
    let environment = Environment::of_process();
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_e2e"));
    let library = clock::build()?;
    let manifests = tempfile::tempdir()?;
    let more = format!(
        "    - {{name: SECRET_TTL, value: {}s}}
    - {{name: LD_PRELOAD, value: {}}}
    - {{name: CLOCK_OFFSET, value: $(LAB_NODE_DIR)/clock}}
    - {{name: LOG_FORMAT, value: json}}",
        LIFETIME.as_secs(),
        library.display(),
    );
    let usual = "    - {name: LOG_FORMAT, value: json}";
    ensure!(MESH.contains(usual), "the proxies' manifests have changed");
    std::fs::write(
        manifests.path().join("mesh.yaml"),
        MESH.replace(usual, &more),
    )?;
    let start = Start {
        name: format!("lifetimes-{}", std::process::id()),
        bin_dir: e2e::binaries::build(&environment, &executable)?,
        executable,
        manifests: Some(manifests.path().to_owned()),
        layout: Layout::OneCluster,
        keep: false,
        disks: Default::default(),
        api_server: false,
    };
    let lab = Lab::start(&environment, &start, |_progress| {})?;
    // The control plane of these tests has a clock of its own, too, and an authority whose root's key we know.
    let state = lab.state();
    let clock_file = state.istiod().join("clock");
    std::fs::write(
        state.control_plane_environment(),
        format!(
            "LD_PRELOAD={}\nCLOCK_OFFSET={}\n",
            library.display(),
            clock_file.display()
        ),
    )?;
    let ca = Ca::new("first root")?;
    lab.hold_down("istiod-lite")?;
    ca.put(&state.istiod().join("ca"), &[&ca.root])?;
    lab.let_start("istiod-lite")?;
    Ok((lab, Mutex::new(ca)))
}

impl Turn {
    /// Sets the clock of `node-a`'s or `node-b`'s proxy, or of `istiod`, against the real one.
    pub(crate) fn set_clock(&self, whose: &str, seconds: i64) {
        clock::set(&self.lab.state().root().join(whose).join("clock"), seconds).unwrap();
    }

    /// What a proxy says to its readiness probe, as an error unless it is ready.
    fn ready(&self, node: Node) -> Result<()> {
        let arguments = ["get", "127.0.0.1:15021", "/healthz/ready"];
        let answer = self.lab.traffic(node.name(), &arguments)?.answer;
        ensure!(answer.as_deref() == Some("ready\n"), "{node}: {answer:?}");
        Ok(())
    }

    pub(crate) fn put_ca(&self, ca: &Ca, roots: &[&str]) {
        ca.put(&self.lab.state().istiod().join("ca"), roots)
            .unwrap();
    }

    /// Traffic from node a to both nodes.
    pub(crate) fn begin(&self) -> Trial<'static> {
        let echo = |pod| -> SocketAddr { self.lab.v4(pod, 9000).unwrap() };
        let course = Course {
            from: "shop/client",
            to: vec![echo("shop/web-b"), echo("shop/web-a")],
            volume: Volume::default(),
        };
        // What an earlier test did to certificates may take a moment to be over.
        eventually("traffic works", PATIENCE, || {
            let to = course.to[0].to_string();
            let report = self.lab.traffic(course.from, &["echo", &to])?;
            ensure!(report.is_done(), "{}", report.outcome);
            Ok(())
        })
        .unwrap();
        Trial::begin(self.lab, &course).unwrap()
    }

    /// What the authority says of itself.
    pub(crate) fn ca_report(&self) -> Result<Value> {
        let arguments = ["get", "127.0.0.1:8080", "/debug/ca"];
        let report = self.lab.traffic("istiod-lite", &arguments)?;
        let answer = report.answer.unwrap_or_default();
        serde_json::from_str(&answer).with_context(|| format!("/debug/ca: {answer:?}"))
    }

    /// Waits until the authority's view of itself is as wanted; tells how long that took.
    pub(crate) fn until_ca(&self, what: &str, wanted: impl Fn(&Value) -> Result<()>) -> Duration {
        let started = Instant::now();
        eventually(&format!("the authority {what}"), PATIENCE, || {
            let report = self.ca_report()?;
            wanted(&report).with_context(|| format!("/debug/ca: {report:#}"))
        })
        .unwrap();
        started.elapsed()
    }

    /// All that a proxy believes.
    pub(crate) fn dump(&self, node: Node) -> Result<Value> {
        let arguments = ["get", "127.0.0.1:15000", "/config_dump"];
        let report = self.lab.traffic(node.name(), &arguments)?;
        serde_json::from_str(&report.answer.unwrap_or_default())
            .with_context(|| format!("{node}'s dump"))
    }

    /// The certificates that a proxy holds, by identity: the serial number of each leaf, and those of its roots.
    pub(crate) fn certificates(&self, node: Node) -> Result<Vec<Held>> {
        let dump = self.dump(node)?;
        let all = dump["certificates"].as_array().into_iter().flatten();
        let serials = |of: &Value| -> BTreeSet<String> {
            let all = of.as_array().into_iter().flatten();
            all.filter_map(|one| Some(one["serialNumber"].as_str()?.to_owned()))
                .collect()
        };
        Ok(all
            .map(|held| Held {
                identity: held["identity"].as_str().unwrap_or_default().into(),
                leaf: held["certChain"][0]["serialNumber"]
                    .as_str()
                    .unwrap_or_default()
                    .into(),
                roots: serials(&held["rootCerts"]),
            })
            .collect())
    }

    /// The serial numbers of all leaves that the two proxies hold.
    pub(crate) fn leaves(&self) -> BTreeSet<String> {
        let held = Node::ALL.map(|node| self.leaves_of(node));
        held.into_iter().flatten().collect()
    }

    pub(crate) fn leaves_of(&self, node: Node) -> BTreeSet<String> {
        let held = self.certificates(node).unwrap();
        held.into_iter().map(|held| held.leaf).collect()
    }

    /// Waits until every certificate is another one than those.
    pub(crate) fn until_renewed(&self, before: &BTreeSet<String>) {
        eventually("every certificate was renewed", PATIENCE, || {
            let kept: Vec<_> = self.leaves().intersection(before).cloned().collect();
            ensure!(kept.is_empty(), "still there: {kept:?}");
            Ok(())
        })
        .unwrap();
    }

    /// Has the proxies fetch everything anew, as they do whenever the file of roots is replaced.
    pub(crate) fn renew_all(&self) {
        let before = self.leaves();
        let path = self.lab.state().root_certificates();
        let text = std::fs::read(&path).unwrap();
        e2e::state::write_atomically(&path, &text).unwrap();
        self.until_renewed(&before);
    }

    /// Waits until new connections fail, and until the proxy of node a gives this for the reason.
    pub(crate) fn until_refused(&self, trial: &Trial<'_>, since: u64, reason: &str) -> Entry {
        trial
            .load()
            .wait(PATIENCE, "new connections are refused", |events| {
                let refused = events.iter().filter(|event| {
                    event.at > since
                        && event.line == Line::Visit
                        && matches!(event.what, e2e::load::What::Refused { .. })
                });
                (refused.count() >= 10).then_some(())
            })
            .unwrap();
        self.lab
            .access_entry(Node::A, "why a connection failed", |entry| {
                entry.is_final()
                    && !entry.is_inbound()
                    && entry.error().is_some_and(|error| error.contains(reason))
            })
            .unwrap()
    }
}

/// One certificate of a proxy.
pub(crate) struct Held {
    pub(crate) identity: String,
    pub(crate) leaf: String,
    pub(crate) roots: BTreeSet<String>,
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

/// Connections that were there before are ended by no certificate that runs out.
pub(crate) fn undisturbed(verdict: &Verdict) {
    for line in [Line::Transfer, Line::Talk] {
        let failed = verdict.traffic.failed(line);
        assert!(failed.is_empty(), "{failed:?}");
    }
}

/// Says how long something took, and holds it against its bound.
pub(crate) fn bounded(what: &str, took: Duration, bound: Duration) {
    println!("{what}: {took:?} (bound {bound:?})");
    assert!(took <= bound, "{what} took {took:?}, more than {bound:?}");
}
