// SPDX-License-Identifier: Apache-2.0
//! Whatever happens in whatever order, the index ends up where one that is built
//! from scratch would, and says nothing twice.

use std::collections::BTreeMap;

use cluster::{Event, Kind, Object, ObjectKey, kinds};
use istiod_lite::{
    catalogue::Place,
    index::{Changes, Index},
    translate::Mesh,
};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn mesh() -> Mesh {
    Mesh {
        cluster_id: "c".into(),
        cluster_domain: "cluster.local".into(),
        trust_domain: Default::default(),
        root_namespace: "root".into(),
        auto_allocate: None,
        dry_run_at_ztunnels: true,
    }
}

/// What a client would hold that has been told of every change.
#[derive(Debug, Default, PartialEq)]
struct Held(BTreeMap<Place, Vec<u8>>);

impl Held {
    fn hear(&mut self, changes: Changes) {
        for change in changes.resources {
            let key = change.place;
            match change.body {
                Some(body) => {
                    let before = self.0.insert(key.clone(), body.to_vec());
                    assert_ne!(
                        before.as_deref(),
                        Some(&*body),
                        "{key:?} was told without a change"
                    );
                }
                None => {
                    assert!(self.0.remove(&key).is_some(), "{key:?} was never there");
                }
            }
        }
    }
}

fn object<T: DeserializeOwned + cluster::object::Resource>(json: Value) -> Object {
    serde_json::from_value::<T>(json)
        .expect("an object")
        .into_object()
}

fn one_of(all: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(all)
}

fn namespace() -> impl Strategy<Value = &'static str> {
    one_of(&["root", "x", "y"])
}

fn name() -> impl Strategy<Value = &'static str> {
    one_of(&["a", "b", "c"])
}

/// Labels of one or two keys with few values, so that selectors often match.
fn labels() -> impl Strategy<Value = Value> {
    (one_of(&["", "1", "2"]), one_of(&["", "1", "2"])).prop_map(|(p, q)| {
        let mut labels = serde_json::Map::new();
        for (key, value) in [("p", p), ("q", q)] {
            if !value.is_empty() {
                labels.insert(key.into(), value.into());
            }
        }
        Value::Object(labels)
    })
}

fn waypoint() -> impl Strategy<Value = Option<(&'static str, &'static str)>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(("none", ""))),
        3 => (name(), one_of(&["", "x", "y"])).prop_map(Some),
    ]
}

fn with_waypoint(mut labels: Value, waypoint: Option<(&str, &str)>) -> Value {
    if let Some((name, namespace)) = waypoint {
        labels["istio.io/use-waypoint"] = name.into();
        if !namespace.is_empty() {
            labels["istio.io/use-waypoint-namespace"] = namespace.into();
        }
    }
    labels
}

/// What an object says about ways around its waypoint.
fn bypass() -> impl Strategy<Value = &'static str> {
    one_of(&["", "true", "false"])
}

/// Adds that to its annotations, where it says anything.
fn with_bypass(mut annotations: Value, bypass: &str) -> Value {
    if !bypass.is_empty() {
        annotations["culvert.io/require-waypoint"] = bypass.into();
    }
    annotations
}

