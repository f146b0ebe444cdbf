// SPDX-License-Identifier: Apache-2.0
//! Disks that are full for a while: each daemon names the file and what is wrong, goes on, and makes up for it once there
//! is room, without being started anew.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

mod authority;

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::access_log;
use e2e::handle::{Lab, Shared, eventually};
use e2e::load::{Line, Volume, What};
use e2e::telemetry::Metrics;
use e2e::topology::Node;
use e2e::traffic::Outcome;
use e2e::trial::{Course, Trial, Verdict};

static SHARED: Shared = Shared::on_small_disks("disk", env!("CARGO_BIN_EXE_e2e"));
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> (MutexGuard<'static, ()>, &'static Lab) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, SHARED.lab())
}

/// A disk without room, until this is dropped.
struct Filled(PathBuf);

impl Filled {
    fn new(disk: &Path) -> Self {
        let size = nix::sys::statvfs::statvfs(disk).unwrap();
        let size = size.blocks() * size.fragment_size();
        // Or the machine's own would be filled.
        assert!(size <= 256 << 20, "{} is no small disk", disk.display());
        let path = disk.join(".filler");
        let mut file = std::fs::File::create(&path).unwrap();
        let filled = Self(path);
        let mut written = 0;
        // The last bytes one by one, so that nothing more has room.
        for piece in [vec![0; 64 << 10], vec![0; 512], vec![0; 1]] {
            loop {
                // Never the machine's own disk.
                assert!(written < 16 << 20, "{} is no small disk", disk.display());
                match file.write_all(&piece) {
                    Ok(()) => written += piece.len(),
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("{}: {error}", filled.0.display()),
                }
            }
        }
        filled
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        // The lab may be gone by then, and its disks with it.
        let _gone_with_its_disk = std::fs::remove_file(&self.0);
    }
}

fn begin(lab: &'static Lab, volume: Volume) -> Trial<'static> {
    let course = Course {
        from: "shop/client",
        to: vec![lab.v4("shop/web-b", 9000).unwrap()],
        volume,
    };
    Trial::begin(lab, &course).unwrap()
}

/// Nothing of it was felt.
fn unharmed(trial: Trial<'_>) -> Verdict {
    let verdict = trial.end().unwrap();
    verdict.check().unwrap();
    let failures = verdict.traffic.failures();
    assert!(failures.is_empty(), "{failures:?}");
    verdict
}

/// Holds how long it has been since `since` against a bound.
fn bounded(what: &str, since: Instant, bound: Duration) {
    let took = since.elapsed();
    println!("{what}: {took:?} (bound {bound:?})");
    assert!(took <= bound, "{what} took {took:?}, more than {bound:?}");
}

fn page(lab: &Lab, place: &str, address: &str) -> anyhow::Result<Metrics> {
    let report = lab.traffic(place, &["get", address, "/metrics"])?;
    ensure!(report.is_done(), "{report:?}");
    Ok(Metrics::parse(&report.answer.unwrap_or_default()))
}

/// A pod of node b; its account is made with it.
fn pod(name: &str, account: &str) -> String {
    format!(
        "apiVersion: v1
kind: ServiceAccount
metadata: {{name: {account}, namespace: shop}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}
spec:
  nodeName: node-b
  serviceAccountName: {account}
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: culvert/app
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"
    )
}

/// Waits until a pod of the namespace is reached by a tunnel.
fn spoken_to_by_tunnel(lab: &Lab, name: &str) {
    // Before that its proxy takes the address for nobody's, and passes plain text on.
    let what = format!("the client's proxy knows that {name} takes tunnels");
    eventually(&what, Duration::from_secs(30), || {
        let dump = lab.traffic("node-a", &["get", "127.0.0.1:15000", "/config_dump"])?;
        let dump: serde_json::Value = serde_json::from_str(&dump.answer.unwrap_or_default())?;
        let mut workloads = dump["workloads"].as_array().into_iter().flatten();
        let known = workloads.find(|known| known["name"] == name);
        ensure!(
            known.is_some_and(|known| known["protocol"] == "HBONE"),
            "{known:?}"
        );
        Ok(())
    })
    .unwrap();
    let what = format!("{name} is spoken to by tunnel");
    eventually(&what, Duration::from_secs(20), || {
        let echo = lab.v4(&format!("shop/{name}"), 9000)?;
        let report = lab.traffic("shop/client", &["echo", &echo.to_string()])?;
        ensure!(report.outcome == Outcome::Done, "{report:?}");
        lab.access_log(Node::B)?
            .iter()
            .find(|entry| entry.is_final() && entry.is("dst.workload", name))
            .map(drop)
            .ok_or_else(|| anyhow::anyhow!("no entry yet"))
    })
    .unwrap();
}

/// No file stays of those that could not be written whole.
fn no_leftovers(disk: &Path) {
    eventually(
        "no half-written file is left",
        Duration::from_secs(10),
        || {
            let mut folders = vec![disk.to_owned()];
            while let Some(folder) = folders.pop() {
                // A folder may go away while it is looked through.
                for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                    let (path, name) = (entry.path(), entry.file_name());
                    let name = name.to_string_lossy();
                    let half = name.starts_with('.') || name.ends_with(".tmp");
                    ensure!(!half, "{} is left", path.display());
                    if path.is_dir() {
                        folders.push(path);
                    }
                }
            }
            Ok(())
        },
    )
    .unwrap();
}

