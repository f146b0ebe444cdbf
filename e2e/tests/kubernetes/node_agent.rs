// SPDX-License-Identifier: Apache-2.0
//! The node agent's binary follows the API server. The test plays kubelet, runtime and ztunnel of `node-a`.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use capture::Netns;
use capture::seqpacket::SeqPacket;
use cluster::status::Written;
use cluster::{Connection, Kind, ObjectKey, StatusWriter};
use e2e::binaries;
use e2e::deploy;
use e2e::environment::Environment;
use e2e::kubernetes::Cluster;
use e2e::network::in_namespace;
use e2e::plane::{free_port, get};
use futures_util::TryStreamExt as _;
use http::Request;
use http::header::CONTENT_TYPE;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message as _;
use proto::zds::{
    Ack, WorkloadRequest, WorkloadResponse, workload_request::Payload, workload_response,
};
use rtnetlink::{Handle, IpVersion};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::ground::{account, namespace, pod, populated, running};

const PATIENCE: Duration = Duration::from_secs(30);
/// How the node starts pods without the mesh, and with it.
const PRIMARY: &str = "10-primary.conflist";
const INSTALLED: &str = "02-istio-cni.conflist";
const REDIRECTION: &str = "ambient.istio.io/redirection";

/// A node with its agent, which follows a cluster.
struct Node {
    cluster: Cluster,
    programs: PathBuf,
    health: SocketAddr,
    told: mpsc::UnboundedReceiver<String>,
    // Ended in this order.
    agent: Child,
    ztunnel: tokio::task::JoinHandle<()>,
    _netns: Netns,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.ztunnel.abort();
        // It may have ended by itself.
        _ = self.agent.kill();
        _ = self.agent.wait();
    }
}

impl Node {
    /// Of a cluster whose namespace `shop` is in the mesh.
    async fn start(objects: &[Value]) -> Result<Self> {
        let shop = [shop(true), account("shop", "default")];
        let cluster = populated(&[&shop, objects].concat()).await?;
        let environment = Environment::of_process();
        let e2e = Path::new(env!("CARGO_BIN_EXE_e2e"));
        let programs = binaries::build_only(&["redirect", "redirect-cni"], &environment, e2e)?;
        let kubeconfig = kubeconfig(&cluster).await?;
        let netns = Netns::create().context("a node needs root, or `unshare -Urnm`")?;
        let (health, monitoring) = (free_port()?, free_port()?);
        let folder = cluster.folder();
        let socket = folder.join("zds.sock");
        let log = std::fs::File::create(folder.join("agent.log"))?;
        let net_dir = folder.join("net.d");
        std::fs::create_dir(&net_dir)?;
        let primary =
            json!({"cniVersion": "1.1.0", "name": "lab", "plugins": [{"type": "primary"}]});
        std::fs::write(net_dir.join(PRIMARY), primary.to_string())?;
        let agent = Command::new(programs.join("redirect"))
            .env_clear()
            .args([
                "--source=kubernetes",
                "--node-name=node-a",
                "--rule-check-interval=1",
            ])
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--host-netns={}", path_of(&netns)))
            .arg(format!("--run-dir={}", folder.join("run").display()))
            .arg(format!("--ztunnel-socket={}", socket.display()))
            .arg(format!("--health={health}"))
            .arg(format!("--monitoring={monitoring}"))
            .arg("--release-deadline=1")
            .arg(format!(
                "--cni-plugin={}",
                programs.join("redirect-cni").display()
            ))
            .arg(format!("--cni-net-dir={}", net_dir.display()))
            .arg(format!("--cni-bin-dir={}", folder.display()))
            .stderr(log.try_clone()?)
            .stdout(log)
            .spawn()
            .context("cannot run redirect")?;
        let (sender, told) = mpsc::unbounded_channel();
        let mut node = Self {
            cluster,
            programs,
            health,
            told,
            agent,
            ztunnel: tokio::spawn(ztunnel(socket, sender)),
            _netns: netns,
        };
        node.until("it is ready", async |node| {
            get(node.health, "/readyz")
                .await
                .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        })
        .await?;
        node.hears("snapshot").await?;
        Ok(node)
    }