fn pod() -> impl Strategy<Value = Object> {
    let state = (
        one_of(&["Running", "Failed"]),
        one_of(&["", "10.0.0.1", "10.0.0.2"]),
        one_of(&["n1", "n2", ""]),
    );
    let marks = (
        one_of(&["", "enabled"]),
        one_of(&["", "a", "b"]),
        one_of(&["u1", "u2"]),
        one_of(&["default", "other"]),
        bypass(),
    );
    (namespace(), name(), labels(), waypoint(), state, marks).prop_map(
        |(namespace, name, labels, waypoint, (phase, ip, node), marks)| {
            let (redirection, gateway, uid, account, bypass) = marks;
            let annotations = json!({"ambient.istio.io/redirection": redirection});
            let mut labels = with_waypoint(labels, waypoint);
            if !gateway.is_empty() {
                labels["gateway.networking.k8s.io/gateway-name"] = gateway.into();
            }
            object::<kinds::Pod>(json!({
                "metadata": {"name": name, "namespace": namespace, "uid": uid, "labels": labels,
                             "annotations": with_bypass(annotations, bypass)},
                "spec": {"nodeName": node, "serviceAccountName": account, "containers": [
                    {"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]},
                "status": {"phase": phase, "podIP": ip},
            }))
        },
    )
}

fn service() -> impl Strategy<Value = Object> {
    let target = prop_oneof![Just(json!("web")), Just(json!("other")), Just(json!(80))];
    let place = (namespace(), name());
    (place, labels(), waypoint(), target, bypass()).prop_map(
        |((namespace, name), selector, waypoint, target, bypass)| {
            object::<kinds::Service>(json!({
                "metadata": {"name": name, "namespace": namespace,
                             "annotations": with_bypass(json!({}), bypass),
                             "labels": with_waypoint(json!({}), waypoint)},
                "spec": {"clusterIP": "10.9.0.1", "selector": selector,
                         "ports": [{"name": "p", "port": 80, "targetPort": target}]},
            }))
        },
    )
}

fn slice() -> impl Strategy<Value = Object> {
    (namespace(), name(), name(), name(), one_of(&["u1", "u2"]), any::<bool>()).prop_map(
        |(namespace, name, service, pod, uid, ready)| {
            object::<kinds::EndpointSlice>(json!({
                "metadata": {"name": name, "namespace": namespace,
                             "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4",
                "ports": [{"name": "p", "port": 1}],
                "endpoints": [
                    {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": pod, "uid": uid}},
                    {"addresses": ["192.0.2.1"], "conditions": {"ready": ready}},
                ],
            }))
        },
    )
}

fn cluster_wide() -> impl Strategy<Value = Object> {
    let node = (one_of(&["n1", "n2"]), one_of(&["z1", "z2"])).prop_map(|(name, zone)| {
        object::<kinds::Node>(json!({
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        }))
    });
    let class = (
        one_of(&["k1", "k2"]),
        one_of(&["service", "workload", "all", "none"]),
    )
        .prop_map(|(name, serves)| {
            object::<kinds::GatewayClass>(json!({
                "metadata": {"name": name, "labels": {"istio.io/waypoint-for": serves}},
            }))
        });
    let namespace = (
        namespace(),
        waypoint(),
        one_of(&["", "PreferClose"]),
        one_of(&["", "net1", "net2"]),
        bypass(),
    )
        .prop_map(|(name, waypoint, distribution, network, bypass)| {
            let mut labels = with_waypoint(json!({}), waypoint);
            labels["topology.istio.io/network"] = network.into();
            let annotations = json!({"networking.istio.io/traffic-distribution": distribution});
            object::<kinds::Namespace>(json!({
                "metadata": {"name": name, "labels": labels,
                             "annotations": with_bypass(annotations, bypass)},
            }))
        });
    prop_oneof![node, class, namespace]
}

fn gateway() -> impl Strategy<Value = Object> {
    let shape = (
        one_of(&["k1", "k2", "istio-remote", "istio-east-west"]),
        one_of(&["", "all", "workload"]),
        one_of(&["Same", "All"]),
        one_of(&["", "net1", "net2"]),
    );
    let addresses = one_of(&["", "10.9.9.9", "10.9.9.8", "gw.example.com"]);
    (namespace(), name(), shape, addresses).prop_map(
        |(namespace, name, (class, serves, from, network), address)| {
            let addresses = match address {
                "" => json!([]),
                host if host.ends_with("com") => json!([{"type": "Hostname", "value": host}]),
                ip => json!([{"type": "IPAddress", "value": ip}]),
            };
            let mut labels = match serves {
                "" => json!({}),
                serves => json!({"istio.io/waypoint-for": serves}),
            };
            labels["topology.istio.io/network"] = network.into();
            object::<kinds::Gateway>(json!({
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"gatewayClassName": class, "listeners": [
                    {"name": "m", "port": 15008, "protocol": "HBONE",
                     "allowedRoutes": {"namespaces": {"from": from}}}]},
                "status": {"addresses": addresses},
            }))
        },
    )
}

fn selector(labels: Value) -> Value {
    if labels.as_object().is_some_and(serde_json::Map::is_empty) {
        Value::Null
    } else {
        json!({ "matchLabels": labels })
    }
}

fn target() -> impl Strategy<Value = Value> {
    let gateway = "gateway.networking.k8s.io";
    let kinds = [
        (gateway, "Gateway"),
        (gateway, "GatewayClass"),
        ("", "Service"),
        ("networking.istio.io", "ServiceEntry"),
    ];
    let name = prop_oneof![name(), one_of(&["k1", "k2"])];
    (prop::sample::select(kinds.to_vec()), name)
        .prop_map(|((group, kind), name)| json!({"group": group, "kind": kind, "name": name}))
}

fn policy() -> impl Strategy<Value = Object> {
    (
        namespace(),
        name(),
        labels(),
        one_of(&["ALLOW", "DENY", "AUDIT", "CUSTOM"]),
        one_of(&["80", "81"]),
        prop::option::of(target()),
    )
        .prop_map(|(namespace, name, labels, action, port, target)| {
            let mut spec = json!({
                "action": action, "rules": [{"to": [{"operation": {"ports": [port]}}]}],
            });
            match target {
                Some(target) => {
                    if spec["action"] == "CUSTOM" {
                        spec["provider"] = json!({"name": "opa"});
                    }
                    spec["targetRefs"] = json!([target]);
                }
                None => spec["selector"] = selector(labels),
            }
            object::<kinds::AuthorizationPolicy>(json!({
                "metadata": {"name": name, "namespace": namespace}, "spec": spec,
            }))
        })
}

fn virtual_service() -> impl Strategy<Value = Object> {
    let subset = one_of(&["", "one", "two"]);
    let clients = one_of(&["", "x"]);
    (
        namespace(),
        name(),
        one_of(&["a", "b"]),
        host(),
        subset,
        clients,
        one_of(&["hosts", "wildcard", "all", "leaves", "is left to"]),
    )
        .prop_map(|(namespace, name, own, to, subset, clients, role)| {
            let mut spec = json!({
                "hosts": [own, "a.example.com"],
                "http": [{"match": [{"uri": {"prefix": "/a"}, "sourceNamespace": clients}],
                          "route": [{"destination": {"host": to, "subset": subset}}]}],
                "tcp": [{"route": [{"destination": {"host": own, "subset": subset}}]}],
            });
            match role {
                "wildcard" => spec["hosts"] = json!(["*.example.com", "a.example.com"]),
                "all" => spec["hosts"] = json!(["*"]),
                "leaves" => {
                    spec["http"] = json!([{"delegate": {"name": own, "namespace": clients}}])
                }
                "is left to" => spec = json!({"http": spec["http"], "exportTo": ["*"]}),
                _ => {}
            }
            object::<kinds::VirtualService>(json!({
                "metadata": {"name": name, "namespace": namespace}, "spec": spec,
            }))
        })
}

fn rule() -> impl Strategy<Value = Object> {
    let tls = one_of(&["DISABLE", "SIMPLE"]);
    let wild = one_of(&["", "", "*.example.com", "*"]);
    let parts = (namespace(), name(), host(), labels(), tls, wild);
    parts.prop_map(|(namespace, name, host, labels, tls, wild)| {
        object::<kinds::DestinationRule>(json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"host": if wild.is_empty() { host } else { wild }, "subsets": [{"name": "one", "labels": labels}],
                     "trafficPolicy": {"loadBalancer": {"simple": "RANDOM"}, "tls": {"mode": tls}}},
        }))
    })
}

fn plugin() -> impl Strategy<Value = Object> {
    let target = one_of(&["Gateway", "GatewayClass", "Service", "ServiceEntry"]);
    let fails = one_of(&["FAIL_CLOSE", "FAIL_OPEN"]);
    (namespace(), name(), target, name(), fails).prop_map(|(namespace, name, kind, to, fails)| {
        let group = match kind {
            "Service" => "",
            "ServiceEntry" => "networking.istio.io",
            _ => "gateway.networking.k8s.io",
        };
        let to = if kind == "GatewayClass" { "k1" } else { to };
        object::<kinds::WasmPlugin>(json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"targetRefs": [{"group": group, "kind": kind, "name": to}],
                     "type": "NETWORK", "failStrategy": fails},
        }))
    })
}

