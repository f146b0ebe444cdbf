// SPDX-License-Identifier: Apache-2.0
//! Who may do what: the policies of a waypoint and of its services, compiled once, and the decision on each request and
//! each opaque connection. Pure.
//!
//! In: [`proto::waypoint::Policy`]; an [`Access`], which says all that rules can look at. Out: a [`Decision`] that names
//! the rule.
//!
//! ```text
//! CUSTOM ─ one matches ─► its authorizer is asked ─ no ─► denied
//! DENY ─── one matches ─► denied
//! ALLOW ── there is none, or one matches ─► allowed
//!          else ─► denied
//! ```
//!
//! What marks a policy as dry run takes it out of all this; what would come of it is told beside the decision. Whom such a
//! CUSTOM policy names is asked all the same. Where no
//! request is seen, an ALLOW rule that asks for something of a request matches nothing, and any other rule goes by the
//! rest of its conditions; so it is with the server that a TLS client asks for, where nobody looked.

mod condition;
mod decide;
mod pattern;
mod remote;
mod template;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use proto::waypoint as wire;
use serde_json::{Map, Value};
use spiffe::SpiffeId;

use self::condition::Condition;
pub use self::decide::{Custom, Decision, RuleRef, Verdict, custom, decide, verdict};
pub(crate) use self::pattern::{Case, Pattern};
pub use self::remote::remote_ip;
pub use self::template::Template;

/// All that rules look at.
#[derive(Debug, Clone, Copy)]
pub struct Access<'r> {
    /// Who the client's tunnel has proven to be.
    pub identity: &'r SpiffeId,
    /// Where that tunnel comes from.
    pub source_ip: IpAddr,
    /// Where trusted proxies say that the request comes from; else the same.
    pub remote_ip: IpAddr,
    /// The addresses of what was asked for: one, or all that a host name has.
    pub destination_ips: &'r [IpAddr],
    /// The service's port, or the pod's where one was asked for.
    pub destination_port: u16,
    /// Trust domains that stand for each other.
    pub trust_domains: &'r [Box<str>],
    pub server_name: ServerName<'r>,
    /// Nothing where bytes are carried unread.
    pub request: Option<Request<'r>>,
}

/// Which server a client asks for whose TLS is not ended here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerName<'r> {
    /// Nobody has looked.
    Unseen,
    /// It names none, or does not begin with TLS.
    Absent,
    Named(&'r str),
}

/// What rules look at of a request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'r> {
    pub method: &'r str,
    /// With the port, if it has one.
    pub authority: &'r str,
    /// Normalised, without query.
    pub path: &'r str,
    pub headers: &'r HeaderMap,
    /// Of a token that was verified.
    pub token: Option<Token<'r>>,
    /// Where headers and token are not known any more: what is taken for them.
    pub doubt: Option<Doubt>,
}

/// In whose favour a rule is read of which not all can be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    ForPassing,
    AgainstPassing,
}

/// What is known from a token that was verified.
#[derive(Debug, Clone, Copy)]
pub struct Token<'r> {
    pub claims: &'r Map<String, Value>,
}

/// An AuthorizationPolicy.
#[derive(Debug)]
pub struct Policy {
    name: Arc<str>,
    action: Action,
    /// It decides nothing.
    dry_run: bool,
    rules: Box<[Rule]>,
    authorizer: Arc<str>,
}

/// What a matching rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allow,
    Deny,
    Audit,
    Custom,
}

/// One rule: clauses that all hold, of matches of which one does, of conditions that all do.
#[derive(Debug)]
struct Rule {
    /// Its place in the policy as written.
    index: u32,
    clauses: Box<[Clause]>,
    /// Whether it asks for anything of a request.
    of_requests: bool,
    /// Whether it asks which server a TLS client wants.
    of_server_names: bool,
}

/// Matches, of which one has to hold: conditions that all do.
type Clause = Box<[Box<[Condition]>]>;

