// SPDX-License-Identifier: Apache-2.0
//! How long a directory of many pods takes to load, and one pod's change to arrive: `load [PODS]`.
//!
//! Pods come with a status each, once all in one file and once in a file each.

use std::fs;
use std::path::Path;
use std::time::Instant;

use cluster::{Directory, Kind, ObjectKey, Partial, StatusWriter};

fn pod(index: usize, version: usize) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: web-{index}
  namespace: default
  uid: 00000000-0000-0000-0000-{index:012}
  generateName: web-7d8f9c6b5-
  labels:
    app: web
    pod-template-hash: 7d8f9c6b5
    version: v{version}
  ownerReferences:
  - {{apiVersion: apps/v1, kind: ReplicaSet, name: web-7d8f9c6b5, uid: r, controller: true}}
spec:
  nodeName: node-{node}
  serviceAccountName: web
  containers:
  - name: web
    image: registry.example/web:1.2.3
    ports:
    - {{name: http, containerPort: 8080, protocol: TCP}}
    env:
    - {{name: LEVEL, value: info}}
    resources:
      requests: {{cpu: 100m, memory: 128Mi}}
    readinessProbe:
      httpGet: {{path: /ready, port: http}}
",
        node = index % 100,
    )
}

/// Resident memory in KiB.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}

async fn measure(name: &str, directory: &Path, pods: usize, change: impl FnOnce()) {
    let before = memory();
    let start = Instant::now();
    let mut source = Directory::open(directory).expect("the directory is there");
    let first = source.next().await;
    let loaded = start.elapsed();
    assert_eq!(
        (first.events.len(), first.problems.len()),
        (pods, 0),
        "{:?}",
        first.problems.first()
    );
    drop(first);
    let bytes = memory().saturating_sub(before) * 1024 / pods as u64;
    let start = Instant::now();
    change();
    let next = source.next().await;
    println!(
        "{name}: {pods} pods in {loaded:?}, {bytes} bytes each; {} changed in {:?}",
        next.events.len(),
        start.elapsed()
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let pods: usize = std::env::args()
        .nth(1)
        .and_then(|pods| pods.parse().ok())
        .unwrap_or(50_000);
    let root = std::env::temp_dir().join(format!("cluster-load-{}", std::process::id()));
    let (one, many) = (root.join("one"), root.join("many"));
    for directory in [&one, &many] {
        fs::create_dir_all(directory).expect("a directory");
    }
    let all = |version: usize| {
        (0..pods)
            .map(|index| pod(index, if index == 7 { version } else { 1 }) + "---\n")
            .collect::<String>()
    };
    fs::write(one.join("all.yaml"), all(1)).expect("a file");
    for index in 0..pods {
        fs::write(many.join(format!("{index}.yaml")), pod(index, 1)).expect("a file");
    }
    let kubelet = StatusWriter::new(&many, "kubelet").expect("a good name");
    for index in 0..pods {
        let status = serde_json::json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}]});
        let partial = Partial {
            status: status.as_object().cloned().unwrap_or_default(),
            ..Partial::default()
        };
        let key = ObjectKey::namespaced(Kind::Pod, "default", format!("web-{index}"));
        kubelet
            .write(
                &key,
                &format!("00000000-0000-0000-0000-{index:012}"),
                &partial,
            )
            .expect("a status");
    }
    let changed = all(2);
    measure("one file", &one, pods, || {
        fs::write(one.join("all.yaml"), changed).expect("a file")
    })
    .await;
    let write = || fs::write(many.join("7.yaml"), pod(7, 2)).expect("a file");
    measure("a file and a status each", &many, pods, write).await;
    fs::remove_dir_all(&root).expect("removable");
}
