// SPDX-License-Identifier: Apache-2.0
//! Pods are replaced, one after the other, while applications go on asking: those behind a waypoint, and its own. Nobody is
//! told of it: no request fails, no connection is reset.

use std::io::Read as _;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::topology::Node;
use e2e::traffic::{Outcome, Report};
use e2e::waypoints::Waypoint;

use crate::ground::{PATIENCE, lab, talk};

const WAYPOINT: Waypoint = Waypoint {
    namespace: "roll",
    name: "wp",
    node: Node::A,
    serves: "service",
    number: 110,
};

const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: roll, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: app, namespace: roll}
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: roll, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: app}
  clusterIP: 10.96.0.111
  clusterIPs: [10.96.0.111]
  ports:
  - {name: http, port: 80, targetPort: 8090}
  - {name: grpc, port: 81, targetPort: 8090}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app, namespace: roll}
spec:
  parentRefs: [{group: "", kind: Service, name: app, port: 80}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /slow}}]
    timeouts: {request: 300ms}
    backendRefs: [{name: pages, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /sticky}}]
    sessionPersistence: {type: Cookie, sessionName: stay}
    backendRefs: [{name: pages, port: 80}]
  - backendRefs: [{name: app, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: pages, namespace: roll}
spec:
  selector: {app: app}
  clusterIP: 10.96.0.112
  clusterIPs: [10.96.0.112]
  ports: [{name: http, port: 80, targetPort: 8080}]
"#;

const HTTP: &str = "10.96.0.111:80";
const GRPC: &str = "10.96.0.111:81";

fn app(name: &str, node: Node) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: roll, labels: {{app: app}}}}
spec:
  nodeName: {node}
  serviceAccountName: app
  terminationGracePeriodSeconds: 3
  containers:
  - name: app
    image: culvert/app
    args: [web, http]
    env: [{{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"
    )
}

fn prepared() {
    static APPLIED: std::sync::OnceLock<()> = std::sync::OnceLock::new();
    let lab = lab();
    APPLIED.get_or_init(|| {
        lab.apply(OBJECTS).unwrap();
        lab.apply(&WAYPOINT.manifest()).unwrap();
        lab.apply(&app("app-1", Node::A)).unwrap();
        lab.apply(&app("app-2", Node::B)).unwrap();
        for pod in ["roll/wp", "roll/app-1", "roll/app-2"] {
            lab.wait_ready(pod).unwrap();
        }
        eventually("the ways are known", PATIENCE, || {
            for (kind, target) in [("http", HTTP), ("grpc", GRPC)] {
                let arguments = ["requests", kind, target, "--times", "1"];
                let report = lab.traffic("shop/client", &arguments)?;
                ensure!(report.is_done(), "{report:?}");
            }
            // By the route, which is known with it.
            let report = lab.traffic("shop/client", &["get", HTTP, "/slow/600"])?;
            ensure!(
                report.outcome == Outcome::Failed("status 504".into()),
                "{report:?}"
            );
            Ok(())
        })
        .unwrap();
    });
}

/// Held by whoever needs the pods to stay, or has them go.
static PODS: Mutex<()> = Mutex::new(());

/// Clients that ask until they are told to end.
struct Asking {
    what: &'static str,
    process: Child,
    lifeline: Option<ChildStdin>,
}

impl Asking {
    fn start(what: &'static str, target: &str) -> Self {
        let arguments = ["traffic", "requests", what, target, "--clients", "2"];
        let mut command = lab().tool("shop/client", &arguments);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lifeline = process.stdin.take();
        Self {
            what,
            process,
            lifeline,
        }
    }

    fn end(mut self) -> Report {
        drop(self.lifeline.take());
        let mut text = String::new();
        let mut output = self.process.stdout.take().unwrap();
        output.read_to_string(&mut text).unwrap();
        serde_json::from_str(text.trim())
            .unwrap_or_else(|error| panic!("{}: {error}: {text}", self.what))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Another pod takes the place of one.
fn replace(old: &str, new: &str, manifest: &str) {
    lab().apply(manifest).unwrap();
    lab().wait_ready(&format!("roll/{new}")).unwrap();
    lab().delete("pod", &format!("roll/{old}")).unwrap();
    eventually("the old one is gone", PATIENCE, || {
        ensure!(
            lab().pod(&format!("roll/{old}")).is_err(),
            "it is still there"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn pods_behind_a_waypoint_and_its_own_are_replaced_and_no_request_fails() {
    let _pods = PODS.lock().unwrap_or_else(PoisonError::into_inner);
    prepared();
    let clients = [("http", HTTP), ("grpc", GRPC), ("websocket", HTTP)]
        .map(|(what, target)| Asking::start(what, target));
    replace("app-1", "app-3", &app("app-3", Node::A));
    replace("app-2", "app-4", &app("app-4", Node::B));
    replace("wp", "wp-2", &WAYPOINT.pod_manifest("wp-2", Node::B));
    let mut wrong = Vec::new();
    for client in clients {
        let what = client.what;
        let report = client.end();
        if !report.is_done() || report.connections < 20 {
            wrong.push(format!("{what}: {report:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_applications_say_to_each_other_passes_as_it_is() {
    prepared();
    for (what, target) in [
        ("http", HTTP),
        ("continue", HTTP),
        ("websocket", HTTP),
        ("grpc", GRPC),
    ] {
        let report = talk("shop/client", &["requests", what, target, "--times", "5"]);
        assert_eq!(report.connections, 5, "{what}: {report:?}");
    }
}

#[test]
fn who_takes_too_long_is_given_up_and_a_session_stays_where_it_began() {
    let _pods = PODS.lock().unwrap_or_else(PoisonError::into_inner);
    prepared();
    let ask = |path: &str, more: &[&str]| {
        let arguments: Vec<&str> = ["get", HTTP, path].iter().chain(more).copied().collect();
        lab().traffic("shop/client", &arguments).unwrap()
    };
    let late = ask("/slow/600", &[]);
    assert_eq!(
        late.outcome,
        Outcome::Failed("status 504".into()),
        "{late:?}"
    );
    let pod = |report: &Report| {
        let answer = report.answer.as_deref().unwrap_or_default();
        let page: serde_json::Value = serde_json::from_str(answer).unwrap_or_default();
        page["pod"].as_str().unwrap_or_default().to_owned()
    };
    let first = ask("/sticky", &[]);
    let cookie = first.header("set-cookie").unwrap_or_default().to_owned();
    let cookie = format!("cookie: {}", cookie.split(';').next().unwrap());
    assert!(cookie.starts_with("cookie: stay="), "{first:?}");
    for _request in 0..8 {
        // Of two pods, a fair choice would take the other one in some.
        let again = ask("/sticky", &["--header", &cookie]);
        assert_eq!(pod(&again), pod(&first), "{again:?}");
    }
}
