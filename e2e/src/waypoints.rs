// SPDX-License-Identifier: Apache-2.0
//! Waypoints as the lab has them: a Gateway, and what its controller would make of it.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::handle::{Access, eventually};
use crate::topology::{Node, TRUST_DOMAIN};

/// A waypoint of one pod.
#[derive(Debug, Clone, Copy)]
pub struct Waypoint {
    pub namespace: &'static str,
    /// Of the Gateway, its Service, its account, and its pod.
    pub name: &'static str,
    pub node: Node,
    /// What may use it: `service`, `workload`, `all`, `none`.
    pub serves: &'static str,
    /// The last number of its service's addresses, 10.96.0.x and fd96::x.
    pub number: u8,
}

impl Waypoint {
    /// Who it is.
    pub fn identity(&self) -> String {
        format!(
            "spiffe://{TRUST_DOMAIN}/ns/{}/sa/{}",
            self.namespace, self.name
        )
    }

    /// Its pod, as `namespace/name`.
    pub fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Has the lab run it and returns the pod, as `namespace/name`, once it is ready. Where an API server leads, the
    /// control plane makes of the Gateway what else there has to be, and Kubernetes its pod.
    pub fn deploy(&self, lab: &Access) -> Result<String> {
        if !lab.has_api_server()? {
            lab.apply(&self.manifest())?;
            lab.wait_ready(&self.pod())?;
            return Ok(self.pod());
        }
        lab.apply(&self.own())?;
        let prefix = format!("{}-", self.name);
        let pod = eventually("the waypoint has a pod", Duration::from_secs(60), || {
            let pods = lab.state().pods()?;
            let found = pods
                .into_iter()
                .map(|record| record.pod)
                .find(|pod| pod.namespace == self.namespace && pod.name.starts_with(&prefix));
            found.context("no pod yet")
        })?;
        lab.wait_ready(&pod.to_string())?;
        Ok(pod.to_string())
    }

    /// All of its objects.
    pub fn manifest(&self) -> String {
        self.gateway() + &self.pod_manifest(self.name, self.node)
    }

    /// The Gateway alone.
    fn own(&self) -> String {
        let Self {
            namespace,
            name,
            serves,
            ..
        } = self;
        format!(
            r#"apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: {namespace}, labels: {{istio.io/waypoint-for: {serves}}}}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {{namespaces: {{from: All}}}}}}]
"#
        )
    }

    /// Without a pod: a way that leads nowhere.
    pub fn gateway(&self) -> String {
        let Self {
            namespace,
            name,
            number,
            ..
        } = self;
        let own = self.own();
        format!(
            r#"apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: {namespace}}}
---
{own}status: {{addresses: [{{type: Hostname, value: {name}.{namespace}.svc.cluster.local}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}, labels: {{gateway.istio.io/managed: istio.io-mesh-controller}}}}
spec:
  selector: {{gateway.networking.k8s.io/gateway-name: {name}}}
  clusterIP: 10.96.0.{number}
  clusterIPs: [10.96.0.{number}, "fd96::{number}"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: PreferDualStack
  ports: [{{name: mesh, port: 15008}}]
---
"#
        )
    }

    /// A pod of it, under any name.
    pub fn pod_manifest(&self, pod: &str, node: Node) -> String {
        let Self {
            namespace, name, ..
        } = self;
        let mut text = format!(
            r#"apiVersion: v1
kind: Pod
metadata:
  name: {pod}
  namespace: {namespace}
  labels:
    gateway.networking.k8s.io/gateway-name: {name}
    istio.io/dataplane-mode: none
    networking.istio.io/tunnel: http
spec:
  nodeName: {node}
  serviceAccountName: {name}
  terminationGracePeriodSeconds: 5
  volumes:
  - name: tokens
    projected: {{sources: [{{serviceAccountToken: {{audience: istio-ca, expirationSeconds: 43200, path: istio-token}}}}]}}
  containers:
  - name: istio-proxy
    image: culvert/waypoint
    args: [proxy, waypoint]
    securityContext: {{capabilities: {{drop: [ALL]}}}}
    readinessProbe: {{httpGet: {{path: /healthz/ready, port: 15021}}}}
    env:
"#
        );
        for (variable, value) in [
            ("GATEWAY_NAME", *name),
            ("CA_ADDRESS", "$(LAB_CONTROL_PLANE)"),
            ("XDS_ADDRESS", "$(LAB_CONTROL_PLANE)"),
            ("CA_ROOT_CA", "$(LAB_ROOT_CERTIFICATES)"),
            ("XDS_ROOT_CA", "$(LAB_ROOT_CERTIFICATES)"),
            ("AUTH_TOKEN", "$(LAB_VOLUMES)/tokens/istio-token"),
            ("ISTIO_META_CLUSTER_ID", "$(LAB_CLUSTER_ID)"),
            ("NETWORK", "$(LAB_NETWORK)"),
            ("TERMINATION_GRACE_PERIOD_SECONDS", "5"),
            ("LOG_FORMAT", "json"),
            ("RUST_LOG", "info"),
            ("RUST_BACKTRACE", "1"),
        ] {
            let _ = writeln!(text, "    - {{name: {variable}, value: \"{value}\"}}");
        }
        for (variable, field) in [
            ("POD_NAME", "metadata.name"),
            ("POD_NAMESPACE", "metadata.namespace"),
            ("NODE_NAME", "spec.nodeName"),
            ("INSTANCE_IP", "status.podIP"),
            ("SERVICE_ACCOUNT", "spec.serviceAccountName"),
        ] {
            let _ = writeln!(
                text,
                "    - {{name: {variable}, valueFrom: {{fieldRef: {{fieldPath: {field}}}}}}}"
            );
        }
        text + "---\n"
    }
}
