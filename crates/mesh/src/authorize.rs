// SPDX-License-Identifier: Apache-2.0
//! Policies × connection → decision, naming the rule.
//!
//! DENY comes before ALLOW; without any ALLOW policy everything else may pass. What is uncertain is decided so that
//! nothing passes that a complete reading would have stopped:
//!
//! - an ALLOW rule that holds a value which could not be read matches nothing;
//! - a DENY rule with such a value matches all that it might: the value counts as met;
//! - a workload that names a policy which is not known accepts nothing. That policy is usually on its way, so whoever
//!   asks may wait a while for it before acting on the decision: see [`PolicySet::missing`].

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use spiffe::SpiffeId;

use crate::policy::{
    Action, Clause, Enforcement, Match, Policy, Rule, ServiceAccountMatch, StringMatch, Values,
};

/// The policies that concern one workload.
#[derive(Debug, Clone, Default)]
pub struct PolicySet {
    deny: Vec<Arc<Policy>>,
    allow: Vec<Arc<Policy>>,
    dry_run: Vec<Arc<Policy>>,
    /// Keys that the workload names and that are not known.
    pub missing: Vec<Arc<str>>,
}

impl PolicySet {
    /// Adds a policy unless it is there.
    pub fn add(&mut self, policy: &Arc<Policy>) {
        let list = match (policy.enforcement, policy.action) {
            (Enforcement::DryRun, _) => &mut self.dry_run,
            (Enforcement::Enforced, Action::Deny) => &mut self.deny,
            (Enforcement::Enforced, Action::Allow) => &mut self.allow,
        };
        if !list.iter().any(|held| Arc::ptr_eq(held, policy)) {
            list.push(policy.clone());
        }
    }

    /// As it would be if a policy were enforced, in place of the one of its name if that is there.
    #[must_use]
    pub fn trying(&self, policy: &Policy) -> Self {
        let mut set = self.clone();
        let is_other =
            |held: &Arc<Policy>| (&held.namespace, &held.name) != (&policy.namespace, &policy.name);
        for list in [&mut set.deny, &mut set.allow, &mut set.dry_run] {
            list.retain(is_other);
        }
        set.add(&Arc::new(Policy {
            enforcement: Enforcement::Enforced,
            ..policy.clone()
        }));
        set
    }

    /// Those that are evaluated and logged only.
    pub fn in_dry_run(&self) -> &[Arc<Policy>] {
        &self.dry_run
    }

    /// The policies in it: DENY, ALLOW, then those in dry run.
    pub fn names(&self) -> impl Iterator<Item = PolicyName> + '_ {
        let all = self.deny.iter().chain(&self.allow).chain(&self.dry_run);
        all.map(|policy| PolicyName::of(policy))
    }

    /// Whether nothing restricts connections and nothing is to be logged.
    pub fn is_empty(&self) -> bool {
        self.deny.is_empty()
            && self.allow.is_empty()
            && self.dry_run.is_empty()
            && self.missing.is_empty()
    }
}

/// What policies look at.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// Where it comes from.
    pub source_ip: IpAddr,
    /// Who the peer has proven to be; nobody on a plaintext connection.
    pub identity: Option<&'a SpiffeId>,
    /// For whom a peer speaks that may: the client of the destination's own waypoint. What rules say of a source then holds
    /// if it holds of either, and what must not be said of it, of neither.
    pub caller: Option<&'a SpiffeId>,
    /// Where it goes, with the application's port.
    pub destination: SocketAddr,
}

/// Whether a connection may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may.
    Allow {
        /// The ALLOW rule that matched; none where no ALLOW policy applies.
        rule: Option<RuleName>,
    },
    /// It must not.
    Deny {
        /// Why.
        reason: DenyReason,
    },
}

impl Decision {
    /// Whether the connection may pass.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }
}

/// Why a connection must not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DenyReason {
    /// A DENY rule matched.
    Rule(RuleName),
    /// A DENY rule with a value that could not be read might match.
    UnparsableRule(RuleName),
    /// There are ALLOW policies and none matched.
    NotAllowed {
        /// The first of them.
        policy: PolicyName,
        /// How many others there are.
        others: usize,
    },
    /// The workload names a policy that is not known.
    Missing {
        /// Its key.
        policy: Arc<str>,
    },
}

