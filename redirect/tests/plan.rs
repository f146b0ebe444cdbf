// SPDX-License-Identifier: Apache-2.0
//! Plans as text, compared with the files in `plan/`. A file that is missing is written for review, and the test fails.
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

use std::path::Path;

use redirect::enroll::Labels;
use redirect::plan::{
    Dns, Families, HostOptions, Inbound, PodOptions, Reach, host_plan, pod_plan, reduced_plan,
};

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/plan")
        .join(format!("{name}.golden"));
    match std::fs::read_to_string(&path) {
        Ok(golden) => assert_eq!(golden, text, "{}", path.display()),
        Err(_) => {
            std::fs::write(&path, text).unwrap();
            panic!(
                "{} was missing: review what has been written",
                path.display()
            );
        }
    }
}

fn options() -> PodOptions {
    PodOptions {
        families: Families::Dual,
        inbound: Inbound::Captured,
        dns: Dns::Untouched,
        outbound_interfaces: Vec::new(),
    }
}

fn annotated(pairs: &[(&str, &str)]) -> PodOptions {
    let annotations: Labels = pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    PodOptions::for_pod(&annotations, Families::Dual, Dns::Untouched)
}

#[test]
fn a_pod_of_both_families() {
    check("dual", &pod_plan(&options()).to_string());
}

#[test]
fn a_pod_without_ipv6() {
    check(
        "ipv4",
        &pod_plan(&PodOptions {
            families: Families::V4,
            ..options()
        })
        .to_string(),
    );
}

#[test]
fn a_pod_with_dns_capture() {
    check(
        "dns",
        &pod_plan(&PodOptions {
            dns: Dns::Captured,
            ..options()
        })
        .to_string(),
    );
}

#[test]
fn an_ingress_gateway() {
    check(
        "ingress",
        &pod_plan(&PodOptions {
            inbound: Inbound::Bypassed,
            ..options()
        })
        .to_string(),
    );
}

#[test]
fn a_pod_with_virtual_interfaces() {
    let options = PodOptions {
        outbound_interfaces: vec!["virbr0".into()],
        families: Families::V4,
        ..options()
    };
    check("interfaces", &pod_plan(&options).to_string());
}

#[test]
fn a_pod_that_leaves_the_mesh() {
    let options = PodOptions {
        outbound_interfaces: vec!["virbr0".into()],
        dns: Dns::Captured,
        ..options()
    };
    for (name, reach) in [("leaving", Reach::Inbound), ("drained", Reach::Nothing)] {
        check(name, &reduced_plan(&options, reach).to_string());
    }
    assert_eq!(
        reduced_plan(&options, Reach::Everything),
        pod_plan(&options)
    );
}

#[test]
fn the_node() {
    check("host", &host_plan(&HostOptions::default()).to_string());
}

#[test]
fn annotations_override_the_nodes_defaults() {
    assert_eq!(annotated(&[]), options());
    assert_eq!(
        annotated(&[("ambient.istio.io/bypass-inbound-capture", "true")]).inbound,
        Inbound::Bypassed
    );
    assert_eq!(
        annotated(&[("ambient.istio.io/dns-capture", "1")]).dns,
        Dns::Captured
    );
    let captured = |value: &str| {
        let annotations = [("ambient.istio.io/dns-capture".to_owned(), value.to_owned())].into();
        PodOptions::for_pod(&annotations, Families::Dual, Dns::Captured).dns
    };
    assert_eq!(captured("false"), Dns::Untouched);
    assert_eq!(captured("perhaps"), Dns::Captured);
}

#[test]
fn interface_names_that_the_kernel_would_refuse_are_left_out() {
    let options = annotated(&[(
        "istio.io/reroute-virtual-interfaces",
        "eth1, vm0 ,,a-name-that-is-too-long,has space,sla/sh",
    )]);
    assert_eq!(options.outbound_interfaces, ["eth1", "vm0"]);
}
