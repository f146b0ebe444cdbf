// SPDX-License-Identifier: Apache-2.0
//! The table of variables: what `waypoint help` prints, and where defaults stand.

use ops::variables::{Variable, variable};

pub const VARIABLES: &[Variable] = &[
    variable(
        "GATEWAY_NAME",
        "",
        "the Gateway, of the own namespace, that this process serves",
    ),
    variable("POD_NAME", "", "own pod"),
    variable("POD_NAMESPACE", "", "own namespace"),
    variable(
        "SERVICE_ACCOUNT",
        "default",
        "own service account: the identity that this process has",
    ),
    variable("INSTANCE_IP", "", "own address"),
    variable("NODE_NAME", "", "own node"),
    variable("TRUST_DOMAIN", "cluster.local", "realm of the own identity"),
    variable("NETWORK", "", "own network"),
    variable(
        "CLUSTER_ID",
        "Kubernetes",
        "cluster id; ISTIO_META_CLUSTER_ID wins",
    ),
    variable("ISTIO_META_*", "", "node metadata as text"),
    variable("ISTIO_METAJSON_*", "", "node metadata as JSON"),
    variable(
        "ISTIO_META_ISTIO_VERSION",
        "unknown",
        "tag of the build metric",
    ),
    variable(
        "XDS_ADDRESS",
        "https://istiod.istio-system.svc:15012",
        "control plane",
    ),
    variable(
        "XDS_ROOT_CA",
        "./var/run/secrets/istio/root-cert.pem",
        "file, PEM text, or SYSTEM",
    ),
    variable(
        "CA_ADDRESS",
        "https://istiod.istio-system.svc:15012",
        "certificate authority",
    ),
    variable(
        "CA_ROOT_CA",
        "./var/run/secrets/istio/root-cert.pem",
        "file, PEM text, or SYSTEM",
    ),
    variable(
        "AUTH_TOKEN",
        "./var/run/secrets/tokens/istio-token",
        "file with the token of the own service account",
    ),
    variable("SECRET_TTL", "24h", "validity asked for certificates"),
    variable(
        "MAX_TUNNELS",
        "10000",
        "tunnels that may come in at a time; further ones wait",
    ),
    variable(
        "MAX_CONNECTIONS",
        "65536",
        "connections that those tunnels may carry at a time; further ones are refused",
    ),
    variable(
        "MAX_REQUESTS_PER_ENDPOINT",
        "1024",
        "requests that may be under way to one endpoint from one thread; further ones are answered 503",
    ),
    variable(
        "MAX_IDLE_CONNECTIONS",
        "8192",
        "HTTP/1 connections to endpoints that are kept for the next request; with more, those go that waited longest",
    ),
    variable(
        "HBONE_ENGINE",
        "own",
        "own, or library: what runs the tunnels",
    ),
    variable(
        "TERMINATION_GRACE_PERIOD_SECONDS",
        "",
        "grace period of the pod; the drain ends before it does",
    ),
    variable(
        "CONNECTION_TERMINATION_DEADLINE",
        "",
        "how long connections may live on after SIGTERM",
    ),
    variable(
        "WAYPOINT_WORKER_THREADS",
        "",
        "proxy threads: number or percentage of CPUs; 0: all",
    ),
    variable(
        "RUST_LOG",
        "info",
        "level, or target=level, separated by commas; access=off: no access log",
    ),
    variable("LOG_FORMAT", "plain", "plain or json"),
];
