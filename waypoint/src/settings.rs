// SPDX-License-Identifier: Apache-2.0
//! What holds for all that this waypoint serves. Pure.
//!
//! In: [`proto::waypoint::Waypoint`]. Out: the same, compiled; nothing of it is used where a part is not understood.

use std::sync::Arc;

use proto::waypoint as wire;

use crate::authorizer::{Asking, Authorizer};
use crate::authz::{BadPolicy, Policy};
use crate::connections::Carried;
use crate::path::Normalization;
use crate::telemetry::{self, Telemetry};
use crate::token::{BadRule, TokenRule};

/// What holds for all that this waypoint serves.
#[derive(Debug, Default)]
pub struct Settings {
    /// Of its Gateway and of its class.
    pub policies: Box<[Policy]>,
    /// The same of tokens.
    pub tokens: Box<[TokenRule]>,
    pub normalization: Normalization,
    /// How many proxies in front of it are believed about who a request comes from.
    pub trusted_hops: u32,
    /// They stand for each other.
    pub trust_domains: Box<[Box<str>]>,
    pub authorizers: Box<[Authorizer]>,
    /// Whether answers say in a header which rule has decided.
    pub explain: bool,
    /// What lets nothing pass that is meant for a workload.
    pub closures: Box<[Closure]>,
    /// What is told of all that nobody else says it of.
    pub telemetry: Option<Arc<Telemetry>>,
}

/// What lets nothing pass.
#[derive(Debug)]
pub struct Closure {
    why: Box<str>,
    /// None: all of them.
    ports: Box<[u32]>,
    requests_only: bool,
}

/// Why settings can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSettings {
    #[error("{0}")]
    Policy(#[from] BadPolicy),
    #[error("{0}")]
    Token(#[from] BadRule),
    #[error("path normalization {0} is not known here")]
    Normalization(i32),
}

impl Settings {
    /// Compiles a resource.
    ///
    /// # Errors
    /// If any part of it is not understood.
    pub fn compile(waypoint: &wire::Waypoint) -> Result<Self, BadSettings> {
        let said = waypoint.path_normalization;
        let normalization = match wire::PathNormalization::try_from(said) {
            Ok(wire::PathNormalization::Base) => Normalization::Base,
            Ok(wire::PathNormalization::None) => Normalization::None,
            Ok(wire::PathNormalization::MergeSlashes) => Normalization::MergeSlashes,
            Ok(wire::PathNormalization::DecodeAndMergeSlashes) => {
                Normalization::DecodeAndMergeSlashes
            }
            Err(_) => return Err(BadSettings::Normalization(said)),
        };
        let policies = waypoint.policies.iter().map(Policy::compile);
        let tokens = waypoint.token_rules.iter().map(TokenRule::compile);
        let authorizers = waypoint.authorizers.iter().map(Authorizer::compile);
        let trust_domains = waypoint.trust_domains.iter();
        let closures = waypoint.closures.iter().map(|closure| Closure {
            why: closure.why.as_str().into(),
            ports: closure.ports.as_slice().into(),
            requests_only: closure.requests_only,
        });
        Ok(Self {
            policies: policies.collect::<Result<_, _>>()?,
            tokens: tokens.collect::<Result<_, _>>()?,
            normalization,
            trusted_hops: waypoint.trusted_hops,
            trust_domains: trust_domains.map(|domain| domain.as_str().into()).collect(),
            authorizers: authorizers.collect(),
            explain: waypoint.explain,
            closures: closures.collect(),
            telemetry: telemetry::compiled(waypoint.telemetry.as_ref(), &waypoint.name),
        })
    }

    /// Why nothing passes to this port of a workload: no requests, or no bytes whatever they are.
    pub fn closed(&self, port: u16, carried: Carried) -> Option<&str> {
        let closes = |closure: &&Closure| {
            let meant = closure.ports.is_empty() || closure.ports.contains(&port.into());
            meant && (carried == Carried::Requests || !closure.requests_only)
        };
        self.closures
            .iter()
            .find(closes)
            .map(|closure| &*closure.why)
    }

    /// How an authorizer is asked.
    ///
    /// # Errors
    /// Why it can't be.
    pub fn asking(&self, name: &str) -> Result<&Asking, &str> {
        let known = self.authorizers.iter().find(|known| *known.name == *name);
        match known {
            Some(known) => known.asking.as_ref().map_err(|reason| &**reason),
            None => Err("there is no such authorizer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_closes_a_workloads_ports() {
        let closure = |ports: &[u32], requests_only| wire::Closure {
            why: format!("{ports:?}"),
            ports: ports.to_vec(),
            requests_only,
        };
        let settings = Settings::compile(&wire::Waypoint {
            closures: vec![closure(&[80], true), closure(&[9000], false)],
            ..wire::Waypoint::default()
        })
        .unwrap();
        assert_eq!(settings.closed(80, Carried::Requests), Some("[80]"));
        assert_eq!(settings.closed(80, Carried::Bytes), None);
        assert_eq!(settings.closed(9000, Carried::Requests), Some("[9000]"));
        assert_eq!(settings.closed(9000, Carried::Bytes), Some("[9000]"));
        assert_eq!(settings.closed(81, Carried::Requests), None);
        let all = Settings::compile(&wire::Waypoint {
            closures: vec![closure(&[], false)],
            ..wire::Waypoint::default()
        });
        assert!(all.unwrap().closed(1, Carried::Bytes).is_some());
    }
}
