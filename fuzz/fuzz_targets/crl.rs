// SPDX-License-Identifier: Apache-2.0
//! Revocation lists, as a file or as DER that is wrapped first, before a certificate that they may be about.
#![no_main]

use std::cell::LazyCell;

use identity::{RevocationList, WorkloadCertificate};
use libfuzzer_sys::fuzz_target;

const KEY: &str = include_str!("../fixtures/key.pem");
const CHAIN: &str = include_str!("../fixtures/chain.pem");
const ROOTS: &str = include_str!("../fixtures/roots.pem");

fuzz_target!(|data: &[u8]| {
    thread_local! {
        static CERTIFICATE: LazyCell<WorkloadCertificate> = LazyCell::new(|| {
            WorkloadCertificate::from_pem(None, &[CHAIN.into(), ROOTS.into()], KEY)
                .expect("a certificate")
        });
    }
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let list = match mode {
        0 => RevocationList::parse(data),
        _ => RevocationList::parse(fuzz::pem("X509 CRL", data).as_bytes()),
    };
    let Ok(list) = list else {
        return;
    };
    assert_eq!(list.is_empty(), list.certificates() == 0);
    let revoked = CERTIFICATE.with(|certificate| certificate.revoked_by(&list));
    if let Some(revoked) = revoked {
        assert!(list.issuers().any(|issuer| issuer == revoked.issuer));
    }
});
