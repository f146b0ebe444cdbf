// SPDX-License-Identifier: Apache-2.0
//! What is made for a Gateway: pure. In: the Gateway and what holds for all of them. Out: objects, as they are applied.

use std::collections::BTreeMap;

use cluster::{Kind, ObjectKey, kinds};
use serde_json::{Value, json};

use super::{
    overlay::{Overlay, merge},
    state::Task,
};
use crate::{facts::annotation, wellknown};

/// Marks what is made here: nothing without it is ever touched.
pub(super) const MANAGED: (&str, &str) =
    (wellknown::GATEWAY_MANAGED, wellknown::MESH_CONTROLLERS[0]);
const CLASS_NAME: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Labels and annotations that stay where they are written.
const NOT_COPIED: [&str; 4] = [
    "gateway.networking.k8s.io/",
    "gateway.istio.io/",
    "kubectl.kubernetes.io/",
    "networking.istio.io/service-type",
];
const HBONE_PORT: i32 = 15008;
const STATUS_PORT: i32 = 15021;
const METRICS_PORT: i32 = 15020;
const ROOTS: &str = "/var/run/secrets/istio";
const TOKENS: &str = "/var/run/secrets/tokens";
/// In seconds.
const GRACE: u32 = 30;

/// What holds for all waypoints.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The image of their program.
    pub image: String,
    /// This cluster's id.
    pub cluster_id: String,
    /// The domain under which services are named.
    pub cluster_domain: String,
    /// The realm of the identities.
    pub trust_domain: String,
    /// Where the control plane is found, which is the authority too.
    pub control_plane: String,
    /// The revisions that this control plane answers to; pods are marked as the first one's.
    pub revisions: Vec<String>,
    /// The namespace whose label says which network this cluster is on, and which holds what a class adds.
    pub root_namespace: String,
}

/// What a Gateway's objects are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    namespace: String,
    common: String,
    account: String,
}

impl Names {
    pub(super) fn of(gateway: &kinds::Gateway) -> Self {
        let meta = &gateway.metadata;
        let own = meta.name.clone().unwrap_or_default();
        let given = |key| annotation(meta, key).filter(|name| !name.is_empty());
        let common = given(wellknown::GATEWAY_NAME_OVERRIDE).map_or(own, str::to_owned);
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            account: given(wellknown::GATEWAY_SERVICE_ACCOUNT)
                .unwrap_or(&common)
                .to_owned(),
            common,
        }
    }

    pub(super) fn of_kind(&self, kind: Kind) -> ObjectKey {
        let name = match kind {
            Kind::ServiceAccount => &self.account,
            _ => &self.common,
        };
        ObjectKey::namespaced(kind, self.namespace.as_str(), name.as_str())
    }
}

/// The objects of a Gateway, those that others need first.
///
/// # Errors
/// What in the Gateway or its overlay can't be followed, in words.
pub(super) fn objects(
    gateway: &kinds::Gateway,
    settings: &Settings,
    network: &str,
    overlay: &Overlay,
) -> Result<Vec<(ObjectKey, Value)>, String> {
    let names = Names::of(gateway);
    let common = Common::of(gateway, network);
    let workload = deployment(gateway, &common, settings, &names);
    let mut made = vec![
        (Kind::ServiceAccount, "v1", account(&common)),
        (Kind::Deployment, "apps/v1", workload),
        (Kind::Service, "v1", service(gateway, &common)?),
    ];
    for kind in asked_for(overlay) {
        made.push(match kind {
            Kind::HorizontalPodAutoscaler => (kind, "autoscaling/v2", autoscaler(&common, &names)),
            _ => (kind, "policy/v1", disruption_budget(&common)),
        });
    }
    let owner = json!([{
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "name": gateway.metadata.name, "uid": gateway.metadata.uid,
    }]);
    let finish = |(kind, version, mut object): (Kind, &str, Value)| {
        let key = names.of_kind(kind);
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind.as_str());
        for patch in overlay.of(kind) {
            merge(&mut object, patch);
        }
        // Who it is and whose is not for an overlay to say.
        let meta = &mut object["metadata"];
        meta["name"] = json!(key.name);
        meta["namespace"] = json!(key.namespace);
        meta["ownerReferences"] = owner.clone();
        meta["labels"][MANAGED.0] = json!(MANAGED.1);
        (key, object)
    };
    Ok(made.into_iter().map(finish).collect())
}

