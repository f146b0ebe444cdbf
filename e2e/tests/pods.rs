// SPDX-License-Identifier: Apache-2.0
//! Pods that come and go fast, on addresses that are reused at once, under agents that have forgotten them: the first
//! connection works, and whoever speaks does so under the identity of the pod that it is.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::access_log::Entry;
use e2e::environment::Environment;
use e2e::handle::{Lab, Process, Shared, eventually};
use e2e::lab::cgroups::Cgroups;
use e2e::sniff::Flow;
use e2e::topology::{Node, PodName};
use e2e::traffic::{Outcome, Report};
use nix::sys::signal::Signal;

static SHARED: Shared = Shared::new("pods", env!("CARGO_BIN_EXE_e2e"));
static TURN: Mutex<()> = Mutex::new(());

/// Long enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(90);

/// The lab, for one test at a time.
fn turn() -> (&'static Lab, MutexGuard<'static, ()>) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (SHARED.lab(), turn)
}

/// A pod of the namespace `shop`.
struct Pod<'a> {
    name: &'a str,
    account: &'a str,
    node: Node,
    annotations: &'a str,
    containers: &'a str,
}

impl Pod<'_> {
    fn manifest(&self) -> String {
        let Self {
            name,
            account,
            node,
            annotations,
            containers,
        } = self;
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}, annotations: {{{annotations}}}}}
spec:
  nodeName: {node}
  serviceAccountName: {account}
  terminationGracePeriodSeconds: 1
  containers:
{containers}---
"
        )
    }
}

/// Asks for an address by its last part.
fn at_host(host: u8) -> String {
    format!("lab.culvert/host: \"{host}\"")
}

/// Only tunnels are let in to the pods of this name.
fn strict(name: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: {name}, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  mtls: {{mode: STRICT}}
---
"
    )
}

fn account(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: shop}}\n---\n"
    )
}

/// A container that connects as soon as it runs, and again each time it is started anew.
fn client(arguments: &str) -> String {
    format!(
        "  - name: client
    image: culvert/client
    args: [{arguments}]
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"
    )
}

const SERVER: &str = "  - name: app
    image: culvert/app
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
    securityContext: {capabilities: {drop: [ALL]}}
";

/// What a pod's client said of its very first connection.
fn first_report(lab: &Lab, log: &str) -> anyhow::Result<Report> {
    let path = lab.state().log(log);
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let line = text.lines().next().context("it has not said anything")?;
    serde_json::from_str(line).with_context(|| format!("{log}: {line}"))
}

/// The last line about each of these connections in the log of the node that they were opened on.
fn outbound(lab: &Lab, node: Node, reports: &[&Report]) -> anyhow::Result<Vec<Entry>> {
    let log = lab.access_log(node)?;
    let of = |report: &&Report| {
        let entry = log
            .iter()
            .rev()
            .find(|entry| entry.is_final() && entry.source() == report.local);
        entry
            .cloned()
            .with_context(|| format!("no line about {report:?}"))
    };
    reports.iter().map(of).collect()
}

fn identity(account: &str) -> Option<String> {
    Some(format!("spiffe://cluster.local/ns/shop/sa/{account}"))
}

fn is_gone(lab: &Lab, pod: &str) -> anyhow::Result<()> {
    let name: PodName = pod.parse().map_err(anyhow::Error::msg)?;
    ensure!(
        !lab.state().pod_record(&name).exists(),
        "{pod} is still there"
    );
    Ok(())
}

/// Pods that start together.
const AT_ONCE: usize = 20;

