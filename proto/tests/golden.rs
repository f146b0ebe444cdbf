// SPDX-License-Identifier: Apache-2.0
//! Every message against bytes written out by hand from the published field
//! numbers: a wrong number or type in a schema fails here, not in a cluster.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::{ads, auth, ca, handover, security, telemetry, waypoint, workload, zds};

/// `golden` is hex; spaces and the bars between fields are for the reader.
#[track_caller]
fn check<M: prost::Message + Default + PartialEq + std::fmt::Debug>(message: M, golden: &str) {
    let golden: String = golden.chars().filter(char::is_ascii_hexdigit).collect();
    let hex: String = message
        .encode_to_vec()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(hex, golden, "encoded {message:?}");
    let bytes: Vec<u8> = (0..golden.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&golden[at..at + 2], 16).expect("two hex digits"))
        .collect();
    assert_eq!(M::decode(&*bytes).expect("golden bytes decode"), message);
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn any() -> prost_types::Any {
    prost_types::Any {
        type_url: text("t"),
        value: vec![1],
    }
}

fn extension() -> workload::Extension {
    workload::Extension {
        name: text("e"),
        config: None,
    }
}

fn named_gateway() -> workload::GatewayAddress {
    let hostname = workload::NamespacedHostname {
        namespace: text("g"),
        hostname: text("h"),
    };
    workload::GatewayAddress {
        destination: Some(workload::gateway_address::Destination::Hostname(hostname)),
        hbone_mtls_port: 15008,
    }
}

#[test]
fn workload_address_entries() {
    use workload::address::Type;
    let pod = workload::Workload {
        uid: text("u"),
        ..Default::default()
    };
    check(
        workload::Address {
            r#type: Some(Type::Workload(pod)),
        },
        "0a 04 a2 01 01 75",
    );
    let service = workload::Service {
        name: text("n"),
        ..Default::default()
    };
    check(
        workload::Address {
            r#type: Some(Type::Service(service)),
        },
        "12 03 0a 01 6e",
    );
}

#[test]
fn workload_workload() {
    let waypoint = workload::GatewayAddress {
        destination: Some(workload::gateway_address::Destination::Address(
            workload::NetworkAddress {
                network: text("w"),
                address: Bytes::from_static(&[10, 0, 0, 2]),
                length: None,
            },
        )),
        hbone_mtls_port: 15008,
    };
    let ports = workload::PortList {
        ports: vec![workload::Port {
            service_port: 80,
            target_port: 8080,
            app_protocol: workload::AppProtocol::Http2.into(),
        }],
    };
    check(
        workload::Workload {
            uid: text("u"),
            name: text("n"),
            namespace: text("s"),
            addresses: vec![Bytes::from_static(&[10, 0, 0, 1])],
            hostname: text("h"),
            network: text("w"),
            tunnel_protocol: workload::TunnelProtocol::Hbone.into(),
            trust_domain: text("t"),
            service_account: text("a"),
            waypoint: Some(waypoint),
            network_gateway: Some(named_gateway()),
            node: text("d"),
            canonical_name: text("c"),
            canonical_revision: text("r"),
            workload_type: workload::WorkloadType::Job.into(),
            workload_name: text("l"),
            native_tunnel: true,
            application_tunnel: Some(workload::ApplicationTunnel {
                protocol: workload::application_tunnel::Protocol::Proxy.into(),
                port: 81,
            }),
            services: [(text("s/h"), ports)].into(),
            authorization_policies: vec![text("p")],
            status: workload::WorkloadStatus::Unhealthy.into(),
            cluster_id: text("k"),
            locality: Some(workload::Locality {
                region: text("r"),
                zone: text("z"),
                subzone: text("s"),
            }),
            network_mode: workload::NetworkMode::HostNetwork.into(),
            extensions: vec![workload::Extension {
                name: text("e"),
                config: Some(any()),
            }],
            capacity: Some(5),
            pod_uid: text("i"),
        },
        "0a 01 6e | 12 01 73 | 1a 04 0a 00 00 01 | 22 01 77 | 28 01 | 32 01 74 | 3a 01 61 |
         42 0e 12 09 0a 01 77 12 04 0a 00 00 02 18 a0 75 | 4a 01 64 | 52 01 63 | 5a 01 72 |
         60 03 | 6a 01 6c | 70 01 | 82 01 01 70 | 88 01 01 | 92 01 01 6b |
         9a 01 0b 0a 06 0a 01 67 12 01 68 18 a0 75 | a2 01 01 75 | aa 01 01 68 |
         b2 01 10 0a 03 73 2f 68 12 09 0a 07 08 50 10 90 3f 18 02 | ba 01 04 08 01 10 51 |
         c2 01 09 0a 01 72 12 01 7a 1a 01 73 | c8 01 01 |
         d2 01 0b 0a 01 65 12 06 0a 01 74 12 01 01 | da 01 02 08 05 |
         ca 3e 01 69",
    );
}

