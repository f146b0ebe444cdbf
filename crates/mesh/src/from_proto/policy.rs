// SPDX-License-Identifier: Apache-2.0
//! `istio.security.Authorization` → [`Policy`].

use std::sync::Arc;

use ipnet::IpNet;
use proto::security as wire;

use super::{ConvertError, Fault, known, parse_ip, required};
use crate::policy::{
    Action, Clause, Enforcement, Match, Policy, PolicyScope, Rule, ServiceAccountMatch,
    StringMatch, Unparsable, Values,
};

/// Converts a policy. A match value that cannot be read is kept as unparsable.
///
/// # Errors
/// Names the field that is not what it must be.
pub fn policy(wire: wire::Authorization) -> Result<Policy, ConvertError> {
    let object = format!("Authorization {}/{}", wire.namespace, wire.name);
    convert(wire).map_err(|fault| fault.of(object))
}

fn convert(wire: wire::Authorization) -> Result<Policy, Fault> {
    required("name", &wire.name)?;
    Ok(Policy {
        scope: match known("scope", wire.scope)? {
            wire::Scope::Global => PolicyScope::Global,
            wire::Scope::Namespace => PolicyScope::Namespace,
            wire::Scope::WorkloadSelector => PolicyScope::WorkloadSelector,
        },
        action: match known("action", wire.action)? {
            wire::Action::Allow => Action::Allow,
            wire::Action::Deny => Action::Deny,
        },
        rules: wire.rules.into_iter().map(rule).collect(),
        enforcement: if wire.dry_run {
            Enforcement::DryRun
        } else {
            Enforcement::Enforced
        },
        name: wire.name.into(),
        namespace: wire.namespace.into(),
    })
}

fn rule(rule: wire::Rule) -> Rule {
    Rule {
        clauses: rule.clauses.into_iter().map(clause).collect(),
    }
}

fn clause(clause: wire::Clause) -> Clause {
    Clause {
        matches: clause.matches.into_iter().map(one_match).collect(),
    }
}

fn one_match(wire: wire::Match) -> Match {
    Match {
        namespaces: strings(wire.namespaces),
        not_namespaces: strings(wire.not_namespaces),
        principals: strings(wire.principals),
        not_principals: strings(wire.not_principals),
        service_accounts: service_accounts(wire.service_accounts),
        not_service_accounts: service_accounts(wire.not_service_accounts),
        source_ips: addresses(wire.source_ips),
        not_source_ips: addresses(wire.not_source_ips),
        destination_ips: addresses(wire.destination_ips),
        not_destination_ips: addresses(wire.not_destination_ips),
        destination_ports: ports(wire.destination_ports),
        not_destination_ports: ports(wire.not_destination_ports),
        // An extension is a condition that we cannot judge, so it must not count as met.
        unknown: wire
            .extensions
            .into_iter()
            .map(|extension| unparsable(format!("extension {:?}", extension.name)))
            .collect(),
    }
}

fn unparsable(what: impl Into<Arc<str>>) -> Unparsable {
    Unparsable(what.into())
}

fn strings(wire: Vec<wire::StringMatch>) -> Values<StringMatch> {
    wire.into_iter().map(string).collect()
}

/// Reads a text to compare with. An empty one would match connections without any identity, which nobody means.
fn string(wire: wire::StringMatch) -> Result<StringMatch, Unparsable> {
    use wire::string_match::MatchType;

    let (kind, text): (fn(Arc<str>) -> StringMatch, String) = match wire.match_type {
        Some(MatchType::Exact(text)) => (StringMatch::Exact, text),
        Some(MatchType::Prefix(text)) => (StringMatch::Prefix, text),
        Some(MatchType::Suffix(text)) => (StringMatch::Suffix, text),
        Some(MatchType::Presence(())) => return Ok(StringMatch::Presence),
        None => return Err(unparsable("a text match of an unknown kind")),
    };
    if text.is_empty() {
        return Err(unparsable("an empty text"));
    }
    Ok(kind(text.into()))
}

fn service_accounts(wire: Vec<wire::ServiceAccountMatch>) -> Values<ServiceAccountMatch> {
    wire.into_iter()
        .map(|account| {
            if account.namespace.is_empty() || account.service_account.is_empty() {
                return Err(unparsable(format!(
                    "service account {:?} of namespace {:?}",
                    account.service_account, account.namespace
                )));
            }
            Ok(ServiceAccountMatch {
                namespace: account.namespace.into(),
                service_account: account.service_account.into(),
            })
        })
        .collect()
}

fn addresses(wire: Vec<wire::Address>) -> Values<IpNet> {
    wire.into_iter()
        .map(|range| {
            let wrong = |problem: String| unparsable(format!("an address range that {problem}"));
            let address = parse_ip(&range.address).map_err(wrong)?;
            // The length counts bits of the address as it was sent.
            let unwrapped = range.address.len() == 16 && address.is_ipv4();
            let length = range.length.checked_sub(if unwrapped { 96 } else { 0 });
            length
                .and_then(|length| IpNet::new(address, u8::try_from(length).ok()?).ok())
                .ok_or_else(|| wrong(format!("has the length {}", range.length)))
        })
        .collect()
}

fn ports(wire: Vec<u32>) -> Values<u16> {
    wire.into_iter()
        .map(|port| u16::try_from(port).map_err(|_| unparsable(format!("port {port}"))))
        .collect()
}
