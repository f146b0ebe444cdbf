// SPDX-License-Identifier: Apache-2.0
//! The directory source with real files and real events of the kernel.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::status::Written;
use cluster::{
    Batch, Directory, Event, Kind, Object, ObjectKey, OpenError, Partial, Source, StatusWriter,
};
use tempfile::TempDir;

fn pod(name: &str, label: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels:\n    v: \"{label}\"\n")
}

/// A directory, its source, and what the events so far add up to.
struct Cluster {
    directory: TempDir,
    source: Source,
    state: BTreeMap<String, Object>,
    batch: Batch,
    batches: usize,
}

impl Cluster {
    async fn with(files: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().unwrap();
        for (name, text) in files {
            write(&directory.path().join(name), text);
        }
        let source = Directory::open(directory.path()).unwrap();
        let mut cluster = Self {
            directory,
            source,
            state: BTreeMap::new(),
            batch: Batch::default(),
            batches: 0,
        };
        cluster.next().await;
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        write(&self.path(name), text);
    }

    async fn next(&mut self) {
        let batch = tokio::time::timeout(Duration::from_secs(10), self.source.next())
            .await
            .expect("no batch came");
        for event in batch.events.iter() {
            match event {
                Event::Applied(object) => {
                    self.state.insert(object.name().to_owned(), object);
                }
                Event::Deleted(key) => {
                    self.state
                        .remove(&key.name)
                        .expect("a deleted object was there");
                }
            }
        }
        self.batch = batch;
        self.batches += 1;
    }

    /// Waits until the state is as expected: `name=label`, by name.
    async fn becomes(&mut self, expected: &[&str]) {
        while self.labels() != expected {
            self.next().await;
        }
    }

    async fn until(&mut self, mut condition: impl FnMut(&Self) -> bool) {
        while !condition(self) {
            self.next().await;
        }
    }

    fn labels(&self) -> Vec<String> {
        let label = |object: &Object| object.labels().get("v").cloned().unwrap_or_default();
        self.state
            .iter()
            .map(|(name, object)| format!("{name}={}", label(object)))
            .collect()
    }

