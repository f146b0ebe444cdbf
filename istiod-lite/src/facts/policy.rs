// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a PeerAuthentication, and how policies choose workloads.

use std::collections::BTreeMap;

use cluster::kinds;

use super::{Labels, Problem, Read, created};

/// Which workloads a policy is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// All of its namespace, or of the mesh if it stands in the root namespace.
    All,
    /// Those with these labels, at least one.
    Selected(Labels),
}

/// Reads a selector. One without labels chooses all, as everywhere in Kubernetes;
/// parts that can't be read are left aside, so that the policy reaches more
/// workloads rather than fewer.
pub fn reach(selector: Option<&kinds::Selector>, problems: &mut Vec<Problem>) -> Reach {
    let Some(selector) = selector else {
        return Reach::All;
    };
    for field in selector.unknown_fields.keys() {
        problems.push(Problem::new(
            format!("spec.selector.{field}"),
            "is not known; the policy applies as if it were not there",
        ));
    }
    if selector.match_labels.is_empty() {
        problems.push(Problem::new(
            "spec.selector",
            "has no labels; the policy applies to all workloads of its scope",
        ));
        return Reach::All;
    }
    Reach::Selected(selector.match_labels.clone())
}

/// Which workloads must be spoken to with mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAuthentication {
    /// When it was made: the oldest of a level wins.
    pub created: Option<i64>,
    /// Which workloads it is for.
    pub reach: Reach,
    /// What holds for all ports.
    pub mode: Mode,
    /// What holds for single ports of the workload.
    pub ports: BTreeMap<u16, Mode>,
}

/// Whether plaintext is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The next level decides.
    Unset,
    /// Plaintext is wanted. ztunnel cannot refuse mutual TLS: both are accepted.
    Disable,
    /// Both are accepted.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

/// Reads a PeerAuthentication. A mode that can't be read is STRICT.
pub fn read_peer_authentication(peer: &kinds::PeerAuthentication) -> Read<PeerAuthentication> {
    let spec = &peer.spec;
    let mut problems = Vec::new();
    for field in spec.unknown_fields.keys() {
        let effect = if spec.mtls.is_none() {
            "the mode counts as STRICT"
        } else {
            "it is ignored"
        };
        problems.push(Problem::new(
            format!("spec.{field}"),
            format!("is not known; {effect}"),
        ));
    }
    let mode = match &spec.mtls {
        Some(mtls) => mode(mtls, "spec.mtls", &mut problems),
        None if spec.unknown_fields.is_empty() => Mode::Unset,
        None => Mode::Strict,
    };
    let reach = reach(spec.selector.as_ref(), &mut problems);
    if reach == Reach::All && !spec.port_level_mtls.is_empty() {
        problems.push(Problem::new(
            "spec.portLevelMtls",
            "needs a selector; the modes of single ports are ignored",
        ));
    }
    let ports = spec
        .port_level_mtls
        .iter()
        .map(|(port, mtls)| (*port, mode_of_port(*port, mtls, &mut problems)))
        .filter(|(port, _)| *port != 0 && reach != Reach::All)
        .collect();
    Read {
        facts: PeerAuthentication {
            created: created(&peer.metadata),
            reach,
            mode,
            ports,
        },
        problems,
    }
}

fn mode_of_port(port: u16, mtls: &kinds::MutualTls, problems: &mut Vec<Problem>) -> Mode {
    let field = format!("spec.portLevelMtls[{port}]");
    if port == 0 {
        problems.push(Problem::new(field, "is no port number; it is ignored"));
        return Mode::Unset;
    }
    mode(mtls, &field, problems)
}

fn mode(mtls: &kinds::MutualTls, field: &str, problems: &mut Vec<Problem>) -> Mode {
    match &mtls.mode {
        Some(kinds::MtlsMode::Disable) => Mode::Disable,
        Some(kinds::MtlsMode::Permissive) => Mode::Permissive,
        Some(kinds::MtlsMode::Strict) => Mode::Strict,
        Some(kinds::MtlsMode::Unset) => Mode::Unset,
        None if mtls.unknown_fields.is_empty() => Mode::Unset,
        None => {
            let known: Vec<&str> = mtls.unknown_fields.keys().map(String::as_str).collect();
            problems.push(Problem::new(
                field,
                format!("has no mode but {}; it counts as STRICT", known.join(", ")),
            ));
            Mode::Strict
        }
        Some(kinds::MtlsMode::Unknown(text)) => {
            problems.push(Problem::new(
                format!("{field}.mode"),
                format!(
                    "{text:?} is none of UNSET, DISABLE, PERMISSIVE, STRICT; it counts as STRICT"
                ),
            ));
            Mode::Strict
        }
    }
}