#[test]
fn workload_service() {
    use workload::load_balancing::{HealthPolicy, Mode, Scope};
    check(
        workload::Service {
            name: text("n"),
            namespace: text("s"),
            hostname: text("h"),
            addresses: vec![workload::NetworkAddress {
                network: text("w"),
                address: Bytes::from_static(&[10, 0, 0, 0]),
                length: Some(8),
            }],
            ports: vec![workload::Port {
                service_port: 80,
                target_port: 8080,
                app_protocol: workload::AppProtocol::Tls.into(),
            }],
            subject_alt_names: vec![text("i")],
            waypoint: Some(named_gateway()),
            load_balancing: Some(workload::LoadBalancing {
                routing_preference: vec![Scope::Network.into(), Scope::Region.into()],
                mode: Mode::Failover.into(),
                health_policy: HealthPolicy::AllowAll.into(),
            }),
            ip_families: workload::IpFamilies::Dual.into(),
            extensions: vec![extension()],
            canonical: true,
            ingress_use_waypoint: true,
            weighted_waypoints: vec![workload::WeightedWaypoint {
                destination: Some(named_gateway()),
                weight: 7,
            }],
            visibility: workload::service::Visibility::Namespace.into(),
        },
        "0a 01 6e | 12 01 73 | 1a 01 68 | 22 0b 0a 01 77 12 04 0a 00 00 00 18 08 |
         2a 07 08 50 10 90 3f 18 05 | 32 01 69 | 3a 0b 0a 06 0a 01 67 12 01 68 18 a0 75 |
         42 08 0a 02 06 01 10 02 18 01 | 48 03 | 52 03 0a 01 65 | 58 01 | 60 01 |
         6a 0f 0a 0b 0a 06 0a 01 67 12 01 68 18 a0 75 10 07 | 70 01",
    );
}

#[test]
fn workload_enum_values() {
    use workload::load_balancing::{Mode, Scope};
    use workload::{AppProtocol, IpFamilies, TunnelProtocol, WorkloadType};
    assert_eq!(
        [
            AppProtocol::Unknown as i32,
            AppProtocol::Http11 as i32,
            AppProtocol::Http2 as i32,
            AppProtocol::Grpc as i32,
            AppProtocol::Tcp as i32,
            AppProtocol::Tls as i32,
        ],
        [0, 1, 2, 3, 4, 5]
    );
    assert_eq!(
        [
            IpFamilies::Automatic as i32,
            IpFamilies::Ipv4Only as i32,
            IpFamilies::Ipv6Only as i32,
            IpFamilies::Dual as i32,
        ],
        [0, 1, 2, 3]
    );
    assert_eq!(
        [
            TunnelProtocol::None as i32,
            TunnelProtocol::Hbone as i32,
            TunnelProtocol::LegacyIstioMtls as i32,
        ],
        [0, 1, 2]
    );
    assert_eq!(
        [
            WorkloadType::Deployment as i32,
            WorkloadType::Cronjob as i32,
            WorkloadType::Pod as i32,
            WorkloadType::Job as i32,
        ],
        [0, 1, 2, 3]
    );
    assert_eq!(
        [
            Scope::UnspecifiedScope as i32,
            Scope::Region as i32,
            Scope::Zone as i32,
            Scope::Subzone as i32,
            Scope::Node as i32,
            Scope::Cluster as i32,
            Scope::Network as i32,
        ],
        [0, 1, 2, 3, 4, 5, 6]
    );
    assert_eq!(
        [
            Mode::UnspecifiedMode as i32,
            Mode::Strict as i32,
            Mode::Failover as i32,
            Mode::Passthrough as i32,
        ],
        [0, 1, 2, 3]
    );
}

#[test]
fn security_authorization() {
    let clause = security::Clause {
        matches: vec![security::Match {
            destination_ports: vec![80],
            ..Default::default()
        }],
    };
    check(
        security::Authorization {
            name: text("n"),
            namespace: text("s"),
            scope: security::Scope::WorkloadSelector.into(),
            action: security::Action::Deny.into(),
            rules: vec![security::Rule {
                clauses: vec![clause],
            }],
            dry_run: true,
            extensions: vec![extension()],
        },
        "0a 01 6e | 12 01 73 | 18 02 | 20 01 | 2a 07 0a 05 12 03 4a 01 50 | 30 01 |
         3a 03 0a 01 65",
    );
    assert_eq!(
        [
            security::Scope::Global as i32,
            security::Scope::Namespace as i32
        ],
        [0, 1]
    );
    assert_eq!(security::Action::Allow as i32, 0);
}

