// SPDX-License-Identifier: Apache-2.0
//! What the cluster says, as typed events; and what we have to say back, as status.
//!
//! A [`Source`] yields [`Batch`]es: the first one is the whole state, each later one what changed since, together with
//! the set of [`Problem`]s that hold at that moment. It comes from a [`Directory`] of Kubernetes manifests or from the
//! [`Api`] of a cluster; whoever reads it need not know which.
//!
//! ```text
//!  *.yaml *.yml *.json ──► tree ──► parse ──► manifests ──► Batch { events, problems }
//!  .status/**/*.json ────► overlay ─────────────▲
//!        ▲                                      │
//!        └── StatusWriter          watch (inotify) says which files to read
//!
//!  API server ── a watch per kind ──► followers ──► ledger ──► Batch { events, problems }
//! ```
//!
//! The crate knows nothing of the mesh: which labels matter and what a policy means is for those who read the events.

pub mod kinds;
pub mod object;
pub mod problem;
pub mod source;

mod decode;
mod manifests;
mod packed;
mod parse;
mod tree;

pub mod api;
pub mod directory;
pub mod overlay;
pub mod status;
mod watch;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;

pub use api::{Api, Client, Connection, ConnectionError, Follow, RequestError};
pub use directory::Directory;
pub use k8s_openapi;
pub use object::{Kind, Object, ObjectKey};
pub use overlay::Partial;
pub use parse::check_subdomain;
pub use problem::{Problem, Severity};
pub use source::{Batch, Event, Events, OpenError, Source};
pub use status::{StatusError, StatusWriter};