/// The class that waypoints are of, for a cluster that has none of this name.
pub(super) fn class(object: ObjectKey) -> Task {
    let body = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": object.name},
        "spec": {
            "controllerName": wellknown::MESH_CONTROLLER,
            "description": "A proxy in the mesh for the services and workloads that ask for one (istio.io/use-waypoint)",
        },
    });
    Task::Make { object, body }
}

/// What a Gateway has only if its overlay says something of it.
pub(super) const OPTIONAL: [Kind; 2] = [Kind::HorizontalPodAutoscaler, Kind::PodDisruptionBudget];

/// Which of [`OPTIONAL`] an overlay asks for.
pub(super) fn asked_for(overlay: &Overlay) -> impl Iterator<Item = Kind> {
    OPTIONAL
        .into_iter()
        .filter(|kind| !overlay.of(*kind).is_empty())
}

/// What all objects have in common.
struct Common {
    gateway: String,
    network: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl Common {
    fn of(gateway: &kinds::Gateway, network: &str) -> Self {
        let meta = &gateway.metadata;
        let (labels, annotations) = match &gateway.spec.infrastructure {
            Some(wanted) if !(wanted.labels.is_empty() && wanted.annotations.is_empty()) => {
                (wanted.labels.clone(), wanted.annotations.clone())
            }
            _ => (
                meta.labels.clone().unwrap_or_default(),
                meta.annotations.clone().unwrap_or_default(),
            ),
        };
        let copied = |mut all: BTreeMap<String, String>| {
            all.retain(|key, _| !NOT_COPIED.iter().any(|prefix| key.starts_with(prefix)));
            all
        };
        let (mut labels, annotations) = (copied(labels), copied(annotations));
        let name = meta.name.clone().unwrap_or_default();
        let own_network = meta
            .labels
            .as_ref()
            .and_then(|own| own.get(wellknown::NETWORK));
        let network = own_network.map_or(network, String::as_str).to_owned();
        labels.insert(MANAGED.0.to_owned(), MANAGED.1.to_owned());
        labels.insert(wellknown::GATEWAY_NAME.to_owned(), name.clone());
        labels.insert(
            CLASS_NAME.to_owned(),
            gateway.spec.gateway_class_name.clone(),
        );
        if !network.is_empty() {
            labels.insert(wellknown::NETWORK.to_owned(), network.clone());
        }
        Self {
            gateway: name,
            network,
            labels,
            annotations,
        }
    }

    fn metadata(&self) -> Value {
        json!({"labels": self.labels, "annotations": self.annotations})
    }
}

fn account(common: &Common) -> Value {
    json!({ "metadata": common.metadata() })
}

fn autoscaler(common: &Common, names: &Names) -> Value {
    json!({
        "metadata": common.metadata(),
        "spec": {"scaleTargetRef": {
            "apiVersion": "apps/v1", "kind": "Deployment", "name": names.common,
        }},
    })
}

fn disruption_budget(common: &Common) -> Value {
    json!({
        "metadata": common.metadata(),
        "spec": {"selector": {"matchLabels": { wellknown::GATEWAY_NAME: common.gateway }}},
    })
}

fn service(gateway: &kinds::Gateway, common: &Common) -> Result<Value, String> {
    let asked = annotation(&gateway.metadata, wellknown::SERVICE_TYPE);
    let kind = match asked.unwrap_or("ClusterIP") {
        kind @ ("ClusterIP" | "NodePort" | "LoadBalancer") => kind,
        other => {
            return Err(format!(
                "annotation {}: {other:?} is none of ClusterIP, NodePort, LoadBalancer",
                wellknown::SERVICE_TYPE
            ));
        }
    };
    let mut ports = vec![json!({
        "name": "status-port", "port": STATUS_PORT, "targetPort": STATUS_PORT, "protocol": "TCP",
        "appProtocol": "tcp",
    })];
    let listener = gateway.spec.listeners.iter().find(|one| is_hbone(one));
    ports.push(json!({
        "name": listener.map_or("mesh", |one| one.name.as_str()), "port": HBONE_PORT,
        "targetPort": HBONE_PORT, "protocol": "TCP", "appProtocol": "all",
    }));
    let mut metadata = common.metadata();
    metadata["annotations"][wellknown::TRAFFIC_DISTRIBUTION] = json!("PreferClose");
    Ok(json!({
        "metadata": metadata,
        "spec": {
            "type": kind, "ipFamilyPolicy": "PreferDualStack", "ports": ports,
            "selector": { wellknown::GATEWAY_NAME: common.gateway },
        },
    }))
}

/// Whether this is what a waypoint listens for, whatever else it is told to.
pub(super) fn is_hbone(listener: &kinds::Listener) -> bool {
    listener.protocol == "HBONE" && listener.port == HBONE_PORT
}

fn deployment(
    gateway: &kinds::Gateway,
    common: &Common,
    settings: &Settings,
    names: &Names,
) -> Value {
    let mut labels = common.labels.clone();
    // A waypoint is not captured, and nothing is injected into it.
    for (key, value) in [
        ("istio.io/dataplane-mode", "none"),
        ("sidecar.istio.io/inject", "false"),
        (wellknown::CANONICAL_NAME[0], common.gateway.as_str()),
        (wellknown::CANONICAL_REVISION[0], "latest"),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    let mut annotations = common.annotations.clone();
    for (key, value) in [
        ("prometheus.io/scrape", "true"),
        ("prometheus.io/port", "15020"),
        ("prometheus.io/path", "/stats/prometheus"),
        (
            wellknown::REVISION,
            settings.revisions.first().map_or("", String::as_str),
        ),
    ] {
        annotations.insert(key.to_owned(), value.to_owned());
    }
    json!({
        "metadata": common.metadata(),
        "spec": {
            "selector": {"matchLabels": { wellknown::GATEWAY_NAME: gateway.metadata.name }},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {
                    "serviceAccountName": names.account,
                    // Its token is the one below, for the control plane.
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": GRACE,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 1337, "runAsGroup": 1337,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container(common, settings)],
                    "volumes": [
                        {"name": "roots", "configMap": {"name": "istio-ca-root-cert"}},
                        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {
                            "audience": "istio-ca", "expirationSeconds": 43200, "path": "istio-token",
                        }}]}},
                    ],
                },
            },
        },
    })
}

