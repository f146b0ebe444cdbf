// SPDX-License-Identifier: Apache-2.0
//! What the author of a route is told, for each service that it is for (Gateway API's route status).
//!
//! Several controllers share that status: what others say is never touched.

use cluster::{
    k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp},
    kinds::{self, ParentReference},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Condition, Verdict};
use crate::{
    facts::service::ServicePort,
    translate::{
        route::{
            Fault, Parent, Reason, Route, RouteId, Unresolved, reachable, said,
            serving::{self, Attached},
        },
        waypoint::Binding,
    },
    wellknown,
};

const ACCEPTED: &str = "Accepted";
const RESOLVED_REFS: &str = "ResolvedRefs";
const PARTIALLY_INVALID: &str = "PartiallyInvalid";
const RESOLVED_WAYPOINTS: &str = "ResolvedWaypoints";

/// All the questions that we answer.
const OURS: [&str; 4] = [
    ACCEPTED,
    RESOLVED_REFS,
    PARTIALLY_INVALID,
    RESOLVED_WAYPOINTS,
];
/// Entries of a route's status, those of others among them.
pub const MAX_PARENTS: usize = 32;
/// The same of a policy's.
const MAX_ANCESTORS: usize = 16;
/// The list of a policy's status, and how an entry of it names what it is about.
const ANCESTORS: &str = "ancestors";
const ANCESTOR_REF: &str = "ancestorRef";

/// What is said of a route in view of one of its services.
#[derive(Debug, Clone, PartialEq)]
pub struct ParentStatus {
    /// The reference as the route has it.
    pub reference: ParentReference,
    /// The answers.
    pub conditions: Vec<Condition>,
}

/// The service that a reference of a route means, as it is.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its ports.
    pub ports: &'a [ServicePort],
    /// Its waypoint.
    pub binding: &'a Binding,
    /// All routes that are for it, this one among them.
    pub routes: &'a [Attached<'a>],
}

/// What is said of a route in view of one of its parents.
pub fn conditions(
    id: &RouteId,
    route: &Route,
    parent: &Parent,
    found: Option<Found<'_>>,
    unresolved: &[(String, Unresolved)],
) -> Vec<Condition> {
    let (accepted, partially) = match attached(id, parent, found) {
        Err((reason, words)) => (say(ACCEPTED, Verdict::False, reason, words), None),
        Ok(()) => own(route),
    };
    let mut conditions = vec![accepted, refs(unresolved)];
    conditions.extend(partially);
    conditions.push(waypoints(found));
    conditions
}

/// Whether something counts as it is written.
pub fn accepted(verdict: Verdict, reason: &'static str, words: String) -> Condition {
    say(ACCEPTED, verdict, reason, words)
}

/// All that is referred to is there.
pub fn refs_resolved() -> Condition {
    say(RESOLVED_REFS, Verdict::True, RESOLVED_REFS, "")
}

/// Some of it is not.
pub fn refs_unresolved(reason: &'static str, words: String) -> Condition {
    say(RESOLVED_REFS, Verdict::False, reason, words)
}

fn say(
    kind: &'static str,
    verdict: Verdict,
    reason: &'static str,
    message: impl Into<String>,
) -> Condition {
    Condition {
        kind,
        verdict,
        reason,
        message: message.into(),
    }
}

