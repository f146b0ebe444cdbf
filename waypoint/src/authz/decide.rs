// SPDX-License-Identifier: Apache-2.0
//! From policies to a decision that names its rule.

use std::fmt;

use super::{Access, Action, Policy};

/// The rule that a decision comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleRef<'p> {
    /// "namespace/name".
    pub policy: &'p str,
    /// Its place in the policy as written.
    pub rule: u32,
}

/// What becomes of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'p> {
    /// By this rule; none where no ALLOW policy applies.
    Allowed(Option<RuleRef<'p>>),
    /// By this rule; none where ALLOW policies apply and no rule of theirs matches.
    Denied(Option<RuleRef<'p>>),
}

/// A verdict, and what is to be told beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision<'p> {
    pub verdict: Verdict<'p>,
    /// What it would be if those that are tried out counted; nothing where there are none.
    pub dry_run: Option<Verdict<'p>>,
    /// The rule by which it is marked for audit.
    pub audit: Option<RuleRef<'p>>,
}

/// Decides by all policies but the CUSTOM ones.
pub fn decide<'p>(
    policies: impl Iterator<Item = &'p Policy> + Clone,
    access: &Access<'_>,
) -> Decision<'p> {
    let enforced = policies.clone().filter(|policy| !policy.dry_run);
    let verdict = verdict(enforced, access);
    let mut tried = policies
        .clone()
        .filter(|policy| policy.dry_run && matches!(policy.action, Action::Allow | Action::Deny));
    let is_tried = tried.next().is_some();
    Decision {
        verdict,
        dry_run: is_tried.then(|| self::verdict(policies.clone(), access)),
        audit: first(policies, Action::Audit, access),
    }
}

/// A CUSTOM rule that matches, and who is to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Custom<'p> {
    pub by: RuleRef<'p>,
    pub authorizer: &'p str,
    /// What the authorizer says changes nothing.
    pub dry_run: bool,
}

/// The CUSTOM rules that match, of which each authorizer has to agree; those that are tried out come last.
pub fn custom<'p>(
    policies: impl Iterator<Item = &'p Policy> + Clone,
    access: &Access<'_>,
) -> impl Iterator<Item = Custom<'p>> {
    let all = policies.filter(|policy| policy.action == Action::Custom);
    let enforced = all.clone().filter(|policy| !policy.dry_run);
    let tried = all.filter(|policy| policy.dry_run);
    enforced.chain(tried).filter_map(|policy| {
        let rule = policy.matching(access)?;
        Some(Custom {
            by: RuleRef {
                policy: &policy.name,
                rule: rule.index,
            },
            authorizer: &policy.authorizer,
            dry_run: policy.dry_run,
        })
    })
}

/// What policies say, whether they are tried out or not.
pub fn verdict<'p>(
    policies: impl Iterator<Item = &'p Policy> + Clone,
    access: &Access<'_>,
) -> Verdict<'p> {
    if let Some(by) = first(policies.clone(), Action::Deny, access) {
        return Verdict::Denied(Some(by));
    }
    let mut allowing = policies.clone();
    if !allowing.any(|policy| policy.action == Action::Allow) {
        return Verdict::Allowed(None);
    }
    match first(policies, Action::Allow, access) {
        Some(by) => Verdict::Allowed(Some(by)),
        None => Verdict::Denied(None),
    }
}

fn first<'p>(
    mut policies: impl Iterator<Item = &'p Policy>,
    action: Action,
    access: &Access<'_>,
) -> Option<RuleRef<'p>> {
    policies.find_map(|policy| {
        let rule = (policy.action == action).then(|| policy.matching(access))??;
        Some(RuleRef {
            policy: &policy.name,
            rule: rule.index,
        })
    })
}

impl Verdict<'_> {
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied(_))
    }

    /// The rule, if one has decided.
    pub fn by(&self) -> Option<RuleRef<'_>> {
        match self {
            Self::Allowed(by) | Self::Denied(by) => *by,
        }
    }
}

impl fmt::Display for RuleRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy {} rule {}", self.policy, self.rule)
    }
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed(Some(by)) => write!(f, "allowed by {by}"),
            Self::Allowed(None) => f.write_str("allowed: no ALLOW policy applies"),
            Self::Denied(Some(by)) => write!(f, "denied by {by}"),
            Self::Denied(None) => f.write_str("denied: no rule of any ALLOW policy matches"),
        }
    }
}