#[test]
fn security_match() {
    use security::string_match::MatchType;
    let one = |kind| {
        vec![security::StringMatch {
            match_type: Some(kind),
        }]
    };
    let range = || {
        vec![security::Address {
            address: Bytes::from_static(&[10, 0, 0, 0]),
            length: 8,
        }]
    };
    let account = || {
        vec![security::ServiceAccountMatch {
            namespace: text("s"),
            service_account: text("a"),
        }]
    };
    check(
        security::Match {
            namespaces: one(MatchType::Exact(text("a"))),
            not_namespaces: one(MatchType::Prefix(text("b"))),
            principals: one(MatchType::Suffix(text("c"))),
            not_principals: one(MatchType::Presence(())),
            source_ips: range(),
            not_source_ips: range(),
            destination_ips: range(),
            not_destination_ips: range(),
            destination_ports: vec![80],
            not_destination_ports: vec![443],
            service_accounts: account(),
            not_service_accounts: account(),
            extensions: vec![extension()],
        },
        "0a 03 0a 01 61 | 12 03 12 01 62 | 1a 03 1a 01 63 | 22 02 22 00 |
         2a 08 0a 04 0a 00 00 00 10 08 | 32 08 0a 04 0a 00 00 00 10 08 |
         3a 08 0a 04 0a 00 00 00 10 08 | 42 08 0a 04 0a 00 00 00 10 08 |
         4a 01 50 | 52 02 bb 03 | 5a 06 0a 01 73 12 01 61 | 62 06 0a 01 73 12 01 61 |
         6a 03 0a 01 65",
    );
}

#[test]
fn zds_messages() {
    use zds::workload_request::Payload;
    check(
        zds::ZdsHello {
            version: zds::Version::V1.into(),
            extensions: Vec::new(),
        },
        "08 01",
    );
    check(
        zds::ZdsHello {
            version: zds::Version::V1.into(),
            extensions: vec![zds::Extension::Release.into()],
        },
        "08 01 | ca 3e 01 01",
    );
    let request = |payload| zds::WorkloadRequest {
        payload: Some(payload),
    };
    check(
        request(Payload::Add(zds::AddWorkload {
            uid: text("u"),
            workload_info: Some(zds::WorkloadInfo {
                name: text("n"),
                namespace: text("s"),
                service_account: text("a"),
            }),
        })),
        "0a 0e 0a 01 75 12 09 0a 01 6e 12 01 73 1a 01 61",
    );
    check(
        request(Payload::Del(zds::DelWorkload { uid: text("u") })),
        "12 03 12 01 75",
    );
    check(
        request(Payload::SnapshotSent(zds::SnapshotSent {})),
        "1a 00",
    );
    check(
        request(Payload::Keep(zds::KeepWorkload { uid: text("u") })),
        "2a 03 0a 01 75",
    );
    check(
        request(Payload::Release(zds::ReleaseWorkload { uid: text("u") })),
        "ca 3e 03 0a 01 75",
    );
    let ack = |error: &str, release| zds::WorkloadResponse {
        payload: Some(zds::workload_response::Payload::Ack(zds::Ack {
            error: text(error),
            release,
        })),
    };
    check(ack("", None), "0a 00");
    check(ack("e", None), "0a 03 0a 01 65");
    let release = zds::Release {
        open: 2,
        plain: true,
    };
    check(ack("", Some(release)), "0a 07 ca 3e 04 08 02 10 01");
}

#[test]
fn handover_messages() {
    use handover::request::Kind;
    let request = |kind| handover::Request { kind: Some(kind) };
    let netns = || Some(handover::Netns { dev: 4, ino: 9 });
    let hello = handover::Hello {
        version: 1,
        pid: 7,
        build: text("b"),
        netns: netns(),
    };
    check(
        request(Kind::Hello(hello)),
        "0a 0d 08 01 10 07 1a 01 62 22 04 08 04 10 09",
    );
    let pod = handover::Pod {
        uid: text("u"),
        netns: netns(),
    };
    check(request(Kind::Pod(pod)), "12 09 0a 01 75 12 04 08 04 10 09");
    check(request(Kind::Operators(handover::Operators {})), "1a 00");
    check(request(Kind::Serving(handover::Serving {})), "22 00");
}

#[test]
fn ca_messages() {
    let value = prost_types::Value {
        kind: Some(prost_types::value::Kind::StringValue(text("v"))),
    };
    check(
        ca::IstioCertificateRequest {
            csr: text("c"),
            validity_duration: 86_400,
            metadata: Some(prost_types::Struct {
                fields: [(text("k"), value)].into(),
            }),
        },
        "0a 01 63 | 18 80 a3 05 | 22 0a 0a 08 0a 01 6b 12 03 1a 01 76",
    );
    check(
        ca::IstioCertificateResponse {
            cert_chain: vec![text("a"), text("b")],
        },
        "0a 01 61 | 0a 01 62",
    );
}

fn node() -> ads::Node {
    ads::Node {
        id: text("i"),
        ..Default::default()
    }
}

