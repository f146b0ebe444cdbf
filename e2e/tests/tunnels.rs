// SPDX-License-Identifier: Apache-2.0
//! Pods that are no usual ends of a tunnel: those that terminate tunnels themselves, as a sidecar does, and those that are
//! handed the connections of others with a header that says whose they are, as a waypoint that is captured itself.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::ensure;
use e2e::access_log::Entry;
use e2e::environment::Environment;
use e2e::handle::{Forward, Lab, Shared, Tunnel, eventually};
use e2e::topology::Node;
use e2e::traffic::proxied::Told;
use e2e::traffic::{Outcome, Report};

static SHARED: Shared = Shared::new("tunnels", env!("CARGO_BIN_EXE_e2e"));

const NATIVE_ID: &str = "spiffe://cluster.local/ns/shop/sa/native";
const CLIENT_ID: &str = "spiffe://cluster.local/ns/shop/sa/client";
const WEB_ID: &str = "spiffe://cluster.local/ns/shop/sa/web";

/// Pods that terminate tunnels themselves, by a program of the lab's and by Envoy; and a waypoint that is captured.
const MANIFEST: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: native, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: native, namespace: shop, labels: {app: native, networking.istio.io/tunnel: http}}
spec:
  nodeName: node-b
  serviceAccountName: native
  terminationGracePeriodSeconds: 1
  volumes:
  - name: tokens
    projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: istio-token}}]}
  containers:
  - name: app
    image: culvert/app
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
  - name: tunnel
    image: culvert/native
    args:
    - --account=shop/native
    - --control-plane=$(LAB_CONTROL_PLANE)
    - --token=$(LAB_VOLUMES)/tokens/istio-token
    - --roots=$(LAB_ROOT_CERTIFICATES)
    readinessProbe: {tcpSocket: {port: 15008}}
---
# The same identity, and nobody who terminates anything yet.
apiVersion: v1
kind: Pod
metadata:
  name: envoy
  namespace: shop
  labels: {app: envoy, networking.istio.io/tunnel: http}
  annotations: {sidecar.istio.io/status: "{}"}
spec:
  nodeName: node-b
  serviceAccountName: native
  terminationGracePeriodSeconds: 1
  volumes:
  - name: tokens
    projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: istio-token}}]}
  containers:
  - name: app
    image: culvert/app
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: native, namespace: shop}
spec:
  selector: {app: native}
  clusterIP: 10.96.0.60
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: tcp-echo, port: 9000}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: wp, namespace: shop}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: wp
  namespace: shop
  annotations: {ambient.istio.io/waypoint-inbound-binding: PROXY/15088}
spec:
  gatewayClassName: istio-waypoint
  listeners:
  - {name: mesh, port: 15008, protocol: HBONE}
  - {name: proxied, port: 15088, protocol: istio.io/PROXY}
status: {addresses: [{type: Hostname, value: wp.shop.svc.cluster.local}]}
---
apiVersion: v1
kind: Service
metadata: {name: wp, namespace: shop}
spec:
  selector: {gateway.networking.k8s.io/gateway-name: wp}
  clusterIP: 10.96.0.61
  clusterIPs: [10.96.0.61, "fd96::61"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: PreferDualStack
  ports: [{name: mesh, port: 15008}]
---
apiVersion: v1
kind: Pod
metadata: {name: wp, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: wp}}
spec:
  nodeName: node-b
  serviceAccountName: wp
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: culvert/app
    args: [proxied=15088, http=8080]
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: guarded, namespace: shop, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: web}
  clusterIP: 10.96.0.62
  clusterIPs: [10.96.0.62, "fd96::62"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: PreferDualStack
  ports: [{name: http, port: 80, targetPort: 8080}]
"#;

/// The lab with those pods in it.
fn lab() -> &'static Lab {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let lab = SHARED.lab();
    APPLIED.get_or_init(|| {
        lab.apply(MANIFEST).unwrap();
        for pod in ["shop/native", "shop/envoy", "shop/wp"] {
            lab.wait_ready(pod).unwrap();
        }
        // The client's proxy has heard of all of them once it takes their way.
        let reached = |target: &str, wanted: &str| {
            eventually(wanted, Duration::from_secs(20), || {
                let report = lab.traffic("shop/client", &["get", target])?;
                let answer = report.answer.unwrap_or_default();
                ensure!(answer.contains(wanted), "{answer}");
                Ok(())
            })
            .unwrap();
        };
        reached("10.96.0.60:80", "\"client\":\"127.0.0.1:");
        reached("10.96.0.62:80", "\"pod\":\"wp\"");
    });
    lab
}

fn attempt(place: &str, arguments: &[&str]) -> Report {
    lab().traffic(place, arguments).unwrap()
}