    fn problems(&self) -> Vec<String> {
        self.batch
            .problems
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    async fn stays_quiet(&mut self) {
        let quiet = tokio::time::timeout(Duration::from_millis(200), self.source.next()).await;
        assert!(quiet.is_err(), "{quiet:?}");
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[tokio::test]
async fn the_first_batch_is_the_whole_state() {
    let cluster = Cluster::with(&[
        ("a.yaml", &pod("a", "1")),
        ("b.yml", &pod("b", "1")),
        (
            "sub/dir/c.json",
            "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"c\"}}",
        ),
        ("README.md", "not a manifest"),
        (".hidden.yaml", &pod("hidden", "1")),
        (".git/d.yaml", &pod("hidden", "1")),
        ("a.yaml~", &pod("hidden", "1")),
        (
            "namespace.yaml",
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n",
        ),
    ])
    .await;
    assert_eq!(cluster.labels(), ["a=1", "b=1", "c=", "n="]);
    assert_eq!(cluster.batches, 1);
    assert!(
        matches!(
            cluster.batch.events.iter().next(),
            Some(Event::Applied(Object::Namespace(_)))
        ),
        "what others refer to comes first"
    );
}

#[tokio::test]
async fn an_empty_directory_gives_an_empty_first_batch() {
    let cluster = Cluster::with(&[]).await;
    assert_eq!(cluster.batch, Batch::default());
}

#[test]
fn a_directory_that_is_missing_or_a_file_cannot_be_opened() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [directory.path().join("missing"), file] {
        let error = Directory::open(&path).unwrap_err();
        assert!(
            matches!(&error, OpenError::Directory { path: named, .. } if *named == path),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_written_file_is_read_when_it_is_closed_and_not_before() {
    let mut cluster = Cluster::with(&[]).await;
    let mut file = File::create(cluster.path("a.yaml")).unwrap();
    file.write_all(pod("a", "1").as_bytes()).unwrap();
    file.sync_all().unwrap();
    cluster.stays_quiet().await;
    file.write_all(b"---\n").unwrap();
    file.write_all(pod("b", "1").as_bytes()).unwrap();
    drop(file);
    cluster.becomes(&["a=1", "b=1"]).await;
    assert_eq!(cluster.batches, 2);
}

#[tokio::test]
async fn a_file_is_read_when_it_is_renamed_and_its_objects_go_with_it() {
    let mut cluster = Cluster::with(&[("a.yaml", &pod("a", "1"))]).await;
    cluster.write(".a.yaml.swp", &pod("a", "2"));
    fs::rename(cluster.path(".a.yaml.swp"), cluster.path("a.yaml")).unwrap();
    cluster.becomes(&["a=2"]).await;
    fs::rename(cluster.path("a.yaml"), cluster.path("other.yaml")).unwrap();
    cluster.stays_quiet().await;
    fs::rename(cluster.path("other.yaml"), cluster.path("other.txt")).unwrap();
    cluster.becomes(&[]).await;
    fs::rename(cluster.path("other.txt"), cluster.path("a.yml")).unwrap();
    cluster.becomes(&["a=2"]).await;
    fs::remove_file(cluster.path("a.yml")).unwrap();
    cluster.becomes(&[]).await;
}

#[tokio::test]
async fn one_save_is_one_batch() {
    let mut cluster = Cluster::with(&[("a.yaml", &pod("a", "1"))]).await;
    // As editors do: a backup, a new file, a rename, a second file.
    fs::rename(cluster.path("a.yaml"), cluster.path("a.yaml~")).unwrap();
    cluster.write("a.yaml", &pod("a", "2"));
    cluster.write("b.yaml", &pod("b", "2"));
    cluster.becomes(&["a=2", "b=2"]).await;
    assert_eq!(cluster.batches, 2);
}

#[tokio::test]
async fn links_are_followed_to_files() {
    let mut cluster = Cluster::with(&[(".store/a", &pod("a", "1"))]).await;
    symlink(cluster.path(".store/a"), cluster.path("a.yaml")).unwrap();
    cluster.becomes(&["a=1"]).await;
    cluster.write(".store/b", &pod("b", "1"));
    fs::hard_link(cluster.path(".store/b"), cluster.path("b.yaml")).unwrap();
    cluster.becomes(&["a=1", "b=1"]).await;
    fs::remove_file(cluster.path("a.yaml")).unwrap();
    cluster.becomes(&["b=1"]).await;
}

#[tokio::test]
async fn the_swap_of_a_mounted_volume_is_noticed() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    write(&path("..1/a.yaml"), &pod("a", "1"));
    symlink("..1", path("..data")).unwrap();
    symlink("..data/a.yaml", path("a.yaml")).unwrap();
    let source = Directory::open(directory.path()).unwrap();
    let mut cluster = Cluster {
        directory,
        source,
        state: BTreeMap::new(),
        batch: Batch::default(),
        batches: 0,
    };
    cluster.becomes(&["a=1"]).await;
    cluster.write("..2/a.yaml", &pod("a", "2"));
    symlink("..2", cluster.path("..data_tmp")).unwrap();
    fs::rename(cluster.path("..data_tmp"), cluster.path("..data")).unwrap();
    fs::remove_dir_all(cluster.path("..1")).unwrap();
    cluster.becomes(&["a=2"]).await;
}

#[tokio::test]
async fn directories_come_move_and_go_with_all_they_hold() {
    let mut cluster = Cluster::with(&[]).await;
    cluster.write("new/deep/a.yaml", &pod("a", "1"));
    cluster.becomes(&["a=1"]).await;
    cluster.write("new/deep/b.yaml", &pod("b", "1"));
    cluster.becomes(&["a=1", "b=1"]).await;
    fs::rename(cluster.path("new"), cluster.path("moved")).unwrap();
    cluster.write("moved/deep/c.yaml", &pod("c", "1"));
    cluster.becomes(&["a=1", "b=1", "c=1"]).await;
    let outside = TempDir::new().unwrap();
    fs::rename(cluster.path("moved/deep"), outside.path().join("deep")).unwrap();
    cluster.becomes(&[]).await;
    write(&outside.path().join("deep/d.yaml"), &pod("d", "1"));
    cluster.stays_quiet().await;
    fs::rename(outside.path().join("deep"), cluster.path("back")).unwrap();
    cluster.becomes(&["a=1", "b=1", "c=1", "d=1"]).await;
    fs::remove_dir_all(cluster.path("back")).unwrap();
    cluster.becomes(&[]).await;
}

#[tokio::test]
async fn problems_are_listed_while_they_hold() {
    let mut cluster = Cluster::with(&[("a.yaml", &pod("a", "1"))]).await;
    cluster.write("a.yaml", "a: [\n");
    cluster.next().await;
    assert_eq!(cluster.labels(), ["a=1"], "the last good state stays");
    assert!(cluster.batch.events.is_empty());
    assert!(
        cluster.problems()[0].starts_with("a.yaml:"),
        "{:?}",
        cluster.problems()
    );
    cluster.write("b.yaml", &pod("b", "1"));
    cluster.becomes(&["a=1", "b=1"]).await;
    assert_eq!(cluster.problems().len(), 1, "it is still listed");
    cluster.write("a.yaml", &pod("a", "2"));
    cluster.becomes(&["a=2", "b=1"]).await;
    assert_eq!(cluster.problems(), Vec::<String>::new());
}

#[tokio::test]
async fn two_files_that_define_one_object_are_both_named() {
    let mut cluster = Cluster::with(&[("b.yaml", &pod("a", "1"))]).await;
    cluster.write("a.yaml", &pod("a", "2"));
    cluster.next().await;
    assert_eq!(cluster.labels(), ["a=1"]);
    assert_eq!(
        cluster.problems(),
        ["a.yaml:1: Pod default/a: is already defined in b.yaml:1, which stays in force"]
    );
    fs::remove_file(cluster.path("b.yaml")).unwrap();
    cluster.becomes(&["a=2"]).await;
    assert_eq!(cluster.problems(), Vec::<String>::new());
}

#[tokio::test]
async fn files_that_are_too_large_or_no_files_are_refused() {
    let mut cluster = Cluster::with(&[]).await;
    File::create(cluster.path("large.yaml"))
        .unwrap()
        .set_len((64 << 20) + 1)
        .unwrap();
    cluster
        .until(|cluster| cluster.problems() == ["large.yaml: larger than 64 MiB"])
        .await;
    fs::remove_file(cluster.path("large.yaml")).unwrap();
    cluster.until(|cluster| cluster.problems().is_empty()).await;
    let socket = std::os::unix::net::UnixListener::bind(cluster.path("socket.yaml")).unwrap();
    cluster.write("a.yaml", &pod("a", "1"));
    cluster.becomes(&["a=1"]).await;
    drop(socket);
}

#[tokio::test]
async fn all_objects_stay_while_the_directory_itself_is_gone() {
    let outer = TempDir::new().unwrap();
    let root = outer.path().join("manifests");
    write(&root.join("a.yaml"), &pod("a", "1"));
    let source = Directory::open(&root).unwrap();
    let mut cluster = Cluster {
        directory: outer,
        source,
        state: BTreeMap::new(),
        batch: Batch::default(),
        batches: 0,
    };
    cluster.becomes(&["a=1"]).await;
    fs::rename(&root, cluster.path("away")).unwrap();
    cluster
        .until(|cluster| {
            cluster
                .problems()
                .iter()
                .any(|problem| problem.contains("reading the directory"))
        })
        .await;
    assert_eq!(cluster.labels(), ["a=1"]);
    cluster.write("manifests/a.yaml", &pod("a", "2"));
    cluster.becomes(&["a=2"]).await;
    cluster.until(|cluster| cluster.problems().is_empty()).await;
    cluster.write("manifests/b.yaml", &pod("b", "1"));
    cluster.becomes(&["a=2", "b=1"]).await;
}

#[tokio::test]
async fn a_storm_that_overruns_the_queue_loses_nothing() {
    let mut cluster = Cluster::with(&[]).await;
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // The reader holds one batch and waits to hand over the next, meanwhile the kernel's queue fills up.
    cluster.write("a.yaml", &pod("a", "1"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    cluster.write("a.yaml", &pod("a", "2"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    for turn in 0..limit + 100 {
        let path = cluster.path(if turn % 2 == 0 { "x.yaml" } else { "y.yaml" });
        drop(File::create(path).unwrap());
    }
    cluster.write("late.yaml", &pod("late", "1"));
    cluster.becomes(&["a=2", "late=1"]).await;
}

#[tokio::test]
async fn what_is_written_while_nobody_reads_arrives_merged() {
    let mut cluster = Cluster::with(&[]).await;
    for turn in 0..20 {
        cluster.write("a.yaml", &pod("a", &turn.to_string()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.becomes(&["a=19"]).await;
    assert!(cluster.batches <= 5, "{} batches", cluster.batches);
}

#[tokio::test]
async fn a_status_is_laid_over_its_object_and_taken_back() {
    let mut cluster = Cluster::with(&[("a.yaml", &pod("a", "1"))]).await;
    let key = ObjectKey::namespaced(Kind::Pod, "default", "a");
    let uid = cluster.state["a"].uid().to_owned();
    let kubelet = StatusWriter::new(cluster.directory.path(), "kubelet").unwrap();
    let redirect = StatusWriter::new(cluster.directory.path(), "redirect").unwrap();
    let status = serde_json::json!({"podIP": "10.0.0.1", "phase": "Running"});
    let partial = Partial {
        status: status.as_object().unwrap().clone(),
        ..Partial::default()
    };
    assert_eq!(
        kubelet.write(&key, &uid, &partial).unwrap(),
        Written::Changed
    );
    assert_eq!(
        kubelet.write(&key, &uid, &partial).unwrap(),
        Written::Unchanged
    );
    let ip = |cluster: &Cluster| match &cluster.state["a"] {
        Object::Pod(pod) => pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
        _ => None,
    };
    cluster
        .until(|cluster| ip(cluster).as_deref() == Some("10.0.0.1"))
        .await;
    let enabled = BTreeMap::from([(
        "ambient.istio.io/redirection".to_owned(),
        "enabled".to_owned(),
    )]);
    redirect
        .write(
            &key,
            &uid,
            &Partial {
                annotations: enabled,
                ..Partial::default()
            },
        )
        .unwrap();
    cluster
        .until(|cluster| {
            cluster.state["a"]
                .annotations()
                .contains_key("ambient.istio.io/redirection")
        })
        .await;
    assert_eq!(ip(&cluster).as_deref(), Some("10.0.0.1"));

    assert_eq!(kubelet.remove(&key).unwrap(), Written::Changed);
    assert_eq!(kubelet.remove(&key).unwrap(), Written::Unchanged);
    cluster.until(|cluster| ip(cluster).is_none()).await;
    redirect.retain(|_| true).unwrap();
    assert!(cluster.path(".status/Pod/default/a/redirect.json").exists());
    redirect.retain(|gone| *gone != key).unwrap();
    cluster
        .until(|cluster| cluster.state["a"].annotations().is_empty())
        .await;
    assert!(
        !cluster.path(".status/Pod/default/a").exists(),
        "the last writer leaves nothing behind"
    );
    assert_eq!(cluster.problems(), Vec::<String>::new());
    // The directory comes back with the next word.
    kubelet.write(&key, &uid, &partial).unwrap();
    cluster.until(|cluster| ip(cluster).is_some()).await;
}

#[tokio::test]
async fn a_status_of_an_object_that_was_created_anew_does_not_count() {
    let manifest =
        |uid: &str| pod("a", uid).replace("  name: a", &format!("  name: a\n  uid: {uid}"));
    let mut cluster = Cluster::with(&[("a.yaml", &manifest("first"))]).await;
    let key = ObjectKey::namespaced(Kind::Pod, "default", "a");
    let writer = StatusWriter::new(cluster.directory.path(), "redirect").unwrap();
    let annotations = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    writer
        .write(
            &key,
            "first",
            &Partial {
                annotations,
                ..Partial::default()
            },
        )
        .unwrap();
    cluster
        .until(|cluster| cluster.state["a"].annotations().contains_key("k"))
        .await;
    cluster.write("a.yaml", &manifest("second"));
    cluster.becomes(&["a=second"]).await;
    assert!(cluster.state["a"].annotations().is_empty());
}

#[test]
fn a_writer_refuses_names_that_lead_elsewhere() {
    let directory = TempDir::new().unwrap();
    for manager in ["", "a/b", "A", "..", "a.b"] {
        assert!(
            StatusWriter::new(directory.path(), manager).is_err(),
            "{manager}"
        );
    }
    let writer = StatusWriter::new(directory.path(), "kubelet").unwrap();
    for (namespace, name) in [
        ("default", ".."),
        ("default", "a/b"),
        ("../..", "a"),
        ("default", ""),
    ] {
        let key = ObjectKey::namespaced(Kind::Pod, namespace, name);
        assert!(
            writer.write(&key, "u", &Partial::default()).is_err(),
            "{key}"
        );
        assert!(writer.remove(&key).is_err(), "{key}");
    }
}

#[test]
fn writers_that_meet_in_one_directory_do_not_disturb_each_other() {
    let directory = TempDir::new().unwrap();
    let key = ObjectKey::namespaced(Kind::Pod, "default", "a");
    std::thread::scope(|scope| {
        for manager in ["one", "two", "three"] {
            let writer = StatusWriter::new(directory.path(), manager).unwrap();
            let key = &key;
            scope.spawn(move || {
                for _ in 0..300 {
                    writer.write(key, "u", &Partial::default()).unwrap();
                    writer.remove(key).unwrap();
                }
            });
        }
    });
    let left: Vec<_> = fs::read_dir(directory.path().join(".status/Pod/default"))
        .unwrap()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_file_that_becomes_readable_is_read() {
    // Root reads everything: then there is nothing to become readable.
    let mut cluster = Cluster::with(&[]).await;
    cluster.write(".a", &pod("a", "1"));
    fs::set_permissions(cluster.path(".a"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::rename(cluster.path(".a"), cluster.path("a.yaml")).unwrap();
    cluster.next().await;
    fs::set_permissions(cluster.path("a.yaml"), fs::Permissions::from_mode(0o644)).unwrap();
    cluster.becomes(&["a=1"]).await;
}

#[tokio::test]
async fn a_file_that_could_not_be_read_is_tried_again_untouched() {
    // What hinders, a link that leads to itself, lies where nothing is watched, as short descriptors or a lost disk do.
    let elsewhere = TempDir::new().unwrap();
    let target = elsewhere.path().join("target");
    symlink(&target, &target).unwrap();
    let mut cluster = Cluster::with(&[("b.yaml", &pod("b", "1"))]).await;
    symlink(&target, cluster.path("a.yaml")).unwrap();
    cluster.next().await;
    assert_eq!(
        cluster.batch.problems.len(),
        1,
        "{:?}",
        cluster.batch.problems
    );
    // In one step: there is no moment at which it is missing.
    write(&elsewhere.path().join("whole"), &pod("a", "1"));
    fs::rename(elsewhere.path().join("whole"), &target).unwrap();
    cluster.becomes(&["a=1", "b=1"]).await;
    assert!(cluster.batch.problems.is_empty());
}
