// SPDX-License-Identifier: Apache-2.0
//! Whom the mesh believes, over time: roots that change, an authority that is gone or has expired, clocks that are set.
//! One lab, in which certificates live for twelve seconds; the tests take turns, all with traffic under way.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

mod clock;
mod ground;

mod clocks;
mod expiry;
mod outage;
mod roots;
