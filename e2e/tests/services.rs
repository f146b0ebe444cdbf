// SPDX-License-Identifier: Apache-2.0
//! Services that Kubernetes doesn't know, and how endpoints of all services are chosen: seen from two nodes, of which
//! one follows the whole mesh and the other (node a) is told only of what its connections ask for.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::access_log::Entry;
use e2e::dns::client::Answered;
use e2e::handle::{Lab, Shared, eventually};
use e2e::manifests::BUILT_IN;
use e2e::topology::Node;
use e2e::traffic::Outcome;

static SHARED: Shared = Shared::changed("services", env!("CARGO_BIN_EXE_e2e"), on_demand_on_node_a);

/// A change takes its way through control plane and proxy well within this.
const SETTLES: Duration = Duration::from_secs(15);
/// A client on either node.
const CLIENTS: [(&str, Node); 2] = [("shop/client", Node::A), ("shop/vault", Node::B)];

fn lab() -> &'static Lab {
    SHARED.lab()
}

/// Node a's proxy asks for what it needs; that excludes serving DNS.
fn on_demand_on_node_a() -> String {
    let documents = BUILT_IN.iter().flat_map(|(_, text)| text.split("\n---\n"));
    let of_node = documents.filter_map(|document| {
        if document.contains("name: ztunnel-a\n") {
            let settings = "    env:
    - {name: XDS_ON_DEMAND, value: \"true\"}
    - {name: ISTIO_META_DNS_CAPTURE, value: \"false\"}\n";
            Some(document.replacen("    env:\n", settings, 1))
        } else if document.contains("name: istio-cni-node-a\n") {
            let on = "AMBIENT_DNS_CAPTURE, value: \"true\"";
            Some(document.replace(on, "AMBIENT_DNS_CAPTURE, value: \"false\""))
        } else {
            None
        }
    });
    of_node.collect::<Vec<_>>().join("\n---\n")
}

fn entry(namespace: &str, name: &str, spec: &str) {
    let manifest = format!(
        "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: {namespace}}}
spec: {spec}
"
    );
    lab().apply(&manifest).unwrap();
}

fn pod(namespace: &str, name: &str, app: &str, node: Node) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}}}}}
spec:
  nodeName: {node}
  serviceAccountName: web
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: culvert/app
    env: [{{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"
    )
}

/// The address of a server that is not in the mesh.
fn outsider() -> IpAddr {
    lab().v4("outside/legacy", 9000).unwrap().ip()
}

fn echo(place: &str, target: SocketAddr) -> anyhow::Result<SocketAddr> {
    let report = lab().traffic(place, &["echo", &target.to_string()])?;
    ensure!(report.is_done(), "{place} to {target}: {}", report.outcome);
    report.local.context("a connection has a local end")
}

fn logged(node: Node, source: SocketAddr) -> Entry {
    let of_it =
        |entry: &Entry| entry.is_final() && entry.source() == Some(source) && !entry.is_inbound();
    lab()
        .access_entry(node, &format!("the connection from {source}"), of_it)
        .unwrap()
}

/// Clients on both nodes reach this address of a service, and their proxies say which service it is and who serves it.
fn reaches(target: &str, service: &str, server: SocketAddr) {
    let target = target.parse().unwrap();
    for (client, node) in CLIENTS {
        let source = eventually(&format!("{client} reaches {service}"), SETTLES, || {
            echo(client, target)
        });
        let entry = logged(node, source.unwrap());
        assert!(entry.is("dst.service", service), "{entry}");
        assert!(entry.is("dst.addr", &server.to_string()), "{entry}");
    }
}

/// A client's connection is reset, and its proxy says why.
fn is_refused(client: &str, node: Node, target: &str, why: &str) {
    let from = lab().v4(client, 0).unwrap().ip();
    eventually(&format!("{client} is refused: {why}"), SETTLES, || {
        let outcome = lab().traffic(client, &["echo", target])?.outcome;
        ensure!(outcome == Outcome::Reset, "{outcome}");
        let entries = lab().access_log(node)?;
        let refusal = entries.iter().rev().find(|entry| {
            entry.source().is_some_and(|source| source.ip() == from)
                && entry.error().is_some_and(|error| error.contains(why))
        });
        refusal
            .map(drop)
            .with_context(|| format!("{:?}", entries.last()))
    })
    .unwrap();
}

/// What the control plane says of an object, once it says something of that kind.
fn condition(kind: &str, object: &str, name: &str) -> serde_json::Value {
    let path = format!(".status/{kind}/{object}/istiod-lite.json");
    let path = lab().state().manifests().join(path);
    eventually(&format!("{kind} {object} has {name}"), SETTLES, || {
        let status: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let conditions = status["status"]["conditions"].as_array();
        let found = conditions
            .into_iter()
            .flatten()
            .find(|one| one["type"] == name);
        found.cloned().with_context(|| format!("{status}"))
    })
    .unwrap()
}

#[test]
fn a_service_entry_is_reached_at_its_endpoint_outside_of_the_mesh() {
    let outsider = outsider();
    let spec = format!(
        "{{hosts: [db.example.com], addresses: [192.0.2.10], resolution: STATIC,
          ports: [{{number: 7000, name: tcp-echo, protocol: TCP, targetPort: 9000}}],
          endpoints: [{{address: {outsider}}}]}}"
    );
    entry("shop", "database", &spec);
    reaches("192.0.2.10:7000", "db.example.com", (outsider, 9000).into());
}

