// SPDX-License-Identifier: Apache-2.0
//! Short lists of workloads ordered by uid: compact, and the same whatever the order of arrival.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::workload::Workload;

/// Adds a workload unless its uid is there already.
pub(super) fn insert(list: &mut Vec<Arc<Workload>>, workload: &Arc<Workload>) {
    if let Err(at) = list.binary_search_by(|other| other.uid.cmp(&workload.uid)) {
        if list.is_empty() {
            // Most lists hold one workload for ever; the default growth would reserve four places.
            list.reserve_exact(1);
        }
        list.insert(at, workload.clone());
    }
}

/// Removes the workload with a uid.
pub(super) fn remove(list: &mut Vec<Arc<Workload>>, uid: &str) {
    if let Ok(at) = list.binary_search_by(|other| (*other.uid).cmp(uid)) {
        list.remove(at);
    }
}

/// Removes the workload with a uid from the list under a key, and the list once it is empty.
pub(super) fn remove_from<K, Q>(lists: &mut HashMap<K, Vec<Arc<Workload>>>, key: &Q, uid: &str)
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ?Sized,
{
    if let Some(list) = lists.get_mut(key) {
        remove(list, uid);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}
