// SPDX-License-Identifier: Apache-2.0
//! The agent's binary in a node of its own: a directory of manifests, the CNI plugin, a scripted ztunnel, real pods.
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

mod support;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use capture::Netns;
use capture::contract::NAT_TABLE;
use capture::seqpacket::SeqPacket;
use prost::Message;
use proto::zds::{WorkloadRequest, workload_request::Payload};
use redirect::nftables;
use redirect::plan::{POD_TABLES, probe_set};
use redirect::rules::Family;
use serde_json::{Value, json};
use support::{FAMILIES, Pair, accept, application, assert_talk, connect, node_ip, pod_ip, proxy};

const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}\n";
const PLAIN_NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";

struct Lab {
    pair: Pair,
    folder: tempfile::TempDir,
    /// Where the agent looks for the node's files.
    host_root: PathBuf,
    agent: Option<Child>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

impl Lab {
    fn new() -> Self {
        let mut lab = Self {
            pair: Pair::new(),
            folder: tempfile::tempdir().unwrap(),
            host_root: "/".into(),
            agent: None,
        };
        std::fs::create_dir(lab.manifests()).unwrap();
        std::fs::create_dir(lab.run_dir()).unwrap();
        for folder in ["net.d", "bin"] {
            std::fs::create_dir(lab.folder.path().join(folder)).unwrap();
        }
        lab.write_primary("first");
        lab.apply("namespace.yaml", NAMESPACE);
        lab.start_agent();
        lab
    }

    fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn apply(&self, file: &str, text: &str) {
        let beside = self.folder.path().join(file);
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(beside, self.manifests().join(file)).unwrap();
    }

    /// The node's primary CNI plugin says how pods are started.
    fn write_primary(&self, version: &str) {
        let list = json!({"cniVersion": "1.1.0", "name": "lab", "plugins": [{"type": "primary", "version": version}]});
        let beside = self.folder.path().join("primary");
        std::fs::write(&beside, list.to_string()).unwrap();
        std::fs::rename(beside, self.folder.path().join("net.d/10-primary.conflist")).unwrap();
    }

    /// The list by which a runtime starts pods: the first.
    fn conflist(&self) -> Value {
        let entries = std::fs::read_dir(self.folder.path().join("net.d")).unwrap();
        let first = entries.map(|entry| entry.unwrap().path()).min().unwrap();
        serde_json::from_slice(&std::fs::read(first).unwrap()).unwrap()
    }

    fn apply_pod(&self, uid: &str) {
        self.apply_pod_with("web", json!({"uid": uid}), json!({}));
    }

