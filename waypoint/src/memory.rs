// SPDX-License-Identifier: Apache-2.0
//! What was asked for lately, service by service, so that policies can be tried out on it ([`trial`]).
//!
//! Of a request is kept: who asked, from where, for which port, method, authority and path; of bytes the same without the last
//! three, and the TLS server name where somebody looked. Headers and tokens are not: what a rule asks of them is in doubt. A
//! request never waits for this, and one that is too long is not kept: how many were missed is told.

pub mod trial;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use mesh::{NamespacedHostname, Recent, Store};
use parking_lot::Mutex;
use spiffe::SpiffeId;

use crate::authz::{Access, ServerName};

/// Services that are remembered.
const MOST: usize = 1024;
/// Bytes of method, authority and path, and of a server name.
const LONGEST: usize = 1024;

/// What was asked for lately of each service.
#[derive(Default)]
pub struct Memory(Mutex<HashMap<NamespacedHostname, Arc<OfService>>>);

/// The same of one.
#[derive(Default)]
pub struct OfService {
    recent: Mutex<Recent<Kind>>,
    /// What was not kept.
    missed: AtomicU64,
}

/// Accesses that have in common all that is kept of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    identity: SpiffeId,
    source_ip: IpAddr,
    remote_ip: IpAddr,
    destination_ip: Option<IpAddr>,
    port: u16,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Request {
        method: Box<str>,
        authority: Box<str>,
        path: Box<str>,
    },
    /// None where nobody has looked for a server name.
    Bytes(Option<Option<Box<str>>>),
}

fn minute() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs() / 60
}

impl Memory {
    /// That of a service; none where too many are remembered.
    pub fn of(&self, service: &NamespacedHostname) -> Option<Arc<OfService>> {
        let mut all = self.0.lock();
        if let Some(known) = all.get(service) {
            return Some(Arc::clone(known));
        }
        (all.len() < MOST).then(|| Arc::clone(all.entry(service.clone()).or_default()))
    }

    /// Forgets services that are gone; call it now and then.
    pub fn expire(&self, mesh: &Store) {
        let mut all = self.0.lock();
        all.retain(|name, _| mesh.service(&name.namespace, &name.hostname).is_some());
    }

    fn each(&self) -> Vec<(NamespacedHostname, Arc<OfService>)> {
        let all = self.0.lock();
        all.iter()
            .map(|(name, of)| (name.clone(), Arc::clone(of)))
            .collect()
    }
}

impl OfService {
    /// Notes what was decided on.
    pub fn note(&self, access: &Access<'_>) {
        let (line, name) = (line(access), name(access));
        let length = line.map_or(0, |line| line.iter().map(|part| part.len()).sum::<usize>());
        let length = length + name.flatten().map_or(0, str::len);
        let recent = (length <= LONGEST)
            .then(|| self.recent.try_lock())
            .flatten();
        let Some(mut recent) = recent else {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let Access {
            identity,
            source_ip,
            remote_ip,
            destination_port: port,
            ..
        } = *access;
        let asked = (identity, source_ip, remote_ip, port, line, name);
        recent.note(
            minute(),
            asked,
            |known| known.is(access),
            || Kind::of(access),
        );
    }
}

/// Method, authority and path.
fn line<'r>(access: &Access<'r>) -> Option<[&'r str; 3]> {
    let request = access.request?;
    Some([request.method, request.authority, request.path])
}

fn name<'r>(access: &Access<'r>) -> Option<Option<&'r str>> {
    match access.server_name {
        ServerName::Unseen => None,
        ServerName::Absent => Some(None),
        ServerName::Named(name) => Some(Some(name)),
    }
}

impl Kind {
    fn of(access: &Access<'_>) -> Self {
        Self {
            identity: access.identity.clone(),
            source_ip: access.source_ip,
            remote_ip: access.remote_ip,
            destination_ip: access.destination_ips.first().copied(),
            port: access.destination_port,
            what: match line(access) {
                Some([method, authority, path]) => What::Request {
                    method: method.into(),
                    authority: authority.into(),
                    path: path.into(),
                },
                None => What::Bytes(name(access).map(|name| name.map(Into::into))),
            },
        }
    }

    fn is(&self, access: &Access<'_>) -> bool {
        let same = match (&self.what, line(access)) {
            (
                What::Request {
                    method,
                    authority,
                    path,
                },
                Some(line),
            ) => [&**method, &**authority, &**path] == line,
            (What::Bytes(known), None) => known.as_ref().map(Option::as_deref) == name(access),
            _ => false,
        };
        same && self.port == access.destination_port
            && self.source_ip == access.source_ip
            && self.remote_ip == access.remote_ip
            && self.destination_ip == access.destination_ips.first().copied()
            && self.identity == *access.identity
    }
}