#[test]
fn the_first_connection_of_every_pod_that_starts_succeeds() {
    let (lab, _turn) = turn();
    let total = Environment::of_process().pod_starts();
    let target = lab.v4("shop/web-a", 9000).unwrap();
    let containers = client(&format!("echo, \"{target}\""));
    let (begun, mut slowest) = (Instant::now(), 0);
    for first in (0..total).step_by(AT_ONCE) {
        // An account that nobody had before: its certificate is still to be signed.
        let account_name = format!("early-{first}");
        let pods: Vec<(String, Node)> = (first..total.min(first + AT_ONCE))
            .map(|number| (format!("early-{number}"), Node::ALL[number % 2]))
            .collect();
        let mut manifest = account(&account_name);
        for (name, node) in &pods {
            let pod = Pod {
                name,
                account: &account_name,
                node: *node,
                annotations: "",
                containers: &containers,
            };
            write!(manifest, "{}", pod.manifest()).unwrap();
        }
        lab.apply(&manifest).unwrap();
        for node in Node::ALL {
            let reports: Vec<Report> = pods
                .iter()
                .filter(|(_, at)| *at == node)
                .map(|(name, _)| {
                    let log = format!("shop_{name}");
                    let what = format!("{name} has connected");
                    let report = eventually(&what, PATIENCE, || first_report(lab, &log)).unwrap();
                    assert!(report.is_done(), "{name} on {node}: {report:?}");
                    report
                })
                .collect();
            slowest = reports
                .iter()
                .fold(slowest, |most, report| most.max(report.milliseconds));
            let reports: Vec<&Report> = reports.iter().collect();
            let entries = eventually("the access log", PATIENCE, || outbound(lab, node, &reports));
            for entry in entries.unwrap() {
                assert_eq!(
                    entry.field("src.identity"),
                    identity(&account_name),
                    "{entry}"
                );
                assert!(
                    entry.field("dst.hbone_addr").is_some(),
                    "no tunnel: {entry}"
                );
            }
        }
        for (name, _) in &pods {
            lab.delete("pod", &format!("shop/{name}")).unwrap();
        }
        for (name, _) in &pods {
            let pod = format!("shop/{name}");
            eventually("it is gone", PATIENCE, || is_gone(lab, &pod)).unwrap();
        }
        lab.delete("serviceaccount", &format!("shop/{account_name}"))
            .unwrap();
    }
    println!(
        "{total} pods started within {:?}; the slowest first connection took {slowest} ms",
        begun.elapsed()
    );
}

/// How often one address changes hands.
const HANDS: usize = 16;
const REUSED_HOST: u8 = 200;
/// They go round.
const NAMES: [&str; 3] = ["heir-0", "heir-1", "heir-2"];

#[test]
fn an_address_that_is_reused_at_once_carries_no_identity_over() {
    let (lab, _turn) = turn();
    let accounts = ["alpha", "beta"];
    lab.apply(&accounts.map(account).concat()).unwrap();
    // Whose node has not heard of a pod yet comes without a tunnel: these pods take nobody in who does.
    lab.apply(&NAMES.map(strict).concat()).unwrap();
    let account_of = |number: usize| accounts[number % 2];
    let reused = Node::B.pod(REUSED_HOST);
    let greeting = format!("{}:9001", reused.v4);
    let wires = Node::ALL.map(|node| lab.start_sniffing(node, None).unwrap());
    let target = lab.v4("shop/web-a", 9000).unwrap();
    let speaker = client(&format!("echo, \"{target}\""));
    let over = AtomicBool::new(false);
    let (greeted, spoken) = std::thread::scope(|scope| {
        // All the while somebody calls whoever has the address.
        let caller = scope.spawn(|| {
            let mut greeted = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let report = lab.traffic("shop/client", &["greet", &greeting]).unwrap();
                greeted.extend(Some(report).filter(Report::is_done));
            }
            greeted
        });
        let (mut spoken, mut reached) = (Vec::new(), Vec::new());
        for number in 0..HANDS {
            // Every other time under a name that was there before, with another account.
            let name = NAMES[number % 3];
            let log = lab.state().log(&format!("shop_{name}_client"));
            let _no_log_yet = std::fs::remove_file(&log);
            // It says by itself which account is its own.
            let says = format!("value: {name}.{}.", account_of(number));
            let server = SERVER.replace("valueFrom: {fieldRef: {fieldPath: metadata.name}}", &says);
            let pod = Pod {
                name,
                account: account_of(number),
                node: Node::B,
                annotations: &at_host(REUSED_HOST),
                containers: &format!("{server}{speaker}"),
            };
            lab.apply(&pod.manifest()).unwrap();
            let log = format!("shop_{name}_client");
            let what = format!("{name} has connected");
            let report = eventually(&what, PATIENCE, || first_report(lab, &log)).unwrap();
            assert!(report.is_done(), "{name}: {report:?}");
            spoken.push((number, report));
            // Whoever calls it reaches it, sooner or later.
            let call = || {
                let report = lab.traffic("shop/stranger", &["greet", &greeting])?;
                ensure!(report.is_done(), "{report:?}");
                Ok(report)
            };
            reached.push(eventually("it is reached", PATIENCE, call).unwrap());
            let pod = format!("shop/{name}");
            lab.delete("pod", &pod).unwrap();
            eventually("it is gone", PATIENCE, || is_gone(lab, &pod)).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        reached.extend(caller.join().unwrap());
        (reached, spoken)
    });
    // Nobody spoke as the one that had the address, or the name, before.
    for (number, report) in &spoken {
        let entries = eventually("the access log", PATIENCE, || {
            outbound(lab, Node::B, &[report])
        });
        let entry = entries.unwrap().remove(0);
        assert_eq!(
            entry.field("src.identity"),
            identity(account_of(*number)),
            "{entry}"
        );
    }
    // And nobody was taken for another one.
    let reports: Vec<&Report> = greeted.iter().collect();
    let entries = eventually("the access log", PATIENCE, || {
        outbound(lab, Node::A, &reports)
    });
    for (report, entry) in greeted.iter().zip(entries.unwrap()) {
        let answer = report.answer.as_deref().unwrap_or_default();
        let truly = accounts
            .iter()
            .find(|account| answer.contains(&format!(".{account}.")));
        let truly = truly.unwrap_or_else(|| panic!("{answer:?}"));
        assert_eq!(
            entry.field("dst.identity"),
            identity(truly),
            "{answer:?}: {entry}"
        );
        assert!(
            entry.field("dst.hbone_addr").is_some(),
            "no tunnel: {entry}"
        );
    }
    // Neither of whoever had the address did a byte cross a wire in the clear.
    for wire in wires.map(|wire| wire.finish().unwrap()) {
        let own = |flow: &&Flow| {
            let ends = [flow.source.ip(), flow.destination.ip()];
            reused.both().iter().any(|ip| ends.contains(ip))
        };
        let (plain, tunnels): (Vec<&Flow>, Vec<&Flow>) = wire
            .flows
            .iter()
            .filter(own)
            .filter(|flow| flow.is_tunnel() || flow.is_in_the_clear())
            .partition(|flow| flow.is_in_the_clear());
        assert!(plain.is_empty(), "in the clear: {plain:#?}");
        assert!(tunnels.iter().any(|flow| flow.tls_records > 0), "{wire:?}");
    }
    println!(
        "{} calls while the address changed hands {HANDS} times",
        greeted.len()
    );
    for name in NAMES {
        let policy = format!("shop/{name}");
        lab.delete("peerauthentication", &policy).unwrap();
    }
}

