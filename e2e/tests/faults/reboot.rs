// SPDX-License-Identifier: Apache-2.0
//! A node that loses its power: its pods come back while the agent is still starting, and none of them says a word
//! outside of the mesh.

use std::time::Duration;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::load::now;
use e2e::topology::Node;
use e2e::trial::{Course, Trial};

use crate::ground::{bounded, judge, timed, turn};

/// Speaks from its first moment, and never stops.
fn caller(target: std::net::SocketAddr, marker: &str) -> String {
    format!(
        "apiVersion: v1
kind: ServiceAccount
metadata: {{name: caller, namespace: shop}}
---
apiVersion: v1
kind: Pod
metadata: {{name: caller, namespace: shop, labels: {{app: caller}}}}
spec:
  nodeName: node-b
  serviceAccountName: caller
  terminationGracePeriodSeconds: 0
  containers:
  - name: app
    image: culvert/load
    args: [\"{target}\", --transfers=1, --rate=65536, --talks=1, --visits=20, --marker={marker}]
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"
    )
}

#[test]
fn no_pod_of_a_node_that_comes_back_runs_outside_of_the_mesh() {
    let turn = turn();
    let lab = turn.lab;
    // By the service, as the pods come back with other addresses.
    let course = Course {
        from: "shop/client",
        to: vec!["10.96.0.10:9000".parse().unwrap()],
        // The peers of pods that vanish hear nothing; the proxy's own patience is 30 s.
        volume: e2e::load::Volume {
            stall: Duration::from_secs(5),
            ..e2e::load::Volume::default()
        },
    };
    let trial = Trial::begin(lab, &course).unwrap();
    lab.apply(&caller(turn.echo("shop/web-a"), trial.marker()))
        .unwrap();
    // Before it runs for the first time it has no log.
    let log = || lab.log("shop/caller").unwrap_or_default();
    let answers = || log().matches("answered").count();
    eventually("the caller is answered", Duration::from_secs(20), || {
        ensure!(answers() > 5, "not yet");
        Ok(())
    })
    .unwrap();

    // The agent is the last to come, and everybody else is there before it.
    std::fs::write(lab.state().held_down("istio-system_istio-cni-node-b"), []).unwrap();
    let fault = now();
    lab.reboot(Node::B).unwrap();
    let waiting = eventually("CNI refuses", Duration::from_secs(20), || {
        let record = lab.pod("shop/caller")?;
        ensure!(record.containers.is_empty(), "the caller runs: {record:?}");
        let message = record.message.unwrap_or_default();
        ensure!(message.contains("not ready for the mesh"), "{message}");
        Ok(message)
    })
    .unwrap();
    println!("meanwhile: {waiting}");
    trial.load().go_on(Duration::from_secs(1));
    let before = answers();
    lab.let_start("istio-cni-node-b").unwrap();
    let last = now();
    let (back, took) = timed(|| {
        eventually(
            "the caller is answered again",
            Duration::from_secs(40),
            || {
                ensure!(answers() > before + 5, "not yet");
                Ok(())
            },
        )
    });
    back.unwrap();
    bounded(
        "from the agent's start until a pod of the node was answered",
        took,
        Duration::from_secs(25),
    );
    turn.all_ready();
    trial
        .load()
        .wait_for_visits(last, 20, Duration::from_secs(40))
        .unwrap();
    trial
        .load()
        .wait_for_connections(last, Duration::from_secs(40))
        .unwrap();
    let verdict = judge("node rebooted", trial);
    println!(
        "  new connections to the service worked again {:?} after the loss of power",
        verdict
            .traffic
            .recovery(fault, Duration::from_secs(1))
            .unwrap()
    );
    let recovery = verdict
        .traffic
        .recovery(last, Duration::from_secs(1))
        .unwrap();
    bounded(
        "  from the agent's start until all new connections worked",
        recovery,
        Duration::from_secs(25),
    );
    turn.remove_pod("shop/caller");
}
