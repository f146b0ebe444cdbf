// SPDX-License-Identifier: Apache-2.0
//! The L7 proxy of the mesh, on the same overlay as the nodes' proxies: services and pods that ask for one send their
//! traffic through it.
//!
//! Tunnels come in, and tunnels go on to the endpoints' nodes; in between it is decided what a connection is meant for,
//! whether it may come, and who takes it. What decides is pure: [`proto::waypoint`] in, an answer out.
//!
//! ```text
//! request ─► hygiene ─► path ─► route ─► filters ─► endpoint (mesh, session, resilience) ─► backend
//!            400         one     which    headers,   which one, how long, how often
//!                     spelling    rule   path, host
//! ```
//!
//! README.md has the whole picture; the modules follow in reading order. The library exists for the binary beside it and
//! its tests; it promises nothing else.

pub mod config;

pub mod app;

pub mod listener;

pub mod destination;

pub mod authorize;
pub mod authorizer;
pub mod authz;
pub mod settings;
pub mod token;

pub mod connection;
pub mod detect;

pub mod hello;
pub mod tcp;

pub mod http;
pub mod request;

pub mod body;

pub mod endpoints;
pub mod hostnames;
pub mod pool;
pub mod tls;
pub mod upstream;

pub mod framing;
pub mod hygiene;
pub mod path;
pub mod pattern;

pub mod route;

pub mod filters;

pub mod rate_limit;
pub mod split;

pub mod session;

pub mod resilience;

pub mod connections;
pub mod memory;

pub mod exchange;
pub mod failure;
pub mod messages;
pub mod record;
pub mod telemetry;
pub mod trace;

pub mod otlp;

pub mod node;
pub mod state;
pub mod waypoint;
pub mod xds_handlers;

pub mod admin;
