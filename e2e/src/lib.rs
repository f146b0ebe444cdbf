// SPDX-License-Identifier: Apache-2.0
//! The lab: a real two-node mesh on one machine, nodes and pods as network namespaces.
//!
//! It plays what a cluster has around the mesh: the container runtime, the primary CNI plugin, kubelets and the issuer
//! of service-account tokens. The mesh's own programs are the real ones, with the capabilities a cluster grants them.
//!
//! From the outside in:
//! - [`cli`]: the commands
//! - [`handle`]: start a lab and act in it; what the tour and the tests use
//! - [`trial`], [`load`]: traffic in the background of a fault, and what became of it
//! - [`tour`]: the proofs `e2e up` shows
//! - [`lab`]: the lab's own process: daemons, kubelets, runtime
//! - [`link`]: a worse wire between the nodes
//! - [`traffic`], [`dns`]: the servers and clients that run in pods, and whom they ask for names
//! - [`gateway`]: lets in what other networks send; [`native`]: a pod that tunnels itself; [`member`]: what both have in
//!   common
//! - [`waypoints`]: the objects of a waypoint
//! - [`hostile`]: peers that mean harm
//! - [`sniff`], [`wire`]: what the wire carries
//! - [`kubernetes`]: a real API server, without nodes
//! - [`plane`]: the control plane by itself, and its clients
//! - [`conformance`]: what any authority of the mesh has to refuse
//! - [`deploy`]: what is applied to a real cluster, [`clients`]: and by which programs
//! - [`bench`]: measurements that can be repeated
//! - [`access_log`], [`telemetry`]: what the proxies say they did
//! - [`manifests`], [`topology`], [`state`], [`tokens`], [`network`], [`namespaces`], [`launch`], [`lifeline`]: what all that stands on

pub mod access_log;
pub mod authority;
pub mod bench;
pub mod binaries;
pub mod cli;
pub mod clients;
pub mod conformance;
pub mod deploy;
pub mod dns;
pub mod environment;
pub mod gateway;
pub mod handle;
pub mod hostile;
pub mod kubernetes;
pub mod lab;
pub mod launch;
pub mod lifeline;
pub mod link;
pub mod load;
pub mod manifests;
pub mod member;
pub mod namespaces;
pub mod native;
pub mod network;
pub mod peers;
pub mod plane;
pub mod sniff;
pub mod state;
pub mod status;
pub mod telemetry;
pub mod tokens;
pub mod topology;
pub mod tour;
pub mod traffic;
pub mod trial;
pub mod waypoints;
pub mod wire;
