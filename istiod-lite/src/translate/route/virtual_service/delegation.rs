// SPDX-License-Identifier: Apache-2.0
//! Rules that a VirtualService leaves to another one, which has no hosts and is for nobody by itself. In their place come
//! the other's: each for what both are for, and with what the first one says where it says nothing itself.

use std::{collections::BTreeMap, sync::Arc};

use cluster::kinds::{self, virtual_service as vs};

use super::{
    super::{Faults, hosts::is_exported},
    Here, MAX_RULES, in_mesh,
};
use crate::facts::NamespacedName;

/// A rule, as it comes to where it was left.
pub(super) struct Part {
    pub(super) rule: vs::HttpRoute,
    /// Where it stands.
    pub(super) at: String,
    /// Where its short names are read.
    pub(super) namespace: Arc<str>,
}

/// Whom a VirtualService leaves rules to.
pub(crate) fn delegates(service: &kinds::VirtualService) -> impl Iterator<Item = NamespacedName> {
    let own = service.metadata.namespace.as_deref().unwrap_or_default();
    let all = service
        .spec
        .http
        .iter()
        .filter_map(|one| one.delegate.as_ref());
    all.map(|to| name_of(to, own))
}

fn name_of(to: &vs::Delegate, own: &str) -> NamespacedName {
    let namespace = to.namespace.as_deref().filter(|name| !name.is_empty());
    NamespacedName::new(namespace.unwrap_or(own), to.name.as_str())
}