    fn apply_pod_with(&self, name: &str, mut metadata: Value, status: Value) {
        metadata["name"] = name.into();
        metadata["namespace"] = "shop".into();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status,
            "spec": {"nodeName": "a", "serviceAccountName": "clerk", "containers": [{"name": "web", "image": "web"}]},
        });
        self.apply(&format!("pod-{name}.json"), &pod.to_string());
    }

    /// A process in a namespace, of the pod that its cgroup is named after, as the node's /proc shows it.
    fn show_process(&self, pid: u32, uid: &str, started: u32, netns: &Netns) {
        use std::os::fd::{AsFd, AsRawFd};
        let folder = self.folder.path().join(format!("host/proc/{pid}"));
        std::fs::create_dir_all(folder.join("ns")).unwrap();
        let cgroup =
            format!("0::/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-c1.scope\n");
        std::fs::write(folder.join("cgroup"), cgroup).unwrap();
        let stat = format!("{pid} (web) S 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 {started} 9\n");
        std::fs::write(folder.join("stat"), stat).unwrap();
        let fd = netns.as_fd().as_raw_fd();
        let way = format!("/proc/{}/fd/{fd}", std::process::id());
        std::os::unix::fs::symlink(way, folder.join("ns/net")).unwrap();
    }

    fn start_agent(&mut self) {
        self.agent = Some(self.spawn_agent(&self.manifests()));
        let ready = || {
            self.http("/readyz")
                .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        self.until("the agent is ready", ready);
    }

    fn spawn_agent(&self, manifests: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redirect"));
        command
            .env_clear()
            .arg(format!("--source=dir:{}", manifests.display()))
            .args([
                "--node-name=a",
                "--health=127.0.0.1:8000",
                "--monitoring=127.0.0.1:15014",
                "--rule-check-interval=1",
                "--release-deadline=2",
            ])
            .arg(format!("--run-dir={}", self.run_dir().display()))
            .arg(format!("--host-root={}", self.host_root.display()))
            .arg(format!(
                "--cni-plugin={}",
                env!("CARGO_BIN_EXE_redirect-cni")
            ))
            .arg(format!(
                "--cni-net-dir={}",
                self.folder.path().join("net.d").display()
            ))
            .arg(format!(
                "--cni-bin-dir={}",
                self.folder.path().join("bin").display()
            ))
            .arg(format!(
                "--ztunnel-socket={}",
                self.folder.path().join("zds.sock").display()
            ))
            .stdout(std::fs::File::create(self.folder.path().join("agent.log")).unwrap());
        let spawn = move || command.process_group(0).spawn();
        self.pair
            .node
            .spawn_thread_in("agent", spawn)
            .unwrap()
            .join()
            .unwrap()
            .unwrap()
            .unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("agent.log")).unwrap()
    }

    fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }

    fn http(&self, path: &str) -> Option<String> {
        let port = if path == "/metrics" { 15014 } else { 8000 };
        let mut stream = connect(&self.pair.node, SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        std::io::read_to_string(&mut stream).ok()
    }

    /// Calls the installed plugin as a runtime would; the pod's namespace is reached through this very process.
    fn plugin(&self, command: &str, uid: &str) -> Result<Value, String> {
        self.plugin_for("web", command, uid)
    }

    fn plugin_for(&self, name: &str, command: &str, uid: &str) -> Result<Value, String> {
        use std::os::fd::{AsFd, AsRawFd};
        let netns = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.pair.pod.as_fd().as_raw_fd()
        );
        let list = self.conflist();
        let mut stdin = list["plugins"].as_array().unwrap().last().unwrap().clone();
        let program = self
            .folder
            .path()
            .join("bin")
            .join(stdin["type"].as_str().unwrap());
        for key in ["cniVersion", "name"] {
            stdin[key] = list[key].clone();
        }
        stdin["prevResult"] = json!({"cniVersion": "1.1.0", "ips": FAMILIES.map(|family| json!({
            "address": format!("{}/{}", pod_ip(family), if family == Family::V4 { 24 } else { 64 })
        }))});
        let mut child = Command::new(program)
            .env_clear()
            .envs([
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", &*format!("c-{uid}")),
                ("CNI_NETNS", &netns),
                ("CNI_IFNAME", "eth0"),
                (
                    "CNI_ARGS",
                    &format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID={uid}"),
                ),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(stdin.to_string().as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        if output.status.success() {
            Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
        } else {
            Err(text)
        }
    }

    fn annotation(&self) -> Option<String> {
        let file = self.manifests().join(".status/Pod/shop/web/redirect.json");
        let text = std::fs::read_to_string(file).ok()?;
        let value: Value = serde_json::from_str(&text).unwrap();
        Some(
            value["metadata"]["annotations"]["ambient.istio.io/redirection"]
                .as_str()?
                .to_owned(),
        )
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition() {
            if Instant::now() > deadline {
                panic!("{what}: not within 10 s\n{}", self.log());
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    fn rules(&self) -> bool {
        !self
            .pair
            .pod
            .enter(|| nftables::inspect(&[], &POD_TABLES))
            .unwrap()
            .unwrap()
            .is_empty()
    }

    fn node_set_holds_the_pod(&self) -> bool {
        let members = [(pod_ip(Family::V4), "u1".to_owned())].into();
        let synced = self
            .pair
            .node
            .enter(|| nftables::sync_set(NAT_TABLE, probe_set(Family::V4), &members));
        synced.unwrap().unwrap() == nftables::Changed::No
    }
}

/// A ztunnel that consents, or refuses, and notes what it is told. Lives on a thread of its own.
struct Ztunnel {
    said: std::sync::mpsc::Receiver<String>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Ztunnel {
    fn start(folder: &Path, error: &'static str) -> Self {
        Self::greeting(folder, error, &[0x08, 0x01])
    }

    /// One that can let pods go, and never comes to an end with it.
    fn gentle(folder: &Path) -> Self {
        Self::greeting(folder, "", &[0x08, 0x01, 0xca, 0x3e, 0x01, 0x01])
    }

    fn greeting(folder: &Path, error: &'static str, hello: &'static [u8]) -> Self {
        let (sender, said) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let path = folder.join("zds.sock");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serve(&path, error, hello, sender) => {}
                }
            });
        });
        Self { said, _stop: stop }
    }

    fn expect(&self, said: &str) {
        let heard = self.said.recv_timeout(Duration::from_secs(10)).expect(said);
        assert_eq!(heard, said);
    }
}

/// How long a ztunnel takes to end what is open in a pod.
const LETTING_GO: Duration = Duration::from_millis(150);

async fn serve(path: &Path, error: &str, hello: &[u8], said: std::sync::mpsc::Sender<String>) {
    let socket = SeqPacket::connect(path).unwrap();
    socket.send(hello, None).await.unwrap();
    loop {
        let mut packet = socket.recv(1024).await.unwrap();
        if packet.is_end() {
            return;
        }
        let request = WorkloadRequest::decode(packet.bytes.as_slice()).unwrap();
        let mut release = None;
        let (heard, error) = match request.payload.unwrap() {
            Payload::Add(add) => {
                let netns = Netns::from_fd(packet.fds.remove(0)).unwrap();
                let info = add.workload_info.unwrap();
                (
                    format!(
                        "add {} {} {}",
                        add.uid,
                        info.service_account,
                        netns.id().ino
                    ),
                    error,
                )
            }
            Payload::Keep(keep) => (format!("keep {}", keep.uid), ""),
            Payload::Del(del) => {
                tokio::time::sleep(LETTING_GO).await;
                (format!("del {}", del.uid), "")
            }
            Payload::Release(asked) => {
                release = Some(proto::zds::Release {
                    open: 1,
                    plain: true,
                });
                (format!("release {}", asked.uid), "")
            }
            Payload::SnapshotSent(_) => ("snapshot".into(), ""),
        };
        let ack = proto::zds::WorkloadResponse {
            payload: Some(proto::zds::workload_response::Payload::Ack(
                proto::zds::Ack {
                    error: error.into(),
                    release,
                },
            )),
        };
        socket.send(&ack.encode_to_vec(), None).await.unwrap();
        if said.send(heard).is_err() {
            return;
        }
    }
}

fn add_of(lab: &Lab, uid: &str) -> String {
    format!("add {uid} clerk {}", lab.pair.pod.id().ino)
}

#[test]
fn the_plugin_is_installed_before_all_others_and_outlives_its_agent() {
    let mut lab = Lab::new();
    let is_ours = |list: &Value, version: &str| {
        let plugins = list["plugins"].as_array().unwrap();
        plugins.len() == 2 && plugins[0]["version"] == version && plugins[1]["type"] == "istio-cni"
    };
    assert!(is_ours(&lab.conflist(), "first"), "{}", lab.conflist());
    lab.write_primary("second");
    lab.until("it follows the primary", || {
        is_ours(&lab.conflist(), "second")
    });
    lab.until("it counts that", || {
        let metrics = lab.http("/metrics").unwrap();
        metrics.contains("redirect_cni_repaired_total 1")
    });
    // A node that starts anew, on which no agent runs yet and the primary has just written its file.
    lab.kill_agent();
    lab.write_primary("third");
    let refused = lab.plugin("ADD", "u1").unwrap_err();
    assert!(
        refused.contains("shop/web") && refused.contains("no agent at"),
        "{refused}"
    );
    lab.plugin("DEL", "u1").expect("a pod may always go");
    lab.start_agent();
    lab.until("it catches up", || is_ours(&lab.conflist(), "third"));
}

#[test]
fn a_pod_starts_once_it_is_captured_and_served_and_is_released_when_its_label_goes() {
    let lab = Lab::new();
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect("snapshot");
    lab.apply_pod("u1");
    lab.plugin("ADD", "u1").unwrap();
    ztunnel.expect(&add_of(&lab, "u1"));
    assert!(lab.rules());
    assert!(lab.node_set_holds_the_pod());
    lab.until("annotated", || {
        lab.annotation().as_deref() == Some("enabled")
    });
    lab.plugin("CHECK", "u1").unwrap();
    let outbound = proxy(&lab.pair.pod, 15001);
    connect(&lab.pair.pod, SocketAddr::new(node_ip(Family::V4), 8080)).unwrap();
    accept(&outbound);

    lab.apply("namespace.yaml", PLAIN_NAMESPACE);
    ztunnel.expect("del u1");
    lab.until("not annotated", || lab.annotation().is_none());
    lab.until("released", || !lab.rules());
    let server = application(&lab.pair.node, 8080);
    connect(&lab.pair.pod, SocketAddr::new(node_ip(Family::V4), 8080)).unwrap();
    accept(&server);

    lab.apply("namespace.yaml", NAMESPACE);
    ztunnel.expect(&add_of(&lab, "u1"));
    lab.until("annotated again", || {
        lab.annotation().as_deref() == Some("enabled")
    });

    std::fs::remove_file(lab.manifests().join("pod-web.json")).unwrap();
    ztunnel.expect("del u1");
    lab.until("forgotten", || !lab.run_dir().join("pods/u1.json").exists());
}

#[test]
fn a_pod_that_leaves_drains_until_the_deadline_and_is_cleaned_up_then() {
    let lab = Lab::new();
    let ztunnel = Ztunnel::gentle(lab.folder.path());
    ztunnel.expect("snapshot");
    lab.apply_pod("u1");
    lab.plugin("ADD", "u1").unwrap();
    ztunnel.expect(&add_of(&lab, "u1"));
    lab.until("annotated", || {
        lab.annotation().as_deref() == Some("enabled")
    });
    let outbound = proxy(&lab.pair.pod, 15001);
    let to = SocketAddr::new(node_ip(Family::V4), 8080);
    let mut client = connect(&lab.pair.pod, to).unwrap();
    let (mut served, _) = accept(&outbound);
    let server = application(&lab.pair.node, 8080);

    lab.apply("namespace.yaml", PLAIN_NAMESPACE);
    let begun = Instant::now();
    ztunnel.expect("release u1");
    lab.until("not annotated", || lab.annotation().is_none());
    ztunnel.expect("release u1");
    let mut free = connect(&lab.pair.pod, to).unwrap();
    assert_talk(&mut free, &mut accept(&server).0);
    assert_talk(&mut client, &mut served);
    assert!(lab.rules(), "they keep what is open where it is");
    loop {
        let heard = ztunnel.said.recv_timeout(Duration::from_secs(5)).unwrap();
        match heard.as_str() {
            "release u1" => {}
            "del u1" => break,
            other => panic!("{other}"),
        }
    }
    assert!(begun.elapsed() >= Duration::from_secs(2));
    lab.until("released", || !lab.rules());
}

#[test]
fn a_pod_outside_the_mesh_starts_untouched() {
    let lab = Lab::new();
    lab.apply("namespace.yaml", PLAIN_NAMESPACE);
    lab.apply_pod("u1");
    lab.until("the agent has seen both", || {
        lab.plugin("ADD", "u1").is_ok()
    });
    assert!(!lab.rules());
    assert_eq!(lab.annotation(), None);
    lab.plugin("CHECK", "u1").unwrap();
    lab.plugin("DEL", "u1").unwrap();
}

#[test]
fn without_ztunnel_a_pod_is_refused_and_pending_and_the_next_ztunnel_gets_it() {
    let lab = Lab::new();
    lab.apply_pod("u1");
    let error = lab.plugin("ADD", "u1").unwrap_err();
    assert!(
        error.contains("ztunnel has not acknowledged") && error.contains("shop/web"),
        "{error}"
    );
    assert!(!lab.rules(), "nobody listens where they would lead");
    assert_eq!(lab.annotation().as_deref(), Some("pending"));
    assert!(lab.plugin("CHECK", "u1").is_err());
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect(&add_of(&lab, "u1"));
    ztunnel.expect("snapshot");
    lab.until("annotated", || {
        lab.annotation().as_deref() == Some("enabled")
    });
}

#[test]
fn a_pod_that_ztunnel_refuses_does_not_start_and_says_why() {
    let lab = Lab::new();
    let _ztunnel = Ztunnel::start(lab.folder.path(), "port 15001 is taken");
    lab.apply_pod("u1");
    let error = lab.plugin("ADD", "u1").unwrap_err();
    assert!(error.contains("port 15001 is taken"), "{error}");
    lab.until("pending", || lab.annotation().as_deref() == Some("pending"));
}

#[test]
fn a_pod_that_the_cluster_does_not_know_is_refused() {
    let lab = Lab::new();
    let error = lab.plugin("ADD", "u1").unwrap_err();
    assert!(
        error.contains("no pod shop/web with UID u1 is known on node a"),
        "{error}"
    );
    // Another pod of this name is not this pod.
    lab.apply_pod("u2");
    assert!(lab.plugin("ADD", "u1").unwrap_err().contains("UID u1"));
}

#[test]
fn a_namespace_that_lacks_the_pods_address_is_refused() {
    let mut lab = Lab::new();
    lab.apply_pod("u1");
    // The runtime names another pod's namespace.
    let other = Pair::new();
    lab.pair.pod = other.node.clone();
    let error = lab.plugin("ADD", "u1").unwrap_err();
    let missing: IpAddr = pod_ip(Family::V4);
    assert!(
        error.contains(&format!("has no address {missing}")),
        "{error}"
    );
    assert!(!lab.rules());
}

#[test]
fn a_namespace_is_never_taken_for_two_pods() {
    let lab = Lab::new();
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect("snapshot");
    lab.apply_pod("u1");
    lab.plugin("ADD", "u1").unwrap();
    ztunnel.expect(&add_of(&lab, "u1"));
    lab.apply_pod_with("db", json!({"uid": "u2"}), json!({}));
    let error = lab.plugin_for("db", "ADD", "u2").unwrap_err();
    assert!(
        error.contains("belongs to pod shop/web (u1), which still runs"),
        "{error}"
    );
    let metrics = lab.http("/metrics").unwrap();
    assert!(
        metrics.contains("redirect_wrong_namespaces_total{reason=\"taken\"} 1"),
        "{metrics}"
    );
    lab.plugin("CHECK", "u1").unwrap();
}

#[test]
fn a_static_pod_is_known_by_the_uid_that_the_kubelet_has_for_it() {
    let lab = Lab::new();
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect("snapshot");
    let annotations =
        json!({"kubernetes.io/config.mirror": "c0ffee", "kubernetes.io/config.hash": "c0ffee"});
    lab.apply_pod_with(
        "web",
        json!({"uid": "u1", "annotations": annotations}),
        json!({}),
    );
    lab.plugin("ADD", "c0ffee").unwrap();
    ztunnel.expect(&add_of(&lab, "u1"));
    assert!(
        lab.plugin("ADD", "c0ffe")
            .unwrap_err()
            .contains("UID c0ffe")
    );
}

#[test]
fn an_agent_that_lost_its_memory_finds_its_pods_among_the_nodes_processes() {
    let mut lab = Lab::new();
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect("snapshot");
    lab.apply_pod("u1");
    lab.plugin("ADD", "u1").unwrap();
    ztunnel.expect(&add_of(&lab, "u1"));
    lab.until("annotated", || {
        lab.annotation().as_deref() == Some("enabled")
    });
    lab.kill_agent();
    std::fs::remove_dir_all(lab.run_dir()).unwrap();
    std::fs::create_dir(lab.run_dir()).unwrap();
    lab.host_root = lab.folder.path().join("host");
    // The oldest process of the pod has made a namespace of its own; another one claims the node's.
    let stranger = Netns::create().unwrap();
    lab.show_process(20, "u1", 5, &stranger);
    lab.show_process(21, "u1", 6, &lab.pair.node);
    lab.show_process(22, "u2", 1, &lab.pair.pod);
    let status = json!({"podIPs": FAMILIES.map(|family| json!({"ip": pod_ip(family)}))});
    lab.apply_pod_with("web", json!({"uid": "u1"}), status);
    lab.start_agent();
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    // Whoever serves it shall go on: it is not known where it is.
    ztunnel.expect("keep u1");
    ztunnel.expect("snapshot");
    let refused = |why: &str| lab.log().contains(why);
    lab.until("the wrong ones are refused", || {
        refused("is the node's own") && refused("has no address 10.77.0.2")
    });

    lab.show_process(23, "u1", 7, &lab.pair.pod);
    ztunnel.expect(&add_of(&lab, "u1"));
    let metrics = lab.http("/metrics").unwrap();
    assert!(
        metrics.contains("redirect_sandboxes_found_total 1"),
        "{metrics}"
    );
    assert!(lab.rules());
    assert!(lab.node_set_holds_the_pod());
    assert_eq!(lab.annotation().as_deref(), Some("enabled"));
    // And it is remembered from now on.
    assert!(lab.run_dir().join("pods/u1.json").exists());
}

#[test]
fn an_agent_that_restarts_knows_its_pods_and_disturbs_nothing() {
    let mut lab = Lab::new();
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect("snapshot");
    lab.apply_pod("u1");
    lab.plugin("ADD", "u1").unwrap();
    ztunnel.expect(&add_of(&lab, "u1"));
    lab.until("annotated", || {
        lab.annotation().as_deref() == Some("enabled")
    });
    lab.kill_agent();
    assert!(lab.rules());
    lab.start_agent();
    assert!(lab.node_set_holds_the_pod());
    assert_eq!(
        lab.annotation().as_deref(),
        Some("enabled"),
        "ztunnel has served the pod all along"
    );
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect(&add_of(&lab, "u1"));
    ztunnel.expect("snapshot");
    lab.plugin("CHECK", "u1").unwrap();
}

#[test]
fn an_agent_that_restarts_takes_back_nothing_that_another_nodes_agent_says() {
    let mut lab = Lab::new();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "far", "namespace": "shop", "uid": "u9"},
        "spec": {"nodeName": "b", "containers": [{"name": "far", "image": "far"}]},
    });
    lab.apply("pod-far.json", &pod.to_string());
    let said = json!({"uid": "u9", "metadata": {"annotations": {"ambient.istio.io/redirection": "enabled"}}});
    let of = |name: &str| {
        let folder = lab.manifests().join(".status/Pod/shop").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder.join("redirect.json")
    };
    let (far, gone) = (of("far"), of("gone"));
    std::fs::write(&far, said.to_string()).unwrap();
    std::fs::write(&gone, said.to_string()).unwrap();
    lab.kill_agent();
    lab.start_agent();
    lab.until("what is said of a pod that is gone is taken back", || {
        !gone.exists()
    });
    assert_eq!(std::fs::read_to_string(&far).unwrap(), said.to_string());
}

