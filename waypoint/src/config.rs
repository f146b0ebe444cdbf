// SPDX-License-Identifier: Apache-2.0
//! Every variable this process reads, with its type, default and meaning; the names are Istio's where it has one.
//!
//! In: a map of variables and the machine's CPU count, handed in. Out: one struct per component, or all mistakes found,
//! each naming its variable. Nothing else in the process reads the environment.

mod variables;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use identity::RootSource;
use ops::logging::{Format, LogConfig};
use ops::program;
use ops::variables::{ConfigError, Reader};
use spiffe::{SpiffeId, TrustDomain};

pub use self::variables::VARIABLES;

/// What the process was started with; parsing has no other input.
pub struct Sources {
    pub variables: BTreeMap<String, String>,
    /// Logical CPUs of the machine.
    pub cpus: usize,
}

#[derive(Debug)]
pub struct Config {
    pub own: Own,
    pub xds: Endpoint,
    pub ca: Endpoint,
    /// File with the token of the own service account.
    pub token: PathBuf,
    pub secret_ttl: Duration,
    pub hbone: hbone::Config,
    pub limits: Limits,
    pub drain_deadline: Duration,
    pub workers: usize,
    pub log: LogConfig,
    pub ports: Ports,
    /// Variable and value as used; for the start-up log and the configuration dump.
    pub effective: BTreeMap<String, String>,
}

/// Who this process is.
#[derive(Debug, Clone)]
pub struct Own {
    pub gateway: String,
    pub pod: String,
    pub namespace: String,
    pub service_account: String,
    pub identity: SpiffeId,
    pub address: IpAddr,
    pub node: String,
    pub network: Arc<str>,
    pub cluster_id: Arc<str>,
    pub istio_version: String,
    /// What it tells the control plane about itself, beside its fixed keys.
    pub metadata: BTreeMap<String, serde_json::Value>,
}

/// One service of the control plane: where it is and by what it is recognised.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub address: String,
    pub root: RootSource,
}

/// What may be open at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub tunnels: usize,
    pub connections: usize,
    /// Per worker.
    pub requests_per_endpoint: usize,
    /// To endpoints, of HTTP/1.
    pub idle_connections: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Ports {
    pub hbone: u16,
    pub admin: u16,
    pub stats: u16,
    pub readiness: u16,
}

impl Config {
    pub fn from_sources(sources: &Sources) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(VARIABLES, &sources.variables);
        let own = own(&mut reader);
        let xds = endpoint(&mut reader, "XDS_ADDRESS", "XDS_ROOT_CA");
        let ca = endpoint(&mut reader, "CA_ADDRESS", "CA_ROOT_CA");
        let token = reader.text_with_default("AUTH_TOKEN").into();
        let secret_ttl = reader.duration("SECRET_TTL");
        let hbone = hbone(&mut reader);
        let limits = Limits {
            tunnels: some(&mut reader, "MAX_TUNNELS", 1_000_000),
            connections: some(&mut reader, "MAX_CONNECTIONS", 10_000_000),
            requests_per_endpoint: some(&mut reader, "MAX_REQUESTS_PER_ENDPOINT", 1_000_000),
            idle_connections: some(&mut reader, "MAX_IDLE_CONNECTIONS", 1_000_000),
        };
        let drain_deadline = drain_deadline(&mut reader);
        let workers = workers(&mut reader, sources.cpus);
        let log = log(&mut reader);
        let effective = reader.finish()?;
        Ok(Self {
            own: own.expect("broken invariant: whatever leaves no identity was noted as a mistake"),
            xds,
            ca,
            token,
            secret_ttl,
            hbone,
            limits,
            drain_deadline,
            workers,
            log,
            ports: Ports {
                hbone: ::hbone::wire::PORT,
                admin: 15000,
                stats: 15020,
                readiness: 15021,
            },
            effective,
        })
    }
}

/// None where a mistake was noted that leaves no identity.
fn own(reader: &mut Reader<'_>) -> Option<Own> {
    let gateway = required(reader, "GATEWAY_NAME");
    let pod = required(reader, "POD_NAME");
    let namespace = required(reader, "POD_NAMESPACE");
    let service_account = reader.text_with_default("SERVICE_ACCOUNT");
    let domain = reader.text_with_default("TRUST_DOMAIN");
    let domain = match domain.parse::<TrustDomain>() {
        Ok(domain) => Some(domain),
        Err(error) => {
            reader.mistake("TRUST_DOMAIN", &error.to_string());
            None
        }
    };
    let address = required(reader, "INSTANCE_IP");
    let address = match address.as_deref().map(str::parse::<IpAddr>) {
        Some(Ok(address)) => Some(address.to_canonical()),
        Some(Err(_)) => {
            let text = address.unwrap_or_default();
            reader.mistake("INSTANCE_IP", &format!("{text:?} is not an IP address"));
            None
        }
        None => None,
    };
    let cluster_id = reader
        .text("ISTIO_META_CLUSTER_ID")
        .filter(|id| !id.is_empty())
        .unwrap_or_else(|| reader.text_with_default("CLUSTER_ID"));
    let node = reader.text("NODE_NAME").unwrap_or_default();
    let network = reader.text("NETWORK").unwrap_or_default();
    let istio_version = reader.text_with_default("ISTIO_META_ISTIO_VERSION");
    let metadata = reader.metadata();
    let (domain, namespace) = (domain?, namespace?);
    let identity = match SpiffeId::new(&domain, &namespace, &service_account) {
        Ok(identity) => identity,
        Err(error) => {
            reader.mistake("SERVICE_ACCOUNT", &error.to_string());
            return None;
        }
    };
    Some(Own {
        gateway: gateway?,
        pod: pod?,
        namespace,
        service_account,
        identity,
        address: address?,
        node,
        network: network.into(),
        cluster_id: cluster_id.into(),
        istio_version,
        metadata,
    })
}

