// SPDX-License-Identifier: Apache-2.0
//! A cluster in (`translate/*.yaml`), resources out (`*.golden` beside it).
//!
//! After a wanted change, `BLESS=1 cargo test -p istiod-lite --test translate`
//! writes the golden files anew; read the difference before you commit it.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use cluster::Directory;
use istiod_lite::{
    describe,
    index::Index,
    translate::{Mesh, Ranges},
};
use serde_json::{Value, json};

fn mesh() -> Mesh {
    Mesh {
        cluster_id: "Kubernetes".into(),
        cluster_domain: "cluster.local".into(),
        trust_domain: Default::default(),
        root_namespace: "istio-system".into(),
        auto_allocate: Some(Ranges::default()),
        dry_run_at_ztunnels: true,
    }
}

async fn translated(manifest: &Path) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    fs::copy(manifest, directory.path().join("cluster.yaml")).expect("copied");
    let mut source = Directory::open(directory.path()).expect("opened");
    let batch = source.next().await;
    let mut index = Index::new(mesh());
    let changes = index.apply(batch.events);
    let mut resources = BTreeMap::new();
    for change in changes.resources {
        let body = change.body.expect("nothing was there to be removed");
        let place = change.place;
        let described = describe::resource(place.of, &body).expect("decodes");
        let name = match place.waypoint {
            Some(waypoint) => format!("{} for {waypoint}", place.name),
            None => place.name.to_string(),
        };
        resources.insert((place.of.label(), name), described);
    }
    let mut text = String::new();
    for ((of, name), value) in resources {
        let _ = writeln!(text, "--- {of} {name}");
        print(&mut text, &value, 0);
    }
    for object in &changes.conditions {
        for condition in index.conditions(object) {
            let _ = writeln!(
                text,
                "--- condition of {object}\n{}: {:?}, {}\n  {}",
                condition.kind, condition.verdict, condition.reason, condition.message
            );
        }
    }
    for object in &changes.conditions {
        for parent in index.parents(object) {
            let _ = writeln!(text, "--- status of {object}\n{}", json!(parent.reference));
            for condition in &parent.conditions {
                let _ = writeln!(
                    text,
                    "{}: {:?}, {}\n  {}",
                    condition.kind, condition.verdict, condition.reason, condition.message
                );
            }
        }
    }
    for object in &changes.conditions {
        for address in index.allocation(object).into_iter().flatten() {
            let (host, value) = (&address.host, &address.value);
            let _ = writeln!(text, "--- address for {object}\n{host}: {value}");
        }
    }
    for (object, problem) in index.problems() {
        let _ = writeln!(text, "--- problem of {object}\n{problem}");
    }
    for problem in batch.problems {
        let _ = writeln!(text, "--- problem of the source\n{problem}");
    }
    text
}

/// Prints a value as YAML would look.
fn print(text: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if is_short(value) {
                    let _ = writeln!(text, "{indent}{name}: {}", short(value));
                } else {
                    let _ = writeln!(text, "{indent}{name}:");
                    print(text, value, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                if is_short(item) {
                    let _ = writeln!(text, "{indent}- {}", short(item));
                } else {
                    let _ = writeln!(text, "{indent}-");
                    print(text, item, depth + 1);
                }
            }
        }
        other => {
            let _ = writeln!(text, "{indent}{}", short(other));
        }
    }
}

fn is_short(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items
            .iter()
            .all(|item| !item.is_array() && !item.is_object()),
        _ => true,
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!(
                "[{}]",
                items.iter().map(short).collect::<Vec<_>>().join(", ")
            )
        }
        other => other.to_string(),
    }
}

#[tokio::test]
async fn each_cluster_is_translated_as_its_golden_file_says() {
    let bless = std::env::vars().any(|(name, _)| name == "BLESS");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/translate");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for entry in fs::read_dir(directory).expect("the directory") {
        let manifest = entry.expect("an entry").path();
        if manifest
            .extension()
            .is_none_or(|extension| extension != "yaml")
        {
            continue;
        }
        seen += 1;
        let golden = manifest.with_extension("golden");
        let actual = translated(&manifest).await;
        if bless {
            fs::write(&golden, &actual).expect("written");
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if actual != expected {
            wrong.push(format!(
                "{}\n{}",
                golden.display(),
                first_difference(&expected, &actual)
            ));
        }
    }
    assert!(seen > 0, "no manifests found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn first_difference(expected: &str, actual: &str) -> String {
    let (mut left, mut right) = (expected.lines(), actual.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (left.next(), right.next()) {
            (None, None) => return String::new(),
            (left, right) if left == right => {}
            (left, right) => {
                return format!("  line {number}\n    expected {left:?}\n    but got  {right:?}");
            }
        }
    }
}
