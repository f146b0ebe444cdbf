// SPDX-License-Identifier: Apache-2.0
//! Brings the traffic of a node's pods to ztunnel.
//!
//! Pure: [`enroll`] decides who is in the mesh, [`plan`] what must hold in a pod (in the words of [`rules`]), [`state`]
//! what the agent does next, [`zds_link`] what ztunnel is told next. [`nftables`], [`routes`] and [`conntrack`] talk to
//! the kernel, [`program`] visits a namespace for them. [`pairing`] says whether a namespace is a pod's, [`processes`]
//! finds those that nobody announced. [`install`] puts the plugin on the node, [`departure`] says
//! whether it stays when the agent ends; [`preflight`] says beforehand what will not work, by
//! a [`canary`] among others; where the canary lives, [`taint`] frees the node. [`agent`] is the daemon's loop, between [`plugin_server`] (the CNI plugin
//! asks), [`zds_server`] (ztunnel answers) and [`memory`] (survives a restart). [`cni`] is the plugin.

pub mod enroll;
pub mod plan;
pub mod rules;

pub mod conntrack;
mod expression;
pub mod nftables;
pub mod program;
pub mod resolver;
pub mod routes;

mod agent_client;
pub mod cni;
pub mod plugin_api;

pub mod zds_link;
pub mod zds_server;

pub mod agent;
pub mod canary;
mod cluster_view;
pub mod config;
pub mod departure;
pub mod install;
pub mod memory;
pub mod pairing;
pub mod plugin_server;
pub mod preflight;
pub mod processes;
pub mod state;
pub mod taint;
