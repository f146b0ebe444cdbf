// SPDX-License-Identifier: Apache-2.0
//! A peer's certificates (DER, in parts) before the verifiers of both ends; and a CA's answer (PEM, in parts).
#![no_main]

use std::cell::LazyCell;
use std::time::Duration;

use identity::WorkloadCertificate;
use identity::tls::fuzzing::{Verifiers, answer};
use libfuzzer_sys::fuzz_target;
use rustls_pki_types::{CertificateDer, UnixTime};

/// A workload's, of a root whose key is gone.
const KEY: &str = include_str!("../fixtures/key.pem");
const CHAIN: &str = include_str!("../fixtures/chain.pem");
const ROOTS: &str = include_str!("../fixtures/roots.pem");

fuzz_target!(|data: &[u8]| {
    thread_local! {
        static VERIFIERS: LazyCell<Verifiers> = LazyCell::new(|| Verifiers::of(&own()));
    }
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    if *mode == 0 {
        let texts: Vec<_> = fuzz::parts(data)
            .map(|(_, part)| String::from_utf8_lossy(part).into_owned())
            .collect();
        return answer(&texts, KEY);
    }
    let chain: Vec<_> = fuzz::parts(data)
        .map(|(_, part)| CertificateDer::from(part))
        .collect();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    VERIFIERS.with(|verifiers| verifiers.judge(&chain, now));
});

fn own() -> WorkloadCertificate {
    WorkloadCertificate::from_pem(None, &[CHAIN.into(), ROOTS.into()], KEY).expect("a certificate")
}
