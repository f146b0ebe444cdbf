// SPDX-License-Identifier: Apache-2.0
//! The kinds that are read, and one type for an object of any of them.
//!
//! The table at the end is the only list of kinds: each line names the type, its plural in paths, whether it lives in a
//! namespace, its API group and the versions that are understood.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::kinds;

/// Names one object: there is at most one with this key at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub kind: Kind,
    /// None for kinds that live outside of namespaces.
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectKey {
    /// A key of a kind that lives in namespaces.
    pub fn namespaced(kind: Kind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind,
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// A key of a kind that lives outside of namespaces.
    pub fn cluster_wide(kind: Kind, name: impl Into<String>) -> Self {
        Self {
            kind,
            namespace: None,
            name: name.into(),
        }
    }
}

/// Prints `Pod default/web` and `Node a`.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where objects of a kind live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespace,
}

/// What is the same for all kinds.
pub trait Resource:
    Clone + PartialEq + Serialize + for<'de> Deserialize<'de> + Send + Sync + 'static
{
    const KIND: Kind;

    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
    /// Wraps the object for transport in an event.
    fn into_object(self) -> Object;
    /// The status as JSON; `Null` when there is none.
    fn status_json(&self) -> Result<serde_json::Value, serde_json::Error>;
    /// Replaces the status; kinds without one accept and drop it.
    fn set_status_json(&mut self, status: serde_json::Value) -> Result<(), serde_json::Error>;
}

impl Object {
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: self.kind(),
            namespace: self.metadata().namespace.clone(),
            name: self.name().to_owned(),
        }
    }

    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// Empty for kinds that live outside of namespaces.
    pub fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }

    /// Never empty: an object written without one has got a stable one from its kind, namespace and name.
    pub fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    pub fn labels(&self) -> &BTreeMap<String, String> {
        self.metadata().labels.as_ref().unwrap_or(&NOTHING)
    }

    pub fn annotations(&self) -> &BTreeMap<String, String> {
        self.metadata().annotations.as_ref().unwrap_or(&NOTHING)
    }
}

static NOTHING: BTreeMap<String, String> = BTreeMap::new();

macro_rules! status {
    (with_status) => {
        fn status_json(&self) -> Result<serde_json::Value, serde_json::Error> {
            serde_json::to_value(&self.status)
        }
        fn set_status_json(&mut self, status: serde_json::Value) -> Result<(), serde_json::Error> {
            self.status = serde_json::from_value(status)?;
            Ok(())
        }
    };
    (without_status) => {
        fn status_json(&self) -> Result<serde_json::Value, serde_json::Error> {
            Ok(serde_json::Value::Null)
        }
        fn set_status_json(&mut self, _: serde_json::Value) -> Result<(), serde_json::Error> {
            Ok(())
        }
    };
}

macro_rules! objects {
    ($( $kind:ident, $plural:literal, $scope:ident, $status:ident, $group:literal, [$($version:literal),+]; )+) => {
        /// The kinds that are read, in an order in which what others refer to comes first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Kind {
            $( $kind, )+
        }

        impl Kind {
            pub const ALL: &[Self] = &[ $( Self::$kind, )+ ];

            pub fn as_str(self) -> &'static str {
                match self { $( Self::$kind => stringify!($kind), )+ }
            }

            /// As in the path of its objects at an API server.
            pub fn plural(self) -> &'static str {
                match self { $( Self::$kind => $plural, )+ }
            }

            pub fn scope(self) -> Scope {
                match self { $( Self::$kind => Scope::$scope, )+ }
            }

            /// The API group, empty for the core one.
            pub fn group(self) -> &'static str {
                match self { $( Self::$kind => $group, )+ }
            }

            /// The versions of the group that are understood.
            pub fn versions(self) -> &'static [&'static str] {
                match self { $( Self::$kind => &[ $($version),+ ], )+ }
            }
        }

        /// An object of any kind that is read. Clones share it.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Object {
            $( $kind(Arc<kinds::$kind>), )+
        }

        impl Object {
            pub fn kind(&self) -> Kind {
                match self { $( Self::$kind(_) => Kind::$kind, )+ }
            }

            pub fn metadata(&self) -> &ObjectMeta {
                match self { $( Self::$kind(object) => &object.metadata, )+ }
            }
        }

        $(
            impl Resource for kinds::$kind {
                const KIND: Kind = Kind::$kind;

                fn metadata(&self) -> &ObjectMeta {
                    &self.metadata
                }

                fn metadata_mut(&mut self) -> &mut ObjectMeta {
                    &mut self.metadata
                }

                fn into_object(self) -> Object {
                    Object::$kind(Arc::new(self))
                }

                status!($status);
            }
        )+

        /// Runs `$body` with `$T` bound to the type of a [`Kind`].
        macro_rules! with_type {
            ($value:expr, $T:ident => $body:expr) => {
                match $value { $( $crate::object::Kind::$kind => { type $T = $crate::kinds::$kind; $body } )+ }
            };
        }

        /// Runs `$body` with `$object` bound to the `Arc` inside an [`Object`].
        macro_rules! with_object {
            ($value:expr, $object:ident => $body:expr) => {
                match $value { $( $crate::object::Object::$kind($object) => $body, )+ }
            };
        }
    };
}

