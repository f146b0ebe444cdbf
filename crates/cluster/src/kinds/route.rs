// SPDX-License-Identifier: Apache-2.0
//! HTTPRoute, GRPCRoute, TCPRoute and TLSRoute of the Gateway API, and ReferenceGrant.
//!
//! A match, a filter or a rule with a field that this version doesn't know may mean something else than it seems to:
//! their structs keep such fields. Numbers are wider than they may be, so that one that is too large is a wrong value
//! and not an unreadable object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::open_enum::open_enum;
use super::policy::UnknownFields;

/// Declares a route of one kind: its metadata, its spec and its status.
macro_rules! route {
    ($(#[$doc:meta])* $name:ident, $spec:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            #[serde(default)]
            pub metadata: ObjectMeta,
            #[serde(default)]
            pub spec: $spec,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub status: Option<RouteStatus>,
        }
    };
}

route!(HTTPRoute, HTTPRouteSpec);
route!(GRPCRoute, GRPCRouteSpec);
route!(TCPRoute, L4RouteSpec);
route!(TLSRoute, L4RouteSpec);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HTTPRouteSpec {
    pub parent_refs: Vec<ParentReference>,
    pub hostnames: Vec<String>,
    /// None at all stand for one that matches everything.
    pub rules: Vec<HTTPRouteRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GRPCRouteSpec {
    pub parent_refs: Vec<ParentReference>,
    pub hostnames: Vec<String>,
    pub rules: Vec<GRPCRouteRule>,
}

/// Of a TCPRoute or TLSRoute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct L4RouteSpec {
    pub parent_refs: Vec<ParentReference>,
    /// Server names, of a TLSRoute alone.
    pub hostnames: Vec<String>,
    pub rules: Vec<L4RouteRule>,
}

