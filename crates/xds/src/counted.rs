// SPDX-License-Identifier: Apache-2.0
//! The metrics of a client, under the names that Istio's proxies give them.

use ops::metrics::Metrics;

use crate::client::{Observer, Termination};

const TERMINATIONS: &str = "istio_xds_connection_terminations_total";
const MESSAGES: &str = "istio_xds_message_total";
const BYTES: &str = "istio_xds_message_bytes_total";
const REFUSED: &str = "culvert_xds_resources_refused_total";

/// Counts streams, responses and refused resources.
#[derive(Debug)]
pub struct Counted(Metrics);

impl Counted {
    /// Counts in this registry, and describes there what is counted.
    pub fn new(metrics: Metrics) -> Self {
        for (name, help) in [
            (
                TERMINATIONS,
                "The total number of completed connections to xDS (unstable)",
            ),
            (MESSAGES, "The total number of messages received (unstable)"),
            (BYTES, "The total number of bytes received (unstable)"),
            (REFUSED, "Resources of the control plane that were refused"),
        ] {
            metrics.describe(name, help);
        }
        Self(metrics)
    }

    fn add(&self, name: &str, label: (&str, &str), number: usize) {
        self.0.counter(name, &[label]).increment(number as u64);
    }
}

impl Observer for Counted {
    fn terminated(&mut self, why: Termination) {
        self.add(TERMINATIONS, ("reason", why.label()), 1);
    }

    fn message(&mut self, type_url: &str, bytes: usize) {
        self.add(MESSAGES, ("url", type_url), 1);
        self.add(BYTES, ("url", type_url), bytes);
    }

    fn refused(&mut self, type_url: &str, resources: usize) {
        self.add(REFUSED, ("url", type_url), resources);
    }
}
