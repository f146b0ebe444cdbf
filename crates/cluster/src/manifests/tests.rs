// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::file::MAX_PROBLEMS_PER_FILE;
use super::*;
use crate::object::Object;
use crate::source::Event;

fn pod(name: &str, label: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels:\n    v: \"{label}\"\n")
}

struct Check {
    manifests: Manifests,
}

impl Check {
    fn new() -> Self {
        Self {
            manifests: Manifests::default(),
        }
    }

    fn read(&mut self, path: &str, text: &str) -> &mut Self {
        self.manifests
            .read(Path::new(path), Ok(text.as_bytes().to_vec()));
        self
    }

    fn forget(&mut self, path: &str) -> &mut Self {
        self.manifests.forget(Path::new(path));
        self
    }

    /// Commits and prints: events as `+name=label` and `-name`, then problems as `!problem`.
    fn batch(&mut self) -> Vec<String> {
        let Some(batch) = self.manifests.commit() else {
            return vec!["nothing".to_owned()];
        };
        let events = batch.events.iter().map(|event| match event {
            Event::Applied(object) => {
                format!(
                    "+{}={}",
                    object.name(),
                    object.labels().get("v").map_or("", String::as_str)
                )
            }
            Event::Deleted(key) => format!("-{}", key.name),
        });
        events
            .chain(batch.problems.iter().map(|problem| format!("!{problem}")))
            .collect()
    }
}

#[test]
fn the_first_batch_comes_even_if_it_is_empty_and_later_ones_only_with_news() {
    let mut check = Check::new();
    assert_eq!(check.batch(), Vec::<String>::new());
    assert_eq!(check.batch(), ["nothing"]);
    check.read("a.yaml", "# nothing\n");
    assert_eq!(check.batch(), ["nothing"]);
}

#[test]
fn a_missing_object_is_a_deletion() {
    let mut check = Check::new();
    check.read(
        "a.yaml",
        &format!("{}---\n{}", pod("a", "1"), pod("b", "1")),
    );
    assert_eq!(check.batch(), ["+a=1", "+b=1"]);
    check.read("a.yaml", &pod("a", "2"));
    assert_eq!(check.batch(), ["-b", "+a=2"]);
    check.read("a.yaml", &pod("a", "2"));
    assert_eq!(check.batch(), ["nothing"]);
    check.forget("a.yaml");
    assert_eq!(check.batch(), ["-a"]);
}

#[test]
fn an_object_that_moves_to_another_file_does_not_blink() {
    let mut check = Check::new();
    check.read("a.yaml", &pod("a", "1")).batch();
    check.forget("a.yaml").read("b.yaml", &pod("a", "1"));
    assert_eq!(check.batch(), ["nothing"]);
}

#[test]
fn two_definitions_are_an_error_that_names_both_and_the_first_known_stays() {
    let mut check = Check::new();
    check.read("b.yaml", &pod("a", "1")).batch();
    check.read("a.yaml", &format!("---\n{}", pod("a", "2")));
    assert_eq!(
        check.batch(),
        ["!a.yaml:2: Pod default/a: is already defined in b.yaml:1, which stays in force"]
    );
    check.read("b.yaml", &pod("a", "3"));
    assert_eq!(check.batch()[0], "+a=3");
    check.forget("b.yaml");
    assert_eq!(check.batch(), ["+a=2"]);

    let mut check = Check::new();
    check.read(
        "a.yaml",
        &format!("{}---\n{}", pod("a", "1"), pod("a", "2")),
    );
    assert_eq!(
        check.batch(),
        [
            "+a=1",
            "!a.yaml:8: Pod default/a: is already defined in a.yaml:1, which stays in force"
        ]
    );
    check.read("a.yaml", &pod("a", "2"));
    assert_eq!(check.batch(), ["+a=2"]);
}

#[test]
fn a_broken_document_keeps_what_it_said_and_the_rest_goes_on() {
    let mut check = Check::new();
    check
        .read(
            "x.yaml",
            &format!(
                "{}---\n{}---\n{}",
                pod("a", "1"),
                pod("b", "1"),
                pod("c", "1")
            ),
        )
        .batch();
    // Broken inside: the object is known by name.
    let broken = pod("b", "2").replace("\"2\"", "2");
    check.read("x.yaml", &format!("{}---\n{broken}---\n", pod("a", "2")));
    assert_eq!(
        check.batch(),
        [
            "-c",
            "+a=2",
            "!x.yaml:13: Pod default/b: metadata.labels.v: expected a string, found integer `2`"
        ]
    );
    // Broken as YAML: nobody knows what it speaks of, so nothing is taken back.
    check.read("x.yaml", &format!("a: [\n---\n{}", pod("d", "1")));
    let batch = check.batch();
    assert_eq!(batch[0], "+d=1");
    assert_eq!(batch.len(), 2, "{batch:?}");
    // Mended: all is believed again.
    check.read("x.yaml", &pod("d", "1"));
    assert_eq!(check.batch(), ["-a", "-b"]);
}