/// Whether the parent is there and takes such a route.
fn attached(
    id: &RouteId,
    parent: &Parent,
    found: Option<Found<'_>>,
) -> Result<(), (&'static str, String)> {
    let Some(found) = found else {
        let name = parent.object.name();
        return Err(("NoMatchingParent", format!("there is no service {name}")));
    };
    let selected: Vec<_> = reachable(found.ports)
        .filter(|(port, _)| parent.selects(port))
        .collect();
    if selected.is_empty() {
        let words = "the service has no such port, or none that is reached over TCP";
        return Err(("NoMatchingParent", words.to_owned()));
    }
    let suitable: Vec<_> = selected
        .into_iter()
        .filter(|(_, speaks)| id.rank().suits(*speaks))
        .collect();
    let Some((first, speaks)) = suitable.first() else {
        let words = "none of the ports that it is for speaks what such a route is about";
        return Err(("NotAllowedByListeners", words.to_owned()));
    };
    let clients = serving::clients_of(id, found.namespace);
    let over = |port: &ServicePort, speaks| {
        found.routes.iter().find(|other| {
            other.id.rank() > id.rank()
                && serving::clients_of(other.id, found.namespace) == clients
                && other.is_at(port, speaks)
        })
    };
    let Some(winner) = over(first, *speaks) else {
        return Ok(());
    };
    if suitable
        .iter()
        .all(|(port, speaks)| over(port, *speaks).is_some())
    {
        let words = format!(
            "{} {} counts at these ports instead",
            winner.id.kind, winner.id.name
        );
        return Err(("Conflicted", words));
    }
    Ok(())
}

/// Whether what it says can be honoured: all of it, some of it, or nothing.
fn own(route: &Route) -> (Condition, Option<Condition>) {
    let yes = || say(ACCEPTED, Verdict::True, ACCEPTED, "");
    let (broken, all) = route.broken();
    if broken == 0 {
        return (yes(), None);
    }
    let words = said(&route.faults);
    if broken < all {
        let words = format!(
            "Dropped Rule: what can be read of its matches is answered with an error: {words}"
        );
        let partially = say(
            PARTIALLY_INVALID,
            Verdict::True,
            Reason::UnsupportedValue.as_str(),
            words,
        );
        return (yes(), Some(partially));
    }
    let incompatible = |fault: &Fault| fault.reason == Reason::IncompatibleFilters;
    let reason = if route.faults.iter().all(incompatible) {
        Reason::IncompatibleFilters
    } else {
        Reason::UnsupportedValue
    };
    (say(ACCEPTED, Verdict::False, reason.as_str(), words), None)
}

fn refs(unresolved: &[(String, Unresolved)]) -> Condition {
    let Some((_, first)) = unresolved.first() else {
        return refs_resolved();
    };
    let words: Vec<String> = unresolved
        .iter()
        .map(|(field, why)| format!("{field}: {}", why.words))
        .collect();
    refs_unresolved(first.reason, said(&words))
}

/// As Istio has it, this never fails: its message tells.
fn waypoints(found: Option<Found<'_>>) -> Condition {
    let words = match found.map(|found| found.binding) {
        None => "there is no such service".to_owned(),
        Some(Binding::Bound { gateway, .. }) => format!("the service is served by waypoint {gateway}"),
        Some(Binding::Unbound) => {
            "neither the service nor its namespace names a waypoint by the label istio.io/use-waypoint: nobody \
             follows the route"
                .to_owned()
        }
        Some(Binding::Refused { gateway, .. }) => format!(
            "waypoint {gateway} is not used, as the service's condition istio.io/WaypointBound says: nobody follows \
             the route"
        ),
    };
    say(RESOLVED_WAYPOINTS, Verdict::True, RESOLVED_WAYPOINTS, words)
}

/// An entry of a status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    parent_ref: ParentReference,
    controller_name: String,
    conditions: Vec<kinds::Condition>,
}

/// What a route's status is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Entries {
    /// Ours.
    pub own: Vec<Value>,
    /// Those of other controllers, as they are.
    pub others: Vec<Value>,
}

