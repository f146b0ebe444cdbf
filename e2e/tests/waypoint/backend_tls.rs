// SPDX-License-Identifier: Apache-2.0
//! TLS that the waypoint begins with servers that have it: by a BackendTLSPolicy with the authority in a ConfigMap, and by a
//! DestinationRule with a file. Who does not prove to be the one that was meant gets no request.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{bail, ensure};
use e2e::handle::eventually;
use e2e::traffic::Outcome;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;

use crate::ground::{PATIENCE, lab, waypoint_entry};
use crate::routes::{ask_of, pod};

/// Whom the pod's certificate names ...
const SERVER: &str = "abc.example.com";
/// ... and whom else, whom a policy does not let clients ask for.
const FORBIDDEN: &str = "def.example.com";

/// One pod that has TLS, behind services that differ in what is asked of it.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: sealed, namespace: guarded, labels: {app: sealed}}
spec:
  nodeName: node-b
  serviceAccountName: server
  terminationGracePeriodSeconds: 1
  volumes: [{name: tls, configMap: {name: sealed-tls}}]
  containers:
  - name: app
    image: culvert/app
    args: [http, https]
    env:
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: TLS_FILE, value: /etc/tls/tls.pem}
    volumeMounts: [{name: tls, mountPath: /etc/tls}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
    securityContext: {capabilities: {drop: [ALL]}}
"#;

/// A service before it with an address, and the authority that its policy names.
fn service(name: &str, number: u8) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: guarded, labels: {{istio.io/use-waypoint: wp}}}}
spec:
  selector: {{app: sealed}}
  clusterIP: 10.96.0.{number}
  clusterIPs: [10.96.0.{number}]
  ports: [{{name: http, port: 80, targetPort: 8443}}]
"#
    )
}

fn policy(service: &str, hostname: &str, authority: &str) -> String {
    format!(
        r#"---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: {service}, namespace: guarded}}
spec:
  targetRefs: [{{group: "", kind: Service, name: {service}}}]
  validation:
    hostname: {hostname}
    caCertificateRefs: [{{group: "", kind: ConfigMap, name: {authority}}}]
"#
    )
}

fn rule(service: &str, tls: &str) -> String {
    format!(
        r#"---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {service}, namespace: guarded}}
spec:
  host: {service}
  trafficPolicy: {{tls: {{mode: SIMPLE, sni: {SERVER}{tls}}}}}
"#
    )
}

fn config(name: &str, key: &str, text: &str) -> String {
    let data = serde_json::json!({ key: text });
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: guarded}}\ndata: {data}\n"
    )
}

/// An authority, also as a file, and a chain with its key that the authority vouches for.
struct Certified {
    authority: String,
    file: PathBuf,
    server: String,
}

fn certified() -> Certified {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = KeyPair::generate().unwrap();
    let server = CertificateParams::new([SERVER, FORBIDDEN].map(str::to_owned)).unwrap();
    let issuer = Issuer::from_params(&authority, &key);
    let chain = server.signed_by(&own, &issuer).unwrap().pem();
    let authority = authority.self_signed(&key).unwrap().pem();
    // Pods of the lab have no mounts: a path of the waypoint's is one of this machine's.
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("authority-{}.pem", std::process::id()));
    std::fs::write(&file, &authority).unwrap();
    Certified {
        authority,
        file,
        server: chain + &own.serialize_pem(),
    }
}

/// A service whose clients begin TLS themselves, for one server alone.
const PASSED_ON: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: passed-on, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: sealed}
  clusterIP: 10.96.0.88
  clusterIPs: [10.96.0.88]
  ports: [{name: tls, port: 443, targetPort: 8443}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: passed-on, namespace: guarded}
spec:
  targetRefs: [{group: "", kind: Service, name: passed-on}]
  rules: [{when: [{key: connection.sni, values: [abc.example.com]}]}]
"#;

const PROVEN: &str = "10.96.0.81:80";
const MISNAMED: &str = "10.96.0.82:80";
const LATER: &str = "10.96.0.83:80";
const RULED: &str = "10.96.0.84:80";
const UNKNOWN: &str = "10.96.0.85:80";

