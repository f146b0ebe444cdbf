// SPDX-License-Identifier: Apache-2.0
//! Who may speak: trust domains and SPIFFE ids.
//!
//! A workload's identity is the URI `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`, the form that
//! Istio puts into the one URI SAN of each workload certificate. This crate parses it, prints it and compares it;
//! it knows nothing of certificates or Kubernetes.
//!
//! Parsing is strict, since an identity that two programs read differently is a hole: exactly these five parts, each
//! non-empty, drawn from the characters that SPIFFE and Kubernetes permit, 2,048 bytes at most.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest id accepted, in bytes (SPIFFE-ID §2.3).
pub const MAX_LEN: usize = 2048;

const SCHEME: &str = "spiffe://";
const NAMESPACE_MARK: &str = "/ns/";
const ACCOUNT_MARK: &str = "/sa/";

/// Why a text is no trust domain or no workload identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeError {
    /// The URI has another scheme, or none.
    #[error("identity {0:?} does not start with spiffe://")]
    Scheme(String),
    /// The path is not `/ns/<namespace>/sa/<service account>`.
    #[error(
        "identity {0:?} is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<service account>"
    )]
    Form(String),
    /// A part is empty or holds a character that it must not hold.
    #[error("{part} {value:?} is {problem}")]
    Part {
        /// Which part: trust domain, namespace or service account.
        part: &'static str,
        /// What it was.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The whole id is longer than [`MAX_LEN`].
    #[error("identity is {0} bytes long, more than {MAX_LEN}")]
    TooLong(usize),
}

/// The realm that one root of trust speaks for, such as `cluster.local`.
///
/// One to 255 characters of `a-z`, `0-9`, `.`, `-`, `_` (SPIFFE-ID §2.1).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TrustDomain(Arc<str>);

impl TrustDomain {
    /// The domain meant where a mesh names none (Istio: `meshConfig.trustDomain`).
    pub const DEFAULT: &'static str = "cluster.local";

    /// The domain as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TrustDomain {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl FromStr for TrustDomain {
    type Err = SpiffeError;

    fn from_str(text: &str) -> Result<Self, SpiffeError> {
        check_part(
            "trust domain",
            text,
            255,
            |c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'),
        )?;
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for TrustDomain {
    type Error = SpiffeError;

    fn try_from(text: String) -> Result<Self, SpiffeError> {
        text.parse()
    }
}

impl From<TrustDomain> for String {
    fn from(domain: TrustDomain) -> Self {
        domain.0.as_ref().into()
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The identity of a workload; cloning it copies one pointer.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SpiffeId {
    uri: Arc<str>,
    trust_domain_end: u16,
    namespace_end: u16,
}

impl SpiffeId {
    /// Builds the identity of a service account.
    ///
    /// # Errors
    /// Names the part that is empty or holds a character that it must not hold.
    pub fn new(
        trust_domain: &TrustDomain,
        namespace: &str,
        service_account: &str,
    ) -> Result<Self, SpiffeError> {
        check_path_segment("namespace", namespace)?;
        check_path_segment("service account", service_account)?;
        let uri = format!(
            "{SCHEME}{trust_domain}{NAMESPACE_MARK}{namespace}{ACCOUNT_MARK}{service_account}"
        );
        if uri.len() > MAX_LEN {
            return Err(SpiffeError::TooLong(uri.len()));
        }
        let trust_domain_end = SCHEME.len() + trust_domain.as_str().len();
        let namespace_end = trust_domain_end + NAMESPACE_MARK.len() + namespace.len();
        Ok(Self {
            uri: uri.into(),
            trust_domain_end: offset(trust_domain_end),
            namespace_end: offset(namespace_end),
        })
    }

    /// The whole URI.
    pub fn as_str(&self) -> &str {
        &self.uri
    }

    /// The id without its scheme: what an authorization policy calls a principal.
    pub fn principal(&self) -> &str {
        &self.uri[SCHEME.len()..]
    }

    /// The trust domain's name.
    pub fn trust_domain(&self) -> &str {
        &self.uri[SCHEME.len()..self.trust_domain_end.into()]
    }

    /// The Kubernetes namespace.
    pub fn namespace(&self) -> &str {
        let start = usize::from(self.trust_domain_end) + NAMESPACE_MARK.len();
        &self.uri[start..self.namespace_end.into()]
    }

    /// The Kubernetes service account.
    pub fn service_account(&self) -> &str {
        &self.uri[usize::from(self.namespace_end) + ACCOUNT_MARK.len()..]
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeError;

    fn from_str(uri: &str) -> Result<Self, SpiffeError> {
        if uri.len() > MAX_LEN {
            return Err(SpiffeError::TooLong(uri.len()));
        }
        let rest = uri
            .strip_prefix(SCHEME)
            .ok_or_else(|| SpiffeError::Scheme(uri.into()))?;
        let mut parts = rest.split('/');
        let form = || SpiffeError::Form(uri.into());
        let (Some(domain), Some("ns"), Some(namespace), Some("sa"), Some(account), None) = (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) else {
            return Err(form());
        };
        Self::new(&domain.parse()?, namespace, account)
    }
}

impl TryFrom<String> for SpiffeId {
    type Error = SpiffeError;

    fn try_from(uri: String) -> Result<Self, SpiffeError> {
        uri.parse()
    }
}

impl From<SpiffeId> for String {
    fn from(id: SpiffeId) -> Self {
        id.uri.as_ref().into()
    }
}

// The offsets follow from the URI, so that it alone decides equality, order and hash.
impl PartialEq for SpiffeId {
    fn eq(&self, other: &Self) -> bool {
        self.uri == other.uri
    }
}

impl Eq for SpiffeId {}

impl PartialOrd for SpiffeId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SpiffeId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.uri.cmp(&other.uri)
    }
}

impl std::hash::Hash for SpiffeId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.uri.hash(state);
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri)
    }
}

