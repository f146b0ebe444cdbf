// SPDX-License-Identifier: Apache-2.0
//! What keeps a service's clients well when some of its endpoints are not.
//!
//! In: facts about a request, an attempt or an endpoint, the time, randomness. Out: whether to try again, when, and
//! where; until when to wait; who is left alone for a while. Which endpoints there are, which are ready, near and can be
//! connected to, `mesh` says; this comes behind it.
//!
//! ```text
//! traffic: what is configured
//!
//! request ─► limits ─► pick ─────────────► attempt ─► outcome ─┬─► outlier: leave it alone?
//!            too many?  session, hash, load  timeouts           ├─► load: how long did it take?
//!                          ▲                                    └─► retry: once more?
//!                          └──────────────────────────────────────────┘
//! ```

pub mod traffic;

pub mod limits;
pub mod timeouts;

pub mod locality;
pub mod pick;

pub mod affinity;
pub mod hash;
pub mod load;
pub mod slow_start;

pub mod outlier;

pub mod retry;