/// What comes in place of a rule at `at`; or why nothing can.
pub(super) fn parts<'a>(
    root: &vs::HttpRoute,
    to: &vs::Delegate,
    at: &str,
    here: Here<'_>,
    others: &impl Fn(&NamespacedName) -> Option<&'a kinds::VirtualService>,
    notes: &mut Faults,
) -> Result<Vec<Part>, String> {
    if !root.route.is_empty() || root.redirect.is_some() || root.direct_response.is_some() {
        return Err("goes with no route, redirect or directResponse".to_owned());
    }
    let name = name_of(to, here.namespace);
    let other = others(&name).ok_or_else(|| format!("there is no VirtualService {name}"))?;
    let spec = &other.spec;
    if !is_exported(&spec.export_to, &name.namespace, here.namespace) {
        return Err(format!(
            "VirtualService {name} is not exported to this namespace"
        ));
    }
    if !spec.hosts.is_empty() {
        return Err(format!(
            "VirtualService {name} has hosts, and rules are left only to one that has none"
        ));
    }
    if !spec.tls.is_empty() || !spec.tcp.is_empty() || !spec.unknown_fields.is_empty() {
        return Err(format!(
            "VirtualService {name} has more than rules for HTTP"
        ));
    }
    if spec.http.iter().any(|one| one.delegate.is_some()) {
        return Err(format!(
            "VirtualService {name} leaves rules to another itself"
        ));
    }
    if spec.http.is_empty() {
        return Err(format!("VirtualService {name} has no rules"));
    }
    if spec.http.len() > MAX_RULES {
        return Err(format!(
            "VirtualService {name} has more than {MAX_RULES} rules"
        ));
    }
    let mut parts = Vec::new();
    for (position, leaf) in spec.http.iter().enumerate() {
        let at = format!("{at}.delegate({name}).http[{position}]");
        let matches = matches_of(&root.r#match, &leaf.r#match);
        if matches.is_empty() && !(root.r#match.is_empty() && leaf.r#match.is_empty()) {
            let words = "no request can match it and what is left to it: the rule is left out";
            notes.add(format!("{at}.match"), words);
            continue;
        }
        parts.push(Part {
            rule: vs::HttpRoute {
                r#match: matches,
                ..with_defaults(leaf, root, here)
            },
            at,
            namespace: name.namespace.clone(),
        });
    }
    Ok(parts)
}

/// What a rule doesn't say, the one that left it to this one says.
fn with_defaults(leaf: &vs::HttpRoute, root: &vs::HttpRoute, here: Here<'_>) -> vs::HttpRoute {
    let mut rule = leaf.clone();
    rule.name = match (&root.name, &leaf.name) {
        (Some(root), Some(leaf)) => Some(format!("{root}-{leaf}")),
        (root, leaf) => leaf.clone().or_else(|| root.clone()),
    };
    // A name is read where it was written.
    let full = |to: &vs::Destination| vs::Destination {
        host: here
            .host(&to.host)
            .map_or_else(|_| to.host.clone(), |host| host.to_string()),
        ..to.clone()
    };
    if rule.mirror.is_none() {
        rule.mirror = root.mirror.as_ref().map(full);
        rule.mirror_percentage = root.mirror_percentage.clone();
    }
    if rule.mirrors.is_empty() {
        let mirrors = root.mirrors.iter().map(|mirror| vs::Mirror {
            destination: full(&mirror.destination),
            ..mirror.clone()
        });
        rule.mirrors = mirrors.collect();
    }
    let vs::HttpRoute {
        rewrite,
        timeout,
        retries,
        fault,
        cors_policy,
        headers,
        ..
    } = root.clone();
    rule.rewrite = rule.rewrite.or(rewrite);
    rule.timeout = rule.timeout.or(timeout);
    rule.retries = rule.retries.or(retries);
    rule.fault = rule.fault.or(fault);
    rule.cors_policy = rule.cors_policy.or(cors_policy);
    rule.headers = rule.headers.or(headers);
    rule.unknown_fields.extend(root.unknown_fields.clone());
    rule
}

/// For what both are: each condition of the one with each of the other, if both can hold.
fn matches_of(root: &[vs::HttpMatch], leaf: &[vs::HttpMatch]) -> Vec<vs::HttpMatch> {
    match (root, leaf) {
        ([], all) | (all, []) => all.to_vec(),
        _ => {
            let pairs = root
                .iter()
                .flat_map(|root| leaf.iter().map(move |leaf| (root, leaf)));
            pairs.filter_map(|(root, leaf)| both(root, leaf)).collect()
        }
    }
}

/// None where no request can be known to match both.
fn both(root: &vs::HttpMatch, leaf: &vs::HttpMatch) -> Option<vs::HttpMatch> {
    let any_case = match (&root.uri, &leaf.uri) {
        (Some(_), Some(_)) if root.ignore_uri_case != leaf.ignore_uri_case => return None,
        (Some(_), _) => root.ignore_uri_case,
        (None, _) => leaf.ignore_uri_case,
    };
    let same = |root: &Option<String>, leaf: &Option<String>| match (root, leaf) {
        (Some(root), Some(leaf)) if root != leaf => None,
        (root, leaf) => Some(leaf.clone().or_else(|| root.clone())),
    };
    if root.port.is_some() && leaf.port.is_some() && root.port != leaf.port {
        return None;
    }
    let mut source_labels = root.source_labels.clone();
    source_labels.extend(leaf.source_labels.clone());
    let mut unknown_fields = root.unknown_fields.clone();
    unknown_fields.extend(leaf.unknown_fields.clone());
    Some(vs::HttpMatch {
        name: leaf.name.clone().or_else(|| root.name.clone()),
        uri: narrower(root.uri.as_ref(), leaf.uri.as_ref())?,
        ignore_uri_case: any_case,
        scheme: narrower(root.scheme.as_ref(), leaf.scheme.as_ref())?,
        method: narrower(root.method.as_ref(), leaf.method.as_ref())?,
        authority: narrower(root.authority.as_ref(), leaf.authority.as_ref())?,
        headers: each(&root.headers, &leaf.headers, narrower)?,
        // Of what must not be, neither says less than the other.
        without_headers: each(&root.without_headers, &leaf.without_headers, equal)?,
        query_params: each(&root.query_params, &leaf.query_params, narrower)?,
        port: leaf.port.or(root.port),
        source_labels,
        source_namespace: same(&root.source_namespace, &leaf.source_namespace)?,
        gateways: match in_mesh(&root.gateways) {
            true => leaf.gateways.clone(),
            false => root.gateways.clone(),
        },
        stat_prefix: None,
        unknown_fields,
    })
}

type Narrow =
    fn(Option<&vs::StringMatch>, Option<&vs::StringMatch>) -> Option<Option<vs::StringMatch>>;

fn each(
    root: &BTreeMap<String, vs::StringMatch>,
    leaf: &BTreeMap<String, vs::StringMatch>,
    narrow: Narrow,
) -> Option<BTreeMap<String, vs::StringMatch>> {
    let names = root.keys().chain(leaf.keys());
    let read = names.map(|name| {
        let value = narrow(root.get(name), leaf.get(name))?;
        Some((name.clone(), value.unwrap_or_default()))
    });
    read.collect()
}

/// The one that says more, where what it matches the other one matches as well: which of two expressions does, nobody can
/// tell.
fn narrower(
    root: Option<&vs::StringMatch>,
    leaf: Option<&vs::StringMatch>,
) -> Option<Option<vs::StringMatch>> {
    let (Some(root), Some(leaf)) = (root, leaf) else {
        return equal(root, leaf);
    };
    let wide = root
        .prefix
        .as_deref()
        .filter(|_| root.regex.is_none() && root.exact.is_none());
    let narrow = leaf.exact.as_deref().or(leaf.prefix.as_deref());
    match (wide, narrow.filter(|_| leaf.regex.is_none())) {
        (Some(wide), Some(narrow)) if narrow.starts_with(wide) => Some(Some(leaf.clone())),
        _ => equal(Some(root), Some(leaf)),
    }
}

fn equal(
    root: Option<&vs::StringMatch>,
    leaf: Option<&vs::StringMatch>,
) -> Option<Option<vs::StringMatch>> {
    match (root, leaf) {
        (Some(root), Some(leaf)) if root != leaf => None,
        (root, leaf) => Some(leaf.or(root).cloned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn matches(value: Value) -> Vec<vs::HttpMatch> {
        serde_json::from_value(value).expect("conditions")
    }

    #[track_caller]
    fn check(root: Value, leaf: Value, expected: Value) {
        assert_eq!(
            matches_of(&matches(root), &matches(leaf)),
            matches(expected)
        );
    }

    #[test]
    fn a_rule_is_for_what_both_are_for() {
        let prefix = |text: &str| json!({"uri": {"prefix": text}});
        let exact = |text: &str| json!({"uri": {"exact": text}});
        let regex = |text: &str| json!({"uri": {"regex": text}});
        check(json!([prefix("/a")]), json!([]), json!([prefix("/a")]));
        check(json!([]), json!([prefix("/a")]), json!([prefix("/a")]));
        check(
            json!([prefix("/a")]),
            json!([prefix("/a/b")]),
            json!([prefix("/a/b")]),
        );
        check(
            json!([prefix("/a")]),
            json!([exact("/a/b")]),
            json!([exact("/a/b")]),
        );
        check(json!([prefix("/a/b")]), json!([prefix("/a")]), json!([]));
        check(json!([exact("/a")]), json!([prefix("/")]), json!([]));
        check(json!([regex(".*")]), json!([prefix("/a")]), json!([]));
        check(
            json!([regex(".*")]),
            json!([regex(".*")]),
            json!([regex(".*")]),
        );
        check(
            json!([prefix("/a"), {"method": {"exact": "GET"}}]),
            json!([prefix("/a/b"), prefix("/c")]),
            json!([
                prefix("/a/b"),
                {"uri": {"prefix": "/a/b"}, "method": {"exact": "GET"}},
                {"uri": {"prefix": "/c"}, "method": {"exact": "GET"}},
            ]),
        );
    }

    #[test]
    fn what_contradicts_matches_nothing() {
        check(json!([{"port": 80}]), json!([{"port": 81}]), json!([]));
        check(
            json!([{"port": 80}]),
            json!([{"sourceNamespace": "a"}]),
            json!([{"port": 80, "sourceNamespace": "a"}]),
        );
        check(
            json!([{"headers": {"x": {"exact": "1"}}}]),
            json!([{"headers": {"x": {"exact": "2"}}}]),
            json!([]),
        );
        check(
            json!([{"headers": {"x": {"exact": "1"}}, "withoutHeaders": {"z": {"prefix": "a"}}}]),
            json!([{"headers": {"y": {}}, "withoutHeaders": {"z": {"prefix": "a"}}}]),
            json!([{"headers": {"x": {"exact": "1"}, "y": {}}, "withoutHeaders": {"z": {"prefix": "a"}}}]),
        );
        check(
            json!([{"withoutHeaders": {"z": {"prefix": "a"}}}]),
            json!([{"withoutHeaders": {"z": {"prefix": "ab"}}}]),
            json!([]),
        );
        check(
            json!([{"uri": {"prefix": "/a"}, "ignoreUriCase": true}]),
            json!([{"uri": {"prefix": "/a"}}]),
            json!([]),
        );
    }
}