/// Why a policy can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    #[error("a policy has no name")]
    Unnamed,
    #[error("policy {policy} has an action of which nothing is known here: {action}")]
    Action { policy: Arc<str>, action: i32 },
    #[error("policy {policy}, rule {rule}: {reason}")]
    Condition {
        policy: Arc<str>,
        rule: u32,
        reason: String,
    },
}

impl Policy {
    /// Compiles a policy.
    ///
    /// # Errors
    /// If any part of it is not understood; then none of it may be used.
    pub fn compile(policy: &wire::Policy) -> Result<Self, BadPolicy> {
        if policy.name.is_empty() || policy.namespace.is_empty() {
            return Err(BadPolicy::Unnamed);
        }
        let name: Arc<str> = format!("{}/{}", policy.namespace, policy.name).into();
        let action = match wire::PolicyAction::try_from(policy.action) {
            Ok(wire::PolicyAction::Allow) => Action::Allow,
            Ok(wire::PolicyAction::Deny) => Action::Deny,
            Ok(wire::PolicyAction::Audit) => Action::Audit,
            Ok(wire::PolicyAction::Custom) => Action::Custom,
            Err(_) => {
                return Err(BadPolicy::Action {
                    policy: name,
                    action: policy.action,
                });
            }
        };
        let rules = policy.rules.iter().map(|rule| {
            Rule::compile(rule, action).map_err(|reason| BadPolicy::Condition {
                policy: Arc::clone(&name),
                rule: rule.index,
                reason,
            })
        });
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
            action,
            dry_run: policy.dry_run,
            authorizer: policy.authorizer.as_str().into(),
            name,
        })
    }

    /// "namespace/name".
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn action(&self) -> Action {
        self.action
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// How many rules can match.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Whether it asks which server a TLS client wants.
    pub fn looks_at_server_names(&self) -> bool {
        self.rules.iter().any(|rule| rule.of_server_names)
    }

    fn matching(&self, access: &Access<'_>) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.matches(self.action, access))
    }
}

impl Rule {
    fn compile(rule: &wire::PolicyRule, action: Action) -> Result<Self, String> {
        let matching = |matching: &wire::PolicyMatch| {
            let conditions = matching.conditions.iter();
            let conditions = conditions.map(|one| Condition::compile(one, action));
            conditions.collect::<Result<Box<[Condition]>, String>>()
        };
        let clause = |clause: &wire::PolicyClause| clause.matches.iter().map(matching).collect();
        let clauses = rule.clauses.iter().map(clause);
        let clauses = clauses.collect::<Result<Box<[Clause]>, String>>()?;
        let conditions = || clauses.iter().flatten().flatten();
        Ok(Self {
            index: rule.index,
            of_requests: conditions().any(Condition::is_of_requests),
            of_server_names: conditions().any(Condition::is_of_server_names),
            clauses,
        })
    }

    fn matches(&self, action: Action, access: &Access<'_>) -> bool {
        let unseen = self.of_requests && access.request.is_none()
            || self.of_server_names && access.server_name == ServerName::Unseen;
        if unseen && action == Action::Allow {
            return false;
        }
        // What is in doubt holds where that serves whom the doubt is in favour of.
        let doubt = access.request.and_then(|request| request.doubt);
        let doubtful = doubt.map(|doubt| (doubt == Doubt::ForPassing) == (action == Action::Allow));
        let holds = |conditions: &[Condition]| {
            let mut conditions = conditions.iter();
            conditions.all(|one| one.holds(access, doubtful))
        };
        let mut clauses = self.clauses.iter();
        clauses.all(|clause| clause.iter().any(|conditions| holds(conditions)))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "ALLOW",
            Self::Deny => "DENY",
            Self::Audit => "AUDIT",
            Self::Custom => "CUSTOM",
        })
    }
}

#[cfg(test)]
mod tests;
