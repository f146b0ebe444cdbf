// SPDX-License-Identifier: Apache-2.0
//! A BackendTLSPolicy: how waypoints begin TLS with what stands behind a service (Gateway API, GEP-1897). Pure.
//!
//! What can't be honoured closes the service's port to routes: without it, requests would go out in plain, or to whoever
//! answers. Where a DestinationRule speaks of TLS as well, the policy counts.

use cluster::kinds::{self, ParentReference, SubjectAltNameType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::route::ParentKey;
use crate::facts::{NamespacedName, Problem, Read, created, endpoint::is_host};

const ISTIO_GROUP: &str = "networking.istio.io";
/// Where a ConfigMap has certificates.
pub const AUTHORITIES_KEY: &str = "ca.crt";
/// Bytes of certificates that one policy may have from all its ConfigMaps.
pub const MOST_BYTES: usize = 256 << 10;

const MAX_TARGETS: usize = 16;
const MAX_REFERENCES: usize = 8;
const MAX_NAMES: usize = 5;

/// A BackendTLSPolicy, checked as far as it goes by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendTls {
    /// When it was made: the oldest for a port counts.
    pub created: Option<i64>,
    /// What it is for.
    pub targets: Vec<Target>,
    /// Told to servers, and whom they have to be unless there are names.
    pub server_name: String,
    /// DNS names and URIs, of which a server has to prove one.
    pub names: Vec<String>,
    /// Who certifies servers.
    pub authorities: Authorities,
    /// Why it can't be honoured, whatever else there is.
    pub invalid: Option<String>,
    /// What of it is left out.
    pub notes: Vec<String>,
}

/// A service that a policy is for, or one port of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// As its status names it.
    pub reference: ParentReference,
    /// The service, or why it is none.
    pub key: Result<ParentKey, String>,
    /// The name of a port; none: all of them.
    pub port: Option<String>,
}

/// Who certifies servers.
#[derive(Debug, Clone, PartialEq)]
pub enum Authorities {
    /// Whom the waypoint's system trusts.
    System,
    /// Those of these ConfigMaps; of each that is none, why.
    Listed(Vec<Result<NamespacedName, String>>),
}

/// Reads a policy.
pub fn read(written: &kinds::BackendTLSPolicy) -> Read<BackendTls> {
    let spec = &written.spec;
    let namespace = written.metadata.namespace.as_deref().unwrap_or_default();
    let mut closed = Vec::new();
    let mut notes = Vec::new();
    let validation = &spec.validation;
    for field in spec.unknown_fields.keys() {
        closed.push(Problem::new(format!("spec.{field}"), "is not known"));
    }
    for field in validation.unknown_fields.keys() {
        let field = format!("spec.validation.{field}");
        closed.push(Problem::new(field, "is not known"));
    }
    for option in spec.options.keys() {
        let field = format!("spec.options[{option}]");
        notes.push(Problem::new(field, "is not used by waypoints"));
    }
    let server_name = validation.hostname.to_ascii_lowercase();
    if !is_host(&server_name) || server_name.starts_with('*') {
        let words = format!("{server_name:?} is no name of a server");
        closed.push(Problem::new("spec.validation.hostname", words));
    }
    let names = names(&validation.subject_alt_names, &mut closed);
    let authorities = authorities(validation, namespace, &mut closed);
    let targets = &spec.target_refs;
    let bounds = [
        ("spec.targetRefs", targets.len(), MAX_TARGETS),
        (
            "spec.validation.caCertificateRefs",
            validation.ca_certificate_refs.len(),
            MAX_REFERENCES,
        ),
    ];
    for (field, count, most) in bounds {
        if count > most {
            let words = format!("has {count} entries, {most} may be");
            closed.push(Problem::new(field, words));
        }
    }
    let targets = targets.iter().take(MAX_TARGETS);
    let targets = targets.map(|target| self::target(target, namespace));
    let said = |problems: &[Problem]| super::route::said(problems);
    Read {
        facts: BackendTls {
            created: created(&written.metadata),
            targets: targets.collect(),
            server_name,
            names,
            authorities,
            invalid: (!closed.is_empty()).then(|| said(&closed)),
            notes: notes.iter().map(ToString::to_string).collect(),
        },
        problems: closed.into_iter().chain(notes).collect(),
    }
}

