// SPDX-License-Identifier: Apache-2.0
//! A container runtime's environment and stdin (the first line is CNI_ARGS); the plugin's question and its answer.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use redirect::cni::fuzzing::{add, answer, question};

fuzz_target!(|data: &[u8]| {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    match mode {
        0 => question(data),
        1 => answer(data),
        _ => {
            let newline = data.iter().position(|byte| *byte == b'\n');
            let (arguments, stdin) = data.split_at(newline.unwrap_or(0));
            let mut environment: BTreeMap<String, String> = [
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", "c"),
                ("CNI_NETNS", "/run/netns/c"),
                ("CNI_IFNAME", "eth0"),
            ]
            .map(|(key, value)| (key.into(), value.into()))
            .into();
            environment.insert(
                "CNI_ARGS".into(),
                String::from_utf8_lossy(arguments).into_owned(),
            );
            add(&environment, stdin);
        }
    }
});
