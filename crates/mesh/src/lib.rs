// SPDX-License-Identifier: Apache-2.0
//! What exists in the mesh and what is allowed there.
//!
//! Resources of the control plane (or of a local file) come in; answers to the questions that a proxy asks come out:
//! who is at this address, which endpoint serves this connection, may this peer speak to this workload. Everything
//! here is a function of facts, and of time and randomness handed in: no I/O, no clock, no runtime, no locks.
//!
//! ```text
//!  wire bytes ──► batch ──► from_proto ─┐
//!                                       ├─► workload, service, policy ──► store ──► balance    (which endpoint; standing: what failed)
//!  local file ──► local ────────────────┘                                   ├─────► authorize  (may it pass; recent: what came lately)
//!                                                                           └─────► dump       (what do we believe)
//! ```
//!
//! A [`Workload`], [`Service`] or [`Policy`] cannot hold an address, identity, port or prefix that is not one: what
//! does not parse is refused at the border, with the object and the field at fault.

pub mod address;
pub mod pod_uid;
pub mod workload;

pub mod service;

pub mod policy;

pub mod from_proto;

pub mod batch;

pub mod local;

pub mod store;

pub mod standing;

pub mod balance;

pub mod authorize;

pub mod recent;

pub mod dump;

mod intern;

pub use address::{
    AddressError, GatewayAddress, GatewayDestination, NamespacedHostname, NetworkAddress,
    NetworkCidr, Ports,
};
pub use authorize::{Connection, Decision, DenyReason, DryRun, PolicySet, RuleName, authorize};
pub use balance::{NoEndpoint, PortRule, Upstream};
pub use batch::{AddressBatch, PolicyBatch, Rejection, Update};
pub use from_proto::ConvertError;
pub use local::{LocalConfig, LocalConfigError};
pub use pod_uid::PodUid;
pub use policy::Policy;
pub use recent::Recent;
pub use service::Service;
pub use standing::{Endpoint, Seen, Standings};
pub use store::{Changes, Found, Store};
pub use workload::Workload;