fn refusal() -> ads::Status {
    ads::Status {
        message: text("m"),
        ..Default::default()
    }
}

fn body() -> ads::ResourceBody {
    ads::ResourceBody {
        type_url: text("t"),
        value: Bytes::from_static(&[1]),
    }
}

#[test]
fn ads_node_and_status() {
    check(
        ads::Node {
            id: text("i"),
            cluster: text("c"),
            metadata: Some(prost_types::Struct::default()),
            build_version: text("b"),
        },
        "0a 01 69 | 12 01 63 | 1a 00 | 2a 01 62",
    );
    check(
        ads::Status {
            code: 3,
            message: text("m"),
            details: vec![any()],
        },
        "08 03 | 12 01 6d | 1a 06 0a 01 74 12 01 01",
    );
}

#[test]
fn ads_delta_messages() {
    check(
        ads::DeltaDiscoveryRequest {
            node: Some(node()),
            type_url: text("t"),
            resource_names_subscribe: vec![text("a")],
            resource_names_unsubscribe: vec![text("b")],
            initial_resource_versions: [(text("n"), text("v"))].into(),
            response_nonce: text("o"),
            error_detail: Some(refusal()),
        },
        "0a 03 0a 01 69 | 12 01 74 | 1a 01 61 | 22 01 62 | 2a 06 0a 01 6e 12 01 76 |
         32 01 6f | 3a 03 12 01 6d",
    );
    check(
        ads::DeltaDiscoveryResponse {
            system_version_info: text("v"),
            resources: vec![ads::Resource {
                version: text("v"),
                resource: Some(body()),
                name: text("n"),
                aliases: vec![text("l")],
                ttl: Some(prost_types::Duration {
                    seconds: 1,
                    nanos: 0,
                }),
                cache_control: Some(ads::resource::CacheControl { do_not_cache: true }),
            }],
            type_url: text("t"),
            nonce: text("o"),
            removed_resources: vec![text("r")],
        },
        "0a 01 76 | 12 19 0a 01 76 12 06 0a 01 74 12 01 01 1a 01 6e 22 01 6c 32 02 08 01
         3a 02 08 01 | 22 01 74 | 2a 01 6f | 32 01 72",
    );
}

#[test]
fn ads_state_of_the_world_messages() {
    check(
        ads::DiscoveryRequest {
            version_info: text("v"),
            node: Some(node()),
            resource_names: vec![text("a")],
            type_url: text("t"),
            response_nonce: text("o"),
            error_detail: Some(refusal()),
        },
        "0a 01 76 | 12 03 0a 01 69 | 1a 01 61 | 22 01 74 | 2a 01 6f | 32 03 12 01 6d",
    );
    check(
        ads::DiscoveryResponse {
            version_info: text("v"),
            resources: vec![body()],
            canary: true,
            type_url: text("t"),
            nonce: text("o"),
        },
        "0a 01 76 | 12 06 0a 01 74 12 01 01 | 18 01 | 22 01 74 | 2a 01 6f",
    );
}

#[test]
fn waypoint_rules_in_order() {
    let table = waypoint::RouteTable {
        in_order: true,
        ..Default::default()
    };
    check(table, "28 01");
    let path = waypoint::PathMatch {
        kind: Some(waypoint::path_match::Kind::Start(text("/a"))),
    };
    check(path, "22 02 2f 61");
    let header = waypoint::ValueMatch {
        name: text("a"),
        value: None,
        inverted: true,
    };
    check(header, "0a 01 61 20 01");
}

#[test]
fn waypoint_answers_of_rules_themselves() {
    use waypoint::fault::{Abort, Delay, abort::Status};
    let share = Some(waypoint::Share {
        numerator: 1,
        denominator: 2,
    });
    let rule = waypoint::HttpRule {
        fault: Some(waypoint::Fault {
            delay: Some(Delay {
                share,
                duration: Some(prost_types::Duration {
                    seconds: 3,
                    nanos: 0,
                }),
            }),
            abort: Some(Abort {
                share,
                status: Some(Status::Http(503)),
            }),
        }),
        direct_response: Some(waypoint::DirectResponse {
            status: 200,
            body: b"b".to_vec(),
        }),
        ..Default::default()
    };
    check(
        rule,
        "4a 17 0a 0a 0a 04 08 01 10 02 12 02 08 03 | 12 09 0a 04 08 01 10 02 10 f7 03 | \
         52 06 08 c8 01 12 01 62",
    );
    let abort = Abort {
        share: None,
        status: Some(Status::Grpc(14)),
    };
    check(abort, "18 0e");
    let regex = waypoint::RegexRewrite {
        pattern: text("p"),
        substitution: text("s"),
    };
    let path = waypoint::PathRewrite {
        kind: Some(waypoint::path_rewrite::Kind::Regex(regex)),
    };
    check(path, "1a 06 0a 01 70 12 01 73");
    let cors = waypoint::Cors {
        origin_patterns: vec![text("o")],
        forward_preflights: true,
        ..Default::default()
    };
    check(cors, "3a 01 6f 40 01");
}

