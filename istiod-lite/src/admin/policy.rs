// SPDX-License-Identifier: Apache-2.0
//! `POST /debug/policy`: an AuthorizationPolicy that is not in force, as proxies would be told it and for whom. So that they can
//! try it out on the traffic that they remember; nothing is kept of it here.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use cluster::kinds;
use http::StatusCode;
use ops::admin::{AdminRequest, AdminResponse, json, text};
use prost::Message as _;
use serde_json::{Value, json as object};

use crate::{
    controller::State,
    index::Index,
    translate::policy::{self, TargetKey},
};

pub(super) fn page(state: &State, request: &AdminRequest) -> AdminResponse {
    match described(&state.index.read(), &request.body) {
        Ok(answer) => json(&answer),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}

/// What is told of a policy, written in YAML or JSON.
fn described(index: &Index, body: &[u8]) -> Result<Value, String> {
    let written = std::str::from_utf8(body).map_err(|_| "the policy is not UTF-8".to_owned())?;
    let kind: Value =
        serde_saphyr::from_str(written).map_err(|error| format!("the policy: {error}"))?;
    if kind["kind"] != "AuthorizationPolicy" {
        return Err(format!("kind is {}, not AuthorizationPolicy", kind["kind"]));
    }
    let written: kinds::AuthorizationPolicy =
        serde_json::from_value(kind).map_err(|error| format!("the policy: {error}"))?;
    let meta = &written.metadata;
    let (namespace, name) = (
        named(&meta.namespace, "namespace")?,
        named(&meta.name, "name")?,
    );
    let read = policy::translate(&written, index.root_namespace());
    let facts = &read.facts;
    let problems: Vec<String> = read.problems.iter().map(ToString::to_string).collect();
    let ztunnel = facts.authorization.as_ref().map(|sent| {
        object!({
            "authorization": BASE64.encode(sent.encode_to_vec()),
            "workloads": index.pods_chosen_by(namespace, &facts.reach),
        })
    });
    let waypoint = facts.for_waypoints.as_ref().map(|sent| {
        let keys = || facts.targets.iter().filter_map(|one| one.key.as_ref().ok());
        let is_whole = |key: &TargetKey| matches!(key, TargetKey::Gateway(_) | TargetKey::Class(_));
        let services = keys().flat_map(|key| index.services_of(key));
        object!({
            "policy": BASE64.encode(sent.encode_to_vec()),
            // All that the waypoints serve that are asked, or these of their services.
            "all": keys().any(is_whole),
            "services": services.collect::<Vec<_>>(),
        })
    });
    Ok(object!({
        "policy": format!("{namespace}/{name}"),
        "ztunnel": ztunnel,
        "waypoint": waypoint,
        "problems": problems,
    }))
}

fn named<'t>(text: &'t Option<String>, field: &str) -> Result<&'t str, String> {
    let text = text.as_deref().filter(|text| !text.is_empty());
    text.ok_or_else(|| format!("metadata.{field} is missing"))
}