fn peer() -> impl Strategy<Value = Object> {
    let mode = || one_of(&["UNSET", "STRICT", "PERMISSIVE", "DISABLE"]);
    (namespace(), name(), labels(), mode(), mode(), 0..3_i64).prop_map(
        |(namespace, name, labels, mode, port, age)| {
            object::<kinds::PeerAuthentication>(json!({
                "metadata": {"name": name, "namespace": namespace,
                             "creationTimestamp": format!("2024-01-0{}T00:00:00Z", age + 1)},
                "spec": {"selector": selector(labels), "mtls": {"mode": mode},
                         "portLevelMtls": {"80": {"mode": port}}},
            }))
        },
    )
}

fn host() -> impl Strategy<Value = &'static str> {
    one_of(&["a.example.com", "*.example.com", "a.x.svc.cluster.local"])
}

fn entry() -> impl Strategy<Value = Object> {
    let shape = (
        prop::collection::vec(host(), 1..3),
        one_of(&["NONE", "STATIC", "DNS"]),
        one_of(&["", "10.9.0.1", "10.9.0.0/24"]),
        prop::collection::vec(one_of(&["192.0.2.1", "h.example.com"]), 0..3),
        labels(),
    );
    let canary = (one_of(&["", "a", "b"]), one_of(&["50", "x"]));
    (
        namespace(),
        name(),
        labels(),
        waypoint(),
        shape,
        0..3_i64,
        canary,
    )
        .prop_map(
            |(namespace, name, labels, waypoint, shape, age, (canary, weight))| {
                let (hosts, resolution, address, endpoints, selector) = shape;
                let mut labels = with_waypoint(labels, waypoint);
                labels["istio.io/use-waypoint-canary"] = canary.into();
                let addresses: Vec<_> = Some(address)
                    .filter(|a| !a.is_empty())
                    .into_iter()
                    .collect();
                let endpoint = |(n, address): (usize, &&str)| {
                    let network = ["", "net2"][n % 2];
                    json!({"address": address, "network": network, "serviceAccount": "far"})
                };
                let endpoints: Vec<_> = endpoints.iter().enumerate().map(endpoint).collect();
                object::<kinds::ServiceEntry>(json!({
                    "metadata": {"name": name, "namespace": namespace, "labels": labels,
                                 "annotations": {"istio.io/use-waypoint-canary-weight": weight},
                                 "creationTimestamp": format!("2024-01-0{}T00:00:00Z", age + 1)},
                    "spec": {"hosts": hosts, "resolution": resolution, "addresses": addresses,
                             "endpoints": endpoints, "workloadSelector": {"labels": selector},
                             "ports": [{"number": 80, "name": "web", "protocol": "TCP"}]},
                    "status": {"addresses": [{"host": "a.example.com", "value": "240.240.0.1"}]},
                }))
            },
        )
}

