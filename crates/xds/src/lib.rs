// SPDX-License-Identifier: Apache-2.0
//! A delta-xDS client for any resource type.
//!
//! ```text
//! control plane ◄─ requests, ACK, NACK ─┐
//!       │                               │
//!       └── responses ──► Client ──► Subscription (what is held, at which version)
//!                            └─────► Handler      (what a resource means)
//! ```
//!
//! In: a way to connect, the node's identity, one handler per type. Out: calls of
//! the handlers, in the order in which the control plane speaks. A type is wanted
//! whole, or by keys that are asked for as they are needed ([`Demand`]). Nothing here
//! knows what a workload or a policy is.

mod held;
mod subscription;
pub use subscription::{
    Delivery, Pending, Rejection, Resource, Subscription, change_keys, refuse_unknown_type,
};

mod node;
pub use node::node;

mod counted;
pub use counted::Counted;

mod demand;
pub use demand::{Demand, MAX_KEYS, TooManyKeys};

mod client;
pub use client::{BoxFuture, Client, Handler, Observer, Termination};
