// SPDX-License-Identifier: Apache-2.0
//! A real kube-apiserver drives the control plane: what is applied is served, and what becomes of it when the server is
//! lost, slow or forgetful, or when its objects are none; and how several control planes share
//! the work.

mod certificates;
mod conditions;
mod ground;
mod kinds;
mod leader;
mod objects;
mod outages;
mod secrets;
