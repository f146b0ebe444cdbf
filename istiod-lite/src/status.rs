// SPDX-License-Identifier: Apache-2.0
//! What the authors of objects are told: conditions, written back only when they change.
//!
//! Which condition is due, and whether it has to be written, is decided by pure
//! functions. Whoever deletes the files of ours gets them back, since what is
//! compared is what the object carries now.

use std::collections::BTreeSet;

use cluster::{
    Kind, ObjectKey, Partial, StatusWriter,
    k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp},
    kinds,
};

use crate::{
    facts::waypoint::IngressUse,
    index::{Index, Standing},
    translate::{
        policy::Acceptance,
        waypoint::{Binding, Refusal},
    },
};

/// The name under which we write.
pub const MANAGER: &str = "istiod-lite";

const WAYPOINT_BOUND: &str = "istio.io/WaypointBound";
const ZTUNNEL_ACCEPTED: &str = "ZtunnelAccepted";

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

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
        }
    }
}

/// Whether a service goes through the waypoint that it asks for.
pub fn waypoint_bound(binding: &Binding, ingress: Option<IngressUse>) -> Option<Condition> {
    match binding {
        Binding::Unbound => None,
        Binding::Bound { gateway, .. } => {
            let remark = match ingress {
                None => "",
                Some(IngressUse::Waypoint) => ". Ingress traffic will traverse the waypoint",
                Some(IngressUse::Direct) => ". Ingress traffic will not traverse the waypoint",
            };
            Some(Condition {
                kind: WAYPOINT_BOUND,
                verdict: Verdict::True,
                reason: "WaypointAccepted",
                message: format!("Successfully attached to waypoint {gateway}{remark}"),
            })
        }
        Binding::Refused { gateway, refusal } => {
            let (reason, message) = match refusal {
                Refusal::NotReady => (
                    "WaypointIsNotReady",
                    format!("waypoint {gateway} does not exist or has no address yet"),
                ),
                Refusal::AttachmentDenied => (
                    "AttachmentDenied",
                    format!("the listener of waypoint {gateway} does not admit this namespace"),
                ),
                Refusal::UnsupportedTrafficType => (
                    "UnsupportedTrafficType",
                    format!("waypoint {gateway} does not serve traffic addressed to services"),
                ),
            };
            Some(Condition {
                kind: WAYPOINT_BOUND,
                verdict: Verdict::False,
                reason,
                message,
            })
        }
    }
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

/// What is to be done about one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// Write this condition to the object with this uid.
    Write {
        /// The object.
        object: ObjectKey,
        /// Its uid.
        uid: String,
        /// The condition.
        condition: Box<kinds::Condition>,
    },
    /// Take back what was written.
    Remove {
        /// The object.
        object: ObjectKey,
    },
}

/// What is to be done about objects whose conditions may have changed.
pub fn tasks(index: &Index, objects: &BTreeSet<ObjectKey>, now: Timestamp) -> Vec<Task> {
    let of = |object| task(object, index.condition(object), index.standing(object), now);
    objects.iter().filter_map(of).collect()
}

fn task(
    object: &ObjectKey,
    wanted: Option<&Condition>,
    standing: Option<&Standing>,
    now: Timestamp,
) -> Option<Task> {
    let remove = || {
        Some(Task::Remove {
            object: object.clone(),
        })
    };
    let Some(standing) = standing else {
        return remove();
    };
    let kind = match object.kind {
        Kind::AuthorizationPolicy => ZTUNNEL_ACCEPTED,
        _ => WAYPOINT_BOUND,
    };
    let carried = standing
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind);
    let Some(wanted) = wanted else {
        return carried.and_then(|_| remove());
    };
    // Istio notes the generation on policies only.
    let observed_generation = standing
        .generation
        .filter(|_| object.kind == Kind::AuthorizationPolicy);
    let status = wanted.verdict.as_str();
    let unchanged = carried.is_some_and(|carried| {
        carried.status == status
            && carried.reason == wanted.reason
            && carried.message == wanted.message
            && carried.observed_generation == observed_generation
    });
    if unchanged {
        return None;
    }
    let since = carried.filter(|carried| carried.status == status);
    let condition = kinds::Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: wanted.reason.to_owned(),
        message: wanted.message.clone(),
        observed_generation,
        last_transition_time: since
            .map_or(Time(now), |carried| carried.last_transition_time.clone()),
    };
    Some(Task::Write {
        object: object.clone(),
        uid: standing.uid.clone(),
        condition: Box::new(condition),
    })
}

