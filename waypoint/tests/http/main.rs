// SPDX-License-Identifier: Apache-2.0
//! Requests through a waypoint over loopback: real tunnels in, real HTTP on, and applications that say what they saw.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod harness;

mod authorizers;
mod collectors;
mod drain;
mod framing;
mod networks;
mod origination;
mod policies;
mod protocols;
mod resilience;
mod routes;
mod telemetry;
mod tls;
mod tokens;
mod websocket;
