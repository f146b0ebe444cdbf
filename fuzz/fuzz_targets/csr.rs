// SPDX-License-Identifier: Apache-2.0
//! A certificate request: as PEM, or as DER that is wrapped first.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let text = match mode {
        0 => String::from_utf8_lossy(data).into_owned(),
        _ => fuzz::pem("CERTIFICATE REQUEST", data),
    };
    let _ = istiod_lite::ca::fuzzing::request(&text);
});