fn workload_entry() -> impl Strategy<Value = Object> {
    (
        namespace(),
        name(),
        labels(),
        waypoint(),
        one_of(&["192.0.2.1", "h.example.com", ""]),
        (one_of(&["", "net1", "net2"]), one_of(&["", "db"])),
    )
        .prop_map(
            |(namespace, name, labels, waypoint, address, (network, account))| {
                object::<kinds::WorkloadEntry>(json!({
                    "metadata": {"name": name, "namespace": namespace,
                                 "labels": with_waypoint(labels, waypoint)},
                    "spec": {"address": address, "ports": {"web": 81}, "network": network,
                             "serviceAccount": account},
                }))
            },
        )
}

/// Routes of all kinds for few services, with few backends, so that they often meet.
fn route() -> impl Strategy<Value = Object> {
    let parent = (
        one_of(&["Service", "ServiceEntry", "Gateway"]),
        name(),
        namespace(),
        one_of(&["", "80", "81"]),
    );
    let backend = (
        one_of(&["Service", "Hostname", "Bucket"]),
        prop_oneof![name(), host()],
        one_of(&["", "x", "y"]),
    );
    let shape = (
        one_of(&["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"]),
        any::<bool>(),
        0..3_i64,
    );
    (namespace(), name(), parent, backend, shape).prop_map(
        |(namespace, name, parent, backend, (kind, broken, age))| {
            let (parent_kind, parent, parent_namespace, port) = parent;
            let group = match parent_kind {
                "Service" => "",
                "ServiceEntry" => "networking.istio.io",
                _ => "gateway.networking.k8s.io",
            };
            let mut parent = json!({"group": group, "kind": parent_kind, "name": parent, "namespace": parent_namespace});
            if let Ok(port) = port.parse::<u16>() {
                parent["port"] = port.into();
            }
            let (backend_kind, backend, backend_namespace) = backend;
            let group = if backend_kind == "Hostname" { "networking.istio.io" } else { "" };
            let mut backend = json!({"group": group, "kind": backend_kind, "name": backend, "port": 80});
            if !backend_namespace.is_empty() {
                backend["namespace"] = backend_namespace.into();
            }
            let mut rule = json!({"backendRefs": [backend]});
            if broken {
                rule["later"] = 1.into();
            }
            let route = json!({
                "metadata": {"name": name, "namespace": namespace,
                             "creationTimestamp": format!("2024-01-0{}T00:00:00Z", age + 1)},
                "spec": {"parentRefs": [parent], "hostnames": ["h.example.com"], "rules": [rule]},
            });
            match kind {
                "HTTPRoute" => object::<kinds::HTTPRoute>(route),
                "GRPCRoute" => object::<kinds::GRPCRoute>(route),
                "TLSRoute" => object::<kinds::TLSRoute>(route),
                _ => object::<kinds::TCPRoute>(route),
            }
        },
    )
}

