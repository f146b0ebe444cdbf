// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of the mesh's own configuration: the ConfigMap `istio` of the
//! root namespace, whose key `mesh` holds it as YAML. What isn't named here is for others.

mod providers;

use cluster::kinds;
use k8s_openapi::api::core::v1 as core;
use proto::waypoint::{self as wire, PathNormalization};
use serde::Deserialize;

pub use self::providers::{Backend, Provider, ProviderKind};
use super::{Labels, Problem, gateway::selector_matches};
use crate::wellknown;

/// The mesh's configuration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MeshConfig {
    /// Who sees ServiceEntries; all do where nothing is said.
    pub visibility: Option<VisibilityRules>,
    /// How waypoints make the spellings of a path one.
    pub path_normalization: PathNormalization,
    /// Trust domains that stand for the mesh's own.
    pub trust_domain_aliases: Vec<String>,
    /// How many proxies in front of a waypoint are believed about who a request comes from.
    pub trusted_hops: u32,
    /// Those that policies and telemetry refer to.
    pub providers: Vec<Provider>,
}

/// Who sees the ServiceEntries of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// All clients.
    Public,
    /// Those of the same namespace.
    Namespace,
    /// Nobody.
    None,
}

/// Tells how visible ServiceEntries are, by the labels of their namespaces.
#[derive(Debug, Clone, PartialEq)]
pub struct VisibilityRules {
    policies: Vec<VisibilityPolicy>,
    default: Visibility,
}

#[derive(Debug, Clone, PartialEq)]
struct VisibilityPolicy {
    /// All must choose the namespace; `None` is a rule of a kind that nobody knows.
    rules: Vec<Option<kinds::LabelSelector>>,
    visibility: Visibility,
}

impl MeshConfig {
    /// How visible ServiceEntries of a namespace with these labels are.
    pub fn visibility(&self, namespace_labels: &Labels) -> Visibility {
        let Some(rules) = &self.visibility else {
            return Visibility::Public;
        };
        let chosen = rules.policies.iter().find(|policy| {
            let chooses = |rule: &Option<kinds::LabelSelector>| {
                rule.as_ref()
                    .is_some_and(|selector| selector_matches(selector, namespace_labels))
            };
            policy.rules.iter().all(chooses)
        });
        chosen.map_or(rules.default, |policy| policy.visibility)
    }

    /// Whom CUSTOM policies may ask; those that can't be asked say why.
    pub fn authorizers(&self) -> impl Iterator<Item = wire::Authorizer> {
        self.providers.iter().map(|provider| match &provider.kind {
            Ok(ProviderKind::Authorizer(authorizer)) => (**authorizer).clone(),
            Ok(ProviderKind::Other { key, .. }) => invalid(
                &provider.name,
                format!("is of kind {key}, which can't be asked"),
            ),
            Err(reason) => invalid(&provider.name, reason.clone()),
        })
    }

    /// Why the provider that a CUSTOM policy names can't be asked.
    pub fn cannot_ask(&self, name: &str) -> Option<String> {
        match self.authorizers().find(|known| known.name == name) {
            None => Some("is not among the mesh's extensionProviders".to_owned()),
            Some(known) => Some(known.invalid).filter(|reason| !reason.is_empty()),
        }
    }
}

fn invalid(name: &str, reason: String) -> wire::Authorizer {
    wire::Authorizer {
        name: name.to_owned(),
        invalid: reason,
        ..wire::Authorizer::default()
    }
}

/// Reads the configuration.
///
/// # Errors
/// When a part of it can't be understood; what held before then goes on to hold.
pub fn read(config: &core::ConfigMap) -> Result<MeshConfig, Problem> {
    let at = |field: &str, reason: String| {
        Problem::new(
            format!("data.{}{field}", wellknown::MESH_KEY),
            format!("{reason}; what held before goes on to hold"),
        )
    };
    let data = config.data.as_ref();
    let Some(text) = data.and_then(|data| data.get(wellknown::MESH_KEY)) else {
        return Ok(MeshConfig::default());
    };
    let written: Option<Written> =
        serde_saphyr::from_str(text).map_err(|error| at("", one_line(&error.to_string())))?;
    let written = written.unwrap_or_default();
    let visibility = written.service_entry_visibility.map(rules).transpose();
    let visibility = visibility
        .map_err(|(field, reason)| at(&format!(".serviceEntryVisibility{field}"), reason))?;
    let normalization = written
        .path_normalization
        .and_then(|written| written.normalization);
    let normalization = path_normalization(normalization.as_deref())
        .map_err(|reason| at(".pathNormalization.normalization", reason))?;
    let topology = written
        .default_config
        .and_then(|written| written.gateway_topology);
    Ok(MeshConfig {
        visibility,
        path_normalization: normalization,
        trust_domain_aliases: written.trust_domain_aliases,
        trusted_hops: topology.map_or(0, |topology| topology.num_trusted_proxies),
        providers: providers::read(written.extension_providers),
    })
}

