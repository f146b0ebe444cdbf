// SPDX-License-Identifier: Apache-2.0
//! Envoy as a waypoint, told statically to do what ours does by its routes and policies.
//!
//! ```text
//!  15008: TLS, HTTP/2, CONNECT ─► requests: RBAC, route by header ─► onward: a stream for each connection ═► 15008 of the server
//! ```
//! The arrows inside are its internal listeners: connections that leave the process nowhere.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::bench::envoy::secrets;

const TYPES: &str = "type.googleapis.com/envoy";

/// The configuration; requests for `x-version: v0` go by the last of so many routes.
pub(super) fn text(files: &str, server: SocketAddr, routes: usize) -> String {
    let mut table = String::new();
    for value in (1..routes).chain([0]) {
        let _ = writeln!(
            table,
            "              - {{match: {{prefix: /, headers: [{{name: x-version, string_match: {{exact: v{value}}}}}]}}, route: {{cluster: server, timeout: 0s}}}}"
        );
    }
    let inbound = secrets(files, 12);
    let outbound = secrets(files, 10);
    let (peer, log) = (server.ip(), format!("{files}/access.log"));
    format!(
        r#"node: {{id: bench, cluster: lab}}
bootstrap_extensions:
- name: envoy.bootstrap.internal_listener
  typed_config: {{"@type": {TYPES}.extensions.bootstrap.internal_listener.v3.InternalListener}}
static_resources:
  listeners:
  - name: tunnels
    address: {{socket_address: {{address: 0.0.0.0, port_value: 15008}}}}
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": {TYPES}.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            {inbound}
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: tunnels
          codec_type: HTTP2
          stream_idle_timeout: 0s
          http2_protocol_options: {{allow_connect: true}}
          upgrade_configs: [{{upgrade_type: CONNECT}}]
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{connect_matcher: {{}}}}
                route: {{cluster: requests, timeout: 0s, upgrade_configs: [{{upgrade_type: CONNECT, connect_config: {{}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": {TYPES}.extensions.filters.http.router.v3.Router}}
  - name: requests
    internal_listener: {{}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: requests
          stream_idle_timeout: 0s
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": {TYPES}.extensions.access_loggers.file.v3.FileAccessLog
              path: {log}
              log_format:
                json_format: {{time: "%START_TIME%", method: "%REQ(:METHOD)%", path: "%REQ(:PATH)%", code: "%RESPONSE_CODE%", flags: "%RESPONSE_FLAGS%", received: "%BYTES_RECEIVED%", sent: "%BYTES_SENT%", duration: "%DURATION%", upstream: "%UPSTREAM_HOST%", id: "%REQ(X-REQUEST-ID)%"}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
{table}          http_filters:
          - name: envoy.filters.http.rbac
            typed_config:
              "@type": {TYPES}.extensions.filters.http.rbac.v3.RBAC
              rules:
                action: ALLOW
                policies:
                  front:
                    permissions: [{{and_rules: {{rules: [{{header: {{name: ":method", string_match: {{exact: GET}}}}}}, {{url_path: {{path: {{exact: /sixty-four}}}}}}]}}}}]
                    principals: [{{any: true}}]
          - name: envoy.filters.http.router
            typed_config: {{"@type": {TYPES}.extensions.filters.http.router.v3.Router}}
  - name: onward
    internal_listener: {{}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": {TYPES}.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: onward
          cluster: tunnel
          tunneling_config: {{hostname: "{server}"}}
  clusters:
  - name: requests
    circuit_breakers: {{thresholds: [{{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}]}}
    load_assignment:
      cluster_name: requests
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{envoy_internal_address: {{server_listener_name: requests}}}}}}}}]}}]
  - name: server
    circuit_breakers: {{thresholds: [{{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}]}}
    load_assignment:
      cluster_name: server
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{envoy_internal_address: {{server_listener_name: onward}}}}}}}}]}}]
  - name: tunnel
    type: STATIC
    circuit_breakers: {{thresholds: [{{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}]}}
    load_assignment:
      cluster_name: tunnel
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {peer}, port_value: 15008}}}}}}}}]}}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": {TYPES}.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          {outbound}
"#
    )
}
