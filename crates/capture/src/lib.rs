// SPDX-License-Identifier: Apache-2.0
//! What the node agent (`redirect`) and the node proxy (`ztunnel`) agree on inside a pod.
//!
//! - [`contract`]: ports, marks, addresses and table names
//! - [`netns`]: hold, enter and identify a network namespace
//! - [`socket`]: original destination, marks, listeners, connectors that borrow addresses
//! - [`seqpacket`]: packets over a unix socket, with file descriptors
//! - [`tun`]: a device for the links of test labs
//! - [`memory`]: the allocator gives back what a peak has left
//!
//! All `unsafe` code of the project lives here. The crate knows nothing of pods, policies or protocols, and none of our
//! other crates.

pub mod contract;
pub mod memory;
pub mod netns;
pub mod seqpacket;
pub mod socket;
pub mod tun;

pub use netns::{Netns, NetnsId};