fn target(written: &kinds::PolicyTarget, namespace: &str) -> Target {
    let name = NamespacedName::new(namespace, written.name.as_str());
    let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    Target {
        reference: ParentReference {
            group: Some(written.group.clone()),
            kind: Some(written.kind.clone()),
            name: written.name.clone(),
            section_name: filled(&written.section_name),
            ..ParentReference::default()
        },
        key: match (written.group.as_str(), written.kind.as_str()) {
            ("", "Service") => Ok(ParentKey::Service(name)),
            (ISTIO_GROUP, "ServiceEntry") => Ok(ParentKey::Entry(name)),
            (group, kind) => Err(format!(
                "{kind} of group {group:?} is nothing that such a policy can be for"
            )),
        },
        port: filled(&written.section_name),
    }
}

fn names(written: &[kinds::SubjectAltName], closed: &mut Vec<Problem>) -> Vec<String> {
    if written.len() > MAX_NAMES {
        let words = format!("has {} entries, {MAX_NAMES} may be", written.len());
        closed.push(Problem::new("spec.validation.subjectAltNames", words));
    }
    let mut names = Vec::new();
    for (position, name) in written.iter().take(MAX_NAMES).enumerate() {
        let name = match name.type_ {
            None | Some(SubjectAltNameType::Hostname) => {
                let host = name.hostname.to_ascii_lowercase();
                let is_one = is_host(&host);
                let words = "hostname is no DNS name; a wildcard is not supported";
                is_one.then_some(host).ok_or(words)
            }
            Some(SubjectAltNameType::Uri) => {
                let uri = name.uri.parse::<http::Uri>();
                let is_one = uri.is_ok_and(|uri| uri.scheme().is_some());
                let uri = is_one.then(|| name.uri.clone());
                uri.ok_or("uri is none that names its scheme and authority")
            }
            Some(SubjectAltNameType::Unknown(_)) => Err("type is neither Hostname nor URI"),
        };
        match name {
            Ok(name) => names.push(name),
            Err(words) => {
                let field = format!("spec.validation.subjectAltNames[{position}]");
                closed.push(Problem::new(field, words));
            }
        }
    }
    names
}

fn authorities(
    written: &kinds::BackendTLSValidation,
    namespace: &str,
    closed: &mut Vec<Problem>,
) -> Authorities {
    let listed = &written.ca_certificate_refs;
    let known = written
        .well_known
        .as_deref()
        .filter(|known| !known.is_empty());
    match (listed.as_slice(), known) {
        ([], Some("System")) => return Authorities::System,
        ([], Some(other)) => {
            let words = format!("{other:?} is not known: \"System\" is");
            closed.push(Problem::new(
                "spec.validation.wellKnownCACertificates",
                words,
            ));
        }
        ([], None) => {
            let words = "names nobody who certifies servers: caCertificateRefs or wellKnownCACertificates has to";
            closed.push(Problem::new("spec.validation", words));
        }
        (_, Some(_)) => {
            let words = "stands beside caCertificateRefs: one of them has to go";
            closed.push(Problem::new(
                "spec.validation.wellKnownCACertificates",
                words,
            ));
        }
        (_, None) => {}
    }
    let listed = listed.iter().take(MAX_REFERENCES).map(|reference| {
        match (reference.group.as_str(), reference.kind.as_str()) {
            // It becomes part of a path.
            ("", "ConfigMap") if cluster::check_subdomain(&reference.name).is_ok() => {
                Ok(NamespacedName::new(namespace, reference.name.as_str()))
            }
            ("", "ConfigMap") => Err(format!("{:?} is no name of a ConfigMap", reference.name)),
            (group, kind) => Err(format!(
                "{kind} {:?} of group {group:?} is no ConfigMap",
                reference.name
            )),
        }
    });
    Authorities::Listed(listed.collect())
}

/// The certificates of a ConfigMap, as they are told to waypoints.
///
/// # Errors
/// There are none that can be used.
pub fn certificates(map: &kinds::ConfigMap) -> Result<String, String> {
    let data = map.data.as_ref();
    let Some(pem) = data.and_then(|data| data.get(AUTHORITIES_KEY)) else {
        return Err(format!("it has no key {AUTHORITIES_KEY}"));
    };
    if pem.len() > MOST_BYTES {
        return Err(format!(
            "its {AUTHORITIES_KEY} is longer than {MOST_BYTES} bytes"
        ));
    }
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let parsed = certificate.map_err(|_| format!("its {AUTHORITIES_KEY} is no PEM"))?;
        roots.add(parsed).map_err(|error| {
            let count = roots.len();
            format!("certificate {count} of its {AUTHORITIES_KEY} can't be used: {error}")
        })?;
    }
    match roots.len() {
        0 => Err(format!("its {AUTHORITIES_KEY} holds no certificate")),
        _ => Ok(pem.clone()),
    }
}
