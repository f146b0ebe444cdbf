// SPDX-License-Identifier: Apache-2.0
//! How many requests and connections each endpoint carries, whichever services they are for.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};

use mesh::Endpoint;
use parking_lot::Mutex;

/// The counters of those that somebody looks at. Looked up when a service's endpoints change, not for each request.
#[derive(Default)]
pub(super) struct Carried(Mutex<HashMap<Endpoint, Weak<AtomicU32>>>);

impl Carried {
    /// That of an endpoint.
    pub(super) fn of(&self, endpoint: &Endpoint) -> Arc<AtomicU32> {
        let mut counters = self.0.lock();
        if let Some(counter) = counters.get(endpoint).and_then(Weak::upgrade) {
            return counter;
        }
        let counter = Arc::default();
        counters.insert(endpoint.clone(), Arc::downgrade(&counter));
        counter
    }

    /// Forgets those that nobody looks at; call it now and then.
    pub(super) fn expire(&self) {
        let is_used = |counter: &Weak<AtomicU32>| counter.strong_count() > 0;
        self.0.lock().retain(|_, counter| is_used(counter));
    }
}
