// SPDX-License-Identifier: Apache-2.0
//! A service-account token and a key set, and the claims of one whose signature would be good.
#![no_main]

use std::time::{Duration, SystemTime};

use istiod_lite::authenticate::claims::Expected;
use istiod_lite::authenticate::fuzzing::{claims, token};
use libfuzzer_sys::fuzz_target;

const KEYS: &str = include_str!("../fixtures/jwks.json");

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let expected = Expected {
        issuer: "lab".into(),
        audiences: vec!["istio-ca".into()],
        leeway: Expected::DEFAULT_LEEWAY,
    };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    match (mode, std::str::from_utf8(data)) {
        (0, _) => claims(data, &expected, now),
        (1, Ok(text)) => _ = token(text, KEYS),
        (_, Ok(text)) => {
            let (jwt, keys) = text.split_once('\n').unwrap_or((text, ""));
            let _ = token(jwt, keys);
        }
        (_, Err(_)) => {}
    }
});
