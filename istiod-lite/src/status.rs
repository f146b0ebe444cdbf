// SPDX-License-Identifier: Apache-2.0
//! What the authors of objects are told: conditions, written back only when they change.
//!
//! Which condition is due, and whether it has to be written, is decided by pure
//! functions. Whoever deletes the files of ours gets them back, since what is
//! compared is what the object carries now.

pub mod policies;
pub mod routes;

use std::collections::BTreeSet;

use cluster::{
    Kind, ObjectKey, Partial, StatusWriter,
    k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp},
    kinds,
    status::Written,
};

use self::routes::{Entries, ParentStatus};
use crate::{
    facts::{
        mesh_config::Visibility,
        service_entry::{ConnectStrategy, ServiceEntry, is_wildcard},
        waypoint::IngressUse,
    },
    index::{Index, Standing},
    leader::Leadership,
    translate::{
        policy::Acceptance,
        waypoint::{Addressed, Binding, Canary, CanaryRefusal, Refusal},
    },
};

/// The name under which we write, but for conditions of other revisions than the default one.
pub const MANAGER: &str = "istiod-lite";

/// The name under which conditions are written, by the revisions that are answered to. Each revision has its own: what one
/// takes back of an object that has gone to another is not what the other says.
pub fn manager(revisions: &[String]) -> String {
    let is_default = revisions.iter().any(|revision| revision == "default");
    match revisions.first() {
        Some(first) if !is_default => format!("{MANAGER}-{first}"),
        _ => MANAGER.to_owned(),
    }
}

const WAYPOINT_BOUND: &str = "istio.io/WaypointBound";
const WAYPOINT_MISSING: &str = "istio.io/WaypointMissing";
const VISIBILITY_APPLIED: &str = "istio.io/VisibilityApplied";
const ZTUNNEL_ACCEPTED: &str = "ZtunnelAccepted";

/// All the questions that we answer. What others say of an object is not ours to judge.
const OURS: [&str; 5] = [
    policies::WAYPOINT_ACCEPTED,
    WAYPOINT_BOUND,
    WAYPOINT_MISSING,
    VISIBILITY_APPLIED,
    ZTUNNEL_ACCEPTED,
];

pub(crate) fn is_ours(carried: &kinds::Condition) -> bool {
    OURS.contains(&carried.type_.as_str())
}

/// What an object's author is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which question it answers.
    pub kind: &'static str,
    /// The answer.
    pub verdict: Verdict,
    /// Why, as one word.
    pub reason: &'static str,
    /// Why, as a sentence.
    pub message: String,
}

/// The answer that a condition gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    True,
    /// It doesn't.
    False,
}

impl Condition {
    /// Whether a condition that an object carries says this already.
    fn is_said_by(&self, carried: &kinds::Condition, generation: Option<i64>) -> bool {
        carried.status == self.verdict.as_str()
            && carried.reason == self.reason
            && carried.message == self.message
            && carried.observed_generation == generation
    }

    /// As it is written in place of what an object carries: the time is that of the last
    /// change of the answer.
    pub(crate) fn written(
        &self,
        carried: Option<&kinds::Condition>,
        observed_generation: Option<i64>,
        now: Time,
    ) -> kinds::Condition {
        let status = self.verdict.as_str();
        let since = carried.filter(|carried| carried.status == status);
        kinds::Condition {
            type_: self.kind.to_owned(),
            status: status.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message.clone(),
            observed_generation,
            last_transition_time: since.map_or(now, |carried| carried.last_transition_time.clone()),
        }
    }
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
        }
    }
}

