// SPDX-License-Identifier: Apache-2.0
//! What is asked of an API server for one kind, and what its answers say. Pure.
//!
//! ```text
//! GET /api/v1/pods?watch=1&sendInitialEvents=true…   ADDED … ADDED, BOOKMARK (that was all), then what happens
//! GET /api/v1/pods?watch=1&resourceVersion=7…        what happened since 7
//! GET /api/v1/pods?limit=250&continue=…              a page of the list, for servers that cannot stream it
//! ```

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::connection::{Refusal, RequestError};
use crate::object::{Kind, ObjectKey};

/// An ask to end a watch by itself after this many seconds, so that the load of many clients spreads.
const WATCH_SECONDS: u64 = 300;
/// Marks the bookmark after the last object that was there before the watch.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Which objects of a kind are followed, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follow {
    pub(crate) kind: Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) fields: Option<String>,
    pub(crate) labels: Option<String>,
    pub(crate) parts: Parts,
}

/// How much of an object is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    All,
    Metadata,
}

impl Follow {
    /// All objects of a kind.
    pub fn all(kind: Kind) -> Self {
        Self {
            kind,
            namespace: None,
            fields: None,
            labels: None,
            parts: Parts::All,
        }
    }

    /// All objects of a kind, of which only the metadata is needed: spec and status stay empty.
    pub fn metadata(kind: Kind) -> Self {
        Self {
            parts: Parts::Metadata,
            ..Self::all(kind)
        }
    }

    /// Those of one namespace, which is a lesser right than to look into all of them.
    pub fn within(self, namespace: impl Into<String>) -> Self {
        Self {
            namespace: Some(namespace.into()),
            ..self
        }
    }

    /// Those that a field selector chooses, as in `spec.nodeName=a`.
    pub fn only(self, fields: impl Into<String>) -> Self {
        Self {
            fields: Some(fields.into()),
            ..self
        }
    }

    /// Those that a label selector chooses, as in `app=web`. Who loses the label counts as deleted.
    pub fn labelled(self, labels: impl Into<String>) -> Self {
        Self {
            labels: Some(labels.into()),
            ..self
        }
    }

    /// The path of one of its objects, in the first version that is understood.
    pub fn object(&self, object: &ObjectKey) -> String {
        self.object_path(self.kind.versions()[0], object)
    }
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since<'a> {
    /// With all that is there.
    Everything,
    /// With what happened after this version of the list.
    Version(&'a str),
}

impl Follow {
    /// The path of the kind's objects in one version of its group.
    pub(crate) fn path(&self, version: &str) -> String {
        let (group, plural) = (group_path(self.kind, version), self.kind.plural());
        match &self.namespace {
            Some(namespace) => format!("{group}/namespaces/{}/{plural}", escaped(namespace)),
            None => format!("{group}/{plural}"),
        }
    }

    /// The path of one object. Its name and namespace are those of an object that the server knows.
    pub(crate) fn object_path(&self, version: &str, object: &ObjectKey) -> String {
        let group = group_path(self.kind, version);
        let (plural, name) = (self.kind.plural(), escaped(&object.name));
        match &object.namespace {
            Some(namespace) => format!("{group}/namespaces/{}/{plural}/{name}", escaped(namespace)),
            None => format!("{group}/{plural}/{name}"),
        }
    }

    pub(crate) fn accept(&self) -> &'static str {
        match self.parts {
            Parts::All => "application/json",
            Parts::Metadata => METADATA,
        }
    }

    pub(crate) fn list_accept(&self) -> &'static str {
        match self.parts {
            Parts::All => "application/json",
            Parts::Metadata => {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
            }
        }
    }

    pub(crate) fn watch(&self, version: &str, since: Since<'_>) -> String {
        let path = self.path(version);
        let since = match since {
            Since::Everything => {
                "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned()
            }
            Since::Version(version) => format!("&resourceVersion={}", escaped(version)),
        };
        let fields = self.selector();
        format!(
            "{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}{since}{fields}"
        )
    }

    pub(crate) fn list(&self, version: &str, limit: usize, next: Option<&str>) -> String {
        let path = self.path(version);
        let next = next.map_or_else(String::new, |next| format!("&continue={}", escaped(next)));
        format!("{path}?limit={limit}{next}{}", self.selector())
    }

    fn selector(&self) -> String {
        let part = |name: &str, selector: Option<&str>| {
            selector.map_or_else(String::new, |selector| {
                format!("&{name}={}", escaped(selector))
            })
        };
        part("fieldSelector", self.fields.as_deref())
            + &part("labelSelector", self.labels.as_deref())
    }
}

