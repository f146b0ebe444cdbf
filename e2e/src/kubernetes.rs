// SPDX-License-Identifier: Apache-2.0
//! A real kube-apiserver with its etcd, of this machine's own making: no node and no container. Unless a test asks for
//! controllers there are none, so that nothing is there but what the test puts there.
//!
//! ```text
//!  e2e/kubernetes/build ─► target/kubernetes/{etcd,kube-apiserver,…}
//!  test ── Cluster::start ─► etcd ◄── kube-apiserver ◄══ Gate (cut, slow) ══ kubeconfig ◄── istiod-lite
//!    └──── Cluster::put, merge, delete ────┘
//! ```

mod admin;
mod assets;
mod certificates;
mod cluster;
mod gate;
mod server;

pub use admin::{Admin, End, TokenRequest, definition, path};
pub use assets::assets;
pub use cluster::{Cluster, Write};
pub use gate::Gate;
pub use server::{API_SERVER, Terms};