fn talk(place: &str, arguments: &[&str]) -> Report {
    let report = attempt(place, arguments);
    assert_eq!(
        report.outcome,
        Outcome::Done,
        "{place}: {arguments:?}: {report:?}"
    );
    report
}

fn page(place: &str, target: &str) -> serde_json::Value {
    let answer = talk(place, &["get", target]).answer.unwrap();
    serde_json::from_str(&answer).unwrap()
}

fn entry(node: Node, what: &str, wanted: impl Fn(&Entry) -> bool) -> Entry {
    lab()
        .access_entry(node, what, |entry| entry.is_final() && wanted(entry))
        .unwrap()
}

/// A loopback port in the native pod that leads to an application elsewhere, by a tunnel of the pod's own.
fn forward(target: SocketAddr, expect: &str) -> Forward {
    let tunnel = Tunnel {
        pod: "shop/native",
        to: target,
        through: None,
        expect,
    };
    lab().forward(tunnel).unwrap()
}

// A pod that terminates tunnels itself.

#[test]
fn a_pod_that_terminates_tunnels_itself_is_not_captured() {
    for pod in ["shop/native", "shop/envoy"] {
        // A health check in plaintext comes from the pod's own node; so does this, and nobody stands between.
        let target = lab().v4(pod, 8080).unwrap().to_string();
        let seen = page("node-b", &target);
        let gateway = Node::B.gateway().v4.to_string();
        assert!(
            seen["client"].as_str().unwrap().starts_with(&gateway),
            "{seen}"
        );
        let status = lab().must(&["status"]).unwrap();
        let line = status
            .lines()
            .find(|line| line.contains(&format!(" {pod} ")))
            .unwrap();
        assert!(line.contains("not captured"), "{line}");
    }
}

