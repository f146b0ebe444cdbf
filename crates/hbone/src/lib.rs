// SPDX-License-Identifier: Apache-2.0
//! The tunnel of the mesh: HTTP/2 CONNECT over mutual TLS 1.3, port 15008 ("HBONE").
//!
//! In comes a certificate source, a pool key and sockets; out come streams that carry one connection each, and
//! outcomes that say how many bytes went which way and who ended it. This crate knows nothing of pods, policies or
//! the control plane, and no type of the HTTP/2 library appears in its public interface, so that the engine
//! underneath can be replaced without touching a caller.
//!
//! ```text
//! application ── TcpStream ─┐                                     ┌─ TcpStream ── application
//!              relay (bytes)│  Pool::open          Server::serve  │relay (bytes)
//!                           └► Stream ═ tunnel ═══════ Incoming ──┘
//! ```
//!
//! A destination behind the gateway of another network is reached by a tunnel inside such a stream, for one connection.
//!
//! Invariants:
//! * Bytes held per connection are bounded: flow-control credit goes back to the peer only as bytes reach the
//!   application, and nothing is read from an application that the tunnel has no room for.
//! * A slow reader stalls its own writer and nobody else, and no pattern of small frames ends a shared tunnel.
//! * FIN and RST are mirrored: FIN ↔ END_STREAM, RST ↔ RST_STREAM, on every path, also when a task is aborted.
//! * A peer that says a great deal, or little in many frames, has its turn and then waits for everybody else's.
//! * What is readable now leaves now, in few frames, records and writes; nothing ever waits for more to come.

pub mod wire;

mod config;
mod error;

mod client;
mod engine;
mod nested;
mod pool;
mod server;

mod fate;
mod meter;
mod relay;
mod stop;
mod stream;
mod turn;

mod chunks;
mod io;
mod keepalive;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;

#[doc(hidden)]
pub use engine::hot;

pub use client::{BoxFuture, Dial, TunnelInfo};
pub use config::{Config, Engine};
pub use error::{BehindError, OpenError, ServeError, TunnelError, TunnelFault};
pub use meter::{Count, Meter};
pub use nested::{Behind, Ends, open_inside};
pub use pool::{Pool, PoolKey};
pub use relay::{End, Heard, Outcome, Side, relay_streams, relay_tcp};
pub use server::{Handler, Incoming, Server};
pub use stop::Stop;
pub use stream::Stream;
