// SPDX-License-Identifier: Apache-2.0
//! VirtualServices into the facts. One that leaves rules to another is read again whenever that one changes.

use std::{collections::BTreeSet, sync::Arc};

use cluster::{Kind, ObjectKey, kinds};

use super::{Index, Subject};
use crate::{
    facts::{NamespacedName, Problem},
    translate::route::{self, Route, RouteId, delegates},
};

impl Index {
    pub(super) fn set_virtual(
        &mut self,
        name: &NamespacedName,
        object: Option<&kinds::VirtualService>,
        problems: &mut Vec<Problem>,
    ) {
        let left_to = |source: &kinds::VirtualService| -> BTreeSet<NamespacedName> {
            delegates(source).collect()
        };
        let before = self.world.virtual_sources.remove(name);
        let before = before.map_or_else(BTreeSet::new, |source| left_to(&source));
        let now = object.map_or_else(BTreeSet::new, left_to);
        if let Some(object) = object
            && (object.spec.hosts.is_empty() || !now.is_empty())
        {
            let sources = &mut self.world.virtual_sources;
            sources.insert(name.clone(), Arc::new(object.clone()));
        }
        for other in before.difference(&now) {
            if let Some(named) = self.world.delegating.get_mut(other) {
                named.remove(name);
                if named.is_empty() {
                    self.world.delegating.remove(other);
                }
            }
        }
        for other in now.difference(&before) {
            let named = self.world.delegating.entry(other.clone()).or_default();
            named.insert(name.clone());
        }
        // Whether anybody leaves rules to it is told.
        let touched = before.symmetric_difference(&now).cloned().map(id_of);
        self.dirty.extend(touched.map(Subject::Route));
        match object {
            Some(object) => {
                let route = self.read_virtual(object);
                self.take_route(&key_of(name), name.clone(), route, problems);
            }
            None => self.set_route(&id_of(name.clone()), None),
        }
        let leaving = self.world.delegating.get(name).into_iter().flatten();
        let leaving: Vec<_> = leaving.filter(|other| *other != name).cloned().collect();
        for other in leaving {
            if let Some(source) = self.world.virtual_sources.get(&other).cloned() {
                let route = self.read_virtual(&source);
                let mut problems = Vec::new();
                self.take_route(&key_of(&other), other.clone(), route, &mut problems);
                self.set_problems(&key_of(&other), problems);
            }
        }
    }

    fn read_virtual(&self, object: &kinds::VirtualService) -> Route {
        let others = |name: &NamespacedName| {
            let source = self.world.virtual_sources.get(name)?;
            Some(&**source)
        };
        route::virtual_service(object, others, &self.mesh)
    }
}

fn id_of(name: NamespacedName) -> RouteId {
    RouteId {
        kind: Kind::VirtualService,
        name,
    }
}

fn key_of(name: &NamespacedName) -> ObjectKey {
    ObjectKey::namespaced(Kind::VirtualService, &*name.namespace, &*name.name)
}
