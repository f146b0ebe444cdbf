// SPDX-License-Identifier: Apache-2.0
//! What a route may lead to besides a service that chooses its pods: one whose endpoints somebody else writes down, one
//! without an address of its own, and one that is both.

use std::sync::OnceLock;

use e2e::handle::eventually;

use crate::ground::{PATIENCE, SERVER_ID, lab, waypoint_entry};
use crate::routes::{ask_of, pod, routed};

/// Ports of services are not those of pods, so that who takes the one for the other reaches nobody.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: shelves, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: old}
  clusterIP: 10.96.0.79
  clusterIPs: [10.96.0.79]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: by-hand, namespace: guarded}
spec:
  clusterIP: 10.96.0.80
  clusterIPs: [10.96.0.80]
  ports: [{name: http, port: 8180, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: guarded}
spec:
  selector: {app: new}
  clusterIP: None
  clusterIPs: [None]
  ports: [{name: http, port: 8180, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: headless-by-hand, namespace: guarded}
spec:
  clusterIP: None
  clusterIPs: [None]
  ports: [{name: http, port: 8180, targetPort: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shelves, namespace: guarded}
spec:
  parentRefs: [{group: "", kind: Service, name: shelves, port: 80}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /by-hand}}]
    backendRefs: [{name: by-hand, port: 8180}]
  - matches: [{path: {type: PathPrefix, value: /headless}}]
    backendRefs: [{name: headless, port: 8180}]
  - matches: [{path: {type: PathPrefix, value: /both}}]
    backendRefs: [{name: headless-by-hand, port: 8180}]
"#;

const SHELVES: &str = "10.96.0.79:80";

/// An address of the pod `new`, written down as an endpoint of a service; nothing says whose address it is.
fn slice(service: &str) -> String {
    let address = lab().v4("guarded/new", 8080).unwrap().ip();
    format!(
        r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-1, namespace: guarded, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{name: http, protocol: TCP, port: 8080}}]
endpoints: [{{addresses: ["{address}"], conditions: {{ready: true, serving: true, terminating: false}}}}]
"#
    )
}

fn laid_out() {
    static APPLIED: OnceLock<()> = OnceLock::new();
    routed();
    APPLIED.get_or_init(|| {
        let slices = ["by-hand", "headless-by-hand"].map(slice);
        lab()
            .apply(&format!("{MANIFEST}---{}", slices.join("---")))
            .unwrap();
    });
}

/// The pod answers, and the waypoint says by way of which service. Nobody vouches for an address that is written by hand, so
/// that it is led to in plain, whoever has it; a pod is led to by a tunnel.
fn leads_to(path: &str, service: &str, by_hand: bool) {
    laid_out();
    eventually(&format!("{path} is answered"), PATIENCE, || {
        let report = ask_of(SHELVES, path, None)?;
        anyhow::ensure!(report.is_done() && pod(&report) == "new", "{report:?}");
        Ok(())
    })
    .unwrap();
    let asked = format!("{path}/once-more");
    let report = ask_of(SHELVES, &asked, None).unwrap();
    assert_eq!(pod(&report), "new", "{report:?}");
    let entry = waypoint_entry("the request", |entry| entry.is("path", &asked));
    let host = format!("{service}.guarded.svc.cluster.local");
    let address = lab().v4("guarded/new", 8080).unwrap().to_string();
    for (field, value) in [
        ("dst.service", host.as_str()),
        ("dst.addr", &address),
        ("response_code", "200"),
    ] {
        assert!(entry.is(field, value), "{field} of {entry}");
    }
    let proven = entry.is("dst.identity", SERVER_ID);
    assert_eq!(proven, !by_hand, "{entry}");
}

/// B04 of the Gateway API's cases.
#[test]
fn b04_a_route_leads_to_a_service_whose_endpoints_are_written_by_hand() {
    leads_to("/by-hand", "by-hand", true);
}

/// B05 of the Gateway API's cases.
#[test]
fn b05_a_route_leads_to_a_service_without_an_address() {
    leads_to("/headless", "headless", false);
}

/// B06 of the Gateway API's cases.
#[test]
fn b06_a_route_leads_to_a_service_without_an_address_whose_endpoints_are_written_by_hand() {
    leads_to("/both", "headless-by-hand", true);
}
