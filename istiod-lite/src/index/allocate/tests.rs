// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;
use crate::facts::service_entry;

fn name(name: &str) -> NamespacedName {
    NamespacedName::new("ns", name)
}

/// An entry of one host, made at that second, with what its status holds.
fn entry(host: &str, created: u32, addresses: &[&str], given: &[&str]) -> ServiceEntry {
    let given: Vec<_> = given
        .iter()
        .map(|ip| json!({"value": ip, "host": host}))
        .collect();
    let object = json!({
        "metadata": {"name": "e", "creationTimestamp": format!("2024-01-01T00:00:{created:02}Z")},
        "spec": {"hosts": [host], "addresses": addresses, "resolution": "STATIC"},
        "status": {"addresses": given},
    });
    let object = serde_json::from_value(object).expect("a ServiceEntry");
    service_entry::read(&object).facts.expect("a service")
}

fn tiny() -> Allocator {
    Allocator::new(Ranges {
        v4: "240.240.0.0/30".parse().expect("a range"),
        v6: "2001:2::/126".parse().expect("a range"),
    })
}

fn texts(allocated: &Allocated) -> Vec<String> {
    allocated
        .addresses
        .iter()
        .map(|(_, ip)| ip.to_string())
        .collect()
}

#[test]
fn each_host_gets_the_next_address_of_either_family() {
    let mut allocator = tiny();
    let allocated = |allocator: &mut Allocator, host: &str| {
        texts(&allocator.allocate(&name(host), &entry(host, 0, &[], &[])))
    };
    assert_eq!(allocated(&mut allocator, "a"), ["240.240.0.1", "2001:2::1"]);
    assert_eq!(allocated(&mut allocator, "b"), ["240.240.0.2", "2001:2::2"]);
    // Asked again before it was written, it is the same.
    assert_eq!(allocated(&mut allocator, "a"), ["240.240.0.1", "2001:2::1"]);
}

#[test]
fn what_an_entry_has_it_keeps_and_others_go_around_it() {
    let mut allocator = tiny();
    let old = entry("old", 0, &[], &["240.240.0.1", "2001:2::3"]);
    assert!(allocator.claim(&name("old"), &old).is_empty());
    let new = allocator.allocate(&name("new"), &entry("new", 1, &[], &[]));
    assert_eq!(texts(&new), ["240.240.0.2", "2001:2::1"]);
    let kept = allocator.allocate(&name("old"), &old);
    assert_eq!(texts(&kept), ["240.240.0.1", "2001:2::3"]);
}

#[test]
fn a_user_takes_an_address_from_us_and_of_two_of_ours_the_older_keeps_it() {
    let mut allocator = tiny();
    let ours = entry("a", 5, &[], &["240.240.0.1", "2001:2::1"]);
    allocator.claim(&name("a"), &ours);
    let users = entry("u", 9, &["240.240.0.1"], &[]);
    assert_eq!(allocator.claim(&name("u"), &users), [name("a")].into());
    let moved = allocator.allocate(&name("a"), &ours);
    assert_eq!(texts(&moved), ["240.240.0.2", "2001:2::1"]);

    let older = entry("o", 1, &[], &["2001:2::1"]);
    assert_eq!(allocator.claim(&name("o"), &older), [name("a")].into());
    assert_eq!(
        texts(&allocator.allocate(&name("o"), &older))[1],
        "2001:2::1"
    );
    assert_eq!(
        texts(&allocator.allocate(&name("a"), &ours))[1],
        "2001:2::2"
    );
}

#[test]
fn a_full_range_is_said_and_the_other_family_goes_on() {
    let mut allocator = Allocator::new(Ranges {
        v4: "240.240.0.0/31".parse().expect("a range"),
        v6: "2001:2::/126".parse().expect("a range"),
    });
    allocator.allocate(&name("a"), &entry("a", 0, &[], &[]));
    let full = allocator.allocate(&name("b"), &entry("b", 0, &[], &[]));
    assert_eq!(texts(&full), ["2001:2::2"]);
    let range = "240.240.0.0/31".parse().expect("a range");
    assert_eq!(full.exhausted, [("b".into(), range)]);
    // What is given back is found again after the end of the range.
    allocator.forget(&name("a"));
    let free = allocator.allocate(&name("b"), &entry("b", 0, &[], &[]));
    assert_eq!(texts(&free), ["240.240.0.1", "2001:2::2"]);
}

#[test]
fn an_entry_that_needs_none_gets_none() {
    let mut allocator = tiny();
    let addressed = entry("a", 0, &["192.0.2.1"], &["240.240.0.1"]);
    assert!(allocator.claim(&name("a"), &addressed).is_empty());
    assert_eq!(
        allocator.allocate(&name("a"), &addressed),
        Allocated::default()
    );
    assert!(allocator.is_free("240.240.0.1".parse().expect("an address")));
}
