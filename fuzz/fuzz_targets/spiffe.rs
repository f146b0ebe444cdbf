// SPDX-License-Identifier: Apache-2.0
//! Identities and trust domains as text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spiffe::{SpiffeId, TrustDomain};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(id) = text.parse::<SpiffeId>() {
        assert_eq!(id.to_string(), text, "an identity has one spelling");
        let made = SpiffeId::new(
            &id.trust_domain().parse().expect("its own trust domain"),
            id.namespace(),
            id.service_account(),
        );
        assert_eq!(made.as_ref(), Ok(&id));
        assert_eq!(format!("spiffe://{}", id.principal()), text);
    }
    if let Ok(domain) = text.parse::<TrustDomain>() {
        assert_eq!(domain.as_str(), text);
    }
});