#[test]
fn drift_is_repaired_and_counted() {
    let lab = Lab::new();
    let _ztunnel = Ztunnel::start(lab.folder.path(), "");
    lab.apply_pod("u1");
    lab.plugin("ADD", "u1").unwrap();
    lab.pair
        .pod
        .enter(|| nftables::remove(&[NAT_TABLE]))
        .unwrap()
        .unwrap();
    assert!(
        lab.plugin("CHECK", "u1")
            .unwrap_err()
            .contains("table istio-ambient-nat is missing")
    );
    lab.until("repaired", || lab.plugin("CHECK", "u1").is_ok());
    let metrics = lab.http("/metrics").unwrap();
    assert!(
        metrics.contains("redirect_drift_repaired_total{where=\"pod\"} 1"),
        "{metrics}"
    );
}

#[test]
fn an_agent_without_a_cluster_leaves_the_node_untouched_and_says_why_once() {
    let mut lab = Lab::new();
    lab.kill_agent();
    let tables = || {
        let inspected = lab.pair.node.enter(|| nftables::inspect(&[], &[NAT_TABLE]));
        inspected.unwrap().unwrap().len()
    };
    assert_eq!(tables(), 1, "what a living agent leaves to the next one");
    lab.pair
        .node
        .enter(|| nftables::remove(&[NAT_TABLE]))
        .unwrap()
        .unwrap();
    let mut agent = lab.spawn_agent(Path::new("/not/there"));
    assert!(!agent.wait().unwrap().success());
    assert_eq!(tables(), 0);
    let log = lab.log();
    assert_eq!(log.matches("No such file or directory").count(), 1, "{log}");
}

