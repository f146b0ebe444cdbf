// SPDX-License-Identifier: Apache-2.0
//! What keeps a service's clients well when some of its endpoints are not.
//!
//! In: facts about a request, an attempt or an endpoint, the time, randomness. Out: whether to try again, when, and
//! where; until when to wait; who is left alone for a while. Which endpoints there are, and which of them are near and
//! healthy, `mesh` says; this comes behind it.

pub mod retry;
pub mod timeouts;
