// SPDX-License-Identifier: Apache-2.0
//! A real kube-apiserver drives the control plane: what is applied is served, and what becomes of it when the server is
//! lost, slow or forgetful, or when its objects are none; how several control planes share the work; the node agent
//! beside them; Kubernetes' own controllers; and the whole lab on such a server.

mod certificates;
#[path = "../lifetimes/clock.rs"]
mod clock;
mod conditions;
mod controllers;
mod deploy;
mod ground;
mod helm;
mod kinds;
mod lab;
mod leader;
mod node_agent;
mod objects;
mod operators;
mod outages;
mod secrets;
mod suite;
mod waypoints;
