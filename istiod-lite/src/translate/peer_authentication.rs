// SPDX-License-Identifier: Apache-2.0
//! STRICT and its exceptions, as DENY policies against peers without identity.
//!
//! A workload's requirement is decided in one place, for what is sent and for what
//! is attached to workloads alike, so that a workload never names a policy that
//! does not exist. Where nothing decides a port, it stays with its parent.

use std::collections::BTreeMap;

use proto::security as wire;
use wire::string_match::MatchType;

use crate::facts::{
    NamespacedName,
    policy::{Mode, PeerAuthentication},
};

/// The name, in the root namespace, of the policy that denies all plaintext.
pub const STATIC_STRICT: &str = "istio_converted_static_strict";

/// What the levels above a workload's own policy say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// Mutual TLS only.
    Strict,
    /// Both.
    Permissive,
}

/// What holds for the workloads that a policy selects, or that none does.
#[derive(Debug, Clone, PartialEq)]
pub enum Requirement {
    /// Plaintext is accepted on every port.
    None,
    /// Plaintext is accepted on no port.
    Strict,
    /// It depends on the port: a policy of these rules.
    ByPort(Vec<wire::Rule>),
}

/// The namespace's word counts before the mesh's.
pub fn parent(mesh: Option<&PeerAuthentication>, namespace: Option<&PeerAuthentication>) -> Parent {
    let said = |level: Option<&PeerAuthentication>| {
        level
            .map(|peer| peer.mode)
            .filter(|mode| *mode != Mode::Unset)
    };
    match said(namespace).or_else(|| said(mesh)) {
        Some(Mode::Strict) => Parent::Strict,
        Some(Mode::Permissive | Mode::Disable | Mode::Unset) | None => Parent::Permissive,
    }
}

/// What a workload requires of its peers.
pub fn requirement(own: Option<&PeerAuthentication>, parent: Parent) -> Requirement {
    let none = BTreeMap::new();
    let (mode, ports) = own.map_or((Mode::Unset, &none), |own| (own.mode, &own.ports));
    let of = |wanted: &[Mode]| -> Vec<u16> {
        ports
            .iter()
            .filter(|(_, mode)| wanted.contains(mode))
            .map(|(port, _)| *port)
            .collect()
    };
    let strict = of(&[Mode::Strict]);
    let exempt = of(&[Mode::Permissive, Mode::Disable]);
    match (mode, parent) {
        (Mode::Strict, _) if exempt.is_empty() => Requirement::Strict,
        (Mode::Strict, _) => Requirement::ByPort(vec![all_but(&exempt)]),
        // Only PERMISSIVE lifts what a parent demands; DISABLE alone does not.
        (Mode::Unset, Parent::Strict) if of(&[Mode::Permissive]).is_empty() => Requirement::Strict,
        (Mode::Unset, Parent::Strict) => Requirement::ByPort(vec![all_but(&exempt)]),
        (Mode::Permissive | Mode::Disable, _) | (Mode::Unset, Parent::Permissive) => {
            if strict.is_empty() {
                Requirement::None
            } else {
                Requirement::ByPort(strict.into_iter().map(only).collect())
            }
        }
    }
}

/// The key of the policy that is derived from a PeerAuthentication.
pub fn derived_name(peer: &NamespacedName) -> NamespacedName {
    NamespacedName::new(
        peer.namespace.clone(),
        format!("converted_peer_authentication_{}", peer.name),
    )
}

/// A policy that is attached by name.
pub fn authorization(name: &NamespacedName, rules: Vec<wire::Rule>) -> wire::Authorization {
    wire::Authorization {
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        scope: wire::Scope::WorkloadSelector.into(),
        action: wire::Action::Deny.into(),
        rules,
        ..wire::Authorization::default()
    }
}

/// Denies plaintext on every port.
pub fn static_strict() -> Vec<wire::Rule> {
    vec![wire::Rule {
        clauses: vec![clause(no_identity())],
    }]
}

/// Denies plaintext on all ports but these.
fn all_but(ports: &[u16]) -> wire::Rule {
    let other_port = |port: &u16| {
        clause(wire::Match {
            not_destination_ports: vec![(*port).into()],
            ..wire::Match::default()
        })
    };
    let clauses = std::iter::once(clause(no_identity())).chain(ports.iter().map(other_port));
    wire::Rule {
        clauses: clauses.collect(),
    }
}

