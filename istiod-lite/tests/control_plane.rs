// SPDX-License-Identifier: Apache-2.0
//! The whole process but for `main`: a directory of manifests in, TLS, tokens,
//! resources, certificates and conditions out.

#[allow(unreachable_pub, reason = "shared by the tests of this folder")]
mod support;

use std::{fs, time::Duration};

use proto::{
    ads::DeltaDiscoveryRequest,
    ca::{
        IstioCertificateRequest, istio_certificate_service_client::IstioCertificateServiceClient,
    },
};
use serde_json::{Value, json};
use support::{Bearer, Lab, Said, Stream, ZTUNNEL, node, pod, said, waypoint_node};
use tonic::Code;

const WEB: &str = "Kubernetes//Pod/shop/web";

fn web() -> Value {
    pod("shop", "web", "web", "a", "web-1", "10.77.1.2")
}

fn ztunnel() -> Value {
    pod(
        "istio-system",
        "ztunnel-a",
        "ztunnel",
        "a",
        "z-a",
        "192.168.0.1",
    )
}

fn deny(ports: &[&str]) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "deny", "namespace": "shop", "uid": "p-1"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "action": "DENY",
                 "rules": [{"to": [{"operation": {"ports": ports}}]}]},
    })
}

fn update(kind: &'static str, names: &[&str]) -> Said {
    let updated = names.iter().map(|name| (*name).to_owned()).collect();
    Said {
        kind,
        updated,
        removed: Vec::new(),
    }
}

