// SPDX-License-Identifier: Apache-2.0
//! Every variable this process reads, with its type, default and meaning.
//!
//! In: a map of variables, the mesh configuration file's text and the machine's CPU count, all handed in.
//! Out: one struct per component, or the list of all mistakes found, each naming its variable. Nothing else in the
//! process reads the environment, and no component sees the whole.

mod dns;
mod proxy_config;
mod read;
mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use identity::RootSource;
use ops::logging::LogConfig;
use ops::program;
use ops::variables::Reader;
pub use ops::variables::{ConfigError, Mistake};

pub use self::dns::{Dns, DnsListen};
use self::proxy_config::ProxyConfig;
pub use self::variables::{REFUSED, VARIABLES};

/// What the process was started with; parsing has no other input.
pub struct Sources {
    pub variables: BTreeMap<String, String>,
    /// Text of `./etc/istio/config/mesh`, where it exists.
    pub mesh_config: Option<String>,
    /// Logical CPUs of the machine.
    pub cpus: usize,
}

#[derive(Debug)]
pub struct Config {
    pub node: Node,
    /// None: no control plane, the local file is the whole mesh.
    pub xds: Option<Endpoint>,
    pub following: Following,
    pub ca: Endpoint,
    pub token: Token,
    pub secret_ttl: Duration,
    /// None: nothing is ever revoked.
    pub crl: Option<PathBuf>,
    pub local: Option<Local>,
    pub inpod: InPod,
    pub socks5: Socks5,
    /// None: pods' DNS is not served.
    pub dns: Option<Dns>,
    /// Names the upstream servers, for pods' DNS and for endpoints that are known by a name.
    pub resolv_conf: PathBuf,
    pub same_node: SameNode,
    pub tcp: Tcp,
    pub hbone: hbone::Config,
    pub baggage: Baggage,
    pub decisions: DecisionLog,
    /// Connections a pod may have; none: a share of what the descriptors allow.
    pub connections_per_pod: Option<usize>,
    pub half_open_tunnels_per_pod: u32,
    pub drain_deadline: Duration,
    pub handover: Handover,
    pub workers: usize,
    pub log: LogConfig,
    pub ports: Ports,
    /// Variable and value as used, secrets left out; for the start-up log and the configuration dump.
    pub effective: BTreeMap<String, String>,
}

/// Who this node is to the control plane.
#[derive(Debug, Clone)]
pub struct Node {
    pub name: Option<Arc<str>>,
    pub network: Arc<str>,
    pub cluster_id: Arc<str>,
    pub instance_ip: Option<String>,
    pub pod_name: String,
    pub pod_namespace: String,
    pub istio_version: String,
    /// What the node tells the control plane about itself, beside its fixed keys.
    pub metadata: BTreeMap<String, serde_json::Value>,
}

/// One service of the control plane: where it is and by what it is recognised.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub address: String,
    pub root: RootSource,
    pub alt_hostname: Option<String>,
    pub headers: Vec<(String, String)>,
}

/// How much of the mesh this node is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// All workloads and services.
    Everything,
    /// This node's workloads, and what its connections ask for.
    OnDemand,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    File(PathBuf),
    Literal(String),
    None,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Literal(_) => f.write_str("Literal"),
            Self::None => f.write_str("None"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Local {
    File(PathBuf),
    Inline(String),
}

/// How the process that starts takes over from the one that runs.
#[derive(Debug, Clone)]
pub struct Handover {
    /// None: each process opens listeners of its own.
    pub socket: Option<PathBuf>,
    /// How long the relieved process may carry what is open.
    pub deadline: Duration,
}

/// How pods are learned of and which sockets are opened inside them.
#[derive(Debug, Clone)]
pub struct InPod {
    pub socket: PathBuf,
    pub port_reuse: PortReuse,
    pub mark: u32,
    pub original_source: OriginalSource,
    pub ipv6: Ipv6,
    pub app_tunnel: AppTunnel,
}

/// Where applications that want PROXY protocol are handed their connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppTunnel {
    Loopback,
    PodAddress,
}

