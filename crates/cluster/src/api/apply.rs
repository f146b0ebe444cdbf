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

/// Applies what `manager` says of the object with this uid: annotations to the object, all else to its status; a part
/// of which nothing is said is left alone. Objects that are gone, or others under the same name, are none of our business.
pub(crate) async fn apply(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
    uid: &str,
    partial: &Partial,
) -> Result<Written, RequestError> {
    let mut written = Written::Changed;
    if !partial.annotations.is_empty() {
        written = annotate(client, manager, object, uid, &json!(partial.annotations)).await?;
    }
    if written == Written::Changed && !partial.status.is_empty() {
        let status = Value::Object(partial.status.clone());
        let mut metadata = metadata(object, uid);
        if !partial.version.is_empty() {
            metadata["resourceVersion"] = json!(partial.version);
        }
        written = apply_status(client, manager, object, &metadata, status).await?;
    }
    Ok(written)
}

/// Takes back what `manager` said of the object's status.
pub(crate) async fn take_back(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
) -> Result<Written, RequestError> {
    let metadata = metadata(object, "");
    apply_status(client, manager, object, &metadata, json!({})).await
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
        if let Some(written) = answered(client.merge(&path, manager, &patch).await)? {
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
) -> Result<Written, RequestError> {
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
        if let Some(written) = answered(client.apply(&path, manager, &body).await)? {
            return Ok(written);
        }
    }
    Ok(Written::Unchanged)
}

/// What became of it; None where there is no such object in this version.
fn answered(answer: Result<Value, RequestError>) -> Result<Option<Written>, RequestError> {
    match answer {
        Ok(_) => Ok(Some(Written::Changed)),
        Err(error) if error.code() == Some(404) => Ok(None),
        // Another version, or another uid: then it is another object by now.
        Err(error) if error.code() == Some(409) => Ok(Some(Written::Outdated)),
        // The latter, of a patch.
        Err(RequestError::Refused {
            code: 422, message, ..
        }) if message.contains("metadata.uid") => Ok(Some(Written::Outdated)),
        Err(error) => Err(error),
    }
}
