// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::*;

fn entry(object: Value) -> Read<Option<ServiceEntry>> {
    let entry: kinds::ServiceEntry = serde_json::from_value(object).expect("an entry");
    read(&entry)
}

/// An entry that is read, with the fields that were found wanting.
fn check(spec: Value, fields: &[&str]) -> ServiceEntry {
    let read = entry(json!({"metadata": {"name": "e"}, "spec": spec}));
    let said: Vec<_> = read.problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(said, fields);
    read.facts.expect("it is a service")
}

#[test]
fn addresses_may_be_ranges_and_lose_what_is_beyond_their_prefix() {
    let entry = check(
        json!({"hosts": ["a"], "addresses": ["192.0.2.1", "198.51.100.7/24", "2001:db8::1/128"]}),
        &[],
    );
    let vips: Vec<_> = entry.vips.iter().map(ToString::to_string).collect();
    assert_eq!(vips, ["192.0.2.1/32", "198.51.100.0/24", "2001:db8::1/128"]);
}

#[test]
fn one_unreadable_address_leaves_the_whole_entry_out() {
    let read = entry(json!({"spec": {"hosts": ["a"], "addresses": ["192.0.2.1", "192.0.2.1/33"]}}));
    assert_eq!(read.facts, None);
    assert_eq!(read.problems[0].field, "spec.addresses[1]");
}

#[test]
fn hosts_are_kept_in_lower_case_and_bad_ones_left_out() {
    let entry = check(
        json!({"hosts": ["API.example.com", "*.example.com", "a b", "api.example.com", "*x"]}),
        &["spec.hosts[2]", "spec.hosts[4]"],
    );
    let hosts: Vec<_> = entry.hosts.iter().map(|host| &**host).collect();
    assert_eq!(hosts, ["api.example.com", "*.example.com"]);
    check(json!({}), &["spec.hosts"]);
}

#[test]
fn ports_are_numbers_that_stand_there_once() {
    let entry = check(
        json!({"hosts": ["a"], "ports": [
            {"number": 80, "name": "http", "protocol": "HTTP", "targetPort": 8080},
            {"number": 443, "protocol": "https"},
            {"number": 0}, {"number": 81, "targetPort": 65536}, {"number": 80}]}),
        &[
            "spec.ports[2].number",
            "spec.ports[3].targetPort",
            "spec.ports[4].number",
        ],
    );
    let ports: Vec<_> = entry
        .ports
        .iter()
        .map(|p| (p.port, p.target.clone(), p.protocol))
        .collect();
    assert_eq!(
        ports,
        [
            (80, TargetPort::Number(8080), AppProtocol::Http11),
            (443, TargetPort::Number(443), AppProtocol::Tls),
        ]
    );
}

#[test]
fn of_two_endpoints_with_one_address_the_first_counts() {
    let entry = check(
        json!({"hosts": ["a"], "resolution": "STATIC", "endpoints": [
            {"address": "192.0.2.1", "weight": 3}, {"address": "192.0.2.1"}, {"address": "?"},
            {"address": "192.0.2.1"}]}),
        &[
            "spec.endpoints[1].address",
            "spec.endpoints[2].address",
            "spec.endpoints[3].address",
        ],
    );
    assert_eq!(entry.endpoints.len(), 1);
    assert_eq!(entry.endpoints[0].capacity, Some(3));
}

#[test]
fn only_hosts_that_are_resolved_by_name_and_have_nothing_else_are_endpoints() {
    let are = |resolution: &str, more: Value| {
        let mut spec = json!({"hosts": ["a"], "resolution": resolution});
        spec.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        check(spec, &[]).hosts_are_endpoints()
    };
    for resolution in ["DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS"] {
        assert!(are(resolution, json!({})));
    }
    assert!(!are("STATIC", json!({})));
    assert!(!are("NONE", json!({})));
    assert!(!are(
        "DNS",
        json!({"endpoints": [{"address": "192.0.2.1"}]})
    ));
    assert!(!are(
        "DNS",
        json!({"workloadSelector": {"labels": {"app": "a"}}})
    ));
}

#[test]
fn addresses_are_allocated_where_there_are_none_and_they_would_be_of_use() {
    let hosts = |object: Value| -> Vec<String> {
        let facts = entry(object).facts.expect("a service");
        facts.hosts_to_address().map(ToString::to_string).collect()
    };
    let both = json!(["a.example.com", "*.example.com"]);
    let spec = |resolution: &str| json!({"hosts": both, "resolution": resolution});
    assert_eq!(hosts(json!({ "spec": spec("STATIC") })), ["a.example.com"]);
    assert_eq!(hosts(json!({ "spec": spec("DNS") })), ["a.example.com"]);
    assert_eq!(
        hosts(json!({ "spec": spec("DYNAMIC_DNS") })),
        ["a.example.com", "*.example.com"]
    );
    assert!(hosts(json!({ "spec": spec("NONE") })).is_empty());
    let mut addressed = spec("STATIC");
    addressed["addresses"] = json!(["192.0.2.1"]);
    assert!(hosts(json!({ "spec": addressed })).is_empty());
    let declined = json!({"labels": {"networking.istio.io/enable-autoallocate-ip": "false"}});
    assert!(hosts(json!({"metadata": declined, "spec": spec("STATIC")})).is_empty());
}

#[test]
fn given_addresses_are_read_back_from_the_status() {
    let read = entry(json!({
        "spec": {"hosts": ["a"]},
        "status": {"addresses": [{"value": "240.240.0.1", "host": "A"}, {"value": "x", "host": "a"}]},
    }));
    assert_eq!(read.problems[0].field, "status.addresses[1].value");
    let allocated = read.facts.expect("a service").allocated;
    assert_eq!(
        allocated,
        [("a".into(), "240.240.0.1".parse().expect("an address"))]
    );
}
