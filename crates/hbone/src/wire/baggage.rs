// SPDX-License-Identifier: Apache-2.0
//! The `baggage` header: who one end of a connection is, in the words of OpenTelemetry's resource attributes.
//!
//! Nothing in it is proven; it only fills labels that certificates and configuration leave open.

use http::HeaderValue;

use super::{MAX_HEADER, readable};

/// How many header lines are merged at most.
const MAX_LINES: usize = 16;

/// What kind of workload a name belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkloadKind {
    /// A Deployment.
    Deployment,
    /// A CronJob.
    CronJob,
    /// A bare Pod.
    Pod,
    /// A Job.
    Job,
}

impl WorkloadKind {
    pub(super) const ALL: [Self; 4] = [Self::Deployment, Self::CronJob, Self::Pod, Self::Job];

    /// The key under which a workload of this kind states its name.
    fn key(self) -> &'static str {
        match self {
            Self::Deployment => "k8s.deployment.name",
            Self::CronJob => "k8s.cronjob.name",
            Self::Pod => "k8s.pod.name",
            Self::Job => "k8s.job.name",
        }
    }
}

/// The attributes that a mesh uses; an empty one counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Baggage {
    /// The cluster's id.
    pub cluster: Option<String>,
    /// The namespace.
    pub namespace: Option<String>,
    /// The workload's kind and name.
    pub workload: Option<(WorkloadKind, String)>,
    /// The canonical name of the service.
    pub service: Option<String>,
    /// The canonical revision of the service.
    pub revision: Option<String>,
    /// The region of the locality.
    pub region: Option<String>,
    /// The zone of the locality.
    pub zone: Option<String>,
}

const CLUSTER: &str = "k8s.cluster.name";
const NAMESPACE: &str = "k8s.namespace.name";
const SERVICE: &str = "service.name";
const REVISION: &str = "service.version";
const REGION: &str = "cloud.region";
const ZONE: &str = "cloud.availability_zone";

impl Baggage {
    /// The header's value. The format knows no escapes, so a value with a separator or a byte that no header can
    /// carry is left out, as is what would make it longer than what readers accept.
    pub fn to_header(&self) -> HeaderValue {
        let workload = self.workload.as_ref();
        let parts = [
            (CLUSTER, self.cluster.as_ref()),
            (NAMESPACE, self.namespace.as_ref()),
            (
                workload.map_or(CLUSTER, |(kind, _)| kind.key()),
                workload.map(|(_, name)| name),
            ),
            (SERVICE, self.service.as_ref()),
            (REVISION, self.revision.as_ref()),
            (REGION, self.region.as_ref()),
            (ZONE, self.zone.as_ref()),
        ];
        let mut text = String::with_capacity(256);
        for (key, value) in parts {
            let Some(value) = value.filter(|value| can_be_carried(value)) else {
                continue;
            };
            if text.len() + key.len() + value.len() + 2 > MAX_HEADER {
                continue;
            }
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(key);
            text.push('=');
            text.push_str(value);
        }
        HeaderValue::try_from(text).expect("broken invariant: only visible ASCII was put together")
    }

    /// Merges header lines, later ones last. `None` if there are none, or if one is not ASCII or too long.
    pub(super) fn from_headers<'h>(lines: impl Iterator<Item = &'h HeaderValue>) -> Option<Self> {
        let mut merged: Option<Self> = None;
        for line in lines.take(MAX_LINES) {
            merged.get_or_insert_default().merge(readable(line)?);
        }
        merged
    }

    /// Reads one value; never fails, what it does not understand it skips.
    pub fn parse(text: &str) -> Self {
        let mut baggage = Self::default();
        baggage.merge(text);
        baggage
    }

    fn merge(&mut self, text: &str) {
        for member in text.split(',') {
            let mut parts = member.split('=');
            let (Some(key), Some(value)) = (parts.next(), parts.next()) else {
                continue;
            };
            let value = (!value.is_empty()).then(|| value.to_owned());
            match key {
                CLUSTER => self.cluster = value,
                NAMESPACE => self.namespace = value,
                SERVICE => self.service = value,
                REVISION => self.revision = value,
                REGION => self.region = value,
                ZONE => self.zone = value,
                _ => {
                    if let Some(kind) = WorkloadKind::ALL.into_iter().find(|k| k.key() == key) {
                        self.workload = value.map(|name| (kind, name));
                    }
                }
            }
        }
    }
}

fn can_be_carried(value: &str) -> bool {
    !value.is_empty()
        && value.trim() == value
        && value
            .bytes()
            .all(|b| matches!(b, b' '..=b'~') && b != b',' && b != b'=')
}