/// Denies plaintext on this port.
fn only(port: u16) -> wire::Rule {
    let on_port = wire::Match {
        destination_ports: vec![port.into()],
        ..no_identity()
    };
    wire::Rule {
        clauses: vec![clause(on_port)],
    }
}

fn no_identity() -> wire::Match {
    let presence = wire::StringMatch {
        match_type: Some(MatchType::Presence(())),
    };
    wire::Match {
        not_principals: vec![presence],
        ..wire::Match::default()
    }
}

fn clause(only: wire::Match) -> wire::Clause {
    wire::Clause {
        matches: vec![only],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::policy::Reach;

    fn peer(mode: Mode, ports: &[(u16, Mode)]) -> PeerAuthentication {
        PeerAuthentication {
            created: None,
            reach: Reach::All,
            mode,
            ports: ports.iter().copied().collect(),
        }
    }

    /// Is plaintext to this port denied?
    fn denied(requirement: &Requirement, port: u32) -> bool {
        match requirement {
            Requirement::None => false,
            Requirement::Strict => true,
            Requirement::ByPort(rules) => rules.iter().any(|rule| {
                rule.clauses.iter().all(|clause| {
                    clause.matches.iter().any(|m| {
                        (m.destination_ports.is_empty() || m.destination_ports.contains(&port))
                            && !m.not_destination_ports.contains(&port)
                    })
                })
            }),
        }
    }

    #[test]
    fn each_row_of_modes_and_parents_denies_plaintext_on_the_right_ports() {
        use Mode::{Disable, Permissive, Strict, Unset};
        // own mode, port 80's mode, parent → denied on 80, denied elsewhere
        let table = [
            (Strict, None, Parent::Permissive, true, true),
            (Strict, Some(Strict), Parent::Permissive, true, true),
            (Strict, Some(Permissive), Parent::Strict, false, true),
            (Strict, Some(Disable), Parent::Permissive, false, true),
            (Permissive, None, Parent::Strict, false, false),
            (Permissive, Some(Strict), Parent::Strict, true, false),
            (Disable, Some(Strict), Parent::Permissive, true, false),
            (Disable, Some(Permissive), Parent::Strict, false, false),
            (Unset, None, Parent::Strict, true, true),
            (Unset, None, Parent::Permissive, false, false),
            (Unset, Some(Permissive), Parent::Strict, false, true),
            (Unset, Some(Strict), Parent::Strict, true, true),
            (Unset, Some(Disable), Parent::Strict, true, true),
            (Unset, Some(Strict), Parent::Permissive, true, false),
            (Unset, Some(Permissive), Parent::Permissive, false, false),
            (Strict, Some(Unset), Parent::Permissive, true, true),
        ];
        for (mode, port, parent, on_80, elsewhere) in table {
            let ports: Vec<_> = port.map(|mode| (80, mode)).into_iter().collect();
            let requirement = requirement(Some(&peer(mode, &ports)), parent);
            let row = format!("{mode:?}, 80: {port:?}, {parent:?}: {requirement:?}");
            assert_eq!(denied(&requirement, 80), on_80, "port 80 of {row}");
            assert_eq!(denied(&requirement, 81), elsewhere, "port 81 of {row}");
        }
    }

    #[test]
    fn exemptions_are_one_rule_with_a_clause_for_each_port() {
        let own = peer(Mode::Strict, &[(80, Mode::Permissive), (90, Mode::Disable)]);
        let Requirement::ByPort(rules) = requirement(Some(&own), Parent::Strict) else {
            panic!("depends on the port")
        };
        assert_eq!(rules.len(), 1, "two rules would deny everything");
        assert_eq!(rules[0].clauses.len(), 3);
    }

    #[test]
    fn a_namespace_that_says_nothing_leaves_the_word_to_the_mesh() {
        let (strict, unset, open) = (
            peer(Mode::Strict, &[]),
            peer(Mode::Unset, &[]),
            peer(Mode::Permissive, &[]),
        );
        assert_eq!(parent(Some(&strict), Some(&unset)), Parent::Strict);
        assert_eq!(parent(Some(&strict), Some(&open)), Parent::Permissive);
        assert_eq!(parent(Some(&strict), None), Parent::Strict);
        assert_eq!(parent(None, None), Parent::Permissive);
    }
}