/// Does the tasks. What fails is logged, and tried again when the object changes.
pub fn perform(writer: &StatusWriter, tasks: &[Task]) {
    for task in tasks {
        let result = match task {
            Task::Remove { object } => writer.remove(object),
            Task::Write {
                object,
                uid,
                condition,
            } => {
                let mut partial = Partial::default();
                let conditions = serde_json::json!([condition]);
                partial.status.insert("conditions".to_owned(), conditions);
                writer.write(object, uid, &partial)
            }
        };
        if let Err(error) = result {
            tracing::warn!(%error, "a condition could not be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted() -> Condition {
        ztunnel_accepted(&Acceptance::Accepted).expect("a condition")
    }

    fn policy() -> ObjectKey {
        ObjectKey::namespaced(Kind::AuthorizationPolicy, "ns", "p")
    }

    fn standing(conditions: Vec<kinds::Condition>) -> Standing {
        Standing {
            uid: "u".into(),
            generation: Some(2),
            conditions,
        }
    }

    fn written(task: Option<Task>) -> kinds::Condition {
        match task {
            Some(Task::Write { condition, .. }) => *condition,
            other => panic!("expected a write, got {other:?}"),
        }
    }

    #[test]
    fn a_condition_that_the_object_carries_is_not_written_again() {
        let first = written(task(
            &policy(),
            Some(&accepted()),
            Some(&standing(vec![])),
            Timestamp::UNIX_EPOCH,
        ));
        assert_eq!(
            (first.status.as_str(), first.observed_generation),
            ("True", Some(2))
        );
        let carried = standing(vec![first]);
        assert_eq!(
            task(&policy(), Some(&accepted()), Some(&carried), Timestamp::MAX),
            None
        );
    }

    #[test]
    fn the_time_of_transition_moves_only_with_the_answer() {
        let first = written(task(
            &policy(),
            Some(&accepted()),
            Some(&standing(vec![])),
            Timestamp::UNIX_EPOCH,
        ));
        let carried = standing(vec![first]);
        let stricter = ztunnel_accepted(&Acceptance::Stricter("why".into())).expect("a condition");
        let second = written(task(
            &policy(),
            Some(&stricter),
            Some(&carried),
            Timestamp::MAX,
        ));
        assert_eq!(second.last_transition_time.0, Timestamp::UNIX_EPOCH);
        let refused = ztunnel_accepted(&Acceptance::Refused("why".into())).expect("a condition");
        let third = written(task(
            &policy(),
            Some(&refused),
            Some(&carried),
            Timestamp::MAX,
        ));
        assert_eq!(third.last_transition_time.0, Timestamp::MAX);
    }

    #[test]
    fn conditions_are_taken_back_when_they_no_longer_apply_or_the_object_is_gone() {
        let carried = standing(vec![written(task(
            &policy(),
            Some(&accepted()),
            Some(&standing(vec![])),
            Timestamp::UNIX_EPOCH,
        ))]);
        let remove = Some(Task::Remove { object: policy() });
        assert_eq!(
            task(&policy(), None, Some(&carried), Timestamp::MAX),
            remove
        );
        assert_eq!(task(&policy(), None, None, Timestamp::MAX), remove);
        assert_eq!(
            task(&policy(), None, Some(&standing(vec![])), Timestamp::MAX),
            None
        );
    }
}
