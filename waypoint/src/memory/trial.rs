// SPDX-License-Identifier: Apache-2.0
//! What a policy would have done to what was asked for in the last minutes.
//!
//! Each kind of access is decided on twice, as now and as if the policy were enforced. What rules ask of headers and tokens is
//! in doubt, so that each decision is made in favour of passing, and again against it: where both deny what passes now, it
//! would be denied, and where one of them does, it might be.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use http::HeaderMap;
use mesh::NamespacedHostname;
use serde::Serialize;

use super::{Kind, Memory, What, minute};
use crate::authz::{Access, Action, Doubt, Policy, Request, ServerName, Verdict, verdict};
use crate::state::State;

/// Kinds of accesses that are told of each policy, those of which there were most.
const TOLD: usize = 100;

/// Which policies are tried out.
pub enum Candidates {
    /// Those that are marked for it.
    Marked,
    /// One that is not in force.
    Given {
        policy: Policy,
        /// These services; none: all.
        services: Option<Vec<String>>,
    },
}

/// What a policy does to an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    WouldDeny,
    /// That depends on headers or a token.
    MightDeny,
    WouldAllow,
}

/// Accesses of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    pub source: String,
    pub source_ip: IpAddr,
    /// "namespace/host name".
    pub service: String,
    pub port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    pub count: u32,
    pub change: Change,
    /// What would be said of it.
    pub why: String,
}

/// What comes of one policy.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// Services that it concerns.
    services: usize,
    /// Requests and connections that were looked at.
    accesses: u64,
    would_deny: u64,
    might_deny: u64,
    would_allow: u64,
    /// Those that nothing is known of any more.
    forgotten: u64,
    /// Those that were never kept, since the beginning.
    missed: u64,
    /// Those for which it changes something, the most frequent first.
    changes: Vec<Traffic>,
    /// Why nothing is said of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// What comes of each policy, by "namespace/name".
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Trials(BTreeMap<String, Trial>);

/// Tries policies out, by what is known when it begins: to judge takes a while, and no change is to wait for it.
pub fn try_out(memory: &Memory, state: &State, candidates: &Candidates) -> Trials {
    let mut trials = Trials::default();
    let each = memory.each();
    let (settings, served) = {
        let known = state.read();
        let served = each
            .iter()
            .map(|(service, _)| known.served.get(service).cloned());
        (known.settings.clone(), served.collect::<Vec<_>>())
    };
    let Some(settings) = settings else {
        return trials;
    };
    for ((service, of), served) in each.into_iter().zip(served) {
        let Some(served) = served else {
            continue;
        };
        let policies = || settings.policies.iter().chain(served.policies());
        let tried: Vec<&Policy> = match candidates {
            Candidates::Marked => policies().filter(|policy| policy.is_dry_run()).collect(),
            Candidates::Given { policy, services } => {
                let name = service.to_string();
                let concerns = services.as_ref().is_none_or(|all| all.contains(&name));
                concerns.then_some(policy).into_iter().collect()
            }
        };
        let (recent, minute) = (of.recent.lock(), minute());
        for policy in tried {
            let trial = trials.0.entry(policy.name().to_owned()).or_default();
            trial.services += 1;
            trial.forgotten += u64::from(recent.forgotten(minute));
            trial.missed += of.missed.load(Ordering::Relaxed);
            if !matches!(policy.action(), Action::Allow | Action::Deny) {
                trial.note = Some("only policies that allow or deny by themselves are tried out");
                continue;
            }
            for (kind, count) in recent.lately(minute) {
                trial.judge(&service, kind, count, &settings.trust_domains, |access| {
                    let now = policies().filter(|one| !one.is_dry_run());
                    let others = now.clone().filter(|one| one.name() != policy.name());
                    (
                        verdict(now, access),
                        verdict(others.chain(std::iter::once(policy)), access),
                    )
                });
            }
        }
    }
    for trial in trials.0.values_mut() {
        let order = |one: &Traffic| {
            (
                one.service.clone(),
                one.source.clone(),
                one.method.clone(),
                one.path.clone(),
            )
        };
        trial
            .changes
            .sort_by(|a, b| b.count.cmp(&a.count).then_with(|| order(a).cmp(&order(b))));
        trial.changes.truncate(TOLD);
    }
    trials
}

impl Trial {
    fn judge<'p>(
        &mut self,
        service: &NamespacedHostname,
        kind: &Kind,
        count: u32,
        trust_domains: &[Box<str>],
        decide: impl Fn(&Access<'_>) -> (Verdict<'p>, Verdict<'p>),
    ) {
        let many = u64::from(count);
        self.accesses += many;
        let (now, then) = kind.access(Doubt::ForPassing, trust_domains, &decide);
        let (_, then_at_worst) = kind.access(Doubt::AgainstPassing, trust_domains, &decide);
        let (change, why) = match (now.is_denied(), then.is_denied(), then_at_worst.is_denied()) {
            (false, true, _) => (Change::WouldDeny, then),
            (false, false, true) => (Change::MightDeny, then_at_worst),
            (true, _, false) => (Change::WouldAllow, then_at_worst),
            _ => return,
        };
        match change {
            Change::WouldDeny => self.would_deny += many,
            Change::MightDeny => self.might_deny += many,
            Change::WouldAllow => self.would_allow += many,
        }
        let (line, server_name) = match &kind.what {
            What::Request {
                method,
                authority,
                path,
            } => (Some([method, authority, path]), None),
            What::Bytes(name) => (None, name.clone().flatten()),
        };
        let part = |at: usize| line.map(|line| line[at].to_string());
        self.changes.push(Traffic {
            source: kind.identity.to_string(),
            source_ip: kind.source_ip,
            service: service.to_string(),
            port: kind.port,
            method: part(0),
            authority: part(1),
            path: part(2),
            server_name: server_name.map(Into::into),
            count,
            change,
            why: why.to_string(),
        });
    }
}

impl Kind {
    fn access<T>(
        &self,
        doubt: Doubt,
        trust_domains: &[Box<str>],
        judge: impl Fn(&Access<'_>) -> T,
    ) -> T {
        static NO_HEADERS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        let (request, server_name) = match &self.what {
            What::Request {
                method,
                authority,
                path,
            } => (
                Some(Request {
                    method,
                    authority,
                    path,
                    headers: &NO_HEADERS,
                    token: None,
                    doubt: Some(doubt),
                }),
                ServerName::Absent,
            ),
            What::Bytes(None) => (None, ServerName::Unseen),
            What::Bytes(Some(None)) => (None, ServerName::Absent),
            What::Bytes(Some(Some(name))) => (None, ServerName::Named(name)),
        };
        judge(&Access {
            identity: &self.identity,
            source_ip: self.source_ip,
            remote_ip: self.remote_ip,
            destination_ips: self.destination_ip.as_slice(),
            destination_port: self.port,
            trust_domains,
            server_name,
            request,
        })
    }
}

#[cfg(test)]
mod tests;
