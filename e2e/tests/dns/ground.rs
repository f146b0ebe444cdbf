// SPDX-License-Identifier: Apache-2.0
//! What the tests stand on: the lab with some pods and services more, and who may disturb whom.

use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::ensure;
use e2e::dns::client::Answered;
use e2e::dns::message::unhex;
use e2e::handle::{Lab, Shared, eventually};
use e2e::traffic::Outcome;

static SHARED: Shared = Shared::new("dns", env!("CARGO_BIN_EXE_e2e"));
static POPULATED: Once = Once::new();
static PEACE: RwLock<()> = RwLock::new(());

/// Pods that ask, one of them without DNS capture, and a server behind names that only the mesh knows.
const WORLD: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: names, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: names, namespace: names}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: names}
spec:
  hosts: [api.test]
  addresses: [240.240.0.1, "2001:2::1"]
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  resolution: STATIC
  location: MESH_INTERNAL
  workloadSelector: {labels: {app: backend}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild, namespace: names}
spec:
  hosts: ["*.wild.test"]
  addresses: [240.240.0.2]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DYNAMIC_DNS
  location: MESH_EXTERNAL
"#;

/// A pod of the namespace `names`.
pub(crate) fn pod(name: &str, app: &str, node: &str, annotations: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: names, labels: {{app: {app}}}, annotations: {annotations}}}
spec:
  nodeName: {node}
  serviceAccountName: names
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: culvert/app
    env: [{{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"#
    )
}

pub(crate) const UNCAPTURED: &str = r#"{ambient.istio.io/dns-capture: "false"}"#;

/// The lab, while nobody disturbs it.
pub(crate) fn lab() -> (&'static Lab, RwLockReadGuard<'static, ()>) {
    let peace = PEACE.read().unwrap_or_else(PoisonError::into_inner);
    (populated(), peace)
}

/// The lab for a test that breaks something, and mends it before it ends.
pub(crate) fn lab_alone() -> (&'static Lab, RwLockWriteGuard<'static, ()>) {
    let alone = PEACE.write().unwrap_or_else(PoisonError::into_inner);
    (populated(), alone)
}

fn populated() -> &'static Lab {
    let lab = SHARED.lab();
    POPULATED.call_once(|| {
        let pods = [
            pod("asker", "asker", "node-a", "{}"),
            pod("plain", "plain", "node-a", UNCAPTURED),
            pod("backend", "backend", "node-b", "{}"),
        ];
        lab.apply(&[WORLD, &pods.join("---")].join("---")).unwrap();
        for name in ["names/asker", "names/plain", "names/backend"] {
            lab.wait_ready(name).unwrap();
        }
        eventually("the names have arrived", Duration::from_secs(10), || {
            for host in ["api.test", "x.wild.test"] {
                let answered = ask(lab, "names/asker", &[host]);
                ensure!(answered.message()?.rcode == "NOERROR", "{answered:?}");
            }
            Ok(())
        })
        .unwrap();
    });
    lab
}

/// Asks from inside a pod, whatever comes of it.
pub(crate) fn ask(lab: &Lab, pod: &str, question: &[&str]) -> Answered {
    let arguments: Vec<&str> = ["resolve"].iter().chain(question).copied().collect();
    lab.answer(pod, &arguments).unwrap()
}

/// Asks and is answered.
pub(crate) fn answer(lab: &Lab, pod: &str, question: &[&str]) -> Answered {
    let answered = ask(lab, pod, question);
    assert_eq!(
        answered.outcome,
        Outcome::Done,
        "{pod}: {question:?}: {answered:?}\n{}",
        lab.log("resolver").unwrap_or_default()
    );
    answered
}

/// The addresses of one type in the answer, sorted.
pub(crate) fn addresses(answered: &Answered, record_type: &str) -> Vec<String> {
    let message = answered.message().unwrap();
    assert_eq!(message.rcode, "NOERROR", "{answered:?}");
    let mut found: Vec<String> = message
        .data(record_type)
        .into_iter()
        .map(str::to_owned)
        .collect();
    found.sort();
    found
}

/// The response without its id.
pub(crate) fn bytes(answered: &Answered) -> Vec<u8> {
    unhex(&answered.response).unwrap().split_off(2)
}

/// What pods asked the DNS server about a name: the lines that it wrote, over what, from where, of which type.
pub(crate) fn asked_upstream(lab: &Lab, name: &str, types: &[&str]) -> Vec<String> {
    let log = lab.log("resolver").unwrap();
    let about = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [_, _, asked, record_type] if asked == name && types.contains(&record_type))
    };
    log.lines().filter(about).map(str::to_owned).collect()
}
