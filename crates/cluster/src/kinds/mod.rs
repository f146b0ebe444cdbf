// SPDX-License-Identifier: Apache-2.0
//! The kinds as Rust types: Kubernetes' own from `k8s-openapi`, Istio's and the Gateway API's from here.
//!
//! Our structs are lenient: each field may be missing, an enum value nobody knows is kept as text, and where a
//! misspelt field would change what a policy means, unknown fields are kept too. What to make of them is decided
//! where the objects are used, never here.

mod backend_tls;
mod described;
pub mod destination_rule;
pub mod extension;
mod gateway;
pub(crate) mod known;
mod open_enum;
mod policy;
mod route;
mod service_entry;
pub mod virtual_service;

#[cfg(test)]
mod definitions;

pub use destination_rule::DestinationRule;
pub use extension::{JwtRule, RequestAuthentication, Telemetry, WasmPlugin};

pub use backend_tls::{
    BackendTLSPolicy, BackendTLSPolicySpec, BackendTLSPolicyStatus, BackendTLSValidation,
    LocalReference, PolicyTarget, SubjectAltName, SubjectAltNameType,
};
pub use gateway::{
    AllowedRoutes, Gateway, GatewayAddress, GatewayClass, GatewayClassSpec, GatewayInfrastructure,
    GatewaySpec, GatewayStatus, Listener, ListenerTls, ParametersReference, RouteNamespaces,
};
pub use k8s_openapi::api::apps::v1::Deployment;
pub use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
pub use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Service, ServiceAccount};
pub use k8s_openapi::api::discovery::v1::EndpointSlice;
pub use k8s_openapi::api::policy::v1::PodDisruptionBudget;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    Condition, LabelSelector, ObjectMeta, Time,
};
pub use policy::{
    Action, AuthorizationPolicy, AuthorizationPolicySpec, MtlsMode, MutualTls, Operation,
    PeerAuthentication, PeerAuthenticationSpec, PolicyStatus, Rule, RuleCondition, RuleFrom,
    RuleTo, Selector, Source, TargetReference, UnknownFields,
};
pub use route::{
    CookieConfig, CookieLifetime, CorsFilter, ExtensionReference, FilterType, Fraction,
    GRPCMethodMatch, GRPCRoute, GRPCRouteMatch, GRPCRouteRule, GRPCRouteSpec, HTTPRoute,
    HTTPRouteMatch, HTTPRouteRule, HTTPRouteSpec, HeaderFilter, HeaderValue, L4RouteRule,
    L4RouteSpec, MirrorFilter, ParentReference, PathMatchType, PathModifier, PathModifierType,
    RedirectFilter, ReferenceGrant, ReferenceGrantFrom, ReferenceGrantSpec, ReferenceGrantTo,
    RewriteFilter, RouteBackendReference, RouteFilter, RoutePathMatch, RouteRetry,
    RouteSessionPersistence, RouteStatus, RouteTimeouts, RouteValueMatch, SessionType, TCPRoute,
    TLSRoute, ValueMatchType,
};
pub use service_entry::{
    AddressFamily, Location, Port, Resolution, ServiceEntry, ServiceEntryAddress, ServiceEntrySpec,
    ServiceEntryStatus, WorkloadEntry, WorkloadEntrySpec, WorkloadEntryStatus, WorkloadSelector,
};
pub use virtual_service::VirtualService;
