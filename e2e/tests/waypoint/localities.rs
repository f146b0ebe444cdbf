// SPDX-License-Identifier: Apache-2.0
//! Where a DestinationRule says which of a service's endpoints are used, by where they are: those with the waypoint, or the
//! shares of places. The nodes of the lab are two zones of a region; client and waypoint are in zone-a.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::traffic::Outcome;

use crate::ground::{PATIENCE, lab, waypoint_entry};
use crate::routes::{ask_of, pod};

/// With the waypoint, away from it, and one that does not stay; the services that they are behind choose them by labels.
const PODS: [(&str, &str, &str); 3] = [
    ("near", "a", "stays: 'yes'"),
    ("far", "b", "stays: 'yes', goes: 'yes'"),
    ("leaving", "a", "goes: 'yes'"),
];

/// Services by name, of which pods, at which address, with which rule.
const SERVICES: [(&str, &str, &str, &str); 5] = [
    ("anywhere", "stays", ANYWHERE, ""),
    ("nearest", "stays", NEAREST, "enabled: true"),
    (
        "sent-away",
        "stays",
        SENT_AWAY,
        r#"distribute: [{from: "lab/zone-a/*", to: {"lab/zone-b/*": 100}}]"#,
    ),
    (
        "nowhere",
        "stays",
        NOWHERE,
        r#"distribute: [{from: "lab/*", to: {"moon/*": 100}}]"#,
    ),
    ("left", "goes", LEFT, "enabled: true"),
];

const ANYWHERE: &str = "10.96.0.194:80";
const NEAREST: &str = "10.96.0.195:80";
const SENT_AWAY: &str = "10.96.0.196:80";
const NOWHERE: &str = "10.96.0.197:80";
const LEFT: &str = "10.96.0.198:80";

/// Requests of which two endpoints in turn would both get some.
const MANY: usize = 8;

fn pod_of((name, node, labels): (&str, &str, &str)) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: guarded, labels: {{{labels}}}}}
spec:
  nodeName: node-{node}
  serviceAccountName: server
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: culvert/app
    env: [{{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
    securityContext: {{capabilities: {{drop: [ALL]}}}}
"#
    )
}

fn service((name, pods, address, setting): (&str, &str, &str, &str)) -> String {
    let address = address.trim_end_matches(":80");
    let locality = match setting {
        "" => String::new(),
        setting => format!(", localityLbSetting: {{{setting}}}"),
    };
    format!(
        r#"---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: guarded, labels: {{istio.io/use-waypoint: wp}}}}
spec:
  selector: {{{pods}: 'yes'}}
  clusterIP: {address}
  clusterIPs: [{address}]
  ports: [{{name: http, port: 80, targetPort: 8080}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {name}, namespace: guarded}}
spec:
  host: {name}
  trafficPolicy: {{loadBalancer: {{simple: ROUND_ROBIN{locality}}}}}
"#
    )
}

fn spread_out() {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let lab = lab();
    APPLIED.get_or_init(|| {
        let pods = PODS.map(pod_of).concat();
        let services = SERVICES.map(service).concat();
        lab.apply(&(pods + &services)).unwrap();
        for (pod, ..) in PODS {
            lab.wait_ready(&format!("guarded/{pod}")).unwrap();
        }
    });
}

/// Waits until many requests in a row have come to these pods, each to some.
fn comes_to(to: &str, path: &str, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|&pod| pod.to_owned()).collect();
    eventually(&format!("{to} comes to {expected:?}"), PATIENCE, || {
        let mut seen = BTreeSet::new();
        for at in 0..MANY {
            let report = ask_of(to, &format!("{path}/{at}"), None)?;
            ensure!(report.is_done(), "{report:?}");
            seen.insert(pod(&report));
        }
        ensure!(seen == expected, "{seen:?} were asked");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_setting_of_localities_keeps_requests_near_or_sends_them_away() {
    spread_out();
    // Whoever is near is there for those who do not go by it: both are well.
    comes_to(ANYWHERE, "/anywhere", &["far", "near"]);
    comes_to(NEAREST, "/nearest", &["near"]);
    comes_to(SENT_AWAY, "/sent-away", &["far"]);
}

#[test]
fn a_place_without_endpoints_gets_no_request_and_no_other_place_its_share() {
    spread_out();
    let expected = Outcome::Failed("status 503".to_owned());
    eventually("requests are refused", PATIENCE, || {
        let report = ask_of(NOWHERE, "/moon", None)?;
        ensure!(report.outcome == expected, "{report:?}");
        Ok(())
    })
    .unwrap();
    let entry = waypoint_entry("the refusal", |entry| {
        entry.is("path", "/moon") && entry.is("response_code", "503")
    });
    let why = entry.error().unwrap();
    assert!(
        why.contains("none of its endpoints is within the locality that it insists on"),
        "{entry}"
    );
}

#[test]
fn requests_go_further_once_nobody_is_near() {
    spread_out();
    comes_to(LEFT, "/left/before", &["leaving"]);
    lab().delete("pod", "guarded/leaving").unwrap();
    comes_to(LEFT, "/left/after", &["far"]);
}
