// SPDX-License-Identifier: Apache-2.0
//! `/config_dump`: what the process believes, in the shape that `istioctl ztunnel-config` reads.
//!
//! Its keys and those inside them are Istio's. Ours are `refusals`, the latest connections that failed and why,
//! `ejectedEndpoints`, those that are avoided because they fail to connect, `limits`, what each pod has and may have
//! open, `dnsUpstreams`, `unbound`, why a pod is not the workload of its name, and `verdict` on each inbound connection:
//! the latest decision on it, naming the rule.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::SystemTime;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use identity::{CertificateState, CertificateStatus, Issued};
use mesh::{LocalConfig, Policy, Service, Workload};
use ops::admin::{AdminResponse, json};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Shown;
use crate::config::Local;
use crate::connections::ConnectionsView;
use crate::endpoints::EjectedView;
use crate::handover::ReportView;
use crate::limits::GatesView;
use crate::pods::PodInfo;
use crate::proxy::PodState;
use crate::record::RefusalEntry;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigDump<'a> {
    #[serde(flatten)]
    mesh: mesh::dump::Dump<'a>,
    static_config: StaticConfig,
    version: Version<'a>,
    config: BTreeMap<String, &'a str>,
    certificates: Vec<CertificateDump>,
    workload_state: BTreeMap<String, PodDump>,
    /// Where the names go that the mesh has nothing to say to; nothing where DNS is not served.
    dns_upstreams: Option<Vec<SocketAddr>>,
    refusals: Vec<RefusalEntry>,
    /// Processes that this one has relieved and that still carry connections.
    predecessors: Vec<ReportView>,
    ejected_endpoints: Vec<EjectedView>,
    /// By pod.
    limits: BTreeMap<String, GatesView>,
}

/// What the local file says at this moment, which may be more than was read at the start.
#[derive(Default, Serialize)]
struct StaticConfig {
    workloads: Vec<Workload>,
    policies: Vec<Policy>,
    services: Vec<Service>,
    /// Why it could not be read now.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl StaticConfig {
    fn now(local: Option<&Local>) -> Self {
        let text = match local {
            None => return Self::default(),
            Some(Local::Inline(text)) => Ok(text.clone()),
            Some(Local::File(path)) => std::fs::read_to_string(path)
                .map_err(|error| format!("{}: {error}", path.display())),
        };
        let parsed = text.and_then(|text| LocalConfig::parse(&text).map_err(|e| e.to_string()));
        match parsed {
            Ok(LocalConfig {
                workloads,
                services,
                policies,
            }) => Self {
                workloads,
                policies,
                services,
                error: None,
            },
            Err(error) => Self {
                error: Some(error),
                ..Self::default()
            },
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version<'a> {
    version: &'static str,
    git_revision: &'static str,
    rust_version: &'static str,
    build_profile: &'static str,
    /// Whether the sources were those of the revision.
    build_status: &'static str,
    istio_version: &'a str,
    crypto_provider: &'static str,
}

#[derive(Serialize)]
struct PodDump {
    state: PodState,
    info: PodInfo,
    /// Why its connections are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    unbound: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<ConnectionsView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CertificateDump {
    identity: String,
    state: String,
    cert_chain: Vec<IssuedDump>,
    root_certs: Vec<IssuedDump>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IssuedDump {
    /// Base64 of the PEM text.
    pem: String,
    serial_number: String,
    valid_from: String,
    expiration_time: String,
}

pub(super) fn config_dump(shown: &Shown) -> AdminResponse {
    let workload_state = shown.proxies.view().into_iter().map(|pod| {
        let dump = PodDump {
            state: pod.state,
            info: pod.info,
            unbound: pod.unbound.map(|unbound| unbound.to_string()),
            connections: pod.connections,
        };
        (pod.uid.to_string(), dump)
    });
    let mut certificates: Vec<_> = shown
        .certificates
        .states()
        .iter()
        .map(certificate_dump)
        .collect();
    certificates.sort_by(|a, b| a.identity.cmp(&b.identity));
    let store = shown.mesh.read();
    json(&ConfigDump {
        mesh: mesh::dump::Dump::of(&store),
        static_config: StaticConfig::now(shown.local.as_ref()),
        version: Version {
            version: env!("CARGO_PKG_VERSION"),
            git_revision: env!("BUILD_GIT_REVISION"),
            rust_version: env!("BUILD_RUST_VERSION"),
            build_status: env!("BUILD_STATUS"),
            build_profile: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
            istio_version: &shown.istio_version,
            crypto_provider: "aws-lc-rs",
        },
        config: shown
            .config
            .iter()
            .map(|(name, value)| (camel_case(name), value.as_str()))
            .collect(),
        certificates,
        workload_state: workload_state.collect(),
        dns_upstreams: shown.resolver.as_ref().map(|it| it.upstreams.servers()),
        refusals: shown.recorder.refusals().latest(),
        predecessors: shown.predecessors.view(),
        ejected_endpoints: shown.endpoints.ejected(),
        limits: shown.proxies.limits(),
    })
}

fn certificate_dump(status: &CertificateStatus) -> CertificateDump {
    let (state, chain, roots) = match &status.state {
        CertificateState::Initializing => ("Initializing".to_owned(), Vec::new(), Vec::new()),
        CertificateState::Available {
            certificate,
            renewal_failure,
        } => {
            let mut state = "Available".to_owned();
            if let Some(error) = renewal_failure {
                state.push_str(&format!(", renewal failed: {error}"));
            }
            if let Some(revoked) = certificate.revoked() {
                state.push_str(&format!(", but {revoked}"));
            }
            (state, certificate.chain(), certificate.root_chain())
        }
        CertificateState::Unavailable(error) => {
            (format!("Unavailable: {error}"), Vec::new(), Vec::new())
        }
    };
    CertificateDump {
        identity: status.identity.to_string(),
        state,
        cert_chain: chain.iter().map(issued_dump).collect(),
        root_certs: roots.iter().map(issued_dump).collect(),
    }
}

fn issued_dump(issued: &Issued) -> IssuedDump {
    IssuedDump {
        pem: BASE64.encode(issued.pem.as_bytes()),
        serial_number: issued.serial.clone(),
        valid_from: rfc3339(issued.not_before),
        expiration_time: rfc3339(issued.not_after),
    }
}

/// UTC with whole seconds.
fn rfc3339(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at);
    let whole = at.replace_nanosecond(0).unwrap_or(at);
    whole.format(&Rfc3339).unwrap_or_default()
}

/// `NODE_NAME` → `nodeName`.
fn camel_case(variable: &str) -> String {
    let mut text = String::with_capacity(variable.len());
    for (index, part) in variable.split('_').enumerate() {
        let part = part.to_ascii_lowercase();
        let mut chars = part.chars();
        match chars.next() {
            Some(first) if index > 0 => {
                text.push(first.to_ascii_uppercase());
                text.push_str(chars.as_str());
            }
            _ => text.push_str(&part),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_and_times_take_the_form_of_the_dump() {
        assert_eq!(camel_case("NODE_NAME"), "nodeName");
        assert_eq!(camel_case("HTTP2_FRAME_SIZE"), "http2FrameSize");
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        assert_eq!(rfc3339(at), "1970-01-01T00:00:01Z");
    }
}
