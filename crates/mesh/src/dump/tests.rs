// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::*;
use crate::local::LocalConfig;

/// The `key` part of the dump of a mesh that is written as a local file.
#[track_caller]
fn check(file: &str, key: &str, expected: &Value) {
    let mut store = Store::new(None);
    LocalConfig::parse(file).unwrap().load_into(&mut store);
    let dump = serde_json::to_value(Dump::of(&store)).unwrap();
    assert_eq!(&dump[key], expected);
}

#[test]
fn an_empty_store_has_all_four_keys() {
    let dump = serde_json::to_value(Dump::of(&Store::new(None))).unwrap();
    let expected = json!({"workloads": [], "services": [], "policies": [], "stagedServices": {}});
    assert_eq!(dump, expected);
}

#[test]
fn a_plain_workload_leaves_defaults_out() {
    check(
        "workloads: [{uid: u, name: a, namespace: shop, workloadIps: [10.0.0.1], services: {}}]",
        "workloads",
        &json!([{
            "workloadIps": ["10.0.0.1"],
            "protocol": "TCP",
            "networkMode": "Standard",
            "uid": "u",
            "name": "a",
            "namespace": "shop",
            "trustDomain": "cluster.local",
            "serviceAccount": "default",
            "workloadType": "deployment",
            "status": "Healthy",
            "clusterId": "Kubernetes",
            "capacity": 1,
        }]),
    );
}

#[test]
fn a_full_workload_is_written_in_full() {
    check(
        "
        workloads:
        - workloadIps: [10.0.0.1, 'fd00::1']
          waypoint: {destination: shop/wp.shop, hboneMtlsPort: 15008}
          networkGateway: {destination: net/10.9.0.1, hboneMtlsPort: 15009}
          protocol: HBONE
          networkMode: HostNetwork
          uid: u
          name: a
          namespace: shop
          trustDomain: td
          serviceAccount: cart
          network: net
          workloadName: a
          workloadType: cronjob
          canonicalName: a
          canonicalRevision: v1
          hostname: a.example.com
          node: n1
          nativeTunnel: true
          applicationTunnel: {protocol: PROXY, port: 15088}
          authorizationPolicies: [shop/p]
          status: Unhealthy
          clusterId: c1
          locality: {region: r, zone: z, subzone: s}
          services: {shop/cart: {80: 8080}}
          capacity: 0
        ",
        "workloads",
        &json!([{
            "workloadIps": ["10.0.0.1", "fd00::1"],
            "waypoint": {"destination": "shop/wp.shop", "hboneMtlsPort": 15008},
            "networkGateway": {"destination": "net/10.9.0.1", "hboneMtlsPort": 15009},
            "protocol": "HBONE",
            "networkMode": "HostNetwork",
            "uid": "u",
            "name": "a",
            "namespace": "shop",
            "trustDomain": "td",
            "serviceAccount": "cart",
            "network": "net",
            "workloadName": "a",
            "workloadType": "cronjob",
            "canonicalName": "a",
            "canonicalRevision": "v1",
            "hostname": "a.example.com",
            "node": "n1",
            "nativeTunnel": true,
            "applicationTunnel": {"protocol": "PROXY", "port": 15088},
            "authorizationPolicies": ["shop/p"],
            "status": "Unhealthy",
            "clusterId": "c1",
            "locality": {"region": "r", "zone": "z", "subzone": "s"},
            "services": ["shop/cart"],
            "capacity": 0,
        }]),
    );
}

#[test]
fn a_service_is_written_with_its_endpoints() {
    check(
        "
        workloads:
        - {uid: u, name: a, namespace: shop, workloadIps: [10.0.0.1], services: {shop/cart: {80: 8080}}}
        services:
        - name: cart
          namespace: shop
          hostname: cart
          vips: [/10.96.0.1, net/10.96.0.1]
          cidrVips: [{network: net, cidr: 10.97.0.0/16}]
          ports: {80: 8080}
          subjectAltNames: ['spiffe://td/ns/a/sa/b']
          waypoint: {destination: net/10.9.0.1, hboneMtlsPort: 15008}
          weightedWaypoints: [{destination: {destination: shop/wp, hboneMtlsPort: 15008}, weight: 2}]
          loadBalancer: {routingPreferences: [Network, Region], mode: Failover, healthPolicy: OnlyHealthy}
          ipFamilies: IPv4
          canonical: true
          visibility: Namespace
        - {name: plain, namespace: shop, hostname: plain, vips: [], ports: {}}
        ",
        "services",
        &json!([
            {
                "name": "cart",
                "namespace": "shop",
                "hostname": "cart",
                "vips": ["/10.96.0.1", "net/10.96.0.1"],
                "cidrVips": [{"network": "net", "cidr": "10.97.0.0/16"}],
                "ports": {"80": 8080},
                "endpoints": {
                    "u": {"workloadUid": "u", "port": {"80": 8080}, "status": "Healthy"},
                },
                "subjectAltNames": ["spiffe://td/ns/a/sa/b"],
                "waypoint": {"destination": "net/10.9.0.1", "hboneMtlsPort": 15008},
                "weightedWaypoints": [{
                    "destination": {"destination": "shop/wp", "hboneMtlsPort": 15008},
                    "weight": 2,
                }],
                "loadBalancer": {
                    "routingPreferences": ["Network", "Region"],
                    "mode": "Failover",
                    "healthPolicy": "OnlyHealthy",
                },
                "ipFamilies": "IPv4",
                "canonical": true,
                "visibility": "Namespace",
            },
            {
                "name": "plain",
                "namespace": "shop",
                "hostname": "plain",
                "vips": [],
                "ports": {},
                "endpoints": {},
                "visibility": "Public",
            },
        ]),
    );
}

#[test]
fn endpoints_of_unknown_services_are_staged() {
    check(
        "workloads: [{uid: u, namespace: shop, workloadIps: [10.0.0.1], services: {shop/cart: {80: 8080}}}]",
        "stagedServices",
        &json!({
            "shop/cart": {
                "u": {"workloadUid": "u", "port": {"80": 8080}, "status": "Healthy"},
            },
        }),
    );
}

#[test]
fn a_policy_is_written_with_its_rules() {
    check(
        "
        policies:
        - name: p
          namespace: shop
          scope: WorkloadSelector
          action: Deny
          dryRun: true
          rules:
          - - - namespaces: [!Exact a, !Prefix b, !Suffix c, !Presence []]
                notServiceAccounts: [{namespace: shop, serviceAccount: web}]
                sourceIps: [10.0.0.0/8]
                destinationPorts: [80]
        ",
        "policies",
        &json!([{
            "name": "p",
            "namespace": "shop",
            "scope": "WorkloadSelector",
            "action": "Deny",
            "rules": [[[{
                "namespaces": [{"Exact": "a"}, {"Prefix": "b"}, {"Suffix": "c"}, {"Presence": []}],
                "notServiceAccounts": [{"namespace": "shop", "serviceAccount": "web"}],
                "sourceIps": ["10.0.0.0/8"],
                "destinationPorts": [80],
            }]]],
            "dryRun": true,
        }]),
    );
}

#[test]
fn a_value_that_could_not_be_read_is_shown_as_such() {
    let unreadable = Values::<u16>::from_iter([Ok(80), Err(Unparsable("port 70000".into()))]);
    let shown = serde_json::to_value(unreadable).unwrap();
    assert_eq!(shown, json!([80, {"Unparsable": "port 70000"}]));
}
