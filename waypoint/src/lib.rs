// SPDX-License-Identifier: Apache-2.0
//! The L7 proxy of the mesh, on the same overlay as the nodes' proxies: services that ask for one send their traffic
//! through it. What decides is pure: [`proto::waypoint`] in, an answer out.
//!
//! ```text
//! request ─► hygiene ─► path ─► route ─► filters ─► endpoint (mesh, session, resilience) ─► backend
//!            400         one     which    headers,   which one, how long, how often
//!                     spelling    rule   path, host
//! ```

pub mod hygiene;
pub mod path;
pub mod pattern;

pub mod route;

pub mod filters;

pub mod split;

pub mod session;

pub mod resilience;
