// SPDX-License-Identifier: Apache-2.0
//! The engine's HTTP/2 behind TLS, at either end.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hbone::fuzzing::session(input));
