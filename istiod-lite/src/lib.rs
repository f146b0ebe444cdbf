// SPDX-License-Identifier: Apache-2.0
//! The control plane of the mesh.
//!
//! ```text
//!  cluster events ─► index (facts ─► translate) ─► catalogue ─► xds_server ─► every ztunnel
//!                      │                                                        │
//!                      └─► status: conditions on objects      ca_service ◄──────┘ CSRs
//! ```
//!
//! What decides is pure: `facts`, `translate`, `index` and the session of a client
//! take values and return values. What does I/O holds no opinions.

pub mod wellknown;

pub mod facts;
pub mod translate;

pub mod index;

pub mod catalogue;
pub mod describe;

pub mod status;

pub mod authenticate;
pub mod bearer;
pub mod ca;

pub mod ca_service;
pub mod xds_server;

pub mod bundles;
pub mod key_sets;

pub mod controller;
pub mod leader;
pub mod serving;

pub mod authority;
pub mod replicas;
pub mod root_configmaps;
pub mod waypoints;

pub mod admin;
pub mod app;
pub mod config;
pub mod source;
