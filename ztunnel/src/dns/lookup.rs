// SPDX-License-Identifier: Apache-2.0
//! One query's life, in order: read, know who asks, ask the mesh, forward or answer, write it down.

use std::net::SocketAddr;
use std::time::Instant;

use parking_lot::Mutex;

use super::answer::{self, ExtendedError, Transport};
use super::cache::Cache;
use super::message::{self, Query, QueryError, Rcode};
use super::names::{self, Decision, Name};
use super::record::{Asked, By, Labels};
use super::upstreams::UpstreamError;
use super::{QUERIES_PER_NODE, QUERIES_PER_POD, Resolver};
use crate::failure::Failure;
use crate::proxy::PodProxy;

/// Why a query was not answered with what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Unreadable(QueryError),
    #[error("{QUERIES_PER_POD} queries of this pod are being answered")]
    PodBusy,
    #[error("{QUERIES_PER_NODE} queries of this node's pods are being answered")]
    NodeBusy,
    #[error("{0}")]
    UnknownSource(Failure),
    #[error("{0}")]
    Upstream(UpstreamError),
}

impl Refusal {
    /// What to answer; none where there is nothing to answer to.
    pub fn rcode(&self) -> Option<Rcode> {
        match self {
            Self::Unreadable(error) => error.rcode(),
            Self::PodBusy | Self::NodeBusy | Self::UnknownSource(_) | Self::Upstream(_) => {
                Some(Rcode::SERVER_FAILURE)
            }
        }
    }

    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::PodBusy => "pod_busy",
            Self::NodeBusy => "node_busy",
            Self::UnknownSource(_) => "unknown_source",
            Self::Upstream(_) => "upstream",
        }
    }

    fn extended_error(&self) -> ExtendedError {
        match self {
            Self::Unreadable(_) => ExtendedError::NotSupported,
            Self::PodBusy | Self::NodeBusy => ExtendedError::NotReady,
            Self::UnknownSource(_) => ExtendedError::Prohibited,
            Self::Upstream(UpstreamError::NoServer(_)) => ExtendedError::Other,
            Self::Upstream(UpstreamError::Silent(_)) => ExtendedError::NoReachableAuthority,
        }
    }
}

/// Where a query came in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) transport: Transport,
    pub(super) peer: SocketAddr,
    pub(super) listener: SocketAddr,
}

impl Resolver {
    /// The response to a message of a pod; none where there is nothing to respond to.
    pub(super) async fn respond(
        &self,
        pod: &PodProxy,
        cache: &Mutex<Cache>,
        arrival: Arrival,
        message: &[u8],
    ) -> Option<Vec<u8>> {
        let query = match Query::parse(message) {
            Ok(query) => query,
            Err(error) => {
                return self.refuse_unread(pod, arrival, message, Refusal::Unreadable(error));
            }
        };
        let transport = arrival.transport;
        let workload = match pod.known_workload().await {
            Ok(workload) => workload,
            Err(failure) => {
                self.lookups.requested(&Labels::of(&query, transport, None));
                return Some(self.refuse(pod, arrival, &query, &Refusal::UnknownSource(failure)));
            }
        };
        let labels = Labels::of(&query, transport, Some(&workload));
        self.lookups.requested(&labels);
        let decision = names::decide(
            &pod.shared.mesh.read(),
            &self.domains,
            self.client(&workload.namespace),
            &query,
            &mut rand::rng(),
        );
        match decision {
            Decision::Answer(answer) => {
                let endpoints = answer.addresses.len();
                self.lookups
                    .answered(&pod.info, &query, Rcode::NO_ERROR, endpoints, By::Mesh);
                Some(answer::answer(&query, transport, &answer))
            }
            Decision::Forward(name) => {
                let known = cache.lock().response(&query, transport, Instant::now());
                if let Some(response) = known {
                    return Some(self.pass_on(pod, &query, response, name, By::Cache));
                }
                let asked = self.forward(pod, arrival, &query, &labels).await;
                Some(match asked {
                    Ok(response) => {
                        cache
                            .lock()
                            .keep(&query, transport, &response, Instant::now());
                        self.pass_on(pod, &query, response, name, By::Upstream)
                    }
                    Err(refused) => refused,
                })
            }
        }
    }

    /// What an upstream server has said, as far as it is true of a name of the mesh.
    fn pass_on(
        &self,
        pod: &PodProxy,
        query: &Query,
        mut response: Vec<u8>,
        name: Name,
        by: By,
    ) -> Vec<u8> {
        if name == Name::OfTheMesh {
            message::deny_record_only(&mut response);
        }
        let rcode = message::rcode_of(&response);
        let answers = usize::from(message::answer_count(&response));
        self.lookups.answered(&pod.info, query, rcode, answers, by);
        response
    }

    /// The upstream's response, or the refusal where none came.
    async fn forward(
        &self,
        pod: &PodProxy,
        arrival: Arrival,
        query: &Query,
        labels: &Labels,
    ) -> Result<Vec<u8>, Vec<u8>> {
        self.lookups.forwarded(labels);
        let asked_at = Instant::now();
        let asked = self
            .upstreams
            .ask(self.way(pod), query, arrival.transport)
            .await;
        match asked {
            Ok(response) => {
                self.lookups.upstream_answered(labels, asked_at.elapsed());
                Ok(response)
            }
            Err(error) => {
                self.lookups.upstream_failed(labels);
                Err(self.refuse(pod, arrival, query, &Refusal::Upstream(error)))
            }
        }
    }

    fn refuse(
        &self,
        pod: &PodProxy,
        arrival: Arrival,
        query: &Query,
        refusal: &Refusal,
    ) -> Vec<u8> {
        self.note(pod, arrival, Some(query), refusal);
        let rcode = refusal.rcode().unwrap_or(Rcode::SERVER_FAILURE);
        let reason = refusal.to_string();
        answer::refuse(
            query,
            arrival.transport,
            rcode,
            refusal.extended_error(),
            &reason,
        )
    }

    /// Refuses a message without looking into it any further.
    pub(super) fn refuse_unread(
        &self,
        pod: &PodProxy,
        arrival: Arrival,
        message: &[u8],
        refusal: Refusal,
    ) -> Option<Vec<u8>> {
        if let Ok(query) = Query::parse(message) {
            return Some(self.refuse(pod, arrival, &query, &refusal));
        }
        self.note(pod, arrival, None, &refusal);
        let rcode = refusal.rcode()?;
        message::refuse_unreadable(message, rcode)
    }

    fn note(&self, pod: &PodProxy, arrival: Arrival, query: Option<&Query>, refusal: &Refusal) {
        let asked = Asked {
            query,
            peer: arrival.peer,
            listener: arrival.listener,
        };
        self.lookups
            .refused(&pod.shared.recorder, &pod.info, asked, refusal);
    }
}
