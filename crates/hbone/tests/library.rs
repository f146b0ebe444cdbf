// SPDX-License-Identifier: Apache-2.0
//! The same behaviours with the libraries in place of the own engine.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

mod middle;
mod relay;

mod pool;
mod server;

mod nested;

mod flood;
