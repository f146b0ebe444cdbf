// SPDX-License-Identifier: Apache-2.0
//! The file of workloads, services and policies of a ztunnel without a control plane.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh::{LocalConfig, Store};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (Ok(first), Ok(second)) = (LocalConfig::parse(text), LocalConfig::parse(text)) else {
        return;
    };
    let mut store = Store::new(Some("node-a"));
    first.load_into(&mut store);
    let dumped = |store: &Store| serde_json::to_string(&mesh::dump::Dump::of(store)).expect("JSON");
    let before = dumped(&store);
    second.load_into(&mut store);
    assert_eq!(dumped(&store), before, "loading twice is loading once");
});
