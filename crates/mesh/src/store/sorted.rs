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

/// Like such a list, for where it nearly always has one workload: then it takes no memory of its own.
#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "a pointer keeps the common case as small as it is"
)]
pub(super) enum Few {
    One(Arc<Workload>),
    More(Box<Vec<Arc<Workload>>>),
}

/// What a removal leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    Something,
}

impl Few {
    pub(super) fn as_slice(&self) -> &[Arc<Workload>] {
        match self {
            Self::One(workload) => std::slice::from_ref(workload),
            Self::More(list) => list,
        }
    }

    /// Adds a workload unless its uid is there already.
    pub(super) fn insert(&mut self, workload: &Arc<Workload>) {
        match self {
            Self::One(first) => {
                let mut list = vec![Arc::clone(first)];
                insert(&mut list, workload);
                if list.len() > 1 {
                    *self = Self::More(Box::new(list));
                }
            }
            Self::More(list) => insert(list, workload),
        }
    }

    /// Removes the workload with a uid. Nothing left: the list is to be dropped.
    pub(super) fn remove(&mut self, uid: &str) -> Left {
        match self {
            Self::One(only) if *only.uid == *uid => Left::Nothing,
            Self::One(_) => Left::Something,
            Self::More(list) => {
                remove(list, uid);
                if let [only] = &list[..] {
                    *self = Self::One(Arc::clone(only));
                }
                Left::Something
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(uid: &str) -> Arc<Workload> {
        let identity = "spiffe://td/ns/shop/sa/cart".parse().unwrap();
        Arc::new(Workload::new(uid, "shop", identity))
    }

    #[test]
    fn a_few_grow_and_shrink_in_order() {
        let mut few = Few::One(workload("b"));
        let uids = |few: &Few| {
            let uids = few
                .as_slice()
                .iter()
                .map(|workload| workload.uid.to_string());
            uids.collect::<Vec<_>>()
        };
        few.insert(&workload("b"));
        assert_eq!(uids(&few), ["b"]);
        few.insert(&workload("c"));
        few.insert(&workload("a"));
        assert_eq!(uids(&few), ["a", "b", "c"]);
        assert_eq!(few.remove("x"), Left::Something);
        assert_eq!(few.remove("b"), Left::Something);
        assert_eq!(few.remove("a"), Left::Something);
        assert!(matches!(few, Few::One(_)));
        assert_eq!(few.remove("a"), Left::Something);
        assert_eq!(few.remove("c"), Left::Nothing);
    }

    #[test]
    fn one_takes_two_words() {
        assert_eq!(size_of::<Few>(), 2 * size_of::<usize>());
    }
}
