// SPDX-License-Identifier: Apache-2.0
//! The lab's cluster as files: the built-in manifests, and `apply` and `delete` as an API server would do them.
//!
//! Each object lies in a file of its own, named by kind, namespace and name, so that applying it again replaces it and
//! deleting it removes a file. What is applied is read by the same code that the control plane reads it with, before
//! anything is stored: a mistake is answered with file, line, object and field.

pub mod served;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use cluster::{Directory, Event, Kind, Object, ObjectKey, Severity};
use serde_json::{Map, Value, json};

use crate::state::write_atomically;
use crate::topology::{Cluster, Node};

/// The cluster every lab starts with, in the order to read it.
pub const BUILT_IN: [(&str, &str); 4] = [
    ("cluster.yaml", include_str!("../manifests/cluster.yaml")),
    ("mesh.yaml", include_str!("../manifests/mesh.yaml")),
    ("apps.yaml", include_str!("../manifests/apps.yaml")),
    ("policies.yaml", include_str!("../manifests/policies.yaml")),
];

/// What a cluster has besides, where each stands on a network of its own.
pub fn of_network(cluster: Cluster) -> (&'static str, &'static str) {
    match cluster {
        Cluster::First => (
            "network-1.yaml",
            include_str!("../manifests/network-1.yaml"),
        ),
        Cluster::Second => (
            "network-2.yaml",
            include_str!("../manifests/network-2.yaml"),
        ),
    }
}

/// A manifest without what runs on other nodes than these, and without those nodes.
pub fn on_nodes(text: &str, nodes: &[Node]) -> Result<String> {
    let known = |name: &str| nodes.iter().any(|node| node.name() == name);
    let mut kept = documents(text)?;
    kept.retain(|document| match document["kind"].as_str() {
        Some("Node") => document["metadata"]["name"].as_str().is_some_and(known),
        _ => document["spec"]["nodeName"].as_str().is_none_or(known),
    });
    let printed: Vec<String> = kept
        .iter()
        .map(|document| serde_saphyr::to_string(document).context("cannot print an object as YAML"))
        .collect::<Result<_>>()?;
    Ok(printed.join("---\n"))
}

/// What became of one applied object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub key: ObjectKey,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Configured,
    Unchanged,
}

impl std::fmt::Display for Applied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outcome = match self.outcome {
            Outcome::Created => "created",
            Outcome::Configured => "configured",
            Outcome::Unchanged => "unchanged",
        };
        write!(f, "{} {outcome}", self.key)
    }
}

/// Checks the text of a manifest file and stores its objects in `directory`. All or nothing.
pub async fn apply(directory: &Path, name: &str, text: &str) -> Result<Vec<Applied>> {
    let objects = validate(name, text).await?;
    let documents = documents(text).with_context(|| format!("{name} is neither YAML nor JSON"))?;
    let mut stored = Vec::new();
    for mut document in documents {
        let key = key_of(&document, &objects)?;
        let path = file_of(directory, &key);
        // What is on its way out is another object already.
        let old = read_stored(&path).filter(|old| !is_leaving(old));
        complete(&mut document, &key, old.as_ref());
        let outcome = match &old {
            None => Outcome::Created,
            Some(old) if *old == document => Outcome::Unchanged,
            Some(_) => Outcome::Configured,
        };
        stored.push((path, document, Applied { key, outcome }));
    }
    for (path, document, applied) in &stored {
        if applied.outcome != Outcome::Unchanged {
            store(path, document)?;
        }
    }
    Ok(stored.into_iter().map(|(_, _, applied)| applied).collect())
}

/// Labels to give, and those to take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, Option<String>>);

impl Labels {
    /// Of the words `NAME=VALUE` and `NAME-`.
    pub fn read(words: &[String]) -> Result<Self> {
        let read = words.iter().map(|word| {
            let label = match word.split_once('=') {
                Some((name, value)) => Some((name.to_owned(), Some(value.to_owned()))),
                None => word.strip_suffix('-').map(|name| (name.to_owned(), None)),
            };
            label
                .filter(|(name, _)| !name.is_empty())
                .with_context(|| format!("`{word}`: expected NAME=VALUE, or NAME- to take it away"))
        });
        read.collect::<Result<_>>().map(Self)
    }
}

/// Gives an object labels and takes others away. Says so if there is none.
pub fn label(directory: &Path, key: &ObjectKey, labels: &Labels) -> Result<()> {
    let path = file_of(directory, key);
    let mut object =
        read_stored(&path).with_context(|| format!("there is no {key} in this lab"))?;
    let metadata = object["metadata"].as_object_mut();
    let metadata = metadata.with_context(|| format!("{key} has no metadata"))?;
    let held = metadata.entry("labels").or_insert_with(|| json!({}));
    let held = held.as_object_mut();
    let held = held.with_context(|| format!("{key}: metadata.labels: is no map"))?;
    for (name, value) in &labels.0 {
        match value {
            Some(value) => held.insert(name.clone(), json!(value)),
            None => held.remove(name),
        };
    }
    store(&path, &object)
}