#[test]
fn a_captured_pod_reaches_it_by_tunnel_under_both_identities() {
    for target in [
        "10.96.0.60:9000".parse().unwrap(),
        lab().v4("shop/native", 9000).unwrap(),
    ] {
        let report = talk(
            "shop/client",
            &["echo", &target.to_string(), "--bytes", "1000000"],
        );
        let source = report.local.unwrap();
        let line = entry(Node::A, "the connection", |entry| {
            entry.source() == Some(source)
        });
        let tunnel = lab().v4("shop/native", 15008).unwrap().to_string();
        for (field, value) in [
            ("src.identity", CLIENT_ID),
            ("dst.identity", NATIVE_ID),
            ("dst.addr", &tunnel),
            ("dst.workload", "native"),
            ("bytes_sent", "1000000"),
        ] {
            assert!(line.is(field, value), "{field} of {line}");
        }
    }
    // The application was reached from within its own pod: whoever terminated the tunnel did.
    let seen = page("shop/client", "10.96.0.60:80");
    assert!(
        seen["client"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{seen}"
    );
    let log = lab().log("shop_native_tunnel").unwrap();
    assert!(log.contains(CLIENT_ID), "{log}");
}

#[test]
fn tcp_keeps_its_promises_towards_it() {
    let at = |port: u16| lab().v4("shop/native", port).unwrap().to_string();
    talk("shop/client", &["greet", &at(9001)]);
    talk(
        "shop/client",
        &["finish-after-sending", &at(9002), "--bytes", "3000000"],
    );
    let arguments = [
        "finish-after-server",
        &at(9003),
        "--receipts",
        &at(8080),
        "--bytes",
        "3000000",
    ];
    talk("shop/client", &arguments);
    talk("shop/client", &["echo", &at(9000), "--bytes", "200000000"]);
    let nobody = attempt("shop/client", &["echo", &at(7777)]);
    assert!(
        matches!(nobody.outcome, Outcome::Reset | Outcome::Refused),
        "{nobody:?}"
    );
}

#[test]
fn it_reaches_captured_pods_by_a_tunnel_of_its_own() {
    for pod in ["shop/web-b", "shop/web-a"] {
        let forwarded = forward(lab().v4(pod, 9000).unwrap(), WEB_ID);
        talk(
            "shop/native",
            &["echo", &forwarded.address(), "--bytes", "1234567"],
        );
        let node = if pod.ends_with('a') { Node::A } else { Node::B };
        let line = entry(node, "the connection inbound", |entry| {
            entry.is_inbound() && entry.number("bytes_recv") == Some(1_234_567)
        });
        for (field, value) in [
            ("src.identity", NATIVE_ID),
            ("dst.identity", WEB_ID),
            ("src.workload", "native"),
        ] {
            assert!(line.is(field, value), "{field} of {line}");
        }
    }
    let forwarded = forward(lab().v4("shop/web-b", 9002).unwrap(), WEB_ID);
    talk(
        "shop/native",
        &[
            "finish-after-sending",
            &forwarded.address(),
            "--bytes",
            "3000000",
        ],
    );
}

#[test]
fn what_it_may_do_is_decided_by_its_own_identity() {
    // The vault lets the client in and nobody else.
    let vault = lab().v4("shop/vault", 9000).unwrap();
    let refusal = forward(vault, "spiffe://cluster.local/ns/shop/sa/vault")
        .refusal()
        .unwrap();
    assert!(refusal.contains("status 401"), "{refusal}");
    let denied = entry(Node::B, "the denial", |entry| {
        entry.is("src.identity", NATIVE_ID) && entry.is("dst.workload", "vault")
    });
    assert!(denied.error().is_some(), "{denied}");
    // And it does not take just anybody for the web.
    let refusal = forward(vault, WEB_ID).refusal().unwrap();
    assert!(refusal.contains("is not one of"), "{refusal}");
}

#[test]
fn a_pod_that_says_so_and_listens_to_no_tunnel_is_never_reached_in_plaintext() {
    // Nothing terminates tunnels in the pod for Envoy, unless the test that wants Envoy does just now.
    if envoy().is_some() {
        return;
    }
    let wire = lab().start_sniffing(Node::B, None).unwrap();
    let target = lab().v4("shop/envoy", 9000).unwrap();
    let report = attempt("shop/client", &["echo", &target.to_string()]);
    assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
    let traffic = wire.finish().unwrap();
    assert!(
        !traffic.flows.iter().any(|flow| flow.destination == target),
        "{traffic:?}"
    );
}

// An application that is told whose connections it takes.

fn told(place: &str, target: &str) -> Told {
    let answer = talk(place, &["get", target]).answer.unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn a_captured_waypoint_is_told_who_calls_and_for_what() {
    let report = talk("shop/client", &["get", "10.96.0.62:80"]);
    let seen: Told = serde_json::from_str(&report.answer.unwrap()).unwrap();
    let client = lab().pod("shop/client").unwrap().addresses.unwrap();
    assert_eq!(seen.pod, "wp");
    assert_eq!(seen.source.ip(), client.v4);
    assert_eq!(seen.destination, "10.96.0.62:80".parse().unwrap());
    assert_eq!(seen.identity.as_deref(), Some(CLIENT_ID));
    assert_eq!(
        seen.service.as_deref(),
        Some("guarded.shop.svc.cluster.local")
    );
    assert!(
        seen.peer.ip().is_loopback(),
        "nobody but the proxy can tell it anything: {seen:?}"
    );

    let stranger = told("shop/stranger", "10.96.0.62:80");
    assert_eq!(
        stranger.identity.as_deref(),
        Some("spiffe://cluster.local/ns/shop/sa/stranger")
    );
}

#[test]
fn the_same_over_ipv6() {
    let seen = told("shop/client", "[fd96::62]:80");
    let client = lab().pod("shop/client").unwrap().addresses.unwrap();
    assert_eq!(seen.destination, "[fd96::62]:80".parse().unwrap());
    // The tunnel may take another family than what is asked for through it.
    assert!(client.both().contains(&seen.source.ip()), "{seen:?}");
    assert_eq!(seen.identity.as_deref(), Some(CLIENT_ID));
    assert_eq!(
        seen.service.as_deref(),
        Some("guarded.shop.svc.cluster.local")
    );
}

#[test]
fn the_bytes_of_the_header_are_not_the_connections() {
    let report = talk("shop/client", &["get", "10.96.0.62:80"]);
    let source = report.local.unwrap();
    let outbound = entry(Node::A, "the connection", |entry| {
        entry.source() == Some(source)
    });
    let sent = outbound.number("bytes_sent").unwrap();
    let inbound = entry(Node::B, "the same inbound", |entry| {
        entry.is("dst.workload", "wp") && entry.is("src.identity", CLIENT_ID)
    });
    assert_eq!(inbound.number("bytes_recv"), Some(sent), "{inbound}");
}

// Envoy as such a pod: `ENVOY=/path/to/envoy cargo test -p e2e --test tunnels -- --ignored`

fn envoy() -> Option<PathBuf> {
    Environment::of_process().envoy()
}

#[test]
#[ignore = "needs a program that CI has not: ENVOY names Envoy's binary"]
fn envoy_as_a_sidecar_speaks_with_captured_pods_both_ways() {
    let program = envoy().expect("ENVOY must name Envoy's binary for this test");
    assert!(
        program.is_file(),
        "ENVOY names {}, which is no file",
        program.display()
    );
    let folder = tempfile::tempdir().unwrap();
    let member = lab().membership("shop/envoy", "shop/native").unwrap();
    let path = folder.path().to_str().unwrap();
    let mut arguments = vec!["native", "certify", "--directory", path];
    arguments.extend(member.iter().map(String::as_str));
    let certified = lab().tool("shop/envoy", &arguments).status().unwrap();
    assert!(certified.success());
    let configuration = folder.path().join("envoy.yaml");
    std::fs::write(&configuration, envoy_configuration(folder.path())).unwrap();
    let mut running = lab().command(&["exec", "shop/envoy", "--"]);
    running.arg(&program).arg("-c").arg(&configuration);
    running.args(["--base-id", "7", "--concurrency", "1", "-l", "warning"]);
    let running = running.stdin(Stdio::null()).spawn().unwrap();
    let _ended = Running(running);

    // Captured → Envoy.
    let target = lab().v4("shop/envoy", 9000).unwrap().to_string();
    eventually("Envoy takes tunnels", Duration::from_secs(20), || {
        let report = lab().traffic("shop/client", &["echo", &target, "--bytes", "100000"])?;
        ensure!(report.is_done(), "{report:?}");
        Ok(())
    })
    .unwrap();
    let at = |port: u16| lab().v4("shop/envoy", port).unwrap().to_string();
    let report = talk("shop/client", &["echo", &at(9000), "--bytes", "20000000"]);
    let source = report.local.unwrap();
    let line = entry(Node::A, "the connection", |entry| {
        entry.source() == Some(source)
    });
    assert!(line.is("dst.identity", NATIVE_ID), "{line}");
    assert_eq!(line.number("bytes_recv"), Some(20_000_000), "{line}");
    talk("shop/client", &["greet", &at(9001)]);
    talk(
        "shop/client",
        &["finish-after-sending", &at(9002), "--bytes", "300000"],
    );
    let many = ["parallel", &at(9000), "--connections", "150"];
    assert_eq!(talk("shop/client", &many).connections, 150);

    // Envoy → captured.
    talk(
        "shop/envoy",
        &["echo", "127.0.0.1:7000", "--bytes", "7654321"],
    );
    let line = entry(Node::B, "the connection inbound", |entry| {
        entry.is_inbound() && entry.number("bytes_recv") == Some(7_654_321)
    });
    for (field, value) in [("src.identity", NATIVE_ID), ("dst.identity", WEB_ID)] {
        assert!(line.is(field, value), "{field} of {line}");
    }
    talk(
        "shop/envoy",
        &[
            "finish-after-sending",
            "127.0.0.1:7002",
            "--bytes",
            "300000",
        ],
    );
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Tunnels in on 15008 to the address asked for; 7000 and 7002 of loopback lead by tunnel to the echo and the sink of web-b.
fn envoy_configuration(files: &Path) -> String {
    let files = files.display();
    let peer = lab().v4("shop/web-b", 15008).unwrap().ip();
    let secrets = format!(
        r#"alpn_protocols: [h2]
tls_params: {{tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}}
tls_certificates: [{{certificate_chain: {{filename: "{files}/certificate.pem"}}, private_key: {{filename: "{files}/key.pem"}}}}]
validation_context:
  trusted_ca: {{filename: "{files}/roots.pem"}}
  match_typed_subject_alt_names: [{{san_type: URI, matcher: {{prefix: "spiffe://cluster.local/ns/"}}}}]
"#
    );
    let indented = |by: usize| {
        secrets
            .trim_end()
            .replace('\n', &format!("\n{}", " ".repeat(by)))
    };
    let outbound = |port: u16, application: u16| {
        format!(
            r#"  - name: outbound-{port}
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: outbound
          cluster: web
          tunneling_config: {{hostname: "{peer}:{application}"}}
"#
        )
    };
    format!(
        r#"node: {{id: sidecar, cluster: lab}}
static_resources:
  listeners:
{}{}  - name: inbound
    address: {{socket_address: {{address: 0.0.0.0, port_value: 15008}}}}
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            {}
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: inbound
          codec_type: HTTP2
          stream_idle_timeout: 0s
          http2_protocol_options: {{allow_connect: true}}
          upgrade_configs: [{{upgrade_type: CONNECT}}]
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{connect_matcher: {{}}}}
                route: {{cluster: application, timeout: 0s, upgrade_configs: [{{upgrade_type: CONNECT, connect_config: {{}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: application
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    original_dst_lb_config: {{use_http_header: true, http_header_name: ":authority"}}
  - name: web
    type: STATIC
    load_assignment:
      cluster_name: web
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {peer}, port_value: 15008}}}}}}}}]}}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          {}
"#,
        outbound(7000, 9000),
        outbound(7002, 9002),
        indented(12),
        indented(10),
    )
}
