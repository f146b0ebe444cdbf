// SPDX-License-Identifier: Apache-2.0
//! `waypoint [proxy|version|help]`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ops::program::Program;
use ops::variables::ConfigError;
use waypoint::app;
use waypoint::config::{Config, Sources, VARIABLES};

/// A request takes and gives back dozens of pieces of memory, of all sizes up to a connection's buffers: with a crowd the C
/// library's own allocator spent a fifth of the machine on finding their places (`e2e/bench/README.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Program {
        name: ("waypoint", env!("CARGO_PKG_VERSION")),
        help,
        configure,
    }
    .run(app::run)
}

fn configure(variables: BTreeMap<String, String>) -> Result<Config, ConfigError> {
    Config::from_sources(&Sources {
        variables,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
    })
}

fn help() -> String {
    let usage = "waypoint: the L7 proxy of the mesh\n\nusage: waypoint [proxy|version|help]";
    ops::variables::help(usage, VARIABLES)
}
