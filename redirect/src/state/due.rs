// SPDX-License-Identifier: Apache-2.0
//! Which step is due: rules of sandboxes first, then what the pods' annotations say of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::State;
use super::pod::{Pod, Redirection};
use super::release::{Leaving, Stage};
use super::step::{Continuity, Step, Wish};
use crate::memory::Sandbox;
use crate::plan::{Dns, PodOptions, Reach};

impl State {
    /// The next thing to do, if any is due.
    pub fn next(&mut self, now: Instant) -> Option<Step> {
        self.note_who_leaves(now);
        let due = |uid: &str| {
            self.failures
                .get(uid)
                .is_none_or(|failure| failure.retry_at <= now)
        };
        let rules = self
            .sandboxes
            .values()
            .filter(|sandbox| due(&sandbox.uid))
            .find_map(|sandbox| self.rule_step(sandbox, now));
        rules.or_else(|| {
            self.pods
                .values()
                .filter(|pod| due(&pod.uid))
                .find_map(|pod| self.annotation_step(pod))
        })
    }

    /// When [`Self::next`] should be asked again although nothing has happened, given that it was asked at `asked`.
    pub fn next_retry(&self, asked: Instant) -> Option<Instant> {
        let retries = self.failures.values().map(|failure| failure.retry_at);
        let deadline = self.options.release_deadline;
        let releases = self
            .leaving
            .values()
            .flat_map(|leaving| leaving.wakes_at(deadline));
        let captures_dns = |uid: &str| matches!(self.wish(uid), Wish::Captured(options) if options.dns == Dns::Captured);
        let looks = self.resolvers.wakes_at(captures_dns);
        let all = retries.chain(releases).chain(looks);
        all.filter(|at| *at > asked).min()
    }

    fn note_who_leaves(&mut self, now: Instant) {
        let leaving: BTreeMap<_, _> = self
            .sandboxes
            .values()
            .filter(|sandbox| matches!(self.wish(&sandbox.uid), Wish::Released(_)))
            .filter(|sandbox| self.has_something_of_ours(sandbox))
            .map(|sandbox| {
                let answer = self.answers.get(&sandbox.uid);
                let report = answer.and_then(|answer| answer.report());
                (sandbox.uid.clone(), (self.is_served(sandbox), report))
            })
            .collect();
        self.leaving.retain(|uid, _| leaving.contains_key(uid));
        let deadline = self.options.release_deadline;
        for (uid, (served, report)) in leaving {
            self.leaving
                .entry(uid)
                .or_insert_with(|| Leaving::new(now))
                .note(served, report, deadline, now);
        }
    }

    /// After a restart it is not known whether there are rules; the annotation and the memory tell.
    fn has_something_of_ours(&self, sandbox: &Sandbox) -> bool {
        let uid = &sandbox.uid;
        let annotated = self.annotated.get(uid).copied().flatten().is_some();
        let done = self.released.get(uid) == Some(&sandbox.netns_id());
        self.rules.contains_key(uid) || !done && (annotated || self.was_captured_before(sandbox))
    }

    /// Captured by an agent before this one, as far as is known.
    fn was_captured_before(&self, sandbox: &Sandbox) -> bool {
        let uid = &sandbox.uid;
        let enabled = self.annotated.get(uid).copied().flatten() == Some(Redirection::Enabled);
        !self.fresh.contains(uid) && (sandbox.captured || enabled)
    }

    /// Whether ztunnel serves the pod in this sandbox, as far as it has said.
    fn is_served(&self, sandbox: &Sandbox) -> bool {
        matches!(self.consent(&sandbox.uid, sandbox.netns_id()), Some(Ok(())))
    }

    /// Rules come once somebody listens where they lead, unless they are there already.
    fn may_capture(&self, sandbox: &Sandbox) -> bool {
        self.is_served(sandbox)
            || self.rules.contains_key(&sandbox.uid)
            || self.was_captured_before(sandbox)
    }

    fn should_look_for_resolver(&self, sandbox: &Sandbox, now: Instant) -> bool {
        let (uid, netns) = (&sandbox.uid, sandbox.netns_id());
        let consent = self.consented(uid, netns);
        self.resolvers.is_due(uid, netns, consent, now)
    }

    fn rule_step(&self, sandbox: &Arc<Sandbox>, now: Instant) -> Option<Step> {
        let rules = self.rules.get(&sandbox.uid);
        let holds = |options: &PodOptions, reach| {
            rules.is_some_and(|rules| rules.options == *options && rules.reach == reach)
        };
        let sandbox = Arc::clone(sandbox);
        match self.wish(&sandbox.uid) {
            Wish::Captured(_) if !self.may_capture(&sandbox) => None,
            Wish::Captured(options) => {
                if options.dns == Dns::Captured && self.should_look_for_resolver(&sandbox, now) {
                    return Some(Step::LookForResolver { sandbox });
                }
                let options = self.options_in_force(&sandbox, options);
                let due = !holds(&options, Reach::Everything);
                due.then_some(Step::Capture { sandbox, options })
            }
            Wish::Ended => None,
            Wish::Released(_) => {
                let leaving = self.leaving.get(&sandbox.uid)?;
                let reach = match leaving.stage() {
                    Stage::Held => Reach::Inbound,
                    Stage::Draining => Reach::Nothing,
                    Stage::Over => {
                        let due = leaving.may_lose_rules(self.is_served(&sandbox), now);
                        return due.then_some(Step::Release { sandbox });
                    }
                };
                let options = self.options_of(self.pods.get(&sandbox.uid)?);
                let options = self.options_in_force(&sandbox, options);
                let due = !holds(&options, reach);
                due.then_some(Step::Loosen {
                    sandbox,
                    options,
                    reach,
                })
            }
            Wish::Gone => Some(Step::Forget { sandbox }),
        }
    }

    fn annotation_step(&self, pod: &Pod) -> Option<Step> {
        let current = self.annotated.get(&pod.uid).copied().flatten();
        let value = self.redirection(pod, current);
        (value != current).then(|| Step::Annotate {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            value,
        })
    }

    fn redirection(&self, pod: &Pod, current: Option<Redirection>) -> Option<Redirection> {
        match self.wish(&pod.uid) {
            Wish::Released(_) => {
                let told = self.leaving.get(&pod.uid).is_none_or(Leaving::is_told);
                current.filter(|_| !told)
            }
            Wish::Ended | Wish::Gone => None,
            Wish::Captured(_) if self.torn_down.contains(&pod.uid) => None,
            Wish::Captured(_) => {
                let Some(rules) = self.rules.get(&pod.uid) else {
                    // Without rules of ours nothing new is known of a pod that was there before us.
                    let new = self.sandboxes.contains_key(&pod.uid)
                        && (self.fresh.contains(&pod.uid) || current.is_none());
                    return if new {
                        Some(Redirection::Pending)
                    } else {
                        current
                    };
                };
                Some(
                    match self
                        .answers
                        .get(&pod.uid)
                        .filter(|answer| answer.netns == rules.netns)
                    {
                        Some(answer) if answer.error.is_empty() => Redirection::Enabled,
                        Some(_) => Redirection::Pending,
                        // ztunnel has not been asked since the agent started, and may have served the pod all along.
                        None if rules.continuity == Continuity::Found && current.is_some() => {
                            return current;
                        }
                        None => Redirection::Pending,
                    },
                )
            }
        }
    }
}
