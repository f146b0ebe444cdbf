// SPDX-License-Identifier: Apache-2.0
//! Two clusters on networks of their own: what the second one serves is reached through its gateway alone, end to end
//! authenticated and encrypted, and no worse than what is near.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::access_log::Entry;
use e2e::handle::{Lab, Shared, eventually};
use e2e::topology::{Cluster, Layout, Node};
use e2e::traffic::{Outcome, Report};

static SHARED: Shared =
    Shared::of_layout(Layout::TwoNetworks, "networks", env!("CARGO_BIN_EXE_e2e"));
/// Held for writing by tests that take something away from the others.
static LAB: RwLock<()> = RwLock::new(());

/// Runs in the second cluster only; allows shop/client and nobody else.
const VAULT: &str = "10.96.0.20";
/// Runs in both; near endpoints come first.
const WEB: &str = "10.96.0.10";
const CLIENT_ID: &str = "spiffe://cluster.local/ns/shop/sa/client";
const VAULT_ID: &str = "spiffe://cluster.local/ns/shop/sa/vault";

fn undisturbed() -> RwLockReadGuard<'static, ()> {
    LAB.read()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    LAB.write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn lab() -> &'static Lab {
    SHARED.lab()
}

fn gateway() -> IpAddr {
    Node::B.uplink().v4.into()
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
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

fn echo(target: SocketAddr, bytes: u64) -> Report {
    let arguments = ["echo", &target.to_string(), "--bytes", &bytes.to_string()];
    let report = talk("shop/client", &arguments);
    assert_eq!((report.sent, report.received), (bytes, bytes));
    report
}

/// Which pod answers a page.
fn answering(target: SocketAddr) -> anyhow::Result<String> {
    let report = lab().traffic("shop/client", &["get", &target.to_string()])?;
    ensure!(report.is_done(), "{report:?}");
    let page: serde_json::Value = serde_json::from_str(&report.answer.unwrap_or_default())?;
    Ok(page["pod"].as_str().unwrap_or_default().to_owned())
}

/// What the client's proxy says of a connection that is over.
fn outbound(report: &Report) -> Entry {
    let source = report.local.unwrap();
    lab()
        .access_entry(Node::A, "the connection outbound", |entry| {
            entry.is_final() && entry.source() == Some(source)
        })
        .unwrap()
}

/// Puts something back, also where the test ends early: the other tests need it.
struct Afterwards<F: FnMut()>(F);

impl<F: FnMut()> Drop for Afterwards<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Connections to the vault fail, and the client's proxy says why.
fn vault_fails(reasons: &[&str]) {
    let before = lab().access_log(Node::A).unwrap().len();
    let target = at(VAULT, 9000).to_string();
    let what = format!("the vault can't be reached: {reasons:?}");
    eventually(&what, Duration::from_secs(10), || {
        let report = lab().traffic("shop/client", &["echo", &target])?;
        ensure!(report.outcome == Outcome::Reset, "{report:?}");
        let entries = lab().access_log(Node::A)?;
        let errors: Vec<_> = entries
            .iter()
            .skip(before)
            .filter_map(Entry::error)
            .collect();
        let told = |error: &String| reasons.iter().all(|reason| error.contains(reason));
        ensure!(errors.iter().any(told), "the reasons are {errors:#?}");
        Ok(())
    })
    .unwrap();
}

fn vault_answers() {
    eventually("the vault answers", Duration::from_secs(20), || {
        answering(at(VAULT, 80)).map(drop)
    })
    .unwrap();
}

fn web_is_answered_by(wanted: &str) {
    eventually(
        &format!("{wanted} answers"),
        Duration::from_secs(20),
        || {
            let pod = answering(at(WEB, 80))?;
            ensure!(pod == wanted, "{pod} answered");
            Ok(())
        },
    )
    .unwrap();
}

/// Takes the near endpoint of the web away, until what this returns is dropped.
fn without_web_a() -> Afterwards<impl FnMut()> {
    lab().hold_down("shop/web-a").unwrap();
    let restored = Afterwards(|| lab().let_start("shop/web-a").unwrap());
    web_is_answered_by("web-b");
    restored
}

#[test]
fn pods_of_one_network_cannot_reach_pods_of_the_other() {
    let _lab = undisturbed();
    for (from, to) in [
        ("shop/client", "shop/vault"),
        ("outside/legacy", "shop/web-b"),
        ("shop/vault", "shop/client"),
    ] {
        for target in [
            lab().v4(to, 8080).unwrap(),
            lab().v6(to, 8080).unwrap(),
            lab().v4(to, 15008).unwrap(),
        ] {
            let report = attempt(from, &["get", &target.to_string()]);
            assert!(!report.is_done(), "{from} reached {target}");
        }
    }
}

#[test]
fn a_service_elsewhere_is_reached_and_both_proxies_name_both_ends() {
    let _lab = undisturbed();
    let report = echo(at(VAULT, 9000), 1 << 20);
    let outbound = outbound(&report);
    let seen_by_client = [
        ("src.identity", CLIENT_ID),
        ("dst.identity", VAULT_ID),
        ("dst.addr", &format!("{}:15008", gateway())),
        ("dst.hbone_addr", "vault.shop.svc.cluster.local:9000"),
        ("dst.service", "vault.shop.svc.cluster.local"),
        // As it describes itself; on this side there is no such pod.
        ("dst.workload", "vault"),
        ("dst.namespace", "shop"),
        ("dst.cluster", "Kubernetes-2"),
        ("bytes_sent", "1048576"),
        ("bytes_recv", "1048576"),
    ];
    for (field, value) in seen_by_client {
        assert!(outbound.is(field, value), "{field} of {outbound}");
    }
    let inbound = lab()
        .access_entry(Node::B, "the connection inbound", |entry| {
            entry.is_final() && entry.number("bytes_recv") == Some(1 << 20)
        })
        .unwrap();
    let seen_by_server = [
        ("src.identity", CLIENT_ID),
        // By its own word: an address of another network says nothing here.
        ("src.workload", "client"),
        ("src.cluster", "Kubernetes"),
        ("dst.identity", VAULT_ID),
        ("dst.hbone_addr", "vault.shop.svc.cluster.local:9000"),
        ("bytes_sent", "1048576"),
    ];
    for (field, value) in seen_by_server {
        assert!(inbound.is(field, value), "{field} of {inbound}");
    }
}

#[test]
fn what_passed_is_counted_under_the_destinations_own_labels() {
    let _lab = undisturbed();
    let labels = [
        ("reporter", "source"),
        ("destination_workload", "vault"),
        ("destination_principal", VAULT_ID),
        ("destination_cluster", "Kubernetes-2"),
        ("destination_service", "vault.shop.svc.cluster.local"),
        ("connection_security_policy", "mutual_tls"),
    ];
    let counted = || {
        let metrics = lab().metrics(Node::A).unwrap();
        metrics.sum("istio_tcp_received_bytes_total", &labels) as u64
    };
    let before = counted();
    echo(at(VAULT, 9000), 77_777);
    eventually("the bytes are counted", Duration::from_secs(5), || {
        let now = counted();
        ensure!(now >= before + 77_777, "{now} after {before}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn neither_the_link_nor_the_gateway_sees_anything_in_the_clear() {
    let _lab = undisturbed();
    let marker = "only-for-the-two-ends";
    let wires = Node::ALL.map(|node| lab().start_sniffing(node, Some(marker)).unwrap());
    let target = at(VAULT, 9000).to_string();
    talk(
        "shop/client",
        &["echo", &target, "--bytes", "300000", "--marker", marker],
    );
    let [near, far] = wires.map(|wire| wire.finish().unwrap());
    for traffic in [&near, &far] {
        let clear: Vec<_> = traffic.with_marker().collect();
        assert!(clear.is_empty(), "{clear:?}");
    }
    let client: IpAddr = lab()
        .pod("shop/client")
        .unwrap()
        .addresses
        .unwrap()
        .v4
        .into();
    let on_the_link: Vec<_> = near
        .between(client, gateway())
        .filter(|flow| flow.bytes > 0)
        .collect();
    assert!(!on_the_link.is_empty());
    assert!(on_the_link.iter().all(|flow| flow.tls), "{on_the_link:?}");
    // What leaves the gateway for the pod is the inner tunnel as it came: TLS records, and enough of them for the bytes.
    let vault: IpAddr = lab()
        .pod("shop/vault")
        .unwrap()
        .addresses
        .unwrap()
        .v4
        .into();
    let into_the_pod: Vec<_> = far
        .flows
        .iter()
        .filter(|flow| flow.destination == SocketAddr::new(vault, 15008) && flow.bytes > 0)
        .collect();
    let bytes: u64 = into_the_pod.iter().map(|flow| flow.bytes).sum();
    assert!(bytes >= 300_000, "{into_the_pod:?}");
    assert!(into_the_pod.iter().all(|flow| flow.tls), "{into_the_pod:?}");
}

#[test]
fn tcp_keeps_its_promises_across_networks() {
    let _lab = undisturbed();
    let (sink, finish, http) = (at(VAULT, 9002), at(VAULT, 9003), at(VAULT, 80));
    talk("shop/client", &["greet", &at(VAULT, 9001).to_string()]);
    for bytes in ["0", "3000000"] {
        talk(
            "shop/client",
            &["finish-after-sending", &sink.to_string(), "--bytes", bytes],
        );
    }
    let (finish, http) = (finish.to_string(), http.to_string());
    talk(
        "shop/client",
        &[
            "finish-after-server",
            &finish,
            "--receipts",
            &http,
            "--bytes",
            "3000000",
        ],
    );
    talk(
        "shop/client",
        &["drip", &at(VAULT, 9000).to_string(), "--writes", "100000"],
    );
    let many = [
        "parallel",
        &at(VAULT, 9000).to_string(),
        "--connections",
        "300",
    ];
    assert_eq!(talk("shop/client", &many).connections, 300);
    echo(at(VAULT, 9000), 200 << 20);
    echo("[fd96::20]:9000".parse().unwrap(), 100_000);
}

#[test]
fn who_may_do_what_is_decided_by_the_identity_behind_the_gateway() {
    let _lab = undisturbed();
    let report = attempt("shop/stranger", &["echo", &at(VAULT, 9000).to_string()]);
    assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
    let entry = outbound(&report);
    let error = entry.error().unwrap_or_default();
    assert!(error.contains("behind gateway 10.77.0.2:15008"), "{entry}");
    assert!(
        error.contains("refused CONNECT vault.shop.svc.cluster.local:9000 with status 401"),
        "{entry}"
    );
    let denied = lab()
        .access_entry(Node::B, "the denial", |entry| {
            entry.is_final()
                && entry.is("src.identity", "spiffe://cluster.local/ns/shop/sa/stranger")
        })
        .unwrap();
    assert!(denied.error().is_some(), "{denied}");
}

#[test]
fn a_permission_that_is_taken_back_ends_the_connection() {
    let _lab = alone();
    let held = lab().hold("shop/client", at(VAULT, 9000)).unwrap();
    let second = lab().in_cluster(Cluster::Second);
    let restored = Afterwards(|| second.delete("authorizationpolicy", "shop/closed").unwrap());
    second
        .apply(
            "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: shop}
spec:
  selector: {matchLabels: {app: vault}}
  action: DENY
  rules: [{from: [{source: {namespaces: [shop]}}]}]
",
        )
        .unwrap();
    let report = held.ended(Duration::from_secs(10)).unwrap();
    assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
    let ended = lab()
        .access_entry(Node::B, "the end of the connection", |entry| {
            entry.is_final()
                && entry
                    .error()
                    .is_some_and(|error| error.contains("policy changed"))
        })
        .unwrap();
    assert!(ended.is("src.identity", CLIENT_ID), "{ended}");
    drop(restored);
    vault_answers();
}

#[test]
fn somebody_else_behind_the_gateway_is_refused() {
    let _lab = alone();
    let far = |account: &str| {
        format!(
            "apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: vault-far, namespace: shop, labels: {{app: vault}}}}
spec: {{network: network-2, serviceAccount: {account}}}
"
        )
    };
    {
        let _restored = Afterwards(|| drop(lab().apply(&far("vault")).unwrap()));
        lab().apply(&far("impostor")).unwrap();
        vault_fails(&[
            "the destination is not one of",
            "/sa/impostor",
            "peer is spiffe://cluster.local/ns/shop/sa/vault",
        ]);
        // Nobody vouches for an endpoint without an account: nothing is even tried.
        lab().apply(&far("\"\"")).unwrap();
        vault_fails(&["names no identity that its endpoints on network \"network-2\" may have"]);
    }
    vault_answers();
}

#[test]
fn another_gateway_than_the_one_named_is_refused() {
    let _lab = alone();
    let gateway = |account: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: network-2
  namespace: istio-system
  labels: {{topology.istio.io/network: network-2}}
  annotations: {{gateway.istio.io/service-account: {account}}}
spec:
  gatewayClassName: istio-remote
  addresses: [{{type: IPAddress, value: 10.77.0.2}}]
  listeners: [{{name: cross-network, port: 15008, protocol: HBONE, tls: {{mode: Terminate}}}}]
"
        )
    };
    {
        let _restored =
            Afterwards(|| drop(lab().apply(&gateway("istio-eastwestgateway")).unwrap()));
        lab().apply(&gateway("somebody-else")).unwrap();
        vault_fails(&["peer 10.77.0.2:15008 is not one of", "/sa/somebody-else"]);
    }
    vault_answers();
}

#[test]
fn without_a_gateway_the_connection_is_refused_with_that_reason() {
    let _lab = alone();
    let manifests = std::fs::read_dir(lab().state().manifests()).unwrap();
    let texts = manifests.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
    let mut gateways = texts.filter(|text| text.contains("istio-remote"));
    let text = gateways.next().unwrap();
    {
        let _restored = Afterwards(|| drop(lab().apply(&text).unwrap()));
        lab().delete("gateway", "istio-system/network-2").unwrap();
        vault_fails(&["none of its ready endpoints has an address or a gateway that leads to it"]);
    }
    vault_answers();
}

#[test]
fn near_endpoints_serve_until_none_is_left_and_again_once_one_is_back() {
    let _lab = alone();
    for _request in 0..20 {
        assert_eq!(answering(at(WEB, 80)).unwrap(), "web-a");
    }
    {
        let _restored = without_web_a();
        echo(at(WEB, 9000), 1 << 20);
    }
    web_is_answered_by("web-a");
}

#[test]
fn a_gateway_that_dies_ends_its_connections_with_a_reason_and_is_found_again() {
    let _lab = alone();
    let held = lab().hold("shop/client", at(VAULT, 9000)).unwrap();
    lab().hold_down("gateway-b").unwrap();
    let restored = Afterwards(|| lab().let_start("gateway-b").unwrap());
    let killed = Instant::now();
    let report = held.ended(Duration::from_secs(5)).unwrap();
    assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
    let noticed = killed.elapsed();
    let entry = outbound(&report);
    assert!(
        entry
            .error()
            .is_some_and(|error| error.contains("connection broke")),
        "{entry}"
    );
    assert!(entry.is("dst.identity", VAULT_ID), "{entry}");

    vault_fails(&["connect to 10.77.0.2:15008", "refused"]);
    let target = at(WEB, 80);
    assert_eq!(
        answering(target).unwrap(),
        "web-a",
        "what is near is not affected"
    );

    drop(restored);
    let started = Instant::now();
    vault_answers();
    let recovered = started.elapsed();
    println!(
        "the client heard of the gateway's death after {noticed:?}; the vault answered {recovered:?} after the gateway was \
         let start"
    );
    assert!(noticed < Duration::from_secs(2), "{noticed:?}");
    assert!(recovered < Duration::from_secs(10), "{recovered:?}");
}

/// A transfer to the vault that never ends by itself is ended by what `strike` does, and not as if all were well.
fn transfer_is_cut_off(strike: impl FnOnce()) {
    let target = at(VAULT, 9000).to_string();
    let endless = (64_u64 << 30).to_string();
    let arguments = ["traffic", "echo", &target, "--bytes", &endless];
    let mut client = lab().tool("shop/client", &arguments);
    let client = client.stdin(Stdio::null()).stdout(Stdio::piped());
    let client = client.spawn().unwrap();
    std::thread::park_timeout(Duration::from_millis(700));
    strike();
    let output = client.wait_with_output().unwrap();
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report.outcome,
        Outcome::Reset,
        "never a clean end: {report:?}"
    );
    let entry = outbound(&report);
    assert!(entry.is("dst.identity", VAULT_ID), "{entry}");
    let passed = entry.number("bytes_recv");
    assert!(passed > Some(0), "it was in the middle: {entry}");
}

#[test]
fn a_destination_that_dies_in_the_middle_ends_its_connection_and_no_other() {
    let _lab = alone();
    let second = lab().in_cluster(Cluster::Second);
    {
        // What both connections have in common is the gateway, and the outer tunnel to it.
        let _restored = without_web_a();
        let bystander = lab().hold("shop/client", at(WEB, 9000)).unwrap();
        transfer_is_cut_off(|| second.kill("shop/vault").unwrap());
        vault_answers();

        let files = std::fs::read_dir(second.state().manifests()).unwrap();
        let mut texts = files.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
        let pod = texts
            .find(|text| text.contains("kind: Pod\n") && text.contains("name: vault\n"))
            .unwrap();
        let _there_again = Afterwards(|| {
            eventually("the pod is gone", Duration::from_secs(40), || {
                ensure!(lab().pod("shop/vault").is_err(), "it is still there");
                Ok(())
            })
            .unwrap();
            second.apply(&pod).unwrap();
        });
        transfer_is_cut_off(|| second.delete("pod", "shop/vault").unwrap());
        assert_eq!(bystander.release().unwrap().outcome, Outcome::Done);
    }
    vault_answers();
    web_is_answered_by("web-a");
}

#[test]
fn a_service_that_no_entry_leads_to_is_not_looked_for_elsewhere() {
    let _lab = undisturbed();
    // The ledger runs in the second cluster only.
    let before = lab().access_log(Node::A).unwrap().len();
    let report = attempt("shop/client", &["get", "10.96.0.30:80"]);
    assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
    let entries = lab().access_log(Node::A).unwrap();
    let mut errors = entries.iter().skip(before).filter_map(Entry::error);
    assert!(
        errors.any(|error| error.contains("no workload backs it")),
        "{entries:?}"
    );
}