#[test]
fn waypoint_traffic_policies() {
    use waypoint::hash_key::From;
    use waypoint::load_balancer::Choice;
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let cookie = waypoint::HashCookie {
        name: text("c"),
        path: text("p"),
        ttl: seconds(1),
    };
    let key = |from| waypoint::HashKey { from: Some(from) };
    let policy = waypoint::TrafficPolicy {
        load_balancer: Some(waypoint::LoadBalancer {
            choice: Some(Choice::Hash(key(From::Cookie(cookie)))),
            warmup: Some(waypoint::Warmup {
                duration: seconds(1),
                minimum_percent: 5,
            }),
            locality: None,
        }),
        outlier_detection: Some(waypoint::OutlierDetection {
            consecutive_5xx: 1,
            consecutive_gateway: 2,
            base_ejection: seconds(3),
            max_percent: 4,
            min_health_percent: 5,
            interval: seconds(6),
        }),
        limits: Some(waypoint::ConnectionLimits {
            connections: 1,
            pending: 2,
            requests: 3,
            retries: 4,
            requests_per_connection: 5,
            connect_timeout: seconds(6),
            idle_timeout: seconds(7),
        }),
        retry_budget: Some(waypoint::RetryBudget {
            percent: 1,
            least: 2,
        }),
        members: Some(waypoint::Members {
            name: text("m"),
            workloads: vec![text("w")],
        }),
        tls: None,
    };
    let destination = waypoint::Destination {
        port: 80,
        traffic_policy: Some(policy.into()),
        ..Default::default()
    };
    check(
        destination,
        "18 50 | 2a 4c \
         0a 16 12 0c 12 0a 0a 01 63 12 01 70 1a 02 08 01 1a 06 0a 02 08 01 10 05 | \
         12 10 08 01 10 02 1a 02 08 03 20 04 28 05 32 02 08 06 | \
         1a 12 08 01 10 02 18 03 20 04 28 05 32 02 08 06 3a 02 08 07 | \
         22 04 08 01 10 02 | 2a 06 0a 01 6d 12 01 77",
    );
    let balancer = |choice| waypoint::LoadBalancer {
        choice: Some(choice),
        warmup: None,
        locality: None,
    };
    let least = waypoint::load_balancer::Simple::LeastRequest;
    check(balancer(Choice::Simple(least.into())), "08 01");
    check(key(From::Header(text("h"))), "0a 01 68");
    check(key(From::Query(text("q"))), "1a 01 71");
    check(key(From::SourceIp(())), "22 00");
    let port = waypoint::Port {
        number: 80,
        traffic_policy: Some(Box::default()),
        ..Default::default()
    };
    check(port, "08 50 22 00");
}

#[test]
fn waypoint_localities_and_tls() {
    use waypoint::locality_preference as of;
    let locality = waypoint::LocalityPreference {
        distribute: vec![of::Distribution {
            from: text("a"),
            to: vec![of::Share {
                to: text("b"),
                weight: 7,
            }],
        }],
        scopes: vec![of::Scope::Region.into(), of::Scope::Node.into()],
        failover: vec![of::Failover {
            from: text("c"),
            to: text("d"),
        }],
    };
    let balancer = waypoint::LoadBalancer {
        locality: Some(locality),
        ..Default::default()
    };
    check(
        balancer,
        "22 18 | 0a 0a 0a 01 61 12 05 0a 01 62 10 07 | 12 02 03 06 | 1a 06 0a 01 63 12 01 64",
    );
    let policy = waypoint::TrafficPolicy {
        tls: Some(waypoint::Tls {
            server_name: text("s"),
            subject_alt_names: vec![text("n")],
            authorities: text("a"),
            certificate: Some(waypoint::ClientCertificate {
                chain: text("c"),
                key: text("k"),
                namespace: text("w"),
            }),
            given_authorities: text("p"),
        }),
        ..Default::default()
    };
    check(
        policy,
        "32 17 | 0a 01 73 12 01 6e 1a 01 61 22 09 0a 01 63 12 01 6b 1a 01 77 2a 01 70",
    );
}

