// SPDX-License-Identifier: Apache-2.0
//! The same of a lab with an API server: `apply`, `delete` and `label` as `kubectl` does them, after the same check.

use anyhow::{Context as _, Result, bail};
use cluster::{Kind, ObjectKey};
use serde_json::{Value, json};

use super::{Applied, Labels, Outcome, documents, key_of, validate};
use crate::kubernetes::{Admin, End};

/// Checks the text of a manifest file and applies its objects, those that others need first.
///
/// # Errors
/// Mistakes that the check finds, before anything is applied; then what the server has against an object.
pub async fn apply(admin: &Admin, name: &str, text: &str) -> Result<Vec<Applied>> {
    let objects = validate(name, text).await?;
    let mut keyed = Vec::new();
    for mut document in
        documents(text).with_context(|| format!("{name} is neither YAML nor JSON"))?
    {
        let key = key_of(&document, &objects)?;
        if let Some(namespace) = &key.namespace {
            document["metadata"]["namespace"] = json!(namespace);
        }
        // A status is for its controllers to say.
        if let Some(object) = document.as_object_mut() {
            object.remove("status");
        }
        keyed.push((key, document));
    }
    keyed.sort_by_key(|(key, _)| key.kind);
    let mut applied = Vec::new();
    for (key, document) in keyed {
        let before = version(admin.find(&document).await?);
        let after = version(Some(admin.apply(&document).await?));
        let outcome = match before {
            None => Outcome::Created,
            before if before == after => Outcome::Unchanged,
            Some(_) => Outcome::Configured,
        };
        applied.push(Applied { key, outcome });
    }
    Ok(applied)
}

/// Asks for an object's end. Says so if there is none.
pub async fn delete(admin: &Admin, key: &ObjectKey) -> Result<()> {
    match admin.ask_to_end(&named(key), End::InItsTime).await {
        Ok(true) => Ok(()),
        Ok(false) => bail!("there is no {key} in this lab"),
        Err(error) => Err(error).with_context(|| key.to_string()),
    }
}

/// Gives an object labels and takes others away.
pub async fn label(admin: &Admin, key: &ObjectKey, labels: &Labels) -> Result<()> {
    let said: serde_json::Map<String, Value> = labels
        .0
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let patch = json!({"metadata": {"labels": said}});
    admin.merge(&named(key), &patch).await
}

/// No more of an object than who it is.
pub(crate) fn named(key: &ObjectKey) -> Value {
    let (kind, version) = (key.kind, key.kind.versions()[0]);
    let version = match kind.group() {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    let mut metadata = json!({ "name": key.name });
    if let Some(namespace) = &key.namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({"apiVersion": version, "kind": kind.as_str(), "metadata": metadata})
}

/// Of the Gateway API, which others define.
pub(crate) fn is_defined_by_others(kind: Kind) -> bool {
    kind.group() == "gateway.networking.k8s.io"
}

fn version(object: Option<Value>) -> Option<String> {
    let version = object?["metadata"]["resourceVersion"].take();
    version.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_as_its_group_has_it() {
        let policy = ObjectKey::namespaced(Kind::AuthorizationPolicy, "shop", "deny");
        assert_eq!(
            named(&policy),
            json!({
                "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
                "metadata": {"namespace": "shop", "name": "deny"},
            })
        );
        let node = ObjectKey::cluster_wide(Kind::Node, "node-a");
        assert_eq!(named(&node)["apiVersion"], "v1");
        assert_eq!(named(&node)["metadata"], json!({"name": "node-a"}));
    }
}