fn path_normalization(text: Option<&str>) -> Result<PathNormalization, String> {
    Ok(match text {
        None | Some("DEFAULT" | "BASE") => PathNormalization::Base,
        Some("NONE") => PathNormalization::None,
        Some("MERGE_SLASHES") => PathNormalization::MergeSlashes,
        Some("DECODE_AND_MERGE_SLASHES") => PathNormalization::DecodeAndMergeSlashes,
        Some(other) => {
            return Err(format!(
                "{other:?} is none of DEFAULT, NONE, BASE, MERGE_SLASHES, DECODE_AND_MERGE_SLASHES"
            ));
        }
    })
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    service_entry_visibility: Option<WrittenVisibility>,
    path_normalization: Option<WrittenNormalization>,
    trust_domain_aliases: Vec<String>,
    default_config: Option<WrittenProxyConfig>,
    extension_providers: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct WrittenNormalization {
    normalization: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WrittenProxyConfig {
    gateway_topology: Option<WrittenTopology>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WrittenTopology {
    num_trusted_proxies: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct WrittenVisibility {
    default_visibility: Option<String>,
    policies: Vec<WrittenPolicy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenPolicy {
    visibility: Option<String>,
    #[serde(default)]
    matching_rules: Vec<WrittenRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenRule {
    namespace_selector: Option<kinds::LabelSelector>,
}

fn rules(written: WrittenVisibility) -> Result<VisibilityRules, (String, String)> {
    let default = visibility(written.default_visibility.as_deref())
        .map_err(|reason| (".defaultVisibility".to_owned(), reason))?;
    let mut policies = Vec::with_capacity(written.policies.len());
    for (position, policy) in written.policies.into_iter().enumerate() {
        let at = |field: String| format!(".policies[{position}]{field}");
        let visibility = visibility(policy.visibility.as_deref())
            .map_err(|reason| (at(".visibility".to_owned()), reason))?;
        let mut rules = Vec::with_capacity(policy.matching_rules.len());
        for (place, rule) in policy.matching_rules.into_iter().enumerate() {
            let selector = rule.namespace_selector;
            if let Some(reason) = selector.as_ref().and_then(fault) {
                return Err((
                    at(format!(".matchingRules[{place}].namespaceSelector")),
                    reason,
                ));
            }
            rules.push(selector);
        }
        policies.push(VisibilityPolicy { rules, visibility });
    }
    Ok(VisibilityRules { policies, default })
}

fn visibility(text: Option<&str>) -> Result<Visibility, String> {
    match text {
        None | Some("VISIBILITY_UNSPECIFIED" | "UNSPECIFIED" | "PUBLIC") => Ok(Visibility::Public),
        Some("NAMESPACE") => Ok(Visibility::Namespace),
        Some("NONE") => Ok(Visibility::None),
        Some(other) => Err(format!("{other:?} is none of PUBLIC, NAMESPACE, NONE")),
    }
}

/// What is wrong with a selector.
fn fault(selector: &kinds::LabelSelector) -> Option<String> {
    selector
        .match_expressions
        .iter()
        .flatten()
        .find_map(|wanted| {
            let values = wanted.values.as_deref().unwrap_or_default();
            match (wanted.operator.as_str(), values.is_empty()) {
                ("In" | "NotIn", false) | ("Exists" | "DoesNotExist", true) => None,
                ("In" | "NotIn", true) => Some(format!("{} lists no values", wanted.operator)),
                ("Exists" | "DoesNotExist", false) => {
                    Some(format!("{} takes no values", wanted.operator))
                }
                (other, _) => Some(format!("{other:?} is no operator")),
            }
        })
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(mesh: &str) -> Result<MeshConfig, Problem> {
        read(&core::ConfigMap {
            data: Some([("mesh".to_owned(), mesh.to_owned())].into()),
            ..core::ConfigMap::default()
        })
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let owned = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        owned.collect()
    }

    #[test]
    fn the_first_policy_all_of_whose_rules_match_decides() {
        let config = config(
            "trustDomain: elsewhere
serviceEntryVisibility:
  defaultVisibility: NAMESPACE
  policies:
  - visibility: NONE
    matchingRules:
    - {namespaceSelector: {matchLabels: {team: a}}}
    - {namespaceSelector: {matchLabels: {banned: 'yes'}}}
  - visibility: PUBLIC
    matchingRules: [{futureRule: {}}]
  - visibility: PUBLIC
    matchingRules: [{namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [a, b]}]}}]
",
        )
        .expect("valid");
        for (pairs, expected) in [
            (&[("team", "a"), ("banned", "yes")][..], Visibility::None),
            (&[("team", "a")], Visibility::Public),
            (&[("banned", "yes")], Visibility::Namespace),
            (&[], Visibility::Namespace),
        ] {
            assert_eq!(config.visibility(&labels(pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn a_policy_without_rules_and_an_empty_selector_match_all() {
        for rules in ["[]", "[{namespaceSelector: {}}]"] {
            let text = format!(
                "serviceEntryVisibility: {{policies: [{{visibility: NONE, matchingRules: {rules}}}]}}"
            );
            let config = config(&text).expect("valid");
            assert_eq!(
                config.visibility(&Labels::new()),
                Visibility::None,
                "{rules}"
            );
        }
    }

    #[test]
    fn what_waypoints_go_by_is_read() {
        let config = config(
            "pathNormalization: {normalization: MERGE_SLASHES}
trustDomainAliases: [old, older]
defaultConfig: {gatewayTopology: {numTrustedProxies: 2}, discoveryAddress: x}
",
        )
        .expect("valid");
        assert_eq!(config.path_normalization, PathNormalization::MergeSlashes);
        assert_eq!(config.trust_domain_aliases, ["old", "older"]);
        assert_eq!(config.trusted_hops, 2);
    }

    #[test]
    fn those_that_policies_ask_are_known_by_name() {
        let config = config(
            "extensionProviders:
- name: grpc
  envoyExtAuthzGrpc: {service: authz.auth.svc.cluster.local, port: 9000}
- name: logs
  envoyOtelAls: {service: otel.obs.svc.cluster.local, port: 4317}
- name: bad
  envoyExtAuthzHttp: {port: 9000}
",
        )
        .expect("valid");
        for (name, why) in [
            ("grpc", None),
            ("logs", Some("is of kind envoyOtelAls")),
            ("bad", Some("envoyExtAuthzHttp.service")),
            ("", Some("is not among")),
            ("other", Some("is not among")),
        ] {
            let said = config.cannot_ask(name);
            assert_eq!(said.is_some(), why.is_some(), "{name}: {said:?}");
            assert!(said.unwrap_or_default().contains(why.unwrap_or_default()));
        }
        let told: Vec<bool> = config
            .authorizers()
            .map(|one| one.invalid.is_empty())
            .collect();
        assert_eq!(told, [true, false, false]);
    }

    #[test]
    fn nothing_said_is_public() {
        for text in [
            "",
            "{}",
            "serviceEntryVisibility: {}",
            "defaultConfig: {a: [1]}",
        ] {
            let config = config(text).expect("valid");
            assert_eq!(
                config.visibility(&Labels::new()),
                Visibility::Public,
                "{text:?}"
            );
        }
        assert_eq!(read(&core::ConfigMap::default()), Ok(MeshConfig::default()));
    }

    #[test]
    fn what_cannot_be_understood_is_an_error_that_names_the_field() {
        for (text, field) in [
            ("[", "data.mesh"),
            ("serviceEntryVisibility: 3", "data.mesh"),
            (
                "pathNormalization: {normalization: SOME}",
                "data.mesh.pathNormalization.normalization",
            ),
            (
                "serviceEntryVisibility: {defaultVisibility: SOME}",
                "data.mesh.serviceEntryVisibility.defaultVisibility",
            ),
            (
                "serviceEntryVisibility: {policies: [{visibility: x}]}",
                "data.mesh.serviceEntryVisibility.policies[0].visibility",
            ),
            (
                "serviceEntryVisibility: {policies: [{matchingRules: [{namespaceSelector: \
                 {matchExpressions: [{key: a, operator: Near}]}}]}]}",
                "data.mesh.serviceEntryVisibility.policies[0].matchingRules[0].namespaceSelector",
            ),
        ] {
            assert_eq!(config(text).expect_err(text).field, field);
        }
    }
}
