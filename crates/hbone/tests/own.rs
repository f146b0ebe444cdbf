// SPDX-License-Identifier: Apache-2.0
//! Tunnels, their pools and the relay over loopback, with the own engine.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

mod middle;
mod relay;

mod pool;
mod server;

mod nested;
mod standing;

mod flood;
mod interop;
