// SPDX-License-Identifier: Apache-2.0
//! An Envoy in each pod that does what a pair of ztunnels does: HTTP/2 CONNECT in mutual TLS 1.3 with certificates of the
//! same authority. It is told statically where to go, and its client dials it on loopback.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::load::{BULK, ECHO, HTTP};
use crate::handle::Lab;

/// Loopback ports that lead to the server's own ports on the other node, and on this one.
const FAR: u16 = 8_000;
const NEAR: u16 = 9_000;

pub(super) struct Envoy {
    processes: Vec<Running>,
}

struct Running {
    process: Child,
    /// By which the program is known among all processes of the machine.
    configuration: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

impl Envoy {
    pub(super) fn start(lab: &Lab, program: &Path) -> Result<Self> {
        ensure!(
            program.is_file(),
            "there is no Envoy at {}",
            program.display()
        );
        let mut processes = Vec::new();
        for (id, pod) in ["client", "far", "near"].iter().enumerate() {
            let place = format!("envoy/{pod}");
            let folder = lab.state().root().join(format!("envoy-{pod}"));
            std::fs::create_dir_all(&folder)?;
            let files = folder.to_str().context("a path that is text")?;
            certify(lab, pod, files)?;
            let forwards = match *pod {
                "client" => vec![
                    (FAR, lab.v4("envoy/far", 0)?.ip()),
                    (NEAR, lab.v4("envoy/near", 0)?.ip()),
                ],
                _ => vec![],
            };
            let configuration = folder.join("envoy.yaml");
            std::fs::write(&configuration, text(files, &forwards))?;
            let mut command = lab.command(&["exec", &place, "--"]);
            command.arg(program).arg("-c").arg(&configuration);
            command.args(["--base-id", &(20 + id).to_string()]);
            command.args(["--concurrency", "2", "-l", "warning"]);
            let process = command.stdin(Stdio::null()).spawn().context("Envoy")?;
            processes.push(Running {
                process,
                configuration: configuration.display().to_string(),
            });
        }
        Ok(Self { processes })
    }

    pub(super) fn way(&self, same_node: bool, port: u16) -> SocketAddr {
        let base = if same_node { NEAR } else { FAR };
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), base + (port - BULK))
    }

    pub(super) fn processor_seconds(&self) -> Result<f64> {
        let mut total = 0.0;
        for entry in std::fs::read_dir("/proc").context("cannot list processes")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let said = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = said.split('\0');
            let is_envoy = words.next().is_some_and(|program| !program.contains("e2e"));
            let mut ours = self.processes.iter();
            if is_envoy && ours.any(|one| said.split('\0').any(|word| word == one.configuration)) {
                total += crate::handle::processor_seconds(pid)?;
            }
        }
        Ok(total)
    }
}

fn certify(lab: &Lab, pod: &str, files: &str) -> Result<()> {
    let name = format!("envoy/{pod}");
    let mut arguments = ["native", "certify", "--directory", files]
        .map(str::to_owned)
        .to_vec();
    arguments.extend(lab.membership(&name, &name)?);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let status = lab.tool(&name, &arguments).status()?;
    ensure!(status.success(), "no certificate for {name}");
    Ok(())
}

/// Takes tunnels on 15008; each of these loopback ports leads by tunnel to a port of a server.
fn text(files: &str, forwards: &[(u16, IpAddr)]) -> String {
    let secrets = |indent: usize| {
        let text = format!(
            r#"alpn_protocols: [h2]
tls_params: {{tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}}
tls_certificates: [{{certificate_chain: {{filename: "{files}/certificate.pem"}}, private_key: {{filename: "{files}/key.pem"}}}}]
validation_context:
  trusted_ca: {{filename: "{files}/roots.pem"}}
  match_typed_subject_alt_names: [{{san_type: URI, matcher: {{prefix: "spiffe://cluster.local/ns/"}}}}]"#
        );
        text.replace('\n', &format!("\n{}", " ".repeat(indent)))
    };
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
            secrets(10)
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
        secrets(12)
    )
}
