// SPDX-License-Identifier: Apache-2.0
//! `e2e`: start the lab, look into it, change it. No thread and no runtime before the command says so: some commands
//! enter namespaces, which only a process with a single thread may.

use std::process::ExitCode;

fn main() -> ExitCode {
    e2e::cli::main()
}
