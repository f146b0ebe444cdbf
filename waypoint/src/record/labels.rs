// SPDX-License-Identifier: Apache-2.0
//! The labels of Istio's standard metrics as a waypoint gives them: who speaks to whom, as both ends are known here.

use std::sync::Arc;

use hbone::wire::Baggage;
use mesh::{Service, Workload};
use spiffe::SpiffeId;

/// One end of a connection; an empty text is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct End {
    pub workload: Arc<str>,
    pub namespace: Arc<str>,
    pub canonical_service: Arc<str>,
    pub canonical_revision: Arc<str>,
    pub cluster: Arc<str>,
    pub principal: Option<SpiffeId>,
}

impl End {
    /// What the mesh says of a workload. The principal is left to the caller: it must come from TLS.
    pub fn of(workload: &Workload) -> Self {
        Self {
            workload: workload.workload_name.clone(),
            namespace: workload.namespace.clone(),
            canonical_service: workload.canonical_name.clone(),
            canonical_revision: workload.canonical_revision.clone(),
            cluster: workload.cluster_id.clone(),
            principal: None,
        }
    }

    /// What a client says of itself: good enough for telemetry, for nothing else.
    pub fn of_baggage(baggage: &Baggage) -> Self {
        let text =
            |value: &Option<String>| -> Arc<str> { value.as_deref().unwrap_or_default().into() };
        let name = baggage.workload.as_ref().map(|(_, name)| name.clone());
        Self {
            workload: text(&name),
            namespace: text(&baggage.namespace),
            canonical_service: text(&baggage.service),
            canonical_revision: text(&baggage.revision),
            cluster: text(&baggage.cluster),
            principal: None,
        }
    }

    pub fn proven(self, principal: SpiffeId) -> Self {
        Self {
            principal: Some(principal),
            ..self
        }
    }
}

/// How the bytes travel on from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Security {
    MutualTls,
    None,
}

/// Host name, namespace and short name of a service.
pub type ServiceNames = [Arc<str>; 3];

/// Who speaks to whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Labels {
    pub source: End,
    pub destination: End,
    /// The service that was meant.
    pub service: Option<ServiceNames>,
    pub security: Security,
}

impl Labels {
    pub fn service_of(service: &Service) -> ServiceNames {
        [
            service.hostname.clone(),
            service.namespace.clone(),
            service.name.clone(),
        ]
    }

    /// In Istio's names, always in this order; `more` are those of one kind of metric.
    pub fn with<T>(&self, more: &[(&str, &str)], use_them: impl FnOnce(&[(&str, &str)]) -> T) -> T {
        let [host, namespace, name] = match &self.service {
            Some(names) => [&*names[0], &*names[1], &*names[2]],
            None => [""; 3],
        };
        let (source, destination) = (&self.source, &self.destination);
        let mut labels = vec![
            ("reporter", "waypoint"),
            ("source_workload", known(&source.workload)),
            ("source_canonical_service", known(&source.canonical_service)),
            (
                "source_canonical_revision",
                known(&source.canonical_revision),
            ),
            ("source_workload_namespace", known(&source.namespace)),
            ("source_principal", principal(source)),
            ("source_app", known(&source.canonical_service)),
            ("source_version", known(&source.canonical_revision)),
            ("source_cluster", known(&source.cluster)),
            ("destination_service", known(host)),
            ("destination_service_namespace", known(namespace)),
            ("destination_service_name", known(name)),
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
            ("destination_app", known(&destination.canonical_service)),
            (
                "destination_version",
                known(&destination.canonical_revision),
            ),
            ("destination_cluster", known(&destination.cluster)),
            (
                "connection_security_policy",
                match self.security {
                    Security::MutualTls => "mutual_tls",
                    Security::None => "none",
                },
            ),
        ];
        labels.extend_from_slice(more);
        use_them(&labels)
    }
}

fn known(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

fn principal(end: &End) -> &str {
    end.principal.as_ref().map_or("unknown", SpiffeId::as_str)
}