impl fmt::Display for DenyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "denied by policy {rule}"),
            Self::UnparsableRule(rule) => write!(
                f,
                "denied by policy {rule}, which holds a value that could not be read and might match"
            ),
            Self::NotAllowed { policy, others: 0 } => {
                write!(f, "not matched by the ALLOW policy {policy}")
            }
            Self::NotAllowed { policy, others } => {
                write!(
                    f,
                    "not matched by the ALLOW policy {policy} nor {others} others"
                )
            }
            Self::Missing { policy } => write!(
                f,
                "policy {policy} selects the destination but has not arrived from the control plane"
            ),
        }
    }
}

/// A policy's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PolicyName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl PolicyName {
    fn of(policy: &Policy) -> Self {
        Self {
            namespace: policy.namespace.clone(),
            name: policy.name.clone(),
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleName {
    /// The policy.
    pub policy: PolicyName,
    /// The rule's place in it, from 0.
    pub rule: usize,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rule[{}]", self.policy, self.rule)
    }
}

/// Decides whether a connection may pass. Policies in dry run have no say; see [`PolicySet::dry_run`].
pub fn authorize(policies: &PolicySet, connection: &Connection<'_>) -> Decision {
    let connection = &canonical(connection);
    for policy in &policies.deny {
        if let Some((rule, name)) = matching(policy, connection) {
            let reason = if rule.has_unparsable() {
                DenyReason::UnparsableRule(name)
            } else {
                DenyReason::Rule(name)
            };
            return Decision::Deny { reason };
        }
    }
    if let Some(policy) = policies.missing.first() {
        return Decision::Deny {
            reason: DenyReason::Missing {
                policy: policy.clone(),
            },
        };
    }
    let Some(first) = policies.allow.first() else {
        return Decision::Allow { rule: None };
    };
    let allowed = policies
        .allow
        .iter()
        .find_map(|policy| matching(policy, connection));
    match allowed {
        Some((_, name)) => Decision::Allow { rule: Some(name) },
        None => Decision::Deny {
            reason: DenyReason::NotAllowed {
                policy: PolicyName::of(first),
                others: policies.allow.len() - 1,
            },
        },
    }
}

/// What a policy in dry run would have done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DryRun {
    /// This DENY rule would have denied the connection.
    WouldDeny(RuleName),
    /// This ALLOW rule would have let it pass.
    WouldAllow(RuleName),
    /// Only ALLOW policies in dry run apply, and none of them matched.
    WouldNotAllow,
}

impl fmt::Display for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldDeny(rule) => write!(f, "dry run: policy {rule} would deny it"),
            Self::WouldAllow(rule) => write!(f, "dry run: policy {rule} would allow it"),
            Self::WouldNotAllow => write!(f, "dry run: no ALLOW policy would match it"),
        }
    }
}

impl PolicySet {
    /// What the policies in dry run say of a connection, for the log.
    pub fn dry_run(&self, connection: &Connection<'_>) -> Vec<DryRun> {
        let connection = &canonical(connection);
        let mut said = Vec::new();
        let (mut allow_policies, mut allowed) = (0, false);
        for policy in &self.dry_run {
            allow_policies += usize::from(policy.action == Action::Allow);
            match (policy.action, matching(policy, connection)) {
                (Action::Deny, Some((_, name))) => said.push(DryRun::WouldDeny(name)),
                (Action::Allow, Some((_, name))) => {
                    allowed = true;
                    said.push(DryRun::WouldAllow(name));
                }
                (_, None) => {}
            }
        }
        if allow_policies > 0 && self.allow.is_empty() && !allowed {
            said.push(DryRun::WouldNotAllow);
        }
        said
    }
}

