// SPDX-License-Identifier: Apache-2.0
//! Traffic by way of a waypoint: the client's node, the waypoint's pod, the endpoint's node, each with its own say and its
//! own account of it.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

mod authorizers;
mod backend_tls;
mod backends;
mod callers;
mod claims;
mod edges;
mod ground;
mod http;
mod localities;
mod policies;
mod rolling;
mod routes;
mod rules;
mod tcp;
mod who;
