// SPDX-License-Identifier: Apache-2.0
//! Is this pod in the mesh? Pure.
//!
//! In: what the cluster says about a pod and its namespace, and the settings. Out: enrolled, or the reason why not.
//! The label `istio.io/dataplane-mode` decides by default; other selectors may be configured in Istio's format.

use std::collections::BTreeMap;

use serde::Deserialize;

const MODE_LABEL: &str = "istio.io/dataplane-mode";
const SIDECAR_ANNOTATION: &str = "sidecar.istio.io/status";
/// `http`: the pod terminates HBONE itself.
const TUNNEL_LABEL: &str = "networking.istio.io/tunnel";

pub type Labels = BTreeMap<String, String>;

/// What the decision looks at.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub namespace: &'a str,
    pub namespace_labels: &'a Labels,
    pub labels: &'a Labels,
    pub annotations: &'a Labels,
    pub network: Network,
}

/// Whose network namespace a pod uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    Own,
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enrolment {
    Enrolled,
    Outside(Reason),
}

/// Why a pod is not in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("it uses the host's network")]
    HostNetwork,
    #[error("it has a sidecar")]
    Sidecar,
    /// The control plane has others reach it by tunnel, whoever listens; there is one such port in a pod.
    #[error("its label {TUNNEL_LABEL} says that it terminates tunnels itself")]
    OwnTunnel,
    #[error("its namespace is excluded")]
    ExcludedNamespace,
    #[error("its label {MODE_LABEL} says none")]
    OptedOut,
    #[error("neither it nor its namespace is selected")]
    NotSelected,
}

/// Which pods are in the mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub selectors: Vec<Selector>,
    pub excluded_namespaces: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let mode = |operator, values: &[&str]| Requirement {
            key: MODE_LABEL.into(),
            operator,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        let ambient = |requirement| LabelSelector {
            match_labels: Labels::new(),
            match_expressions: vec![requirement],
        };
        Self {
            selectors: vec![
                Selector {
                    pod_selector: ambient(mode(Operator::In, &["ambient"])),
                    namespace_selector: LabelSelector::default(),
                },
                Selector {
                    pod_selector: ambient(mode(Operator::NotIn, &["none"])),
                    namespace_selector: ambient(mode(Operator::In, &["ambient"])),
                },
            ],
            excluded_namespaces: vec!["kube-system".into()],
        }
    }
}

/// Both parts must match; an empty part matches everything.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    pub pod_selector: LabelSelector,
    pub namespace_selector: LabelSelector,
}

/// A Kubernetes label selector: all of it must match.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    pub match_labels: Labels,
    pub match_expressions: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    #[serde(default)]
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// Hard exclusions first: no label overrides them.
pub fn enrolment(candidate: Candidate<'_>, settings: &Settings) -> Enrolment {
    let outside = Enrolment::Outside;
    if candidate.network == Network::Host {
        return outside(Reason::HostNetwork);
    }
    if candidate.annotations.contains_key(SIDECAR_ANNOTATION) {
        return outside(Reason::Sidecar);
    }
    if candidate.labels.get(TUNNEL_LABEL).map(String::as_str) == Some("http") {
        return outside(Reason::OwnTunnel);
    }
    if settings
        .excluded_namespaces
        .iter()
        .any(|excluded| excluded == candidate.namespace)
    {
        return outside(Reason::ExcludedNamespace);
    }
    let selected = settings.selectors.iter().any(|selector| {
        selector.pod_selector.matches(candidate.labels)
            && selector
                .namespace_selector
                .matches(candidate.namespace_labels)
    });
    match (
        selected,
        candidate.labels.get(MODE_LABEL).map(String::as_str),
    ) {
        (true, _) => Enrolment::Enrolled,
        (false, Some("none")) => outside(Reason::OptedOut),
        (false, _) => outside(Reason::NotSelected),
    }
}

impl LabelSelector {
    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => listed,
            // As in Kubernetes, an absent label is in no list.
            Operator::NotIn => !listed,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(mode: Option<&str>) -> Labels {
        mode.map(|mode| (MODE_LABEL.to_owned(), mode.to_owned()))
            .into_iter()
            .collect()
    }

