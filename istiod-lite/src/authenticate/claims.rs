// SPDX-License-Identifier: Apache-2.0
//! The claims of a token whose signature is good: are they meant for us, now, and for which pod. Pure.
//!
//! Bound service-account tokens as Kubernetes issues them (page "Managing Service Accounts").

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use super::{BoundPod, Caller};

/// What a token must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub issuer: String,
    /// One of these must be among the token's.
    pub audiences: Vec<String>,
    /// How far clocks may be apart.
    pub leeway: Duration,
}

impl Expected {
    pub const DEFAULT_LEEWAY: Duration = Duration::from_secs(60);
}

/// The claims as they come.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Claims {
    iss: Option<String>,
    #[serde(default)]
    aud: Audience,
    sub: Option<String>,
    exp: Option<f64>,
    nbf: Option<f64>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Kubernetes>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Default for Audience {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Audience {
    fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Kubernetes {
    namespace: Option<String>,
    serviceaccount: Option<Reference>,
    pod: Option<Reference>,
    node: Option<Reference>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Reference {
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
}

/// Why the claims don't do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClaimsError {
    #[error("issuer is {found:?}, expected {expected:?}")]
    Issuer {
        found: Option<String>,
        expected: String,
    },
    #[error("audiences are {found:?}, expected one of {expected:?}")]
    Audience {
        found: Vec<String>,
        expected: Vec<String>,
    },
    #[error("has no expiry")]
    NoExpiry,
    #[error("expired at {0} (seconds since 1970)")]
    Expired(f64),
    #[error("is not valid before {0} (seconds since 1970)")]
    NotYetValid(f64),
    #[error("subject is {0:?}, expected system:serviceaccount:<namespace>:<name>")]
    Subject(Option<String>),
    #[error(
        "subject {subject:?} and the claim kubernetes.io ({namespace:?}, {service_account:?}) contradict each other"
    )]
    Contradiction {
        subject: String,
        namespace: Option<String>,
        service_account: Option<String>,
    },
    #[error("of {namespace}/{service_account} is not bound to a pod by name and uid")]
    NotBound {
        namespace: String,
        service_account: String,
    },
}

/// Who the token speaks for.
pub(super) fn caller(
    claims: Claims,
    expected: &Expected,
    now: SystemTime,
) -> Result<Caller, ClaimsError> {
    if claims.iss.as_ref() != Some(&expected.issuer) {
        return Err(ClaimsError::Issuer {
            found: claims.iss,
            expected: expected.issuer.clone(),
        });
    }
    if !claims
        .aud
        .names()
        .iter()
        .any(|name| expected.audiences.contains(name))
    {
        return Err(ClaimsError::Audience {
            found: claims.aud.names().to_vec(),
            expected: expected.audiences.clone(),
        });
    }
    check_time(&claims, expected.leeway, now)?;
    let Some((namespace, service_account)) = claims.sub.as_deref().and_then(split_subject) else {
        return Err(ClaimsError::Subject(claims.sub));
    };
    let (namespace, service_account) = (namespace.to_owned(), service_account.to_owned());
    let Some(kubernetes) = claims.kubernetes else {
        return Err(ClaimsError::NotBound {
            namespace,
            service_account,
        });
    };
    let stated_account = kubernetes.serviceaccount.map(|account| account.name);
    if kubernetes.namespace.as_ref() != Some(&namespace)
        || stated_account.as_ref() != Some(&service_account)
    {
        return Err(ClaimsError::Contradiction {
            subject: claims.sub.unwrap_or_default(),
            namespace: kubernetes.namespace,
            service_account: stated_account,
        });
    }
    match kubernetes.pod {
        Some(Reference { name, uid }) if !name.is_empty() && !uid.is_empty() => Ok(Caller {
            namespace,
            service_account,
            pod: BoundPod { name, uid },
            node: kubernetes
                .node
                .map(|node| node.name)
                .filter(|name| !name.is_empty()),
        }),
        _ => Err(ClaimsError::NotBound {
            namespace,
            service_account,
        }),
    }
}

fn check_time(claims: &Claims, leeway: Duration, now: SystemTime) -> Result<(), ClaimsError> {
    let now = now
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
    let leeway = leeway.as_secs_f64();
    match claims.exp {
        None => return Err(ClaimsError::NoExpiry),
        Some(expiry) if expiry + leeway <= now => return Err(ClaimsError::Expired(expiry)),
        Some(_) => {}
    }
    match claims.nbf {
        Some(not_before) if not_before - leeway > now => Err(ClaimsError::NotYetValid(not_before)),
        _ => Ok(()),
    }
}

fn split_subject(subject: &str) -> Option<(&str, &str)> {
    let mut parts = subject.strip_prefix("system:serviceaccount:")?.split(':');
    let (namespace, name) = (parts.next()?, parts.next()?);
    (parts.next().is_none() && !namespace.is_empty() && !name.is_empty())
        .then_some((namespace, name))
}
