// SPDX-License-Identifier: Apache-2.0
//! An Envoy in each pod that does what a pair of ztunnels does: HTTP/2 CONNECT in mutual TLS 1.3 with certificates of the
//! same authority. It is told statically where to go, and its client dials it on loopback.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result};

use super::load::{BULK, ECHO, HTTP};
use crate::bench::envoy::{self, secrets};
use crate::handle::Lab;

/// Loopback ports that lead to the server's own ports on the other node, and on this one; the pod's application serves none
/// of them.
const FAR: u16 = 17_000;
const NEAR: u16 = 18_000;

pub(super) struct Envoy {
    processes: Vec<envoy::Envoy>,
}

impl Envoy {
    pub(super) fn start(lab: &Lab, program: &Path) -> Result<Self> {
        let mut processes = Vec::new();
        for (pod, id) in [("client", 20), ("far", 21), ("near", 22)] {
            let forwards = match pod {
                "client" => vec![
                    (FAR, lab.v4("envoy/far", 0)?.ip()),
                    (NEAR, lab.v4("envoy/near", 0)?.ip()),
                ],
                _ => vec![],
            };
            let place = format!("envoy/{pod}");
            let told = |files: &str| text(files, &forwards);
            let one = envoy::Envoy::start(lab, &place, (program, id), told);
            processes.push(one.with_context(|| place.clone())?);
        }
        Ok(Self { processes })
    }

    pub(super) fn way(&self, same_node: bool, port: u16) -> SocketAddr {
        let base = if same_node { NEAR } else { FAR };
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), base + (port - BULK))
    }

    pub(super) fn processor_seconds(&self) -> Result<f64> {
        let each = self.processes.iter();
        each.map(|one| crate::handle::processor_seconds(one.pid()?))
            .sum()
    }
}

/// Takes tunnels on 15008; each of these loopback ports leads by tunnel to a port of a server.
fn text(files: &str, forwards: &[(u16, IpAddr)]) -> String {
    let mut listeners = String::new();
    let mut clusters = String::new();
    for (base, server) in forwards {
        for port in [BULK, HTTP, ECHO] {
            let local = base + (port - BULK);
            let _ = write!(
                listeners,
                r#"  - name: outbound-{local}
    address: {{socket_address: {{address: 127.0.0.1, port_value: {local}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: outbound
          cluster: server-{base}
          tunneling_config: {{hostname: "{server}:{port}"}}
"#
            );
        }
        let _ = write!(
            clusters,
            r#"  - name: server-{base}
    type: STATIC
    load_assignment:
      cluster_name: server-{base}
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {server}, port_value: 15008}}}}}}}}]}}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          {}
"#,
            secrets(files, 10)
        );
    }
    format!(
        r#"node: {{id: bench, cluster: lab}}
static_resources:
  listeners:
{listeners}  - name: inbound
    address: {{socket_address: {{address: 0.0.0.0, port_value: 15008}}}}
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            {}
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: inbound
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
                route: {{cluster: application, timeout: 0s, upgrade_configs: [{{upgrade_type: CONNECT, connect_config: {{}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: application
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    original_dst_lb_config: {{use_http_header: true, http_header_name: ":authority"}}
{clusters}"#,
        secrets(files, 12)
    )
}
