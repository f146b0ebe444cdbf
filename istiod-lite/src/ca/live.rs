// SPDX-License-Identifier: Apache-2.0
//! The authority that is in force, while its files or its Secret change and its time runs out.
//!
//! In: what it is to be made of, whenever that changed, and who holds certificates. Out: what is signed, by what is in
//! force. What cannot be used, or not yet, changes nothing and is told of; an authority that ran out signs nothing until
//! there is a better one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use spiffe::SpiffeId;
use time::OffsetDateTime;

use super::ledger::{Issue, Ledger};
use super::replicas::{Heard, Record};
use super::report::Report;
use super::rotation::{self, Signer, Wait};
use super::{
    Authority, CaError, EXPIRES_SOON, Lifetimes, Material, ServingCertificate, ServingName,
    SignError,
};
use crate::authenticate::Caller;

/// The authority, whatever becomes of what it was made of.
#[derive(Debug)]
pub struct LiveAuthority {
    lifetimes: Lifetimes,
    in_force: RwLock<Authority>,
    files: Mutex<Files>,
    ledger: Ledger,
    others: Mutex<Heard>,
}

/// What the files say.
#[derive(Debug)]
struct Files {
    /// What is in force, unless they could be read and differ.
    wanted: Authority,
    /// Why they can't be read.
    unreadable: Option<String>,
    /// What operators were told last.
    problem: Option<String>,
    waits: Vec<Wait>,
}

/// What has come into force.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct News {
    /// Other roots are to be trusted.
    pub roots: bool,
    /// Another certificate signs.
    pub signer: bool,
}

impl LiveAuthority {
    /// Starts with what there is, even if it has expired or is not valid yet.
    ///
    /// # Errors
    /// Parts are missing, or no authority could ever come of them.
    pub fn open(
        material: &Material,
        lifetimes: Lifetimes,
        now: SystemTime,
    ) -> Result<Self, CaError> {
        let authority = Authority::read(material, lifetimes)?;
        if authority.check_time(now).is_ok() {
            authority.tell(now);
        }
        Ok(Self {
            lifetimes,
            in_force: RwLock::new(authority.clone()),
            files: Mutex::new(Files {
                wanted: authority,
                unreadable: None,
                problem: None,
                waits: Vec::new(),
            }),
            ledger: Ledger::default(),
            others: Mutex::new(Heard::of_nobody()),
        })
    }

    /// There may be other replicas: no step is taken that they may not be ready for until they are heard of.
    pub fn expect_others(&self) {
        *self.others.lock() = Heard::default();
    }

    /// Takes note of what all other replicas tell, by name, and gives back those that need not be kept any more.
    pub fn hear(&self, records: BTreeMap<String, Record>, now: SystemTime) -> Vec<String> {
        let mut others = self.others.lock();
        others.hear(records, Instant::now());
        others.obsolete(now, Instant::now())
    }

    /// What other replicas have to know of this one.
    pub fn record(
        &self,
        now: SystemTime,
        may_ask: impl FnMut(&Caller, &SpiffeId) -> bool,
    ) -> Record {
        // In this order: what is signed in between is signed by what is in force here or comes after it.
        let in_force = self.in_force();
        let holders = self.ledger.holders(now, may_ask);
        let (signs, roots) = (&in_force.signing.chain.root, &in_force.bundle.anchors);
        Record::new(signs, roots, &holders, Instant::now())
    }

    /// What is in force now.
    pub fn in_force(&self) -> Authority {
        self.in_force.read().clone()
    }

    /// As [`Authority::sign`], and notes who got it.
    ///
    /// # Errors
    /// As there.
    pub fn sign(
        &self,
        csr_pem: &str,
        identity: &SpiffeId,
        caller: &Caller,
        validity_seconds: i64,
        now: SystemTime,
    ) -> Result<Vec<String>, SignError> {
        let authority = self.in_force();
        let (answer, until) = authority.certify(csr_pem, identity, validity_seconds, now)?;
        let issue = Issue {
            roots: Arc::clone(&authority.bundle.anchors),
            under: authority.signing.chain.root.clone(),
            until,
        };
        self.ledger.note(caller, identity, issue, Instant::now());
        Ok(answer)
    }

    /// As [`Authority::issue_serving`].
    ///
    /// # Errors
    /// As there.
    pub fn issue_serving(
        &self,
        names: &[ServingName],
        now: SystemTime,
    ) -> Result<ServingCertificate, SignError> {
        self.in_force().issue_serving(names, now)
    }

    /// Takes note of what it is to be made of from now on, or why that can't be read. What is in force is for
    /// [`Self::advance`] to say.
    pub fn take(&self, material: Result<Material, CaError>) {
        let read = material.and_then(|material| Authority::read(&material, self.lifetimes));
        let mut files = self.files.lock();
        match read {
            Ok(authority) => {
                tracing::info!(place = %authority.signing.chain.place, ?authority, "CA read");
                files.wanted = authority;
                files.unreadable = None;
            }
            Err(error) => {
                files.wanted = self.in_force();
                files.unreadable = Some(error.to_string());
            }
        }
    }