/// What is to be written, if anything is, in place of what a route or policy carries in this list.
pub fn entries(
    list: &str,
    wanted: &[ParentStatus],
    carried: &[Value],
    generation: Option<i64>,
    now: Timestamp,
) -> Option<Entries> {
    let (own, others): (Vec<&Value>, Vec<&Value>) = carried.iter().partition(|entry| {
        entry.get("controllerName").and_then(Value::as_str) == Some(wellknown::MESH_CONTROLLER)
    });
    let own: Vec<Option<Entry>> = own
        .into_iter()
        .map(|entry| Entry::deserialize(renamed(list, entry.clone())).ok())
        .collect();
    let most = match list {
        ANCESTORS => MAX_ANCESTORS,
        _ => MAX_PARENTS,
    };
    let room = most.saturating_sub(others.len());
    let (told, untold) = wanted.split_at(wanted.len().min(room));
    let mut wanted = told.to_vec();
    if let (Some(last), [_, ..]) = (wanted.last_mut(), untold) {
        last.admit(untold.len());
    }
    let known = |reference: &ParentReference| {
        let mut known = own.iter().flatten();
        known.find(|entry| entry.parent_ref == *reference)
    };
    let unchanged = own.len() == wanted.len()
        && wanted.iter().all(|wanted| {
            known(&wanted.reference).is_some_and(|entry| entry.says(wanted, generation))
        });
    if unchanged {
        return None;
    }
    let entry = |wanted: &ParentStatus| {
        let nothing = Entry::default();
        let before = known(&wanted.reference).unwrap_or(&nothing);
        renamed(list, json!(before.saying(wanted, generation, now)))
    };
    Some(Entries {
        own: wanted.iter().map(entry).collect(),
        others: others.into_iter().cloned().collect(),
    })
}

/// An entry of a policy's list with the names that one of a route's has, or the other way round; one of a route's as it is.
fn renamed(list: &str, mut entry: Value) -> Value {
    const PARENT_REF: &str = "parentRef";
    if list == ANCESTORS
        && let Some(fields) = entry.as_object_mut()
    {
        let (ancestor, parent) = (fields.remove(ANCESTOR_REF), fields.remove(PARENT_REF));
        fields.extend(ancestor.map(|reference| (PARENT_REF.to_owned(), reference)));
        fields.extend(parent.map(|reference| (ANCESTOR_REF.to_owned(), reference)));
    }
    entry
}

impl ParentStatus {
    /// Says that of so many others nothing is said.
    fn admit(&mut self, others: usize) {
        let words =
            format!("of {others} more of its parents nothing can be said here: there is no room");
        let accepted = self.conditions.iter_mut().find(|one| one.kind == ACCEPTED);
        if let Some(Condition { message, .. }) = accepted {
            *message = match message.as_str() {
                "" => words,
                said => format!("{said}; {words}"),
            };
        }
    }
}

impl Entry {
    fn answer(&self, kind: &str) -> Option<&kinds::Condition> {
        self.conditions.iter().find(|one| one.type_ == kind)
    }

    /// Whether it says this, and nothing else of ours.
    fn says(&self, wanted: &ParentStatus, generation: Option<i64>) -> bool {
        let ours = self.conditions.iter();
        let ours = ours
            .filter(|one| OURS.contains(&one.type_.as_str()))
            .count();
        ours == wanted.conditions.len()
            && wanted.conditions.iter().all(|wanted| {
                self.answer(wanted.kind)
                    .is_some_and(|one| wanted.is_said_by(one, generation))
            })
    }