/// Whether the waypoint that an object asks for is used.
pub fn waypoint_bound(
    binding: &Binding,
    ingress: Option<IngressUse>,
    addressed: Addressed,
) -> Option<Condition> {
    match binding {
        Binding::Unbound => None,
        Binding::Bound {
            gateway, canary, ..
        } => {
            let remark = match ingress {
                None => "",
                Some(IngressUse::Waypoint) => ". Ingress traffic will traverse the waypoint",
                Some(IngressUse::Direct) => ". Ingress traffic will not traverse the waypoint",
            };
            let canary = canary_remark(canary);
            Some(Condition {
                kind: WAYPOINT_BOUND,
                verdict: Verdict::True,
                reason: "WaypointAccepted",
                message: format!("Successfully attached to waypoint {gateway}{remark}{canary}"),
            })
        }
        Binding::Refused { gateway, refusal } => Some(Condition {
            kind: WAYPOINT_BOUND,
            verdict: Verdict::False,
            reason: refusal_reason(*refusal),
            message: format!("waypoint {gateway} {}", refusal_words(*refusal, addressed)),
        }),
    }
}

/// What is added where a second waypoint was to take a share and doesn't.
fn canary_remark(canary: &Canary) -> String {
    const UNUSED: &str = ". The canary waypoint takes no share of the traffic";
    match canary {
        Canary::Unwanted
        | Canary::Share {
            address: Some(_), ..
        } => String::new(),
        Canary::Share { address: None, .. } => {
            format!("{UNUSED}: WaypointIsNotReady: none of its addresses can be used")
        }
        Canary::Refused(CanaryRefusal::SameAsPrimary) => {
            format!("{UNUSED}: CanarySameAsPrimary: it is this very waypoint")
        }
        Canary::Refused(CanaryRefusal::InvalidWeight(text)) => {
            format!("{UNUSED}: CanaryInvalidWeight: {text:?} is no number from 0 to 100")
        }
        Canary::Refused(CanaryRefusal::Unbound(gateway, refusal)) => format!(
            "{UNUSED}: {}: waypoint {gateway} {}",
            refusal_reason(*refusal),
            refusal_words(*refusal, Addressed::Service)
        ),
    }
}

fn refusal_reason(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotReady => "WaypointIsNotReady",
        Refusal::AttachmentDenied => "AttachmentDenied",
        Refusal::UnsupportedTrafficType => "UnsupportedTrafficType",
        Refusal::CrossNamespace => "CrossNamespaceWaypointForbidden",
    }
}

fn refusal_words(refusal: Refusal, addressed: Addressed) -> &'static str {
    match (refusal, addressed) {
        (Refusal::NotReady, _) => "does not exist or has no address yet",
        (Refusal::AttachmentDenied, _) => "has a listener that does not admit this namespace",
        (Refusal::UnsupportedTrafficType, Addressed::Service) => {
            "does not serve traffic addressed to services"
        }
        (Refusal::UnsupportedTrafficType, Addressed::Workload) => {
            "does not serve traffic addressed to workloads"
        }
        (Refusal::CrossNamespace, _) => {
            "is in another namespace, and this is visible to its own namespace only"
        }
    }
}

/// Whether a ServiceEntry asks for what only a waypoint can do, and has none.
pub fn waypoint_missing(entry: &ServiceEntry, binding: &Binding) -> Option<Condition> {
    if matches!(binding, Binding::Bound { .. }) {
        return None;
    }
    let (reason, message) = if entry.hosts.iter().any(|host| is_wildcard(host)) {
        (
            "NoWaypointForWildcardService",
            "a wildcard host has no effect until the entry is bound to a waypoint",
        )
    } else if entry.connect_strategy == ConnectStrategy::Race {
        (
            "NoWaypointForRacingConnectStrategy",
            "the connect strategy has no effect until the entry is bound to a waypoint",
        )
    } else {
        return None;
    };
    Some(Condition {
        kind: WAYPOINT_MISSING,
        verdict: Verdict::True,
        reason,
        message: message.to_owned(),
    })
}

/// Who sees a ServiceEntry, where the mesh has rules for that.
pub fn visibility_applied(visibility: Visibility) -> Option<Condition> {
    let (reason, message) = match visibility {
        Visibility::Public => ("Public", "visible to clients of all namespaces"),
        Visibility::Namespace => ("Namespace", "visible to clients of this namespace only"),
        Visibility::None => return None,
    };
    Some(Condition {
        kind: VISIBILITY_APPLIED,
        verdict: Verdict::True,
        reason,
        message: message.to_owned(),
    })
}

