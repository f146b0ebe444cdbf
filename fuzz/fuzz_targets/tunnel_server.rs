// SPDX-License-Identifier: Apache-2.0
//! A tunnel's accepting end, from right behind TLS, with a hostile client: raw bytes, or frames after a decent greeting.
#![no_main]

use libfuzzer_sys::fuzz_target;

const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let mut bytes = Vec::new();
    match mode {
        0 => bytes.extend_from_slice(data),
        _ => {
            bytes.extend_from_slice(GREETING);
            fuzz::frames(data, &mut bytes);
        }
    }
    fuzz::converse(&bytes, hbone::fuzzing::serve);
});