    /// The same, saying this now; what others have added stays.
    fn saying(&self, wanted: &ParentStatus, generation: Option<i64>, now: Timestamp) -> Self {
        let written = wanted.conditions.iter().map(|wanted| {
            let carried = self.answer(wanted.kind);
            wanted.written(carried, generation, Time(now))
        });
        let added = self.conditions.iter();
        let added = added.filter(|one| !OURS.contains(&one.type_.as_str()));
        Self {
            parent_ref: wanted.reference.clone(),
            controller_name: wellknown::MESH_CONTROLLER.to_owned(),
            conditions: written.chain(added.cloned()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).expect("a time")
    }

    fn wanted(verdict: Verdict) -> ParentStatus {
        ParentStatus {
            reference: ParentReference {
                group: Some(String::new()),
                kind: Some("Service".into()),
                name: "echo".into(),
                ..ParentReference::default()
            },
            conditions: vec![say(ACCEPTED, verdict, ACCEPTED, "")],
        }
    }

    fn foreign() -> Value {
        json!({"parentRef": {"name": "gate"}, "controllerName": "example.com/other",
               "conditions": [{"type": "Accepted", "later": 1}]})
    }

    #[test]
    fn what_others_say_is_kept_as_it_is() {
        let written = entries(
            "parents",
            &[wanted(Verdict::True)],
            &[foreign()],
            Some(3),
            now(),
        )
        .expect("news");
        assert_eq!(written.others, [foreign()]);
        let [own] = &written.own[..] else {
            panic!("{written:?}")
        };
        assert_eq!(own["controllerName"], "istio.io/mesh-controller");
        assert_eq!(
            own["parentRef"],
            json!({"group": "", "kind": "Service", "name": "echo"})
        );
        assert_eq!(own["conditions"][0]["observedGeneration"], 3);
        let carried = [foreign(), own.clone()];
        assert_eq!(
            entries(
                "parents",
                &[wanted(Verdict::True)],
                &carried,
                Some(3),
                now()
            ),
            None
        );
        let gone = entries("parents", &[], &carried, Some(3), now()).expect("news");
        assert_eq!((gone.own.len(), gone.others), (0, vec![foreign()]));
    }

    #[test]
    fn of_parents_without_room_the_last_entry_says_how_many_they_are() {
        let of = |number: usize| ParentStatus {
            reference: ParentReference {
                name: format!("echo-{number}"),
                ..ParentReference::default()
            },
            ..wanted(Verdict::True)
        };
        let all: Vec<_> = (0..MAX_PARENTS + 2).map(of).collect();
        let written = entries("parents", &all, &[foreign()], Some(1), now()).expect("news");
        assert_eq!(written.own.len(), MAX_PARENTS - 1);
        let message = |entry: &Value| entry["conditions"][0]["message"].clone();
        assert_eq!(
            message(&written.own[MAX_PARENTS - 2]),
            "of 3 more of its parents nothing can be said here: there is no room"
        );
        assert_eq!(message(&written.own[0]), "");
        let carried: Vec<_> = written.own.iter().chain(&written.others).cloned().collect();
        assert_eq!(
            entries("parents", &all, &carried, Some(1), now()),
            None,
            "it stays so"
        );
    }

    #[test]
    fn a_new_generation_is_told_and_a_time_changes_with_the_answer_alone() {
        let first =
            entries("parents", &[wanted(Verdict::True)], &[], Some(1), now()).expect("news");
        let later = Timestamp::from_second(1_700_000_100).expect("a time");
        let bumped = entries(
            "parents",
            &[wanted(Verdict::True)],
            &first.own,
            Some(2),
            later,
        )
        .expect("news");
        let of = |entries: &Entries, field: &str| entries.own[0]["conditions"][0][field].clone();
        assert_eq!(of(&bumped, "observedGeneration"), 2);
        assert_eq!(
            of(&bumped, "lastTransitionTime"),
            of(&first, "lastTransitionTime")
        );
        let turned = entries(
            "parents",
            &[wanted(Verdict::False)],
            &first.own,
            Some(1),
            later,
        )
        .expect("news");
        assert_ne!(
            of(&turned, "lastTransitionTime"),
            of(&first, "lastTransitionTime")
        );
    }

    #[test]
    fn a_condition_that_somebody_added_to_our_entry_stays() {
        let mut first =
            entries("parents", &[wanted(Verdict::True)], &[], Some(1), now()).expect("news");
        let added = json!({"type": "example.com/Checked", "status": "True", "reason": "Yes", "message": "",
                           "lastTransitionTime": "2024-01-01T00:00:00Z"});
        first.own[0]["conditions"]
            .as_array_mut()
            .expect("a list")
            .push(added);
        assert_eq!(
            entries(
                "parents",
                &[wanted(Verdict::True)],
                &first.own,
                Some(1),
                now()
            ),
            None
        );
        let turned = entries(
            "parents",
            &[wanted(Verdict::False)],
            &first.own,
            Some(1),
            now(),
        )
        .expect("news");
        assert_eq!(
            turned.own[0]["conditions"][1]["type"],
            "example.com/Checked"
        );
    }
}
