// SPDX-License-Identifier: Apache-2.0
//! Names, asked for from inside pods with the rules that the node agent really applies.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

mod ground;

mod forwarded;
mod mesh;
mod outages;
mod rules;