fn mesh_config() -> impl Strategy<Value = Object> {
    (one_of(&["PUBLIC", "NAMESPACE", "NONE"]), one_of(&["net1", "net2"]), one_of(&["opa", "other"])).prop_map(
        |(visibility, network, provider)| {
            let mesh = json!({"serviceEntryVisibility": {"policies": [{
                "visibility": visibility, "matchingRules": [
                    {"namespaceSelector": {"matchLabels": {"topology.istio.io/network": network}}}]}]},
                "extensionProviders": [{"name": provider, "envoyExtAuthzGrpc": {"service": "opa.x", "port": 9000}}]});
            object::<kinds::ConfigMap>(json!({
                "metadata": {"name": "istio", "namespace": "root"}, "data": {"mesh": mesh.to_string()},
            }))
        },
    )
}

/// A certificate of an authority that has signed nothing.
const AUTHORITY: &str = include_str!("support/authority.pem");

fn tls_policy() -> impl Strategy<Value = Object> {
    let target = (
        one_of(&["Service", "ServiceEntry"]),
        name(),
        one_of(&["", "p", "q"]),
    );
    (namespace(), name(), target, name(), one_of(&["1", "2"])).prop_map(
        |(namespace, name, (kind, of, port), authority, day)| {
            let group = match kind {
                "Service" => "",
                _ => "networking.istio.io",
            };
            object::<kinds::BackendTLSPolicy>(json!({
                "metadata": {"name": name, "namespace": namespace,
                             "creationTimestamp": format!("2026-01-0{day}T00:00:00Z")},
                "spec": {
                    "targetRefs": [{"group": group, "kind": kind, "name": of, "sectionName": port}],
                    "validation": {
                        "hostname": "a.example.com",
                        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": authority}],
                    },
                },
            }))
        },
    )
}

