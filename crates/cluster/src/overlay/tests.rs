// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;
use crate::parse::{Format, Item};

fn pod(text: &str) -> Object {
    match crate::parse::parse(text, Format::Json).pop() {
        Some(Item::Object { object, .. }) => object,
        other => panic!("{other:?}"),
    }
}

fn said(parts: &[(&str, Value)]) -> BTreeMap<String, PartialFile> {
    parts
        .iter()
        .map(|(manager, text)| {
            (
                (*manager).to_owned(),
                parse(&text.to_string(), Kind::Pod).unwrap(),
            )
        })
        .collect()
}

fn base() -> Object {
    pod(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "uid": "u1", "annotations": {"own": "1", "shared": "manifest"}},
        "status": {"phase": "Pending", "hostIP": "1.1.1.1", "conditions": [
            {"type": "Ready", "status": "False"}, {"type": "Initialized", "status": "True"}]}
    })
    .to_string())
}

#[test]
fn annotations_merge_by_key_status_by_field_and_conditions_by_type() {
    let partials = said(&[
        (
            "kubelet",
            json!({"uid": "u1", "status": {"podIP": "10.0.0.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
        ),
        (
            "redirect",
            json!({"uid": "u1", "metadata": {"annotations": {"shared": "written", "new": "2"}}}),
        ),
    ]);
    let merged = merge(&base(), &partials).unwrap();
    assert_eq!(merged.conflicts, []);
    let Object::Pod(pod) = merged.object else {
        panic!()
    };
    let annotations = pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(
        annotations
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>(),
        ["new=2", "own=1", "shared=written"]
    );
    let status = pod.status.as_ref().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(status.host_ip.as_deref(), Some("1.1.1.1"));
    let mut conditions: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .map(|condition| format!("{}={}", condition.type_, condition.status))
        .collect();
    conditions.sort();
    assert_eq!(conditions, ["Initialized=True", "Ready=True"]);
}

#[test]
fn what_is_said_about_another_uid_is_left_aside() {
    let partials = said(&[(
        "kubelet",
        json!({"uid": "u0", "status": {"phase": "Failed"}}),
    )]);
    assert_eq!(merge(&base(), &partials).unwrap().object, base());
}

#[test]
fn two_writers_of_one_field_are_a_conflict_and_the_first_by_name_is_believed() {
    let partials = said(&[
        (
            "b",
            json!({"uid": "u1", "metadata": {"annotations": {"k": "b"}}, "status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "Unknown"}]}}),
        ),
        (
            "a",
            json!({"uid": "u1", "metadata": {"annotations": {"k": "a"}}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
        ),
    ]);
    let merged = merge(&base(), &partials).unwrap();
    let fields: Vec<_> = merged
        .conflicts
        .iter()
        .map(|conflict| conflict.field.as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.annotations[\"k\"]",
            "status.conditions[Ready]",
            "status.phase"
        ]
    );
    assert!(
        merged
            .conflicts
            .iter()
            .all(|conflict| conflict.believed == "a" && conflict.other == "b")
    );
    let Object::Pod(pod) = merged.object else {
        panic!()
    };
    assert_eq!(
        pod.status.as_ref().unwrap().phase.as_deref(),
        Some("Running")
    );
}

#[test]
fn a_controller_says_all_of_its_own_parents_and_nothing_of_others() {
    let entry = |controller: &str, parent: &str| serde_json::json!({"controllerName": controller, "parentRef": {"name": parent}});
    let base = serde_json::json!({
        "metadata": {"name": "r", "uid": "u"},
        "status": {"parents": [entry("a", "old"), entry("b", "kept"), entry("c", "stale")]}});
    let base = serde_json::from_value::<crate::kinds::HTTPRoute>(base)
        .unwrap()
        .into_object();
    let partial = |parents: Value| PartialFile {
        uid: "u".to_owned(),
        status: json!({ "parents": parents }).as_object().unwrap().clone(),
        ..PartialFile::default()
    };
    let first = partial(json!([entry("a", "one"), entry("a", "two")]));
    let second = partial(json!([entry("c", "own"), entry("a", "meddling")]));
    let merged = merge(
        &base,
        [(&"m".to_owned(), &first), (&"n".to_owned(), &second)],
    )
    .unwrap();
    let Object::HTTPRoute(route) = &merged.object else {
        panic!("a route expected")
    };
    let parents = &route.status.as_ref().unwrap().parents;
    assert_eq!(
        *parents,
        [
            entry("b", "kept"),
            entry("a", "one"),
            entry("a", "two"),
            entry("c", "own")
        ]
    );
    let fields: Vec<_> = merged
        .conflicts
        .iter()
        .map(|conflict| &conflict.field)
        .collect();
    assert_eq!(fields, ["status.parents[a]"]);
}

#[test]
fn a_partial_is_read_as_strictly_as_its_object() {
    for (text, field) in [
        (
            "{\"uid\": \"u\", \"status\": {\"podIP\": 7}}",
            Some("status.podIP"),
        ),
        ("{\"status\": {}}", None),
        (
            "{\"uid\": \"u\", \"metadata\": {\"annotations\": {\"a\": true}}}",
            Some("metadata.annotations.a"),
        ),
        ("{", None),
        ("[]", None),
    ] {
        let (line, found, reason) = parse(text, Kind::Pod).unwrap_err();
        assert_eq!(found.as_deref(), field, "{text}: {reason}");
        assert!(line.is_some(), "{text}: {reason}");
    }
}

#[test]
fn places_of_statements_are_read_as_they_are_written() {
    for object in [
        ObjectKey::namespaced(Kind::Pod, "default", "web.1"),
        ObjectKey::cluster_wide(Kind::Node, "a"),
    ] {
        let statement = Statement {
            object,
            manager: "kubelet".to_owned(),
        };
        assert_eq!(
            Statement::from_path(&statement.path()),
            Ok(statement.clone()),
            "{}",
            statement.path().display()
        );
    }
    for path in [
        ".status/Pod/default/kubelet.json",
        "status/Pod/default/web/kubelet.json",
        ".status/Thing/default/web/kubelet.json",
        ".status/Node/default/a/kubelet.json",
        ".status/Pod/_/a/kubelet.json",
        ".status/Pod/default/A/kubelet.json",
    ] {
        assert!(Statement::from_path(Path::new(path)).is_err(), "{path}");
    }
}

#[test]
fn partials_come_back_as_they_were() {
    let mut partials = Partials::default();
    let partial = |status: &str| {
        let text = format!("{{\"uid\": \"u\", \"status\": {{\"x\": {status}}}}}");
        parse(&text, Kind::Pod).unwrap()
    };
    // The second one means something else to the JSON library once its keys are in order.
    let said = ["1", "{\"a\": 1, \"$serde_json::private::RawValue\": \"x\"}"];
    for (manager, status) in ["one", "two"].into_iter().zip(said) {
        partials.insert(manager, partial("{}"));
        partials.insert(manager, partial(status));
    }
    assert_eq!(partials.managers().collect::<Vec<_>>(), ["one", "two"]);
    for (manager, status) in ["one", "two"].into_iter().zip(said) {
        assert_eq!(partials.read()[manager], partial(status), "{status}");
        partials.remove(manager);
    }
    assert!(partials.is_empty());
}
