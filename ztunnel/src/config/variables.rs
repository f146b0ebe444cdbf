// SPDX-License-Identifier: Apache-2.0
//! The table of variables: what `ztunnel help` prints, and where defaults stand.

use ops::variables::{Variable, variable};

/// Their names are Istio's.
pub const VARIABLES: &[Variable] = &[
    variable(
        "NODE_NAME",
        "",
        "own node; workloads of other nodes get no proxy here",
    ),
    variable("NETWORK", "", "own network"),
    variable(
        "CLUSTER_ID",
        "Kubernetes",
        "cluster id; ISTIO_META_CLUSTER_ID wins",
    ),
    variable("INSTANCE_IP", "", "own address, part of the node id"),
    variable("POD_NAME", "", "own pod, part of the node id"),
    variable("POD_NAMESPACE", "", "own namespace, part of the node id"),
    variable("ISTIO_META_*", "", "node metadata as text"),
    variable("ISTIO_METAJSON_*", "", "node metadata as JSON"),
    variable(
        "ISTIO_META_ISTIO_VERSION",
        "unknown",
        "tag of the build metric",
    ),
    variable(
        "PROXY_CONFIG",
        "",
        "ProxyConfig document, over ./etc/istio/config/mesh",
    ),
    variable(
        "KUBERNETES_SERVICE_HOST",
        "",
        "its presence selects the in-cluster control plane",
    ),
    variable(
        "XDS_ADDRESS",
        "https://localhost:15012",
        "control plane; empty: none",
    ),
    variable(
        "XDS_ROOT_CA",
        "./var/run/secrets/istio/root-cert.pem",
        "file, PEM text, or SYSTEM",
    ),
    variable(
        "XDS_ON_DEMAND",
        "false",
        "true: told of this node, and of what connections ask for; not with DNS capture",
    ),
    variable("ALT_XDS_HOSTNAME", "", "another server name to accept"),
    variable("XDS_HEADER_*", "", "more gRPC headers (secret)"),
    variable(
        "CA_ADDRESS",
        "https://localhost:15012",
        "certificate authority",
    ),
    variable(
        "CA_ROOT_CA",
        "./var/run/secrets/istio/root-cert.pem",
        "file, PEM text, or SYSTEM",
    ),
    variable("ALT_CA_HOSTNAME", "", "another server name to accept"),
    variable("CA_HEADER_*", "", "more gRPC headers (secret)"),
    variable(
        "AUTH_TOKEN",
        "./var/run/secrets/tokens/istio-token",
        "file or literal token (secret)",
    ),
    variable("SECRET_TTL", "24h", "requested lifetime of certificates"),
    variable(
        "CRL_PATH",
        "",
        "file of certificate revocation lists, PEM or DER; followed",
    ),
    variable(
        "LOCAL_XDS_PATH",
        "",
        "file with workloads, services and policies",
    ),
    variable("LOCAL_XDS", "", "the same as text"),
    variable(
        "INPOD_UDS",
        "/var/run/ztunnel/ztunnel.sock",
        "socket of the node agent",
    ),
    variable(
        "INPOD_PORT_REUSE",
        "true",
        "let the next process bind the same ports",
    ),
    variable("PACKET_MARK", "1337", "mark of own packets"),
    variable(
        "ENABLE_ORIG_SRC",
        "",
        "keep client addresses: true required, false never, unset where possible",
    ),
    variable("IPV6_ENABLED", "true", "listen on IPv6 too"),
    variable(
        "SAME_NODE_SHORTCUT",
        "false",
        "connect pods of this node to each other without TLS: true, false, or namespaces, if both pods are of them",
    ),
    variable(
        "LOCALHOST_APP_TUNNEL",
        "true",
        "hand connections with a PROXY header to loopback",
    ),
    variable(
        "ISTIO_META_DNS_CAPTURE",
        "true",
        "serve pods' DNS; any other word: leave it to them",
    ),
    variable(
        "ISTIO_META_DNS_PROXY_ADDR",
        "localhost:15053",
        "where, on the pod's loopback: localhost:PORT or IP:PORT",
    ),
    variable(
        "CLUSTER_DOMAIN",
        "cluster.local",
        "the cluster's domain, for DNS",
    ),
    variable(
        "PREFERED_SERVICE_NAMESPACE",
        "",
        "whose service is meant where several have a name (the spelling is Istio's)",
    ),
    variable(
        "RESOLV_CONF",
        "/etc/resolv.conf",
        "names the servers that other DNS queries go to, asked from inside the pod",
    ),
    variable(
        "ENABLE_RESPONSE_BAGGAGE",
        "true",
        "answer with baggage, read that of peers",
    ),
    variable("KEEPALIVE_ENABLED", "true", "TCP keepalive"),
    variable("KEEPALIVE_TIME", "180s", "idle time before the first probe"),
    variable("KEEPALIVE_INTERVAL", "180s", "time between probes"),
    variable(
        "KEEPALIVE_RETRIES",
        "9",
        "unanswered probes that end a connection",
    ),
    variable(
        "USER_TIMEOUT_ENABLED",
        "false",
        "end connections whose data stays unacknowledged as long",
    ),
    variable(
        "POOL_MAX_STREAMS_PER_CONNECTION",
        "100",
        "connections carried by one tunnel",
    ),
    variable(
        "POOL_UNUSED_RELEASE_TIMEOUT",
        "5m",
        "an unused tunnel is closed after",
    ),
    variable(
        "HBONE_ENGINE",
        "own",
        "what runs tunnels: own (records and frames in place) or library (h2 and rustls)",
    ),
    variable(
        "HTTP2_STREAM_WINDOW_SIZE",
        "4194304",
        "bytes in flight per connection, once it has proven to keep up",
    ),
    variable(
        "HTTP2_CONNECTION_WINDOW_SIZE",
        "16777216",
        "bytes in flight per tunnel",
    ),
    variable("HTTP2_FRAME_SIZE", "1048576", "largest frame accepted"),
    variable(
        "MAX_CONNECTIONS_PER_POD",
        "0",
        "connections a pod may have open; 0: a quarter of what the descriptors allow",
    ),
    variable(
        "MAX_HALF_OPEN_TUNNELS_PER_POD",
        "1024",
        "tunnels a pod may have in their handshake, at most half of its connections; the oldest makes room",
    ),
    variable(
        "HANDOVER_UDS",
        "",
        "where the next process takes over; default: INPOD_UDS with the extension .handover; none: nowhere",
    ),
    variable(
        "HANDOVER_DRAIN_DEADLINE",
        "24h",
        "time open connections get after another process has taken over",
    ),
    variable(
        "CONNECTION_TERMINATION_DEADLINE",
        "",
        "time open connections get at shutdown",
    ),
    variable(
        "TERMINATION_GRACE_PERIOD_SECONDS",
        "",
        "else 5 s less than this (1 s less up to 10 s)",
    ),
    variable(
        "ZTUNNEL_WORKER_THREADS",
        "",
        "proxy threads: number or percentage of CPUs; 0: all",
    ),
    variable("ZTUNNEL_CPU_LIMIT", "", "CPU count"),
    variable("ZTUNNEL_RESOURCE_CPU_LIMIT", "", "CPU limit as a quantity"),
    variable(
        "ZTUNNEL_RESOURCE_CPU_REQUEST",
        "",
        "CPU request as a quantity",
    ),
    variable(
        "RUST_LOG",
        "info",
        "level, or target=level, separated by commas; access=off: no access log",
    ),
    variable("LOG_FORMAT", "plain", "plain or json"),
    variable(
        "AUTHZ_POLICY_INFO_LOGGING",
        "false",
        "policy decisions at info",
    ),
    variable(
        "UNSTABLE_ENABLE_SOCKS5",
        "false",
        "true: pods can reach the mesh by SOCKS5 at 127.0.0.1:15080",
    ),
];

/// Known by name and refused where they ask for what this build doesn't do.
pub const REFUSED: &[Variable] = &[
    variable("PROXY_MODE", "shared", "only shared"),
    variable("ENABLE_PROXY", "true", "only true"),
    variable("FAKE_CA", "false", "only false"),
    variable("TLS12_ENABLED", "false", "only false"),
    variable("COMPLIANCE_POLICY", "", "must be unset"),
];