fn removal(kind: &'static str, names: &[&str]) -> Said {
    let removed = names.iter().map(|name| (*name).to_owned()).collect();
    Said {
        kind,
        updated: Vec::new(),
        removed,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_follows_the_directory_with_policies_before_workloads() {
    let lab = Lab::start(&[("web.json", web()), ("deny.json", deny(&["80"]))]).await;
    let mut stream = lab.discover().await;
    stream.subscribe(&[]).await;
    assert_eq!(stream.accept().await, update("policy", &["shop/deny"]));
    assert_eq!(stream.accept().await, update("address", &[WEB]));
    assert!(stream.is_quiet().await);

    lab.put("deny.json", &deny(&["81"]));
    assert_eq!(stream.accept().await, update("policy", &["shop/deny"]));
    assert!(
        stream.is_quiet().await,
        "the workload only names the policy"
    );

    lab.put(
        "api.json",
        &pod("shop", "api", "api", "b", "api-1", "10.77.2.2"),
    );
    assert_eq!(
        stream.accept().await,
        update("address", &["Kubernetes//Pod/shop/api"])
    );

    lab.remove("api.json");
    assert_eq!(
        stream.accept().await,
        removal("address", &["Kubernetes//Pod/shop/api"])
    );

    lab.remove("deny.json");
    assert_eq!(
        stream.accept().await,
        update("address", &[WEB]),
        "it no longer names the policy"
    );
    assert_eq!(stream.accept().await, removal("policy", &["shop/deny"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_is_sent_only_what_changed_even_after_a_restart() {
    let api = pod("shop", "api", "api", "b", "api-1", "10.77.2.2");
    let mut lab = Lab::start(&[
        ("web.json", web()),
        ("api.json", api),
        ("deny.json", deny(&["80"])),
    ])
    .await;
    let mut stream = lab.discover().await;
    stream.subscribe(&[]).await;
    let mut held = Vec::new();
    for prefix in ["policy ", ""] {
        let response = stream.next().await;
        held.extend(
            response
                .resources
                .iter()
                .map(|r| (format!("{prefix}{}", r.name), r.version.clone())),
        );
        assert!(response.resources.iter().all(|r| !r.version.is_empty()));
    }
    drop(stream);
    lab.remove("api.json");
    lab.restart().await;
    let mut stream = lab.discover().await;
    stream.subscribe(&held).await;
    assert_eq!(
        stream.accept().await,
        update("policy", &[]),
        "the policy is the same"
    );
    assert_eq!(
        stream.accept().await,
        removal("address", &["Kubernetes//Pod/shop/api"])
    );
    assert!(stream.is_quiet().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_is_shown_and_nothing_is_repeated() {
    let lab = Lab::start(&[("web.json", web())]).await;
    let mut stream = lab.discover().await;
    stream.subscribe(&[]).await;
    stream.accept().await;
    let addresses = stream.next().await;
    stream
        .answer(&addresses, Some("web: no such protocol"))
        .await;
    assert!(stream.is_quiet().await);
    let page = lab.page("/debug/connections").await;
    assert!(page.contains("web: no such protocol"), "{page}");
    lab.put(
        "web.json",
        &pod("shop", "web", "web", "a", "web-1", "10.77.1.3"),
    );
    assert_eq!(stream.accept().await, update("address", &[WEB]));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_must_prove_who_they_are() {
    let lab = Lab::start(&[]).await;
    let anonymous = Stream::open(lab.channel(None).await).await;
    assert_eq!(
        anonymous.err().map(|status| status.code()),
        Some(Code::Unauthenticated)
    );

    let of_address = |node| DeltaDiscoveryRequest {
        node,
        type_url: proto::ADDRESS_TYPE_URL.into(),
        ..Default::default()
    };
    for (first, expected) in [
        (of_address(None), Code::InvalidArgument),
        (of_address(Some(node("another"))), Code::PermissionDenied),
    ] {
        let mut stream = lab.discover().await;
        stream.send(first).await;
        assert_eq!(
            stream.receive().await.map_err(|status| status.code()).err(),
            Some(expected)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_type_does_not_break_the_stream() {
    let lab = Lab::start(&[("web.json", web())]).await;
    let mut stream = lab.discover().await;
    stream
        .send(DeltaDiscoveryRequest {
            node: Some(node("istio-system")),
            type_url: "type.googleapis.com/of.Tomorrow".into(),
            ..Default::default()
        })
        .await;
    let response = stream.next().await;
    assert_eq!(response.type_url, "type.googleapis.com/of.Tomorrow");
    stream.answer(&response, None).await;
    stream.subscribe(&[]).await;
    assert_eq!(stream.accept().await, update("policy", &[]));
    assert_eq!(stream.accept().await, update("address", &[WEB]));
}

/// Asks for a certificate; how it ended, and what the client was told.
async fn certificate(
    lab: &Lab,
    bearer: Bearer<'_>,
    identity: Option<&str>,
) -> Result<Vec<String>, tonic::Status> {
    use prost_types::{Struct, Value, value::Kind};
    let key = rcgen::KeyPair::generate().expect("a key");
    let request = rcgen::CertificateParams::default()
        .serialize_request(&key)
        .expect("a request");
    let metadata = identity.map(|identity| Struct {
        fields: [(
            "ImpersonatedIdentity".to_owned(),
            Value {
                kind: Some(Kind::StringValue(identity.into())),
            },
        )]
        .into(),
    });
    let mut client = IstioCertificateServiceClient::new(lab.channel(Some(bearer)).await);
    let request = IstioCertificateRequest {
        csr: request.pem().expect("PEM"),
        validity_duration: 600,
        metadata,
    };
    Ok(client
        .create_certificate(request)
        .await?
        .into_inner()
        .cert_chain)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_proxy_gets_identities_of_live_pods_of_its_node_and_no_others() {
    let mut ended = pod("shop", "done", "done", "a", "d", "10.77.1.9");
    ended["status"]["phase"] = "Succeeded".into();
    let lab = Lab::start(&[
        ("ztunnel.json", ztunnel()),
        ("web.json", web()),
        (
            "api.json",
            pod("shop", "api", "api", "b", "api-1", "10.77.2.2"),
        ),
        ("done.json", ended),
    ])
    .await;
    let mut stream = lab.discover().await;
    stream.subscribe(&[]).await;
    stream.accept().await;

    let chain = certificate(&lab, ZTUNNEL, Some("spiffe://cluster.local/ns/shop/sa/web"))
        .await
        .expect("granted");
    assert!(chain.len() >= 2, "a leaf and a root at least");
    let leaf = pem::parse(&chain[0]).expect("PEM");
    let (_, leaf) = x509_parser::parse_x509_certificate(leaf.contents()).expect("a certificate");
    let names = leaf
        .subject_alternative_name()
        .expect("readable")
        .expect("there");
    assert_eq!(
        format!("{:?}", names.value.general_names),
        r#"[URI("spiffe://cluster.local/ns/shop/sa/web")]"#
    );

    let web = Bearer {
        namespace: "shop",
        account: "web",
        pod: "web",
        uid: "web-1",
    };
    let stale = Bearer {
        uid: "another",
        ..ZTUNNEL
    };
    certificate(&lab, web, None)
        .await
        .expect("its own identity");
    for (bearer, identity) in [
        (ZTUNNEL, Some("spiffe://cluster.local/ns/shop/sa/api")),
        (ZTUNNEL, Some("spiffe://cluster.local/ns/shop/sa/done")),
        (ZTUNNEL, Some("spiffe://elsewhere/ns/shop/sa/web")),
        (ZTUNNEL, Some("nonsense")),
        (web, Some("spiffe://cluster.local/ns/shop/sa/web")),
        (stale, Some("spiffe://cluster.local/ns/shop/sa/web")),
        (stale, None),
    ] {
        let refused = certificate(&lab, bearer, identity)
            .await
            .expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthenticated, "{identity:?}");
        assert_eq!(refused.message(), "authentication failure", "{identity:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn authors_of_policies_are_told_once() {
    let lab = Lab::start(&[("deny.json", deny(&["80", "nonsense"]))]).await;
    let file = lab
        .manifests()
        .join(".status/AuthorizationPolicy/shop/deny/istiod-lite.json");
    let condition = || -> Option<Value> {
        let status: Value = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
        Some(status["status"]["conditions"][0].clone())
    };
    let first = eventually(condition).await;
    assert_eq!(first["type"], "ZtunnelAccepted");
    assert_eq!(first["reason"], "UnsupportedValue");
    let written = fs::metadata(&file)
        .expect("there")
        .modified()
        .expect("known");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(
        fs::metadata(&file)
            .expect("there")
            .modified()
            .expect("known"),
        written
    );

    lab.put("deny.json", &deny(&["80"]));
    let second = eventually(|| condition().filter(|c| c["reason"] == "Accepted")).await;
    assert_eq!(
        second["lastTransitionTime"], first["lastTransitionTime"],
        "it was True before"
    );
    lab.remove("deny.json");
    eventually(|| (!file.exists()).then_some(())).await;
}

async fn eventually<T>(mut check: impl FnMut() -> Option<T>) -> T {
    for _ in 0..400 {
        if let Some(found) = check() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("it did not come about")
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_resources_versions_and_problems() {
    let lab = Lab::start(&[("web.json", web()), ("deny.json", deny(&["nonsense"]))]).await;
    let mut stream = lab.discover().await;
    stream.subscribe(&[]).await;
    let policies = stream.next().await;
    assert!(lab.page("/ready").await.starts_with("HTTP/1.1 200"));
    // Who is where is not for everybody who may see how it is.
    for (page, status) in [
        ("/ready", 200),
        ("/live", 200),
        ("/metrics", 200),
        ("/debug/ca", 404),
        ("/debug/problems", 404),
    ] {
        let answer = lab.monitoring(page).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{page}: {answer}"
        );
    }
    let dump = lab.page("/debug/config_dump?name=deny").await;
    assert!(dump.contains(&policies.resources[0].version), "{dump}");
    assert!(!dump.contains(WEB), "{dump}");
    let problems = lab.page("/debug/problems").await;
    assert!(
        problems.contains("spec.rules[0].to[0].operation.ports[0]"),
        "{problems}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_streams_with_a_reason() {
    let mut lab = Lab::start(&[]).await;
    let mut stream = lab.discover().await;
    stream.subscribe(&[]).await;
    assert_eq!(said(&stream.next().await), update("policy", &[]));
    stream.next().await;
    lab.shutdown.start();
    let end = stream.receive().await.expect_err("the end");
    assert_eq!(end.code(), Code::Unavailable);
    lab.running.finished().await.expect("ended well");
}

fn entry(name: &str, host: &str) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"hosts": [host], "resolution": "DNS",
                 "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_address_is_given_one_that_survives_a_restart() {
    let mut lab = Lab::start(&[("a.json", entry("a", "a.example.com"))]).await;
    let status = |lab: &Lab, name: &str| {
        let file = format!(".status/ServiceEntry/shop/{name}/istiod-lite.json");
        let file = fs::read(lab.manifests().join(file)).ok()?;
        let status: Value = serde_json::from_slice(&file).ok()?;
        Some(status["status"]["addresses"].clone())
    };
    let given = eventually(|| status(&lab, "a")).await;
    assert_eq!(
        given,
        json!([{"value": "240.240.0.1", "host": "a.example.com"},
               {"value": "2001:2::1", "host": "a.example.com"}])
    );
    // Once it is read back, clients learn of it.
    let dump = "/debug/config_dump?name=shop/a.example.com";
    let mut known = String::new();
    for _ in 0..400 {
        known = lab.page(dump).await;
        if known.contains("240.240.0.1") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(known.contains("240.240.0.1"), "{known}");
    assert!(known.contains("2001:2::1"), "{known}");

    lab.put("b.json", &entry("b", "b.example.com"));
    let other = eventually(|| status(&lab, "b")).await;
    assert_eq!(other[0]["value"], "240.240.0.2");
    lab.remove("b.json");
    eventually(|| status(&lab, "b").is_none().then_some(())).await;
    lab.restart().await;
    lab.put("c.json", &entry("c", "c.example.com"));
    eventually(|| status(&lab, "c")).await;
    assert_eq!(status(&lab, "a"), Some(given), "it keeps what it has");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_who_say_nothing_make_room_for_others_the_oldest_first() {
    let lab = Lab::start(&[("web.json", web()), ("ztunnel.json", ztunnel())]).await;
    let mut crowd = Vec::new();
    for _ in 0..256 + 20 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // An address of its own, as another host has.
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        crowd.push(socket.connect(lab.running.address).await.unwrap());
    }
    let mut stream = tokio::time::timeout(Duration::from_secs(5), lab.discover())
        .await
        .expect("kept out by those who say nothing");
    stream.subscribe(&[]).await;
    stream.accept().await;
    // The first of them had to leave; the last are borne with.
    let mut byte = [0];
    let left = tokio::io::AsyncReadExt::read(&mut crowd[0], &mut byte);
    let left = tokio::time::timeout(Duration::from_secs(5), left).await;
    assert!(!matches!(left, Err(_) | Ok(Ok(1..))), "{left:?}");
    let last = crowd.last_mut().unwrap();
    assert!(
        last.try_read(&mut byte)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    );
}

/// The waypoint of namespace shop, as the manifests know it.
const GATE: Bearer<'static> = Bearer {
    namespace: "shop",
    account: "gate",
    pod: "gate-1",
    uid: "g-1",
};

fn gate() -> [(&'static str, Value); 4] {
    let mut instance = pod("shop", "gate-1", "gate", "a", "g-1", "10.77.1.9");
    instance["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"] = "gate".into();
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "gate", "namespace": "shop"},
        "spec": {"gatewayClassName": "istio-waypoint",
                 "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]},
        "status": {"addresses": [{"type": "IPAddress", "value": "10.96.0.9"}]},
    });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "r", "namespace": "shop", "uid": "r-1", "generation": 7},
        "spec": {"parentRefs": [{"group": "", "kind": "Service", "name": "cart"}],
                 "rules": [{"backendRefs": [{"name": "cart", "port": 80}]}]},
    });
    [
        ("gate-pod.json", instance),
        ("gate.json", gateway),
        ("cart.json", cart(Some("gate"))),
        ("route.json", route),
    ]
}

fn cart(waypoint: Option<&str>) -> Value {
    let labels = waypoint.map(|name| json!({"istio.io/use-waypoint": name}));
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "cart", "namespace": "shop", "labels": labels},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "name": "http"}]},
    })
}

async fn as_waypoint(lab: &Lab, bearer: Bearer<'_>, namespace: &str, gateway: &str) -> Stream {
    let stream = Stream::open(lab.channel(Some(bearer)).await)
        .await
        .expect("a stream");
    stream
        .send(DeltaDiscoveryRequest {
            node: Some(waypoint_node(namespace, gateway)),
            type_url: proto::WAYPOINT_SERVICE_TYPE_URL.into(),
            ..Default::default()
        })
        .await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waypoint_gets_what_it_serves_for_as_long_as_it_does() {
    const CART: &str = "shop/cart.shop.svc.cluster.local";
    let lab = Lab::start(&gate()).await;
    let mut stream = as_waypoint(&lab, GATE, "shop", "gate").await;
    assert_eq!(stream.accept().await, update("waypoint", &[CART]));
    lab.put("cart.json", &cart(None));
    assert_eq!(stream.accept().await, removal("waypoint", &[CART]));
    lab.put("cart.json", &cart(Some("gate")));
    assert_eq!(stream.accept().await, update("waypoint", &[CART]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_nothing_of_a_gateway_that_its_pod_is_no_instance_of() {
    let mut files = gate().to_vec();
    files.extend([("web.json", web()), ("z.json", ztunnel())]);
    let lab = Lab::start(&files).await;
    let web = Bearer {
        namespace: "shop",
        account: "web",
        pod: "web",
        uid: "web-1",
    };
    // A pod beside the waypoint names it; the waypoint's own names another; the pod's name is not enough.
    for (bearer, gateway) in [(web, "gate"), (GATE, "other")] {
        let mut stream = as_waypoint(&lab, bearer, "shop", gateway).await;
        let refused = stream.receive().await.expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied, "{gateway}");
    }
    let stranger = Bearer { uid: "g-0", ..GATE };
    let mut stream = as_waypoint(&lab, stranger, "shop", "gate").await;
    assert_eq!(
        stream.receive().await.expect_err("refused").code(),
        Code::Unavailable
    );
    // Who names none is served, but for that.
    let mut stream = lab.discover().await;
    stream
        .send(DeltaDiscoveryRequest {
            node: Some(node("istio-system")),
            type_url: proto::WAYPOINT_SERVICE_TYPE_URL.into(),
            ..Default::default()
        })
        .await;
    assert_eq!(stream.accept().await, update("waypoint", &[]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_routes_author_is_told_and_what_others_say_stays() {
    let mut files = gate().to_vec();
    let foreign = json!({"parentRef": {"name": "edge"}, "controllerName": "example.com/edge", "conditions": []});
    files[3].1["status"] = json!({"parents": [foreign]});
    let lab = Lab::start(&files).await;
    let file = lab
        .manifests()
        .join(".status/HTTPRoute/shop/r/istiod-lite.json");
    let told = |wanted: &'static str| {
        let file = file.clone();
        async move {
            for _ in 0..200 {
                let text = fs::read_to_string(&file).unwrap_or_default();
                if text.contains(wanted) {
                    return serde_json::from_str::<Value>(&text).expect("JSON");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("{wanted} is not said in {}", file.display());
        }
    };
    let status = told("ResolvedWaypoints").await;
    let parents = status["status"]["parents"]
        .as_array()
        .expect("a list")
        .clone();
    assert_eq!(parents.len(), 1, "others' entries are theirs to write");
    assert_eq!(parents[0]["controllerName"], "istio.io/mesh-controller");
    assert_eq!(
        parents[0]["parentRef"],
        json!({"group": "", "kind": "Service", "name": "cart"})
    );
    for condition in parents[0]["conditions"].as_array().expect("a list") {
        assert_eq!(condition["status"], "True", "{condition}");
        assert_eq!(condition["observedGeneration"], 7, "I09");
    }
    lab.remove("cart.json");
    let status = told("NoMatchingParent").await;
    assert_eq!(
        status["status"]["parents"][0]["conditions"][0]["status"],
        "False"
    );
}
