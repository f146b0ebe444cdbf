// SPDX-License-Identifier: Apache-2.0
//! The kernel's replies to dumps of tables, chains, sets and rules, compared with a pod's plan.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redirect::nftables::fuzzing::{Reply, replies};
use redirect::plan::{Dns, PodOptions, pod_plan};

fuzz_target!(|data: &[u8]| {
    let options = PodOptions::for_pod(
        &Default::default(),
        redirect::plan::Families::Dual,
        Dns::Captured,
    );
    let plan = pod_plan(&options).tables;
    let ours: Vec<_> = plan.iter().map(|table| table.name).collect();
    let dumped = fuzz::parts(data).map(|(kind, bytes)| match kind % 5 {
        0 => Reply::Table(bytes),
        1 => Reply::Chain(bytes),
        2 => Reply::Set(bytes),
        3 => Reply::Rule(bytes),
        _ => Reply::Elements(bytes),
    });
    replies(dumped, &plan, &ours);
});
