// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;
use proto::ads;

use super::*;

const TYPE: &str = "type.example/Thing";

fn resource(name: &str, version: &str) -> ads::Resource {
    ads::Resource {
        name: name.into(),
        version: version.into(),
        resource: Some(ads::ResourceBody {
            type_url: TYPE.into(),
            value: Bytes::copy_from_slice(name.as_bytes()),
        }),
        ..Default::default()
    }
}

fn response(nonce: &str, updates: &[(&str, &str)], removed: &[&str]) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        type_url: TYPE.into(),
        nonce: nonce.into(),
        resources: updates
            .iter()
            .map(|(name, version)| resource(name, version))
            .collect(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn reject(names: &[(&str, &str)]) -> Vec<Rejection> {
    names
        .iter()
        .map(|(name, reason)| Rejection {
            name: (*name).into(),
            reason: (*reason).into(),
        })
        .collect()
}

/// One response of a conversation, and what must come of it.
struct Step<'a> {
    updates: &'a [(&'a str, &'a str)],
    removed: &'a [&'a str],
    rejected: &'a [(&'a str, &'a str)],
    nack: Option<&'a str>,
    held: &'a [(&'a str, &'a str)],
    acknowledged: bool,
}

#[track_caller]
fn check(steps: &[Step<'_>]) {
    let mut subscription = Subscription::new(TYPE);
    for (number, step) in steps.iter().enumerate() {
        let nonce = format!("nonce-{number}");
        let delivery = subscription.receive(response(&nonce, step.updates, step.removed));
        let names: Vec<_> = delivery.resources.iter().map(|r| &*r.name).collect();
        let sent: Vec<_> = step.updates.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, sent, "step {number}: order of delivery");
        assert_eq!(delivery.removed, step.removed, "step {number}: removals");

        let reply = subscription.conclude(delivery.pending, reject(step.rejected));
        assert_eq!(reply.type_url, TYPE);
        assert_eq!(
            reply.response_nonce, nonce,
            "step {number}: nonce is echoed"
        );
        assert_eq!(
            reply.node, None,
            "step {number}: only first requests name the node"
        );
        let message = reply.error_detail.map(|status| status.message);
        assert_eq!(message.as_deref(), step.nack, "step {number}: NACK");
        let held = subscription.held();
        let held: Vec<_> = held
            .iter()
            .map(|(name, version)| (name.as_str(), version.as_str()))
            .collect();
        assert_eq!(held, step.held, "step {number}: held");
        assert_eq!(
            subscription.acknowledged(),
            step.acknowledged,
            "step {number}"
        );
    }
}

#[test]
fn accepted_resources_are_held_until_removed() {
    check(&[
        Step {
            updates: &[("b", "1"), ("a", "1")],
            removed: &[],
            rejected: &[],
            nack: None,
            held: &[("a", "1"), ("b", "1")],
            acknowledged: true,
        },
        Step {
            updates: &[("a", "2")],
            removed: &["b", "never-seen"],
            rejected: &[],
            nack: None,
            held: &[("a", "2")],
            acknowledged: true,
        },
    ]);
}

#[test]
fn refused_resources_are_named_and_not_held() {
    check(&[Step {
        updates: &[("a", "1"), ("b", "1"), ("c", "1")],
        removed: &[],
        rejected: &[("c", "no address"), ("a", "bad port")],
        nack: Some("c: no address; a: bad port"),
        held: &[("b", "1")],
        acknowledged: false,
    }]);
}

#[test]
fn a_refused_update_keeps_the_version_that_was_accepted_before() {
    check(&[
        Step {
            updates: &[("a", "1")],
            removed: &[],
            rejected: &[],
            nack: None,
            held: &[("a", "1")],
            acknowledged: true,
        },
        Step {
            updates: &[("a", "2")],
            removed: &[],
            rejected: &[("a", "bad")],
            nack: Some("a: bad"),
            held: &[("a", "1")],
            acknowledged: true,
        },
    ]);
}

#[test]
fn removal_wins_over_an_update_of_the_same_response() {
    check(&[Step {
        updates: &[("a", "1")],
        removed: &["a"],
        rejected: &[],
        nack: None,
        held: &[],
        acknowledged: true,
    }]);
}

#[test]
fn an_empty_response_is_acknowledged() {
    check(&[Step {
        updates: &[],
        removed: &[],
        rejected: &[],
        nack: None,
        held: &[],
        acknowledged: true,
    }]);
}

#[test]
fn versions_may_be_empty_and_are_held_all_the_same() {
    check(&[Step {
        updates: &[("a", "")],
        removed: &[],
        rejected: &[],
        nack: None,
        held: &[("a", "")],
        acknowledged: true,
    }]);
}

