// SPDX-License-Identifier: Apache-2.0
//! What the manifests' readers go by while a file is broken: its last good version, which nobody can read any more.
//!
//! In: batches as a reader of the manifests gets them. Out: while something is broken, a file with every object that is
//! in force, for whoever comes later; nothing while all can be read. Of an API server the file is there always, for
//! those who can't reach it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cluster::source::{Batch, Event};
use cluster::{Object, ObjectKey, Severity};
use serde_json::{Value, json};

use crate::manifests;
use crate::state::write_json;

pub struct InForce {
    folder: PathBuf,
    keep: Keep,
    objects: BTreeMap<ObjectKey, Object>,
}

/// When what is in force is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    WhileBroken,
    Always,
}

impl InForce {
    pub fn new(folder: PathBuf, keep: Keep) -> Self {
        Self {
            folder,
            keep,
            objects: BTreeMap::new(),
        }
    }

    pub fn follow(&mut self, batch: &Batch) -> Result<()> {
        for event in batch.events.iter() {
            match event {
                Event::Applied(object) => {
                    self.objects.insert(object.key(), object);
                }
                Event::Deleted(key) => {
                    self.objects.remove(&key);
                }
            }
        }
        let file = self.folder.join("objects.json");
        if self.keep == Keep::Always || batch.problems.iter().any(is_broken) {
            let items: Vec<Value> = self.objects.values().map(document).collect();
            let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
            return write_json(&file, &list);
        }
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", file.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Objects that are in force though the manifests, as they are now, don't hold them; each with what is wrong.
pub async fn kept(
    folder: &Path,
    readable: &[Object],
    problems: &[cluster::Problem],
) -> Result<Vec<(Object, String)>> {
    let broken: Vec<&cluster::Problem> = problems
        .iter()
        .filter(|problem| is_broken(problem))
        .collect();
    if broken.is_empty() {
        return Ok(Vec::new());
    }
    let (in_force, _) = manifests::read_all(folder).await?;
    let missing = in_force
        .into_iter()
        .filter(|object| !readable.iter().any(|read| read.key() == object.key()));
    Ok(missing
        .map(|object| {
            let why = why(&object.key(), &broken);
            (object, why)
        })
        .collect())
}

/// What is wrong with an object, or with its file, or with anything of which it is not known whose it is.
fn why(key: &ObjectKey, broken: &[&cluster::Problem]) -> String {
    let own_file = manifests::file_of(Path::new(""), key);
    let told = |found: Vec<&&cluster::Problem>| -> Option<String> {
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    };
    let of = |wanted: &dyn Fn(&cluster::Problem) -> bool| {
        told(broken.iter().filter(|problem| wanted(problem)).collect())
    };
    of(&|problem| problem.object.as_ref() == Some(key))
        .or_else(|| of(&|problem| problem.file == own_file))
        .or_else(|| of(&|problem| problem.object.is_none()))
        .unwrap_or_else(|| "its file can't be read".to_owned())
}

fn is_broken(problem: &cluster::Problem) -> bool {
    problem.severity == Severity::Error
}

/// The object as a manifest would hold it.
fn document(object: &Object) -> Value {
    let kind = object.kind();
    let version = kind.versions().first().copied().unwrap_or("v1");
    let version = match kind.group() {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    let mut document: Value = serde_json::from_slice(&object.to_json()).unwrap_or_default();
    document["apiVersion"] = json!(version);
    document["kind"] = json!(kind.as_str());
    document
}

#[cfg(test)]
mod tests {
    use cluster::Directory;

    use super::*;

    const POLICY: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
                          metadata: {name: nobody, namespace: shop}\nspec: {action: DENY, rules: [{}]}\n";

    #[tokio::test]
    async fn what_a_broken_file_said_last_is_kept_until_it_is_mended_or_gone() {
        let (manifests_folder, folder) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = manifests::parse_key("authorizationpolicy", "shop/nobody").unwrap();
        let file = manifests::file_of(manifests_folder.path(), &key);
        std::fs::write(&file, POLICY).unwrap();
        let mut source = Directory::open(manifests_folder.path()).unwrap();
        let mut in_force = InForce::new(folder.path().to_owned(), Keep::WhileBroken);
        let kept_now = async || {
            let (objects, problems) = manifests::read_all(manifests_folder.path()).await.unwrap();
            kept(folder.path(), &objects, &problems).await.unwrap()
        };
        in_force.follow(&source.next().await).unwrap();
        assert!(kept_now().await.is_empty());

        std::fs::write(&file, POLICY.replace("DENY", "[")).unwrap();
        in_force.follow(&source.next().await).unwrap();
        let kept = kept_now().await;
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].0.key(), key);
        assert!(
            kept[0].1.contains("authorizationpolicy.shop.nobody.yaml"),
            "{}",
            kept[0].1
        );

        std::fs::remove_file(&file).unwrap();
        in_force.follow(&source.next().await).unwrap();
        assert!(kept_now().await.is_empty());
        assert!(!folder.path().join("objects.json").exists());
    }
}
