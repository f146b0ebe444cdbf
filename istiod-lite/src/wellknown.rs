// SPDX-License-Identifier: Apache-2.0
//! The labels and annotations of Kubernetes and Istio that the control plane
//! understands, spelled once.

/// Annotation: what the node agent did to the pod (`enabled` once its traffic is captured).
pub const REDIRECTION: &str = "ambient.istio.io/redirection";
/// Label: `http` says that the pod terminates HBONE itself.
pub const TUNNEL: &str = "networking.istio.io/tunnel";
/// Label: which waypoint an object's traffic goes through, or `none`.
pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// Label: the namespace of that waypoint, where it isn't the object's own.
pub const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// Label: a second waypoint, which takes a share of the connections.
pub const CANARY_WAYPOINT: &str = "istio.io/use-waypoint-canary";
/// Label: the namespace of that second waypoint, where it isn't the object's own.
pub const CANARY_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-canary-namespace";
/// Annotation: the share of the second waypoint, in percent.
pub const CANARY_WEIGHT: &str = "istio.io/use-waypoint-canary-weight";
/// Label: whether ingress gateways pass through the waypoint too.
pub const INGRESS_USE_WAYPOINT: &str = "istio.io/ingress-use-waypoint";
/// Annotation of a Pod, Service or Namespace, for all of the mesh on the root namespace: whether pods refuse what did not
/// come through their waypoint. Ours: Istio has no such word.
pub const REQUIRE_WAYPOINT: &str = "culvert.io/require-waypoint";
/// Label of a Gateway or GatewayClass: what may use it as its waypoint.
pub const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
/// Annotation of a Gateway or GatewayClass: how ztunnel hands traffic to a waypoint that it captures.
pub const INBOUND_BINDING: &str = "ambient.istio.io/waypoint-inbound-binding";
/// Label of a pod: the Gateway that it is an instance of.
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Annotation of a Gateway: the service account that it runs as.
pub const GATEWAY_SERVICE_ACCOUNT: &str = "gateway.istio.io/service-account";
/// Annotation of a Gateway: what its objects are called.
pub const GATEWAY_NAME_OVERRIDE: &str = "gateway.istio.io/name-override";
/// Annotation of a Gateway: which way to make its objects it asks for.
pub const CONTROLLER_VERSION: &str = "gateway.istio.io/controller-version";
/// Label of a ConfigMap of the root namespace: the class whose Gateways it says more for.
pub const CLASS_DEFAULTS: &str = "gateway.istio.io/defaults-for-class";
/// Label of an object, or of its namespace for all in there: the revision of the control plane that it is for.
pub const REVISION: &str = "istio.io/rev";
/// Annotation of a Gateway: the type of its Service.
pub const SERVICE_TYPE: &str = "networking.istio.io/service-type";
/// Label of objects that a controller of the mesh made.
pub const GATEWAY_MANAGED: &str = "gateway.istio.io/managed";
/// The controller that writes the status of routes for services.
pub const MESH_CONTROLLER: &str = "istio.io/mesh-controller";
/// Values of [`GATEWAY_MANAGED`] whose services never have a waypoint, to avoid loops.
pub const MESH_CONTROLLERS: [&str; 2] =
    ["istio.io-mesh-controller", "istio.io-eastwest-controller"];
/// Label of the root namespace: the network that this cluster's pods are on. Label of a Gateway: the network that it
/// leads into.
pub const NETWORK: &str = "topology.istio.io/network";
/// Label of a node.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Label of a node.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Label of a node.
pub const SUBZONE: &str = "topology.istio.io/subzone";
/// Label of a slice: the Service that its endpoints belong to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Annotation of a Service or Namespace: which endpoints are preferred.
pub const TRAFFIC_DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";
/// Label of a ServiceEntry: `false` declines addresses for its hosts.
pub const AUTO_ALLOCATE: &str = "networking.istio.io/enable-autoallocate-ip";
/// Annotation of a ServiceEntry: how a waypoint is to connect.
pub const CONNECT_STRATEGY: &str = "istio.io/connect-strategy";
/// Annotation of a WorkloadEntry: the group that it registered itself in.
pub const REGISTRATION_GROUP: &str = "istio.io/autoRegistrationGroup";
/// Label that each namespace has, with its name as value.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// The ConfigMap of the root namespace that holds the mesh's configuration under [`MESH_KEY`].
pub const MESH_CONFIG: &str = "istio";
/// Where in [`MESH_CONFIG`] it stands.
pub const MESH_KEY: &str = "mesh";
/// Annotation of a Gateway: `true` has its waypoints say in each answer which rule of which policy has decided.
pub const EXPLAIN_POLICIES: &str = "culvert.io/explain-policies";
/// Annotation of an HTTPRoute, GRPCRoute or VirtualService: how many requests it takes. Ours: Istio has no such word.
pub const RATE_LIMIT: &str = "culvert.io/rate-limit";
/// Annotation of an AuthorizationPolicy: log only.
pub const DRY_RUN: &str = "istio.io/dry-run";

/// Labels that name a workload, the first that is set wins.
pub const WORKLOAD_NAME: [&str; 1] = ["service.istio.io/workload-name"];
/// Labels that name the canonical service, the first that is set wins.
pub const CANONICAL_NAME: [&str; 3] = [
    "service.istio.io/canonical-name",
    "app.kubernetes.io/name",
    "app",
];
/// Labels that name the canonical revision, the first that is set wins.
pub const CANONICAL_REVISION: [&str; 3] = [
    "service.istio.io/canonical-revision",
    "app.kubernetes.io/version",
    "version",
];
