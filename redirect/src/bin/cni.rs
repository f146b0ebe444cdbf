// SPDX-License-Identifier: Apache-2.0
//! The CNI plugin as a container runtime runs it: one question from environment and stdin, one answer on stdout.

use std::io::{Read, Write};
use std::process::ExitCode;

/// More than any network configuration.
const MAX_STDIN: u64 = 4 * 1024 * 1024;

fn main() -> ExitCode {
    let environment = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let mut stdin = Vec::new();
    // What can't be read is judged like what can't be decoded.
    _ = std::io::stdin().take(MAX_STDIN).read_to_end(&mut stdin);
    let outcome = redirect::cni::run(&environment, &stdin);
    let written = std::io::stdout().write_all(outcome.stdout.as_bytes());
    if outcome.success && written.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