#[test]
fn waypoint_settings_and_policies() {
    let rule = |clauses| waypoint::PolicyRule { index: 7, clauses };
    check(
        waypoint::Waypoint {
            namespace: text("n"),
            name: text("w"),
            policies: vec![waypoint::Policy {
                namespace: text("n"),
                name: text("p"),
                action: waypoint::PolicyAction::Deny.into(),
                dry_run: true,
                rules: vec![rule(vec![])],
                authorizer: text("a"),
            }],
            path_normalization: waypoint::PathNormalization::MergeSlashes.into(),
            trusted_hops: 3,
            trust_domains: vec![text("t")],
            authorizers: vec![waypoint::Authorizer {
                name: text("a"),
                invalid: text("x"),
                ..Default::default()
            }],
            explain: true,
            telemetry: None,
            token_rules: vec![waypoint::TokenRule {
                of: text("o"),
                issuer: text("i"),
                audiences: vec![text("a")],
                keys: text("k"),
                no_keys: text("n"),
                headers: vec![waypoint::TokenHeader {
                    name: text("h"),
                    prefix: text("p"),
                }],
                params: vec![text("q")],
                cookies: vec![text("c")],
                forward: true,
                payload_header: text("y"),
                claim_headers: vec![waypoint::ClaimHeader {
                    header: text("h"),
                    claim: text("c"),
                }],
                space_delimited: vec![text("s")],
            }],
            closures: vec![waypoint::Closure {
                why: text("w"),
                ports: vec![80],
                requests_only: true,
            }],
        },
        "0a 01 6e | 12 01 77 | 1a 11 0a 01 6e 12 01 70 18 01 20 01 2a 02 08 07 32 01 61 |
         20 02 | 28 03 | 32 01 74 | 3a 06 0a 01 61 12 01 78 | 40 01 |
         4a 2d 0a 01 6f 12 01 69 1a 01 61 22 01 6b 2a 01 6e 32 06 0a 01 68 12 01 70 3a 01 71 42 01 63 48 01
         52 01 79 5a 06 0a 01 68 12 01 63 62 01 73 |
         52 08 0a 01 77 12 01 50 18 01",
    );
    let condition = waypoint::Condition {
        attribute: waypoint::Attribute::SourcePrincipal.into(),
        ..Default::default()
    };
    let matching = waypoint::PolicyMatch {
        conditions: vec![condition],
    };
    let clause = waypoint::PolicyClause {
        matches: vec![matching],
    };
    check(rule(vec![clause]), "08 07 | 12 06 0a 04 0a 02 08 01");
}

#[test]
fn waypoint_authorizers() {
    use waypoint::authorizer::Protocol;
    use waypoint::pattern::Kind;
    let pattern = |name: &str| waypoint::Pattern {
        kind: Some(Kind::Exact(text(name))),
    };
    check(
        waypoint::Authorizer {
            name: text("a"),
            invalid: String::new(),
            namespace: text("n"),
            hostname: text("h"),
            port: 9000,
            timeout: Some(prost_types::Duration {
                seconds: 2,
                nanos: 0,
            }),
            fail_open: true,
            status_on_error: 503,
            body: Some(waypoint::AuthorizerBody {
                max_bytes: 5,
                allow_partial: true,
                as_bytes: true,
            }),
            protocol: Some(Protocol::Http(waypoint::HttpAuthorizer {
                path_prefix: text("/p"),
                request_headers: vec![pattern("q")],
                added_headers: vec![waypoint::AddedHeader {
                    name: text("k"),
                    value: text("v"),
                }],
                upstream_on_allow: vec![pattern("u")],
                downstream_on_deny: vec![pattern("d")],
                downstream_on_allow: vec![pattern("c")],
            })),
        },
        "0a 01 61 | 1a 01 6e | 22 01 68 | 28 a8 46 | 32 02 08 02 | 38 01 | 40 f7 03 |
         4a 06 08 05 10 01 18 01 |
         5a 20 0a 02 2f 70 12 03 0a 01 71 1a 06 0a 01 6b 12 01 76 22 03 0a 01 75 2a 03 0a 01 64 32 03 0a 01 63",
    );
    let grpc = waypoint::Authorizer {
        protocol: Some(Protocol::Grpc(())),
        ..Default::default()
    };
    check(grpc, "52 00");
}

