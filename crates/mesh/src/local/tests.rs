// SPDX-License-Identifier: Apache-2.0

use super::*;

const EXAMPLE: &str = r#"
workloads:
  - uid: c1//Pod/shop/cart-0
    name: cart-0
    namespace: shop
    serviceAccount: cart
    trustDomain: cluster.local
    workloadIps: ["10.1.2.3"]
    protocol: HBONE
    node: n1
    services:
      "shop/cart.shop.svc.cluster.local": { 80: 8080 }
services:
  - name: cart
    namespace: shop
    hostname: cart.shop.svc.cluster.local
    vips: ["/10.96.0.7"]
    ports: { 80: 8080 }
policies:
  - name: only-web
    namespace: shop
    scope: Namespace
    action: Allow
    dryRun: false
    rules: [[[ { serviceAccounts: [ { namespace: shop, serviceAccount: web } ] } ]]]
"#;

fn loaded(text: &str) -> Store {
    let mut store = Store::new(Some("n1"));
    LocalConfig::parse(text).unwrap().load_into(&mut store);
    store
}

#[test]
fn a_file_becomes_workloads_services_and_policies() {
    let store = loaded(EXAMPLE);
    let pod = store
        .local_workloads("shop", "cart", "cart-0")
        .next()
        .unwrap();
    assert_eq!(pod.protocol, TunnelProtocol::Hbone);
    assert_eq!(
        pod.services.len(),
        1,
        "the list makes its own services known too"
    );
    let vip = "10.96.0.7".parse().unwrap();
    let service = store.service_by_vip("", vip, None).unwrap();
    assert_eq!(store.endpoints(service).len(), 1);
    assert_eq!(store.policies_for(pod).names().count(), 1);
    assert!(store.policy("shop/only-web").is_some());
}

#[test]
fn what_a_file_leaves_out_takes_its_default() {
    let store = loaded("workloads: [{name: a, namespace: shop, workloadIps: [], services: {}}]");
    let pod = store.workload("Kubernetes//Pod/shop/a").unwrap();
    assert_eq!(
        pod.identity.as_str(),
        "spiffe://cluster.local/ns/shop/sa/default"
    );
    assert_eq!(pod.protocol, TunnelProtocol::None);
    assert_eq!(pod.capacity, 1);
}

#[test]
fn an_empty_file_is_an_empty_mesh() {
    for text in ["", "{}", "workloads: []\n", "# nothing yet\n"] {
        assert_eq!(loaded(text).workload_count(), 0, "{text:?}");
    }
}

#[test]
fn json_is_read_as_well() {
    let json = r#"{"workloads": [{"name": "a", "namespace": "shop", "workloadIps": ["fd00::1"],
        "services": {"shop/cart": {"80": 8080}}}]}"#;
    let store = loaded(json);
    let pod = store
        .workload_by_ip("", "fd00::1".parse().unwrap())
        .unwrap();
    assert_eq!(pod.services[0].ports.target(80), Some(8080));
}

#[test]
fn loading_replaces_what_was_there() {
    let mut store = loaded(EXAMPLE);
    let changes = LocalConfig::default().load_into(&mut store);
    assert!(changes.policies_changed);
    assert_eq!((store.workload_count(), store.service_count()), (0, 0));
    assert_eq!(store.policies().count(), 0);
}

#[test]
fn endpoints_listed_by_a_service_are_joined_with_those_that_workloads_name() {
    let store = loaded(
        "
        workloads:
        - {uid: u, namespace: shop, workloadIps: [10.0.0.1], services: {shop/cart: {80: 8080}}}
        - {uid: v, namespace: shop, workloadIps: [10.0.0.2], services: {}}
        services:
        - name: cart
          namespace: shop
          hostname: cart
          vips: []
          ports: {80: 8080, 90: 0}
          endpoints:
            u: {workloadUid: u, port: {80: 1, 90: 9090}, status: Healthy}
            v: {workloadUid: v, port: {90: 9091}}
        ",
    );
    let ports = |uid: &str, port| {
        let workload = store.workload(uid).unwrap();
        workload.ports_for("shop", "cart").unwrap().target(port)
    };
    assert_eq!(ports("u", 80), Some(8080));
    assert_eq!(ports("u", 90), Some(9090));
    assert_eq!(ports("v", 90), Some(9091));
}

/// The error must hold each of these.
#[track_caller]
fn refuses(text: &str, parts: &[&str]) {
    let error = LocalConfig::parse(text).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} does not hold {part:?}");
    }
}

