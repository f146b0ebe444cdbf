// SPDX-License-Identifier: Apache-2.0
//! The real binary on one node with two pods, each a network namespace: what a person sees from outside, as bytes,
//! access log, metrics and the admin view. Needs root.
//!
//! There are no capture rules here (those are the node agent's, and tested with it): a connection is brought to the
//! outbound listener by giving a service's virtual address to the client's loopback and the listener's port to the
//! service.

#![expect(
    clippy::unwrap_used,
    reason = "what a test needs and does not get fails it"
)]

mod control_plane;
mod harness;

mod admin;
mod dns;
mod handover;
mod limits;
mod logs;
mod policy;
mod release;
mod resilience;
mod robustness;
mod same_node;
mod socks5;
mod tunnel;
