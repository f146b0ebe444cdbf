// SPDX-License-Identifier: Apache-2.0
//! ztunnel's environment (lines of NAME=VALUE, up to an empty one) and the mesh configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ztunnel::config::{Config, Sources};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (environment, file) = text.split_once("\n\n").unwrap_or((text, ""));
    let variables = environment
        .split('\n')
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let sources = Sources {
        variables,
        mesh_config: Some(file.to_owned()).filter(|file| !file.is_empty()),
        cpus: 2,
    };
    if let Err(mistakes) = Config::from_sources(&sources) {
        assert!(!mistakes.mistakes.is_empty());
    }
});
