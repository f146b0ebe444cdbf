// SPDX-License-Identifier: Apache-2.0
//! Which endpoints are used, by where they are. What can't be used is told, and left out.

use cluster::kinds::destination_rule as dr;
use proto::waypoint::{
    LocalityPreference,
    locality_preference::{Distribution, Failover, Scope, Share},
};

use super::Told;

const MAX_ENTRIES: usize = 64;

/// By what labels say where something is.
const LABELS: [(&str, Scope); 8] = [
    ("topology.istio.io/network", Scope::Network),
    ("topology.istio.io/cluster", Scope::Cluster),
    ("topology.kubernetes.io/region", Scope::Region),
    ("failure-domain.beta.kubernetes.io/region", Scope::Region),
    ("topology.kubernetes.io/zone", Scope::Zone),
    ("failure-domain.beta.kubernetes.io/zone", Scope::Zone),
    ("topology.istio.io/subzone", Scope::Subzone),
    ("kubernetes.io/hostname", Scope::Node),
];

pub(super) fn read(given: &dr::LocalitySetting, at: &str, told: &mut Told) -> LocalityPreference {
    told.unknown(at, &given.unknown_fields);
    if given.enabled == Some(false) {
        return LocalityPreference::default();
    }
    for (field, count) in [
        ("distribute", given.distribute.len()),
        ("failover", given.failover.len()),
        ("failoverPriority", given.failover_priority.len()),
    ] {
        if count > MAX_ENTRIES {
            let words = format!("has {count} entries, {MAX_ENTRIES} are used");
            told.note(format!("{at}.{field}"), &words);
        }
    }
    let distribute = given.distribute.iter().take(MAX_ENTRIES).enumerate();
    let distribute: Vec<_> = distribute
        .filter_map(|(position, one)| {
            distribution(one, &format!("{at}.distribute[{position}]"), told)
        })
        .collect();
    if !distribute.is_empty() {
        told.unused(
            at,
            &[
                (!given.failover.is_empty(), "failover"),
                (!given.failover_priority.is_empty(), "failoverPriority"),
            ],
        );
    }
    let failover = given.failover.iter().take(MAX_ENTRIES).enumerate();
    let failover = failover.filter_map(|(position, one)| {
        let at = format!("{at}.failover[{position}]");
        told.unknown(&at, &one.unknown_fields);
        if one.from.is_empty() || one.to.is_empty() || one.from == one.to {
            told.note(at, "names no two regions, and is left out");
            return None;
        }
        Some(Failover {
            from: one.from.clone(),
            to: one.to.clone(),
        })
    });
    let failover = failover.collect();
    let scopes = match given.failover_priority.as_slice() {
        [] => vec![Scope::Region, Scope::Zone, Scope::Subzone],
        labels => scopes(labels, &format!("{at}.failoverPriority"), told),
    };
    LocalityPreference {
        distribute,
        scopes: scopes.into_iter().map(i32::from).collect(),
        failover,
    }
}

fn distribution(given: &dr::Distribution, at: &str, told: &mut Told) -> Option<Distribution> {
    told.unknown(at, &given.unknown_fields);
    let mut to = Vec::new();
    for (place, weight) in given.to.iter().take(MAX_ENTRIES) {
        let weight = told.number(at, "to", Some(*weight));
        if weight > 0 && is_place(place) {
            to.push(Share {
                to: place.clone(),
                weight,
            });
        }
    }
    let total: u64 = to.iter().map(|share| u64::from(share.weight)).sum();
    if !is_place(&given.from) || to.len() != given.to.len() || total != 100 {
        let words = "its places are to be written as \"region/zone/subzone\", and its weights to be 100 together: left out";
        told.note(at, words);
        return None;
    }
    Some(Distribution {
        from: given.from.clone(),
        to,
    })
}

/// Regions, zones and subzones, of which "*" comes last.
fn is_place(text: &str) -> bool {
    let mut parts = text.splitn(3, '/');
    let first = parts.next().unwrap_or_default();
    let mut any = first == "*";
    !first.is_empty()
        && text.len() <= 512
        && parts.all(|part| {
            let fits = !part.is_empty() && (!any || part == "*");
            any |= part == "*";
            fits
        })
}

/// A label behind one that is not known here says nothing: those count that come before.
fn scopes(labels: &[String], at: &str, told: &mut Told) -> Vec<Scope> {
    let mut scopes = Vec::new();
    for (position, label) in labels.iter().take(MAX_ENTRIES).enumerate() {
        let known = LABELS.iter().find(|(name, _)| name == label);
        let Some((_, scope)) = known else {
            let words = format!(
                "{label:?} is no label that says where something is: it and those behind it are left out"
            );
            told.note(format!("{at}[{position}]"), &words);
            break;
        };
        scopes.push(*scope);
    }
    scopes
}
