// SPDX-License-Identifier: Apache-2.0
//! From variables to each component's settings, one function per component.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::proxy_config::ProxyConfig;
use super::{
    AppTunnel, Dns, Endpoint, Following, Handover, InPod, Ipv6, Keepalive, Local, Node,
    OriginalSource, PortReuse, SameNode, Tcp, Token,
};
use identity::RootSource;
use ops::logging::{Format, LogConfig};
use ops::variables::Reader;

/// A variable that asks for something this build doesn't do is a mistake: ignoring it would let a user believe that
/// the mesh does what it doesn't.
pub(super) fn refuse_what_is_not_there(reader: &mut Reader<'_>) {
    reader.refuse_when(
        "FAKE_CA",
        "true",
        "self-signed test certificates are not part of this build; set CA_ADDRESS",
    );
    reader.refuse_when(
        "TLS12_ENABLED",
        "true",
        "only TLS 1.3 is spoken; leave it unset",
    );
    reader.refuse_when(
        "ENABLE_PROXY",
        "false",
        "a process without proxies would do nothing; leave it unset",
    );
    reader.refuse_when(
        "PROXY_MODE",
        "dedicated",
        "only `shared` is supported; leave it unset",
    );
    reader.refuse_when_set(
        "COMPLIANCE_POLICY",
        "restricted key exchange is not supported yet; leave it unset",
    );
    reader.one_of("PROXY_MODE", &["shared", "dedicated"]);
    for name in ["FAKE_CA", "TLS12_ENABLED"] {
        reader.one_of(name, &["true", "false"]);
    }
    reader.one_of("ENABLE_PROXY", &["true", "false"]);
}

pub(super) fn local(reader: &mut Reader<'_>) -> Option<Local> {
    let path = reader
        .text("LOCAL_XDS_PATH")
        .filter(|path| !path.is_empty());
    let inline = reader.secret("LOCAL_XDS").filter(|text| !text.is_empty());
    match (path, inline) {
        (Some(_), Some(_)) => {
            reader.mistake(
                "LOCAL_XDS",
                "LOCAL_XDS_PATH is set too; set only one of them",
            );
            None
        }
        (Some(path), None) => Some(Local::File(path.into())),
        (None, Some(text)) => Some(Local::Inline(text)),
        (None, None) => None,
    }
}

pub(super) fn node(reader: &mut Reader<'_>, proxy_config: &ProxyConfig) -> Node {
    let cluster_id = reader
        .text("ISTIO_META_CLUSTER_ID")
        .or_else(|| proxy_config.metadata.get("CLUSTER_ID").cloned())
        .or_else(|| reader.text("CLUSTER_ID"))
        .filter(|id| !id.is_empty())
        .unwrap_or_else(|| "Kubernetes".to_owned());
    Node {
        name: reader
            .text("NODE_NAME")
            .filter(|name| !name.is_empty())
            .map(Arc::from),
        network: reader.text("NETWORK").unwrap_or_default().into(),
        cluster_id: cluster_id.into(),
        instance_ip: reader.text("INSTANCE_IP").filter(|ip| !ip.is_empty()),
        pod_name: reader.text("POD_NAME").unwrap_or_default(),
        pod_namespace: reader.text("POD_NAMESPACE").unwrap_or_default(),
        istio_version: reader
            .text("ISTIO_META_ISTIO_VERSION")
            .unwrap_or_else(|| "unknown".to_owned()),
        metadata: metadata(reader, proxy_config),
    }
}

fn metadata(
    reader: &mut Reader<'_>,
    proxy_config: &ProxyConfig,
) -> BTreeMap<String, serde_json::Value> {
    let mut metadata = BTreeMap::new();
    for (key, value) in &proxy_config.metadata {
        metadata.insert(key.clone(), serde_json::Value::String(value.clone()));
    }
    metadata.extend(reader.metadata());
    metadata
}

pub(super) fn xds(reader: &mut Reader<'_>, proxy_config: &ProxyConfig) -> Option<Endpoint> {
    let default = proxy_config
        .discovery_address
        .clone()
        .unwrap_or_else(|| default_control_plane(reader));
    let address = reader.text_or("XDS_ADDRESS", &default);
    let root = root(reader, "XDS_ROOT_CA");
    let alt_hostname = reader
        .text("ALT_XDS_HOSTNAME")
        .filter(|name| !name.is_empty());
    let headers = reader.secrets_with_prefix("XDS_HEADER_");
    if address.is_empty() {
        return None;
    }
    let address = reader.https("XDS_ADDRESS", &address);
    Some(Endpoint {
        address,
        root,
        alt_hostname,
        headers,
    })
}