/// Of one object.
pub(crate) const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// The path of a version of a kind's group.
pub(crate) fn group_path(kind: Kind, version: &str) -> String {
    match kind.group() {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    }
}

/// The definition of a kind that comes with a custom resource; none for those that every server has.
pub(crate) fn definition_path(kind: Kind) -> Option<String> {
    let built_in = matches!(
        kind.group(),
        "" | "apps" | "autoscaling" | "discovery.k8s.io" | "policy"
    );
    (!built_in).then(|| {
        format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}.{}",
            kind.plural(),
            kind.group()
        )
    })
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// One line of a watch.
#[derive(Debug)]
pub(crate) enum Line<'a> {
    /// An object as it is now.
    Object {
        json: &'a str,
        version: String,
    },
    Gone {
        json: &'a str,
        version: String,
    },
    /// Nothing happened up to this version.
    Bookmark {
        version: String,
        /// All that was there before the watch has been told.
        complete: bool,
    },
    /// The watch ends.
    Refused(RequestError),
    /// Of a kind that a later server may send.
    Unknown(String),
}

#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Only what the protocol needs of an object; the rest may be malformed.
#[derive(Default, Deserialize)]
struct Envelope {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
    annotations: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Reads one line of a watch.
///
/// # Errors
/// What is no line of a watch at all.
pub(crate) fn line(text: &str) -> Result<Line<'_>, RequestError> {
    let line: WatchLine<'_> = serde_json::from_str(text).map_err(undecodable)?;
    let json = line.object.get();
    if line.kind == "ERROR" {
        let refusal: Refusal = serde_json::from_str(json).map_err(undecodable)?;
        return Ok(Line::Refused(refusal.into()));
    }
    let Envelope { metadata } = serde_json::from_str(json).map_err(undecodable)?;
    let version = metadata.resource_version;
    Ok(match &*line.kind {
        "ADDED" | "MODIFIED" => Line::Object { json, version },
        "DELETED" => Line::Gone { json, version },
        "BOOKMARK" => Line::Bookmark {
            complete: metadata
                .annotations
                .is_some_and(|all| all.get(INITIAL_EVENTS_END).is_some_and(|end| end == "true")),
            version,
        },
        other => Line::Unknown(other.to_owned()),
    })
}

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    pub(crate) items: Vec<&'a RawValue>,
    /// The version of the whole list.
    pub(crate) version: String,
    /// Where the next page begins.
    pub(crate) next: Option<String>,
}

/// Reads a page of a list.
///
/// # Errors
/// What is no list.
pub(crate) fn page(text: &[u8]) -> Result<Page<'_>, RequestError> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(default)]
        metadata: Metadata,
        #[serde(borrow, default)]
        items: Option<Vec<&'a RawValue>>,
    }
    let list: List<'_> = serde_json::from_slice(text).map_err(undecodable)?;
    Ok(Page {
        items: list.items.unwrap_or_default(),
        version: list.metadata.resource_version,
        next: list.metadata.next.filter(|next| !next.is_empty()),
    })
}

/// Whether a version of a group has the kind, by the group's own account.
pub(crate) fn serves(kind: Kind, text: &[u8]) -> Result<bool, RequestError> {
    #[derive(Deserialize)]
    struct Resources {
        #[serde(default)]
        resources: Vec<Resource>,
    }
    #[derive(Deserialize)]
    struct Resource {
        name: String,
    }
    let list: Resources = serde_json::from_slice(text).map_err(undecodable)?;
    Ok(list.resources.iter().any(|one| one.name == kind.plural()))
}