#[test]
fn a_host_without_address_is_given_one_under_which_it_is_reached() {
    let outsider = outsider();
    let spec = format!(
        "{{hosts: [auto.example.com], resolution: STATIC,
          ports: [{{number: 9000, name: tcp-echo, protocol: TCP}}],
          endpoints: [{{address: {outsider}}}]}}"
    );
    entry("shop", "auto", &spec);
    let path = lab()
        .state()
        .manifests()
        .join(".status/ServiceEntry/shop/auto/istiod-lite.json");
    let given = eventually("an address is given", SETTLES, || {
        let status: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let address = &status["status"]["addresses"][0];
        ensure!(address["host"] == "auto.example.com", "{status}");
        Ok(address["value"].as_str().context("text")?.to_owned())
    })
    .unwrap();
    reaches(
        &format!("{given}:9000"),
        "auto.example.com",
        (outsider, 9000).into(),
    );
}

#[test]
fn an_address_within_the_range_of_a_service_entry_is_its() {
    let outsider = outsider();
    let spec = format!(
        "{{hosts: [range.example.com], addresses: [198.51.100.0/24], resolution: STATIC,
          ports: [{{number: 9000, name: tcp-echo, protocol: TCP}}],
          endpoints: [{{address: {outsider}}}]}}"
    );
    entry("shop", "range", &spec);
    reaches(
        "198.51.100.77:9000",
        "range.example.com",
        (outsider, 9000).into(),
    );
}

#[test]
fn a_host_is_its_own_endpoint_where_it_is_found_by_name() {
    let spec = "{hosts: [host.lab.example], addresses: [192.0.2.30], resolution: DNS,
          ports: [{number: 53, name: tcp-dns, protocol: TCP}]}";
    entry("shop", "by-name", spec);
    // The lab's DNS server is that host; node a's pods reach it themselves, as their DNS is not served.
    let answered: Answered = eventually("the host answers", SETTLES, || {
        let question = [
            "resolve",
            "host.lab.example",
            "A",
            "--server",
            "192.0.2.30",
            "--tcp",
        ];
        let answered: Answered = lab().answer("shop/client", &question)?;
        ensure!(answered.outcome == Outcome::Done, "{answered:?}");
        Ok(answered)
    })
    .unwrap();
    let resolver = e2e::topology::resolver().v4;
    assert!(
        format!("{:?}", answered.message().unwrap()).contains(&resolver.to_string()),
        "{answered:?}"
    );
    let server = SocketAddr::new(resolver.into(), 53).to_string();
    let of_it = |entry: &Entry| entry.is_final() && entry.is("dst.service", "host.lab.example");
    let entry = lab()
        .access_entry(Node::A, "the connection to the host", of_it)
        .unwrap();
    assert!(entry.is("dst.addr", &server), "{entry}");
    let metrics = lab().metrics(Node::A).unwrap();
    let found = metrics.sum(
        "istio_on_demand_dns_total",
        &[("hostname", "host.lab.example")],
    );
    assert!(found >= 1.0, "{found}");
}

#[test]
fn a_host_that_has_no_address_refuses_and_says_so() {
    let spec = "{hosts: [missing.lab.example], addresses: [192.0.2.31], resolution: DNS,
          ports: [{number: 9000, name: tcp-echo, protocol: TCP}]}";
    entry("shop", "missing", spec);
    let why = "missing.lab.example, but it has no address";
    for (client, node) in CLIENTS {
        is_refused(client, node, "192.0.2.31:9000", why);
    }
}

