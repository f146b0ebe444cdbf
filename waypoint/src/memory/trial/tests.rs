// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use proto::waypoint as wire;
use wire::pattern::Kind as Text;

use super::*;
use crate::route::Service;
use crate::settings::Settings;
use crate::state::Known;

fn service() -> NamespacedHostname {
    NamespacedHostname::new("shop", "app.shop.svc")
}

fn asks(attribute: wire::Attribute, text: &str) -> wire::Condition {
    wire::Condition {
        attribute: attribute.into(),
        key: match attribute {
            wire::Attribute::RequestHeader => vec!["x-a".into()],
            _ => vec![],
        },
        patterns: vec![wire::Pattern {
            kind: Some(Text::Exact(text.into())),
        }],
        ..wire::Condition::default()
    }
}

fn policy(name: &str, action: wire::PolicyAction, conditions: &[wire::Condition]) -> wire::Policy {
    let clause = |one: &wire::Condition| wire::PolicyClause {
        matches: vec![wire::PolicyMatch {
            conditions: vec![one.clone()],
        }],
    };
    wire::Policy {
        namespace: "shop".into(),
        name: name.into(),
        action: action.into(),
        rules: vec![wire::PolicyRule {
            index: 0,
            clauses: conditions.iter().map(clause).collect(),
        }],
        ..wire::Policy::default()
    }
}

fn known(policies: Vec<wire::Policy>) -> State {
    let served = Service::compile(&wire::Service {
        namespace: "shop".into(),
        hostname: "app.shop.svc".into(),
        policies,
        ..wire::Service::default()
    });
    State::knowing(Known {
        served: [(service(), Arc::new(served.unwrap()))].into(),
        settings: Some(Arc::new(Settings::default())),
        ..Known::default()
    })
}

/// Two requests for `/a`, one for `/b`, and a connection for bytes.
fn memory() -> Memory {
    let memory = Memory::default();
    let of = memory.of(&service()).unwrap();
    let identity = "spiffe://cluster.local/ns/shop/sa/client".parse().unwrap();
    let headers = HeaderMap::new();
    let request = |path| Request {
        method: "GET",
        authority: "app",
        path,
        headers: &headers,
        token: None,
        doubt: None,
    };
    for request in [
        Some(request("/a")),
        Some(request("/a")),
        Some(request("/b")),
        None,
    ] {
        of.note(&Access {
            identity: &identity,
            source_ip: [10, 0, 0, 1].into(),
            remote_ip: [10, 0, 0, 1].into(),
            destination_ips: &[],
            destination_port: 80,
            trust_domains: &[],
            server_name: ServerName::Absent,
            request,
        });
    }
    memory
}

/// How many would be denied, might be, and would pass, of the four.
#[track_caller]
fn check(in_force: Vec<wire::Policy>, given: &wire::Policy, expected: (u64, u64, u64)) {
    let candidates = Candidates::Given {
        policy: Policy::compile(given).unwrap(),
        services: None,
    };
    let trials = try_out(&memory(), &known(in_force), &candidates);
    let trial = &trials.0["shop/p"];
    assert_eq!(trial.accesses, 4);
    let Trial {
        would_deny,
        might_deny,
        would_allow,
        ..
    } = *trial;
    assert_eq!((would_deny, might_deny, would_allow), expected);
    let told: u64 = trial.changes.iter().map(|one| u64::from(one.count)).sum();
    assert_eq!(told, would_deny + might_deny + would_allow);
}

#[test]
fn what_a_policy_would_change_is_counted() {
    use wire::Attribute::*;
    use wire::PolicyAction::*;
    let a = || asks(Path, "/a");
    let header = || asks(RequestHeader, "x");
    // Of bytes, a rule that denies goes by the rest of its conditions.
    check(vec![], &policy("p", Deny, &[a()]), (3, 0, 0));
    check(vec![], &policy("p", Allow, &[a()]), (2, 0, 0));
    check(vec![], &policy("p", Deny, &[a(), header()]), (1, 2, 0));
    check(vec![], &policy("p", Allow, &[header()]), (1, 3, 0));
    let all = || policy("all", Deny, &[]);
    check(vec![all()], &policy("p", Deny, &[a()]), (0, 0, 0));
    let other = || policy("other", Allow, &[asks(Path, "/c")]);
    check(vec![other()], &policy("p", Allow, &[a()]), (0, 0, 2));
    check(
        vec![other()],
        &policy("p", Allow, &[a(), header()]),
        (0, 0, 0),
    );
    // It takes its predecessor's place.
    check(
        vec![policy("p", Deny, &[])],
        &policy("p", Deny, &[a()]),
        (0, 0, 1),
    );
}

#[test]
fn policies_in_dry_run_are_tried_where_they_are_for_a_service() {
    let tried = wire::Policy {
        dry_run: true,
        ..policy(
            "p",
            wire::PolicyAction::Deny,
            &[asks(wire::Attribute::Path, "/b")],
        )
    };
    let known = known(vec![tried]);
    let trials = try_out(&memory(), &known, &Candidates::Marked);
    let trial = &trials.0["shop/p"];
    assert_eq!((trial.services, trial.would_deny), (1, 2));
    let paths: Vec<_> = trial
        .changes
        .iter()
        .map(|one| one.path.as_deref())
        .collect();
    assert_eq!(paths, [None, Some("/b")]);
    let elsewhere = Candidates::Given {
        policy: Policy::compile(&policy("p", wire::PolicyAction::Deny, &[])).unwrap(),
        services: Some(vec!["shop/other.shop.svc".into()]),
    };
    assert_eq!(try_out(&memory(), &known, &elsewhere), Trials::default());
}

#[test]
fn what_is_too_long_is_missed_and_counted() {
    let memory = memory();
    let of = memory.of(&service()).unwrap();
    let (identity, headers) = (
        "spiffe://cluster.local/ns/shop/sa/client".parse().unwrap(),
        HeaderMap::new(),
    );
    of.note(&Access {
        identity: &identity,
        source_ip: [10, 0, 0, 1].into(),
        remote_ip: [10, 0, 0, 1].into(),
        destination_ips: &[],
        destination_port: 80,
        trust_domains: &[],
        server_name: ServerName::Absent,
        request: Some(Request {
            method: "GET",
            authority: "app",
            path: &"/x".repeat(1024),
            headers: &headers,
            token: None,
            doubt: None,
        }),
    });
    let candidates = Candidates::Given {
        policy: Policy::compile(&policy("p", wire::PolicyAction::Deny, &[])).unwrap(),
        services: None,
    };
    let trials = try_out(&memory, &known(vec![]), &candidates);
    assert_eq!(
        (trials.0["shop/p"].accesses, trials.0["shop/p"].missed),
        (4, 1)
    );
}