#[test]
fn a_resource_without_a_body_is_refused_alone() {
    let mut subscription = Subscription::new(TYPE);
    let mut response = response("n", &[("good", "1")], &[]);
    response.resources.insert(
        0,
        ads::Resource {
            name: "hollow".into(),
            ..Default::default()
        },
    );
    let delivery = subscription.receive(response);
    assert_eq!(delivery.resources.len(), 1);
    let reply = subscription.conclude(delivery.pending, Vec::new());
    let message = reply.error_detail.map(|status| status.message);
    assert_eq!(message.as_deref(), Some("hollow: resource has no body"));
    assert!(subscription.held().contains_key("good"));
}

#[test]
fn a_first_request_asks_for_everything_and_says_what_is_held() {
    let node = Node {
        id: "ztunnel~1".into(),
        ..Default::default()
    };
    let mut subscription = Subscription::new(TYPE);
    let fresh = subscription.open(&node);
    assert_eq!(fresh.node.as_ref(), Some(&node));
    assert!(fresh.resource_names_subscribe.is_empty());
    assert!(fresh.resource_names_unsubscribe.is_empty());
    assert!(fresh.initial_resource_versions.is_empty());
    assert!(fresh.response_nonce.is_empty());

    let delivery = subscription.receive(response("n", &[("a", "7")], &[]));
    let _reply = subscription.conclude(delivery.pending, Vec::new());
    let resumed = subscription.open(&node);
    assert_eq!(
        resumed.initial_resource_versions,
        BTreeMap::from([("a".to_owned(), "7".to_owned())])
    );
}

#[test]
fn a_type_that_nobody_asked_for_is_refused_with_its_nonce() {
    let reply = refuse_unknown_type(response("n9", &[("a", "1")], &[]));
    assert_eq!(
        (reply.type_url.as_str(), reply.response_nonce.as_str()),
        (TYPE, "n9")
    );
    let message = reply.error_detail.expect("a NACK").message;
    assert!(message.contains(TYPE), "{message}");
}

proptest! {
    /// Whatever a control plane sends, what is held is what a simple model says.
    #[test]
    fn held_versions_follow_a_model(
        steps in prop::collection::vec(
            (
                prop::collection::vec(("[a-d]", "[0-9]"), 0..5),
                prop::collection::vec("[a-d]", 0..3),
                prop::collection::vec("[a-d]", 0..2),
            ),
            0..12,
        )
    ) {
        let mut subscription = Subscription::new(TYPE);
        let mut model = BTreeMap::new();
        for (updates, removed, rejected) in steps {
            let updates: Vec<_> = updates.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            let removed: Vec<_> = removed.iter().map(String::as_str).collect();
            let rejections: Vec<_> = rejected.iter().map(|n| (n.as_str(), "no")).collect();
            let delivery = subscription.receive(response("n", &updates, &removed));
            let _reply = subscription.conclude(delivery.pending, reject(&rejections));
            for (name, version) in &updates {
                if !rejected.iter().any(|no| no == name) {
                    model.insert((*name).to_owned(), (*version).to_owned());
                }
            }
            for name in removed {
                model.remove(name);
            }
            prop_assert_eq!(&subscription.held(), &model);
        }
    }
}

#[test]
fn a_body_that_says_it_is_something_else_is_refused_alone() {
    let mut subscription = Subscription::new(TYPE);
    let mut response = response("n", &[("good", "1"), ("other", "1")], &[]);
    let body = response.resources[1].resource.as_mut().unwrap();
    body.type_url = "type.example/Other".into();
    let delivery = subscription.receive(response);
    assert_eq!(delivery.resources.len(), 1);
    let reply = subscription.conclude(delivery.pending, Vec::new());
    let message = reply.error_detail.map(|status| status.message);
    assert_eq!(
        message.as_deref(),
        Some("other: its body is a \"type.example/Other\"")
    );
    assert_eq!(subscription.held().len(), 1);
}

#[test]
fn a_reply_gives_the_first_reasons_and_the_number_of_the_others() {
    let mut subscription = Subscription::new(TYPE);
    let names: Vec<_> = (0..MOST_REASONS + 3).map(|n| format!("r{n}")).collect();
    let updates: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let delivery = subscription.receive(response("n", &updates, &[]));
    let rejections: Vec<_> = names.iter().map(|name| (name.as_str(), "bad")).collect();
    let reply = subscription.conclude(delivery.pending, reject(&rejections));
    let message = reply.error_detail.unwrap().message;
    assert!(message.starts_with("r0: bad; r1: bad; "), "{message}");
    assert!(message.ends_with("r19: bad; and 3 more"), "{message}");
}
