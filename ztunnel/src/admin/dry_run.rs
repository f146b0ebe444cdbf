// SPDX-License-Identifier: Apache-2.0
//! `/debug/dry-run`: what policies would have done to the connections of the last minutes. GET asks for those that are marked
//! as dry run; POST brings one that is not in force, as the control plane would tell it.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{Method, StatusCode};
use mesh::{PolicyBatch, Update};
use ops::admin::{AdminRequest, AdminResponse, json, text};
use serde::{Deserialize, Serialize};

use crate::proxy::Proxies;
use crate::trial::{Candidates, Trials};

/// A policy that is not in force.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Given {
    /// Base64 of an `istio.security.Authorization`.
    authorization: String,
    /// Uids of the workloads that it chooses, where it chooses any.
    #[serde(default)]
    workloads: Vec<String>,
}

#[derive(Serialize)]
struct Answer {
    minutes: u64,
    policies: Trials,
}

pub(super) fn page(proxies: &Proxies, request: &AdminRequest) -> AdminResponse {
    let candidates = match request.method {
        Method::POST => match given(&request.body) {
            Ok(candidates) => candidates,
            Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}\n")),
        },
        _ => Candidates::Marked,
    };
    json(&Answer {
        minutes: mesh::recent::MINUTES,
        policies: proxies.try_out(&candidates).told(),
    })
}

fn given(body: &[u8]) -> Result<Candidates, String> {
    let given: Given = serde_json::from_slice(body).map_err(|error| format!("body: {error}"))?;
    let bytes = BASE64.decode(given.authorization);
    let bytes = bytes.map_err(|error| format!("authorization: {error}"))?;
    let update = Update {
        name: &"given".into(),
        body: &bytes,
    };
    let (batch, refused) = PolicyBatch::decode([update], Vec::new());
    if let Some(refused) = refused.into_iter().next() {
        return Err(format!("authorization: {}", refused.reason));
    }
    let policy = batch.policies.into_iter().next();
    let (_, policy) = policy.ok_or("authorization: there is none")?;
    Ok(Candidates::Given {
        policy: Arc::new(policy),
        workloads: given.workloads,
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use proto::security::Authorization;

    use super::*;

    #[test]
    fn a_policy_is_taken_as_the_control_plane_would_tell_it() {
        let message = Authorization {
            name: "p".into(),
            namespace: "shop".into(),
            ..Authorization::default()
        };
        let encoded = BASE64.encode(message.encode_to_vec());
        let body = format!(r#"{{"authorization": "{encoded}", "workloads": ["a"]}}"#);
        let Ok(Candidates::Given { policy, workloads }) = given(body.as_bytes()) else {
            panic!("{body} is one");
        };
        assert_eq!(&*policy.key(), "shop/p");
        assert_eq!(workloads, ["a"]);
        for (body, why) in [
            ("{", "body: EOF"),
            (r#"{"authorization": "%"}"#, "authorization: "),
            (r#"{"authorization": "AAAA"}"#, "authorization: "),
            (
                r#"{"authorization": "", "other": 1}"#,
                "body: unknown field",
            ),
        ] {
            let error = given(body.as_bytes()).unwrap_err();
            assert!(error.starts_with(why), "{body}: {error}");
        }
    }
}
