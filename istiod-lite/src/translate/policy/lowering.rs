// SPDX-License-Identifier: Apache-2.0
//! What is left of a rule at ztunnel never lets in more than the rule as written, and where it lets in less, its author is
//! told: random policies, by an evaluator of what is written and one of what is sent.

use std::net::Ipv4Addr;

use proptest::prelude::*;
use serde_json::{Value, json};
use wire::string_match::MatchType;

use super::*;

/// A connection, and a request on it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    namespace: &'static str,
    account: &'static str,
    ip: [u8; 4],
    port: u16,
    method: &'static str,
    path: &'static str,
    header: Option<&'static str>,
}

const METHODS: [&str; 2] = ["GET", "PUT"];
const PATHS: [&str; 2] = ["/a", "/b"];
const HEADERS: [Option<&str>; 2] = [None, Some("one")];

impl Asked {
    fn principal(&self) -> String {
        format!("cluster.local/ns/{}/sa/{}", self.namespace, self.account)
    }

    /// The same connection with every request that rules can tell apart.
    fn requests(self) -> impl Iterator<Item = Self> {
        METHODS.into_iter().flat_map(move |method| {
            PATHS.into_iter().flat_map(move |path| {
                HEADERS.into_iter().map(move |header| Self {
                    method,
                    path,
                    header,
                    ..self
                })
            })
        })
    }
}

/// What a value that can't be read counts as.
#[derive(Clone, Copy, PartialEq)]
enum Unread {
    Matches,
    MatchesNot,
}

/// Whether a rule as written matches.
fn written(rule: &Value, asked: &Asked, unread: Unread) -> bool {
    let entries = |name: &str| rule[name].as_array().cloned().unwrap_or_default();
    let any = |entries: Vec<Value>, inner: &str| {
        entries.is_empty()
            || entries.iter().any(|entry| {
                let fields = entry[inner].as_object().expect("an object");
                fields
                    .iter()
                    .all(|(field, values)| field_holds(field, values, asked, unread))
            })
    };
    any(entries("from"), "source")
        && any(entries("to"), "operation")
        && entries("when").iter().all(|when| {
            let key = when["key"].as_str().expect("a key");
            let field = match key {
                "source.namespace" => "namespaces",
                "destination.port" => "ports",
                other => other,
            };
            field_holds(field, &when["values"], asked, unread)
        })
}

fn field_holds(field: &str, values: &Value, asked: &Asked, unread: Unread) -> bool {
    let (field, negated) = match field.strip_prefix("not") {
        Some(rest) => (rest.to_lowercase(), true),
        None => (field.to_lowercase(), false),
    };
    let mut texts = values
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str);
    let found = texts.any(|text| match field.as_str() {
        "principals" => text_matches(text, &asked.principal()),
        "namespaces" => text_matches(text, asked.namespace),
        "methods" => text_matches(text, asked.method),
        "paths" => text_matches(text, asked.path),
        "request.headers[x]" => asked
            .header
            .is_some_and(|header| text_matches(text, header)),
        "ports" => match text.parse::<u16>() {
            Ok(port) => port == asked.port,
            // What excludes and can't be read excludes nothing, or everything.
            Err(_) => (unread == Unread::Matches) != negated,
        },
        "ipblocks" => match text
            .split_once('/')
            .map(|(ip, bits)| (ip.parse(), bits.parse::<u32>()))
        {
            Some((Ok(first), Ok(bits @ 0..=32))) => {
                let distance = u32::from(Ipv4Addr::from(asked.ip))
                    ^ u32::from_be_bytes(Ipv4Addr::octets(&first));
                distance.checked_shr(32 - bits).unwrap_or(0) == 0
            }
            _ => (unread == Unread::Matches) != negated,
        },
        other => panic!("{other} is not generated"),
    });
    found != negated
}

fn text_matches(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(suffix), _) => text.ends_with(suffix),
        (None, Some(prefix)) => text.starts_with(prefix),
        (None, None) => text == pattern,
    }
}

/// Whether a rule as it is sent matches.
fn sent(rule: &wire::Rule, asked: &Asked) -> bool {
    rule.clauses
        .iter()
        .all(|clause| clause.matches.iter().any(|one| match_holds(one, asked)))
}

fn match_holds(one: &wire::Match, asked: &Asked) -> bool {
    let text = |patterns: &[wire::StringMatch], text: &str| {
        patterns
            .iter()
            .any(|pattern| match pattern.match_type.as_ref().expect("set") {
                MatchType::Exact(exact) => text == exact,
                MatchType::Prefix(prefix) => text.starts_with(prefix.as_str()),
                MatchType::Suffix(suffix) => text.ends_with(suffix.as_str()),
                MatchType::Presence(()) => !text.is_empty(),
            })
    };
    let ip = |blocks: &[wire::Address]| {
        blocks.iter().any(|block| {
            let first = <[u8; 4]>::try_from(&*block.address).expect("IPv4");
            let distance = u32::from_be_bytes(first) ^ u32::from_be_bytes(asked.ip);
            distance.checked_shr(32 - block.length).unwrap_or(0) == 0
        })
    };
    let port = |ports: &[u32]| ports.contains(&asked.port.into());
    let principal = asked.principal();
    // A match of nothing never holds.
    *one != wire::Match::default()
        && (one.principals.is_empty() || text(&one.principals, &principal))
        && !text(&one.not_principals, &principal)
        && (one.namespaces.is_empty() || text(&one.namespaces, asked.namespace))
        && !text(&one.not_namespaces, asked.namespace)
        && (one.source_ips.is_empty() || ip(&one.source_ips))
        && !ip(&one.not_source_ips)
        && (one.destination_ports.is_empty() || port(&one.destination_ports))
        && !port(&one.not_destination_ports)
}