fn authority() -> impl Strategy<Value = Object> {
    (namespace(), name(), one_of(&["", "no PEM", AUTHORITY])).prop_map(|(namespace, name, pem)| {
        object::<kinds::ConfigMap>(json!({
            "metadata": {"name": name, "namespace": namespace}, "data": {"ca.crt": pem},
        }))
    })
}

fn deletion() -> impl Strategy<Value = Event> {
    let kinds = vec![
        Kind::Pod,
        Kind::Service,
        Kind::EndpointSlice,
        Kind::Gateway,
        Kind::AuthorizationPolicy,
        Kind::PeerAuthentication,
        Kind::ServiceEntry,
        Kind::WorkloadEntry,
        Kind::HTTPRoute,
        Kind::GRPCRoute,
        Kind::TLSRoute,
        Kind::TCPRoute,
        Kind::VirtualService,
        Kind::DestinationRule,
        Kind::WasmPlugin,
        Kind::BackendTLSPolicy,
        Kind::ConfigMap,
    ];
    let config = Just(ObjectKey::namespaced(Kind::ConfigMap, "root", "istio"));
    let namespaced = (prop::sample::select(kinds), namespace(), name())
        .prop_map(|(kind, namespace, name)| ObjectKey::namespaced(kind, namespace, name));
    let wide = prop::sample::select(vec![
        (Kind::Namespace, "x"),
        (Kind::Namespace, "root"),
        (Kind::Node, "n1"),
        (Kind::GatewayClass, "k1"),
    ])
    .prop_map(|(kind, name)| ObjectKey::cluster_wide(kind, name));
    prop_oneof![8 => namespaced, 2 => wide, 1 => config].prop_map(Event::Deleted)
}

