// SPDX-License-Identifier: Apache-2.0
//! Certificate revocation lists (RFC 5280 §5): a file's bytes in, the answer whether a path is revoked out. Pure.
//!
//! A list speaks for an authority only if that authority's key signed it. One whose name fits but whose key does not is
//! another authority's: it says nothing, rather than making everything under that name fail. A list that is past its next
//! update still counts: what was taken back once stays so.

use std::collections::HashMap;
use std::fmt;

use parking_lot::Mutex;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo};
use x509_parser::revocation_list::CertificateRevocationList;

use crate::path::{Issuer, Path};

/// The largest file that is read, in bytes.
pub const MAX_LIST_BYTES: usize = 64 << 20;
/// Issuers whose signatures are remembered for each list; there are as many as roots and intermediates of its name.
const MAX_REMEMBERED: usize = 64;

/// Why a file of lists cannot be used. Nothing of it is used then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevocationListError {
    /// Larger than [`MAX_LIST_BYTES`].
    #[error("has {0} bytes, more than {MAX_LIST_BYTES}")]
    TooLarge(usize),
    /// Begins like PEM, and is not.
    #[error("not valid PEM: {0}")]
    Pem(String),
    /// One of its lists cannot be read.
    #[error("list {number} cannot be read: {reason}")]
    List {
        /// Counted from 1.
        number: usize,
        /// What the parser said.
        reason: String,
    },
}

/// What a path's certificate was found on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoked {
    /// The certificate's serial number, in hexadecimal.
    pub serial: String,
    /// Who took it back.
    pub issuer: String,
    /// Whether it is an authority's own, and all beneath it is gone.
    pub authority: bool,
}

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.authority {
            true => "authority's certificate",
            false => "certificate",
        };
        write!(
            f,
            "{what} with serial {} was revoked by {:?}",
            self.serial, self.issuer
        )
    }
}

/// All that is revoked, as one file said it at one time.
#[derive(Default)]
pub struct RevocationList {
    lists: Vec<List>,
    /// Positions in `lists`, by the issuer's name.
    by_issuer: HashMap<Box<[u8]>, Vec<usize>>,
}

struct List {
    der: Box<[u8]>,
    entries: CertRevocationList<'static>,
    count: usize,
    issuer: String,
    /// Issuers of that name, and whether they signed it.
    signers: Mutex<Vec<(Issuer, bool)>>,
}

impl RevocationList {
    /// Reads a file: any number of lists in PEM, among whatever else, or one list in DER. Nothing at all is no list.
    ///
    /// # Errors
    /// Names the list at fault.
    pub fn parse(bytes: &[u8]) -> Result<Self, RevocationListError> {
        if bytes.len() > MAX_LIST_BYTES {
            return Err(RevocationListError::TooLarge(bytes.len()));
        }
        let mut all = Self::default();
        let content = bytes.trim_ascii();
        if content.is_empty() {
            return Ok(all);
        }
        if !content.starts_with(b"-----BEGIN") {
            all.add(bytes)?;
            return Ok(all);
        }
        for der in CertificateRevocationListDer::pem_slice_iter(content) {
            let der = der.map_err(|error| RevocationListError::Pem(describe(&error)))?;
            all.add(&der)?;
        }
        Ok(all)
    }

    /// Whether nothing is revoked.
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(|list| list.count == 0)
    }

    /// How many certificates are revoked.
    pub fn certificates(&self) -> usize {
        self.lists.iter().map(|list| list.count).sum()
    }

    /// The issuers of the lists, in the file's order.
    pub fn issuers(&self) -> impl Iterator<Item = &str> {
        self.lists.iter().map(|list| &*list.issuer)
    }

    fn add(&mut self, der: &[u8]) -> Result<(), RevocationListError> {
        let number = self.lists.len() + 1;
        let refuse = |reason: String| RevocationListError::List { number, reason };
        let entries = OwnedCertRevocationList::from_der(der)
            .map_err(|error| refuse(error.to_string()))?
            .into();
        let (_, list) =
            CertificateRevocationList::from_der(der).map_err(|error| refuse(error.to_string()))?;
        let list = List {
            count: list.iter_revoked_certificates().count(),
            issuer: list.issuer().to_string(),
            der: der.into(),
            entries,
            signers: Mutex::default(),
        };
        let at_name = self.by_issuer.entry(list.entries.issuer().into());
        at_name.or_default().push(self.lists.len());
        self.lists.push(list);
        Ok(())
    }

    /// The first certificate of a path that its issuer has taken back.
    pub(crate) fn find(&self, path: &Path) -> Option<Revoked> {
        path.0.iter().enumerate().find_map(|(index, link)| {
            let named = self.by_issuer.get(&link.issuer.name)?;
            let list = named.iter().map(|at| &self.lists[*at]).find(|list| {
                matches!(list.entries.find_serial(&link.serial), Ok(Some(_)))
                    && list.is_signed_by(&link.issuer)
            })?;
            Some(Revoked {
                serial: hex(&link.serial),
                issuer: list.issuer.clone(),
                authority: index > 0,
            })
        })
    }
}

impl List {
    /// Whether this very authority made the list. The answer is remembered.
    fn is_signed_by(&self, issuer: &Issuer) -> bool {
        let mut signers = self.signers.lock();
        if let Some((_, signed)) = signers.iter().find(|(known, _)| known == issuer) {
            return *signed;
        }
        let signed = self.verify(issuer);
        if !signed {
            tracing::warn!(
                issuer = self.issuer,
                "a certificate is listed as revoked, but another authority of that name signed the list: it does not count"
            );
        }
        if signers.len() < MAX_REMEMBERED {
            signers.push((issuer.clone(), signed));
        }
        signed
    }

    fn verify(&self, issuer: &Issuer) -> bool {
        let (Ok((_, list)), Ok((_, key))) = (
            CertificateRevocationList::from_der(&self.der),
            SubjectPublicKeyInfo::from_der(&issuer.key),
        ) else {
            return false;
        };
        list.verify_signature(&key).is_ok()
    }
}

impl fmt::Debug for RevocationList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocationList")
            .field("issuers", &self.issuers().collect::<Vec<_>>())
            .field("certificates", &self.certificates())
            .finish()
    }
}

fn describe(error: &PemError) -> String {
    match error {
        // The library quotes the marker as a list of numbers.
        PemError::MissingSectionEnd { end_marker } => format!(
            "cut off before the end of its {}",
            String::from_utf8_lossy(end_marker)
        ),
        other => other.to_string(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
