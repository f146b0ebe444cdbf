// SPDX-License-Identifier: Apache-2.0
//! What becomes of rules that ztunnel can't evaluate as written.

use serde_json::json;

use super::*;

fn translated(spec: serde_json::Value) -> Read<Policy> {
    let policy: kinds::AuthorizationPolicy = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns"}, "spec": spec,
    }))
    .expect("a policy");
    translate(&policy, "istio-system")
}

fn rules(spec: serde_json::Value) -> Vec<wire::Rule> {
    translated(spec).facts.authorization.expect("sent").rules
}

#[test]
fn an_allow_rule_with_an_http_attribute_is_dropped_and_others_stay() {
    let rules = rules(json!({"rules": [
        {"to": [{"operation": {"methods": ["GET"], "ports": ["80"]}}]},
        {"to": [{"operation": {"ports": ["81"]}}]},
    ]}));
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].clauses[0].matches[0].destination_ports, [81]);
}

#[test]
fn a_deny_rule_loses_its_http_attributes_and_denies_by_the_rest() {
    let rules = rules(json!({"action": "DENY", "rules": [{
        "from": [{"source": {"namespaces": ["a"]}}],
        "to": [{"operation": {"paths": ["/admin"]}}],
    }]}));
    assert_eq!(rules[0].clauses.len(), 1, "only the source is left");
    assert_eq!(rules[0].clauses[0].matches[0].namespaces.len(), 1);
}

#[test]
fn a_deny_rule_of_http_attributes_alone_denies_everything_and_says_so() {
    let read = translated(json!({"action": "DENY", "rules": [
        {"to": [{"operation": {"methods": ["DELETE"]}}]},
    ]}));
    let sent = read.facts.authorization.expect("sent");
    assert_eq!(
        sent.rules,
        [wire::Rule { clauses: vec![] }],
        "no clause: matches everything"
    );
    let Acceptance::Stricter(message) = read.facts.acceptance else {
        panic!("must be told")
    };
    assert!(message.contains("methods"), "{message}");
}

#[test]
fn an_unknown_action_allows_nothing_and_the_author_is_told() {
    let read = translated(json!({"action": "FROB", "rules": [{}]}));
    assert_eq!(read.problems[0].field, "spec.action");
    let sent = read.facts.authorization.expect("sent");
    assert_eq!((sent.action(), sent.rules.len()), (wire::Action::Allow, 0));
    let Acceptance::Stricter(message) = read.facts.acceptance else {
        panic!("must be told")
    };
    assert!(message.contains("action"), "{message}");
}

#[test]
fn an_unreadable_value_drops_the_allow_rule_and_widens_the_deny_rule() {
    let rule = json!([{
        "from": [{"source": {"ipBlocks": ["10.0.0.0/8", "10.0.0.0/99"]}}],
        "to": [{"operation": {"ports": ["80"]}}],
    }]);
    let allow = translated(json!({"rules": rule}));
    assert_eq!(
        allow.problems[0].field,
        "spec.rules[0].from[0].source.ipBlocks[1]"
    );
    assert!(allow.facts.authorization.expect("sent").rules.is_empty());
    let deny = rules(json!({"action": "DENY", "rules": rule}));
    assert_eq!(deny[0].clauses.len(), 1, "the source might be anyone");
    assert_eq!(deny[0].clauses[0].matches[0].destination_ports, [80]);
}

#[test]
fn an_unreadable_exclusion_of_a_deny_rule_excludes_nothing() {
    let deny = rules(json!({"action": "DENY", "rules": [
        {"from": [{"source": {"notIpBlocks": ["10.0.0.0/8", "nonsense"]}}]},
    ]}));
    assert_eq!(deny[0].clauses[0].matches[0].not_source_ips.len(), 1);
    let only_bad = rules(json!({"action": "DENY", "rules": [
        {"from": [{"source": {"notIpBlocks": ["nonsense"]}}]},
    ]}));
    assert_eq!(only_bad, [wire::Rule { clauses: vec![] }]);
}

#[test]
fn a_misspelt_field_never_turns_a_rule_for_one_into_a_rule_for_all() {
    let allow = rules(json!({"rules": [{"from": [{"source": {"principal": ["a"]}}]}]}));
    assert!(allow.is_empty());
    let allow = rules(json!({"rules": [{"form": [{"source": {"principals": ["a"]}}]}]}));
    assert!(allow.is_empty());
    let deny =
        rules(json!({"action": "DENY", "rules": [{"from": [{"source": {"principal": ["a"]}}]}]}));
    assert_eq!(deny, [wire::Rule { clauses: vec![] }]);
}

#[test]
fn the_empty_rule_matches_everything_and_no_rules_match_nothing() {
    assert_eq!(
        rules(json!({"rules": [{}]})),
        [wire::Rule { clauses: vec![] }]
    );
    assert!(rules(json!({})).is_empty());
}

#[test]
fn clauses_come_in_the_order_to_from_when() {
    let rules = rules(json!({"rules": [{
        "from": [{"source": {"principals": ["td/ns/a/sa/b"]}}, {"source": {"namespaces": ["c"]}}],
        "to": [{"operation": {"ports": ["80"]}}],
        "when": [{"key": "source.ip", "values": ["1.2.3.4"], "notValues": ["1.2.3.5"]}],
    }]}));
    let clauses = &rules[0].clauses;
    assert_eq!(clauses[0].matches[0].destination_ports, [80]);
    assert_eq!(clauses[1].matches.len(), 2);
    assert_eq!(clauses[2].matches[0].source_ips.len(), 1);
    assert_eq!(clauses[2].matches[0].not_source_ips.len(), 1);
}

#[test]
fn policies_for_waypoints_are_not_for_ztunnel() {
    let read =
        translated(json!({"targetRefs": [{"kind": "Service", "name": "web"}], "rules": [{}]}));
    assert_eq!(read.facts.acceptance, Acceptance::NotForZtunnel);
    assert_eq!(read.facts.authorization, None);
}

#[test]
fn audit_and_custom_are_refused_with_a_reason() {
    for action in ["AUDIT", "CUSTOM"] {
        let read = translated(json!({"action": action, "rules": [{}]}));
        assert_eq!(read.facts.authorization, None);
        let Acceptance::Refused(reason) = read.facts.acceptance else {
            panic!("must be refused")
        };
        assert!(reason.contains(action), "{reason}");
    }
}

#[test]
fn a_policy_in_dry_run_is_sent_as_such_where_ztunnels_know_what_that_is() {
    let written = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "shop", "annotations": {"istio.io/dry-run": "true"}},
        "spec": {"action": "DENY", "rules": [{}]},
    }));
    let mut read = translate(&written.expect("a policy"), "istio-system");
    let sent = read.facts.authorization.as_ref().expect("sent");
    assert!(sent.dry_run);
    assert_eq!(read.facts.acceptance, Acceptance::Accepted);
    read.facts.refuse_dry_run();
    assert_eq!(read.facts.authorization, None);
    assert!(matches!(read.facts.acceptance, Acceptance::Refused(_)));
}

#[test]
fn a_selector_without_labels_reaches_the_whole_namespace() {
    let read = translated(json!({"selector": {}, "rules": [{}]}));
    assert_eq!(
        read.facts.authorization.expect("sent").scope(),
        wire::Scope::Namespace
    );
    assert_eq!(read.problems[0].field, "spec.selector");
}
