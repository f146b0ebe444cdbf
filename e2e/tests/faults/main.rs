// SPDX-License-Identifier: Apache-2.0
//! The mesh under fault: what is killed, cut off or starved must cost no wrong byte, no plaintext and no panic, and be
//! over in a stated time. One lab; the tests take turns.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

mod crash;
mod deleted;
mod descriptors;
mod floods;
mod ground;
mod messages;
mod mimicry;
mod reboot;
mod strangers;