#[test]
fn an_agent_that_cannot_remember_a_pod_does_not_start_it_and_does_once_it_can() {
    let (_turn, lab) = turn();
    let trial = begin(lab, Volume::default());
    let disk = lab.state().node(Node::B).join("istio-cni").join("pods");
    let filled = Filled::new(&disk);
    lab.apply(&pod("late", "web")).unwrap();
    let refused = eventually("CNI says why", Duration::from_secs(30), || {
        let record = lab.pod("shop/late")?;
        ensure!(record.containers.is_empty(), "a container runs");
        let message = record.message.unwrap_or_default();
        ensure!(message.contains("No space left on device"), "{message}");
        Ok(message)
    })
    .unwrap();
    println!("CNI said: {refused}");
    assert!(refused.contains("istio-cni/pods/"), "which file? {refused}");
    let log = trial.log("istio-cni-node-b").unwrap();
    assert!(
        log.lines()
            .any(|line| line.contains("pod refused") && line.contains("No space left on device")),
        "{log}"
    );
    let failures = page(lab, "node-b", "127.0.0.1:15014").unwrap();
    assert!(failures.sum("redirect_failures_total", &[("step", "remember")]) > 0.0);

    let room = Instant::now();
    drop(filled);
    lab.wait_ready("shop/late").unwrap();
    bounded("from room until the pod ran", room, Duration::from_secs(30));
    no_leftovers(&disk);
    unharmed(trial);
    lab.delete("pod", "shop/late").unwrap();
}

const POLICY: &str = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: full, namespace: shop}
spec:
  selector: {matchLabels: {app: nobody}}
  action: DENY
  rules: [{to: [{operation: {ports: ['1']}}]}]
";

#[test]
fn status_that_cannot_be_written_is_written_later_and_all_else_goes_on() {
    let (_turn, lab) = turn();
    let trial = begin(lab, Volume::default());
    let disk = lab.state().manifests().join(".status");
    let filled = Filled::new(&disk);
    lab.apply(POLICY).unwrap();
    lab.apply(&pod("late", "web")).unwrap();
    let log = || trial.log("istiod-lite").unwrap();
    eventually("it says so", Duration::from_secs(20), || {
        let log = log();
        let told = log
            .lines()
            .find(|line| line.contains("a condition could not be written"));
        let told = told.unwrap_or_default();
        ensure!(told.contains("No space left on device"), "not yet: {told}");
        ensure!(
            told.contains(".status/AuthorizationPolicy/shop/full"),
            "which file? {told}"
        );
        Ok(())
    })
    .unwrap();
    let metrics = page(lab, "istiod-lite", "127.0.0.1:8080").unwrap();
    assert!(metrics.sum("culvert_status_write_failures_total", &[]) > 0.0);
    trial.load().go_on(Duration::from_secs(1));

    let room = Instant::now();
    drop(filled);
    eventually("the condition is there", Duration::from_secs(30), || {
        let path = disk.join("AuthorizationPolicy/shop/full/istiod-lite.json");
        let text = std::fs::read_to_string(&path)?;
        ensure!(text.contains("ZtunnelAccepted"), "{text}");
        Ok(())
    })
    .unwrap();
    bounded(
        "from room until the condition",
        room,
        Duration::from_secs(15),
    );
    lab.wait_ready("shop/late").unwrap();
    bounded("from room until the pod ran", room, Duration::from_secs(30));
    // The control plane and the proxies have heard of it: its status is where they read it.
    spoken_to_by_tunnel(lab, "late");
    no_leftovers(&disk);
    unharmed(trial);
    lab.delete("authorizationpolicy", "shop/full").unwrap();
    lab.delete("pod", "shop/late").unwrap();
}

#[test]
fn a_log_that_cannot_be_written_stops_nobody_and_loses_no_line() {
    let (_turn, lab) = turn();
    let volume = Volume {
        visits: 40,
        ..Volume::default()
    };
    let start = lab.log("ztunnel-b").unwrap().len();
    let trial = begin(lab, volume);
    let failures = || {
        let metrics = lab.metrics(Node::B).unwrap();
        metrics.sum("culvert_log_write_failures_total", &[])
    };
    trial.load().go_on(Duration::from_secs(1));
    let filled = Filled::new(&lab.state().logs());
    eventually("it is counted", Duration::from_secs(20), || {
        ensure!(failures() > 0.0, "not yet");
        Ok(())
    })
    .unwrap();
    trial.load().go_on(Duration::from_secs(4));
    let room = Instant::now();
    drop(filled);
    let told = eventually("it says so", Duration::from_secs(20), || {
        let log = trial.log("ztunnel-b")?;
        let line = log
            .lines()
            .find(|line| line.contains("the log could not be written"));
        line.map(str::to_owned)
            .ok_or_else(|| anyhow::anyhow!("not yet"))
    })
    .unwrap();
    println!("{told}");
    bounded(
        "from room until the log went on",
        room,
        Duration::from_secs(10),
    );
    for part in [
        "No space left on device",
        "istio-system_ztunnel-b.log",
        "\"lost_lines\":0",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
    trial.load().go_on(Duration::from_secs(1));
    let traffic = unharmed(trial).traffic;
    let ended = traffic
        .events
        .iter()
        .filter(|event| matches!(event.what, What::Ended { .. }))
        .count();
    // Each connection that was made has its line.
    let made = traffic.answered(Line::Visit) + ended;
    eventually(
        "each connection has its line",
        Duration::from_secs(20),
        || {
            let log = lab.log("ztunnel-b")?;
            let entries = access_log::parse(&log[start..]);
            let lines = entries.iter().filter(|entry| {
                entry.is_final()
                    && entry.is("src.workload", "client")
                    && entry.is("dst.workload", "web-b")
            });
            let lines = lines.count();
            ensure!(lines >= made, "{lines} lines of {made} connections");
            Ok(())
        },
    )
    .unwrap();
    println!("{made} connections, none without its line");
}