#[test]
fn a_workload_entry_backs_a_service_and_a_service_entry_that_select_it() {
    let outsider = outsider();
    let manifest = format!(
        "apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: vm, namespace: shop, labels: {{app: vm}}}}
spec: {{address: {outsider}, ports: {{tcp-echo: 9000}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: vm, namespace: shop}}
spec:
  selector: {{app: vm}}
  clusterIP: 10.96.0.41
  clusterIPs: [10.96.0.41]
  ports: [{{name: tcp-echo, port: 7001, targetPort: 1}}]
"
    );
    lab().apply(&manifest).unwrap();
    let spec = "{hosts: [vm.example.com], addresses: [192.0.2.11], resolution: STATIC,
          ports: [{number: 7002, name: tcp-echo, protocol: TCP}],
          workloadSelector: {labels: {app: vm}}}";
    entry("shop", "vm", spec);
    let server = (outsider, 9000).into();
    reaches("10.96.0.41:7001", "vm.shop.svc.cluster.local", server);
    reaches("192.0.2.11:7002", "vm.example.com", server);
}

#[test]
fn without_resolution_a_connection_goes_where_the_client_sent_it() {
    let server = pod("outside", "lone", "lone", Node::B);
    let account =
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: outside}\n";
    lab().apply(&format!("{account}---\n{server}")).unwrap();
    lab().wait_ready("outside/lone").unwrap();
    let lone = lab().v4("outside/lone", 9000).unwrap();
    let spec = format!(
        "{{hosts: [pass.example.com], addresses: [{}], resolution: NONE,
          ports: [{{number: 9000, name: tcp-echo, protocol: TCP}}]}}",
        lone.ip()
    );
    entry("shop", "pass", &spec);
    for (client, node) in CLIENTS {
        eventually(&format!("{client} is passed through"), SETTLES, || {
            let entry = logged(node, echo(client, lone)?);
            ensure!(entry.is("dst.addr", &lone.to_string()), "{entry}");
            // Until the entry is known, the pod at that address has a name.
            ensure!(entry.field("dst.workload").is_none(), "{entry}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_service_entry_may_be_for_its_own_namespace_only() {
    let outsider = outsider();
    let manifest = format!(
        "apiVersion: v1
kind: Namespace
metadata: {{name: team, labels: {{istio.io/dataplane-mode: ambient, visibility: private}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data:
  mesh: |
    serviceEntryVisibility:
      policies:
      - visibility: NAMESPACE
        matchingRules: [{{namespaceSelector: {{matchLabels: {{visibility: private}}}}}}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: web, namespace: team}}
---
{}---
{}",
        pod("team", "inside-a", "inside", Node::A),
        pod("team", "inside-b", "inside", Node::B)
    );
    lab().apply(&manifest).unwrap();
    let spec = format!(
        "{{hosts: [team.example.com], addresses: [192.0.2.20], resolution: STATIC,
          ports: [{{number: 9000, name: tcp-echo, protocol: TCP}}],
          endpoints: [{{address: {outsider}}}]}}"
    );
    entry("team", "hidden", &spec);
    let told = condition("ServiceEntry", "team/hidden", "istio.io/VisibilityApplied");
    assert_eq!(told["reason"], "Namespace");
    let target: SocketAddr = "192.0.2.20:9000".parse().unwrap();
    for (client, node) in [("team/inside-a", Node::A), ("team/inside-b", Node::B)] {
        lab().wait_ready(client).unwrap();
        let source = eventually(&format!("{client} sees it"), SETTLES, || {
            echo(client, target)
        });
        let entry = logged(node, source.unwrap());
        assert!(entry.is("dst.service", "team.example.com"), "{entry}");
    }
    for (client, node) in CLIENTS {
        // To others it is not there: they are sent where they wanted to go, where nobody is.
        let report = lab()
            .traffic(client, &["echo", &target.to_string()])
            .unwrap();
        assert_ne!(report.outcome, Outcome::Done, "{client}");
        let from = lab().v4(client, 0).unwrap().ip();
        let passed = |entry: &Entry| {
            entry.is_final()
                && entry.source().is_some_and(|source| source.ip() == from)
                && entry.is("dst.addr", &target.to_string())
        };
        let entry = lab().access_entry(node, "the attempt", passed).unwrap();
        assert!(entry.field("dst.service").is_none(), "{entry}");
    }
}

#[test]
fn the_nearest_endpoints_are_used_and_others_when_there_are_none() {
    let service = "apiVersion: v1
kind: Service
metadata: {name: near, namespace: shop}
spec:
  selector: {app: near}
  clusterIP: 10.96.0.42
  clusterIPs: [10.96.0.42]
  trafficDistribution: PreferClose
  ports: [{name: http, port: 80, targetPort: 8080}]
";
    let pods = [
        pod("shop", "near-a", "near", Node::A),
        pod("shop", "near-b", "near", Node::B),
    ];
    lab()
        .apply(&format!("{service}---\n{}---\n{}", pods[0], pods[1]))
        .unwrap();
    lab().wait_ready("shop/near-a").unwrap();
    lab().wait_ready("shop/near-b").unwrap();
    let answers = |client: &str| -> anyhow::Result<Vec<String>> {
        let mut pods = Vec::new();
        for _ in 0..8 {
            let report = lab().traffic(client, &["get", "10.96.0.42:80"])?;
            ensure!(report.is_done(), "{client}: {}", report.outcome);
            let page: serde_json::Value = serde_json::from_str(&report.answer.unwrap_or_default())?;
            pods.push(page["pod"].as_str().context("a name")?.to_owned());
        }
        pods.dedup();
        Ok(pods)
    };
    let is_answered_by = |client: &str, pod: &str| {
        eventually(&format!("{client} is answered by {pod}"), SETTLES, || {
            let pods = answers(client)?;
            ensure!(pods == [pod], "{pods:?}");
            Ok(())
        })
        .unwrap();
    };
    is_answered_by("shop/client", "near-a");
    is_answered_by("shop/vault", "near-b");
    lab().delete("pod", "shop/near-a").unwrap();
    is_answered_by("shop/client", "near-b");
    // Node a hears of a pod that it never asked for, since it backs a service that it did ask for.
    lab()
        .apply(&pod("shop", "near-again", "near", Node::A))
        .unwrap();
    lab().wait_ready("shop/near-again").unwrap();
    is_answered_by("shop/client", "near-again");
}

#[test]
fn a_waypoint_with_a_share_that_is_not_there_is_never_passed_by() {
    let gateway = |name: &str, address: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: shop}}
spec: {{gatewayClassName: istio-waypoint, listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]}}
status: {{addresses: [{{type: IPAddress, value: {address}}}]}}
---
"
        )
    };
    let service = "apiVersion: v1
