// SPDX-License-Identifier: Apache-2.0
//! The metrics of a client, under the names that Istio's proxies give them.

use crate::client::{Observer, Termination};

const TERMINATIONS: &str = "istio_xds_connection_terminations_total";
const MESSAGES: &str = "istio_xds_message_total";
const BYTES: &str = "istio_xds_message_bytes_total";
const REFUSED: &str = "culvert_xds_resources_refused_total";

/// Counts streams, responses and refused resources, wherever the process records its metrics.
#[derive(Debug)]
pub struct Counted(());

impl Counted {
    /// Describes what is counted; the process's recorder is to be there already.
    pub fn new() -> Self {
        for (name, help) in [
            (
                TERMINATIONS,
                "The total number of completed connections to xDS (unstable)",
            ),
            (MESSAGES, "The total number of messages received (unstable)"),
            (BYTES, "The total number of bytes received (unstable)"),
            (REFUSED, "Resources of the control plane that were refused"),
        ] {
            metrics::describe_counter!(name, help);
        }
        Self(())
    }
}

impl Default for Counted {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Counted {
    fn terminated(&mut self, why: Termination) {
        metrics::counter!(TERMINATIONS, "reason" => why.label()).increment(1);
    }

    fn message(&mut self, type_url: &str, bytes: usize) {
        metrics::counter!(MESSAGES, "url" => type_url.to_owned()).increment(1);
        metrics::counter!(BYTES, "url" => type_url.to_owned()).increment(bytes as u64);
    }

    fn refused(&mut self, type_url: &str, resources: usize) {
        metrics::counter!(REFUSED, "url" => type_url.to_owned()).increment(resources as u64);
    }
}