/// DNS can't tell a name that nobody asked for from one that nobody has: it needs the whole mesh.
pub(super) fn following(
    reader: &mut Reader<'_>,
    control_plane: Option<&Endpoint>,
    dns: Option<&Dns>,
) -> Following {
    let following = reader.either("XDS_ON_DEMAND", Following::OnDemand, Following::Everything);
    let mistake = match following {
        Following::Everything => None,
        Following::OnDemand if control_plane.is_none() => {
            Some("there is nobody to ask: XDS_ADDRESS is empty")
        }
        Following::OnDemand if dns.is_some() => {
            Some("pods' DNS needs the whole mesh; set ISTIO_META_DNS_CAPTURE to false")
        }
        Following::OnDemand => None,
    };
    if let Some(mistake) = mistake {
        reader.mistake("XDS_ON_DEMAND", mistake);
    }
    following
}

pub(super) fn ca(reader: &mut Reader<'_>) -> Endpoint {
    let default = default_control_plane(reader);
    let address = reader.text_or("CA_ADDRESS", &default);
    if address.is_empty() {
        reader.mistake(
            "CA_ADDRESS",
            "is empty; workloads need a certificate authority",
        );
    }
    Endpoint {
        address: reader.https("CA_ADDRESS", &address),
        root: root(reader, "CA_ROOT_CA"),
        alt_hostname: reader
            .text("ALT_CA_HOSTNAME")
            .filter(|name| !name.is_empty()),
        headers: reader.secrets_with_prefix("CA_HEADER_"),
    }
}

fn default_control_plane(reader: &mut Reader<'_>) -> String {
    let in_cluster = reader.text("KUBERNETES_SERVICE_HOST").is_some();
    if in_cluster {
        "https://istiod.istio-system.svc:15012"
    } else {
        "https://localhost:15012"
    }
    .to_owned()
}

fn root(reader: &mut Reader<'_>, name: &str) -> RootSource {
    let root = reader
        .text_or(name, "./var/run/secrets/istio/root-cert.pem")
        .into();
    if matches!(root, RootSource::Inline(_)) {
        reader.effective(name, "inline PEM");
    }
    root
}

pub(super) fn crl(reader: &mut Reader<'_>) -> Option<std::path::PathBuf> {
    let path = reader.text("CRL_PATH").filter(|path| !path.is_empty())?;
    Some(path.into())
}

pub(super) fn token(reader: &mut Reader<'_>) -> Token {
    const DEFAULT: &str = "./var/run/secrets/tokens/istio-token";
    match reader
        .secret("AUTH_TOKEN")
        .filter(|token| !token.is_empty())
    {
        Some(token) if token.contains('/') || std::path::Path::new(&token).exists() => {
            reader.effective("AUTH_TOKEN", &token);
            Token::File(token.into())
        }
        Some(token) => Token::Literal(token),
        None if std::path::Path::new(DEFAULT).exists() => {
            reader.effective("AUTH_TOKEN", DEFAULT);
            Token::File(DEFAULT.into())
        }
        None => Token::None,
    }
}

pub(super) fn inpod(reader: &mut Reader<'_>) -> InPod {
    let original_source = match reader.optional_bool("ENABLE_ORIG_SRC") {
        Some(true) => OriginalSource::Required,
        Some(false) => OriginalSource::Never,
        None => OriginalSource::WherePossible,
    };
    InPod {
        socket: reader
            .text_or("INPOD_UDS", "/var/run/ztunnel/ztunnel.sock")
            .into(),
        port_reuse: reader.either("INPOD_PORT_REUSE", PortReuse::Shared, PortReuse::Exclusive),
        mark: reader.mark("PACKET_MARK", capture::contract::PACKET_MARK.value),
        original_source,
        ipv6: reader.either("IPV6_ENABLED", Ipv6::Enabled, Ipv6::Disabled),
        app_tunnel: reader.either(
            "LOCALHOST_APP_TUNNEL",
            AppTunnel::Loopback,
            AppTunnel::PodAddress,
        ),
    }
}

/// A list by name, so that nobody opens the whole mesh with a slip of the pen.
pub(super) fn same_node(reader: &mut Reader<'_>) -> SameNode {
    const NAME: &str = "SAME_NODE_SHORTCUT";
    let text = reader.text_with_default(NAME);
    match text.trim() {
        "false" | "" => return SameNode::Never,
        "true" => return SameNode::Always,
        _ => {}
    }
    let names = text.split(',').map(str::trim);
    let (good, bad): (Vec<_>, Vec<_>) = names.partition(|name| is_namespace(name));
    for name in bad {
        let reason = format!("is true, false, or names of namespaces; {name:?} is none of them");
        reader.mistake(NAME, &reason);
    }
    if good.iter().any(|name| ["true", "false"].contains(name)) {
        reader.mistake(NAME, "is true, false, or names of namespaces; not both");
    }
    SameNode::Within(good.into_iter().map(str::to_owned).collect())
}

/// A label of RFC 1123, as Kubernetes wants it.
fn is_namespace(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| letter(*byte) || *byte == b'-')
        && letter(bytes[0])
        && letter(bytes[bytes.len() - 1])
}