fn required(reader: &mut Reader<'_>, name: &str) -> Option<String> {
    let value = reader.text(name).filter(|value| !value.is_empty());
    if value.is_none() {
        reader.mistake(name, "must be set");
    }
    value
}

fn some(reader: &mut Reader<'_>, name: &str, most: u32) -> usize {
    usize::try_from(reader.number_within(name, 1..=most)).unwrap_or(usize::MAX)
}

fn endpoint(reader: &mut Reader<'_>, address: &str, root: &str) -> Endpoint {
    let text = reader.text_with_default(address);
    if text.is_empty() {
        reader.mistake(address, "must not be empty");
    }
    let source = reader.text_with_default(root).into();
    if matches!(source, RootSource::Inline(_)) {
        reader.effective(root, "inline PEM");
    }
    Endpoint {
        address: reader.https(address, &text),
        root: source,
    }
}

fn hbone(reader: &mut Reader<'_>) -> hbone::Config {
    let engine = match &*reader.text_with_default("HBONE_ENGINE") {
        "library" => hbone::Engine::Library,
        "own" => hbone::Engine::Own,
        _ => {
            reader.mistake("HBONE_ENGINE", "is neither own nor library");
            hbone::Engine::Own
        }
    };
    hbone::Config {
        engine,
        ..hbone::Config::default()
    }
}

/// Shorter than the grace period, so that the process ends by itself before it is killed.
fn drain_deadline(reader: &mut Reader<'_>) -> Duration {
    let explicit = reader.optional_duration("CONNECTION_TERMINATION_DEADLINE");
    let grace: Option<u64> = reader.optional_number("TERMINATION_GRACE_PERIOD_SECONDS");
    ops::shutdown::drain_deadline(explicit, grace.map(Duration::from_secs))
}

fn workers(reader: &mut Reader<'_>, cpus: usize) -> usize {
    let threads = reader.threads("WAYPOINT_WORKER_THREADS", cpus.max(1));
    threads.unwrap_or_else(|| cpus.max(2))
}

fn log(reader: &mut Reader<'_>) -> LogConfig {
    let format = match &*reader.text_with_default("LOG_FORMAT") {
        "json" => Format::Json,
        "plain" => Format::Plain,
        other => {
            reader.mistake(
                "LOG_FORMAT",
                &format!("{other:?} is not one of plain, json"),
            );
            Format::Plain
        }
    };
    LogConfig {
        filter: reader.text_with_default("RUST_LOG"),
        format,
        always: "",
    }
}

impl program::Config for Config {
    fn log(&self) -> &LogConfig {
        &self.log
    }

    fn effective(&self) -> &BTreeMap<String, String> {
        &self.effective
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let variables = variables.iter();
        Config::from_sources(&Sources {
            variables: variables
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            cpus: 4,
        })
    }

    const LEAST: [(&str, &str); 4] = [
        ("GATEWAY_NAME", "wp"),
        ("POD_NAME", "wp-1"),
        ("POD_NAMESPACE", "shop"),
        ("INSTANCE_IP", "10.0.0.7"),
    ];

    #[test]
    fn little_is_needed() {
        let config = read(&LEAST).unwrap();
        assert_eq!(
            config.own.identity.as_str(),
            "spiffe://cluster.local/ns/shop/sa/default"
        );
        assert_eq!(config.workers, 4);
        assert_eq!(config.xds.address, "https://istiod.istio-system.svc:15012");
        assert_eq!(config.effective["POD_NAME"], "wp-1");
        assert_eq!(config.effective["MAX_TUNNELS"], "10000");
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let error = read(&[
            ("INSTANCE_IP", "here"),
            ("TRUST_DOMAIN", "NOT A DOMAIN"),
            ("MAX_TUNNELS", "0"),
            ("LOG_FORMAT", "xml"),
            ("XDS_ADDRESS", "http://plain"),
        ])
        .unwrap_err();
        let named: Vec<&str> = error
            .mistakes
            .iter()
            .map(|mistake| mistake.variable.as_str())
            .collect();
        for name in [
            "GATEWAY_NAME",
            "POD_NAME",
            "POD_NAMESPACE",
            "INSTANCE_IP",
            "TRUST_DOMAIN",
            "MAX_TUNNELS",
            "LOG_FORMAT",
            "XDS_ADDRESS",
        ] {
            assert!(named.contains(&name), "{name} in {named:?}");
        }
    }
}
