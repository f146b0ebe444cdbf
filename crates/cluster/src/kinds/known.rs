// SPDX-License-Identifier: Apache-2.0
//! Which kinds are read, which are known but not read yet, and which nobody knows.

use crate::object::Kind;

/// What a kind is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Read(Kind),
    /// It means something to others, or will to us: not worth a word.
    NotRead,
    /// A kind that is read, in a version that is not understood.
    UnknownVersion(Kind),
    UnknownKind,
}

/// Kinds that may stand in a directory without being read, by group.
const NOT_READ: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "Endpoints",
            "Event",
            "LimitRange",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
        ],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ],
    ),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    (
        "apps",
        &[
            "ControllerRevision",
            "DaemonSet",
            "ReplicaSet",
            "StatefulSet",
        ],
    ),
    ("batch", &["CronJob", "Job"]),
    (
        "certificates.k8s.io",
        &["CertificateSigningRequest", "ClusterTrustBundle"],
    ),
    ("coordination.k8s.io", &["Lease"]),
    ("events.k8s.io", &["Event"]),
    ("extensions.istio.io", &["TrafficExtension"]),
    (
        "gateway.networking.k8s.io",
        &["BackendTLSPolicy", "ListenerSet", "UDPRoute"],
    ),
    (
        "networking.istio.io",
        &[
            "EnvoyFilter",
            "Gateway",
            "ProxyConfig",
            "Sidecar",
            "WorkloadGroup",
        ],
    ),
    (
        "networking.k8s.io",
        &["Ingress", "IngressClass", "NetworkPolicy"],
    ),
    (
        "rbac.authorization.k8s.io",
        &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"],
    ),
    ("scheduling.k8s.io", &["PriorityClass"]),
    (
        "storage.k8s.io",
        &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"],
    ),
];

/// Looks up `apps/v1`, `Deployment`.
pub(crate) fn find(api_version: &str, name: &str) -> Found {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    match Kind::ALL
        .iter()
        .find(|kind| kind.as_str() == name && kind.group() == group)
    {
        Some(kind) if kind.versions().contains(&version) => Found::Read(*kind),
        Some(kind) => Found::UnknownVersion(*kind),
        None if NOT_READ
            .iter()
            .any(|(known, names)| *known == group && names.contains(&name)) =>
        {
            Found::NotRead
        }
        None => Found::UnknownKind,
    }
}

/// Whether any group has a kind of this name.
pub(crate) fn is_name(name: &str) -> bool {
    Kind::ALL.iter().any(|kind| kind.as_str() == name)
        || NOT_READ.iter().any(|(_, names)| names.contains(&name))
}
