// SPDX-License-Identifier: Apache-2.0
//! Asks the cluster's API server whose a token is (TokenReview), and reads what it says.
//!
//! The server knows what no key set tells: that the token's pod and account were not deleted since.

use std::collections::BTreeMap;

use cluster::{Client, RequestError};
use http::{Request, header};
use serde::Deserialize;
use serde_json::json;

use super::{BoundPod, Caller};

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Whom the group of all service accounts has among its members.
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// Why a token is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    #[error("the API server can't say whose it is: {0}")]
    Request(#[from] RequestError),
    #[error("the API server's answer is not understood: {0}")]
    Answer(#[from] serde_json::Error),
    #[error("the API server does not accept it: {0}")]
    Refused(String),
    #[error("it is for {found:?}, expected one of {expected:?}")]
    Audience {
        found: Vec<String>,
        expected: Vec<String>,
    },
    #[error("it is of {0:?}, which is no service account")]
    NoServiceAccount(String),
    #[error("it is of {0} and not bound to a pod by name and uid")]
    NotBound(String),
}

/// Has tokens reviewed.
#[derive(Clone, Debug)]
pub struct Reviewer {
    client: Client,
    /// One of these must be among the token's.
    audiences: Vec<String>,
}

impl Reviewer {
    /// Tokens must be for one of these audiences.
    pub fn new(client: Client, audiences: Vec<String>) -> Self {
        Self { client, audiences }
    }

    /// Who the bearer of this token is.
    ///
    /// # Errors
    /// Tokens that are not accepted, or of which the server can't be asked.
    pub async fn authenticate(&self, token: &str) -> Result<Caller, ReviewError> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": self.audiences},
        });
        let request = Request::post(PATH)
            .header(header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())
            .expect("broken invariant: the path is constant");
        let review: Review = serde_json::from_value(self.client.call(request).await?)?;
        caller(review.status, &self.audiences)
    }
}

#[derive(Debug, Deserialize)]
struct Review {
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    audiences: Vec<String>,
    error: String,
    user: User,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// What a review's status makes of its token. Pure.
fn caller(status: ReviewStatus, expected: &[String]) -> Result<Caller, ReviewError> {
    if !status.authenticated {
        return Err(ReviewError::Refused(status.error));
    }
    // A server that names none has not looked at them.
    if !status.audiences.iter().any(|one| expected.contains(one)) {
        return Err(ReviewError::Audience {
            found: status.audiences,
            expected: expected.to_vec(),
        });
    }
    let User {
        username,
        groups,
        extra,
    } = status.user;
    let parts: Vec<&str> = username.split(':').collect();
    let ["system", "serviceaccount", namespace, account] = parts[..] else {
        return Err(ReviewError::NoServiceAccount(username));
    };
    if namespace.is_empty() || account.is_empty() || !groups.iter().any(|g| g == SERVICE_ACCOUNTS) {
        return Err(ReviewError::NoServiceAccount(username));
    }
    let said = |key: &str| {
        let values = extra.get(&format!("authentication.kubernetes.io/{key}"))?;
        values.first().filter(|value| !value.is_empty()).cloned()
    };
    let (Some(name), Some(uid)) = (said("pod-name"), said("pod-uid")) else {
        return Err(ReviewError::NotBound(username));
    };
    Ok(Caller {
        namespace: namespace.to_owned(),
        service_account: account.to_owned(),
        pod: BoundPod { name, uid },
        node: said("node-name"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> serde_json::Value {
        json!({
            "authenticated": true, "audiences": ["istio-ca"],
            "user": {
                "username": "system:serviceaccount:istio-system:ztunnel",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": {
                    "authentication.kubernetes.io/pod-name": ["ztunnel-a"],
                    "authentication.kubernetes.io/pod-uid": ["u"],
                    "authentication.kubernetes.io/node-name": ["node-a"],
                },
            },
        })
    }

    fn read(status: serde_json::Value) -> Result<Caller, String> {
        let status = serde_json::from_value(status).expect("a status");
        caller(status, &["istio-ca".to_owned()]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_bound_token_names_its_pod_and_node() {
        let caller = read(good()).expect("accepted");
        assert_eq!(caller.to_string(), "istio-system/ztunnel (pod ztunnel-a)");
        assert_eq!(
            (caller.pod.uid.as_str(), caller.node.as_deref()),
            ("u", Some("node-a"))
        );
    }

    #[test]
    fn whatever_is_missing_is_named() {
        let check = |pointer: &str, value: serde_json::Value, reason: &str| {
            let mut status = good();
            *status.pointer_mut(pointer).expect("a field") = value;
            let error = read(status).expect_err(pointer);
            assert!(error.contains(reason), "{pointer}: {error}");
        };
        let extra = "/user/extra/authentication.kubernetes.io~1";
        check("/authenticated", json!(false), "does not accept");
        check("/audiences", json!([]), "it is for []");
        check(
            "/audiences",
            json!(["https://kubernetes.default.svc"]),
            "it is for",
        );
        check(
            "/user/username",
            json!("system:serviceaccount:a"),
            "no service account",
        );
        check(
            "/user/username",
            json!("system:serviceaccount:a:b:c"),
            "no service account",
        );
        check(
            "/user/username",
            json!("system:serviceaccount::b"),
            "no service account",
        );
        check("/user/username", json!("admin"), "no service account");
        check(
            "/user/groups",
            json!(["system:authenticated"]),
            "no service account",
        );
        check(&format!("{extra}pod-name"), json!([]), "not bound");
        check(&format!("{extra}pod-uid"), json!([""]), "not bound");
    }
}