    /// The node's CNI configurations.
    fn configurations(&self) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(self.cluster.folder().join("net.d"))?;
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            Ok(entry?.file_name().to_string_lossy().into_owned())
        };
        let mut names = entries.map(name).collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// Tells the agent to end, as a kubelet does.
    async fn end_agent(&mut self) -> Result<()> {
        let pid = i32::try_from(self.agent.id())?;
        kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.agent.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{status}; log: {}", self.log()),
                None => ensure!(Instant::now() < deadline, "it runs on; log: {}", self.log()),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.cluster.folder().join("agent.log")).unwrap_or_default()
    }

    async fn until(&self, what: &str, hoped: impl AsyncFn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !hoped(self).await {
            ensure!(
                Instant::now() < deadline,
                "{what}: not in time; log: {}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Waits for the next thing that ztunnel is told.
    async fn hears(&mut self, expected: &str) -> Result<()> {
        let told = tokio::time::timeout(PATIENCE, self.told.recv()).await;
        let told = told.ok().flatten();
        ensure!(
            told.as_deref() == Some(expected),
            "{told:?}, not {expected}; log: {}",
            self.log()
        );
        Ok(())
    }

    async fn is_annotated(&self, pod: &Value, expected: Option<&str>) -> Result<()> {
        self.until(&format!("annotated {expected:?}"), async |node| {
            let found = node.cluster.get(pod).await.unwrap_or_default();
            found["metadata"]["annotations"][REDIRECTION].as_str() == expected
        })
        .await
    }

    async fn uid(&self, pod: &Value) -> Result<String> {
        let found = self.cluster.get(pod).await?;
        let uid = found["metadata"]["uid"].as_str();
        uid.map(str::to_owned).context("a pod without uid")
    }

    /// Calls the plugin as a runtime would.
    async fn plugin(&self, command: &str, sandbox: &Sandbox) -> Result<()> {
        let ip = sandbox.ip;
        let stdin = json!({
            "cniVersion": "1.1.0", "name": "lab", "type": "istio-cni",
            "cni_agent_run_dir": self.cluster.folder().join("run"),
            "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": format!("{ip}/32")}]},
        });
        let (name, uid) = (&sandbox.name, &sandbox.uid);
        let mut child = Command::new(self.programs.join("redirect-cni"))
            .env_clear()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", format!("c-{uid}"))
            .env("CNI_NETNS", path_of(&sandbox.netns))
            .env("CNI_IFNAME", "eth0")
            .env(
                "CNI_ARGS",
                format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID={uid}"),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = child.stdin.take().context("no stdin")?;
        input.write_all(stdin.to_string().as_bytes())?;
        drop(input);
        let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await??;
        match output.status.success() {
            true => Ok(()),
            false => bail!("{}", String::from_utf8_lossy(&output.stdout)),
        }
    }
}

/// The agent's way in: the rights that a cluster grants it, and no others.
async fn kubeconfig(cluster: &Cluster) -> Result<PathBuf> {
    let agent = running(
        "istio-system",
        "istio-cni-node-a",
        "istio-cni",
        "node-a",
        "10.0.0.1",
    );
    let files = deploy::files()?;
    let granted = files.iter().find(|(name, _)| name == "redirect.yaml");
    let (_, granted) = granted.context("deploy/base has no redirect.yaml")?;
    for object in granted.iter().chain([&agent]) {
        cluster.put(object).await?;
    }
    cluster.kubeconfig_of(&agent).await
}

/// The network namespace of a pod, as a runtime makes it.
struct Sandbox {
    name: String,
    uid: String,
    ip: Ipv4Addr,
    netns: Netns,
}

impl Sandbox {
    fn new(name: &str, uid: String, ip: Ipv4Addr) -> Result<Self> {
        let netns = Netns::create()?;
        netns.loopback_up()?;
        talk(&netns, async move |handle| {
            const LOOPBACK: u32 = 1;
            handle
                .address()
                .add(LOOPBACK, IpAddr::V4(ip), 32)
                .execute()
                .await?;
            Ok(())
        })?;
        Ok(Self {
            name: name.to_owned(),
            uid,
            ip,
            netns,
        })
    }

    /// Whether marked replies are led back: what a captured pod has beside the kernel's own three rules. Of the tables the
    /// plugin's CHECK tells.
    fn has_rules(&self) -> Result<bool> {
        talk(&self.netns, async |handle| {
            let rules = handle.rule().get(IpVersion::V4).execute();
            Ok(rules.try_collect::<Vec<_>>().await?.len() > 3)
        })
    }

    fn served(&self) -> String {
        format!("add {} default {}", self.uid, self.netns.id().ino)
    }
}

/// Talks rtnetlink with a namespace.
fn talk<T: Send + 'static>(
    netns: &Netns,
    work: impl AsyncFnOnce(Handle) -> Result<T> + Send + 'static,
) -> Result<T> {
    in_namespace(netns, move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let (connection, handle, _messages) = rtnetlink::new_connection()?;
            tokio::spawn(connection);
            work(handle).await
        })
    })
}

/// A namespace as this very process reaches it.
fn path_of(netns: &Netns) -> String {
    let fd = netns.as_fd().as_raw_fd();
    format!("/proc/{}/fd/{fd}", std::process::id())
}

