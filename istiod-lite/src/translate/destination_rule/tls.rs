// SPDX-License-Identifier: Apache-2.0
//! TLS that waypoints begin themselves, with servers outside of the mesh. What can't be honoured closes the host: without
//! it, requests would go out in plain, or to whoever answers.

use cluster::kinds::destination_rule as dr;
use proto::waypoint as wire;

use super::Told;
use crate::facts::endpoint::is_host;

/// Where a waypoint has a Secret that is named: mounted there, so that its key comes neither this way nor into other hands.
const CREDENTIALS: &str = "/var/run/secrets/credentials";

/// Names of one certificate.
const MAX_NAMES: usize = 64;
const LONGEST_PATH: usize = 1024;

/// What a rule says of TLS.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Said {
    /// Nothing.
    #[default]
    Nothing,
    /// That none is begun: inside the mesh tunnels carry it.
    Plain,
    Begin(wire::Tls),
}

impl Said {
    /// For a policy: what a narrower one doesn't say is as the wider has it.
    pub(super) fn or<'a>(&'a self, wider: &'a Self) -> Option<&'a wire::Tls> {
        match (self, wider) {
            (Self::Begin(tls), _) | (Self::Nothing, Self::Begin(tls)) => Some(tls),
            (Self::Plain, _) | (Self::Nothing, Self::Nothing | Self::Plain) => None,
        }
    }
}

/// Of a rule that only waypoints of this namespace may show a certificate for; empty: any.
pub(super) fn read(
    given: Option<&dr::ClientTls>,
    at: &str,
    namespace: &str,
    told: &mut Told,
) -> Said {
    use dr::TlsMode;
    let at = &format!("{at}.tls");
    let Some(given) = given else {
        return Said::Nothing;
    };
    told.unknown(at, &given.unknown_fields);
    let mutual = match &given.mode {
        None | Some(TlsMode::Disable | TlsMode::IstioMutual) => return Said::Plain,
        Some(TlsMode::Simple) => false,
        Some(TlsMode::Mutual) => true,
        Some(mode @ TlsMode::Unknown(_)) => {
            let words = format!("{mode} is not supported: nothing is sent to the host");
            told.close(format!("{at}.mode"), &words);
            return Said::Plain;
        }
    };
    if given.insecure_skip_verify == Some(true) {
        let words =
            "is not supported, as anybody could answer: name whom to trust in caCertificates";
        told.close(format!("{at}.insecureSkipVerify"), words);
    }
    if !given.ca_crl.is_empty() {
        told.close(
            format!("{at}.caCrl"),
            "is not supported: nothing is sent to the host",
        );
    }
    let sni = given.sni.to_ascii_lowercase();
    if !sni.is_empty() && !is_host(&sni) {
        told.close(
            format!("{at}.sni"),
            &format!("{sni:?} is no name of a server"),
        );
    }
    let names = names(&given.subject_alt_names, at, told);
    let files = files(given, at, mutual, told);
    Said::Begin(wire::Tls {
        server_name: sni,
        subject_alt_names: names,
        authorities: files.authorities,
        certificate: files.shown.map(|(chain, key)| wire::ClientCertificate {
            chain,
            key,
            namespace: namespace.to_owned(),
        }),
        given_authorities: String::new(),
    })
}

fn names(given: &[String], at: &str, told: &mut Told) -> Vec<String> {
    if given.len() > MAX_NAMES {
        let words = format!("has {} entries, {MAX_NAMES} may be", given.len());
        told.close(format!("{at}.subjectAltNames"), &words);
    }
    let mut names = Vec::new();
    for (position, name) in given.iter().take(MAX_NAMES).enumerate() {
        if name.parse::<spiffe::SpiffeId>().is_ok() {
            names.push(name.clone());
        } else if is_host(&name.to_ascii_lowercase()) {
            names.push(name.to_ascii_lowercase());
        } else {
            let words = format!("{name:?} is neither a DNS name nor a SPIFFE id");
            told.close(format!("{at}.subjectAltNames[{position}]"), &words);
        }
    }
    names
}

#[derive(Default)]
struct Files {
    /// Empty: as the system has it.
    authorities: String,
    /// Chain and key.
    shown: Option<(String, String)>,
}

fn files(given: &dr::ClientTls, at: &str, mutual: bool, told: &mut Told) -> Files {
    let credential = given.credential_name.as_str();
    if !credential.is_empty() {
        for (field, value) in [
            ("clientCertificate", &given.client_certificate),
            ("privateKey", &given.private_key),
            ("caCertificates", &given.ca_certificates),
        ] {
            if !value.is_empty() {
                let words = "stands beside credentialName: one of them has to go";
                told.close(format!("{at}.{field}"), words);
            }
        }
        // A name of a Secret, and no way out of the folder.
        if !is_host(credential) || credential.contains("..") {
            let words = format!("{credential:?} is no name of a Secret");
            told.close(format!("{at}.credentialName"), &words);
            return Files::default();
        }
        let file = |name: &str| format!("{CREDENTIALS}/{credential}/{name}");
        return Files {
            authorities: file("ca.crt"),
            shown: mutual.then(|| (file("tls.crt"), file("tls.key"))),
        };
    }
    let mut path = |field: &str, value: &str| {
        let parts = || value.split('/').skip(1);
        let is_file = value.starts_with('/')
            && value.len() <= LONGEST_PATH
            && !value.contains('\0')
            && parts().all(|part| !matches!(part, "" | "." | ".."));
        if !is_file {
            let words = format!("{value:?} is no path of a file from the root on");
            told.close(format!("{at}.{field}"), &words);
        }
        value.to_owned()
    };
    let authorities = match given.ca_certificates.as_str() {
        "" | "system" => String::new(),
        given => path("caCertificates", given),
    };
    let shown = mutual.then(|| {
        (
            path("clientCertificate", &given.client_certificate),
            path("privateKey", &given.private_key),
        )
    });
    Files { authorities, shown }
}
