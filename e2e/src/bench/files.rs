// SPDX-License-Identifier: Apache-2.0
//! A cluster of many pods as files: five hundred pods and some services to a namespace, a hundred pods to a node.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

const PODS_PER_NAMESPACE: usize = 500;
const PODS_PER_NODE: usize = 100;

/// How large the cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) pods: usize,
    /// In each namespace, of which there is one for each five hundred pods.
    pub(super) services: usize,
}

/// How the pods are spread over files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    FileEach,
    OneFile,
}

/// A folder with everything that a control plane needs.
pub(super) struct Files {
    folder: TempDir,
    size: Size,
    layout: Layout,
}

/// A change that is written, and takes effect by a rename.
pub(super) struct Prepared {
    from: PathBuf,
    to: PathBuf,
}

impl Prepared {
    pub(super) fn put(self) -> Result<()> {
        fs::rename(&self.from, &self.to).context("cannot put a changed manifest in its place")
    }
}

impl Files {
    pub(super) fn write(size: Size, layout: Layout) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the cluster")?;
        let files = Self {
            folder,
            size,
            layout,
        };
        fs::create_dir_all(files.manifests().join("pods"))?;
        fs::write(files.manifests().join("cluster.yaml"), surroundings(size))?;
        match layout {
            Layout::OneFile => fs::write(files.all_pods(), files.text_of_all(0))?,
            Layout::FileEach => {
                for index in 0..size.pods {
                    fs::write(files.pod_file(index), pod(index, 0, size.services))?;
                }
            }
        }
        Ok(files)
    }

    pub(super) fn root(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn manifests(&self) -> PathBuf {
        self.root().join("manifests")
    }

    /// Writes a version of the pod in the middle.
    pub(super) fn prepare(&self, version: usize) -> Result<Prepared> {
        let from = self.root().join("changed");
        let (to, text) = match self.layout {
            Layout::FileEach => (
                self.pod_file(self.changing()),
                pod(self.changing(), version, self.size.services),
            ),
            Layout::OneFile => (self.all_pods(), self.text_of_all(version)),
        };
        fs::write(&from, text).context("cannot write a changed manifest")?;
        Ok(Prepared { from, to })
    }

    fn changing(&self) -> usize {
        self.size.pods / 2
    }

    fn all_pods(&self) -> PathBuf {
        self.manifests().join("pods/all.yaml")
    }

    fn pod_file(&self, index: usize) -> PathBuf {
        self.manifests().join(format!("pods/{index}.yaml"))
    }

    fn text_of_all(&self, version: usize) -> String {
        let mut text = String::new();
        for index in 0..self.size.pods {
            let version = if index == self.changing() { version } else { 0 };
            text.push_str("---\n");
            text.push_str(&pod(index, version, self.size.services));
        }
        text
    }
}

fn surroundings(Size { pods, services }: Size) -> String {
    let mut text =
        String::from("apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system}\n");
    for node in 0..pods.div_ceil(PODS_PER_NODE) {
        let zone = node % 3;
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-{node}, labels: {{topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z{zone}}}}}\n"
        );
    }
    for namespace in 0..pods.div_ceil(PODS_PER_NAMESPACE) {
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: ns-{namespace}, labels: {{istio.io/dataplane-mode: ambient}}}}\n"
        );
        for service in 0..services {
            let number = namespace * services + service;
            let (high, low) = (number / 256 % 256, number % 256);
            let _ = write!(
                text,
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{service}, namespace: ns-{namespace}}}\nspec: {{clusterIP: 172.20.{high}.{low}, selector: {{app: a{service}}}, ports: [{{name: http, port: 80, targetPort: http}}]}}\n"
            );
        }
    }
    text
}

/// A pod as an API server would hand it out, less what nobody reads.
fn pod(index: usize, version: usize, services: usize) -> String {
    let (namespace, app, node) = (
        index / PODS_PER_NAMESPACE,
        index % services,
        index / PODS_PER_NODE,
    );
    let [_, a, b, c] = u32::try_from(index).unwrap_or_default().to_be_bytes();
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: a{app}-7d8f9c6b5-{index}
  namespace: ns-{namespace}
  uid: 00000000-0000-0000-0000-{index:012}
  generateName: a{app}-7d8f9c6b5-
  labels: {{app: a{app}, pod-template-hash: 7d8f9c6b5, version: v{version}}}
  annotations: {{ambient.istio.io/redirection: enabled}}
  ownerReferences:
  - {{apiVersion: apps/v1, kind: ReplicaSet, name: a{app}-7d8f9c6b5, uid: r, controller: true}}
spec:
  nodeName: node-{node}
  serviceAccountName: a{app}
  containers:
  - name: app
    image: registry.example/app:1.2.3
    ports:
    - {{name: http, containerPort: 8080, protocol: TCP}}
    env:
    - {{name: LEVEL, value: info}}
    resources:
      requests: {{cpu: 100m, memory: 128Mi}}
    readinessProbe:
      httpGet: {{path: /ready, port: http}}
status:
  phase: Running
  podIP: 10.{a}.{b}.{c}
  podIPs: [{{ip: 10.{a}.{b}.{c}}}]
  conditions: [{{type: Ready, status: \"True\"}}]
"
    )
}
