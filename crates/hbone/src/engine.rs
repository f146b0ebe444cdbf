// SPDX-License-Identifier: Apache-2.0
//! The tunnel's own engine: TLS 1.3 records and HTTP/2 CONNECT, in place and without I/O.
//!
//! rustls does the handshake; from its traffic secrets on all is ours. Bytes of an application are read to where they
//! are sealed, and what was opened is written from where it was decrypted.
//!
//! ```text
//!  application socket ─ vectored read ─► Outgoing: frame headers, records ─ seal ─► one write to the tunnel
//!  application socket ◄ vectored write ─ Session: frames ◄─ open in place ─ Intake ◄─ large reads of the tunnel
//! ```
//!
//! `secrets`, `record`, `outgoing`, `intake`, `frame`, `hpack`, `flow` and `session` are pure: bytes, time and limits
//! in, bytes and events out. `handshake` and `tunnel` do the I/O, `stream` is what users hold.

mod buffer;
mod flow;
mod frame;
mod hpack;
mod intake;
mod outgoing;
mod record;
mod secrets;

#[doc(hidden)]
pub mod hot;

pub(crate) mod handshake;
pub(crate) mod link;
pub(crate) mod session;
pub(crate) mod stream;
pub(crate) mod tunnel;

#[cfg(fuzzing)]
pub(crate) mod fuzzing;