#[test]
fn a_file_that_cannot_be_read_keeps_everything() {
    let mut check = Check::new();
    check.read("x.yaml", &pod("a", "1")).batch();
    check
        .manifests
        .read(Path::new("x.yaml"), Err("permission denied".to_owned()));
    assert_eq!(check.batch(), ["!x.yaml: permission denied"]);
    check
        .manifests
        .read(Path::new("x.yaml"), Ok(b"a: 1\nb: \xff".to_vec()));
    assert_eq!(check.batch(), ["!x.yaml: not valid UTF-8 in line 2"]);
    check.read("x.yaml", &pod("a", "1"));
    assert_eq!(check.batch(), Vec::<String>::new());
    check
        .manifests
        .read(Path::new("x.yaml"), Err("permission denied".to_owned()));
    check.batch();
    check.forget("x.yaml");
    assert_eq!(check.batch(), ["-a"]);
}

#[test]
fn lines_stay_right_when_only_other_documents_change() {
    let mut check = Check::new();
    let broken = pod("b", "1").replace("\"1\"", "1");
    check
        .read("x.yaml", &format!("{}---\n{broken}", pod("a", "1")))
        .batch();
    check.read(
        "x.yaml",
        &format!("# one line more\n{}---\n{broken}", pod("a", "1")),
    );
    assert_eq!(
        check.batch(),
        ["!x.yaml:14: Pod default/b: metadata.labels.v: expected a string, found integer `1`"]
    );
}

#[test]
fn a_status_comes_and_goes_with_its_file() {
    let mut check = Check::new();
    let place = ".status/Pod/default/a/kubelet.json";
    check
        .read("x.yaml", &format!("{}  uid: u1\n", pod("a", "1")))
        .batch();
    check.read(
        place,
        "{\"uid\": \"u1\", \"status\": {\"podIP\": \"10.0.0.1\"}}",
    );
    let batch = check.manifests.commit().unwrap();
    let [Event::Applied(Object::Pod(pod))] = &batch.events.iter().collect::<Vec<_>>()[..] else {
        panic!("{batch:?}")
    };
    assert_eq!(
        pod.status.as_ref().unwrap().pod_ip.as_deref(),
        Some("10.0.0.1")
    );
    // A broken status keeps what it said.
    check.read(place, "{\n");
    let batch = check.batch();
    assert_eq!(batch.len(), 1, "{batch:?}");
    assert!(
        batch[0].starts_with("!.status/Pod/default/a/kubelet.json:"),
        "{batch:?}"
    );
    check.forget(place);
    let batch = check.manifests.commit().unwrap();
    let [Event::Applied(Object::Pod(pod))] = &batch.events.iter().collect::<Vec<_>>()[..] else {
        panic!("{batch:?}")
    };
    assert_eq!(pod.status, None);
    assert_eq!(batch.problems, []);
}

#[test]
fn a_status_without_object_waits_for_it_and_counts_only_for_its_uid() {
    let mut check = Check::new();
    check.read(
        ".status/Pod/default/a/kubelet.json",
        "{\"uid\": \"u1\", \"status\": {\"podIP\": \"10.0.0.1\"}}",
    );
    assert_eq!(check.batch(), Vec::<String>::new());
    let mut ip = |uid: &str| {
        check.read(
            "x.yaml",
            &pod("a", "1").replace("  name", &format!("  uid: {uid}\n  name")),
        );
        let batch = check.manifests.commit().unwrap();
        let [Event::Applied(Object::Pod(pod))] = &batch.events.iter().collect::<Vec<_>>()[..]
        else {
            panic!("{batch:?}")
        };
        pod.status.as_ref().and_then(|status| status.pod_ip.clone())
    };
    assert_eq!(ip("u1").as_deref(), Some("10.0.0.1"));
    assert_eq!(ip("u2"), None);
}

