// SPDX-License-Identifier: Apache-2.0
//! What holds for all that this waypoint serves. Pure.
//!
//! In: [`proto::waypoint::Waypoint`]. Out: the same, compiled; nothing of it is used where a part is not understood.

use proto::waypoint as wire;

use crate::authorizer::{Asking, Authorizer};
use crate::authz::{BadPolicy, Policy};
use crate::path::Normalization;
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
        Ok(Self {
            policies: policies.collect::<Result<_, _>>()?,
            tokens: tokens.collect::<Result<_, _>>()?,
            normalization,
            trusted_hops: waypoint.trusted_hops,
            trust_domains: trust_domains.map(|domain| domain.as_str().into()).collect(),
            authorizers: authorizers.collect(),
            explain: waypoint.explain,
        })
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