/// A ztunnel that consents to all, and notes what it is told.
async fn ztunnel(path: PathBuf, told: mpsc::UnboundedSender<String>) {
    let socket = loop {
        match SeqPacket::connect(&path) {
            Ok(socket) => break socket,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    // Version 1 of the protocol, by which it greets.
    if socket.send(&[0x08, 0x01], None).await.is_err() {
        return;
    }
    while let Ok(mut packet) = socket.recv(1024).await
        && !packet.is_end()
    {
        let request = WorkloadRequest::decode(packet.bytes.as_slice()).expect("a request");
        let heard = match request.payload.expect("a payload") {
            Payload::Add(add) => {
                let netns = Netns::from_fd(packet.fds.remove(0)).expect("a namespace");
                let account = add.workload_info.expect("who it is").service_account;
                format!("add {} {account} {}", add.uid, netns.id().ino)
            }
            Payload::Keep(keep) => format!("keep {}", keep.uid),
            Payload::Del(del) => format!("del {}", del.uid),
            Payload::Release(release) => format!("release {}", release.uid),
            Payload::SnapshotSent(_) => "snapshot".to_owned(),
        };
        let ack = WorkloadResponse {
            payload: Some(workload_response::Payload::Ack(Ack::default())),
        };
        if socket.send(&ack.encode_to_vec(), None).await.is_err() || told.send(heard).is_err() {
            return;
        }
    }
}

/// The namespace `shop`, in the mesh or not.
fn shop(meshed: bool) -> Value {
    let mut shop = namespace("shop");
    if meshed {
        shop["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "ambient"});
    }
    shop
}

#[tokio::test]
async fn a_pod_of_this_node_is_captured_and_annotated_until_its_label_goes() -> Result<()> {
    let ip = Ipv4Addr::new(10, 1, 0, 1);
    let (web, other) = (
        pod("web", "10.1.0.1"),
        running("shop", "other", "default", "node-b", "10.1.0.2"),
    );
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let node_a = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"taints": [taint("cni.istio.io/not-ready"), taint("another")]},
    });
    let mut node_b = node_a.clone();
    node_b["metadata"]["name"] = json!("node-b");
    let objects = [web.clone(), other.clone(), node_a.clone(), node_b.clone()];
    let mut node = Node::start(&objects).await?;
    node.until("it takes pods", async |node| {
        let found = node.cluster.get(&node_a).await.unwrap_or_default();
        let taints = found["spec"]["taints"].as_array().cloned();
        let taints = taints.unwrap_or_default();
        let has = |key: &str| taints.iter().any(|taint| taint["key"] == key);
        has("another") && !has("cni.istio.io/not-ready")
    })
    .await?;
    let uid = node.uid(&web).await?;
    let sandbox = Sandbox::new("web", uid.clone(), ip)?;
    node.plugin("ADD", &sandbox).await?;
    node.hears(&sandbox.served()).await?;
    assert!(sandbox.has_rules()?);
    node.is_annotated(&web, Some("enabled")).await?;
    let found = node.cluster.get(&web).await?;
    assert_eq!(
        found["status"]["podIP"], "10.1.0.1",
        "nothing else is touched"
    );
    // Another node's is none of its business.
    let foreign = Sandbox::new("other", node.uid(&other).await?, Ipv4Addr::new(10, 1, 0, 2))?;
    let refused = node.plugin("ADD", &foreign).await.expect_err("of node-b");
    assert!(refused.to_string().contains("other"), "{refused}");
    assert!(!foreign.has_rules()?);

    node.cluster.put(&shop(false)).await?;
    node.hears(&format!("del {uid}")).await?;
    node.is_annotated(&web, None).await?;
    node.until("released", async |_| !sandbox.has_rules().unwrap_or(true))
        .await?;

    node.cluster.put(&shop(true)).await?;
    node.hears(&sandbox.served()).await?;
    node.is_annotated(&web, Some("enabled")).await?;

    // Another pod of the same name is another pod.
    node.cluster.delete(&web).await?;
    node.hears(&format!("del {uid}")).await?;
    node.cluster.put(&web).await?;
    let next = Sandbox::new("web", node.uid(&web).await?, ip)?;
    node.plugin("ADD", &next).await?;
    node.hears(&next.served()).await?;
    node.is_annotated(&web, Some("enabled")).await?;

    // A word that comes late finds another pod, or none, and makes none.
    let connection = Connection::open(Some(&node.cluster.kubeconfig())).await?;
    let writer = StatusWriter::to_server(connection.client()?, "redirect")?;
    let gone = pod("gone", "10.1.0.4");
    let written = tokio::task::spawn_blocking(move || {
        ["web", "gone"].map(|name| {
            let key = ObjectKey::namespaced(Kind::Pod, "shop", name);
            writer.annotate(&key, &uid, REDIRECTION, Some("pending"))
        })
    });
    for written in written.await? {
        assert_ne!(written?, Written::Changed);
    }
    node.is_annotated(&web, Some("enabled")).await?;
    assert!(node.cluster.get(&gone).await.is_err());

    // Its rights end where its node ends, and with what it has to say there.
    let agent = Connection::kubeconfig(&node.cluster.folder().join("istio-cni.json")).await?;
    let agent = agent.client()?;
    let annotation = |key: &str| json!({"metadata": {"annotations": {(key): "enabled"}}});
    for (path, patch, allowed) in [
        (
            "nodes/node-b",
            json!({"spec": {"taints": [taint("another")]}}),
            false,
        ),
        ("nodes/node-a", json!({"spec": {"taints": null}}), false),
        (
            "nodes/node-a",
            json!({"spec": {"unschedulable": true}}),
            false,
        ),
        (
            "nodes/node-a",
            json!({"metadata": {"labels": {"a": "b"}}}),
            false,
        ),
        ("nodes/node-a", annotation("a"), false),
        (
            "namespaces/shop/pods/other/status",
            annotation(REDIRECTION),
            false,
        ),
        ("namespaces/shop/pods/web/status", annotation("a"), false),
        (
            "namespaces/shop/pods/web/status",
            json!({"status": {"message": "a"}}),
            false,
        ),
        (
            "namespaces/shop/pods/web/status",
            annotation(REDIRECTION),
            true,
        ),
    ] {
        let request = Request::patch(format!("/api/v1/{path}"))
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(patch.to_string().into_bytes())?;
        let answer = agent.call(request).await;
        match allowed {
            true => drop(answer.with_context(|| format!("{path} {patch}"))?),
            false => {
                let refused = answer
                    .err()
                    .with_context(|| format!("{path} {patch}: allowed"))?;
                ensure!(
                    refused.to_string().contains("an agent "),
                    "{path} {patch}: {refused}"
                );
            }
        }
    }

    // Another agent follows: no pod may start unasked until then.
    node.end_agent().await?;
    assert_eq!(node.configurations()?, [INSTALLED, PRIMARY]);
    Ok(())
}