objects! {
    Namespace, "namespaces", Cluster, with_status, "", ["v1"];
    Node, "nodes", Cluster, with_status, "", ["v1"];
    ServiceAccount, "serviceaccounts", Namespace, without_status, "", ["v1"];
    ConfigMap, "configmaps", Namespace, without_status, "", ["v1"];
    Pod, "pods", Namespace, with_status, "", ["v1"];
    Service, "services", Namespace, with_status, "", ["v1"];
    Deployment, "deployments", Namespace, with_status, "apps", ["v1"];
    HorizontalPodAutoscaler, "horizontalpodautoscalers", Namespace, with_status, "autoscaling", ["v2", "v1"];
    PodDisruptionBudget, "poddisruptionbudgets", Namespace, with_status, "policy", ["v1", "v1beta1"];
    EndpointSlice, "endpointslices", Namespace, without_status, "discovery.k8s.io", ["v1"];
    GatewayClass, "gatewayclasses", Cluster, with_status, "gateway.networking.k8s.io", ["v1", "v1beta1"];
    Gateway, "gateways", Namespace, with_status, "gateway.networking.k8s.io", ["v1", "v1beta1"];
    ServiceEntry, "serviceentries", Namespace, with_status, "networking.istio.io", ["v1", "v1beta1", "v1alpha3"];
    WorkloadEntry, "workloadentries", Namespace, with_status, "networking.istio.io", ["v1", "v1beta1", "v1alpha3"];
    ReferenceGrant, "referencegrants", Namespace, without_status, "gateway.networking.k8s.io", ["v1", "v1beta1"];
    HTTPRoute, "httproutes", Namespace, with_status, "gateway.networking.k8s.io", ["v1", "v1beta1"];
    GRPCRoute, "grpcroutes", Namespace, with_status, "gateway.networking.k8s.io", ["v1", "v1alpha2"];
    TLSRoute, "tlsroutes", Namespace, with_status, "gateway.networking.k8s.io", ["v1", "v1alpha3", "v1alpha2"];
    TCPRoute, "tcproutes", Namespace, with_status, "gateway.networking.k8s.io", ["v1", "v1alpha2"];
    BackendTLSPolicy, "backendtlspolicies", Namespace, with_status, "gateway.networking.k8s.io", ["v1", "v1alpha3"];
    PeerAuthentication, "peerauthentications", Namespace, with_status, "security.istio.io", ["v1", "v1beta1"];
    AuthorizationPolicy, "authorizationpolicies", Namespace, with_status, "security.istio.io", ["v1", "v1beta1"];
    DestinationRule, "destinationrules", Namespace, with_status, "networking.istio.io", ["v1", "v1beta1", "v1alpha3"];
    VirtualService, "virtualservices", Namespace, with_status, "networking.istio.io", ["v1", "v1beta1", "v1alpha3"];
    RequestAuthentication, "requestauthentications", Namespace, with_status, "security.istio.io", ["v1", "v1beta1"];
    Telemetry, "telemetries", Namespace, with_status, "telemetry.istio.io", ["v1", "v1alpha1"];
    WasmPlugin, "wasmplugins", Namespace, with_status, "extensions.istio.io", ["v1alpha1"];
}

pub(crate) use {with_object, with_type};

impl Kind {
    /// The list in its status of what each controller says in view of each object that matters to it, where that is what
    /// its status consists of. All controllers write it as a whole.
    pub fn controllers_list(self) -> Option<&'static str> {
        match self {
            Self::HTTPRoute | Self::GRPCRoute | Self::TLSRoute | Self::TCPRoute => Some("parents"),
            Self::BackendTLSPolicy => Some("ancestors"),
            _ => None,
        }
    }

    /// Whether others may say something in the same list of its status as who judges it.
    pub(crate) fn is_judged(self) -> bool {
        matches!(
            self,
            Self::Service
                | Self::ServiceEntry
                | Self::WorkloadEntry
                | Self::AuthorizationPolicy
                | Self::DestinationRule
                | Self::VirtualService
                | Self::RequestAuthentication
                | Self::Telemetry
                | Self::WasmPlugin
        ) || self.controllers_list().is_some()
    }
}

impl Object {
    /// Whether both are the very same object in memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    /// The object as JSON, the same for the same object; some kinds leave out `apiVersion` and `kind`.
    pub fn to_json(&self) -> Vec<u8> {
        with_object!(self, object => serde_json::to_vec(object.as_ref()))
            .expect("broken invariant: a Kubernetes object can be written as JSON")
    }

    fn address(&self) -> usize {
        with_object!(self, object => Arc::as_ptr(object).addr())
    }
}
