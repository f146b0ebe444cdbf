// SPDX-License-Identifier: Apache-2.0
//! What ends a tunnel for all its streams at once: its peer may no longer be who it proved to be.

use std::sync::{Arc, OnceLock};

/// Shared by a tunnel and its streams. Set before the tunnel is ended, so that what ends with it can say why.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fate(Arc<OnceLock<Arc<str>>>);

impl Fate {
    pub(crate) fn withdraw(&self, reason: Arc<str>) {
        let _ = self.0.set(reason);
    }

    pub(crate) fn withdrawn(&self) -> Option<Arc<str>> {
        self.0.get().cloned()
    }
}