    fn check(namespace: Option<&str>, pod: Option<&str>, expected: Enrolment) {
        let (namespace_labels, pod_labels, annotations) =
            (labels(namespace), labels(pod), Labels::new());
        let candidate = Candidate {
            namespace: "shop",
            namespace_labels: &namespace_labels,
            labels: &pod_labels,
            annotations: &annotations,
            network: Network::Own,
        };
        assert_eq!(
            enrolment(candidate, &Settings::default()),
            expected,
            "namespace {namespace:?}, pod {pod:?}"
        );
    }

    #[test]
    fn labels_of_pod_and_namespace_decide_by_the_truth_table() {
        check(Some("ambient"), None, Enrolment::Enrolled);
        check(Some("ambient"), Some("ambient"), Enrolment::Enrolled);
        check(
            Some("ambient"),
            Some("none"),
            Enrolment::Outside(Reason::OptedOut),
        );
        check(Some("ambient"), Some("something-new"), Enrolment::Enrolled);
        check(None, Some("ambient"), Enrolment::Enrolled);
        check(Some("other"), Some("ambient"), Enrolment::Enrolled);
        check(None, None, Enrolment::Outside(Reason::NotSelected));
        check(Some("other"), None, Enrolment::Outside(Reason::NotSelected));
        check(None, Some("none"), Enrolment::Outside(Reason::OptedOut));
    }

    #[test]
    fn hard_exclusions_win_over_labels() {
        let ambient = labels(Some("ambient"));
        let none = Labels::new();
        let sidecar: Labels = [(SIDECAR_ANNOTATION.to_owned(), String::new())].into();
        for (namespace, annotations, network, reason) in [
            ("shop", &none, Network::Host, Reason::HostNetwork),
            ("shop", &sidecar, Network::Own, Reason::Sidecar),
            (
                "kube-system",
                &none,
                Network::Own,
                Reason::ExcludedNamespace,
            ),
        ] {
            let candidate = Candidate {
                namespace,
                namespace_labels: &ambient,
                labels: &ambient,
                annotations,
                network,
            };
            assert_eq!(
                enrolment(candidate, &Settings::default()),
                Enrolment::Outside(reason)
            );
        }
    }

    #[test]
    fn a_pod_that_terminates_tunnels_itself_is_not_in_the_mesh_whatever_else_it_says() {
        let check = |tunnel: &str, expected| {
            let ambient = labels(Some("ambient"));
            let mut labels = ambient.clone();
            labels.insert(TUNNEL_LABEL.into(), tunnel.into());
            let candidate = Candidate {
                namespace: "shop",
                namespace_labels: &ambient,
                labels: &labels,
                annotations: &Labels::new(),
                network: Network::Own,
            };
            assert_eq!(enrolment(candidate, &Settings::default()), expected);
        };
        check("http", Enrolment::Outside(Reason::OwnTunnel));
        check("other", Enrolment::Enrolled);
    }

    #[test]
    fn configured_selectors_replace_the_label() {
        let selector: Selector = serde_json::from_str(
            r#"{"podSelector": {"matchLabels": {"mesh": "yes"}, "matchExpressions": [
                {"key": "legacy", "operator": "DoesNotExist"}, {"key": "app", "operator": "Exists"}]}}"#,
        )
        .unwrap();
        let pod = |pairs: &[(&str, &str)]| -> Labels {
            pairs
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        assert!(
            selector
                .pod_selector
                .matches(&pod(&[("mesh", "yes"), ("app", "a")]))
        );
        assert!(!selector.pod_selector.matches(&pod(&[("mesh", "yes")])));
        assert!(!selector.pod_selector.matches(&pod(&[
            ("mesh", "yes"),
            ("app", "a"),
            ("legacy", "")
        ])));
        assert!(
            !selector
                .pod_selector
                .matches(&pod(&[("mesh", "no"), ("app", "a")]))
        );
        assert!(selector.namespace_selector.matches(&Labels::new()));
    }
}
