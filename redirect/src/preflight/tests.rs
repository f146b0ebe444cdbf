// SPDX-License-Identifier: Apache-2.0

use serde_json::Value;

use super::judge::{Connections, Map};
use super::*;

fn settings(pairs: &[(&str, &str)]) -> Map {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

fn check(findings: &[Finding], changes: &[&str]) {
    let found: Vec<&str> = findings
        .iter()
        .filter_map(|finding| finding.change.as_deref())
        .collect();
    assert_eq!(found, changes, "{findings:?}");
    let bad = findings.iter().filter(|finding| finding.level > Level::Ok);
    assert_eq!(bad.count(), changes.len(), "what is bad names a change");
}

#[test]
fn each_setting_of_a_cni_that_hinders_is_named() {
    const EXCLUSIVE: &str = "Helm value cni.exclusive=false";
    const MASQUERADE: &str = "Helm value bpf.masquerade=false";
    const SOCKETS: &str = "Helm value socketLB.hostNamespaceOnly=true";
    let replaced = ("kube-proxy-replacement", "true");
    for (pairs, changes) in [
        (&[][..], &[][..]),
        (&[("cni-exclusive", "true")], &[EXCLUSIVE]),
        (&[("enable-bpf-masquerade", "true")], &[MASQUERADE]),
        (&[("bpf-lb-sock", "true")], &[SOCKETS]),
        (&[replaced], &[SOCKETS]),
        (&[replaced, ("bpf-lb-sock", "false")], &[]),
        (&[replaced, ("bpf-lb-sock-hostns-only", "true")], &[]),
        (
            &[
                ("cni-exclusive", "true"),
                ("enable-bpf-masquerade", "true"),
                replaced,
            ],
            &[EXCLUSIVE, MASQUERADE, SOCKETS],
        ),
    ] {
        check(&judge::cilium(&settings(pairs)), changes);
    }
    let ebpf = judge::calico(&settings(&[("bpfEnabled", "true")]));
    assert_eq!(ebpf[0].level, Level::Warning);
    assert!(
        ebpf[0]
            .change
            .as_ref()
            .unwrap()
            .contains("bpfConnectTimeLoadBalancing")
    );
    let off = ("bpfConnectTimeLoadBalancing", "Disabled");
    check(
        &judge::calico(&settings(&[("bpfEnabled", "true"), off])),
        &[],
    );
}

#[test]
fn a_nodes_files_are_judged() {
    let full = |known| judge::connections(&Some(Connections { known, limit: 100 })).unwrap();
    check(&[full(79)], &[]);
    check(&[full(80)], &["net.netfilter.nf_conntrack_max"]);
    assert_eq!(judge::connections(&None), None);

    let resolver = judge::resolver(&Ok(
        "search x\nnameserver 10.0.0.10\n nameserver ::1 # y\n".into()
    ));
    assert_eq!(resolver, Finding::ok("DNS of the node", "10.0.0.10, ::1"));
    assert_eq!(
        judge::resolver(&Ok("search x\n".into())).level,
        Level::Warning
    );

    let file =
        |name: &str, text: &str| Ok([(name.to_owned(), Ok(text.as_bytes().to_vec()))].into());
    let list = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;
    assert_eq!(
        judge::primary(&file("10-pods.conflist", list)).level,
        Level::Ok
    );
    for (name, part) in [
        ("00-first.conflist", "FILENAME"),
        ("10-pods.bak", "CNI first"),
    ] {
        let found = judge::primary(&file(name, list));
        assert_eq!(found.level, Level::Failure);
        assert!(found.change.as_ref().unwrap().contains(part), "{found:?}");
    }
    assert_eq!(judge::primary(&Err("gone".into())).level, Level::Failure);
}

#[test]
fn the_canary_works_here_and_the_report_says_so_to_people_and_scripts() {
    let root = tempfile::tempdir().unwrap();
    let net = root.path().join("etc/cni/net.d");
    std::fs::create_dir_all(&net).unwrap();
    std::fs::write(
        root.path().join("etc/resolv.conf"),
        "nameserver 10.0.0.10\n",
    )
    .unwrap();
    let list = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;
    std::fs::write(net.join("10-pods.conflist"), list).unwrap();
    let asked = |output: &str| {
        let host_root = root.path().to_str().unwrap();
        let words = ["preflight", "--host-root", host_root, "--output", output];
        run(&Arguments::try_parse_from(words).unwrap())
    };
    let (text, works) = asked("table");
    assert!(works, "{text}");
    for line in [
        "ok    capture of IPv4",
        "ok    capture of IPv6",
        "10.0.0.10",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    std::fs::remove_file(net.join("10-pods.conflist")).unwrap();
    let (text, works) = asked("json");
    assert!(!works, "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["works"], false);
    let failed = report["findings"].as_array().unwrap();
    let failed = failed.iter().find(|finding| finding["level"] == "failure");
    assert_eq!(failed.unwrap()["check"], "CNI configuration");
}

#[test]
fn what_the_kernel_refuses_is_named_with_what_to_change() {
    for step in [
        Step::Namespaces,
        Step::Link,
        Step::Rules,
        Step::Outbound,
        Step::Inbound,
        Step::Source,
    ] {
        let failed = || {
            Err(Failed {
                step,
                cause: "EPERM".into(),
            })
        };
        let found = tried(Family::V4, failed());
        assert_eq!(found.level, Level::Failure);
        assert!(
            found.says.contains("EPERM") && found.change.is_some(),
            "{found:?}"
        );
        let found = tried(Family::V6, failed());
        assert_eq!(found.level, Level::Warning);
        assert!(found.change.unwrap().contains("AMBIENT_IPV6=false"));
    }
}
