// SPDX-License-Identifier: Apache-2.0
//! Measurements that can be repeated with one command: `e2e bench …`. What came out is in `bench/README.md`.

pub mod control_plane;

use anyhow::Result;
use clap::Subcommand;

use crate::environment::Environment;

/// What is measured.
#[derive(Debug, Clone, Subcommand)]
pub enum Bench {
    /// A control plane of many pods: time and memory to the first state, a change to the push at many clients, reconnects
    ControlPlane(control_plane::Plan),
}

impl Bench {
    /// Measures and prints. Returns whether all bounds hold.
    pub fn run(&self, environment: &Environment) -> Result<bool> {
        match self {
            Self::ControlPlane(plan) => control_plane::run(plan, environment),
        }
    }
}