impl fmt::Debug for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

fn offset(at: usize) -> u16 {
    u16::try_from(at).expect("an id is at most 2,048 bytes long")
}

fn check_path_segment(part: &'static str, value: &str) -> Result<(), SpiffeError> {
    check_part(
        part,
        value,
        MAX_LEN,
        |c| matches!(c, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_'),
    )?;
    // SPIFFE-ID §2.2: dot segments would let one path mean another.
    if matches!(value, "." | "..") {
        return Err(SpiffeError::Part {
            part,
            value: value.into(),
            problem: "a relative path segment",
        });
    }
    Ok(())
}

fn check_part(
    part: &'static str,
    value: &str,
    longest: usize,
    allowed: fn(u8) -> bool,
) -> Result<(), SpiffeError> {
    let problem = if value.is_empty() {
        "empty"
    } else if value.len() > longest {
        "too long"
    } else if !value.bytes().all(allowed) {
        "made of characters that are not allowed there"
    } else {
        return Ok(());
    };
    Err(SpiffeError::Part {
        part,
        value: value.chars().take(64).collect(),
        problem,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> Result<SpiffeId, SpiffeError> {
        text.parse()
    }

    #[test]
    fn parts_of_a_well_formed_id_are_read_back() {
        let id = id("spiffe://cluster.local/ns/shop/sa/cart-v1.2").unwrap();
        assert_eq!(id.trust_domain(), "cluster.local");
        assert_eq!(id.namespace(), "shop");
        assert_eq!(id.service_account(), "cart-v1.2");
        assert_eq!(id.principal(), "cluster.local/ns/shop/sa/cart-v1.2");
        assert_eq!(
            id.to_string(),
            "spiffe://cluster.local/ns/shop/sa/cart-v1.2"
        );
    }

    #[test]
    fn everything_but_the_exact_form_is_refused() {
        for (text, want) in [
            ("", "does not start with spiffe://"),
            (
                "https://cluster.local/ns/a/sa/b",
                "does not start with spiffe://",
            ),
            (
                "SPIFFE://cluster.local/ns/a/sa/b",
                "does not start with spiffe://",
            ),
            ("spiffe://cluster.local", "is not of the form"),
            ("spiffe://cluster.local/ns/a/sa", "is not of the form"),
            ("spiffe://cluster.local/ns/a/sa/b/", "is not of the form"),
            ("spiffe://cluster.local/ns/a/sa/b/c", "is not of the form"),
            ("spiffe://cluster.local/sa/a/ns/b", "is not of the form"),
            ("spiffe:///ns/a/sa/b", "trust domain \"\" is empty"),
            ("spiffe://td/ns//sa/b", "namespace \"\" is empty"),
            ("spiffe://td/ns/a/sa/", "service account \"\" is empty"),
            (
                "spiffe://TD/ns/a/sa/b",
                "trust domain \"TD\" is made of characters",
            ),
            (
                "spiffe://td:1/ns/a/sa/b",
                "trust domain \"td:1\" is made of characters",
            ),
            (
                "spiffe://td/ns/a%2f/sa/b",
                "namespace \"a%2f\" is made of characters",
            ),
            (
                "spiffe://td/ns/../sa/b",
                "namespace \"..\" is a relative path segment",
            ),
            (
                "spiffe://td/ns/a/sa/b?x",
                "service account \"b?x\" is made of characters",
            ),
        ] {
            let error = id(text).expect_err(text).to_string();
            assert!(error.contains(want), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_id_of_more_than_2048_bytes_is_refused() {
        let long = format!("spiffe://td/ns/{}/sa/b", "n".repeat(MAX_LEN));
        assert_eq!(id(&long), Err(SpiffeError::TooLong(long.len())));
        let parts = SpiffeId::new(&TrustDomain::default(), &"n".repeat(2040), "b");
        assert!(matches!(parts, Err(SpiffeError::TooLong(_))), "{parts:?}");
    }

    #[test]
    fn json_carries_the_uri_and_refuses_a_bad_one() {
        let id = id("spiffe://td/ns/a/sa/b").unwrap();
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, "\"spiffe://td/ns/a/sa/b\"");
        assert_eq!(serde_json::from_str::<SpiffeId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<SpiffeId>("\"spiffe://td\"").is_err());
    }

    proptest! {
        #[test]
        fn what_is_built_is_read_back(td in "[a-z0-9._-]{1,40}", ns in "[a-z0-9-]{1,63}", sa in "[a-zA-Z0-9_-]{1,63}") {
            let built = SpiffeId::new(&td.parse().unwrap(), &ns, &sa).unwrap();
            let read: SpiffeId = built.as_str().parse().unwrap();
            prop_assert_eq!(&read, &built);
            prop_assert_eq!((read.trust_domain(), read.namespace(), read.service_account()), (&*td, &*ns, &*sa));
        }

        #[test]
        fn no_text_panics_and_what_is_accepted_prints_as_it_was(text in "\\PC{0,80}|spiffe://[a-zA-Z/.:]{0,60}") {
            if let Ok(read) = text.parse::<SpiffeId>() {
                prop_assert_eq!(read.to_string(), text);
            }
        }
    }
}
