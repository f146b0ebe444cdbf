// SPDX-License-Identifier: Apache-2.0
//! What one writer says of an object, at an API server. Status by server-side apply under the writer's name: the server
//! merges it with what others say, and takes back what the writer says no more. Annotations by a merge patch, which needs
//! no word of who said them before, and never makes an object that is gone.

use serde_json::{Value, json};

use super::connection::{Client, RequestError};
use super::protocol::Follow;
use crate::object::{Kind, ObjectKey};
use crate::overlay::Partial;
use crate::status::Written;

/// What became of an object that something was applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) written: Written,
    /// What its definition takes conditions for, if that shows.
    pub(crate) conditions: Option<List>,
}

/// What a list is to an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// One value: whoever says it says all of it.
    Whole,
    /// Of entries that have writers of their own.
    Keyed,
}

impl From<Written> for Applied {
    fn from(written: Written) -> Self {
        Self {
            written,
            conditions: None,
        }
    }
}

/// Applies what `manager` says of the object with this uid: annotations to the object, all else to its status; a part
/// of which nothing is said is left alone. Objects that are gone, or others under the same name, are none of our business.
pub(crate) async fn apply(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
    uid: &str,
    partial: &Partial,
) -> Result<Applied, RequestError> {
    let mut applied = Applied::from(Written::Changed);
    if !partial.annotations.is_empty() {
        let said = json!(partial.annotations);
        applied = annotate(client, manager, object, uid, &said).await?.into();
    }
    if applied.written == Written::Changed && !partial.status.is_empty() {
        let status = Value::Object(partial.status.clone());
        let mut metadata = metadata(object, uid);
        if !partial.version.is_empty() {
            metadata["resourceVersion"] = json!(partial.version);
        }
        applied = apply_status(client, manager, object, &metadata, status).await?;
    }
    Ok(applied)
}

/// Takes back what `manager` said of the object's status.
pub(crate) async fn take_back(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
) -> Result<Written, RequestError> {
    let metadata = metadata(object, "");
    let applied = apply_status(client, manager, object, &metadata, json!({})).await?;
    Ok(applied.written)
}

/// Sets annotations of the object with this uid, and removes those that are `null`. Of objects as in [`apply`].
pub(crate) async fn annotate(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
    uid: &str,
    annotations: &Value,
) -> Result<Written, RequestError> {
    let patch = json!({ "metadata": { "uid": uid, "annotations": annotations } });
    // By way of its status, which pods allow: whoever has no other right can't change what runs in them.
    let part = match object.kind {
        Kind::Pod => "/status",
        _ => "",
    };
    for version in object.kind.versions() {
        let path = Follow::all(object.kind).object_path(version, object) + part;
        if let Some((written, _)) = answered(client.merge(&path, manager, &patch).await)? {
            return Ok(written);
        }
    }
    Ok(Written::Unchanged)
}

fn metadata(object: &ObjectKey, uid: &str) -> Value {
    let mut said = json!({ "name": object.name });
    if let Some(namespace) = &object.namespace {
        said["namespace"] = json!(namespace);
    }
    if !uid.is_empty() {
        said["uid"] = json!(uid);
    }
    said
}

async fn apply_status(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
    metadata: &Value,
    status: Value,
) -> Result<Applied, RequestError> {
    let kind = object.kind;
    // Which of the versions is served is not known here; the first that is takes it.
    for version in kind.versions() {
        let path = Follow::all(kind).object_path(version, object);
        let group = kind.group();
        let api_version = match group {
            "" => (*version).to_owned(),
            group => format!("{group}/{version}"),
        };
        let body = json!({
            "apiVersion": api_version, "kind": kind.as_str(), "metadata": metadata, "status": status,
        });
        let path = format!("{path}/status");
        if let Some((written, now)) = answered(client.apply(&path, manager, &body).await)? {
            return Ok(Applied {
                written,
                conditions: conditions_of(&now, manager),
            });
        }
    }
    Ok(Written::Unchanged.into())
}

/// Whether the conditions of a writer are its own, or the list is: by what the server has noted of who wrote what.
fn conditions_of(object: &Value, manager: &str) -> Option<List> {
    let fields = object["metadata"]["managedFields"].as_array()?;
    let mut own = fields.iter().filter(|of| of["manager"] == manager);
    let owned = own.find_map(|of| of["fieldsV1"]["f:status"]["f:conditions"].as_object())?;
    Some(match owned.keys().any(|key| key.starts_with("k:")) {
        true => List::Keyed,
        false => List::Whole,
    })
}

/// What became of it, and what it is now; None where there is no such object in this version.
fn answered(answer: Result<Value, RequestError>) -> Result<Option<(Written, Value)>, RequestError> {
    let outdated = Some((Written::Outdated, Value::Null));
    match answer {
        Ok(now) => Ok(Some((Written::Changed, now))),
        Err(error) if error.code() == Some(404) => Ok(None),
        // Another version, or another uid: then it is another object by now.
        Err(error) if error.code() == Some(409) => Ok(outdated),
        // The latter, of a patch.
        Err(RequestError::Refused {
            code: 422, message, ..
        }) if message.contains("metadata.uid") => Ok(outdated),
        Err(error) => Err(error),
    }
}
