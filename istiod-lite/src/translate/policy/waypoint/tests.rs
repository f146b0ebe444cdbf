// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;

fn translated(spec: serde_json::Value) -> (wire::Policy, Vec<Problem>) {
    let written: kinds::AuthorizationPolicy = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "shop"}, "spec": spec,
    }))
    .expect("a policy");
    policy(&written)
}

#[test]
fn what_cannot_be_read_drops_an_allow_rule_and_widens_a_deny_rule() {
    for (field, entry) in [
        (
            "to[0].operation.paths[0]",
            json!({"to": [{"operation": {"paths": ["/{a}"], "methods": ["GET"]}}]}),
        ),
        (
            "to[0].operation.ports[1]",
            json!({"to": [{"operation": {"ports": ["80", "http"], "methods": ["GET"]}}]}),
        ),
        (
            "from[0].source.ipBlocks[0]",
            json!({"from": [{"source": {"ipBlocks": ["x"], "namespaces": ["a"]}}]}),
        ),
        (
            "from[0].source.principal",
            json!({"from": [{"source": {"principal": ["x"], "namespaces": ["a"]}}]}),
        ),
        (
            "from[0].source.namespaces[0]",
            json!({"from": [{"source": {"namespaces": ["a*b"], "principals": ["a"]}}]}),
        ),
        (
            "when[0].key",
            json!({"when": [{"key": "experimental.envoy.filters.a[b]", "values": ["x"]}, {"key": "source.namespace", "values": ["a"]}]}),
        ),
    ] {
        let (allow, problems) = translated(json!({"rules": [entry, {}]}));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].field, format!("spec.rules[0].{field}"));
        let left: Vec<u32> = allow.rules.iter().map(|rule| rule.index).collect();
        assert_eq!(left, [1], "{field}");
        let (deny, _) = translated(json!({"action": "DENY", "rules": [entry]}));
        let conditions: usize = deny.rules[0]
            .clauses
            .iter()
            .flat_map(|clause| &clause.matches)
            .map(|matching| matching.conditions.len())
            .sum();
        assert_eq!(conditions, 1, "{field}: the other condition is left");
    }
}

#[test]
fn a_custom_rule_is_not_narrowed_by_what_only_tokens_say() {
    for part in [
        json!({"from": [{"source": {"requestPrincipals": ["*"], "ipBlocks": ["10.0.0.0/8"]}}]}),
        json!({"from": [{"source": {"notRequestPrincipals": ["*"], "ipBlocks": ["10.0.0.0/8"]}}]}),
        json!({"from": [{"source": {"ipBlocks": ["10.0.0.0/8"]}}], "when": [{"key": "request.auth.claims[a]", "values": ["b"]}]}),
    ] {
        let spec = json!({"action": "CUSTOM", "provider": {"name": "opa"}, "rules": [part]});
        let (custom, problems) = translated(spec);
        assert_eq!(custom.authorizer, "opa");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].field, "spec.rules[0]");
        let conditions = custom.rules[0].clauses.iter().flat_map(|one| &one.matches);
        let conditions: Vec<_> = conditions.flat_map(|one| &one.conditions).collect();
        assert_eq!(conditions.len(), 1, "{conditions:?}");
        assert_eq!(conditions[0].attribute(), wire::Attribute::SourceIp);
    }
}

#[test]
fn an_entry_of_which_nothing_is_left_makes_its_deny_clause_hold() {
    let (deny, problems) = translated(json!({"action": "DENY", "rules": [
        {"to": [{"operation": {"paths": ["/{a}"]}}, {"operation": {"methods": ["GET"]}}]},
    ]}));
    assert_eq!(problems.len(), 1);
    assert_eq!(deny.rules[0].clauses, []);
}

#[test]
fn request_principals_are_an_issuer_and_a_subject() {
    let exact = |text: &str| Kind::Exact(text.into());
    use wire::pattern::Kind;
    for (text, issuer, subject) in [
        ("*", Kind::Present(()), Kind::Present(())),
        ("iss/sub", exact("iss"), exact("sub")),
        ("https://a/b/sub", exact("https://a/b"), exact("sub")),
        ("iss/*", exact("iss"), Kind::Present(())),
        ("iss/x*", exact("iss"), Kind::Prefix("x".into())),
        ("*/sub", Kind::Present(()), exact("sub")),
        ("*x/sub", Kind::Suffix("x".into()), exact("sub")),
        ("*/*", Kind::Present(()), exact("*")),
        ("x*", Kind::Prefix("x".into()), Kind::Present(())),
        ("*x", Kind::Present(()), Kind::Suffix("x".into())),
        ("alone", exact("alone"), exact("")),
    ] {
        let mut condition = wire::Condition::default();
        values::request_principal(text, &mut condition).expect(text);
        let pattern = |kind| Some(wire::Pattern { kind: Some(kind) });
        let expected = wire::RequestPrincipal {
            issuer: pattern(issuer),
            subject: pattern(subject),
        };
        assert_eq!(condition.request_principals, [expected], "{text}");
    }
}

#[test]
fn keys_that_nobody_sees_are_refused_and_all_others_known() {
    for (key, expected) in [
        (
            "request.headers[x-a]",
            Some((wire::Attribute::RequestHeader, 1)),
        ),
        (
            "request.auth.claims[a][b]",
            Some((wire::Attribute::Claim, 2)),
        ),
        ("request.auth.claims[a]", Some((wire::Attribute::Claim, 1))),
        ("connection.sni", Some((wire::Attribute::ServerName, 0))),
        ("remote.ip", Some((wire::Attribute::RemoteIp, 0))),
        ("request.headers", None),
        ("request.headers[]", None),
        ("request.headers[a][b]", None),
        ("request.headers[:path]", None),
        ("request.auth.claims[a", None),
        ("request.auth.claims[a]b", None),
        ("destination.labels[a]", None),
        ("experimental.envoy.filters.x[y]", None),
    ] {
        let found = values::key(key)
            .ok()
            .map(|key| (key.attribute, key.way.len()));
        assert_eq!(found, expected, "{key}");
    }
}
