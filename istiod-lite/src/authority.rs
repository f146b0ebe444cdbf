// SPDX-License-Identifier: Apache-2.0
//! Keeps the authority and what follows from it up to date: the roots that others read, the server's own certificate,
//! readiness.
//!
//! It looks once a second: at the files or the Secret, at what may come into force by now, and at the clock, which somebody may set.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use ops::health::ReadyHandle;
use parking_lot::RwLock;
use rustls::sign::CertifiedKey;
use spiffe::SpiffeId;

use crate::{
    authenticate::{Caller, NodeAuthorizer},
    ca::{LiveAuthority, Origin, Record, Report, ServingName},
    index::Index,
    serving::Shown,
};

/// The authority, and who may ask it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub authority: Arc<LiveAuthority>,
    pub authorizer: Arc<NodeAuthorizer>,
    pub index: Arc<RwLock<Index>>,
}

impl Asked {
    /// What operators see.
    pub fn report(&self) -> Report {
        self.authority
            .report(SystemTime::now(), self.may_ask(&self.index.read()))
    }

    /// What other replicas have to know.
    pub fn record(&self) -> Record {
        self.authority
            .record(SystemTime::now(), self.may_ask(&self.index.read()))
    }

    fn may_ask(&self, index: &Index) -> impl FnMut(&Caller, &SpiffeId) -> bool {
        |caller, identity| {
            let own = self.authorizer.own_identity(caller, index);
            own.is_ok_and(|own| own == *identity)
                || self
                    .authorizer
                    .may_impersonate(caller, identity, index)
                    .is_ok()
        }
    }
}

/// Where the results go.
#[derive(Debug)]
pub struct Upkeep {
    pub asked: Asked,
    /// What it was made of.
    pub origin: Origin,
    /// The file of roots for others to trust.
    pub published: PathBuf,
    pub shown: Arc<Shown>,
    pub names: Vec<ServingName>,
    pub ready: ReadyHandle,
}

impl Upkeep {
    /// Does what is due at the start, then goes on in the background. Roots that can't be published are published as soon
    /// as they can: what was published before is still there, and certificates are needed more than ever.
    pub fn start(mut self) {
        let mut serving = Serving::default();
        self.advance();
        let valid = self
            .asked
            .authority
            .in_force()
            .check_time(SystemTime::now())
            .is_ok();
        let mut unpublished = valid && !self.publish();
        self.serve(&mut serving, false);
        tokio::spawn(async move {
            loop {
                if let Some(found) = self.origin.look().await {
                    self.asked.authority.take(found);
                }
                let news = self.advance();
                // Until it is done: a disk may be full for a while.
                unpublished |= news.roots;
                unpublished = unpublished && !self.publish();
                self.serve(&mut serving, news.roots || news.signer);
            }
        });
    }

    fn advance(&self) -> crate::ca::News {
        let index = self.asked.index.read();
        let may_ask = self.asked.may_ask(&index);
        self.asked.authority.advance(SystemTime::now(), may_ask)
    }

    /// Whether others can read which roots are in force; why not is told.
    fn publish(&self) -> bool {
        let path = &self.published;
        let written = publish_roots(path, self.asked.authority.in_force().root_bundle_pem());
        if let Err(error) = &written {
            let path = path.display();
            tracing::error!(%path, %error, "the root certificates can't be written: others do not learn of them");
        }
        written.is_ok()
    }

    /// Has the server show a certificate that clients can verify, as long as there can be one.
    fn serve(&self, serving: &mut Serving, outdated: bool) {
        let now = SystemTime::now();
        if outdated || serving.is_due(now) {
            match self.own_certificate(now) {
                Ok((certificate, next)) => {
                    self.shown.replace(Some(certificate));
                    *serving = next;
                    tracing::info!("the server has a new certificate");
                }
                // What the authority lacks was told already.
                Err(error) if serving.failed => tracing::debug!(%error, "no certificate"),
                Err(error) => {
                    serving.failed = true;
                    tracing::error!(%error, "the server's certificate can't be renewed");
                }
            }
        }
        match self.asked.authority.in_force().check_time(now) {
            Ok(()) => self.ready.ready(),
            Err(_) => self.ready.not_ready(),
        }
    }

    fn own_certificate(&self, now: SystemTime) -> anyhow::Result<(Arc<CertifiedKey>, Serving)> {
        let issued = self.asked.authority.issue_serving(&self.names, now)?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let certified = CertifiedKey::from_der(issued.chain, issued.key, &provider)?;
        let serving = Serving {
            issued: Some((now, issued.renew_at)),
            failed: false,
        };
        Ok((Arc::new(certified), serving))
    }
}

/// The life of the certificate that the server shows.
#[derive(Debug, Default)]
struct Serving {
    /// When, and when it is time for another one.
    issued: Option<(SystemTime, SystemTime)>,
    failed: bool,
}

impl Serving {
    /// A clock that was set back leaves a certificate that is not valid yet.
    fn is_due(&self, now: SystemTime) -> bool {
        self.issued
            .is_none_or(|(issued, renew_at)| now < issued || renew_at <= now)
    }
}

/// Writes the roots for others to trust; they never see half a file, and no change where there is none.
fn publish_roots(path: &Path, pem: &str) -> io::Result<()> {
    // As it is on each start but the first: also one on a full disk.
    if fs::read(path).is_ok_and(|present| present == pem.as_bytes()) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let partial = path.with_extension("pem.new");
    fs::write(&partial, pem)
        .and_then(|()| fs::rename(&partial, path))
        .inspect_err(|_| {
            let _leftover = fs::remove_file(&partial);
        })
}