fn event() -> impl Strategy<Value = Event> {
    let applied = prop_oneof![
        4 => pod(), 3 => service(), 2 => slice(), 2 => cluster_wide(), 2 => gateway(), 2 => policy(), 2 => peer(),
        3 => entry(), 2 => workload_entry(), 1 => mesh_config(), 4 => route(), 3 => prop_oneof![virtual_service(), rule(), plugin()],
        3 => prop_oneof![tls_policy(), authority()],
    ];
    prop_oneof![3 => applied.prop_map(Event::Applied), 1 => deletion()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn an_index_fed_by_events_equals_one_built_from_scratch(
        batches in prop::collection::vec(prop::collection::vec(event(), 1..5), 1..24),
    ) {
        let mut index = Index::new(mesh());
        let mut held = Held::default();
        let mut objects = BTreeMap::new();
        for batch in batches {
            for event in &batch {
                match event {
                    Event::Applied(object) => { objects.insert(object.key(), object.clone()); }
                    Event::Deleted(key) => { objects.remove(key); }
                }
            }
            held.hear(index.apply(batch));
            let mut scratch = Index::new(mesh());
            let mut expected = Held::default();
            expected.hear(scratch.apply(objects.values().cloned().map(Event::Applied)));
            prop_assert_eq!(&held, &expected);
            for key in objects.keys() {
                prop_assert_eq!(index.conditions(key), scratch.conditions(key));
                prop_assert_eq!(index.parents(key), scratch.parents(key));
            }
            prop_assert!(index.problems().eq(scratch.problems()));
        }
        // With everything gone, nothing is left.
        held.hear(index.apply(objects.into_keys().map(Event::Deleted)));
        prop_assert_eq!(held, Held::default());
    }
}

/// The places that a batch of events has told of.
fn told(index: &mut Index, events: impl IntoIterator<Item = Object>) -> Vec<String> {
    let changes = index.apply(events.into_iter().map(Event::Applied));
    let place = |place: Place| format!("{} {}", place.of.label(), place.name);
    let mut told: Vec<_> = changes
        .resources
        .into_iter()
        .map(|change| place(change.place))
        .collect();
    told.sort();
    told
}

#[test]
fn one_routes_change_is_told_of_its_services_alone_and_so_is_that_of_what_it_leads_to() {
    let service = |name: &str, port: u16| {
        object::<kinds::Service>(json!({
            "metadata": {"name": name, "namespace": "x"},
            "spec": {"clusterIP": "10.9.0.1", "ports": [{"port": port, "name": "http"}]},
        }))
    };
    let route = |name: &str, parent: &str, path: &str| {
        object::<kinds::HTTPRoute>(json!({
            "metadata": {"name": name, "namespace": "x"},
            "spec": {
                "parentRefs": [{"group": "", "kind": "Service", "name": parent}],
                "rules": [{"matches": [{"path": {"value": path}}],
                           "backendRefs": [{"name": "c", "port": 80}]}]},
        }))
    };
    let mut index = Index::new(mesh());
    let gateway = json!({
        "metadata": {"name": "w", "namespace": "x"},
        "spec": {"listeners": [{"name": "m", "port": 15008, "protocol": "HBONE"}]},
        "status": {"addresses": [{"type": "IPAddress", "value": "10.9.9.9"}]}});
    let namespace = json!({"metadata": {"name": "x", "labels": {"istio.io/use-waypoint": "w"}}});
    told(
        &mut index,
        [
            object::<kinds::Namespace>(namespace),
            object::<kinds::Gateway>(gateway),
            service("a", 80),
            service("b", 80),
            service("c", 80),
            route("r", "a", "/1"),
            route("s", "b", "/1"),
        ],
    );
    let of = |name: &str| format!("waypoint_service x/{name}.x.svc.cluster.local");
    assert_eq!(told(&mut index, [route("r", "a", "/2")]), [of("a")]);
    // It passes to another service: both are told.
    assert_eq!(
        told(&mut index, [route("r", "b", "/2")]),
        [of("a"), of("b")]
    );
    assert_eq!(
        told(&mut index, [route("r", "b", "/2")]),
        Vec::<String>::new()
    );
    // The port that both routes lead to is gone: c itself, and b, which has both routes.
    let address = "address x/c.x.svc.cluster.local".to_owned();
    assert_eq!(
        told(&mut index, [service("c", 81)]),
        [address, of("b"), of("c")]
    );
}

#[test]
fn a_change_of_a_rule_tells_of_the_services_that_it_is_for_and_of_no_other() {
    let meta = |name: &str| json!({"name": name, "namespace": "x"});
    let service = |name: &str| {
        object::<kinds::Service>(json!({
            "metadata": {"name": name, "namespace": "x", "labels": {"istio.io/use-waypoint": "gate"}},
            "spec": {"clusterIP": format!("10.0.0.{}", name.len()), "selector": {"app": name},
                     "ports": [{"port": 80, "name": "http"}]},
        }))
    };
    let gate = object::<kinds::Gateway>(json!({
        "metadata": meta("gate"), "spec": {"gatewayClassName": "istio-waypoint"},
        "status": {"addresses": [{"type": "IPAddress", "value": "10.0.0.99"}]},
    }));
    let route = |name: &str| {
        object::<kinds::HTTPRoute>(json!({
            "metadata": meta("route"),
            "spec": {"parentRefs": [{"group": "", "kind": "Service", "name": "a"}],
                     "rules": [{"name": name, "backendRefs": [{"name": "bb", "port": 80}]}]},
        }))
    };
    let virtual_service = |timeout: &str| {
        object::<kinds::VirtualService>(json!({
            "metadata": meta("virtual"),
            "spec": {"hosts": ["ccc"], "http": [{"timeout": timeout,
                     "route": [{"destination": {"host": "bb", "subset": "v1"}}]}]},
        }))
    };
    let rule = |simple: &str| {
        object::<kinds::DestinationRule>(json!({
            "metadata": meta("rule"),
            "spec": {"host": "bb", "trafficPolicy": {"loadBalancer": {"simple": simple}},
                     "subsets": [{"name": "v1", "labels": {"version": "v1"}}]},
        }))
    };
    let plugin = |fails: &str| {
        object::<kinds::WasmPlugin>(json!({
            "metadata": meta("plugin"),
            "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": "a"}], "failStrategy": fails},
        }))
    };
    let pod = |version: &str| {
        object::<kinds::Pod>(json!({
            "metadata": {"name": "pod", "namespace": "x", "uid": "u", "labels": {"app": "bb", "version": version}},
            "spec": {"containers": []}, "status": {"phase": "Running", "podIP": "10.1.0.1"},
        }))
    };
    let [a, bb, ccc] = ["a", "bb", "ccc"].map(|name| format!("x/{name}.x.svc.cluster.local"));
    let mut index = Index::new(mesh());
    let mut apply = |objects: Vec<Object>| {
        let told = told(&mut index, objects).into_iter();
        let of_waypoints = told.filter_map(|place| {
            let service = place.strip_prefix("waypoint_service ")?;
            Some(service.to_owned())
        });
        of_waypoints.collect::<Vec<_>>()
    };
    let services = ["a", "bb", "ccc", "dddd"].map(service);
    assert_eq!(apply([gate].into_iter().chain(services).collect()).len(), 4);
    assert_eq!(apply(vec![route("one")]), [a.as_str()]);
    assert_eq!(apply(vec![route("two")]), [a.as_str()]);
    assert_eq!(apply(vec![route("two")]), [""; 0]);
    assert_eq!(apply(vec![virtual_service("1s")]), [ccc.as_str()]);
    assert_eq!(apply(vec![virtual_service("2s")]), [ccc.as_str()]);
    // What leads there has to know how it is spoken to.
    let all = [a.as_str(), &bb, &ccc];
    assert_eq!(apply(vec![rule("RANDOM")]), all);
    assert_eq!(apply(vec![rule("ROUND_ROBIN")]), all);
    assert_eq!(apply(vec![plugin("FAIL_OPEN")]), [""; 0]);
    assert_eq!(apply(vec![plugin("FAIL_CLOSE")]), [a.as_str()]);
    assert_eq!(apply(vec![plugin("FAIL_OPEN")]), [a.as_str()]);
    // Who is of a subset concerns only what leads to it.
    assert_eq!(apply(vec![pod("v2")]), [""; 0]);
    assert_eq!(apply(vec![pod("v1")]), [ccc.as_str()]);
}