#[test]
fn questions_to_an_authorizer_and_their_answers() {
    use auth::attribute_context::{HttpRequest, Peer, Request};
    use auth::check_response::HttpResponse;
    use auth::{address, socket_address};
    let socket = auth::SocketAddress {
        address: text("a"),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(80)),
    };
    let peer = Peer {
        address: Some(auth::Address {
            address: Some(address::Address::SocketAddress(socket)),
        }),
        service: text("s"),
        labels: [(text("k"), text("v"))].into(),
        principal: text("p"),
    };
    let http = HttpRequest {
        id: text("i"),
        method: text("M"),
        headers: [(text("k"), text("v"))].into(),
        path: text("/"),
        host: text("h"),
        scheme: text("s"),
        size: 3,
        protocol: text("p"),
        body: text("b"),
        raw_body: vec![1],
    };
    check(
        auth::CheckRequest {
            attributes: Some(auth::AttributeContext {
                source: Some(peer),
                destination: Some(Peer::default()),
                request: Some(Request {
                    time: Some(prost_types::Timestamp {
                        seconds: 1,
                        nanos: 0,
                    }),
                    http: Some(http),
                }),
            }),
        },
        "0a 45 | 0a 17 0a 07 0a 05 12 01 61 18 50 12 01 73 1a 06 0a 01 6b 12 01 76 22 01 70 | 12 00 |
         22 28 0a 02 08 01 12 22 0a 01 69 12 01 4d 1a 06 0a 01 6b 12 01 76 22 01 2f 2a 01 68 32 01 73 48 03
         52 01 70 5a 01 62 62 01 01",
    );
    let option = |append| auth::HeaderValueOption {
        header: Some(auth::HeaderValue {
            key: text("k"),
            value: text("v"),
            raw_value: vec![1],
        }),
        append,
        append_action: 3,
        keep_empty_value: true,
    };
    check(
        option(Some(true)),
        "0a 09 0a 01 6b 12 01 76 1a 01 01 | 12 02 08 01 | 18 03 | 20 01",
    );
    let response = |code, http_response| auth::CheckResponse {
        status: Some(auth::Status {
            code,
            message: text("m"),
        }),
        http_response: Some(http_response),
    };
    let plain = || auth::HeaderValueOption::default();
    check(
        response(
            7,
            HttpResponse::DeniedResponse(auth::DeniedHttpResponse {
                status: Some(auth::HttpStatus { code: 401 }),
                headers: vec![plain()],
                body: text("b"),
            }),
        ),
        "0a 05 08 07 12 01 6d | 12 0a 0a 03 08 91 03 12 00 1a 01 62",
    );
    check(
        response(
            0,
            HttpResponse::OkResponse(auth::OkHttpResponse {
                headers: vec![plain()],
                headers_to_remove: vec![text("r")],
                response_headers_to_add: vec![plain()],
                query_parameters_to_set: vec![auth::QueryParameter {
                    key: text("k"),
                    value: text("v"),
                }],
                query_parameters_to_remove: vec![text("q")],
            }),
        ),
        "0a 03 12 01 6d | 1a 12 12 00 2a 01 72 32 00 3a 06 0a 01 6b 12 01 76 42 01 71",
    );
}

#[test]
fn waypoint_conditions() {
    use waypoint::Attribute;
    use waypoint::pattern::Kind;
    let pattern = |kind| waypoint::Pattern { kind: Some(kind) };
    check(
        waypoint::Condition {
            attribute: Attribute::RequestHeader.into(),
            key: vec![text("k")],
            negated: true,
            patterns: vec![
                pattern(Kind::Exact(text("a"))),
                pattern(Kind::Prefix(text("b"))),
                pattern(Kind::Suffix(text("c"))),
                pattern(Kind::Present(())),
                pattern(Kind::Template(text("d"))),
            ],
            blocks: vec![waypoint::IpBlock {
                address: vec![10, 0, 0, 0],
                length: 8,
            }],
            ports: vec![80],
            request_principals: vec![waypoint::RequestPrincipal {
                issuer: Some(pattern(Kind::Exact(text("i")))),
                subject: Some(pattern(Kind::Exact(text("s")))),
            }],
        },
        "08 0c | 12 01 6b | 18 01 | 22 03 0a 01 61 | 22 03 12 01 62 | 22 03 1a 01 63 | 22 02 22 00 |
         22 03 2a 01 64 | 2a 08 0a 04 0a 00 00 00 10 08 | 32 01 50 |
         3a 0a 0a 03 0a 01 69 12 03 0a 01 73",
    );
    // The order is part of the contract: what is of requests comes last.
    assert_eq!(Attribute::DestinationPort as i32, 8);
    assert_eq!(Attribute::Host as i32, 9);
    assert_eq!(Attribute::Claim as i32, 16);
    assert_eq!(Attribute::ServerName as i32, 17);
    let actions = [
        waypoint::PolicyAction::Allow as i32,
        waypoint::PolicyAction::Audit as i32,
        waypoint::PolicyAction::Custom as i32,
    ];
    assert_eq!(actions, [0, 2, 3]);
}

