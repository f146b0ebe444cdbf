// SPDX-License-Identifier: Apache-2.0
//! `ztunnel [proxy|version|help]`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ops::program::Program;
use ops::variables::ConfigError;
use ztunnel::app;
use ztunnel::config::{Config, REFUSED, Sources, VARIABLES};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    Program {
        name: ("ztunnel", env!("CARGO_PKG_VERSION")),
        help,
        configure,
    }
    .run(app::run)
}

fn configure(variables: BTreeMap<String, String>) -> Result<Config, ConfigError> {
    Config::from_sources(&Sources {
        variables,
        mesh_config: std::fs::read_to_string("./etc/istio/config/mesh").ok(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
    })
}

fn help() -> String {
    let usage = "ztunnel: the node's L4 proxy of the mesh\n\nusage: ztunnel [proxy|version|help]";
    ops::variables::help(usage, VARIABLES.iter().chain(REFUSED))
}