/// What a route belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentReference {
    /// `gateway.networking.k8s.io` when absent; the core group is the empty one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// `Gateway` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The route's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HTTPRouteRule {
    pub name: Option<String>,
    /// None at all stand for one of everything.
    pub matches: Vec<HTTPRouteMatch>,
    pub filters: Vec<RouteFilter>,
    pub backend_refs: Vec<RouteBackendReference>,
    pub timeouts: Option<RouteTimeouts>,
    pub retry: Option<RouteRetry>,
    pub session_persistence: Option<RouteSessionPersistence>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GRPCRouteRule {
    pub name: Option<String>,
    pub matches: Vec<GRPCRouteMatch>,
    pub filters: Vec<RouteFilter>,
    pub backend_refs: Vec<RouteBackendReference>,
    pub session_persistence: Option<RouteSessionPersistence>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct L4RouteRule {
    pub name: Option<String>,
    pub backend_refs: Vec<RouteBackendReference>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// All that is given has to match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HTTPRouteMatch {
    pub path: Option<RoutePathMatch>,
    pub headers: Vec<RouteValueMatch>,
    pub query_params: Vec<RouteValueMatch>,
    pub method: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// All that is given has to match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GRPCRouteMatch {
    pub method: Option<GRPCMethodMatch>,
    pub headers: Vec<RouteValueMatch>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

open_enum! {
    /// How a path is compared.
    PathMatchType {
        Exact = "Exact",
        PathPrefix = "PathPrefix",
        RegularExpression = "RegularExpression",
    }
}

open_enum! {
    /// How any other value is compared.
    ValueMatchType {
        Exact = "Exact",
        RegularExpression = "RegularExpression",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoutePathMatch {
    /// PathPrefix when absent.
    #[serde(rename = "type")]
    pub match_type: Option<PathMatchType>,
    /// `/` when absent.
    pub value: Option<String>,
}

/// A header, or a parameter of the query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteValueMatch {
    /// Exact when absent.
    #[serde(rename = "type")]
    pub match_type: Option<ValueMatchType>,
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GRPCMethodMatch {
    /// Exact when absent.
    #[serde(rename = "type")]
    pub match_type: Option<ValueMatchType>,
    pub service: Option<String>,
    pub method: Option<String>,
}

open_enum! {
    /// What a filter does. Each has a field of its own with the particulars.
    FilterType {
        RequestHeaderModifier = "RequestHeaderModifier",
        ResponseHeaderModifier = "ResponseHeaderModifier",
        RequestMirror = "RequestMirror",
        RequestRedirect = "RequestRedirect",
        UrlRewrite = "URLRewrite",
        Cors = "CORS",
        ExternalAuth = "ExternalAuth",
        ExtensionRef = "ExtensionRef",
    }
}

/// A filter of an HTTPRoute; those of a GRPCRoute are some of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteFilter {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub filter_type: Option<FilterType>,
    pub request_header_modifier: Option<HeaderFilter>,
    pub response_header_modifier: Option<HeaderFilter>,
    pub request_mirror: Option<MirrorFilter>,
    pub request_redirect: Option<RedirectFilter>,
    pub url_rewrite: Option<RewriteFilter>,
    pub cors: Option<CorsFilter>,
    pub external_auth: Option<Value>,
    pub extension_ref: Option<ExtensionReference>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeaderFilter {
    pub set: Vec<HeaderValue>,
    pub add: Vec<HeaderValue>,
    pub remove: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeaderValue {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MirrorFilter {
    pub backend_ref: RouteBackendReference,
    pub percent: Option<i64>,
    pub fraction: Option<Fraction>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fraction {
    pub numerator: i64,
    /// 100 when absent.
    pub denominator: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedirectFilter {
    pub scheme: Option<String>,
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
    pub port: Option<i64>,
    /// 302 when absent.
    pub status_code: Option<i64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RewriteFilter {
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

open_enum! {
    /// What of a path is replaced.
    PathModifierType {
        ReplaceFullPath = "ReplaceFullPath",
        ReplacePrefixMatch = "ReplacePrefixMatch",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathModifier {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub modifier_type: Option<PathModifierType>,
    pub replace_full_path: Option<String>,
    pub replace_prefix_match: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorsFilter {
    pub allow_origins: Vec<String>,
    pub allow_credentials: Option<bool>,
    pub allow_methods: Vec<String>,
    pub allow_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    /// 5 when absent.
    pub max_age: Option<i64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtensionReference {
    pub group: String,
    pub kind: String,
    pub name: String,
}

/// Where a share of the requests or connections goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteBackendReference {
    /// The core one when absent.
    pub group: Option<String>,
    /// `Service` when absent.
    pub kind: Option<String>,
    pub name: String,
    /// The route's own when absent.
    pub namespace: Option<String>,
    pub port: Option<i64>,
    /// 1 when absent.
    pub weight: Option<i64>,
    pub filters: Vec<RouteFilter>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteTimeouts {
    pub request: Option<String>,
    pub backend_request: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteRetry {
    pub codes: Vec<i64>,
    pub attempts: Option<i64>,
    pub backoff: Option<String>,
}

open_enum! {
    /// What carries a session.
    SessionType {
        Cookie = "Cookie",
        Header = "Header",
    }
}

open_enum! {
    /// How long a cookie lives.
    CookieLifetime {
        Permanent = "Permanent",
        Session = "Session",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteSessionPersistence {
    pub session_name: Option<String>,
    pub absolute_timeout: Option<String>,
    pub idle_timeout: Option<String>,
    /// Cookie when absent.
    #[serde(rename = "type")]
    pub session_type: Option<SessionType>,
    pub cookie_config: Option<CookieConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CookieConfig {
    /// Session when absent.
    pub lifetime_type: Option<CookieLifetime>,
}

/// What each controller says of a route, for each parent that is its business.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteStatus {
    /// As written: those of others are never changed.
    pub parents: Vec<Value>,
}

/// Which references into its namespace are allowed; it has no status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReferenceGrant {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ReferenceGrantSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantSpec {
    pub from: Vec<ReferenceGrantFrom>,
    pub to: Vec<ReferenceGrantTo>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantFrom {
    pub group: String,
    pub kind: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantTo {
    pub group: String,
    pub kind: String,
    /// All of them when absent.
    pub name: Option<String>,
}
