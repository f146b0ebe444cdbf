// SPDX-License-Identifier: Apache-2.0
//! A connection to the admin port.
#![no_main]

use http::StatusCode;
use libfuzzer_sys::fuzz_target;
use ops::admin::{Routes, text};
use ops::health::Readiness;
use ops::metrics::Metrics;

fuzz_target!(|data: &[u8]| {
    let routes = Routes::new()
        .readiness(Readiness::default())
        .metrics(Metrics::default())
        .post("/logging", |request| {
            let level = request.query_value("level").unwrap_or_default();
            text(StatusCode::OK, format!("{level} {:?}", request.body))
        })
        .any("/", |request| {
            text(StatusCode::OK, format!("{:?}", request.query))
        });
    fuzz::converse(data, |io| routes.converse_for_fuzzing(io));
});
