// SPDX-License-Identifier: Apache-2.0
//! Pods join and leave the mesh while they run, by a label of their namespace, with traffic in all directions: nothing
//! that is open breaks, nothing that is new fails, every byte is counted.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::handle::{Lab, Shared, eventually};
use e2e::load::{Event, Line, Load, Tally, Volume, What, now};
use e2e::topology::{Node, PodName};
use e2e::traffic::Outcome;

static SHARED: Shared = Shared::new("enrolment", env!("CARGO_BIN_EXE_e2e"));

fn lab() -> &'static Lab {
    SHARED.lab()
}

/// A namespace with a server on each node, outside of the mesh until it is labelled.
struct Village {
    namespace: &'static str,
    pods: [String; 2],
}

impl Village {
    fn found(namespace: &'static str) -> Self {
        let village = Self {
            namespace,
            pods: [format!("{namespace}/near"), format!("{namespace}/far")],
        };
        village.label(false);
        for (name, node) in [("near", Node::A), ("far", Node::B)] {
            lab()
                .apply(&format!(
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
                ))
                .unwrap();
        }
        for pod in &village.pods {
            lab().wait_ready(pod).unwrap();
        }
        village
    }

    fn label(&self, in_the_mesh: bool) {
        let labels = match in_the_mesh {
            true => "{istio.io/dataplane-mode: ambient}",
            false => "{}",
        };
        lab()
            .apply(&format!(
                "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {}, labels: {labels}}}\n",
                self.namespace
            ))
            .unwrap();
    }

    /// Waits until the agent says so of both pods; tells how long that took.
    fn until(&self, redirection: &str) -> Duration {
        let begun = Instant::now();
        eventually(
            &format!("both pods are {redirection:?}"),
            Duration::from_secs(20),
            || {
                let status = lab().must(&["status", "--output", "json"])?;
                let status: e2e::status::Status = serde_json::from_str(&status)?;
                for pod in &self.pods {
                    let found = status.pods.iter().find(|status| status.name == *pod);
                    let found = found.map(|status| status.redirection.as_str());
                    ensure!(found == Some(redirection), "{pod} is {found:?}");
                }
                Ok(())
            },
        )
        .unwrap();
        begun.elapsed()
    }

    fn echo(&self, index: usize) -> SocketAddr {
        lab().v4(&self.pods[index], 9000).unwrap()
    }

    /// Into the village from the mesh and from outside, out of it to the mesh and to outside, and within.
    fn traffic(&self) -> Traffic {
        let volume = Volume {
            transfers: 2,
            rate: 256 << 10,
            talks: 1,
            requests: 10,
            visits: 15,
            ..Volume::default()
        };
        let at = |pod| lab().v4(pod, 9000).unwrap();
        let start = |from: &str, to: &[SocketAddr]| {
            (
                from.to_owned(),
                Load::start(lab(), from, to, &volume, "village").unwrap(),
            )
        };
        Traffic(vec![
            start("shop/client", &[self.echo(0), self.echo(1)]),
            start("outside/legacy", &[self.echo(0), self.echo(1)]),
            start(&self.pods[0], &[at("shop/web-b"), self.echo(1)]),
            start(&self.pods[1], &[at("shop/web-a"), at("outside/legacy")]),
        ])
    }
}

struct Traffic(Vec<(String, Load)>);

impl Traffic {
    fn go_on(&self, time: Duration) {
        self.0[0].1.go_on(time);
    }

    /// Ends it all; not one connection may have failed, and all bytes must have come back.
    fn ends_without_a_failure(self) -> u64 {
        let mut bytes = 0;
        for (from, load) in self.0 {
            let tally = load.stop().unwrap();
            let failures = tally.failures();
            assert!(failures.is_empty(), "from {from}: {failures:?}");
            assert_eq!(tally.wrong(), Vec::<String>::new());
            assert!(tally.answered(Line::Visit) > 30, "from {from}");
            assert_all_came_back(&from, &tally);
            bytes += tally.bytes();
        }
        bytes
    }
}

/// Every transfer and talk has its own end, and the same number of bytes both ways.
fn assert_all_came_back(from: &str, tally: &Tally) {
    let ends: Vec<&Event> = tally
        .events
        .iter()
        .filter(|event| event.line == Line::Transfer)
        .filter(|event| matches!(event.what, What::Ended { .. }))
        .collect();
    assert_eq!(ends.len(), 2, "from {from}: no transfer was made twice");
    for end in ends {
        let What::Ended {
            outcome: Outcome::Done,
            sent,
            received,
            ..
        } = end.what
        else {
            panic!("from {from}: {end:?}")
        };
        assert_eq!(sent, received, "from {from}");
        assert!(sent > 100_000, "from {from}: {sent} bytes");
    }
}

