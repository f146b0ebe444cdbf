// SPDX-License-Identifier: Apache-2.0
//! `CRL_PATH`: the file of revocation lists, read again when it changes; and whether certificates of our own are on it.
//!
//! In: the file, and this node's certificates. Out: what handshakes and live connections are judged by, metrics, and
//! readiness. A file that cannot be read leaves in force what was; one that is not there yet revokes nothing. Judging is
//! `identity`'s.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use identity::{
    CertificateState, Certificates, PeerRole, Revocation, RevocationList, RevocationObserver,
    WorkloadCertificate,
};
use metrics::{Counter, Gauge};
use ops::file::Followed;
use ops::health::{Readiness, ReadyHandle};
use ops::metrics::Metrics;
use spiffe::SpiffeId;
use tracing::{error, info, warn};

use crate::record::Reporter;

const FAMILIES: &[(&str, &str)] = &[
    (
        "istio_crl_policy_rejections_total",
        "The total number of handshakes and live connections rejected for a revoked certificate (unstable)",
    ),
    (
        "istio_crl_untracked_connections_total",
        "The total number of connections that a later revocation will not end (unstable)",
    ),
    (
        "culvert_crl_load_failures_total",
        "The total number of times that CRL_PATH could not be read (unstable)",
    ),
    (
        "culvert_crl_certificates",
        "The number of certificates that CRL_PATH revokes (unstable)",
    ),
    (
        "culvert_own_certificates_revoked",
        "The number of this node's own certificates that CRL_PATH revokes (unstable)",
    ),
];

/// The file and what hangs on it.
pub struct Crl {
    path: PathBuf,
    followed: Followed,
    revocation: Revocation,
    loaded: ReadyHandle,
    own: ReadyHandle,
    failures: Counter,
    certificates: Gauge,
    own_revoked: Gauge,
    /// Own certificates that were complained of already.
    told: HashMap<SpiffeId, Weak<WorkloadCertificate>>,
}

/// Why the file does not count.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    List(#[from] identity::RevocationListError),
}

impl Crl {
    /// Reads the file for the first time. If it is there and no good, this node is not ready until it is repaired: with
    /// nothing revoked it would accept whom it must not.
    pub fn open(path: PathBuf, metrics: &Metrics, readiness: &Readiness) -> Self {
        for (name, help) in FAMILIES {
            metrics.describe(name, help);
        }
        let mut crl = Self {
            followed: Followed::new([path.clone()]),
            path,
            revocation: Revocation::new(Counted::new(metrics)),
            loaded: readiness.register("revocation list"),
            own: readiness.register("own certificates, one of which is revoked"),
            failures: metrics.counter("culvert_crl_load_failures_total", &[]),
            certificates: metrics.gauge("culvert_crl_certificates", &[]),
            own_revoked: metrics.gauge("culvert_own_certificates_revoked", &[]),
            told: HashMap::new(),
        };
        crl.own.ready();
        crl.load();
        crl
    }

    /// What peers are to be checked against.
    pub fn revocation(&self) -> Revocation {
        self.revocation.clone()
    }

    /// Follows the file and the node's own certificates for as long as the process lives.
    pub async fn follow(mut self, certificates: Certificates) {
        loop {
            if self.followed.look().await {
                self.load();
            }
            self.look_at_own(&certificates);
        }
    }

    fn load(&mut self) {
        let path = self.path.display();
        match self.read() {
            Ok(list) => {
                let issuers = list.issuers().collect::<Vec<_>>().join("; ");
                let certificates = list.certificates();
                let ended = self.revocation.replace(list);
                self.certificates.set(certificates as f64);
                self.loaded.ready();
                info!(%path, issuers, certificates, ended, "revocation lists loaded");
            }
            Err(Unread::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                warn!(%path, "CRL_PATH: there is no such file; what was revoked before stays so");
                self.loaded.ready();
            }
            Err(error) => {
                self.failures.increment(1);
                error!(%path, %error, "CRL_PATH: cannot be read; what was revoked before stays so");
            }
        }
    }

    fn read(&self) -> Result<RevocationList, Unread> {
        let length = std::fs::metadata(&self.path)?.len();
        if length > identity::MAX_LIST_BYTES as u64 {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
        }
        Ok(RevocationList::parse(&std::fs::read(&self.path)?)?)
    }

    /// A certificate of ours that is revoked makes peers refuse us: a new one may be better, and until there is one
    /// somebody should know.
    fn look_at_own(&mut self, certificates: &Certificates) {
        let mut revoked = HashMap::new();
        if !self.revocation.list().is_empty() {
            for status in certificates.states() {
                let CertificateState::Available { certificate, .. } = status.state else {
                    continue;
                };
                let Some(found) = certificate.revoked() else {
                    continue;
                };
                let told = self.told.get(&status.identity).and_then(Weak::upgrade);
                if told.is_none_or(|told| !Arc::ptr_eq(&told, &certificate)) {
                    error!(identity = %status.identity, revoked = %found, "own certificate is revoked: peers will refuse it; asking for another one");
                    certificates.renew(&status.identity);
                }
                revoked.insert(status.identity, Arc::downgrade(&certificate));
            }
        }
        self.own_revoked.set(revoked.len() as f64);
        match revoked.is_empty() {
            true => self.own.ready(),
            false => self.own.not_ready(),
        }
        self.told = revoked;
    }
}

/// `istio_crl_*`, by which side of the connection we are on.
struct Counted {
    rejections: [Counter; 2],
    untracked: [Counter; 2],
}

impl Counted {
    fn new(metrics: &Metrics) -> Self {
        let both = |name: &str| {
            [Reporter::Source, Reporter::Destination]
                .map(|reporter| metrics.counter(name, &[("reporter", reporter.as_str())]))
        };
        Self {
            rejections: both("istio_crl_policy_rejections_total"),
            untracked: both("istio_crl_untracked_connections_total"),
        }
    }
}

impl RevocationObserver for Counted {
    fn rejected(&self, peer: PeerRole) {
        self.rejections[row(peer)].increment(1);
    }

    fn untracked(&self, peer: PeerRole) {
        self.untracked[row(peer)].increment(1);
    }
}

/// Who has a server for a peer is the source.
fn row(peer: PeerRole) -> usize {
    match peer {
        PeerRole::Server => 0,
        PeerRole::Client => 1,
    }
}
