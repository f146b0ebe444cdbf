// SPDX-License-Identifier: Apache-2.0
//! 15053, the pod's questions: names of the mesh are answered, everything else is forwarded as the bytes that it is.
//!
//! ```text
//!  app ── UDP or TCP 53 ──► 15053 ─► lookup ─┬─ names (pure): a service of the mesh ─► answer (pure)
//!                                            └─ anything else ─► upstreams: ztunnel's resolv.conf, asked from inside the pod
//! ```
//! A forwarded response differs from the upstream's in its id alone, with two exceptions: of a name that the mesh answers,
//! "no such name" to a question for another record type becomes "no such record", since the name does exist; and where
//! the pod has asked the same before, and what it was told still holds, it is told that again, with the shorter lives.
//!
//! Names of single pods of a headless service (`web-0.web.shop.svc.cluster.local`) are forwarded too: the control plane
//! tells of the pods, but not of these names.
//!
//! Bounds: [`QUERIES_PER_POD`], [`QUERIES_PER_NODE`], [`CONNECTIONS_PER_POD`], [`QUERIES_PER_CONNECTION`], and those of [`cache`]; a query has at
//! most [`message::MAX_QUERY`] bytes; a connection without a query in [`IDLE`] is closed. The listeners are on the pod's
//! loopback, so that only the pod itself can ask.

pub mod answer;
pub mod cache;
mod lookup;
pub mod message;
pub mod names;
mod record;
pub mod resolv_conf;
mod serve;
pub mod upstreams;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh::Workload;
use ops::metrics::Metrics;
use tokio::sync::Semaphore;

use self::answer::Transport;
pub use self::lookup::Refusal;
use self::message::{Family, Query};
use self::names::{Client, Domains};
use self::record::Lookups;
pub use self::serve::{Listeners, listen, serve};
use self::upstreams::{Upstreams, Way};
use crate::config;
use crate::mesh_state::MeshState;
use crate::proxy::PodProxy;

/// Queries of one pod that are being answered.
pub const QUERIES_PER_POD: usize = 256;
/// Of all pods of the node; each forwarded one holds a socket.
pub const QUERIES_PER_NODE: usize = 4096;
/// Of one pod; further ones wait in the kernel.
pub const CONNECTIONS_PER_POD: usize = 32;
/// Of one TCP connection; further ones wait there.
pub const QUERIES_PER_CONNECTION: usize = 16;
/// How long a TCP connection is kept without a query, and how long its client may take to read an answer.
pub const IDLE: Duration = Duration::from_secs(5);

/// What all pods of the node share.
pub struct Resolver {
    settings: config::Dns,
    domains: Domains,
    network: Arc<str>,
    ipv6: config::Ipv6,
    pub upstreams: Arc<Upstreams>,
    lookups: Lookups,
    in_flight: Arc<Semaphore>,
}

/// Why a host has no address to connect to.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("{0:?} is no host name")]
    NoName(String),
    #[error("{0} can't be resolved: DNS is switched off (ISTIO_META_DNS_CAPTURE)")]
    Off(String),
    #[error("{host} has no {family:?} address")]
    NoAddress { host: String, family: Family },
    #[error(
        "{host} can't be resolved: {QUERIES_PER_NODE} queries of this node's pods are being answered"
    )]
    Busy { host: String },
    #[error("{host} can't be resolved: {error}")]
    Upstream {
        host: String,
        error: upstreams::UpstreamError,
    },
}

impl Resolver {
    pub fn new(
        settings: config::Dns,
        upstreams: Arc<Upstreams>,
        network: Arc<str>,
        ipv6: config::Ipv6,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            domains: Domains {
                cluster: settings.cluster_domain.clone(),
                preferred_namespace: settings.preferred_namespace.clone(),
            },
            network,
            ipv6,
            upstreams,
            lookups: Lookups::new(metrics),
            in_flight: Arc::new(Semaphore::new(QUERIES_PER_NODE)),
            settings,
        })
    }

    /// Where pods' queries are taken.
    pub fn listen_at(&self) -> config::DnsListen {
        self.settings.listen
    }

    /// An address of a host, as the pod would be answered.
    ///
    /// # Errors
    /// Says why there is none.
    pub async fn resolve(
        &self,
        pod: &PodProxy,
        workload: &Workload,
        host: &str,
        family: Family,
    ) -> Result<IpAddr, ResolveError> {
        let query = Query::for_host(host, family.record_type())
            .ok_or_else(|| ResolveError::NoName(host.to_owned()))?;
        let none = || ResolveError::NoAddress {
            host: host.to_owned(),
            family,
        };
        let name = query
            .host()
            .ok_or_else(|| ResolveError::NoName(host.to_owned()))?;
        if let Some(address) = self.pick(&pod.shared.mesh, workload, &name, family) {
            return address.ok_or_else(none);
        }
        let _place = self
            .in_flight
            .try_acquire()
            .map_err(|_| ResolveError::Busy {
                host: host.to_owned(),
            })?;
        let ask = async |transport| {
            let asked = self.upstreams.ask(self.way(pod), &query, transport).await;
            asked.map_err(|error| ResolveError::Upstream {
                host: host.to_owned(),
                error,
            })
        };
        let mut response = ask(Transport::Udp).await?;
        if message::is_truncated(&response) {
            response = ask(Transport::Tcp).await?;
        }
        let found = message::addresses_in(&response, family);
        found.first().copied().ok_or_else(none)
    }

    fn pick(
        &self,
        mesh: &MeshState,
        workload: &Workload,
        name: &str,
        family: Family,
    ) -> Option<Option<IpAddr>> {
        let client = self.client(&workload.namespace);
        names::pick(
            &mesh.read(),
            &self.domains,
            client,
            name,
            family,
            &mut rand::rng(),
        )
    }

    fn client<'a>(&'a self, namespace: &'a str) -> Client<'a> {
        Client {
            namespace,
            network: &self.network,
            ipv6: self.ipv6,
        }
    }

    fn way<'a>(&self, pod: &'a PodProxy) -> Way<'a> {
        Way {
            netns: &pod.netns,
            mark: Some(pod.shared.settings.inpod.mark),
        }
    }
}
