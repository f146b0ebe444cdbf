// SPDX-License-Identifier: Apache-2.0
//! A process that starts takes over from the one that runs, so that an upgrade costs no connection.
//!
//! ```text
//!  successor                                       predecessor
//!    hello ─────────────────────────────────────►    whose user is it, which version; hello
//!    a pod of the agent's: its listeners? ──────►    the very sockets; from here on both accept
//!    ready: the process's own listeners? ───────►    admin, metrics, readiness
//!    serving ───────────────────────────────────►    accepts no more; nothing was refused in between
//!                                                    PROBATION: should the successor die, it goes on as before
//!        ◄──────────────────────────── reports ──    lingers: what is open ends by itself, or at the deadline
//! ```
//! Sockets are passed by descriptor: connections that wait in a listener's queue wait for whoever accepts next. The
//! predecessor keeps its line to the node agent, to hear of pods that go, and the control plane's policies, which are
//! applied to what it still carries. What it no longer needs it drops.

mod giving;
mod lingering;
mod predecessor;
mod sockets;
mod wire;

pub use self::giving::{Estate, Giver, Successor};
pub use self::lingering::{Predecessors, ReportView, linger};
pub use self::predecessor::Predecessor;
pub use self::sockets::Sockets;
pub use self::wire::{HandoverError, hello};

/// How long a predecessor stands ready to go on where its successor fails.
pub const PROBATION: std::time::Duration = std::time::Duration::from_secs(10);
