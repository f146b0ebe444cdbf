// SPDX-License-Identifier: Apache-2.0
//! How a process runs: its main, variables, logs, metrics, what is told to collectors, health, admin, followed files, proxy
//! threads, the accept loop and who may stand before it, drain.
//!
//! Every daemon of the mesh is watched and stopped in the same way; what is particular to one of them does not belong
//! here. Nothing in this crate knows of pods, tunnels or policies.

pub mod admin;
pub mod export;
pub mod file;
pub mod health;
pub mod lobby;
pub mod logging;
pub mod metrics;
pub mod program;
pub mod serve;
pub mod shutdown;
pub mod variables;
pub mod workers;
