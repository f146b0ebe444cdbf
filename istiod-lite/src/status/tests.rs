// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::facts::NamespacedName;

fn accepted() -> [Condition; 1] {
    [ztunnel_accepted(&Acceptance::Accepted).expect("a condition")]
}

fn policy() -> ObjectKey {
    ObjectKey::namespaced(Kind::AuthorizationPolicy, "ns", "p")
}

fn entry() -> ObjectKey {
    ObjectKey::namespaced(Kind::ServiceEntry, "ns", "e")
}

fn standing(conditions: Vec<kinds::Condition>) -> Standing {
    Standing {
        uid: "u".into(),
        generation: Some(2),
        conditions,
        addresses: Vec::new(),
        parents: Vec::new(),
        version: String::new(),
        left: false,
    }
}

fn saying(conditions: &[Condition]) -> Wanted<'_> {
    Wanted {
        conditions,
        addresses: None,
    }
}

fn written(task: Option<Task>) -> Vec<kinds::Condition> {
    match task {
        Some(Task::Write { conditions, .. }) => conditions,
        other => panic!("expected a write, got {other:?}"),
    }
}

/// What is written where nothing is carried yet.
fn first(object: &ObjectKey, conditions: &[Condition]) -> Vec<kinds::Condition> {
    let wanted = saying(conditions);
    written(task(
        object,
        wanted,
        Some(&standing(vec![])),
        Timestamp::UNIX_EPOCH,
    ))
}

#[test]
fn a_condition_that_the_object_carries_is_not_written_again() {
    let first = first(&policy(), &accepted());
    assert_eq!(
        (first[0].status.as_str(), first[0].observed_generation),
        ("True", Some(2))
    );
    let carried = standing(first);
    let again = task(
        &policy(),
        saying(&accepted()),
        Some(&carried),
        Timestamp::MAX,
    );
    assert_eq!(again, None);
}

#[test]
fn the_time_of_transition_moves_only_with_the_answer() {
    let carried = standing(first(&policy(), &accepted()));
    let after = |acceptance: &Acceptance| {
        let condition = [ztunnel_accepted(acceptance).expect("a condition")];
        let task = task(
            &policy(),
            saying(&condition),
            Some(&carried),
            Timestamp::MAX,
        );
        written(task)[0].last_transition_time.0
    };
    assert_eq!(
        after(&Acceptance::Stricter("why".into())),
        Timestamp::UNIX_EPOCH
    );
    assert_eq!(after(&Acceptance::Refused("why".into())), Timestamp::MAX);
}

#[test]
fn conditions_are_taken_back_when_they_no_longer_apply_or_the_object_is_gone() {
    let carried = standing(first(&policy(), &accepted()));
    let remove = Some(Task::Remove { object: policy() });
    let now = Timestamp::MAX;
    assert_eq!(task(&policy(), saying(&[]), Some(&carried), now), remove);
    let forget = Some(Task::Forget { object: policy() });
    assert_eq!(task(&policy(), saying(&[]), None, now), forget);
    assert_eq!(
        task(&policy(), saying(&[]), Some(&standing(vec![])), now),
        None
    );
}

#[test]
fn one_of_several_conditions_goes_without_the_others() {
    let both = [
        visibility_applied(Visibility::Namespace).expect("a condition"),
        Condition {
            kind: WAYPOINT_MISSING,
            verdict: Verdict::True,
            reason: "NoWaypointForWildcardService",
            message: "m".into(),
        },
    ];
    let carried = standing(first(&entry(), &both));
    let left = task(&entry(), saying(&both[..1]), Some(&carried), Timestamp::MAX);
    let left = written(left);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].type_, VISIBILITY_APPLIED);
    assert_eq!(left[0].last_transition_time.0, Timestamp::UNIX_EPOCH);
}

#[test]
fn conditions_of_others_are_not_ours_to_take_back() {
    let mut other = first(&policy(), &accepted());
    other[0].type_ = "example.com/Other".into();
    let task = task(
        &policy(),
        saying(&[]),
        Some(&standing(other)),
        Timestamp::MAX,
    );
    assert_eq!(task, None);
}

