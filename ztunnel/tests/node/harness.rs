// SPDX-License-Identifier: Apache-2.0
//! A node, two pods on one wire, an agent that hands them over, and the real binary.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use capture::Netns;
use capture::seqpacket::{SeqPacket, SeqPacketListener};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;
use proto::security::{Authorization, Clause, Match, Rule, StringMatch, string_match};
use proto::workload::{
    Address, NetworkAddress, Port, PortList, Service, TunnelProtocol, Workload, address,
};
use proto::zds::{
    Ack, AddWorkload, DelWorkload, ReleaseWorkload, SnapshotSent, WorkloadInfo, WorkloadRequest,
    WorkloadResponse, workload_request, workload_response,
};
use rtnetlink::{LinkUnspec, LinkVeth};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::control_plane::{self, ControlPlane};

pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Address of the service in front of the server; see the module's head for why it is the client's own.
pub(crate) const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 9);
/// On the client's loopback too, and unknown to the mesh.
pub(crate) const UNKNOWN: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 8);
pub(crate) const APPLICATION_PORT: u16 = 8080;
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Node {
    pub(crate) client: Netns,
    pub(crate) server: Netns,
    pub(crate) plane: ControlPlane,
    /// Where the process is.
    pub(crate) netns: Netns,
    dir: TempDir,
    listener: SeqPacketListener,
    process: Child,
}

/// The agent's end of a connection.
pub(crate) struct Agent(SeqPacket);

impl Node {
    /// Everything up to a ready process that serves both pods, and an application that echoes in the server's pod.
    pub(crate) async fn start(policies: Vec<Authorization>) -> (Self, Agent) {
        let node = Self::start_without_pods(policies).await;
        let agent = node.accept_agent().await;
        node.hand_over(&agent).await;
        node.until_ready().await;
        (node, agent)
    }

    /// As [`Self::start`], with variables of its own.
    pub(crate) async fn start_set(
        policies: Vec<Authorization>,
        settings: &[(&str, &str)],
    ) -> (Self, Agent) {
        let node = Self::build(addresses(vec![]), policies, settings);
        let agent = node.accept_agent().await;
        node.hand_over(&agent).await;
        node.until_ready().await;
        (node, agent)
    }

    pub(crate) async fn start_without_pods(policies: Vec<Authorization>) -> Self {
        Self::start_with(policies, vec![]).await
    }

    pub(crate) async fn start_with(
        policies: Vec<Authorization>,
        named_policies: Vec<String>,
    ) -> Self {
        Self::build(addresses(named_policies), policies, &[])
    }

    /// As [`Self::start`], with variables of the test's own.
    pub(crate) async fn start_with_settings(settings: &[(&str, &str)]) -> (Self, Agent) {
        let node = Self::build(addresses(vec![]), vec![], settings);
        let agent = node.accept_agent().await;
        node.hand_over(&agent).await;
        node.until_ready().await;
        (node, agent)
    }

    /// The control plane only signs certificates; all else stands in the file.
    pub(crate) async fn start_from_file(text: &str) -> Self {
        Self::build(vec![], vec![], &[("XDS_ADDRESS", ""), ("LOCAL_XDS", text)])
    }