/// How far ztunnel enforces a policy.
pub fn ztunnel_accepted(acceptance: &Acceptance) -> Option<Condition> {
    let (verdict, reason, message) = match acceptance {
        Acceptance::NotForZtunnel => return None,
        Acceptance::Accepted => (Verdict::True, "Accepted", "attached to ztunnel".to_owned()),
        Acceptance::Stricter(why) => (Verdict::True, "UnsupportedValue", why.clone()),
        Acceptance::Refused(why) => (Verdict::False, "UnsupportedValue", why.clone()),
    };
    Some(Condition {
        kind: ZTUNNEL_ACCEPTED,
        verdict,
        reason,
        message,
    })
}

/// How far waypoints do what an object says.
pub fn waypoint_accepted(verdict: Verdict, reason: &'static str, message: String) -> Condition {
    Condition {
        kind: policies::WAYPOINT_ACCEPTED,
        verdict,
        reason,
        message,
    }
}

/// What is to be done about one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// Say this of the object with this uid, and nothing that was said before.
    Write {
        /// The object.
        object: ObjectKey,
        /// Its uid.
        uid: String,
        /// The answers.
        conditions: Vec<kinds::Condition>,
        /// The addresses that a ServiceEntry's hosts are given.
        addresses: Option<Vec<kinds::ServiceEntryAddress>>,
        /// The answers that others give.
        others: Vec<kinds::Condition>,
        /// The version in which they do.
        version: String,
    },
    /// Say this of the route with this uid.
    WriteParents {
        /// The route.
        object: ObjectKey,
        /// Its uid.
        uid: String,
        /// The version in which others have said what is repeated here.
        version: String,
        /// The name of the list in its status, and what it is to hold.
        list: &'static str,
        entries: Entries,
    },
    /// Take back what was written.
    Remove {
        /// The object.
        object: ObjectKey,
    },
    /// The object is gone.
    Forget {
        /// The object.
        object: ObjectKey,
    },
}

/// What is to be done about objects whose conditions may have changed.
pub fn tasks(index: &Index, objects: &BTreeSet<ObjectKey>, now: Timestamp) -> Vec<Task> {
    let of = |object: &ObjectKey| {
        if let Some(list) = object.kind.controllers_list() {
            let wanted = index.parents(object);
            return route_task((object, list), wanted, index.standing(object), now);
        }
        let wanted = Wanted {
            conditions: index.conditions(object),
            addresses: index.allocation(object),
        };
        task(object, wanted, index.standing(object), now)
    };
    objects.iter().filter_map(of).collect()
}

fn route_task(
    (object, list): (&ObjectKey, &'static str),
    wanted: &[ParentStatus],
    standing: Option<&Standing>,
    now: Timestamp,
) -> Option<Task> {
    let object = object.clone();
    let Some(standing) = standing else {
        return Some(Task::Forget { object });
    };
    let entries = routes::entries(list, wanted, &standing.parents, standing.generation, now)?;
    if entries.own.is_empty() && entries.others.is_empty() {
        return Some(Task::Remove { object });
    }
    Some(Task::WriteParents {
        object,
        uid: standing.uid.clone(),
        version: standing.version.clone(),
        list,
        entries,
    })
}

/// What an object is to carry of ours.
#[derive(Debug, Clone, Copy, Default)]
struct Wanted<'a> {
    conditions: &'a [Condition],
    /// None where addresses are not ours to give.
    addresses: Option<&'a [kinds::ServiceEntryAddress]>,
}