/// Removes an object. Says so if there is none. A pod that runs on a node is only marked, as an API server does it: its
/// kubelet ends it first, and then [`finalize`]s it.
pub fn delete(directory: &Path, key: &ObjectKey) -> Result<()> {
    let path = file_of(directory, key);
    if key.kind == Kind::Pod
        && let Some(mut pod) = read_stored(&path)
        && let Some(marked) = mark_deleted(&mut pod)
    {
        return if marked { store(&path, &pod) } else { Ok(()) };
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("there is no {key} in this lab")
        }
        other => other.with_context(|| format!("cannot remove {}", path.display())),
    }
}

/// Removes a pod that was marked as deleted, once nothing of it runs. Another pod of that name stays.
pub fn finalize(directory: &Path, key: &ObjectKey, uid: &str) -> Result<()> {
    let path = file_of(directory, key);
    let ours =
        read_stored(&path).is_some_and(|pod| is_leaving(&pod) && pod["metadata"]["uid"] == uid);
    if ours {
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Whether the mark is new; `None` where no kubelet has to be waited for.
fn mark_deleted(pod: &mut Value) -> Option<bool> {
    pod["spec"]["nodeName"].as_str()?;
    let grace = pod["spec"]["terminationGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(30);
    if is_leaving(pod) {
        return Some(false);
    }
    let metadata = pod["metadata"].as_object_mut()?;
    metadata.insert("deletionTimestamp".into(), json!(now()));
    metadata.insert("deletionGracePeriodSeconds".into(), json!(grace));
    Some(true)
}

fn is_leaving(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

/// The object with this key, if there is one.
pub fn stored(directory: &Path, key: &ObjectKey) -> Option<Value> {
    read_stored(&file_of(directory, key))
}

/// The object in a file, if there is one.
fn read_stored(path: &Path) -> Option<Value> {
    std::fs::read_to_string(path)
        .ok()
        .and_then(|text| documents_of_one(&text))
}

fn store(path: &Path, document: &Value) -> Result<()> {
    let text = serde_saphyr::to_string(document).context("cannot print an object as YAML")?;
    write_atomically(path, text.as_bytes())
}

/// Reads every object of a directory once, with the problems found in it.
pub async fn read_all(directory: &Path) -> Result<(Vec<Object>, Vec<cluster::Problem>)> {
    let mut source = Directory::open(directory).context("cannot read the manifests")?;
    let batch = source.next().await;
    let objects = batch.events.into_iter().filter_map(|event| match event {
        Event::Applied(object) => Some(object),
        Event::Deleted(_) => None,
    });
    Ok((objects.collect(), batch.problems))
}

/// A key from what a person types: kinds in any case and in the plural, a name with or without namespace.
pub fn parse_key(kind: &str, name: &str) -> Result<ObjectKey> {
    let wanted = kind.to_ascii_lowercase();
    let found = Kind::ALL.iter().copied().find(|kind| {
        let known = kind.as_str().to_ascii_lowercase();
        let plurals = [
            format!("{known}s"),
            format!("{known}es"),
            known
                .strip_suffix('y')
                .map(|stem| format!("{stem}ies"))
                .unwrap_or_default(),
        ];
        wanted == known || wanted == short_name(*kind) || plurals.contains(&wanted)
    });
    let Some(kind) = found else {
        let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        bail!(
            "`{kind}` is no kind that the lab knows; there are: {}",
            kinds.join(", ")
        )
    };
    let pod: crate::topology::PodName = name.parse().map_err(anyhow::Error::msg)?;
    Ok(match kind.scope() {
        cluster::object::Scope::Cluster => ObjectKey::cluster_wide(kind, name),
        cluster::object::Scope::Namespace => ObjectKey::namespaced(kind, pod.namespace, pod.name),
    })
}

fn short_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Namespace => "ns",
        Kind::Service => "svc",
        Kind::ServiceAccount => "sa",
        Kind::Pod => "po",
        _ => "-",
    }
}

/// A random version 4 UUID.
pub fn random_uid() -> String {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Has the cluster crate read the text by itself, and refuses what it complains of.
async fn validate(name: &str, text: &str) -> Result<Vec<Object>> {
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let file = Path::new(name)
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("stdin.yaml");
    // Hidden files are no manifests to a directory, but a file that is named by hand is one whatever its name.
    let file = file.trim_start_matches('.');
    let file = if file.ends_with(".json") || file.ends_with(".yml") || file.ends_with(".yaml") {
        file.into()
    } else {
        format!("{file}.yaml")
    };
    std::fs::write(folder.path().join(&file), text).context("cannot store a copy to check")?;
    let (objects, problems) = read_all(folder.path()).await?;
    let errors: Vec<String> = problems
        .iter()
        .filter(|problem| problem.severity != Severity::Info)
        .map(ToString::to_string)
        .collect();
    ensure!(
        errors.is_empty(),
        "nothing was applied:\n  {}",
        errors.join("\n  ")
    );
    ensure!(
        !objects.is_empty(),
        "{name} holds no object of a kind that the lab knows"
    );
    Ok(objects)
}

/// Every object of a text, lists taken apart.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    // A label whose value is `y` or `on` is text; only true and false are booleans.
    let options = serde_saphyr::options! { strict_booleans: true };
    let read: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)?;
    let mut documents = Vec::new();
    for document in read {
        let is_list = document["kind"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("List"));
        match document {
            Value::Object(mut list) if is_list => {
                let Some(Value::Array(items)) = list.remove("items") else {
                    continue;
                };
                documents.extend(items);
            }
            Value::Null => {}
            other => documents.push(other),
        }
    }
    Ok(documents)
}

fn documents_of_one(text: &str) -> Option<Value> {
    documents(text).ok()?.pop()
}

/// The key of a document, by the object that was read from it.
fn key_of(document: &Value, objects: &[Object]) -> Result<ObjectKey> {
    let metadata = &document["metadata"];
    let (kind, name, namespace) = (
        &document["kind"],
        &metadata["name"],
        metadata["namespace"].as_str(),
    );
    let found = objects.iter().map(Object::key).find(|key| {
        kind == key.kind.as_str()
            && *name == key.name
            && (namespace.is_none() || namespace == key.namespace.as_deref())
    });
    found.with_context(|| format!("{kind} {name} is of no kind that the lab knows"))
}

/// Fills in what an API server does: the namespace, a random uid that stays, the time of creation.
fn complete(document: &mut Value, key: &ObjectKey, old: Option<&Value>) {
    let old = old.map_or(Value::Null, |old| old["metadata"].clone());
    let Some(Value::Object(metadata)) = document.get_mut("metadata") else {
        return;
    };
    if let Some(namespace) = &key.namespace {
        metadata.insert("namespace".into(), json!(namespace));
    }
    keep_or(metadata, "uid", &old, || json!(random_uid()));
    keep_or(metadata, "creationTimestamp", &old, || json!(now()));
}

/// What the writer gave stays; else what was stored; else something new.
fn keep_or(
    metadata: &mut Map<String, Value>,
    field: &str,
    old: &Value,
    new: impl FnOnce() -> Value,
) {
    if metadata.get(field).is_none_or(Value::is_null) {
        let value = if old[field].is_null() {
            new()
        } else {
            old[field].clone()
        };
        metadata.insert(field.into(), value);
    }
}

/// This moment, as Kubernetes writes times.
pub fn now() -> String {
    let now = time::OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    now.format(&time::format_description::well_known::Rfc3339)
        .unwrap_or_default()
}

/// Where an object is stored.
pub fn file_of(directory: &Path, key: &ObjectKey) -> PathBuf {
    let namespace = key.namespace.as_deref().unwrap_or("_");
    directory.join(format!(
        "{}.{namespace}.{}.yaml",
        key.kind.as_str().to_ascii_lowercase(),
        key.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_understood_as_people_type_them() {
        let policy = ObjectKey::namespaced(Kind::AuthorizationPolicy, "shop", "deny");
        for kind in [
            "AuthorizationPolicy",
            "authorizationpolicy",
            "authorizationpolicies",
        ] {
            assert_eq!(parse_key(kind, "shop/deny").unwrap(), policy, "{kind}");
        }
        assert_eq!(
            parse_key("svc", "web").unwrap(),
            ObjectKey::namespaced(Kind::Service, "default", "web")
        );
        assert_eq!(
            parse_key("ns", "shop").unwrap(),
            ObjectKey::cluster_wide(Kind::Namespace, "shop")
        );
    }

    #[test]
    fn uids_look_like_uuids_and_differ() {
        let (a, b) = (random_uid(), random_uid());
        assert!(
            a != b && a.len() == 36 && a.as_bytes()[14] == b'4',
            "{a} {b}"
        );
    }

    #[test]
    fn lists_are_taken_apart() {
        let text = "kind: List\napiVersion: v1\nitems:\n- {kind: Pod, metadata: {name: a}}\n- {kind: Pod, metadata: {name: b}}\n---\nkind: Node\n";
        let names: Vec<_> = documents(text)
            .unwrap()
            .iter()
            .map(|document| document["kind"].clone())
            .collect();
        assert_eq!(names, ["Pod", "Pod", "Node"]);
    }

    #[tokio::test]
    async fn applying_again_keeps_the_uid_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let text = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: shop}\n";
        assert_eq!(
            apply(folder.path(), "a.yaml", text).await.unwrap()[0].outcome,
            Outcome::Created
        );
        assert_eq!(
            apply(folder.path(), "a.yaml", text).await.unwrap()[0].outcome,
            Outcome::Unchanged
        );
        let (objects, _) = read_all(folder.path()).await.unwrap();
        let labelled = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: shop, labels: {x: y}}\n";
        assert_eq!(
            apply(folder.path(), "a.yaml", labelled).await.unwrap()[0].outcome,
            Outcome::Configured
        );
        let (again, _) = read_all(folder.path()).await.unwrap();
        assert_eq!(objects[0].uid(), again[0].uid());
    }

    #[tokio::test]
    async fn labels_are_given_and_taken_away_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let text =
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {a: one, b: two}}\n";
        let key = apply(folder.path(), "a.yaml", text)
            .await
            .unwrap()
            .remove(0)
            .key;
        let words = ["a-", "c=", "istio.io/dataplane-mode=ambient"].map(str::to_owned);
        label(folder.path(), &key, &Labels::read(&words).unwrap()).unwrap();
        let (objects, _) = read_all(folder.path()).await.unwrap();
        let held: Vec<_> = objects[0]
            .labels()
            .iter()
            .map(|(k, v)| (&**k, &**v))
            .collect();
        assert_eq!(
            held,
            [
                ("b", "two"),
                ("c", ""),
                ("istio.io/dataplane-mode", "ambient")
            ]
        );
        for wrong in ["a", "=b", "-"] {
            let error = Labels::read(&[wrong.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
        let none = ObjectKey::cluster_wide(Kind::Namespace, "none");
        assert!(label(folder.path(), &none, &Labels::read(&words).unwrap()).is_err());
    }

    #[tokio::test]
    async fn a_deleted_pod_stays_until_its_kubelet_is_done_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop}\nspec: {nodeName: node-a, containers: [{name: app, image: culvert/app}]}\n";
        let key = apply(folder.path(), "p.yaml", text)
            .await
            .unwrap()
            .remove(0)
            .key;
        let pods = async || read_all(folder.path()).await.unwrap().0;
        let uid = pods().await[0].uid().to_owned();
        delete(folder.path(), &key).unwrap();
        delete(folder.path(), &key).unwrap();
        let Object::Pod(pod) = pods().await.remove(0) else {
            panic!("a pod")
        };
        assert!(pod.metadata.deletion_timestamp.is_some());
        finalize(folder.path(), &key, "another").unwrap();
        assert_eq!(pods().await.len(), 1);
        // Applied anew meanwhile, it is another pod, which the end of the first one leaves alone.
        apply(folder.path(), "p.yaml", text).await.unwrap();
        let again = pods().await[0].uid().to_owned();
        assert_ne!(again, uid);
        finalize(folder.path(), &key, &uid).unwrap();
        assert_eq!(pods().await.len(), 1);
        delete(folder.path(), &key).unwrap();
        finalize(folder.path(), &key, &again).unwrap();
        assert!(pods().await.is_empty());
        assert!(delete(folder.path(), &key).is_err());
    }

    #[tokio::test]
    async fn a_mistake_applies_nothing_and_says_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let text = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: shop}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: 7}\n";
        let error = apply(folder.path(), "wrong.yaml", text)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("wrong.yaml"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_runs_on_other_nodes_is_left_out() {
        let text = "kind: Node\nmetadata: {name: node-a}\n---\nkind: Node\nmetadata: {name: node-b}\n---\n\
                    kind: Pod\nmetadata: {name: p}\nspec: {nodeName: node-b}\n---\n\
                    kind: Pod\nmetadata: {name: q}\nspec: {nodeName: node-a}\n---\nkind: Service\nspec: {}\n";
        let kept = documents(&on_nodes(text, &[Node::A]).unwrap()).unwrap();
        let named: Vec<_> = kept
            .iter()
            .map(|d| (d["kind"].as_str(), d["metadata"]["name"].as_str()))
            .collect();
        let expected = [
            (Some("Node"), Some("node-a")),
            (Some("Pod"), Some("q")),
            (Some("Service"), None),
        ];
        assert_eq!(named, expected);
    }

    #[tokio::test]
    async fn every_built_in_manifest_is_valid() {
        let networks = [Cluster::First, Cluster::Second].map(of_network);
        for (name, text) in BUILT_IN.into_iter().chain(networks) {
            let folder = tempfile::tempdir().unwrap();
            let applied = apply(folder.path(), name, text)
                .await
                .unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(!applied.is_empty(), "{name}");
        }
    }
}