fn container(common: &Common, settings: &Settings) -> Value {
    let said = [
        ("GATEWAY_NAME", common.gateway.as_str()),
        ("CA_ADDRESS", &settings.control_plane),
        ("XDS_ADDRESS", &settings.control_plane),
        ("CA_ROOT_CA", &format!("{ROOTS}/root-cert.pem")),
        ("XDS_ROOT_CA", &format!("{ROOTS}/root-cert.pem")),
        ("AUTH_TOKEN", &format!("{TOKENS}/istio-token")),
        ("TRUST_DOMAIN", &settings.trust_domain),
        ("NETWORK", &common.network),
        ("ISTIO_META_CLUSTER_ID", &settings.cluster_id),
        ("TERMINATION_GRACE_PERIOD_SECONDS", &GRACE.to_string()),
        ("RUST_LOG", "info"),
        ("RUST_BACKTRACE", "1"),
        ("LOG_FORMAT", "json"),
    ]
    .map(|(name, value)| json!({"name": name, "value": value}));
    let known = [
        ("POD_NAME", "metadata.name"),
        ("POD_NAMESPACE", "metadata.namespace"),
        ("NODE_NAME", "spec.nodeName"),
        ("INSTANCE_IP", "status.podIP"),
        ("SERVICE_ACCOUNT", "spec.serviceAccountName"),
    ]
    .map(|(name, path)| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    let env: Vec<Value> = said.into_iter().chain(known).collect();
    let ready = json!({"path": "/healthz/ready", "port": STATUS_PORT});
    json!({
        "name": "istio-proxy", "image": settings.image, "args": ["proxy", "waypoint"], "env": env,
        "ports": [
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
            {"name": "status-port", "containerPort": STATUS_PORT, "protocol": "TCP"},
        ],
        "startupProbe": {"httpGet": ready, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 30},
        "readinessProbe": {"httpGet": ready, "periodSeconds": 15, "timeoutSeconds": 1, "failureThreshold": 4},
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "1Gi"},
        },
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 1337, "runAsGroup": 1337, "privileged": false,
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "roots", "mountPath": ROOTS, "readOnly": true},
            {"name": "token", "mountPath": TOKENS, "readOnly": true},
        ],
    })
}
