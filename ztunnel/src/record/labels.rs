// SPDX-License-Identifier: Apache-2.0
//! The labels of `istio_tcp_*` metrics: who speaks to whom, as both ends are known here.
//!
//! A set of labels is a value that can be compared and hashed, so that its counters are looked up once; its text is
//! made only when they are registered.

use std::sync::Arc;

use hbone::wire::Baggage;
use mesh::{Service, Workload};
use spiffe::SpiffeId;

use crate::failure::Flag;

/// Whose proxy counts: that of the client or that of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reporter {
    Source,
    Destination,
}

impl Reporter {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }

    /// The same from the pod's view.
    pub fn direction(self) -> &'static str {
        match self {
            Self::Source => "outbound",
            Self::Destination => "inbound",
        }
    }
}

/// How the bytes travel from one end to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Security {
    MutualTls,
    /// In plain through this process, from pod to pod of this node; it holds the certificates of both.
    SameNode,
    Unknown,
}

impl Security {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MutualTls => "mutual_tls",
            Self::SameNode => "none",
            Self::Unknown => "unknown",
        }
    }

    /// As the access log says it, where the addresses alone would mislead.
    pub(super) fn transport(self) -> Option<&'static str> {
        match self {
            Self::SameNode => Some("same-node"),
            Self::MutualTls | Self::Unknown => None,
        }
    }

    /// Whether it is certain who the ends are.
    pub fn proves_identities(self) -> bool {
        match self {
            Self::MutualTls | Self::SameNode => true,
            Self::Unknown => false,
        }
    }
}

/// One end of a connection; an empty text is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct End {
    /// The pod, for the access log only.
    pub pod: Arc<str>,
    pub workload: Arc<str>,
    pub namespace: Arc<str>,
    pub canonical_service: Arc<str>,
    pub canonical_revision: Arc<str>,
    pub app: Arc<str>,
    pub version: Arc<str>,
    pub cluster: Arc<str>,
    pub region: Arc<str>,
    pub zone: Arc<str>,
    pub principal: Option<SpiffeId>,
}

impl End {
    /// What the mesh says of a workload. The principal is left to the caller: it must come from TLS or be meant so.
    pub fn of(workload: &Workload) -> Self {
        Self {
            pod: workload.name.clone(),
            workload: workload.workload_name.clone(),
            namespace: workload.namespace.clone(),
            canonical_service: workload.canonical_name.clone(),
            canonical_revision: workload.canonical_revision.clone(),
            app: workload.canonical_name.clone(),
            version: workload.canonical_revision.clone(),
            cluster: workload.cluster_id.clone(),
            region: workload.locality.region.clone(),
            zone: workload.locality.zone.clone(),
            principal: None,
        }
    }

    /// What a peer says of itself: good enough for telemetry, for nothing else.
    pub fn of_baggage(baggage: &Baggage) -> Self {
        let text =
            |value: &Option<String>| -> Arc<str> { value.as_deref().unwrap_or_default().into() };
        let workload: Arc<str> = baggage
            .workload
            .as_ref()
            .map_or("", |(_, name)| name)
            .into();
        let revision = text(&baggage.revision);
        Self {
            pod: Arc::default(),
            app: workload.clone(),
            workload,
            namespace: text(&baggage.namespace),
            canonical_service: text(&baggage.service),
            version: revision.clone(),
            canonical_revision: revision,
            cluster: text(&baggage.cluster),
            region: text(&baggage.region),
            zone: text(&baggage.zone),
            principal: None,
        }
    }

    pub fn with_principal(self, principal: Option<SpiffeId>) -> Self {
        Self { principal, ..self }
    }

    /// How the access log names the end: the pod, or else what it belongs to.
    pub fn log_name(&self) -> Option<&str> {
        [&self.pod, &self.canonical_service]
            .into_iter()
            .map(|name| &**name)
            .find(|name| !name.is_empty())
    }
}

/// The service that a connection was addressed to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ServiceName {
    pub hostname: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl From<&Service> for ServiceName {
    fn from(service: &Service) -> Self {
        Self {
            hostname: service.hostname.clone(),
            namespace: service.namespace.clone(),
            name: service.name.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Labels {
    pub reporter: Reporter,
    pub source: End,
    pub destination: End,
    pub service: Option<ServiceName>,
    pub security: Security,
}

impl Labels {
    /// Who the source is, where that was proven.
    pub(crate) fn source_identity(&self) -> Option<&SpiffeId> {
        self.proven(&self.source)
    }

    pub(crate) fn destination_identity(&self) -> Option<&SpiffeId> {
        self.proven(&self.destination)
    }

    fn proven<'a>(&self, end: &'a End) -> Option<&'a SpiffeId> {
        let principal = end.principal.as_ref();
        principal.filter(|_| self.security.proves_identities())
    }

    /// Whether both count into the same series.
    pub(super) fn count_as(&self, other: &Self) -> bool {
        let series = |labels: &Self| {
            let mut labels = labels.clone();
            labels.source.pod = Arc::default();
            labels.destination.pod = Arc::default();
            labels
        };
        series(self) == series(other)
    }

    /// In Istio's names, always in this order. Pod names are no labels: there are too many of them.
    pub(super) fn with_flag<T>(
        &self,
        flag: Flag,
        use_them: impl FnOnce(&[(&str, &str)]) -> T,
    ) -> T {
        let none = ServiceName::default();
        let service = self.service.as_ref().unwrap_or(&none);
        let (source, destination) = (&self.source, &self.destination);
        use_them(&[
            ("reporter", self.reporter.as_str()),
            ("source_workload", known(&source.workload)),
            ("source_canonical_service", known(&source.canonical_service)),
            (
                "source_canonical_revision",
                known(&source.canonical_revision),
            ),
            ("source_workload_namespace", known(&source.namespace)),
            ("source_principal", principal(source)),
            ("source_app", known(&source.app)),
            ("source_version", known(&source.version)),
            ("source_cluster", known(&source.cluster)),
            ("destination_service", known(&service.hostname)),
            ("destination_service_namespace", known(&service.namespace)),
            ("destination_service_name", known(&service.name)),
            ("destination_workload", known(&destination.workload)),
            (
                "destination_canonical_service",
                known(&destination.canonical_service),
            ),
            (
                "destination_canonical_revision",
                known(&destination.canonical_revision),
            ),
            (
                "destination_workload_namespace",
                known(&destination.namespace),
            ),
            ("destination_principal", principal(destination)),
            ("destination_app", known(&destination.app)),
            ("destination_version", known(&destination.version)),
            ("destination_cluster", known(&destination.cluster)),
            ("request_protocol", "tcp"),
            ("response_flags", flag.as_str()),
            ("connection_security_policy", self.security.as_str()),
            ("source_region", known(&source.region)),
            ("source_zone", known(&source.zone)),
            ("destination_region", known(&destination.region)),
            ("destination_zone", known(&destination.zone)),
        ])
    }
}

fn known(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

fn principal(end: &End) -> &str {
    end.principal.as_ref().map_or("unknown", SpiffeId::as_str)
}
