// SPDX-License-Identifier: Apache-2.0
//! The DNS of the lab's world: what a cluster's resolver is to its pods, and a client that shows every bit of an answer.
//!
//! - [`message`]: DNS messages, written and read on their own account, so that the mesh's reading of them is checked
//! - [`zone`]: pure: what the lab's server knows, of every kind that a proxy could spoil
//! - [`server`]: the same over UDP and TCP; it says on its output who asked what
//! - [`client`]: `e2e resolve`, raw queries and the whole answer as JSON

pub mod client;
pub mod message;
pub mod server;
pub mod zone;
