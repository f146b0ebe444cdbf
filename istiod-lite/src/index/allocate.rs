// SPDX-License-Identifier: Apache-2.0
//! Gives addresses to the hosts of ServiceEntries that name none: one of each family.
//!
//! In: who claims which address. Out: the addresses of one entry's hosts, to be written
//! to its status; they count once they are read back from there, so that what the mesh
//! is told survives a restart. A user's claim on an address comes before one of ours,
//! and of two of ours the older entry's; who loses is given another.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ipnet::IpNet;

use crate::{
    facts::{NamespacedName, service_entry::ServiceEntry},
    translate::Ranges,
};

/// Who holds an address; the least of several keeps it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    by: By,
    created: Option<i64>,
    entry: NamespacedName,
    host: Arc<str>,
}

/// By whom an address was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    User,
    Us,
}

/// The addresses that are taken, and where to look for the next.
#[derive(Debug)]
pub(super) struct Allocator {
    families: [Family; 2],
    claims: BTreeMap<IpAddr, BTreeSet<Claim>>,
    /// What was given and hasn't been read back yet.
    promised: BTreeMap<NamespacedName, Vec<(Arc<str>, IpAddr)>>,
    promised_addresses: BTreeSet<IpAddr>,
}

/// The addresses of one entry's hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Allocated {
    pub(super) addresses: Vec<(Arc<str>, IpAddr)>,
    /// Hosts for which a range holds no more.
    pub(super) exhausted: Vec<(Arc<str>, IpNet)>,
}

impl Allocator {
    pub(super) fn new(ranges: Ranges) -> Self {
        Self {
            families: [
                Family::new(IpNet::V4(ranges.v4)),
                Family::new(IpNet::V6(ranges.v6)),
            ],
            claims: BTreeMap::new(),
            promised: BTreeMap::new(),
            promised_addresses: BTreeSet::new(),
        }
    }

    /// Takes note of an entry's claims. Returns the entries whose addresses have to be looked at again.
    pub(super) fn claim(
        &mut self,
        name: &NamespacedName,
        entry: &ServiceEntry,
    ) -> BTreeSet<NamespacedName> {
        let mut touched = BTreeSet::new();
        for (address, claim) in self.claims_of(name, entry) {
            let claims = self.claims.entry(address).or_default();
            touched.extend(claims.iter().map(|other| other.entry.clone()));
            claims.insert(claim);
        }
        touched
    }

    /// Forgets an entry's claims.
    pub(super) fn release(&mut self, name: &NamespacedName, entry: &ServiceEntry) {
        for (address, claim) in self.claims_of(name, entry) {
            if let Some(claims) = self.claims.get_mut(&address) {
                claims.remove(&claim);
                if claims.is_empty() {
                    self.claims.remove(&address);
                }
            }
        }
    }

    /// Forgets what was promised to an entry that is gone.
    pub(super) fn forget(&mut self, name: &NamespacedName) {
        for (_, address) in self.promised.remove(name).unwrap_or_default() {
            self.promised_addresses.remove(&address);
        }
    }

    /// The addresses that an entry's hosts are to have: those that they have, as far as
    /// they may keep them, and new ones.
    pub(super) fn allocate(&mut self, name: &NamespacedName, entry: &ServiceEntry) -> Allocated {
        let promised = self.promised.remove(name).unwrap_or_default();
        for (_, address) in &promised {
            self.promised_addresses.remove(address);
        }
        let mut outcome = Allocated::default();
        for host in entry.hosts_to_address() {
            for family in 0..self.families.len() {
                let range = self.families[family].range;
                let within =
                    |(of, address): &&(Arc<str>, IpAddr)| of == host && range.contains(address);
                let held = entry
                    .allocated
                    .iter()
                    .find(within)
                    .map(|(_, address)| *address);
                let held = held.filter(|address| self.keeps(*address, name, host));
                let promised = promised.iter().find(within).map(|(_, address)| *address);
                let promised = promised.filter(|address| self.is_free(*address));
                match held.or(promised).or_else(|| self.next(family)) {
                    Some(address) => {
                        if held.is_none() {
                            self.promised_addresses.insert(address);
                            let to = self.promised.entry(name.clone()).or_default();
                            to.push((host.clone(), address));
                        }
                        outcome.addresses.push((host.clone(), address));
                    }
                    None => outcome.exhausted.push((host.clone(), range)),
                }
            }
        }
        outcome
    }

    fn claims_of(&self, name: &NamespacedName, entry: &ServiceEntry) -> Vec<(IpAddr, Claim)> {
        let claim = |by, host: &Arc<str>| Claim {
            by,
            created: entry.created,
            entry: name.clone(),
            host: host.clone(),
        };
        let ranges = self.families.each_ref().map(|family| family.range);
        let single = entry
            .vips
            .iter()
            .filter(|vip| vip.prefix_len() == vip.max_prefix_len());
        let of_user = single.map(|vip| (vip.addr(), claim(By::User, &Arc::from(""))));
        let of_us = entry.hosts_to_address().flat_map(|host| {
            let own = entry.allocated.iter().filter(move |(of, _)| of == host);
            own.map(move |(host, address)| (*address, claim(By::Us, host)))
        });
        of_user
            .chain(of_us)
            .filter(|(address, _)| ranges.iter().any(|range| range.contains(address)))
            .collect()
    }

    fn keeps(&self, address: IpAddr, name: &NamespacedName, host: &Arc<str>) -> bool {
        let first = self.claims.get(&address).and_then(BTreeSet::first);
        first.is_some_and(|claim| claim.entry == *name && claim.host == *host)
    }

    fn is_free(&self, address: IpAddr) -> bool {
        !self.claims.contains_key(&address) && !self.promised_addresses.contains(&address)
    }

    /// The next free address of a family, if there is any.
    fn next(&mut self, family: usize) -> Option<IpAddr> {
        // Among this many addresses at least one is free, if the range holds as many.
        let taken = self.claims.len() + self.promised_addresses.len();
        for _ in 0..=taken {
            let candidate = self.families[family].step()?;
            if self.is_free(candidate) {
                return Some(candidate);
            }
        }
        None
    }
}

/// A range, and how far it has been given away.
#[derive(Debug)]
struct Family {
    range: IpNet,
    last: Option<IpAddr>,
}

impl Family {
    fn new(range: IpNet) -> Self {
        Self {
            range: range.trunc(),
            last: None,
        }
    }

    /// The address after the last one; after the end, the first again. The base of a
    /// range is never given.
    fn step(&mut self) -> Option<IpAddr> {
        let following = |address: IpAddr| match address {
            IpAddr::V4(ip) => ip
                .to_bits()
                .checked_add(1)
                .map(|next| Ipv4Addr::from_bits(next).into()),
            IpAddr::V6(ip) => ip
                .to_bits()
                .checked_add(1)
                .map(|next| Ipv6Addr::from_bits(next).into()),
        };
        let within = |address: &IpAddr| self.range.contains(address);
        let first = || following(self.range.addr()).filter(within);
        let next = self.last.and_then(following).filter(within).or_else(first);
        self.last = next;
        next
    }
}

#[cfg(test)]
mod tests;
