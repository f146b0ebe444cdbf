// SPDX-License-Identifier: Apache-2.0
//! A tunnel's opening end, from right behind TLS, with a hostile server: raw bytes, or frames after its settings.
#![no_main]

use libfuzzer_sys::fuzz_target;

const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let mut bytes = Vec::new();
    match mode {
        0 => bytes.extend_from_slice(data),
        _ => {
            bytes.extend_from_slice(SETTINGS);
            fuzz::frames(data, &mut bytes);
        }
    }
    fuzz::converse(&bytes, hbone::fuzzing::open);
});
