// SPDX-License-Identifier: Apache-2.0
//! `/debug/dry-run`: what policies would have done to what was asked for in the last minutes. GET asks for those that are
//! marked as dry run; POST brings one that is not in force, as the control plane would tell it.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{Method, StatusCode};
use ops::admin::{AdminRequest, AdminResponse, json, text};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::authz::Policy;
use crate::memory::trial::{Candidates, Trials, try_out};
use crate::waypoint::Waypoint;

/// A policy that is not in force.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Given {
    /// Base64 of a `culvert.waypoint.Policy`.
    policy: String,
    /// Whether it is for all that is served here.
    #[serde(default)]
    all: bool,
    /// Else for these, "namespace/host name".
    #[serde(default)]
    services: Vec<String>,
}

#[derive(Serialize)]
struct Answer {
    minutes: u64,
    policies: Trials,
}

pub(super) fn page(waypoint: &Waypoint, request: &AdminRequest) -> AdminResponse {
    let candidates = match request.method {
        Method::POST => match given(&request.body) {
            Ok(candidates) => candidates,
            Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}\n")),
        },
        _ => Candidates::Marked,
    };
    json(&Answer {
        minutes: mesh::recent::MINUTES,
        policies: try_out(&waypoint.memory, &waypoint.state, &candidates),
    })
}

fn given(body: &[u8]) -> Result<Candidates, String> {
    let given: Given = serde_json::from_slice(body).map_err(|error| format!("body: {error}"))?;
    let bytes = BASE64.decode(given.policy);
    let bytes = bytes.map_err(|error| format!("policy: {error}"))?;
    let message = proto::waypoint::Policy::decode(&*bytes);
    let message = message.map_err(|error| format!("policy: {error}"))?;
    Ok(Candidates::Given {
        policy: Policy::compile(&message).map_err(|error| error.to_string())?,
        services: (!given.all).then_some(given.services),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_taken_as_the_control_plane_would_tell_it() {
        let message = proto::waypoint::Policy {
            name: "p".into(),
            namespace: "shop".into(),
            ..Default::default()
        };
        let encoded = BASE64.encode(message.encode_to_vec());
        let body = format!(r#"{{"policy": "{encoded}", "services": ["shop/a"]}}"#);
        let Ok(Candidates::Given { policy, services }) = given(body.as_bytes()) else {
            panic!("{body} is one");
        };
        assert_eq!(
            (policy.name(), services),
            ("shop/p", Some(vec!["shop/a".into()]))
        );
        for (body, why) in [
            ("{", "body: EOF"),
            (r#"{"policy": "%"}"#, "policy: "),
            (r#"{"policy": "AAAA"}"#, "policy: "),
            (r#"{"policy": ""}"#, "a policy has no name"),
        ] {
            let error = given(body.as_bytes()).err().unwrap();
            assert!(error.starts_with(why), "{body}: {error}");
        }
    }
}
