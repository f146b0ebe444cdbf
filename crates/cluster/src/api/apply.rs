// SPDX-License-Identifier: Apache-2.0
//! What one writer says of an object, at an API server: server-side apply under the writer's name. The server merges it
//! with what others say, and takes back what the writer says no more.

use serde_json::{Value, json};

use super::connection::{Client, RequestError};
use super::protocol::Follow;
use crate::object::ObjectKey;
use crate::overlay::Partial;

/// Applies what `manager` says of the object with this uid: annotations to the object, all else to its status; a part
/// of which nothing is said is left alone. Objects that are gone, or others under the same name, are none of our business: false.
pub(crate) async fn apply(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
    uid: &str,
    partial: &Partial,
) -> Result<bool, RequestError> {
    let mut met = true;
    if !partial.annotations.is_empty() {
        let said = json!({ "annotations": partial.annotations });
        met &= patch(
            client,
            manager,
            object,
            "",
            &metadata(object, uid, said),
            None,
        )
        .await?;
    }
    if !partial.status.is_empty() {
        let status = Some(Value::Object(partial.status.clone()));
        let metadata = metadata(object, uid, json!({}));
        met &= patch(client, manager, object, "/status", &metadata, status).await?;
    }
    Ok(met)
}

/// Takes back what `manager` said of the object's status.
pub(crate) async fn take_back(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
) -> Result<bool, RequestError> {
    let metadata = metadata(object, "", json!({}));
    patch(
        client,
        manager,
        object,
        "/status",
        &metadata,
        Some(json!({})),
    )
    .await
}

fn metadata(object: &ObjectKey, uid: &str, mut said: Value) -> Value {
    said["name"] = json!(object.name);
    if let Some(namespace) = &object.namespace {
        said["namespace"] = json!(namespace);
    }
    if !uid.is_empty() {
        said["uid"] = json!(uid);
    }
    said
}

async fn patch(
    client: &Client,
    manager: &str,
    object: &ObjectKey,
    part: &str,
    metadata: &Value,
    status: Option<Value>,
) -> Result<bool, RequestError> {
    let kind = object.kind;
    // Which of the versions is served is not known here; the first that is takes it.
    for version in kind.versions() {
        let path = Follow::all(kind).object_path(version, object);
        let group = kind.group();
        let api_version = match group {
            "" => (*version).to_owned(),
            group => format!("{group}/{version}"),
        };
        let mut body =
            json!({ "apiVersion": api_version, "kind": kind.as_str(), "metadata": metadata });
        if let Some(status) = &status {
            body["status"] = status.clone();
        }
        let path = format!("{path}{part}");
        match client.apply(&path, manager, &body).await {
            Ok(_) => return Ok(true),
            Err(error) if error.code() == Some(404) => {}
            // Another uid: it is another object by now, of which the next look tells.
            Err(error) if error.code() == Some(409) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