pub(super) fn handover(reader: &mut Reader<'_>, inpod: &InPod) -> Handover {
    // Two on one machine, each with an agent of its own, are not each other's successors.
    let beside = inpod.socket.with_extension("handover");
    let socket = reader.text_or("HANDOVER_UDS", &beside.to_string_lossy());
    Handover {
        socket: (socket != "none").then(|| socket.into()),
        deadline: reader.duration("HANDOVER_DRAIN_DEADLINE"),
    }
}

pub(super) fn tcp(reader: &mut Reader<'_>) -> Tcp {
    let keepalive = Keepalive {
        idle: reader.duration("KEEPALIVE_TIME"),
        interval: reader.duration("KEEPALIVE_INTERVAL"),
        retries: reader.number("KEEPALIVE_RETRIES"),
    };
    if keepalive.idle < Duration::from_secs(1) || keepalive.interval < Duration::from_secs(1) {
        reader.mistake(
            "KEEPALIVE_TIME",
            "and KEEPALIVE_INTERVAL must be at least 1s",
        );
    }
    let longest = keepalive
        .idle
        .saturating_add(keepalive.interval.saturating_mul(keepalive.retries));
    Tcp {
        user_timeout: reader.either("USER_TIMEOUT_ENABLED", Some(longest), None),
        keepalive: reader.either("KEEPALIVE_ENABLED", Some(keepalive), None),
    }
}

pub(super) fn hbone(reader: &mut Reader<'_>) -> hbone::Config {
    let stream_window: u32 = reader.number_within("HTTP2_STREAM_WINDOW_SIZE", 65_535..=0x7fff_ffff);
    let connection_window: u32 =
        reader.number_within("HTTP2_CONNECTION_WINDOW_SIZE", 65_535..=0x7fff_ffff);
    if connection_window < stream_window {
        reader.mistake(
            "HTTP2_CONNECTION_WINDOW_SIZE",
            "is smaller than HTTP2_STREAM_WINDOW_SIZE",
        );
    }
    let max_frame: u32 = reader.number_within("HTTP2_FRAME_SIZE", 16_384..=16_777_215);
    let pool_max_streams: u32 =
        reader.number_within("POOL_MAX_STREAMS_PER_CONNECTION", 1..=1_000_000);
    let pool_unused_release = reader.duration("POOL_UNUSED_RELEASE_TIMEOUT");
    let engine = match &*reader.text_or("HBONE_ENGINE", "own") {
        "library" => hbone::Engine::Library,
        "own" => hbone::Engine::Own,
        _ => {
            reader.mistake("HBONE_ENGINE", "is neither own nor library");
            hbone::Engine::Own
        }
    };
    hbone::Config {
        engine,
        stream_window,
        connection_window,
        max_frame,
        pool_max_streams,
        pool_unused_release,
        ..hbone::Config::default()
    }
}

/// Shorter than the grace period, so that the process ends by itself before it is killed.
pub(super) fn drain_deadline(reader: &mut Reader<'_>) -> Duration {
    let explicit = reader.optional_duration("CONNECTION_TERMINATION_DEADLINE");
    let grace: Option<u64> = reader.optional_number("TERMINATION_GRACE_PERIOD_SECONDS");
    ops::shutdown::drain_deadline(explicit, grace.map(Duration::from_secs))
}

pub(super) fn workers(
    reader: &mut Reader<'_>,
    proxy_config: &ProxyConfig,
    machine: usize,
) -> usize {
    let limit = reader.quantity("ZTUNNEL_RESOURCE_CPU_LIMIT");
    let limit = reader
        .optional_number("ZTUNNEL_CPU_LIMIT")
        .filter(|n| *n > 0)
        .map_or(limit, |n| limit.or(Some(n)));
    let request = reader.quantity("ZTUNNEL_RESOURCE_CPU_REQUEST").unwrap_or(0);
    let cpus = limit.unwrap_or(machine).max(1);
    if let Some(threads) = reader.threads("ZTUNNEL_WORKER_THREADS", cpus) {
        return threads;
    }
    match (proxy_config.concurrency, limit) {
        (Some(0), _) => cpus,
        (Some(concurrency), _) => concurrency,
        (None, Some(limit)) => limit.max(request).max(1),
        (None, None) => cpus.div_ceil(4).max(request).max(2),
    }
}

pub(super) fn log(reader: &mut Reader<'_>) -> LogConfig {
    reader.one_of("LOG_FORMAT", &["plain", "json"]);
    let format = match reader.text("LOG_FORMAT").as_deref() {
        Some("json") => Format::Json,
        _ => Format::Plain,
    };
    LogConfig {
        filter: reader.text_or("RUST_LOG", "info"),
        format,
        // Who switches the access log off still wants to know whom a policy kept out.
        always: "denied=warn",
    }
}