#[test]
fn an_unknown_key_is_refused_wherever_it_is() {
    refuses("workload: []", &["line 1", "workload"]);
    refuses(
        "workloads:\n- name: a\n  namespace: shop\n  workloadIps: []\n  services: {}\n  protcol: HBONE\n",
        &["line 6", "protcol"],
    );
    refuses(
        "services:\n- {name: a, namespace: b, hostname: c, vips: [], ports: {}, vip: x}\n",
        &["line 2", "vip"],
    );
    let policy = |m: &str| {
        format!(
            "policies:\n- name: p\n  namespace: a\n  scope: Global\n  action: Deny\n  dryRun: false\n  rules:\n  - - - {m}\n"
        )
    };
    refuses(&policy("{principal: []}"), &["line 8", "principal"]);
    refuses(
        &policy("{serviceAccounts: [{namespace: a, account: b}]}"),
        &["line 8", "account"],
    );
    refuses(&policy("{namespaces: [!Regex a]}"), &["line 8", "Regex"]);
    refuses(
        &policy("{namespaces: [!Exact '']}"),
        &["line 8", "must not be empty"],
    );
    refuses(&policy("{destinationPorts: [70000]}"), &["line 8"]);
    refuses(&policy("{sourceIps: [10.0.0.0/33]}"), &["line 8"]);
}

#[test]
fn a_missing_or_wrong_value_is_refused_with_its_line() {
    refuses(
        "workloads:\n- {name: a, namespace: b, services: {}}\n",
        &["line 2", "workloadIps"],
    );
    refuses(
        "workloads:\n- name: a\n  namespace: b\n  workloadIps: [10.0.0.256]\n  services: {}\n",
        &["line 4"],
    );
    refuses(
        "workloads:\n- name: a\n  namespace: b\n  workloadIps: []\n  services: {cart: {}}\n",
        &[
            "line 5",
            "\"cart\" is not of the form <namespace>/<hostname>",
        ],
    );
    refuses(
        "services:\n- {name: a, namespace: b, hostname: c, ports: {}, vips: [10.0.0.1]}\n",
        &[
            "line 2",
            "\"10.0.0.1\" is not of the form <network>/<IP address>",
        ],
    );
    refuses("workloads: [a\n", &["line"]);
}

#[test]
fn an_entry_that_contradicts_itself_or_others_is_named() {
    let pod = |rest: &str| {
        format!(
            "workloads:\n- {{uid: u, namespace: shop, workloadIps: [], services: {{}}{rest}}}\n"
        )
    };
    refuses(
        &pod(", trustDomain: UPPER"),
        &["line 2: workloads[0]: trustDomain makes no identity"],
    );
    refuses(
        &pod(", serviceAccount: a/b"),
        &["line 2: workloads[0]: namespace and serviceAccount make no identity"],
    );
    let twice = format!(
        "{}- {}",
        pod(""),
        "{uid: u, namespace: shop, workloadIps: [], services: {}}\n"
    );
    refuses(&twice, &["line 3: workloads[1]: uid \"u\" is used twice"]);
    refuses(
        "workloads:\n- {namespace: shop, workloadIps: [], services: {}}\n",
        &["line 2: workloads[0]: uid is missing"],
    );
    refuses(
        "services:\n- {name: a, namespace: b, hostname: c, vips: [], ports: {},\n   endpoints: {x: {workloadUid: x, port: {}}}}\n",
        &["line 2: services[0]: endpoints name \"x\", which is no workload here"],
    );
}

#[test]
fn a_generated_file_of_many_workloads_is_read() {
    let mut text = String::from("workloads:\n");
    for i in 0..2_000 {
        text += &format!(
            "- uid: cluster1//v1/Pod/ns{}/w{i}\n  name: w{i}\n  namespace: ns{}\n  serviceAccount: sa{}\n  \
             trustDomain: cluster.local\n  workloadIps: [\"10.100.{}.{}\"]\n  protocol: HBONE\n  node: node{}\n  \
             network: \"\"\n  clusterId: Kubernetes\n  workloadName: w{i}\n  workloadType: deployment\n  \
             canonicalName: w{i}\n  canonicalRevision: v1\n  services:\n    \
             \"ns0/svc{}.ns0.svc.cluster.local\":\n      80: 8080\n",
            i % 100,
            i % 100,
            i % 500,
            i >> 8,
            i & 255,
            i % 200,
            i % 200,
        );
    }
    text += "policies: []\nservices: []\n";
    let store = loaded(&text);
    assert_eq!(store.workload_count(), 2_000);
    assert_eq!(store.staged().count(), 200);
}
