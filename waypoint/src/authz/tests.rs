// SPDX-License-Identifier: Apache-2.0
//! Tables of what rules mean, and a naive evaluator that has to agree on random policies and accesses.

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;
use serde_json::json;
use wire::Attribute;
use wire::pattern::Kind;

use super::*;

/// An access that owns what it is made of.
#[derive(Debug, Clone)]
struct Asked {
    identity: SpiffeId,
    ips: [IpAddr; 2],
    destination: (IpAddr, u16),
    method: &'static str,
    authority: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    claims: Option<Map<String, Value>>,
    server_name: ServerName<'static>,
    doubt: Option<Doubt>,
    is_request: bool,
}

impl Asked {
    fn new() -> Self {
        Self {
            identity: "spiffe://cluster.local/ns/shop/sa/client".parse().unwrap(),
            ips: [[10, 0, 0, 1].into(), [192, 0, 2, 1].into()],
            destination: ([10, 96, 0, 9].into(), 80),
            method: "GET",
            authority: "app.shop:8080",
            path: "/a/b",
            headers: vec![("x-a", "one")],
            claims: None,
            server_name: ServerName::Absent,
            doubt: None,
            is_request: true,
        }
    }

    fn with<T>(&self, judge: impl FnOnce(&Access<'_>) -> T) -> T {
        let pairs = self.headers.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        let headers: HeaderMap = pairs.collect();
        let domains = ["cluster.local".into(), "old".into()];
        judge(&Access {
            identity: &self.identity,
            source_ip: self.ips[0],
            remote_ip: self.ips[1],
            destination_ips: &[self.destination.0],
            destination_port: self.destination.1,
            trust_domains: &domains,
            server_name: self.server_name,
            request: self.is_request.then_some(Request {
                method: self.method,
                authority: self.authority,
                path: self.path,
                headers: &headers,
                token: self.claims.as_ref().map(|claims| Token { claims }),
                doubt: self.doubt,
            }),
        })
    }
}

fn one_of(attribute: Attribute, texts: &[&str]) -> wire::Condition {
    let pattern = |text: &&str| wire::Pattern {
        kind: Some(match text.strip_prefix('*') {
            Some("") => Kind::Present(()),
            Some(suffix) => Kind::Suffix(suffix.into()),
            None if text.contains('{') => Kind::Template((*text).into()),
            None => match text.strip_suffix('*') {
                Some(prefix) => Kind::Prefix(prefix.into()),
                None => Kind::Exact((*text).into()),
            },
        }),
    };
    wire::Condition {
        attribute: attribute.into(),
        patterns: texts.iter().map(pattern).collect(),
        ..wire::Condition::default()
    }
}

fn not(condition: wire::Condition) -> wire::Condition {
    wire::Condition {
        negated: true,
        ..condition
    }
}

fn of_key(key: &[&str], condition: wire::Condition) -> wire::Condition {
    wire::Condition {
        key: key.iter().map(|step| (*step).to_owned()).collect(),
        ..condition
    }
}

fn block(attribute: Attribute, address: [u8; 4], length: u32) -> wire::Condition {
    wire::Condition {
        attribute: attribute.into(),
        blocks: vec![wire::IpBlock {
            address: address.to_vec(),
            length,
        }],
        ..wire::Condition::default()
    }
}

fn port(number: u32) -> wire::Condition {
    wire::Condition {
        attribute: Attribute::DestinationPort.into(),
        ports: vec![number],
        ..wire::Condition::default()
    }
}

fn rule(index: u32, conditions: Vec<wire::Condition>) -> wire::PolicyRule {
    let clauses = conditions.into_iter().map(|condition| wire::PolicyClause {
        matches: vec![wire::PolicyMatch {
            conditions: vec![condition],
        }],
    });
    wire::PolicyRule {
        index,
        clauses: clauses.collect(),
    }
}

fn policy(name: &str, action: wire::PolicyAction, rules: Vec<wire::PolicyRule>) -> wire::Policy {
    wire::Policy {
        namespace: "shop".into(),
        name: name.into(),
        action: action.into(),
        rules,
        ..wire::Policy::default()
    }
}

fn compiled(policies: &[wire::Policy]) -> Vec<Policy> {
    let compiled = policies.iter().map(Policy::compile);
    compiled.collect::<Result<_, _>>().unwrap()
}

/// Whether a DENY policy of this condition alone denies.
fn denies(condition: &wire::Condition, asked: &Asked) -> bool {
    let rules = vec![rule(0, vec![condition.clone()])];
    let policies = compiled(&[policy("p", wire::PolicyAction::Deny, rules)]);
    asked.with(|access| decide(policies.iter(), access).verdict.is_denied())
}

#[test]
fn each_attribute_is_compared_as_its_field_says() {
    use Attribute::*;
    let claims = json!({
        "iss": "https://issuer/x", "sub": "me", "aud": ["one", "two"], "azp": "app",
        "realm": {"roles": ["admin", "user"]}, "number": 7,
    });
    let asked = Asked {
        claims: claims.as_object().cloned(),
        ..Asked::new()
    };
    let principal = |issuer: &str, subject: &str| wire::Condition {
        attribute: RequestPrincipal.into(),
        request_principals: vec![wire::RequestPrincipal {
            issuer: one_of(Host, &[issuer]).patterns.pop(),
            subject: one_of(Host, &[subject]).patterns.pop(),
        }],
        ..wire::Condition::default()
    };
    for (condition, expected) in [
        (
            one_of(SourcePrincipal, &["cluster.local/ns/shop/sa/client"]),
            true,
        ),
        (one_of(SourcePrincipal, &["old/ns/shop/sa/client"]), true),
        (
            one_of(SourcePrincipal, &["foreign/ns/shop/sa/client"]),
            false,
        ),
        (one_of(SourcePrincipal, &["old/ns/shop/*"]), false),
        (one_of(SourcePrincipal, &["*/sa/client"]), true),
        (one_of(SourcePrincipal, &["*"]), true),
        (one_of(SourceNamespace, &["other", "sho*"]), true),
        (one_of(SourceNamespace, &["hop"]), false),
        (one_of(SourceServiceAccount, &["shop/client"]), true),
        (one_of(SourceServiceAccount, &["other/client"]), false),
        (one_of(SourceTrustDomain, &["old"]), true),
        (one_of(SourceTrustDomain, &["foreign"]), false),
        (block(SourceIp, [10, 0, 0, 0], 8), true),
        (block(SourceIp, [192, 0, 2, 0], 24), false),
        (block(RemoteIp, [192, 0, 2, 0], 24), true),
        (block(DestinationIp, [10, 96, 0, 9], 32), true),
        (port(80), true),
        (port(8080), false),
        (one_of(Host, &["APP.shop:8080"]), true),
        (one_of(Host, &["app.shop"]), false),
        (one_of(Host, &["App.Shop:*"]), true),
        (one_of(Host, &["*.SHOP:8080"]), true),
        (one_of(Method, &["GET"]), true),
        (one_of(Method, &["get"]), false),
        (one_of(Path, &["/a*"]), true),
        (one_of(Path, &["/A*"]), false),
        (one_of(Path, &["*/b"]), true),
        (one_of(Path, &["/a/{*}"]), true),
        (one_of(Path, &["/{*}"]), false),
        (of_key(&["X-A"], one_of(RequestHeader, &["one"])), true),
        (of_key(&["x-a"], one_of(RequestHeader, &["One"])), false),
        (of_key(&["x-b"], one_of(RequestHeader, &["*"])), false),
        (of_key(&["host"], one_of(RequestHeader, &["app.*"])), true),
        (principal("https://issuer/x", "me"), true),
        (principal("*", "*"), true),
        (principal("https*", "you"), false),
        (one_of(Audience, &["two"]), true),
        (one_of(Presenter, &["app"]), true),
        (of_key(&["realm", "roles"], one_of(Claim, &["adm*"])), true),
        (of_key(&["realm"], one_of(Claim, &["*"])), false),
        (of_key(&["number"], one_of(Claim, &["7"])), false),
    ] {
        assert_eq!(denies(&condition, &asked), expected, "{condition:?}");
        assert_eq!(
            denies(&not(condition.clone()), &asked),
            !expected,
            "not {condition:?}"
        );
    }
}

#[test]
fn an_attribute_that_is_not_there_matches_nothing_and_fulfils_every_exclusion() {
    let asked = Asked::new();
    for condition in [
        of_key(&["x-none"], one_of(Attribute::RequestHeader, &["*"])),
        of_key(&["a"], one_of(Attribute::Claim, &["*"])),
        one_of(Attribute::Audience, &["*"]),
    ] {
        assert!(!denies(&condition, &asked), "{condition:?}");
        assert!(denies(&not(condition.clone()), &asked), "not {condition:?}");
    }
}

#[test]
fn a_header_in_several_lines_hides_nothing_from_a_rule_that_denies_and_opens_none_that_allows() {
    let mut asked = Asked::new();
    asked.headers = vec![("x-a", "good"), ("x-a", "bad")];
    let header = |text: &str| of_key(&["x-a"], one_of(Attribute::RequestHeader, &[text]));
    assert!(denies(&header("bad"), &asked));
    assert!(denies(&header("good,bad"), &asked));
    let allowed = |condition| {
        let rules = vec![rule(0, vec![condition])];
        let policies = compiled(&[policy("p", wire::PolicyAction::Allow, rules)]);
        asked.with(|access| !decide(policies.iter(), access).verdict.is_denied())
    };
    assert!(!allowed(header("good")));
    assert!(!allowed(not(header("bad"))));
    assert!(allowed(header("good,bad")));
}

#[test]
fn deny_goes_before_allow_and_without_any_allow_all_pass() {
    use wire::PolicyAction::*;
    let get = || rule(3, vec![one_of(Attribute::Method, &["GET"])]);
    let put = || rule(4, vec![one_of(Attribute::Method, &["PUT"])]);
    let by = |policy, rule| Some(RuleRef { policy, rule });
    for (policies, expected) in [
        (vec![], Verdict::Allowed(None)),
        (vec![policy("d", Deny, vec![put()])], Verdict::Allowed(None)),
        (vec![policy("d", Deny, vec![])], Verdict::Allowed(None)),
        (vec![policy("a", Allow, vec![])], Verdict::Denied(None)),
        (vec![policy("a", Allow, vec![put()])], Verdict::Denied(None)),
        (
            vec![policy("a", Allow, vec![put(), get()])],
            Verdict::Allowed(by("shop/a", 3)),
        ),
        (
            vec![policy("a", Allow, vec![rule(0, vec![])])],
            Verdict::Allowed(by("shop/a", 0)),
        ),
        (
            vec![
                policy("a", Allow, vec![get()]),
                policy("d", Deny, vec![rule(9, vec![])]),
            ],
            Verdict::Denied(by("shop/d", 9)),
        ),
        (
            vec![policy("u", Audit, vec![get()])],
            Verdict::Allowed(None),
        ),
    ] {
        let policies = compiled(&policies);
        let decision = Asked::new().with(|access| decide(policies.iter(), access).verdict);
        assert_eq!(decision, expected);
    }
}

#[test]
fn what_is_tried_out_decides_nothing_and_says_what_it_would() {
    use wire::PolicyAction::*;
    let tried = |policy: wire::Policy| wire::Policy {
        dry_run: true,
        ..policy
    };
    let all = || vec![rule(0, vec![])];
    let put = || vec![rule(1, vec![one_of(Attribute::Method, &["PUT"])])];
    let by = |policy, rule| Some(RuleRef { policy, rule });
    for (policies, verdict, dry_run) in [
        (
            vec![tried(policy("d", Deny, all()))],
            Verdict::Allowed(None),
            Some(Verdict::Denied(by("shop/d", 0))),
        ),
        (
            vec![tried(policy("a", Allow, put()))],
            Verdict::Allowed(None),
            Some(Verdict::Denied(None)),
        ),
        (
            vec![policy("b", Allow, put()), tried(policy("a", Allow, all()))],
            Verdict::Denied(None),
            Some(Verdict::Allowed(by("shop/a", 0))),
        ),
        (
            vec![policy("a", Allow, all())],
            Verdict::Allowed(by("shop/a", 0)),
            None,
        ),
    ] {
        let policies = compiled(&policies);
        let asked = Asked::new();
        let decision = asked.with(|access| decide(policies.iter(), access));
        assert_eq!((decision.verdict, decision.dry_run), (verdict, dry_run));
    }
    let asks = compiled(&[
        policy("c", Custom, all()),
        tried(policy("t", Custom, all())),
    ]);
    let asked: Vec<_> = Asked::new().with(|access| {
        let asked = custom(asks.iter(), access);
        asked.map(|one| (one.by.policy, one.dry_run)).collect()
    });
    assert_eq!(asked, [("shop/c", false), ("shop/t", true)]);
}

#[test]
fn where_no_request_is_seen_allow_rules_that_ask_for_one_match_nothing_and_others_go_by_the_rest() {
    use wire::PolicyAction::*;
    let bytes = Asked {
        is_request: false,
        ..Asked::new()
    };
    let denied = |action, conditions: Vec<wire::Condition>| {
        let policies = compiled(&[policy("p", action, vec![rule(0, conditions)])]);
        bytes.with(|access| decide(policies.iter(), access).verdict.is_denied())
    };
    let get = || one_of(Attribute::Method, &["GET"]);
    let put = || one_of(Attribute::Method, &["PUT"]);
    for method in [get(), put(), not(get()), not(put())] {
        assert!(denied(Allow, vec![method.clone(), port(80)]));
        assert!(denied(Deny, vec![method.clone(), port(80)]));
        assert!(!denied(Deny, vec![method, port(81)]));
    }
    assert!(!denied(Allow, vec![port(80)]));
}

#[test]
fn what_is_in_doubt_is_read_in_favour_of_one_side() {
    use wire::PolicyAction::*;
    let header = || wire::Condition {
        key: vec!["x-a".into()],
        ..one_of(Attribute::RequestHeader, &["one"])
    };
    let denied = |doubt, action, conditions: Vec<wire::Condition>| {
        let asked = Asked {
            doubt,
            ..Asked::new()
        };
        let policies = compiled(&[policy("p", action, vec![rule(0, conditions)])]);
        asked.with(|access| decide(policies.iter(), access).verdict.is_denied())
    };
    for condition in [header(), not(header())] {
        for action in [Allow, Deny] {
            let denied = |doubt| denied(Some(doubt), action, vec![condition.clone()]);
            assert!(!denied(Doubt::ForPassing), "{action:?}");
            assert!(denied(Doubt::AgainstPassing), "{action:?}");
        }
    }
    // What is known decides all the same.
    let put = || one_of(Attribute::Method, &["PUT"]);
    for doubt in [Doubt::ForPassing, Doubt::AgainstPassing] {
        assert!(denied(Some(doubt), Allow, vec![header(), put()]));
        assert!(!denied(Some(doubt), Deny, vec![header(), put()]));
    }
    assert!(!denied(None, Allow, vec![header()]));
}

#[test]
fn the_server_that_tls_asks_for_is_compared_where_somebody_looked() {
    use wire::PolicyAction::*;
    let denied = |server_name, action, condition: wire::Condition| {
        let bytes = Asked {
            is_request: false,
            server_name,
            ..Asked::new()
        };
        let policies = compiled(&[policy("p", action, vec![rule(0, vec![condition])])]);
        assert!(policies[0].looks_at_server_names());
        bytes.with(|access| decide(policies.iter(), access).verdict.is_denied())
    };
    let named = |texts: &[&str]| one_of(Attribute::ServerName, texts);
    for (server_name, texts, holds) in [
        (ServerName::Named("a.shop"), &["A.shop"][..], true),
        (ServerName::Named("a.shop"), &["b.shop", "*.shop"], true),
        (ServerName::Named("a.shop"), &["shop"], false),
        (ServerName::Absent, &["*"], false),
    ] {
        assert_eq!(denied(server_name, Deny, named(texts)), holds);
        assert_eq!(denied(server_name, Allow, named(texts)), !holds);
        assert_eq!(denied(server_name, Deny, not(named(texts))), !holds);
        assert_eq!(denied(server_name, Allow, not(named(texts))), holds);
    }
    // It might be any.
    for condition in [named(&["a"]), not(named(&["a"]))] {
        assert!(denied(ServerName::Unseen, Deny, condition.clone()));
        assert!(denied(ServerName::Unseen, Allow, condition));
    }
}

#[test]
fn what_is_not_understood_is_refused_as_a_whole() {
    let condition = |condition| {
        policy(
            "p",
            wire::PolicyAction::Deny,
            vec![rule(0, vec![condition])],
        )
    };
    for refused in [
        policy("", wire::PolicyAction::Deny, vec![]),
        wire::Policy {
            action: 9,
            ..policy("p", wire::PolicyAction::Deny, vec![])
        },
        condition(wire::Condition::default()),
        condition(one_of(Attribute::Method, &[])),
        condition(one_of(Attribute::RequestHeader, &["x"])),
        condition(of_key(&["a b"], one_of(Attribute::RequestHeader, &["x"]))),
        condition(one_of(Attribute::Claim, &["x"])),
        condition(one_of(Attribute::Path, &["/{a}"])),
        condition(block(Attribute::SourceIp, [10, 0, 0, 0], 33)),
        condition(port(70_000)),
        condition(wire::Condition {
            patterns: vec![wire::Pattern::default()],
            ..one_of(Attribute::Method, &[])
        }),
    ] {
        assert!(Policy::compile(&refused).is_err(), "{refused:?}");
    }
}

/// What the policies come to, by the words of Istio's reference, without any regard for speed.
fn naive(policies: &[wire::Policy], asked: &Asked) -> bool {
    let of = |action: wire::PolicyAction| {
        policies
            .iter()
            .filter(move |policy| policy.action() == action && !policy.dry_run)
    };
    let matching = |policy: &wire::Policy| {
        policy
            .rules
            .iter()
            .any(|rule| naive_rule(policy.action(), rule, asked))
    };
    if of(wire::PolicyAction::Deny).any(matching) {
        return false;
    }
    of(wire::PolicyAction::Allow).count() == 0 || of(wire::PolicyAction::Allow).any(matching)
}

fn naive_rule(action: wire::PolicyAction, rule: &wire::PolicyRule, asked: &Asked) -> bool {
    let all = || {
        rule.clauses
            .iter()
            .flat_map(|clause| &clause.matches)
            .flat_map(|one| &one.conditions)
    };
    let of_request =
        |condition: &wire::Condition| condition.attribute >= i32::from(Attribute::Host);
    if !asked.is_request && action == wire::PolicyAction::Allow && all().any(of_request) {
        return false;
    }
    for clause in &rule.clauses {
        let mut fulfilled = false;
        for matching in &clause.matches {
            let mut holds = true;
            for condition in &matching.conditions {
                let dropped = of_request(condition) && !asked.is_request;
                if !dropped && naive_values(condition, asked) == condition.negated {
                    holds = false;
                }
            }
            fulfilled |= holds;
        }
        if !fulfilled {
            return false;
        }
    }
    true
}

fn naive_values(condition: &wire::Condition, asked: &Asked) -> bool {
    let text = match condition.attribute() {
        Attribute::SourceNamespace => asked.identity.namespace().to_owned(),
        Attribute::SourceServiceAccount => {
            format!(
                "{}/{}",
                asked.identity.namespace(),
                asked.identity.service_account()
            )
        }
        Attribute::DestinationPort => return condition.ports.contains(&asked.destination.1.into()),
        Attribute::SourceIp => {
            let IpAddr::V4(ip) = asked.ips[0] else {
                return false;
            };
            return condition.blocks.iter().any(|block| {
                let bits = |octets: &[u8]| {
                    octets
                        .iter()
                        .map(|octet| format!("{octet:08b}"))
                        .collect::<String>()
                };
                let length = block.length as usize;
                bits(&block.address)[..length] == bits(&ip.octets())[..length]
            });
        }
        Attribute::Host => asked.authority.to_lowercase(),
        Attribute::Method => asked.method.to_owned(),
        Attribute::Path => asked.path.to_owned(),
        Attribute::RequestHeader => {
            let found = asked
                .headers
                .iter()
                .find(|(name, _)| *name == condition.key[0]);
            let Some((_, value)) = found else {
                return false;
            };
            (*value).to_owned()
        }
        other => panic!("not generated: {other:?}"),
    };
    condition.patterns.iter().any(|pattern| {
        let pattern = match pattern.kind.as_ref().unwrap() {
            Kind::Exact(text) => format!("^{}$", regex::escape(text)),
            Kind::Prefix(text) => format!("^{}", regex::escape(text)),
            Kind::Suffix(text) => format!("{}$", regex::escape(text)),
            Kind::Present(()) => ".".to_owned(),
            Kind::Template(text) => {
                let means = text.replace("{**}", ".*").replace("{*}", "[^/]+");
                format!("^{means}$")
            }
        };
        let pattern = match condition.attribute() {
            Attribute::Host => pattern.to_lowercase(),
            _ => pattern,
        };
        regex::Regex::new(&pattern).unwrap().is_match(&text)
    })
}

fn any_condition() -> impl Strategy<Value = wire::Condition> {
    let texts = |attribute: Attribute, from: &'static [&'static str]| {
        prop::sample::subsequence(from, 1..=from.len())
            .prop_map(move |some| one_of(attribute, &some))
    };
    let header = texts(Attribute::RequestHeader, &["one", "t*", "*o", "*"]);
    let accounts = texts(
        Attribute::SourceServiceAccount,
        &["shop/client", "a/client"],
    );
    let positive = prop_oneof![
        texts(Attribute::SourceNamespace, &["shop", "a*", "*b", "*"]),
        accounts,
        texts(Attribute::Host, &["App", "b.*", "*:80", "*"]),
        texts(Attribute::Method, &["GET", "P*", "*T"]),
        texts(Attribute::Path, &["/a", "/b/*", "*/c", "/{*}/c", "/{**}"]),
        (prop_oneof![Just("x-a"), Just("x-b")], header)
            .prop_map(|(name, one)| of_key(&[name], one)),
        (0u32..3).prop_map(|number| port(79 + number)),
        (0u8..3, 0u32..=32).prop_map(|(last, length)| block(
            Attribute::SourceIp,
            [10, 0, 0, last],
            length
        )),
    ];
    (positive, any::<bool>()).prop_map(|(condition, negated)| wire::Condition {
        negated,
        ..condition
    })
}