kind: Service
metadata:
  name: guarded
  namespace: shop
  labels: {istio.io/use-waypoint: main, istio.io/use-waypoint-canary: next}
  annotations: {istio.io/use-waypoint-canary-weight: \"100\"}
spec:
  selector: {app: web}
  clusterIP: 10.96.0.43
  clusterIPs: [10.96.0.43]
  ports: [{name: tcp-echo, port: 9000}]
";
    let waypoints = gateway("main", "10.96.9.1") + &gateway("next", "10.96.9.2");
    lab().apply(&(waypoints + service)).unwrap();
    let told = condition("Service", "shop/guarded", "istio.io/WaypointBound");
    assert_eq!(
        (&told["status"], &told["reason"]),
        (&"True".into(), &"WaypointAccepted".into())
    );
    for (client, node) in CLIENTS {
        is_refused(
            client,
            node,
            "10.96.0.43:9000",
            "waypoint /10.96.9.2 is unknown",
        );
    }
}

#[test]
fn what_nobody_asked_for_is_reached_at_once_and_the_rest_stays_unknown() {
    // The very first connection to a mesh service, and one to a pod, from a node that knows neither.
    let ledger: SocketAddr = "10.96.0.30:9000".parse().unwrap();
    let entry = logged(Node::A, echo("shop/client", ledger).unwrap());
    assert!(
        entry.is("dst.service", "ledger.strict.svc.cluster.local"),
        "{entry}"
    );
    assert!(
        entry.is("dst.identity", "spiffe://cluster.local/ns/strict/sa/ledger"),
        "{entry}"
    );
    let pod = lab().v4("shop/web-b", 9000).unwrap();
    let entry = logged(Node::A, echo("shop/client", pod).unwrap());
    assert!(
        entry.is("dst.identity", "spiffe://cluster.local/ns/shop/sa/web"),
        "{entry}"
    );
    let answered = lab().metrics(Node::A).unwrap();
    let answered = answered.sum("culvert_on_demand_lookups_total", &[("result", "answered")]);
    assert!(answered >= 2.0, "{answered}");

    let lone = "apiVersion: v1
kind: Service
metadata: {name: never-asked-for, namespace: strict}
spec: {clusterIP: 10.96.0.99, clusterIPs: [10.96.0.99], ports: [{name: tcp, port: 1}]}
";
    lab().apply(lone).unwrap();
    let knows = |node: &str| {
        let dump = lab()
            .traffic(node, &["get", "127.0.0.1:15000", "/config_dump"])
            .unwrap();
        dump.answer.unwrap_or_default().contains("never-asked-for")
    };
    eventually("node b knows it", SETTLES, || {
        ensure!(knows("node-b"));
        Ok(())
    })
    .unwrap();
    assert!(!knows("node-a"));
}