    fn build(
        addresses: Vec<Address>,
        policies: Vec<Authorization>,
        settings: &[(&str, &str)],
    ) -> Self {
        let [netns, client, server] = std::array::from_fn(|_| Netns::create().expect("needs root"));
        for netns in [&netns, &client, &server] {
            netns.loopback_up().unwrap();
        }
        wire(&client, &server);
        echo_in(&server);
        let plane = ControlPlane::start(&netns, addresses, policies);
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("root.pem"), plane.root_pem()).unwrap();
        let listener = SeqPacketListener::bind(dir.path().join("agent.sock")).unwrap();
        let process = run_in(&netns, &dir, settings);
        Self {
            client,
            server,
            plane,
            netns,
            dir,
            listener,
            process,
        }
    }

    pub(crate) async fn accept_agent(&self) -> Agent {
        accept(&self.listener).await
    }

    /// A second process for the same pods, as during an upgrade: elsewhere, with the mesh from a text.
    pub(crate) async fn overlap(&self, text: &str) -> Overlap {
        let netns = Netns::create().unwrap();
        netns.loopback_up().unwrap();
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("root.pem"), self.plane.root_pem()).unwrap();
        let listener = SeqPacketListener::bind(dir.path().join("agent.sock")).unwrap();
        let process = run_in(&netns, &dir, &[("XDS_ADDRESS", ""), ("LOCAL_XDS", text)]);
        let agent = accept(&listener).await;
        self.hand_over(&agent).await;
        Overlap {
            process,
            _agent: agent,
            _listener: listener,
            _dir: dir,
        }
    }

    /// A second process in the same place, which takes over from the first.
    pub(crate) fn start_successor(&self, log: &'static str, settings: &[(&str, &str)]) -> Other {
        Other {
            process: run_logging(&self.netns, &self.dir, log, settings),
            log: self.dir.path().join(log),
        }
    }

    /// Where processes hand over.
    pub(crate) fn handover_socket(&self) -> PathBuf {
        self.dir.path().join("agent.handover")
    }

    /// Adds both pods and ends the snapshot.
    pub(crate) async fn hand_over(&self, agent: &Agent) {
        assert_eq!(agent.add("client", &self.client).await, "");
        assert_eq!(agent.add("server", &self.server).await, "");
        let sent = workload_request::Payload::SnapshotSent(SnapshotSent {});
        assert_eq!(agent.ask(sent).await, "");
    }

    pub(crate) async fn until_ready(&self) {
        self.eventually("ready", |node| {
            node.get(15021, "/healthz/ready").contains(" 200 ")
        })
        .await;
    }

    pub(crate) async fn eventually(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < end, "never: {what}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What the process has logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Waits for an access log line that holds all of these.
    pub(crate) async fn logged(&self, parts: &[&str]) -> String {
        let find = |node: &Self| {
            let log = node.log();
            log.lines()
                .find(|line| parts.iter().all(|part| line.contains(part)))
                .map(str::to_owned)
        };
        self.eventually(&format!("{parts:?} in the log"), |node| {
            find(node).is_some()
        })
        .await;
        find(self).unwrap()
    }

    /// Sum of a counter's samples that carry all of these labels.
    pub(crate) fn counted(&self, name: &str, labels: &[&str]) -> u64 {
        let page = self.get(15020, "/metrics");
        let wanted = |line: &&str| {
            line.starts_with(&format!("{name}{{"))
                && labels.iter().all(|label| line.contains(label))
        };
        page.lines()
            .filter(wanted)
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    /// An answer of one of the process's own ports; empty while there is none.
    pub(crate) fn get(&self, port: u16, path: &str) -> String {
        let answer = self.ask(port, &format!("GET {path}"), "");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// As [`Self::get`], for any method and with further headers, each with its line end.
    pub(crate) fn ask(&self, port: u16, method_and_path: &str, headers: &str) -> Vec<u8> {
        let ask = || -> std::io::Result<Vec<u8>> {
            let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            write!(
                socket,
                "{method_and_path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n"
            )?;
            let mut answer = Vec::new();
            socket.read_to_end(&mut answer)?;
            Ok(answer)
        };
        self.netns.enter(ask).unwrap().unwrap_or_default()
    }

    /// Connects as the client's application to the service.
    pub(crate) fn connect(&self) -> std::io::Result<TcpStream> {
        self.connect_from(CLIENT, SERVICE)
    }

    pub(crate) fn connect_from(&self, from: Ipv4Addr, to: Ipv4Addr) -> std::io::Result<TcpStream> {
        let socket = self
            .client
            .enter(|| Socket::new(Domain::IPV4, Type::STREAM, None))
            .unwrap()?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&SocketAddr::from((to, 15001)).into(), PATIENCE)?;
        let socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    /// Connects from the client's pod to an address as it is, past its own proxy.
    pub(crate) fn connect_plainly(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let socket = self.client.enter(|| TcpStream::connect(to)).unwrap()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    /// Descriptors that the process holds now.
    pub(crate) fn descriptors(&self) -> u64 {
        let folder = format!("/proc/{}/fd", self.process.id());
        std::fs::read_dir(folder).unwrap().count() as u64
    }

    /// Allows the process so many descriptors; those it holds stay.
    pub(crate) fn limit_descriptors(&self, most: u64) {
        use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        let pid = Pid::from_raw(self.process.id().try_into().unwrap());
        let limit = Rlimit {
            current: Some(most),
            maximum,
        };
        prlimit(pid, Resource::Nofile, limit).unwrap();
    }

    pub(crate) fn terminate(&self) {
        let process = Pid::from_raw(self.process.id().try_into().unwrap());
        kill(process, Signal::SIGTERM).unwrap();
    }

    pub(crate) async fn exited(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "still running\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

/// A second process and what it needs.
/// Another process on the same node.
pub(crate) struct Other {
    process: Child,
    log: PathBuf,
}

impl Other {
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) async fn logged(&self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < end, "never: {text}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) async fn exited(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "still running\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) struct Overlap {
    process: Child,
    _agent: Agent,
    _listener: SeqPacketListener,
    _dir: TempDir,
}

impl Drop for Overlap {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn accept(listener: &SeqPacketListener) -> Agent {
    let agent = within(listener.accept()).await.unwrap();
    let hello = within(agent.recv(64)).await.unwrap();
    assert_eq!(hello.bytes[..2], [0x08, 0x01]);
    Agent(agent)
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Agent {
    pub(crate) async fn add(&self, name: &str, netns: &Netns) -> String {
        let info = WorkloadInfo {
            name: name.into(),
            namespace: "default".into(),
            service_account: name.into(),
        };
        let add = AddWorkload {
            uid: format!("uid-{name}"),
            workload_info: Some(info),
        };
        let request = WorkloadRequest {
            payload: Some(workload_request::Payload::Add(add)),
        };
        self.0
            .send(&request.encode_to_vec(), Some(netns.as_fd()))
            .await
            .unwrap();
        self.acknowledged().await
    }

    pub(crate) async fn delete(&self, name: &str) -> String {
        self.ask(workload_request::Payload::Del(DelWorkload {
            uid: format!("uid-{name}"),
        }))
        .await
    }

    /// Lets a pod go: how many connections it still has, and whether the control plane calls it plain.
    pub(crate) async fn release(&self, name: &str) -> Result<(u64, bool), String> {
        let release = workload_request::Payload::Release(ReleaseWorkload {
            uid: format!("uid-{name}"),
        });
        let ack = self.exchange(release).await;
        match ack.release {
            Some(release) => Ok((release.open, release.plain)),
            None => Err(ack.error),
        }
    }

    pub(crate) async fn ask(&self, payload: workload_request::Payload) -> String {
        self.exchange(payload).await.error
    }

    async fn exchange(&self, payload: workload_request::Payload) -> Ack {
        self.send(
            &WorkloadRequest {
                payload: Some(payload),
            }
            .encode_to_vec(),
        )
        .await;
        self.ack().await
    }

    pub(crate) async fn send(&self, bytes: &[u8]) {
        self.0.send(bytes, None).await.unwrap();
    }

    /// The error of the next acknowledgement; empty is success.
    pub(crate) async fn acknowledged(&self) -> String {
        self.ack().await.error
    }

    async fn ack(&self) -> Ack {
        let packet = within(self.0.recv(4096)).await.unwrap();
        assert!(!packet.is_end(), "closed instead of acknowledged");
        let response = WorkloadResponse::decode(packet.bytes.as_slice()).unwrap();
        let Some(workload_response::Payload::Ack(ack)) = response.payload else {
            panic!("no ack")
        };
        ack
    }

    pub(crate) async fn closed(&self) -> bool {
        within(self.0.recv(4096)).await.unwrap().is_end()
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work)
        .await
        .expect("takes too long")
}

/// Sends and reads back.
pub(crate) fn echoes(socket: &mut TcpStream, text: &[u8]) -> std::io::Result<()> {
    socket.write_all(text)?;
    let mut answer = vec![0; text.len()];
    socket.read_exact(&mut answer)?;
    assert_eq!(answer, text);
    Ok(())
}

/// Whether the connection ends by RST and nothing else.
pub(crate) fn is_reset(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    let error = socket.read_to_end(&mut rest).err();
    rest.is_empty()
        && error.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Whether a connection was made and reset, which its client may hear of before it hears that it was made.
pub(crate) fn is_refused(connected: std::io::Result<TcpStream>) -> bool {
    match connected {
        Ok(mut socket) => is_reset(&mut socket),
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

pub(crate) fn deny_client(name: &str) -> Authorization {
    let principal = StringMatch {
        match_type: Some(string_match::MatchType::Exact(
            "cluster.local/ns/default/sa/client".into(),
        )),
    };
    let matched = Match {
        principals: vec![principal],
        ..Match::default()
    };
    let rule = Rule {
        clauses: vec![Clause {
            matches: vec![matched],
        }],
    };
    Authorization {
        name: name.into(),
        namespace: "default".into(),
        scope: proto::security::Scope::Namespace.into(),
        action: proto::security::Action::Deny.into(),
        rules: vec![rule],
        ..Authorization::default()
    }
}

/// Lets everybody in; only workloads that name it are concerned.
pub(crate) fn allow_all(name: &str) -> Authorization {
    Authorization {
        name: name.into(),
        namespace: "default".into(),
        scope: proto::security::Scope::WorkloadSelector.into(),
        action: proto::security::Action::Allow.into(),
        rules: vec![Rule::default()],
        ..Authorization::default()
    }
}

/// The server as the control plane tells of it once it has left the mesh.
pub(crate) fn plain_server() -> Address {
    changed_server(|workload| workload.tunnel_protocol = TunnelProtocol::None.into())
}

/// The server as a control plane tells of it that says which pod it is.
pub(crate) fn server_of(pod_uid: &str) -> Address {
    changed_server(|workload| workload.pod_uid = pod_uid.into())
}

fn changed_server(change: impl FnOnce(&mut Workload)) -> Address {
    let mut server = addresses(vec![]).remove(1);
    if let Some(address::Type::Workload(workload)) = &mut server.r#type {
        change(workload);
    }
    server
}

fn addresses(named_policies: Vec<String>) -> Vec<Address> {
    let workload = |name: &str, ip: Ipv4Addr| Workload {
        uid: format!("c//Pod/default/{name}"),
        name: name.into(),
        namespace: "default".into(),
        service_account: name.into(),
        trust_domain: "cluster.local".into(),
        addresses: vec![ip.octets().to_vec().into()],
        tunnel_protocol: TunnelProtocol::Hbone.into(),
        node: "n1".into(),
        canonical_name: name.into(),
        workload_name: name.into(),
        cluster_id: "Kubernetes".into(),
        ..Workload::default()
    };
    let port = Port {
        service_port: 15001,
        target_port: u32::from(APPLICATION_PORT),
        ..Port::default()
    };
    let hostname = "echo.default.svc.cluster.local";
    let service = Service {
        name: "echo".into(),
        namespace: "default".into(),
        hostname: hostname.into(),
        addresses: vec![NetworkAddress {
            address: SERVICE.octets().to_vec().into(),
            ..NetworkAddress::default()
        }],
        ports: vec![port],
        ..Service::default()
    };
    let server = Workload {
        services: [(
            format!("default/{hostname}"),
            PortList { ports: vec![port] },
        )]
        .into(),
        authorization_policies: named_policies,
        ..workload("server", SERVER)
    };
    [
        address::Type::Workload(workload("client", CLIENT)),
        address::Type::Workload(server),
        address::Type::Service(service),
    ]
    .into_iter()
    .map(|kind| Address { r#type: Some(kind) })
    .collect()
}

fn run_in(node: &Netns, dir: &TempDir, settings: &[(&str, &str)]) -> Child {
    run_logging(node, dir, "log", settings)
}

fn run_logging(node: &Netns, dir: &TempDir, log: &str, settings: &[(&str, &str)]) -> Child {
    let path: PathBuf = dir.path().into();
    let resolver = format!("nameserver {SERVER}\noptions timeout:1 attempts:1\n");
    std::fs::write(path.join("resolv.conf"), resolver).unwrap();
    let log = std::fs::File::create(path.join(log)).unwrap();
    let settings: Vec<_> = settings
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    let start = move || {
        let url = format!("https://localhost:{}", control_plane::PORT);
        Command::new(env!("CARGO_BIN_EXE_ztunnel"))
            .env_clear()
            .env("NODE_NAME", "n1")
            .env("XDS_ADDRESS", &url)
            .env("XDS_ROOT_CA", path.join("root.pem"))
            .env("CA_ADDRESS", &url)
            .env("CA_ROOT_CA", path.join("root.pem"))
            .env("INPOD_UDS", path.join("agent.sock"))
            // Keeping it takes the node agent's routing rules, which are not there.
            .env("ENABLE_ORIG_SRC", "false")
            .env("RESOLV_CONF", "resolv.conf")
            .env("RUST_LOG", "info,ztunnel=debug")
            .envs(settings)
            .current_dir(&path)
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap()
    };
    // A child is born into the namespace of the thread that makes it.
    node.spawn_thread_in("spawn", start)
        .unwrap()
        .join()
        .unwrap()
        .unwrap()
}

fn echo_in(pod: &Netns) {
    let listener = pod
        .enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, APPLICATION_PORT)))
        .unwrap()
        .unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(mut socket) = socket else { return };
            std::thread::spawn(move || {
                let Ok(mut writer) = socket.try_clone() else {
                    return;
                };
                let _ = std::io::copy(&mut socket, &mut writer);
                let _ = writer.shutdown(std::net::Shutdown::Write);
            });
        }
    });
}

/// One link between the two pods, and the addresses on it.
fn wire(client: &Netns, server: &Netns) {
    let peer = server.clone();
    let client_side = async move |links: rtnetlink::Handle| {
        use std::os::fd::AsRawFd;
        links
            .link()
            .add(LinkVeth::new("eth0", "peer0").build())
            .execute()
            .await
            .unwrap();
        let moved = LinkUnspec::new_with_name("peer0")
            .setns_by_fd(peer.as_fd().as_raw_fd())
            .build();
        links.link().set(moved).execute().await.unwrap();
        set_up(&links, "eth0", &[CLIENT], 24).await;
        set_up(&links, "lo", &[SERVICE, UNKNOWN], 32).await;
    };
    netlink_in(client, client_side);
    netlink_in(server, async |links: rtnetlink::Handle| {
        set_up(&links, "peer0", &[SERVER], 24).await
    });
}

fn netlink_in(pod: &Netns, work: impl AsyncFnOnce(rtnetlink::Handle) + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let (connection, links, _) = rtnetlink::new_connection().unwrap();
            tokio::spawn(connection);
            work(links).await;
        });
    };
    pod.spawn_thread_in("netlink", run)
        .unwrap()
        .join()
        .unwrap()
        .unwrap();
}

async fn set_up(links: &rtnetlink::Handle, name: &str, addresses: &[Ipv4Addr], prefix: u8) {
    let c_name = std::ffi::CString::new(name).unwrap();
    let index = nix::net::if_::if_nametoindex(c_name.as_c_str()).unwrap();
    for address in addresses {
        links
            .address()
            .add(index, IpAddr::V4(*address), prefix)
            .execute()
            .await
            .unwrap();
    }
    links
        .link()
        .set(LinkUnspec::new_with_index(index).up().build())
        .execute()
        .await
        .unwrap();
}