/// IPv4 in IPv6 clothes must meet IPv4 ranges.
fn canonical<'a>(connection: &Connection<'a>) -> Connection<'a> {
    Connection {
        source_ip: connection.source_ip.to_canonical(),
        destination: SocketAddr::new(
            connection.destination.ip().to_canonical(),
            connection.destination.port(),
        ),
        ..*connection
    }
}

/// The first rule that matches, or for a DENY policy might.
fn matching<'p>(policy: &'p Policy, connection: &Connection<'_>) -> Option<(&'p Rule, RuleName)> {
    let doubt = match policy.action {
        Action::Allow => Doubt::NeverMatches,
        Action::Deny => Doubt::Matches,
    };
    let (index, rule) = policy
        .rules
        .iter()
        .enumerate()
        .find(|(_, rule)| rule_matches(rule, connection, doubt))?;
    let name = RuleName {
        policy: PolicyName::of(policy),
        rule: index,
    };
    Some((rule, name))
}

/// What a value that could not be read does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// It keeps its whole rule from matching.
    NeverMatches,
    /// It counts as met.
    Matches,
}

fn rule_matches(rule: &Rule, connection: &Connection<'_>, doubt: Doubt) -> bool {
    if doubt == Doubt::NeverMatches && rule.has_unparsable() {
        return false;
    }
    rule.clauses
        .iter()
        .all(|clause| clause_matches(clause, connection))
}

fn clause_matches(clause: &Clause, connection: &Connection<'_>) -> bool {
    clause.matches.is_empty() || clause.matches.iter().any(|m| match_matches(m, connection))
}

/// Here every value that could not be read counts as met: where it must not, its rule was left out before.
fn match_matches(m: &Match, connection: &Connection<'_>) -> bool {
    if m.is_empty() {
        return false;
    }
    let source = connection.source_ip;
    let (destination, port) = (connection.destination.ip(), connection.destination.port());
    let peer = Party(connection.identity);
    let caller = connection.caller.map(|caller| Party(Some(caller)));
    (peer.is_named(m) || caller.is_some_and(|caller| caller.is_named(m)))
        && peer.is_not_excluded(m)
        && caller.is_none_or(|caller| caller.is_not_excluded(m))
        && some(&m.source_ips, |range| range.contains(&source))
        && none(&m.not_source_ips, |range| range.contains(&source))
        && some(&m.destination_ips, |range| range.contains(&destination))
        && none(&m.not_destination_ips, |range| range.contains(&destination))
        && some(&m.destination_ports, |value| *value == port)
        && none(&m.not_destination_ports, |value| *value == port)
}

/// Who speaks, or for whom; nobody without an identity.
#[derive(Debug, Clone, Copy)]
struct Party<'a>(Option<&'a SpiffeId>);

impl Party<'_> {
    fn is_named(self, m: &Match) -> bool {
        some(&m.namespaces, |value| value.matches(self.namespace()))
            && some(&m.principals, |value| self.is_principal(value))
            && some(&m.service_accounts, |value| self.is_account(value))
    }

    fn is_not_excluded(self, m: &Match) -> bool {
        none(&m.not_namespaces, |value| value.matches(self.namespace()))
            && none(&m.not_principals, |value| self.is_principal(value))
            && none(&m.not_service_accounts, |value| self.is_account(value))
    }

    fn namespace(&self) -> &str {
        self.0.map_or("", SpiffeId::namespace)
    }

    fn is_principal(self, value: &StringMatch) -> bool {
        self.0.is_some_and(|id| value.matches(id.principal()))
    }

    fn is_account(self, account: &ServiceAccountMatch) -> bool {
        self.0.is_some_and(|id| {
            id.namespace() == &*account.namespace
                && id.service_account() == &*account.service_account
        })
    }
}

/// Whether a field that lists what must be there passes.
fn some<T>(values: &Values<T>, is_hit: impl Fn(&T) -> bool) -> bool {
    values.is_empty() || values.has_unparsable() || values.known.iter().any(is_hit)
}

/// Whether a field that lists what must not be there passes.
fn none<T>(values: &Values<T>, is_hit: impl Fn(&T) -> bool) -> bool {
    !values.known.iter().any(is_hit)
}

#[cfg(test)]
mod tests;
