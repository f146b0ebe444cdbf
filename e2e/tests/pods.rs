// SPDX-License-Identifier: Apache-2.0
//! Pods that come and go fast, on addresses that are reused at once, under agents that have forgotten them: the first
//! connection works, and whoever speaks does so under the identity of the pod that it is.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use e2e::access_log::Entry;
use e2e::environment::Environment;
use e2e::handle::{Lab, Shared, eventually};
use e2e::lab::cgroups::Cgroups;
use e2e::topology::{Node, PodName};
use e2e::traffic::Report;

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
    /// The last part of the address that it asks for.
    host: Option<u8>,
    containers: &'a str,
}

impl Pod<'_> {
    fn manifest(&self) -> String {
        let Self {
            name,
            account,
            node,
            containers,
            ..
        } = self;
        let annotations = match self.host {
            Some(host) => format!("{{lab.culvert/host: \"{host}\"}}"),
            None => "{}".to_owned(),
        };
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}, annotations: {annotations}}}
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
                host: None,
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

#[test]
fn an_address_that_is_reused_at_once_carries_no_identity_over() {
    let (lab, _turn) = turn();
    let accounts = ["alpha", "beta"];
    lab.apply(&accounts.map(account).concat()).unwrap();
    let account_of = |number: usize| accounts[number % 2];
    let greeting = format!("{}:9001", Node::B.pod(REUSED_HOST).v4);
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
            let name = format!("heir-{}", number % 3);
            let log = lab.state().log(&format!("shop_{name}_client"));
            let _no_log_yet = std::fs::remove_file(&log);
            // It says by itself which account is its own.
            let says = format!("value: {name}.{}.", account_of(number));
            let server = SERVER.replace("valueFrom: {fieldRef: {fieldPath: metadata.name}}", &says);
            let pod = Pod {
                name: &name,
                account: account_of(number),
                node: Node::B,
                host: Some(REUSED_HOST),
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
    let mut tunnelled = 0;
    for (report, entry) in greeted.iter().zip(entries.unwrap()) {
        if entry.field("dst.identity").is_none() && entry.field("dst.hbone_addr").is_none() {
            // Nobody had told the caller's node of the pod yet: then the address is as any other, and nobody's.
            continue;
        }
        tunnelled += 1;
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
    assert!(tunnelled > 0, "nobody was reached by a tunnel");
    println!("{tunnelled} calls by tunnel while the address changed hands {HANDS} times");
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
        host: None,
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