fn undecodable(error: serde_json::Error) -> RequestError {
    RequestError::Broken(format!("the answer is not understood: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_what_is_followed() {
        let pods = Follow::all(Kind::Pod).only("spec.nodeName=a b");
        assert_eq!(
            pods.watch("v1", Since::Version("7")),
            "/api/v1/pods?watch=1&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=7\
             &fieldSelector=spec.nodeName%3Da%20b"
        );
        let made = Follow::all(Kind::Deployment).labelled("app=web");
        assert_eq!(
            made.list("v1", 1, None),
            "/apis/apps/v1/deployments?limit=1&labelSelector=app%3Dweb"
        );
        let configs = Follow::all(Kind::ConfigMap).within("shop").labelled("a");
        assert_eq!(
            configs.list("v1", 1, None),
            "/api/v1/namespaces/shop/configmaps?limit=1&labelSelector=a"
        );
        let policies = Follow::all(Kind::AuthorizationPolicy);
        assert_eq!(
            policies.watch("v1", Since::Everything),
            "/apis/security.istio.io/v1/authorizationpolicies?watch=1&allowWatchBookmarks=true\
             &timeoutSeconds=300&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        );
        assert_eq!(
            policies.list("v1", 2, Some("a+b")),
            "/apis/security.istio.io/v1/authorizationpolicies?limit=2&continue=a%2Bb"
        );
    }

    #[test]
    fn only_custom_kinds_have_a_definition() {
        let custom = |kind: &&Kind| definition_path(**kind).is_some();
        let custom: Vec<_> = Kind::ALL.iter().filter(custom).collect();
        assert_eq!(
            custom,
            [
                &Kind::GatewayClass,
                &Kind::Gateway,
                &Kind::ServiceEntry,
                &Kind::WorkloadEntry,
                &Kind::ReferenceGrant,
                &Kind::HTTPRoute,
                &Kind::GRPCRoute,
                &Kind::TLSRoute,
                &Kind::TCPRoute,
                &Kind::BackendTLSPolicy,
                &Kind::PeerAuthentication,
                &Kind::AuthorizationPolicy,
                &Kind::DestinationRule,
                &Kind::VirtualService,
                &Kind::RequestAuthentication,
                &Kind::Telemetry,
                &Kind::WasmPlugin,
            ]
        );
    }

    #[test]
    fn lines_of_a_watch_are_told_apart() {
        let said = |text| match line(text) {
            Ok(Line::Object { json, version }) => format!("object {json} at {version}"),
            Ok(Line::Gone { version, .. }) => format!("gone at {version}"),
            Ok(Line::Bookmark { version, complete }) => format!("bookmark {version} {complete}"),
            Ok(Line::Refused(error)) => format!("refused {error}"),
            Ok(Line::Unknown(kind)) => format!("unknown {kind}"),
            Err(error) => format!("error {error}"),
        };
        for (text, expected) in [
            (
                r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"},"spec":[0]}}"#,
                r#"object {"metadata":{"resourceVersion":"7"},"spec":[0]} at 7"#,
            ),
            (
                r#"{"object":{"metadata":{"resourceVersion":"8"}},"type":"DELETED"}"#,
                "gone at 8",
            ),
            (
                r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#,
                "bookmark 9 false",
            ),
            (
                r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
                "bookmark 9 true",
            ),
            (
                r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#,
                "refused 410 Expired: too old",
            ),
            (r#"{"type":"LATER","object":{}}"#, "unknown LATER"),
        ] {
            assert_eq!(said(text), expected);
        }
        assert!(line("{").is_err());
    }

    #[test]
    fn pages_of_a_list_say_where_the_next_begins() {
        let text = br#"{"metadata":{"resourceVersion":"5","continue":"x"},"items":[{"a":1},2]}"#;
        let first = page(text).unwrap();
        assert_eq!((first.items.len(), first.next.as_deref()), (2, Some("x")));
        let last =
            page(br#"{"metadata":{"resourceVersion":"5","continue":""},"items":null}"#).unwrap();
        assert_eq!((last.version.as_str(), last.next), ("5", None));
    }
}
