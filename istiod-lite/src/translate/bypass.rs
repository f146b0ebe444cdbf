// SPDX-License-Identifier: Apache-2.0
//! What closes the way around a waypoint: a DENY policy against everybody but the waypoint, which the proxies of the pods'
//! nodes enforce as they do any other, Istio's included.
//!
//! Pods only name it. There is one for each choice of waypoints that pods have in common, so that a change of a
//! waypoint's accounts concerns none of them.

use std::collections::BTreeSet;

use proto::security as wire;
use wire::string_match::MatchType;

use super::Mesh;
use crate::facts::NamespacedName;

/// The policy's name, in the root namespace. Names of namespaces hold no dot, and no name an underscore: two choices never
/// come to the same.
pub fn name(root: &str, waypoints: &[NamespacedName]) -> NamespacedName {
    let mut name = "culvert_require_waypoint".to_owned();
    for waypoint in waypoints {
        name.push_str(&format!("_{}.{}", waypoint.namespace, waypoint.name));
    }
    NamespacedName::new(root, name)
}

/// Denies all but these service accounts, each with its namespace; without any, everybody.
pub fn authorization(
    mesh: &Mesh,
    name: &NamespacedName,
    accounts: &BTreeSet<(&str, &str)>,
) -> wire::Authorization {
    let principal = |(namespace, account): &(&str, &str)| {
        let text = format!("{}/ns/{namespace}/sa/{account}", mesh.trust_domain);
        wire::StringMatch {
            match_type: Some(MatchType::Exact(text)),
        }
    };
    let strangers = wire::Match {
        not_principals: accounts.iter().map(principal).collect(),
        ..wire::Match::default()
    };
    let clauses = match accounts.is_empty() {
        // A match without a value matches nothing; a rule without a clause matches all.
        true => Vec::new(),
        false => vec![wire::Clause {
            matches: vec![strangers],
        }],
    };
    wire::Authorization {
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        scope: wire::Scope::WorkloadSelector.into(),
        action: wire::Action::Deny.into(),
        rules: vec![wire::Rule { clauses }],
        ..wire::Authorization::default()
    }
}