#[test]
fn what_is_for_another_revision_is_as_if_it_were_not_there() {
    let policy = |revision: Option<&str>| {
        let mut policy = json!({
            "metadata": {"name": "deny", "namespace": "x", "labels": {}},
            "spec": {"action": "DENY", "rules": [{}]},
        });
        if let Some(revision) = revision {
            policy["metadata"]["labels"]["istio.io/rev"] = json!(revision);
        }
        object::<kinds::AuthorizationPolicy>(policy)
    };
    let held = |revisions: &[&str], revision: Option<&str>| {
        let revisions = revisions.iter().map(|name| (*name).to_owned()).collect();
        let mut index = Index::new(mesh()).answering_to(revisions);
        !told(&mut index, [policy(revision)]).is_empty()
    };
    for (revisions, revision, expected) in [
        (&["default"][..], None, true),
        (&["blue", "prod"], None, true),
        (&["blue", "prod"], Some(""), true),
        (&["blue", "prod"], Some("prod"), true),
        (&["blue", "prod"], Some("green"), false),
        (&["default"], Some("green"), false),
        (&[], Some("green"), true),
    ] {
        assert_eq!(
            held(revisions, revision),
            expected,
            "{revision:?} at {revisions:?}"
        );
    }

    // It goes when it is given to another, with a word on why, and comes back.
    let mut index = Index::new(mesh()).answering_to(vec!["blue".to_owned()]);
    let name = ["authorization x/deny".to_owned()];
    assert_eq!(told(&mut index, [policy(None)]), name);
    assert_eq!(told(&mut index, [policy(Some("green"))]), name);
    let problems: Vec<String> = index.problems().map(|one| format!("{one:?}")).collect();
    assert!(problems.concat().contains("green"), "{problems:?}");
    assert_eq!(told(&mut index, [policy(Some("blue"))]), name);
    assert_eq!(index.problems().count(), 0);
}