fn sealed() -> &'static Certified {
    static APPLIED: OnceLock<Certified> = OnceLock::new();
    let lab = lab();
    APPLIED.get_or_init(|| {
        let certified = certified();
        let by_file = format!(", caCertificates: {}", certified.file.display());
        let all = [
            MANIFEST.to_owned(),
            config("sealed-tls", "tls.pem", &certified.server),
            config("sealed-authority", "ca.crt", &certified.authority),
            config("later-authority", "ca.crt", &certified.authority),
            service("sealed", 81),
            policy("sealed", SERVER, "sealed-authority"),
            service("misnamed", 82),
            policy("misnamed", "other.example.com", "sealed-authority"),
            service("sealed-later", 83),
            policy("sealed-later", SERVER, "later-authority"),
            service("sealed-ruled", 84),
            rule("sealed-ruled", &by_file),
            service("sealed-unknown", 85),
            rule("sealed-unknown", ""),
            PASSED_ON.to_owned(),
        ];
        lab.apply(&all.concat()).unwrap();
        lab.wait_ready("guarded/sealed").unwrap();
        certified
    })
}

/// The pod answers, and says whom it was asked for.
fn answers(to: &str, path: &str) {
    eventually(&format!("{to} answers"), PATIENCE, || {
        let report = ask_of(to, path, None)?;
        if !report.is_done() {
            let entry = waypoint_entry("the refusal", |entry| entry.is("path", path));
            let log = lab().log("guarded/sealed")?;
            let last = log.lines().last().unwrap_or_default();
            bail!("{entry}; the pod says: {last}");
        }
        ensure!(pod(&report) == "sealed", "{report:?}");
        let page: Value = serde_json::from_str(report.answer.as_deref().unwrap_or_default())?;
        ensure!(page["sni"] == SERVER, "{page}");
        Ok(())
    })
    .unwrap();
}

/// Nobody answers, and the waypoint says why.
fn refused(to: &str, path: &str, status: &str, why: &str) {
    let expected = Outcome::Failed(format!("status {status}"));
    eventually(&format!("{to} is refused"), PATIENCE, || {
        let report = ask_of(to, path, None)?;
        ensure!(report.outcome == expected, "{report:?}");
        Ok(())
    })
    .unwrap();
    let entry = waypoint_entry("the refusal", |entry| {
        entry.is("path", path) && entry.is("response_code", status)
    });
    // Who was reached and is not the one that was meant has failed; to whom nothing may go is not reached.
    assert_eq!(entry.is("response_flags", "UF"), status == "503", "{entry}");
    assert!(entry.error().unwrap().contains(why), "{entry}");
}

/// J01 of the Gateway API's cases.
#[test]
fn j01_a_server_that_proves_its_name_is_asked_by_it() {
    sealed();
    answers(PROVEN, "/j01");
    let entry = waypoint_entry("the request", |entry| entry.is("path", "/j01"));
    assert!(entry.is("response_code", "200"), "{entry}");
}

/// J02 of the Gateway API's cases.
#[test]
fn j02_a_server_of_another_name_gets_no_request() {
    sealed();
    refused(MISNAMED, "/j02", "503", "other.example.com");
}

/// J08 of the Gateway API's cases.
#[test]
fn j08_without_its_authority_a_server_gets_no_request() {
    let certified = sealed();
    answers(LATER, "/j08/before");
    lab()
        .apply(&config("later-authority", "ca.crt", ""))
        .unwrap();
    refused(LATER, "/j08/emptied", "500", "ca.crt holds no certificate");
    let again = config("later-authority", "ca.crt", &certified.authority);
    lab().apply(&again).unwrap();
    answers(LATER, "/j08/restored");
}

#[test]
fn a_destination_rules_authority_is_a_file_and_without_one_the_systems() {
    sealed();
    answers(RULED, "/ruled");
    refused(UNKNOWN, "/unknown", "503", SERVER);
}

#[test]
fn a_policy_goes_by_the_server_that_a_clients_own_tls_asks_for() {
    let certified = sealed();
    let trusts = certified.file.display().to_string();
    let ask = |name: &str| {
        let asked = [
            "get",
            "10.96.0.88:443",
            "/",
            "--tls",
            name,
            "--trusts",
            &trusts,
        ];
        lab().traffic("shop/client", &asked)
    };
    eventually("the server that may be asked for answers", PATIENCE, || {
        let report = ask(SERVER)?;
        ensure!(report.is_done() && pod(&report) == "sealed", "{report:?}");
        // Without the policy it would answer as well.
        let report = ask(FORBIDDEN)?;
        ensure!(!report.is_done(), "{report:?}");
        Ok(())
    })
    .unwrap();
    let report = ask(FORBIDDEN).unwrap();
    let ended = [Outcome::Reset, Outcome::Closed];
    assert!(ended.contains(&report.outcome), "{report:?}");
    let entry = waypoint_entry("the denial", |entry| {
        entry.is("dst.hbone_addr", "10.96.0.88:443") && entry.is("response_flags", "DENY")
    });
    let error = entry.error().unwrap();
    assert!(
        error.contains("no rule of any ALLOW policy matches"),
        "{entry}"
    );
}