#[test]
fn telemetry_on_its_way_to_collectors() {
    use proto::opentelemetry::proto::{collector, common, logs, resource, trace};
    let attribute = |value| common::v1::KeyValue {
        key: text("k"),
        value: Some(common::v1::AnyValue { value: Some(value) }),
    };
    let resource = Some(resource::v1::Resource {
        attributes: vec![attribute(common::v1::any_value::Value::StringValue(text(
            "v",
        )))],
    });
    let span = trace::v1::Span {
        trace_id: vec![1],
        span_id: vec![2],
        parent_span_id: vec![3],
        name: text("n"),
        kind: trace::v1::span::SpanKind::Server.into(),
        start_time_unix_nano: 1,
        end_time_unix_nano: 2,
        attributes: vec![attribute(common::v1::any_value::Value::IntValue(5))],
        status: Some(trace::v1::Status {
            message: text("m"),
            code: trace::v1::status::StatusCode::Error.into(),
        }),
    };
    check(
        collector::trace::v1::ExportTraceServiceRequest {
            resource_spans: vec![trace::v1::ResourceSpans {
                resource: resource.clone(),
                scope_spans: vec![trace::v1::ScopeSpans { spans: vec![span] }],
            }],
        },
        "0a400a0a0a080a016b12030a0176123212300a01011201022201032a016e30023901000000000000004102000000000000004a070a016b120218057a0512016d1802",
    );
    let record = logs::v1::LogRecord {
        time_unix_nano: 1,
        body: Some(common::v1::AnyValue {
            value: Some(common::v1::any_value::Value::BoolValue(true)),
        }),
        attributes: vec![attribute(common::v1::any_value::Value::DoubleValue(1.0))],
        trace_id: vec![1],
        span_id: vec![2],
    };
    check(
        collector::logs::v1::ExportLogsServiceRequest {
            resource_logs: vec![logs::v1::ResourceLogs {
                resource,
                scope_logs: vec![logs::v1::ScopeLogs {
                    log_records: vec![record],
                }],
            }],
        },
        "0a330a0a0a080a016b12030a0176122512230901000000000000002a021001320e0a016b120921000000000000f03f4a0101520102",
    );
}

#[test]
fn waypoint_telemetry() {
    use waypoint::{Known, Operation, access_log::Format, custom_tag, expression::Kind};
    let expression = |kind| waypoint::Expression { kind: Some(kind) };
    let call = waypoint::Call {
        operation: Operation::Equal.into(),
        arguments: vec![
            expression(Kind::Operand(waypoint::Operand {
                known: Known::AnyRequestHeader.into(),
                key: text("h"),
            })),
            expression(Kind::Number(1.0)),
            expression(Kind::Text(text("t"))),
            expression(Kind::Truth(true)),
        ],
    };
    let log = |format| waypoint::AccessLog {
        format: Some(format),
        ..Default::default()
    };
    let fields = BTreeMap::from([(text("k"), text("v"))]);
    let tag = |name: &str, value| waypoint::CustomTag {
        name: text(name),
        value: Some(value),
    };
    check(
        waypoint::Telemetry {
            access_logs: Some(waypoint::AccessLogs {
                each: vec![
                    waypoint::AccessLog {
                        filter: Some(expression(Kind::Call(call))),
                        collector: Some(waypoint::Collector {
                            namespace: text("n"),
                            hostname: text("h"),
                            port: 1,
                        }),
                        attributes: fields.clone(),
                        ..log(Format::Text(text("f")))
                    },
                    log(Format::Json(waypoint::JsonFormat { fields })),
                    log(Format::Own(())),
                ],
            }),
            tracing: Some(waypoint::Tracing {
                collector: Some(waypoint::Collector {
                    namespace: text(""),
                    hostname: text("h"),
                    port: 1,
                }),
                sampled_per_million: 2,
                disable_reporting: true,
                b3: true,
                no_mesh_tags: true,
                no_propagation: true,
                tags: vec![
                    tag("a", custom_tag::Value::Literal(text("l"))),
                    tag(
                        "b",
                        custom_tag::Value::Header(waypoint::HeaderTag {
                            name: text("h"),
                            default_value: text("d"),
                        }),
                    ),
                ],
            }),
            metrics: vec![waypoint::MetricOverride {
                metric: text("m"),
                disabled: Some(false),
                removed_tags: vec![text("t")],
                tags: [(text("u"), expression(Kind::Text(text("x"))))].into(),
            }],
        },
        "0a4a0a380a212a1f080412070a050815120168120919000000000000f03f1203120174120220011a01662a080a016e120168180132060a016b1201760a0a22080a060a016b1201760a02120012260a0512016818011002180120012a060a016112016c2a0b0a01621a060a0168120164300138011a120a016d10001a017422080a01751203120178",
    );
}

#[test]
fn waypoint_rate_limits() {
    let limit = waypoint::RateLimit {
        requests: 5,
        per: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        burst: 9,
        by: Some(waypoint::rate_limit::By::Header(text("h"))),
    };
    let route = waypoint::HttpRoute {
        rate_limit: Some(limit),
        ..Default::default()
    };
    check(route, "320b08051202080118092a0168");
}

#[test]
fn connection_logs() {
    let logs = telemetry::Logs {
        own_line: true,
        collectors: vec![waypoint::Collector {
            hostname: text("h"),
            port: 1,
            ..Default::default()
        }],
    };
    check(
        telemetry::ConnectionLogs {
            namespace: text("n"),
            everywhere: true,
            sent: Some(logs),
            taken: Some(telemetry::Logs::default()),
        },
        "0a016e | 1001 | 1a09 0801 1205 1201681801 | 2200",
    );
}