/// Whether pods can reach the mesh by SOCKS5 too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socks5 {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortReuse {
    Shared,
    Exclusive,
}

/// Whether applications see the address of the real client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginalSource {
    Never,
    WherePossible,
    Required,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    Enabled,
    Disabled,
}

/// Whether two pods of this node may be connected without a tunnel between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SameNode {
    Never,
    Always,
    /// If both are of these namespaces.
    Within(BTreeSet<String>),
}

impl SameNode {
    /// Whether a pod of the one namespace may be connected to one of the other.
    pub fn allows(&self, source: &str, destination: &str) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Within(namespaces) => {
                namespaces.contains(source) && namespaces.contains(destination)
            }
        }
    }
}

#[derive(Debug, Clone)]
pub struct Tcp {
    pub keepalive: Option<Keepalive>,
    /// Unacknowledged data older than this ends a connection.
    pub user_timeout: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
pub struct Keepalive {
    pub idle: Duration,
    pub interval: Duration,
    pub retries: u32,
}

/// Whether the baggage of peers is read and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baggage {
    Exchanged,
    SentOnly,
}

/// The level at which policy decisions are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionLog {
    Info,
    Debug,
}

#[derive(Debug, Clone, Copy)]
pub struct Ports {
    pub admin: u16,
    pub stats: u16,
    pub readiness: u16,
}

impl Config {
    pub fn from_sources(sources: &Sources) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(VARIABLES, &sources.variables);
        read::refuse_what_is_not_there(&mut reader);
        let proxy_config = ProxyConfig::read(&mut reader, sources.mesh_config.as_deref());
        let local = read::local(&mut reader);
        let node = read::node(&mut reader, &proxy_config);
        let xds = read::xds(&mut reader, &proxy_config);
        let ca = read::ca(&mut reader);
        let inpod = read::inpod(&mut reader);
        let dns = dns::dns(&mut reader, &node.metadata);
        let following = read::following(&mut reader, xds.as_ref(), dns.as_ref());
        let config = Self {
            node,
            xds,
            following,
            ca,
            token: read::token(&mut reader),
            secret_ttl: reader.duration("SECRET_TTL"),
            crl: read::crl(&mut reader),
            local,
            handover: read::handover(&mut reader, &inpod),
            inpod,
            socks5: reader.either("UNSTABLE_ENABLE_SOCKS5", Socks5::On, Socks5::Off),
            dns,
            resolv_conf: reader.text_with_default("RESOLV_CONF").into(),
            same_node: read::same_node(&mut reader),
            tcp: read::tcp(&mut reader),
            hbone: read::hbone(&mut reader),
            baggage: reader.either(
                "ENABLE_RESPONSE_BAGGAGE",
                Baggage::Exchanged,
                Baggage::SentOnly,
            ),
            decisions: reader.either(
                "AUTHZ_POLICY_INFO_LOGGING",
                DecisionLog::Info,
                DecisionLog::Debug,
            ),
            connections_per_pod: Some(reader.number("MAX_CONNECTIONS_PER_POD"))
                .filter(|most| *most > 0),
            half_open_tunnels_per_pod: reader
                .number_within("MAX_HALF_OPEN_TUNNELS_PER_POD", 1..=1_000_000),
            drain_deadline: read::drain_deadline(&mut reader),
            workers: read::workers(&mut reader, &proxy_config, sources.cpus),
            log: read::log(&mut reader),
            ports: Ports {
                admin: proxy_config.admin_port,
                stats: proxy_config.stats_port,
                readiness: 15021,
            },
            effective: BTreeMap::new(),
        };
        let effective = reader.finish()?;
        Ok(Self {
            effective,
            ..config
        })
    }
}

#[cfg(test)]
mod tests;

impl program::Config for Config {
    fn log(&self) -> &LogConfig {
        &self.log
    }

    fn effective(&self) -> &BTreeMap<String, String> {
        &self.effective
    }
}