fn task(
    object: &ObjectKey,
    wanted: Wanted<'_>,
    standing: Option<&Standing>,
    now: Timestamp,
) -> Option<Task> {
    let Some(standing) = standing else {
        return Some(Task::Forget {
            object: object.clone(),
        });
    };
    let write = |conditions, addresses| {
        let others = standing.conditions.iter();
        let others = others.filter(|carried| !is_ours(carried));
        Some(Task::Write {
            object: object.clone(),
            uid: standing.uid.clone(),
            conditions,
            addresses,
            others: others.cloned().collect(),
            version: standing.version.clone(),
        })
    };
    let remove = || match standing.conditions.iter().all(is_ours) {
        true => Some(Task::Remove {
            object: object.clone(),
        }),
        false => write(Vec::new(), None),
    };
    if standing.left {
        // Only what this control plane wrote goes, and nothing where it wrote nothing.
        let may_carry_ours =
            !standing.addresses.is_empty() || standing.conditions.iter().any(is_ours);
        return may_carry_ours.then(remove).flatten();
    }
    // Istio notes the generation on policies only.
    let observed_generation = standing
        .generation
        .filter(|_| object.kind == Kind::AuthorizationPolicy);
    let carried = |kind: &str| {
        standing
            .conditions
            .iter()
            .find(|carried| carried.type_ == kind)
    };
    let obsolete = OURS.iter().any(|kind| {
        carried(kind).is_some() && wanted.conditions.iter().all(|wanted| wanted.kind != *kind)
    });
    let unchanged = wanted.conditions.iter().all(|wanted| {
        carried(wanted.kind).is_some_and(|carried| wanted.is_said_by(carried, observed_generation))
    });
    let addressed = wanted
        .addresses
        .is_none_or(|wanted| wanted == standing.addresses);
    if unchanged && !obsolete && addressed {
        return None;
    }
    if wanted.conditions.is_empty() && wanted.addresses.is_none_or(<[_]>::is_empty) {
        return remove();
    }
    let condition =
        |wanted: &Condition| wanted.written(carried(wanted.kind), observed_generation, Time(now));
    let conditions = wanted.conditions.iter().map(condition);
    write(conditions.collect(), wanted.addresses.map(<[_]>::to_vec))
}

impl Task {
    fn object(&self) -> &ObjectKey {
        match self {
            Self::Write { object, .. }
            | Self::WriteParents { object, .. }
            | Self::Remove { object }
            | Self::Forget { object } => object,
        }
    }
}

/// Does the tasks for as long as it is this replica's to do, and gives back the objects of those that were not done.
pub fn perform(
    writer: &StatusWriter,
    leadership: &Leadership,
    tasks: &[Task],
) -> BTreeSet<ObjectKey> {
    let mut failed = BTreeSet::new();
    for task in tasks {
        if !leadership.is_held() {
            failed.insert(task.object().clone());
            continue;
        }
        let result = match task {
            Task::Remove { object } => writer.remove(object),
            Task::Forget { object } => writer.forget(object),
            Task::WriteParents {
                object,
                uid,
                version,
                list,
                entries,
            } => {
                let mut partial = Partial {
                    others: entries.others.clone(),
                    version: version.clone(),
                    ..Partial::default()
                };
                let parents = serde_json::json!(entries.own);
                partial.status.insert((*list).to_owned(), parents);
                writer.write(object, uid, &partial)
            }
            Task::Write {
                object,
                uid,
                conditions,
                addresses,
                others,
                version,
            } => {
                let others = others.iter().map(|one| serde_json::json!(one));
                let mut partial = Partial {
                    others: others.collect(),
                    version: version.clone(),
                    ..Partial::default()
                };
                let mut say = |field: &str, value| partial.status.insert(field.to_owned(), value);
                if !conditions.is_empty() {
                    say("conditions", serde_json::json!(conditions));
                }
                if let Some(addresses) = addresses.as_ref().filter(|given| !given.is_empty()) {
                    say("addresses", serde_json::json!(addresses));
                }
                writer.write(object, uid, &partial)
            }
        };
        match result {
            Ok(Written::Changed | Written::Unchanged) => {}
            Ok(Written::Outdated) => {
                metrics::counter!("culvert_status_write_conflicts_total").increment(1);
                failed.insert(task.object().clone());
            }
            Err(error) => {
                metrics::counter!("culvert_status_write_failures_total").increment(1);
                tracing::warn!(%error, "a condition could not be written");
                failed.insert(task.object().clone());
            }
        }
    }
    failed
}

#[cfg(test)]
mod tests;