/// What the last line of a node's proxy about a connection to a port of a pod says.
fn said_of(lab: &Lab, node: Node, direction: &str, to: SocketAddr) -> anyhow::Result<Entry> {
    lab.access_entry(node, &format!("{direction} to {to}"), |entry| {
        entry.is_final()
            && entry.is("direction", direction)
            && entry.is("dst.addr", &to.to_string())
    })
}

#[test]
fn a_pod_is_not_taken_for_the_one_that_had_its_name_account_and_address() {
    let (lab, _turn) = turn();
    let pod = Pod {
        name: "twin",
        account: "web",
        node: Node::B,
        annotations: &at_host(201),
        containers: SERVER,
    };
    let start = || {
        lab.apply(&pod.manifest()).unwrap();
        lab.wait_ready("shop/twin").unwrap()
    };
    let first = start();
    let echo = |from: &str, to: SocketAddr| lab.traffic(from, &["echo", &to.to_string()]);
    let (own, other) = (
        lab.v4("shop/twin", 9000).unwrap(),
        lab.v4("shop/web-a", 9000).unwrap(),
    );
    let speaks = |from, to| {
        eventually(&format!("{from} speaks to {to}"), PATIENCE, || {
            let report = echo(from, to)?;
            ensure!(report.is_done(), "{report:?}");
            Ok(report)
        })
        .unwrap()
    };
    speaks("shop/client", own);
    speaks("shop/twin", other);

    // The next one differs in nothing but its UID, and the control plane is not there to tell of it.
    lab.hold_down("istiod-lite").unwrap();
    lab.delete("pod", "shop/twin").unwrap();
    eventually("it is gone", PATIENCE, || is_gone(lab, "shop/twin")).unwrap();
    let second = start();
    assert_eq!(second.addresses, first.addresses);
    let why = format!(
        "the node agent handed over pod shop/twin with UID {}, but the mesh speaks of the one with UID {}",
        second.uid, first.uid
    );
    let refused = echo("shop/twin", other).unwrap();
    assert_eq!(refused.outcome, Outcome::Reset, "{refused:?}");
    // It is held for as long as the pod is young, and no longer.
    assert!(refused.milliseconds < 20_000, "{refused:?}");
    let entries = eventually("the access log", PATIENCE, || {
        outbound(lab, Node::B, &[&refused])
    });
    let entry = entries.unwrap().remove(0);
    assert_eq!(entry.error().as_deref(), Some(&*why), "{entry}");
    let refused = echo("shop/client", own).unwrap();
    assert_eq!(refused.outcome, Outcome::Reset, "{refused:?}");
    eventually("the other side says the same", PATIENCE, || {
        let log = lab.access_log(Node::B)?;
        let told = |entry: &Entry| {
            entry.is("direction", "inbound") && entry.error().as_deref() == Some(&*why)
        };
        ensure!(log.iter().any(told), "{:?}", log.last());
        Ok(())
    })
    .unwrap();
    let flagged = [("response_flags", "OTHER_POD")];
    let metrics = lab.metrics(Node::B).unwrap();
    assert!(metrics.sum("istio_tcp_connections_failed_total", &flagged) >= 2.0);

    lab.let_start("istiod-lite").unwrap();
    speaks("shop/client", own);
    let report = speaks("shop/twin", other);
    let entries = eventually("the access log", PATIENCE, || {
        outbound(lab, Node::B, &[&report])
    });
    let entry = entries.unwrap().remove(0);
    assert_eq!(entry.field("src.identity"), identity("web"), "{entry}");
    lab.delete("pod", "shop/twin").unwrap();
    eventually("it is gone", PATIENCE, || is_gone(lab, "shop/twin")).unwrap();
}