#[tokio::test]
async fn while_the_server_is_lost_pods_stay_captured_and_unknown_ones_do_not_start() -> Result<()> {
    let (web, gone) = (pod("web", "10.1.0.1"), pod("gone", "10.1.0.2"));
    let mut node = Node::start(&[web.clone(), gone.clone()]).await?;
    let sandbox = Sandbox::new("web", node.uid(&web).await?, Ipv4Addr::new(10, 1, 0, 1))?;
    node.plugin("ADD", &sandbox).await?;
    node.hears(&sandbox.served()).await?;
    node.is_annotated(&web, Some("enabled")).await?;

    let second = Sandbox::new("gone", node.uid(&gone).await?, Ipv4Addr::new(10, 1, 0, 2))?;

    node.cluster.kill().await?;
    node.until("it notices", async |node| {
        node.log().contains("can't be followed")
    })
    .await?;
    // Its rules are looked at each second, and the pod's place in the mesh with them.
    tokio::time::sleep(Duration::from_secs(3)).await;
    node.plugin("CHECK", &sandbox).await?;
    assert!(sandbox.has_rules()?);
    let unknown = Sandbox::new("late", "u-late".to_owned(), Ipv4Addr::new(10, 1, 0, 3))?;
    let refused = node.plugin("ADD", &unknown).await.expect_err("not known");
    assert!(refused.to_string().contains("late"), "{refused}");
    // One that is known starts; its annotation follows when it can.
    node.plugin("ADD", &second).await?;
    node.hears(&second.served()).await?;
    assert!(second.has_rules()?);

    node.cluster.restart().await?;
    node.is_annotated(&gone, Some("enabled")).await?;
    node.cluster.delete(&gone).await?;
    node.hears(&format!("del {}", second.uid)).await?;
    let late = pod("late", "10.1.0.3");
    node.cluster.put(&late).await?;
    let late = Sandbox::new("late", node.uid(&late).await?, Ipv4Addr::new(10, 1, 0, 3))?;
    node.plugin("ADD", &late).await?;
    node.hears(&late.served()).await?;

    // Uninstalled: the node starts pods as it did before.
    assert_eq!(node.configurations()?, [INSTALLED, PRIMARY]);
    let daemons = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"namespace": "istio-system", "name": "istio-cni-node"},
    });
    node.cluster.delete(&daemons).await?;
    node.end_agent().await?;
    assert_eq!(node.configurations()?, [PRIMARY], "{}", node.log());
    Ok(())
}