    /// Brings into force what may be by now of what the files say. `may_ask` tells whether somebody could still ask for
    /// the certificate of an identity.
    pub fn advance(
        &self,
        now: SystemTime,
        may_ask: impl FnMut(&Caller, &SpiffeId) -> bool,
    ) -> News {
        let mut files = self.files.lock();
        let in_force = self.in_force();
        let expired = in_force.check_time(now).err();
        let (next, waits, problem) = match self.next(&files, &in_force, now, may_ask) {
            Ok((next, waits)) => (next, waits, None),
            Err(problem) => (in_force.clone(), Vec::new(), Some(problem)),
        };
        let problem = problem
            .or_else(|| files.unreadable.clone())
            .or_else(|| Some(expired.filter(|_| next.is(&in_force))?.to_string()));
        files.say(problem);
        files.wait(waits);
        let news = News {
            roots: !next.bundle.is_like(&in_force.bundle),
            signer: !next.signs_like(&in_force),
        };
        if news != News::default() {
            next.tell(now);
            *self.in_force.write() = next;
        }
        news
    }

    /// What comes into force, and what waits; or why the files can't.
    fn next(
        &self,
        files: &Files,
        in_force: &Authority,
        now: SystemTime,
        may_ask: impl FnMut(&Caller, &SpiffeId) -> bool,
    ) -> Result<(Authority, Vec<Wait>), String> {
        let wanted = &files.wanted;
        if wanted.is(in_force) {
            return Ok((in_force.clone(), Vec::new()));
        }
        wanted.check_time(now).map_err(|error| error.to_string())?;
        if in_force.check_time(now).is_err() {
            // Whoever has nothing but certificates whose time is over is helped by no step in between.
            return Ok((wanted.clone(), Vec::new()));
        }
        let holders = self.ledger.holders(now, may_ask);
        let others = self.others.lock().others(now, Instant::now());
        let (before, after) = (in_force.trust(), wanted.trust());
        let step = rotation::step(before, after, &holders, &others, Instant::now())
            .map_err(|swapped| format!("{}: {swapped}", wanted.signing.chain.place))?;
        let signer = match step.signer {
            Signer::Wanted => wanted,
            Signer::InForce => in_force,
        };
        Ok((signer.with_roots(step.roots), step.waits))
    }

    /// How far the change of roots has come, and who is behind.
    pub fn report(
        &self,
        now: SystemTime,
        may_ask: impl FnMut(&Caller, &SpiffeId) -> bool,
    ) -> Report {
        let holders = self.ledger.holders(now, may_ask);
        let files = self.files.lock();
        let waits = files.waits.iter().map(ToString::to_string).collect();
        let others = self.others.lock().others(now, Instant::now());
        Report::new(&self.in_force(), &holders, now)
            .of_files(files.problem.clone(), waits)
            .of_others(&others)
    }
}

impl Files {
    fn say(&mut self, problem: Option<String>) {
        if self.problem == problem {
            return;
        }
        match &problem {
            Some(problem) => {
                tracing::error!(
                    problem,
                    "the CA is not what its files or its Secret should make it"
                );
            }
            None => tracing::info!("the CA is what its files or its Secret say"),
        }
        self.problem = problem;
    }

    fn wait(&mut self, waits: Vec<Wait>) {
        let kinds = |waits: &[Wait]| -> Vec<_> {
            let kind = |wait: &Wait| (wait.what, wait.root.clone());
            waits.iter().map(kind).collect()
        };
        // Not for each who is waited for: there may be thousands.
        if kinds(&self.waits) != kinds(&waits) {
            for wait in &waits {
                tracing::info!("change of roots: {wait}");
            }
        }
        let behind: usize = waits.iter().map(|wait| wait.count).sum();
        metrics::gauge!("culvert_ca_waits_for_certificates").set(behind as f64);
        self.waits = waits;
    }
}

impl Authority {
    fn signs_like(&self, other: &Self) -> bool {
        let (one, other) = (&self.signing.chain, &other.signing.chain);
        one.signer == other.signer && one.intermediates == other.intermediates
    }

    /// Whether nothing need be done for one to become the other.
    fn is(&self, other: &Self) -> bool {
        self.signs_like(other) && self.bundle.is_like(&other.bundle)
    }

    /// Tells operators that this is in force now.
    fn tell(&self, now: SystemTime) {
        let chain = &self.signing.chain;
        let roots: Vec<_> = self
            .bundle
            .roots
            .iter()
            .map(rotation::Root::label)
            .collect();
        tracing::info!(subject = chain.subject, not_after = %chain.not_after(), ?roots, "CA in force");
        if chain.not_after() < OffsetDateTime::from(now + EXPIRES_SOON) {
            tracing::warn!(
                place = chain.path,
                subject = chain.subject,
                not_after = %chain.not_after(),
                "the CA expires soon, and no certificate outlives it"
            );
        }
        self.measure();
    }

    /// Istio's own gauges.
    fn measure(&self) {
        let chain = &self.signing.chain;
        let root = self
            .bundle
            .roots
            .iter()
            .find(|root| root.anchor == chain.root);
        if let Some(root) = root {
            metrics::gauge!("citadel_server_root_cert_expiry_timestamp")
                .set(root.not_after.unix_timestamp() as f64);
        }
        metrics::gauge!("citadel_server_cert_chain_expiry_timestamp")
            .set(chain.not_after().unix_timestamp() as f64);
    }
}

#[cfg(test)]
mod tests;