/// The proxies' last word on connections that begin after `since`: with a tunnel or without?
fn uses_tunnel(from: &str, to: SocketAddr, node: Node) -> bool {
    let report = lab().traffic(from, &["echo", &to.to_string()]).unwrap();
    assert!(report.is_done(), "{report:?}");
    let source = report.local.unwrap();
    let seen = eventually("the access log", Duration::from_secs(2), || {
        let log = lab().access_log(node)?;
        let entry = log
            .into_iter()
            .rev()
            .find(|entry| entry.is_final() && entry.source() == Some(source));
        entry.ok_or_else(|| anyhow::anyhow!("no entry"))
    });
    seen.is_ok_and(|entry| entry.field("dst.hbone_addr").is_some())
}

/// What a node's agent has logged of a pod, in order.
fn logged(pod: &str, node: Node) -> Vec<String> {
    let name: PodName = pod.parse().unwrap();
    let of_pod = format!("namespace=\"{}\" name=\"{}\"", name.namespace, name.name);
    let log = lab().log(&format!("istio-cni-{node}")).unwrap();
    log.lines()
        .filter(|line| line.contains(&of_pod))
        .map(str::to_owned)
        .collect()
}

fn has_logged(pod: &str, node: Node, words: &str) -> anyhow::Result<()> {
    let log = logged(pod, node);
    let found = log.iter().any(|line| line.contains(words));
    ensure!(found, "the agent says of {pod}: {log:#?}");
    Ok(())
}

#[test]
fn running_pods_join_and_leave_without_a_failure_and_without_a_lost_byte() {
    let village = Village::found("village");
    let plain = village.traffic();
    village.label(true);
    let joined = village.until("enabled");
    let captured = village.traffic();
    assert!(uses_tunnel("shop/client", village.echo(1), Node::A));
    assert!(uses_tunnel(&village.pods[0], village.echo(1), Node::A));
    plain.go_on(Duration::from_secs(2));
    println!(
        "joined within {joined:?}; {} bytes on connections from before",
        plain.ends_without_a_failure()
    );

    village.label(false);
    let left = village.until("");
    let on_nodes = [(&village.pods[0], Node::A), (&village.pods[1], Node::B)];
    for (pod, node) in on_nodes {
        let drains = || has_logged(pod, node, "captured=\"what is open\"");
        eventually("only what is open", Duration::from_secs(5), drains).unwrap();
    }
    assert!(!uses_tunnel("shop/client", village.echo(0), Node::A));
    let after = village.traffic();
    assert!(!uses_tunnel(&village.pods[0], village.echo(1), Node::A));
    captured.go_on(Duration::from_secs(4));
    for (pod, node) in on_nodes {
        assert!(
            has_logged(pod, node, "pod released").is_err(),
            "{pod} still has connections"
        );
    }
    println!(
        "left within {left:?}; {} bytes on connections that were captured",
        captured.ends_without_a_failure()
    );
    // The last captured connection has ended: nothing of the mesh is left in the pods.
    for (pod, node) in on_nodes {
        let gone = || has_logged(pod, node, "pod released");
        eventually("released", Duration::from_secs(15), gone).unwrap();
    }
    after.ends_without_a_failure();
}

#[test]
fn peers_of_a_pod_that_refuses_plaintext_lose_no_connection_when_it_leaves() {
    let village = Village::found("fortress");
    lab()
        .apply(
            "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: fortress}\nspec: {mtls: {mode: STRICT}}\n",
        )
        .unwrap();
    village.label(true);
    village.until("enabled");
    let refused = lab()
        .traffic("outside/legacy", &["echo", &village.echo(1).to_string()])
        .unwrap();
    assert!(
        !refused.is_done(),
        "plaintext is refused while it is in the mesh"
    );
    let volume = Volume {
        visits: 60,
        ..Volume::default()
    };
    let targets = [village.echo(0), village.echo(1)];
    let load = Load::start(lab(), "shop/client", &targets, &volume, "fortress").unwrap();
    village.label(false);
    let since = now();
    village.until("");
    load.wait_for_visits(since, 60, Duration::from_secs(10))
        .unwrap();
    load.go_on(Duration::from_secs(2));
    let report = lab()
        .traffic("outside/legacy", &["echo", &village.echo(1).to_string()])
        .unwrap();
    assert!(report.is_done(), "{report:?}");
    let tally = load.stop().unwrap();
    let failures = tally.failures();
    assert!(failures.is_empty(), "{failures:?}");
}

#[test]
fn a_pod_that_is_deleted_while_it_leaves_waits_for_nobody() {
    let village = Village::found("hamlet");
    village.label(true);
    village.until("enabled");
    let target = village.echo(1);
    let held = lab().hold("shop/client", target).unwrap();
    village.label(false);
    village.until("");
    let begun = Instant::now();
    lab().delete("pod", &village.pods[1]).unwrap();
    let name: PodName = village.pods[1].parse().unwrap();
    eventually("the pod is gone", Duration::from_secs(10), || {
        ensure!(
            !lab().state().pod_record(&name).exists(),
            "it is still there"
        );
        Ok(())
    })
    .unwrap();
    let took = begun.elapsed();
    // A second of grace for its container, and CNI DEL.
    assert!(took < Duration::from_secs(4), "{took:?}");
    let report = held.ended(Duration::from_secs(10)).unwrap();
    assert!(!report.is_done(), "{report:?}");
}
