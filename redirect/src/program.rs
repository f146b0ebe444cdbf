// SPDX-License-Identifier: Apache-2.0
//! Programs a plan in a pod's or the node's network namespace.
//!
//! Each call is one visit by a thread of its own: netlink sockets belong to the namespace of the thread that opens
//! them. Blocking.

use std::io;

use capture::Netns;
use capture::contract::{MANGLE_TABLE, NAT_TABLE};
use tracing::{info, warn};

use crate::conntrack;
use crate::nftables::{self, Applied, Changed, Drift, Members, NftError};
use crate::plan::{self, Families, POD_TABLES, PodPlan};
use crate::resolver;
use crate::routes::{self, RouteError};
use crate::rules::{Family, Table};

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error(transparent)]
    Nftables(#[from] NftError),
    #[error(transparent)]
    Routes(#[from] RouteError),
    #[error("entering the network namespace: {0}")]
    Enter(#[from] io::Error),
    #[error("the visit to the network namespace panicked")]
    Panicked,
}

/// What making a pod's plan hold took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Programmed {
    /// All of it held already.
    Unchanged,
    /// Nothing of ours was there.
    Installed,
    /// Ours was there, but not as planned; says what differed.
    Repaired(Vec<String>),
}

/// Makes the plan hold: tables first, so that marked replies exist before anything routes them. Connections that are
/// open where nothing was redirected before stay as they are.
pub fn apply(netns: &Netns, plan: &PodPlan) -> Result<Programmed, ProgramError> {
    let plan = plan.clone();
    visit(netns, move || {
        let existing = nftables::existing(&POD_TABLES)?;
        let redirects = plan.tables.iter().any(|table| table.name == NAT_TABLE);
        if redirects && !existing.contains(&NAT_TABLE) {
            spare_what_is_open(&plan)?;
        }
        let tables = nftables::apply(&plan.tables, &POD_TABLES)?;
        let routing = routes::apply(&plan.routing)?;
        Ok(match (tables, routing) {
            _ if redirects && existing.is_empty() => Programmed::Installed,
            (Applied::Installed, _) => Programmed::Installed,
            (Applied::Repaired(drift), _) => {
                Programmed::Repaired(drift.iter().map(Drift::to_string).collect())
            }
            (Applied::Unchanged, routes::Changed::Yes) => {
                Programmed::Repaired(vec!["the routing of marked replies was missing".to_owned()])
            }
            (Applied::Unchanged, routes::Changed::No) => Programmed::Unchanged,
        })
    })
}

/// Between the rules that track connections and those that redirect them, what is open becomes known as such.
fn spare_what_is_open(plan: &PodPlan) -> Result<(), ProgramError> {
    let tracking: Vec<_> = plan
        .tables
        .iter()
        .filter(|table| table.name == MANGLE_TABLE)
        .cloned()
        .collect();
    nftables::apply(&tracking, &[MANGLE_TABLE])?;
    match conntrack::adopt() {
        Ok(0) => {}
        Ok(open) => info!(open, "connections from before the capture are left alone"),
        // Those few are lost; a pod that can't be captured for their sake would be worse.
        Err(error) => warn!(%error, "connections from before the capture may break"),
    }
    Ok(())
}

/// Leaves nothing of ours in a pod.
pub fn remove(netns: &Netns) -> Result<(), ProgramError> {
    visit(netns, || {
        nftables::remove(&POD_TABLES)?;
        routes::remove(&[plan::routing(Family::V4), plan::routing(Family::V6)])?;
        Ok(())
    })
}

/// Whether somebody in a pod listens where captured DNS queries would be led.
pub fn resolver_listens(netns: &Netns) -> Result<bool, ProgramError> {
    visit(netns, || Ok(resolver::listens()?))
}

/// How a pod's tables differ from the plan, in words.
pub fn inspect(netns: &Netns, plan: &PodPlan) -> Result<Vec<Drift>, ProgramError> {
    let plan = plan.clone();
    visit(netns, move || {
        Ok(nftables::inspect(&plan.tables, &POD_TABLES)?)
    })
}

/// Makes the node's table hold and leaves the elements of its sets as they are.
pub fn apply_host_rules(netns: &Netns, table: &Table) -> Result<Applied, ProgramError> {
    let table = table.clone();
    visit(netns, move || {
        Ok(nftables::apply(std::slice::from_ref(&table), &[NAT_TABLE])?)
    })
}

/// Makes the node's table and sets hold.
pub fn apply_host(
    netns: &Netns,
    table: &Table,
    families: Families,
    members: &Members,
) -> Result<Applied, ProgramError> {
    let (table, members) = (table.clone(), members.clone());
    visit(netns, move || {
        let applied = nftables::apply(std::slice::from_ref(&table), &[NAT_TABLE])?;
        sync_probe_sets(families, &members)?;
        Ok(applied)
    })
}

/// Makes the node's sets hold exactly these addresses.
pub fn sync_host(netns: &Netns, families: Families, members: &Members) -> Result<(), ProgramError> {
    let members = members.clone();
    visit(netns, move || {
        Ok(sync_probe_sets(families, &members).map(|_| ())?)
    })
}

/// Leaves nothing of ours on the node.
pub fn remove_host(netns: &Netns) -> Result<(), ProgramError> {
    visit(netns, || Ok(nftables::remove(&[NAT_TABLE])?))
}

fn sync_probe_sets(families: Families, members: &Members) -> Result<Changed, NftError> {
    let mut changed = nftables::sync_set(NAT_TABLE, plan::probe_set(Family::V4), members)?;
    if families == Families::Dual
        && nftables::sync_set(NAT_TABLE, plan::probe_set(Family::V6), members)? == Changed::Yes
    {
        changed = Changed::Yes;
    }
    Ok(changed)
}

fn visit<T: Send + 'static>(
    netns: &Netns,
    work: impl FnOnce() -> Result<T, ProgramError> + Send + 'static,
) -> Result<T, ProgramError> {
    let thread = netns.spawn_thread_in("redirect-visit", work)?;
    thread.join().map_err(|_| ProgramError::Panicked)??
}
