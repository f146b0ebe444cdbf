// SPDX-License-Identifier: Apache-2.0
//! Measurements that can be repeated with one command: `e2e bench …`. What came out is in `bench/README.md`.

pub mod control_plane;
pub mod data_path;
pub mod instructions;
pub mod store;

pub mod waypoint;

mod api_server;
mod envoy;
mod files;

use anyhow::Result;
use clap::Subcommand;

use crate::environment::Environment;

/// What is measured.
#[derive(Debug, Clone, Subcommand)]
pub enum Bench {
    /// The data path beside no proxy and beside others: throughput, requests, new connections, latency, processor time
    #[command(
        after_help = "Examples:\n  e2e bench data-path --rounds 3 --works http-16,ping-1\n  e2e bench data-path --ztunnel /path/to/another/ztunnel\n  e2e bench data-path --save e2e/bench/data-path.json\n  e2e bench data-path --from e2e/bench/data-path.json --document e2e/bench/README.md --plot e2e/bench/data-path.svg"
    )]
    DataPath(data_path::Plan),
    /// Instructions that the data path's pure work takes, against the figures on file; needs valgrind
    Instructions(instructions::Plan),
    /// A control plane of many pods: time and memory to the first state, a change to the push at many clients, reconnects
    #[command(
        after_help = "Examples:\n  e2e bench control-plane --bin-dir target/release\n  e2e bench control-plane --api-server --pods 10000 --clients 200"
    )]
    ControlPlane(control_plane::Plan),
    /// A ztunnel of a large mesh: time until it is ready and memory, from a control plane and from a local file
    Store(store::Plan),
    /// A waypoint beside Envoy in its place: requests by a header route and a policy, and memory
    #[command(
        after_help = "Examples:\n  e2e bench waypoint --envoy /path/to/envoy --json\n  e2e bench waypoint --rounds 1 --seconds 1 --connections 16 --crowd 500"
    )]
    Waypoint(waypoint::Plan),
}

impl Bench {
    /// Measures and prints. Returns whether all bounds hold.
    pub fn run(&self, environment: &Environment) -> Result<bool> {
        match self {
            Self::DataPath(plan) => data_path::run(plan, environment),
            Self::Instructions(plan) => instructions::run(plan, environment),
            Self::ControlPlane(plan) => control_plane::run(plan, environment),
            Self::Store(plan) => store::run(plan, environment),
            Self::Waypoint(plan) => waypoint::run(plan, environment),
        }
    }
}