fn any_asked() -> impl Strategy<Value = Asked> {
    let namespace = prop_oneof![Just("a"), Just("ab")];
    let account = prop_oneof![Just("x"), Just("y")];
    (namespace, account, 0u8..3, 80u16..83).prop_map(|(namespace, account, last, port)| Asked {
        namespace,
        account,
        ip: [10, 0, 0, last],
        port,
        method: "GET",
        path: "/a",
        header: None,
    })
}

/// An object of some of these fields.
fn fields(of: &'static [(&'static str, &'static [&'static str])]) -> impl Strategy<Value = Value> {
    let chosen = prop::sample::subsequence(of, 1..=2.min(of.len()));
    chosen.prop_flat_map(|chosen| {
        let each: Vec<_> = chosen
            .into_iter()
            .map(|(name, values)| {
                let some = prop::sample::subsequence(values, 1..=values.len());
                some.prop_map(move |some| (name, json!(some)))
            })
            .collect();
        each.prop_map(|pairs| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    })
}

fn any_rule() -> impl Strategy<Value = Value> {
    const SOURCE: &[(&str, &[&str])] = &[
        ("principals", &["cluster.local/ns/a/sa/x", "*/sa/y"]),
        ("notPrincipals", &["cluster.local/ns/a*"]),
        ("namespaces", &["a", "*b"]),
        ("notNamespaces", &["a*", "ab"]),
        ("ipBlocks", &["10.0.0.0/31", "10.0.0.2/32", "10.0.0.0/99"]),
        ("notIpBlocks", &["10.0.0.1/32", "nonsense"]),
    ];
    const OPERATION: &[(&str, &[&str])] = &[
        ("ports", &["80", "81", "http"]),
        ("notPorts", &["80", "99999"]),
        ("methods", &["GET", "P*"]),
        ("notMethods", &["PUT"]),
        ("paths", &["/a", "/b*"]),
        ("notPaths", &["/a"]),
    ];
    const WHEN: &[(&str, &[&str])] = &[
        ("source.namespace", &["a", "ab"]),
        ("destination.port", &["80", "x"]),
        ("request.headers[x]", &["one", "*"]),
    ];
    let from = fields(SOURCE).prop_map(|source| json!({ "source": source }));
    let to = fields(OPERATION).prop_map(|operation| json!({ "operation": operation }));
    let when = fields(WHEN).prop_map(|chosen| {
        let (key, values) = chosen
            .as_object()
            .and_then(|o| o.iter().next())
            .expect("one");
        json!({ "key": key, "values": values })
    });
    let some = |one: BoxedStrategy<Value>| prop::collection::vec(one, 0..3);
    (some(from.boxed()), some(to.boxed()), some(when.boxed())).prop_map(|(from, to, when)| {
        let mut rule = json!({});
        for (name, entries) in [("from", from), ("to", to), ("when", when)] {
            if !entries.is_empty() {
                rule[name] = json!(entries);
            }
        }
        rule
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn what_is_sent_is_never_laxer_than_what_is_written(
        rules in prop::collection::vec(any_rule(), 0..3),
        denies in any::<bool>(),
        connections in prop::collection::vec(any_asked(), 1..4),
    ) {
        let action = if denies { "DENY" } else { "ALLOW" };
        let policy: kinds::AuthorizationPolicy = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"action": action, "rules": rules},
        })).expect("a policy");
        let Policy { authorization, acceptance, .. } = translate(&policy, "istio-system").facts;
        let authorization = authorization.expect("sent");
        // Whatever can't be read is held against whoever asks.
        let unread = if denies { Unread::Matches } else { Unread::MatchesNot };
        for connection in connections {
            let at_ztunnel = authorization.rules.iter().any(|rule| sent(rule, &connection));
            let as_written: Vec<bool> = connection
                .requests()
                .map(|asked| rules.iter().any(|rule| written(rule, &asked, unread)))
                .collect();
            if denies {
                prop_assert!(at_ztunnel || !as_written.contains(&true), "lets in what is denied");
            } else {
                prop_assert!(!at_ztunnel || !as_written.contains(&false), "lets in what is not allowed");
            }
            if acceptance == Acceptance::Accepted {
                prop_assert!(as_written.iter().all(|one| *one == at_ztunnel), "differs, and nobody is told");
            }
        }
    }
}