#[test]
fn of_an_object_that_is_another_control_planes_what_was_said_is_taken_back() {
    let left = |conditions, addresses: &[kinds::ServiceEntryAddress]| {
        let standing = Standing {
            addresses: addresses.to_vec(),
            left: true,
            ..standing(conditions)
        };
        task(&entry(), saying(&[]), Some(&standing), Timestamp::MAX)
    };
    let remove = Some(Task::Remove { object: entry() });
    let ours = [visibility_applied(Visibility::Public).expect("a condition")];
    assert_eq!(left(first(&entry(), &ours), &[]), remove);
    assert_eq!(left(vec![], &[Default::default()]), remove);
    assert_eq!(left(vec![], &[]), None);
}

#[test]
fn what_others_say_is_repeated_with_the_version_that_said_it() {
    let mut carried = first(
        &entry(),
        &[visibility_applied(Visibility::Public).expect("a condition")],
    );
    let mut other = carried[0].clone();
    other.type_ = "example.com/Other".into();
    carried.push(other.clone());
    let standing = Standing {
        version: "7".into(),
        ..standing(carried)
    };
    let task = task(&entry(), saying(&[]), Some(&standing), Timestamp::MAX);
    let expected = Task::Write {
        object: entry(),
        uid: "u".into(),
        conditions: vec![],
        addresses: None,
        others: vec![other],
        version: "7".into(),
    };
    assert_eq!(task, Some(expected));
}

#[test]
fn each_revision_writes_under_a_name_of_its_own() {
    let manager = |revisions: &[&str]| {
        let revisions: Vec<String> = revisions.iter().map(|&one| one.to_owned()).collect();
        manager(&revisions)
    };
    assert_eq!(manager(&[]), "istiod-lite");
    assert_eq!(manager(&["next", "default"]), "istiod-lite");
    assert_eq!(manager(&["next"]), "istiod-lite-next");
}

#[test]
fn addresses_are_written_when_they_differ_and_cleared_when_there_are_none() {
    let address = kinds::ServiceEntryAddress {
        value: "240.240.0.1".into(),
        host: "a".into(),
    };
    let given = std::slice::from_ref(&address);
    let wanted = |addresses| Wanted {
        conditions: &[],
        addresses: Some(addresses),
    };
    let bare = standing(vec![]);
    let carrying = Standing {
        addresses: vec![address.clone()],
        ..standing(vec![])
    };
    let now = Timestamp::MAX;
    match task(&entry(), wanted(given), Some(&bare), now) {
        Some(Task::Write { addresses, .. }) => assert_eq!(addresses, Some(vec![address.clone()])),
        other => panic!("expected a write, got {other:?}"),
    }
    assert_eq!(task(&entry(), wanted(given), Some(&carrying), now), None);
    let remove = Some(Task::Remove { object: entry() });
    assert_eq!(task(&entry(), wanted(&[]), Some(&carrying), now), remove);
    assert_eq!(task(&entry(), wanted(&[]), Some(&bare), now), None);
}

#[test]
fn a_canary_that_takes_no_share_is_a_remark_on_a_binding_that_holds() {
    let bound = |canary| Binding::Bound {
        gateway: NamespacedName::new("ns", "wp"),
        address: None,
        canary,
    };
    let said = |canary| {
        let condition = waypoint_bound(&bound(canary), None, Addressed::Service);
        let condition = condition.expect("a condition");
        assert_eq!(
            (condition.verdict, condition.reason),
            (Verdict::True, "WaypointAccepted")
        );
        condition.message
    };
    assert_eq!(
        said(Canary::Unwanted),
        "Successfully attached to waypoint ns/wp"
    );
    for (refusal, word) in [
        (CanaryRefusal::SameAsPrimary, "CanarySameAsPrimary"),
        (
            CanaryRefusal::InvalidWeight("x".into()),
            "CanaryInvalidWeight",
        ),
        (
            CanaryRefusal::Unbound(NamespacedName::new("ns", "c"), Refusal::NotReady),
            "WaypointIsNotReady",
        ),
    ] {
        let said = said(Canary::Refused(refusal));
        assert!(said.contains(word), "{said}");
    }
}