fn any_policies() -> impl Strategy<Value = Vec<wire::Policy>> {
    use wire::PolicyAction::{Allow, Audit, Deny};
    let matching = prop::collection::vec(any_condition(), 1..3)
        .prop_map(|conditions| wire::PolicyMatch { conditions });
    let clause =
        prop::collection::vec(matching, 1..3).prop_map(|matches| wire::PolicyClause { matches });
    let rule = (0u32..9, prop::collection::vec(clause, 0..3))
        .prop_map(|(index, clauses)| wire::PolicyRule { index, clauses });
    let action = prop_oneof![Just(Allow), Just(Deny), Just(Audit)];
    let parts = (
        action,
        prop::collection::vec(rule, 0..3),
        prop::bool::weighted(0.1),
    );
    let made = parts.prop_map(|(action, rules, dry_run)| wire::Policy {
        dry_run,
        ..policy("p", action, rules)
    });
    prop::collection::vec(made, 0..4)
}

fn any_asked() -> impl Strategy<Value = Asked> {
    let who = prop_oneof![
        Just("shop/sa/client"),
        Just("ab/sa/client"),
        Just("a/sa/other")
    ];
    let method = prop_oneof![Just("GET"), Just("PUT"), Just("POST")];
    let authority = prop_oneof![Just("app"), Just("B.x"), Just("app:80"), Just("")];
    let path = prop_oneof![
        Just("/a"),
        Just("/b/c"),
        Just("/b/x/c"),
        Just("/"),
        Just("*")
    ];
    let header = (
        prop_oneof![Just("x-a"), Just("x-b")],
        prop_oneof![Just("one"), Just("two"), Just("")],
    );
    let header = prop::option::of(header);
    (
        who,
        method,
        authority,
        path,
        header,
        79u16..82,
        0u8..3,
        any::<bool>(),
    )
        .prop_map(
            |(who, method, authority, path, header, port, last, is_request)| Asked {
                identity: format!("spiffe://cluster.local/ns/{who}").parse().unwrap(),
                ips: [[10, 0, 0, last].into(); 2],
                destination: ([10, 96, 0, 9].into(), port),
                method,
                authority,
                path,
                headers: header.into_iter().collect(),
                claims: None,
                server_name: ServerName::Absent,
                doubt: None,
                is_request,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn decisions_are_those_of_the_naive_evaluator(policies in any_policies(), asked in any_asked()) {
        let ready = compiled(&policies);
        let allowed = asked.with(|access| !decide(ready.iter(), access).verdict.is_denied());
        prop_assert_eq!(allowed, naive(&policies, &asked));
    }
}