#[test]
fn two_writers_of_one_field_are_reported_by_place() {
    let mut check = Check::new();
    check
        .read("x.yaml", &format!("{}  uid: u\n", pod("a", "1")))
        .batch();
    for manager in ["one", "two"] {
        check.read(
            &format!(".status/Pod/default/a/{manager}.json"),
            "{\"uid\": \"u\", \"status\": {\"phase\": \"Running\"}}",
        );
    }
    assert_eq!(
        check.batch(),
        [
            "+a=1",
            "!.status/Pod/default/a/two.json: Pod default/a: status.phase: is already written by one, which is believed"
        ]
    );
    check.forget(".status/Pod/default/a/two.json");
    assert_eq!(check.batch(), Vec::<String>::new());
}

#[test]
fn problems_are_bounded() {
    let mut check = Check::new();
    let broken = "kind: Pod\n---\n".repeat(MAX_PROBLEMS_PER_FILE + 5);
    check.read("x.yaml", &broken);
    let batch = check.batch();
    assert_eq!(batch.len(), MAX_PROBLEMS_PER_FILE + 1);
    assert!(
        batch
            .iter()
            .any(|problem| problem == "!x.yaml: 5 more problems are not listed")
    );
    for file in 0..20 {
        check.read(&format!("{file}.yaml"), &broken);
    }
    let batch = check.batch();
    assert_eq!(batch.len(), problem::MAX_LISTED + 1);
}

#[test]
fn known_files_are_found_below_a_directory() {
    let mut check = Check::new();
    for path in [
        "a.yaml",
        "a/x.yaml",
        "a/b/y.yaml",
        "ab/z.yaml",
        ".status/Pod/n/p/one.json",
        ".status/Pod/n/q/two.json",
    ] {
        check.read(path, "{\"uid\": \"u\"}");
    }
    for (directory, expected) in [
        ("a", &["a/b/y.yaml", "a/x.yaml"][..]),
        ("a/b", &["a/b/y.yaml"]),
        (".status/Pod/n/p", &[".status/Pod/n/p/one.json"]),
        (
            ".status/Pod/n",
            &[".status/Pod/n/p/one.json", ".status/Pod/n/q/two.json"],
        ),
        ("nowhere", &[]),
    ] {
        let mut known = check.manifests.known_below(Path::new(directory));
        known.sort();
        assert_eq!(
            known
                .iter()
                .map(|path| path.to_str().unwrap())
                .collect::<Vec<_>>(),
            expected,
            "{directory}"
        );
    }
    assert_eq!(check.manifests.known_below(Path::new("")).len(), 6);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_never_take_an_object_away(bytes in any::<Vec<u8>>(), json in any::<bool>()) {
        let path = if json { "x.json" } else { "x.yaml" };
        let mut check = Check::new();
        let known = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"a\"}}";
        check.read(path, known).batch();
        check.manifests.read(Path::new(path), Ok(bytes.clone()));
        let _batch = check.manifests.commit();
        let mended = |problem: &Problem| problem.severity != Severity::Error;
        if !check.manifests.problems().iter().all(mended) {
            let key = ObjectKey::namespaced(crate::Kind::Pod, "default", "a");
            prop_assert!(check.manifests.objects[&key].published.is_some());
        }
        check.manifests.read(Path::new(".status/Pod/default/a/kubelet.json"), Ok(bytes));
        let _batch = check.manifests.commit();
    }

    #[test]
    fn a_broken_document_in_the_middle_keeps_every_last_good_state(
        junk in prop_oneof!["[a-z\\[\\]{}:\"'|>&*!%@ -]{1,60}", Just("a: [".to_owned()), Just("\t:".to_owned())],
        place in 0_usize..4,
    ) {
        let names = ["a", "b", "c"];
        let mut check = Check::new();
        let mut documents: Vec<String> = names.iter().map(|name| pod(name, "1")).collect();
        check.read("x.yaml", &documents.join("---\n")).batch();
        documents.insert(place, format!("{junk}\n"));
        check.read("x.yaml", &documents.join("---\n"));
        let batch = check.batch();
        prop_assert!(!batch.iter().any(|line| line.starts_with(['-', '+'])), "{:?}", batch);
        documents.remove(place);
        check.read("x.yaml", &documents.join("---\n"));
        let batch = check.batch();
        prop_assert!(!batch.iter().any(|line| line.starts_with(['-', '+', '!'])), "{:?}", batch);
    }
}
