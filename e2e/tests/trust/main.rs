// SPDX-License-Identifier: Apache-2.0
//! Whom the mesh believes, over time: certificates that are taken back. One lab, in which certificates live for half a
//! minute and proxies follow a revocation list; the tests take turns.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

mod ground;
mod revocation;