#[test]
fn a_static_pod_is_in_the_mesh_like_any_other() {
    let (lab, _turn) = turn();
    let kubelets = "0f3a9c1e7d424b8e9f00a1b2c3d4e5f6";
    let pod = Pod {
        name: "static-node-b",
        account: "web",
        node: Node::B,
        annotations: &format!(
            "kubernetes.io/config.mirror: {kubelets}, kubernetes.io/config.hash: {kubelets}"
        ),
        containers: SERVER,
    };
    lab.apply(&pod.manifest()).unwrap();
    let record = lab.wait_ready("shop/static-node-b").unwrap();
    assert_ne!(record.uid, kubelets, "the API has another for it");
    let target = lab.v4("shop/web-a", 9000).unwrap();
    let report = lab
        .traffic("shop/static-node-b", &["echo", &target.to_string()])
        .unwrap();
    assert!(report.is_done(), "{report:?}");
    let entries = eventually("the access log", PATIENCE, || {
        outbound(lab, Node::B, &[&report])
    });
    let entry = entries.unwrap().remove(0);
    assert_eq!(entry.field("src.identity"), identity("web"), "{entry}");
    assert!(
        entry.field("dst.hbone_addr").is_some(),
        "no tunnel: {entry}"
    );
    lab.delete("pod", "shop/static-node-b").unwrap();
    let gone = || is_gone(lab, "shop/static-node-b");
    eventually("it is gone", PATIENCE, gone).unwrap();
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
fn a_caller_that_has_not_heard_of_a_pod_comes_in_plaintext_which_strict_pods_refuse() {
    let (lab, _turn) = turn();
    let names = ["open", "shut"];
    lab.apply(&strict("shut")).unwrap();
    lab.hold_down("istiod-lite").unwrap();
    let deaf = Halted::new(lab.process("ztunnel-a").unwrap());
    for (name, host) in names.into_iter().zip(202..) {
        let pod = Pod {
            name,
            account: "web",
            node: Node::B,
            annotations: &at_host(host),
            containers: SERVER,
        };
        lab.apply(&pod.manifest()).unwrap();
    }
    lab.let_start("istiod-lite").unwrap();
    for name in names {
        let pod = format!("shop/{name}");
        lab.wait_ready(&pod).unwrap();
        eventually("its own node's proxy knows it", PATIENCE, || {
            // From the pod outwards, since node a is deaf: to its neighbour.
            let neighbour = lab.v4("shop/web-b", 9000)?;
            let report = lab.traffic(&pod, &["echo", &neighbour.to_string()])?;
            ensure!(report.is_done(), "{report:?}");
            Ok(())
        })
        .unwrap();
    }
    // From here on the caller's proxy works, and nobody tells it anything.
    let mute = Halted::new(lab.process("istiod-lite").unwrap());
    drop(deaf);
    let [open, shut] = names.map(|name| lab.v4(&format!("shop/{name}"), 9001).unwrap());
    let greet = |to: SocketAddr| lab.traffic("shop/client", &["greet", &to.to_string()]);
    let (reports, wire) = lab
        .sniff(Node::B, None, || Ok([greet(open)?, greet(shut)?]))
        .unwrap();
    let [let_in, kept_out] = &reports;
    assert!(let_in.is_done(), "{let_in:?}");
    assert_eq!(kept_out.outcome, Outcome::Reset, "{kept_out:?}");
    assert_eq!(kept_out.received, 0, "{kept_out:?}");
    // The caller's proxy takes both for addresses outside of the mesh, and says so.
    for to in [open, shut] {
        let entry = said_of(lab, Node::A, "outbound", to).unwrap();
        assert_eq!(entry.field("dst.identity"), None, "{entry}");
        assert_eq!(entry.field("dst.hbone_addr"), None, "{entry}");
    }
    let entry = said_of(lab, Node::B, "inbound", shut).unwrap();
    let why = entry.error().unwrap_or_default();
    assert!(why.contains("strict"), "{entry}");
    assert_eq!(entry.field("src.identity"), None, "{entry}");
    let plain = |to: SocketAddr| {
        let flows = wire.flows.iter().filter(move |flow| {
            flow.is_in_the_clear() && (flow.source == to || flow.destination == to)
        });
        flows.count()
    };
    assert!(plain(open) > 0, "{wire:?}");
    assert_eq!(plain(shut), 0, "{wire:?}");
    let tried = wire.flows.iter().any(|flow| flow.destination == shut);
    assert!(tried, "{wire:?}");

    drop(mute);
    for to in [open, shut] {
        eventually("it is reached by a tunnel", PATIENCE, || {
            let report = greet(to)?;
            ensure!(report.is_done(), "{report:?}");
            let entry = outbound(lab, Node::A, &[&report])?.remove(0);
            ensure!(entry.field("dst.hbone_addr").is_some(), "{entry}");
            Ok(())
        })
        .unwrap();
    }
    lab.delete("peerauthentication", "shop/shut").unwrap();
    for name in names {
        let pod = format!("shop/{name}");
        lab.delete("pod", &pod).unwrap();
        eventually("it is gone", PATIENCE, || is_gone(lab, &pod)).unwrap();
    }
}

#[test]
fn an_agent_without_its_run_directory_finds_the_running_pods_again() {
    if !Cgroups::are_possible() {
        // Ordinary users, mostly; on a node the agent is root and the kubelet has made them.
        return println!("not run: this user may make no cgroups by which pods are found");
    }
    let (lab, _turn) = turn();
    let pod = Pod {
        name: "orphan",
        account: "web",
        node: Node::B,
        annotations: "",
        containers: SERVER,
    };
    lab.apply(&pod.manifest()).unwrap();
    lab.wait_ready("shop/orphan").unwrap();
    let target = lab.v4("shop/orphan", 9000).unwrap();
    let held = eventually("it is spoken to", PATIENCE, || {
        lab.hold("shop/client", target)
    })
    .unwrap();

    let agent = "istio-cni-node-b";
    lab.hold_down(agent).unwrap();
    let before = lab.log(agent).unwrap().len();
    let run_dir = lab.state().node(Node::B).join("istio-cni");
    for entry in std::fs::read_dir(&run_dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => std::fs::remove_dir_all(&path).unwrap(),
            false => std::fs::remove_file(&path).unwrap(),
        }
    }
    lab.let_start(agent).unwrap();
    for name in ["orphan", "web-b"] {
        eventually(&format!("{name} is found"), PATIENCE, || {
            let log = lab.log(agent)?;
            let found = log[before..].lines().any(|line| {
                line.contains("sandbox of the pod found")
                    && line.contains(&format!("name=\"{name}\""))
            });
            ensure!(found, "{}", &log[before..]);
            Ok(())
        })
        .unwrap();
    }
    // What was open goes on, and the runtime's word that the pod goes reaches the proxy.
    let report = lab
        .traffic("shop/client", &["echo", &target.to_string()])
        .unwrap();
    assert!(report.is_done(), "{report:?}");
    let entries = eventually("the access log", PATIENCE, || {
        outbound(lab, Node::A, &[&report])
    });
    let entry = entries.unwrap().remove(0);
    assert!(
        entry.field("dst.hbone_addr").is_some(),
        "no tunnel: {entry}"
    );
    lab.delete("pod", "shop/orphan").unwrap();
    let ended = held.ended(Duration::from_secs(20)).unwrap();
    assert!(!ended.is_done(), "{ended:?}");
    eventually("it is gone", PATIENCE, || is_gone(lab, "shop/orphan")).unwrap();
    let log = lab.log(agent).unwrap();
    let told = log[before..]
        .lines()
        .any(|line| line.contains("sandbox is gone") && line.contains("name=\"orphan\""));
    assert!(told, "{}", &log[before..]);
}
