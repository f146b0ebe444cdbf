// SPDX-License-Identifier: Apache-2.0
//! The engine's TLS records and post-handshake messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hbone::fuzzing::records(input));
