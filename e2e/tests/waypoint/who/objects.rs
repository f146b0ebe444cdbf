// SPDX-License-Identifier: Apache-2.0
//! The pods, services and waypoints of the table.

use std::fmt::Write as _;
use std::net::SocketAddr;

use e2e::topology::Node;
use e2e::waypoints::Waypoint;

use super::To;

pub(super) const SVC: Waypoint = waypoint("svc", Node::A, "service", 80);
pub(super) const WL: Waypoint = waypoint("wl", Node::B, "workload", 81);
pub(super) const ALL: Waypoint = waypoint("all", Node::B, "all", 82);
/// Nothing may use it.
const NONE: Waypoint = waypoint("none-at-all", Node::B, "none", 83);
/// It has an address, and no pod.
const GHOST: Waypoint = waypoint("ghost", Node::B, "all", 84);

const fn waypoint(name: &'static str, node: Node, serves: &'static str, number: u8) -> Waypoint {
    Waypoint {
        namespace: "who",
        name,
        node,
        serves,
        number,
    }
}

/// A pod: of which Gateway it says it wants, and what else it is marked with.
pub(super) struct Server {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
    node: Node,
    waypoint: &'static str,
    annotations: &'static str,
}

const fn server(namespace: &'static str, name: &'static str, waypoint: &'static str) -> Server {
    Server {
        namespace,
        name,
        node: Node::B,
        waypoint,
        annotations: "",
    }
}

const CLOSED: &str = r#"culvert.io/require-waypoint: "true""#;

pub(super) const PODS: &[Server] = &[
    server("who", "plain", ""),
    server("who", "by-wl", "wl"),
    Server {
        node: Node::A,
        ..server("who", "by-all", "all")
    },
    server("who", "by-svc", "svc"),
    server("who", "by-ghost", "ghost"),
    server("who-svc", "server", ""),
    server("who-all", "inherits", ""),
    server("who-all", "declines", "none"),
    Server {
        annotations: CLOSED,
        ..server("who", "closed", "wl")
    },
    Server {
        annotations: CLOSED,
        ..server("who", "closed-by-absent", "absent")
    },
];

/// A service: the last number of its address, the pod that backs it, its labels and annotations.
struct Front {
    namespace: &'static str,
    name: &'static str,
    number: u8,
    pod: &'static str,
    labels: &'static str,
    annotations: &'static str,
}

const fn front(name: &'static str, number: u8, pod: &'static str, labels: &'static str) -> Front {
    Front {
        namespace: "who",
        name,
        number,
        pod,
        labels,
        annotations: "",
    }
}

const FRONTS: &[Front] = &[
    front("by-svc", 90, "plain", "istio.io/use-waypoint: svc"),
    front("by-wl", 91, "plain", "istio.io/use-waypoint: wl"),
    front("by-all", 92, "plain", "istio.io/use-waypoint: all"),
    front("by-none", 93, "plain", "istio.io/use-waypoint: none-at-all"),
    front("by-ghost", 94, "plain", "istio.io/use-waypoint: ghost"),
    front("by-absent", 95, "plain", "istio.io/use-waypoint: absent"),
    front("over-by-wl", 96, "by-wl", ""),
    Front {
        annotations: r#"istio.io/use-waypoint-canary-weight: "50""#,
        ..front(
            "canary",
            97,
            "plain",
            "istio.io/use-waypoint: svc, istio.io/use-waypoint-canary: all",
        )
    },
    front(
        "ingress",
        98,
        "plain",
        r#"istio.io/use-waypoint: svc, istio.io/ingress-use-waypoint: "true""#,
    ),
    front("closed", 99, "closed", "istio.io/use-waypoint: svc"),
    front("over-closed", 100, "closed", ""),
    Front {
        namespace: "who-svc",
        ..front("inherits", 101, "server", "")
    },
    Front {
        namespace: "who-svc",
        ..front("declines", 102, "server", "istio.io/use-waypoint: none")
    },
    Front {
        namespace: "who-all",
        ..front("inherits", 103, "inherits", "")
    },
];

fn find(namespace: &str, name: &str) -> &'static Front {
    let mut fronts = FRONTS.iter();
    let found = fronts.find(|front| front.namespace == namespace && front.name == name);
    found.unwrap_or_else(|| panic!("the table has no service {namespace}/{name}"))
}

/// Where a service is.
pub(super) fn address(namespace: &str, name: &str) -> SocketAddr {
    SocketAddr::from(([10, 96, 0, find(namespace, name).number], 80))
}

/// The pod that is to answer.
pub(super) fn backend(to: To) -> &'static str {
    match to {
        To::Pod(pod) => pod.split('/').nth(1).unwrap_or(pod),
        To::Service(namespace, name) => find(namespace, name).pod,
    }
}

/// All of it.
pub(super) fn manifest() -> String {
    let mut text = String::new();
    for (namespace, waypoint) in [("who", ""), ("who-svc", "svc"), ("who-all", "all")] {
        let waypoint = match waypoint {
            "" => String::new(),
            name => {
                format!(", istio.io/use-waypoint: {name}, istio.io/use-waypoint-namespace: who")
            }
        };
        let _ = write!(
            text,
            "apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {{istio.io/dataplane-mode: ambient{waypoint}}}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: server, namespace: {namespace}}}
---
"
        );
    }
    for waypoint in [SVC, WL, ALL] {
        text.push_str(&waypoint.manifest());
    }
    text.push_str(&NONE.gateway());
    text.push_str(&GHOST.gateway());
    for pod in PODS {
        text.push_str(&pod.manifest());
    }
    for front in FRONTS {
        text.push_str(&front.manifest());
    }
    text
}

impl Server {
    /// As a replica of the one Deployment that they all belong to.
    fn manifest(&self) -> String {
        let Self {
            namespace,
            name,
            node,
            waypoint,
            annotations,
        } = self;
        let waypoint = match *waypoint {
            "" => String::new(),
            name => format!(", istio.io/use-waypoint: {name}"),
        };
        format!(
            "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  labels: {{app: server, pod: {name}, pod-template-hash: '1'{waypoint}}}
  annotations: {{{annotations}}}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: server-1, uid: server-1, controller: true}}]
spec:
  nodeName: {node}
  serviceAccountName: server
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: culvert/app
    args: [http]
    env: [{{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
    securityContext: {{capabilities: {{drop: [ALL]}}}}
---
"
        )
    }
}

impl Front {
    fn manifest(&self) -> String {
        let Self {
            namespace,
            name,
            number,
            pod,
            labels,
            annotations,
        } = self;
        format!(
            "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}, annotations: {{{annotations}}}}}
spec:
  selector: {{pod: {pod}}}
  clusterIP: 10.96.0.{number}
  clusterIPs: [10.96.0.{number}]
  ports: [{{name: http, port: 80, targetPort: 8080}}]
---
"
        )
    }
}