#[test]
fn what_is_wrong_with_the_cluster_is_logged_once_for_as_long_as_it_lasts() {
    let lab = Lab::new();
    let logged = |file: &str| {
        lab.log()
            .matches(&format!("{file}:1: not valid YAML"))
            .count()
    };
    for file in ["first.yaml", "second.yaml", "third.yaml"] {
        lab.apply(file, "{");
        lab.until("logged", || logged(file) == 1);
    }
    assert_eq!(logged("first.yaml"), 1);
    std::fs::remove_file(lab.manifests().join("first.yaml")).unwrap();
    lab.apply("fourth.yaml", "{");
    lab.until("logged", || logged("fourth.yaml") == 1);
    lab.apply("first.yaml", "{");
    lab.until("logged again", || logged("first.yaml") == 2);
}

#[test]
fn a_sandbox_that_is_taken_down_is_served_no_more() {
    let lab = Lab::new();
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect("snapshot");
    lab.apply_pod("u1");
    lab.plugin("ADD", "u1").unwrap();
    ztunnel.expect(&add_of(&lab, "u1"));
    let asked = Instant::now();
    lab.plugin("DEL", "u1").unwrap();
    assert!(
        asked.elapsed() >= LETTING_GO,
        "the runtime took the network away before ztunnel had let go"
    );
    ztunnel.expect("del u1");
    lab.until("not annotated", || lab.annotation().is_none());
    // Nobody serves it any more, so there is nobody to wait for.
    let asked = Instant::now();
    lab.plugin("DEL", "u1").unwrap();
    assert!(asked.elapsed() < LETTING_GO, "{:?}", asked.elapsed());
}

#[test]
fn a_sandbox_can_be_taken_down_although_ztunnel_is_gone() {
    let lab = Lab::new();
    let ztunnel = Ztunnel::start(lab.folder.path(), "");
    ztunnel.expect("snapshot");
    lab.apply_pod("u1");
    lab.plugin("ADD", "u1").unwrap();
    drop(ztunnel);
    let asked = Instant::now();
    lab.plugin("DEL", "u1").unwrap();
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "{:?}",
        asked.elapsed()
    );
    lab.until("not annotated", || lab.annotation().is_none());
}
