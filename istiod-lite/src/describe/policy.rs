// SPDX-License-Identifier: Apache-2.0
//! What a waypoint is told of who may do what, as people read it.

use proto::waypoint as wire;
use serde_json::{Value, json};
use wire::authorizer::Protocol;
use wire::pattern::Kind;

use super::{Fields, ip, telemetry::telemetry, waypoint::seconds};

pub(super) fn waypoint(waypoint: &wire::Waypoint) -> Value {
    let mut out = Fields::default();
    out.add("namespace", &waypoint.namespace);
    out.add("name", &waypoint.name);
    out.add("policies", policies(&waypoint.policies));
    out.named(
        "pathNormalization",
        waypoint.path_normalization().as_str_name(),
        "BASE",
    );
    let hops = Some(waypoint.trusted_hops).filter(|hops| *hops > 0);
    out.add("trustedHops", hops);
    out.add("trustDomains", waypoint.trust_domains.clone());
    let authorizers = waypoint.authorizers.iter();
    out.add(
        "authorizers",
        authorizers.map(authorizer).collect::<Vec<_>>(),
    );
    out.add("explain", waypoint.explain);
    out.add("tokenRules", token_rules(&waypoint.token_rules));
    let closures = waypoint.closures.iter().map(|closure| {
        let what = if closure.requests_only {
            "requests"
        } else {
            "everything"
        };
        json!({ "why": closure.why, "ports": closure.ports, "what": what })
    });
    out.add("closures", closures.collect::<Vec<_>>());
    out.add("telemetry", waypoint.telemetry.as_ref().map(telemetry));
    out.into()
}

fn authorizer(authorizer: &wire::Authorizer) -> Value {
    let mut out = Fields::default();
    out.add("name", &authorizer.name);
    out.add("invalid", &authorizer.invalid);
    out.add("namespace", &authorizer.namespace);
    out.add("hostname", &authorizer.hostname);
    out.add("port", Some(authorizer.port).filter(|port| *port > 0));
    out.add("timeout", authorizer.timeout.map(seconds));
    out.add("failOpen", authorizer.fail_open);
    let status = Some(authorizer.status_on_error).filter(|status| *status > 0);
    out.add("statusOnError", status);
    if let Some(body) = &authorizer.body {
        let mut fields = Fields::default();
        fields.add("maxBytes", Some(body.max_bytes));
        fields.add("allowPartial", body.allow_partial);
        fields.add("asBytes", body.as_bytes);
        out.add("body", Value::from(fields));
    }
    let patterns =
        |patterns: &[wire::Pattern]| patterns.iter().map(pattern).collect::<Vec<String>>();
    match &authorizer.protocol {
        Some(Protocol::Grpc(())) => out.add("protocol", "grpc"),
        Some(Protocol::Http(http)) => {
            out.add("protocol", "http");
            out.add("pathPrefix", &http.path_prefix);
            out.add("requestHeaders", patterns(&http.request_headers));
            let added = http.added_headers.iter();
            let added = added.map(|header| format!("{}: {}", header.name, header.value));
            out.add("addedHeaders", added.collect::<Vec<_>>());
            out.add("upstreamOnAllow", patterns(&http.upstream_on_allow));
            out.add("downstreamOnDeny", patterns(&http.downstream_on_deny));
            out.add("downstreamOnAllow", patterns(&http.downstream_on_allow));
        }
        None => {}
    }
    out.into()
}

pub(super) fn policies(policies: &[wire::Policy]) -> Vec<Value> {
    policies.iter().map(policy).collect()
}

pub(super) fn token_rules(rules: &[wire::TokenRule]) -> Vec<Value> {
    let each = rules.iter().map(|rule| {
        let mut out = Fields::default();
        out.add("of", &rule.of);
        out.add("issuer", &rule.issuer);
        out.add("audiences", rule.audiences.clone());
        out.add("keyBytes", Some(rule.keys.len()).filter(|bytes| *bytes > 0));
        out.add("noKeys", &rule.no_keys);
        let headers = rule.headers.iter();
        let headers = headers.map(|header| format!("{}: {}", header.name, header.prefix));
        out.add("headers", headers.collect::<Vec<_>>());
        out.add("params", rule.params.clone());
        out.add("cookies", rule.cookies.clone());
        out.add("forward", rule.forward);
        out.add("payloadHeader", &rule.payload_header);
        let claims = rule.claim_headers.iter();
        let claims = claims.map(|one| format!("{}: {}", one.header, one.claim));
        out.add("claimHeaders", claims.collect::<Vec<_>>());
        out.add("spaceDelimited", rule.space_delimited.clone());
        Value::from(out)
    });
    each.collect()
}

fn policy(policy: &wire::Policy) -> Value {
    let mut out = Fields::default();
    out.add("policy", format!("{}/{}", policy.namespace, policy.name));
    out.named("action", policy.action().as_str_name(), "");
    out.add("dryRun", policy.dry_run);
    let rules = policy.rules.iter().map(|rule| {
        let clauses = rule.clauses.iter().map(|clause| {
            let matches = clause.matches.iter().map(|matching| {
                let conditions = matching.conditions.iter().map(condition);
                conditions.collect::<Vec<_>>().join(" and ")
            });
            matches.collect::<Vec<_>>()
        });
        json!({ "index": rule.index, "allOf": clauses.collect::<Vec<_>>() })
    });
    out.add("rules", rules.collect::<Vec<_>>());
    out.add("authorizer", &policy.authorizer);
    out.into()
}

/// As `HOST[x] is one of a, b*`.
fn condition(condition: &wire::Condition) -> String {
    let steps = condition.key.iter().map(|step| format!("[{step}]"));
    let patterns = condition.patterns.iter().map(pattern);
    let blocks = condition.blocks.iter();
    let blocks = blocks.map(|block| format!("{}/{}", ip(&block.address), block.length));
    let ports = condition.ports.iter().map(u32::to_string);
    let principals = condition.request_principals.iter().map(|principal| {
        let part = |part: &Option<wire::Pattern>| part.as_ref().map(pattern).unwrap_or_default();
        format!("{}/{}", part(&principal.issuer), part(&principal.subject))
    });
    let values = patterns.chain(blocks).chain(ports).chain(principals);
    let sense = if condition.negated {
        "none of"
    } else {
        "one of"
    };
    format!(
        "{}{} is {sense} {}",
        condition.attribute().as_str_name(),
        steps.collect::<String>(),
        values.collect::<Vec<_>>().join(", ")
    )
}

fn pattern(pattern: &wire::Pattern) -> String {
    match &pattern.kind {
        Some(Kind::Exact(text) | Kind::Template(text)) => text.clone(),
        Some(Kind::Prefix(text)) => format!("{text}*"),
        Some(Kind::Suffix(text)) => format!("*{text}"),
        Some(Kind::Present(())) => "*".to_owned(),
        None => String::new(),
    }
}
