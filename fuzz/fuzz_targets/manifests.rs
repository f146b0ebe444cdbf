// SPDX-License-Identifier: Apache-2.0
//! Manifests in YAML or JSON, and what a status file says over them.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match mode {
        0 => _ = cluster::fuzzing::manifests(text, false),
        1 => _ = cluster::fuzzing::manifests(text, true),
        _ => {
            // The place, the status file, the manifests.
            let mut rest = text.splitn(3, '\n');
            let (place, status) = (
                rest.next().unwrap_or_default(),
                rest.next().unwrap_or_default(),
            );
            let objects = cluster::fuzzing::manifests(rest.next().unwrap_or_default(), false);
            cluster::fuzzing::status(Path::new(place), status, &objects);
        }
    }
});
