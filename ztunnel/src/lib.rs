// SPDX-License-Identifier: Apache-2.0
//! The node's L4 proxy of the mesh.
//!
//! It learns of this node's pods from the node agent, opens listeners inside them, and carries their connections through
//! mTLS tunnels to the pods of other nodes, deciding by policy what may arrive. README.md has the picture; the modules
//! follow in reading order. The library exists for the binary beside it, its tests and benches; it promises nothing else.

pub mod config;

pub mod app;

pub mod handover;
pub mod operators;
pub mod succession;

pub mod zds_client;

pub mod binding;
pub mod pods;

pub mod habits;
pub mod proxy;

pub mod outbound;
pub mod socks5;

pub mod inbound;
pub mod proxy_protocol;

pub mod passthrough;
pub mod relaying;

pub mod dns;

pub mod route;

pub mod endpoints;
pub mod hostnames;

pub mod connections;
pub mod explain;
pub mod limits;
pub mod trial;

pub mod failure;
pub mod otlp;
pub mod record;
pub mod telling;

pub mod crl;
pub mod roots;

pub mod mesh_state;
pub mod node;
pub mod on_demand;
pub mod xds_handlers;

pub mod admin;
