// SPDX-License-Identifier: Apache-2.0

use time::macros::datetime;

use super::*;

fn dump() -> Value {
    json!({
        "workloads": [
            {
                "uid": "c//Pod/shop/web", "name": "web", "namespace": "shop", "node": "node-a", "protocol": "HBONE",
                "workloadIps": ["10.1.0.5"], "waypoint": {"destination": "shop/wp.shop.svc.cluster.local", "hboneMtlsPort": 15008},
            },
            {"uid": "h", "name": "far", "namespace": "infra", "protocol": "TCP", "workloadIps": []},
        ],
        "services": {"shop/web": {
            "name": "web", "namespace": "shop", "vips": ["/10.96.0.7"], "waypoint": {"destination": "/10.96.0.9"},
            "endpoints": {"a": {"status": "Healthy"}, "b": {"status": "Unhealthy"}, "c": {}},
        }},
        "policies": [{"name": "deny", "namespace": "shop", "action": "Deny", "scope": "Namespace", "rules": []}],
        "certificates": [
            {
                "identity": "spiffe://cluster.local/ns/shop/sa/web", "state": "Available",
                "certChain": [
                    {"serialNumber": "1", "validFrom": "2026-01-01T00:00:00Z", "expirationTime": "2026-01-02T00:00:00Z"},
                    {"serialNumber": "2", "validFrom": "2026-01-01T00:00:00Z", "expirationTime": "2026-01-01T06:00:00Z"},
                ],
                "rootCerts": [{"serialNumber": "3", "validFrom": "2026-01-01T12:00:00Z", "expirationTime": "2036-01-01T00:00:00Z"}],
            },
            {"identity": "spiffe://cluster.local/ns/infra/sa/x", "state": "Unavailable: refused", "certChain": [], "rootCerts": []},
        ],
        "workloadState": {"u1": {
            "info": {"name": "web", "namespace": "shop"}, "state": "Up",
            "connections": {
                "inbound": [{"src": "10.1.0.5:41000", "originalDst": null, "actualDst": "10.1.0.5:8080", "protocol": "HBONE"}],
                "outbound": [{"src": "10.1.0.5:41000", "originalDst": "web.shop:80", "actualDst": "10.2.0.1:15008", "protocol": "HBONE"}],
            },
        }},
    })
}

/// The table, of two ztunnels that believe the same.
fn check(what: What, namespace: Option<&str>, expected: &str) {
    let mut listing = list(what, &[dump()], datetime!(2026-01-01 06:00 UTC));
    listing.retain(namespace);
    assert_eq!(listing.table(), expected);
    let lines = expected.lines().count() - 1;
    assert_eq!(listing.json().as_array().unwrap().len(), lines);
}

#[test]
fn each_listing_has_the_columns_that_people_know() {
    check(
        What::Workloads,
        None,
        "NAMESPACE  POD NAME  ADDRESS   NODE    WAYPOINT  PROTOCOL\n\
         infra      far                         None      TCP\n\
         shop       web       10.1.0.5  node-a  wp        HBONE\n",
    );
    check(
        What::Services,
        None,
        "NAMESPACE  SERVICE NAME  SERVICE VIP  WAYPOINT   ENDPOINTS\n\
         shop       web           10.96.0.7    10.96.0.9  2/3\n",
    );
    check(
        What::Policies,
        Some("shop"),
        "NAMESPACE  POLICY NAME  ACTION  SCOPE\nshop       deny         Deny    Namespace\n",
    );
    check(
        What::Connections,
        None,
        "WORKLOAD  DIRECTION  LOCAL           REMOTE          REMOTE TARGET  PROTOCOL\n\
         web.shop  Inbound    web.shop:8080   web.shop:41000                 HBONE\n\
         web.shop  Outbound   web.shop:41000  10.2.0.1:15008  web.shop:80    HBONE\n",
    );
}

#[test]
fn a_certificate_is_valid_from_its_first_moment_until_before_its_last() {
    check(
        What::Certificates,
        Some("shop"),
        "CERTIFICATE NAME                       TYPE          STATUS     VALID CERT  SERIAL NUMBER  NOT AFTER             NOT BEFORE\n\
         spiffe://cluster.local/ns/shop/sa/web  Leaf          Available  true        1              2026-01-02T00:00:00Z  2026-01-01T00:00:00Z\n\
         spiffe://cluster.local/ns/shop/sa/web  Intermediate  Available  false       2              2026-01-01T06:00:00Z  2026-01-01T00:00:00Z\n\
         spiffe://cluster.local/ns/shop/sa/web  Root          Available  false       3              2036-01-01T00:00:00Z  2026-01-01T12:00:00Z\n",
    );
    let all = list(
        What::Certificates,
        &[dump()],
        datetime!(2026-01-01 06:00 UTC),
    );
    assert!(all.table().contains("Unavailable: refused"));
}

#[test]
fn what_several_ztunnels_believe_of_the_mesh_is_listed_once_and_what_is_their_own_is_not() {
    let count = |what| {
        let two = list(what, &[dump(), dump()], datetime!(2026-01-01 06:00 UTC));
        two.json().as_array().unwrap().len()
    };
    assert_eq!((count(What::Workloads), count(What::Services)), (2, 1));
    assert_eq!(
        (count(What::Certificates), count(What::Connections)),
        (8, 4)
    );
}

#[test]
fn a_ztunnel_that_knows_nothing_yet_has_empty_lists() {
    let listing = list(
        What::Workloads,
        &[json!({})],
        datetime!(2026-01-01 06:00 UTC),
    );
    assert_eq!(listing.table().lines().count(), 1);
    assert_eq!(listing.json(), json!([]));
}
