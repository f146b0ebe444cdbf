// SPDX-License-Identifier: Apache-2.0
//! A waypoint, a client whose tunnel leads to it, and applications outside of the mesh behind it.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hbone::wire::ConnectRequest;
use hbone::{BoxFuture, Dial, Pool, PoolKey, Stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use identity::testing::TestAuthority;
use identity::{Certificates, FixedCertificates};
use mesh::address::{GatewayDestination, NetworkAddress, Ports};
use mesh::workload::Membership;
use mesh::{GatewayAddress, NamespacedHostname, Service, Workload};
use ops::metrics::Metrics;
use ops::workers::Workers;
use proto::waypoint as wire;
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use waypoint::config::{Limits, Own};
use waypoint::listener;
use waypoint::otlp;
use waypoint::record::Recorder;
use waypoint::route;
use waypoint::settings::Settings;
use waypoint::state::State;
use waypoint::waypoint::{Parts, Waypoint};

pub(crate) const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";
pub(crate) const WAYPOINT: &str = "spiffe://cluster.local/ns/shop/sa/wp";

/// Where services are, as far as the client knows.
const VIP: [u8; 3] = [10, 96, 0];
const WAYPOINT_VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(crate) fn id(text: &str) -> SpiffeId {
    text.parse().unwrap()
}

/// Fails a test that hangs instead of letting it hang.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("not done within 20 s")
}

pub(crate) struct World {
    pub(crate) authority: Arc<TestAuthority>,
    pub(crate) state: Arc<State>,
    pub(crate) metrics: Metrics,
    waypoint: SocketAddr,
    process: Arc<Waypoint>,
    pool: Pool,
    services: u8,
    /// Its end would be a drain.
    shutdown: ops::shutdown::Shutdown,
}

impl World {
    pub(crate) async fn new() -> Self {
        let authority = Arc::new(TestAuthority::new("root"));
        let state = Arc::new(State::new());
        let metrics = Metrics::default();
        let workers = Workers::start(2).unwrap();
        let (shutdown, draining) = ops::shutdown::channel();
        let certificates = Certificates::new(
            Arc::clone(&authority) as Arc<dyn identity::CaClient>,
            identity::Config::default(),
            tokio::runtime::Handle::current(),
        );
        let waypoint = Arc::new(Waypoint::new(Parts {
            own: Own {
                gateway: "wp".into(),
                pod: "wp-1".into(),
                namespace: "shop".into(),
                service_account: "wp".into(),
                identity: id(WAYPOINT),
                address: LOCAL,
                node: "n".into(),
                network: "".into(),
                cluster_id: "Kubernetes".into(),
                istio_version: "unknown".into(),
                metadata: Default::default(),
            },
            state: Arc::clone(&state),
            certificates,
            recorder: Recorder::new(metrics.clone(), workers.count()),
            workers,
            hbone: hbone::Config::default(),
            limits: Limits {
                tunnels: 100,
                connections: 1000,
                requests_per_endpoint: 100,
                idle_connections: 100,
            },
            draining,
        }));
        let home = waypoint.workers.assign_home();
        let exporting = otlp::run(&waypoint, home);
        waypoint.workers.spawn(home, exporting);
        let listener = TcpListener::bind((LOCAL, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let process = Arc::clone(&waypoint);
        tokio::spawn(async move {
            while let Ok((socket, peer)) = listener.accept().await {
                tokio::spawn(listener::serve(Arc::clone(&waypoint), socket, peer));
            }
        });
        let own: FixedCertificates = [authority.issue(&id(CLIENT))].into_iter().collect();
        let mut world = Self {
            authority,
            state,
            metrics,
            waypoint: address,
            process,
            pool: Pool::new(hbone::Config::default(), Arc::new(own)),
            services: 1,
            shutdown,
        };
        world.introduce_the_waypoint();
        world.state.update_settings(Some(Settings::default()));
        world
    }

    fn introduce_the_waypoint(&mut self) {
        let mut gateway = Service::new("shop", "wp.shop.svc.cluster.local");
        gateway.vips = vec![vip(WAYPOINT_VIP)];
        gateway.ports = [(15008, 15008)].into_iter().collect();
        let mut pod = Workload::new("c//Pod/shop/wp-1", "shop", id(WAYPOINT));
        pod.name = "wp-1".into();
        pod.addresses = vec![LOCAL];
        pod.services = [member(&gateway.hostname, 15008, 15008)].into();
        self.state.update_mesh(|mesh| mesh.upsert_service(gateway));
        self.state.update_mesh(|mesh| mesh.upsert_workload(pod));
    }

    /// A service at port 80 that is bound to the waypoint, with applications at these ports.
    pub(crate) fn service(&mut self, name: &str, applications: &[SocketAddr]) -> SocketAddr {
        self.services += 1;
        let address = IpAddr::from([VIP[0], VIP[1], VIP[2], self.services]);
        let hostname = host(name);
        let mut service = Service::new("shop", &*hostname);
        service.name = name.into();
        service.vips = vec![vip(address)];
        service.ports = [(80, 0)].into_iter().collect();
        service.waypoint = Some(GatewayAddress {
            destination: GatewayDestination::Address(vip(WAYPOINT_VIP)),
            hbone_mtls_port: 15008,
        });
        self.state.update_mesh(|mesh| mesh.upsert_service(service));
        for (number, application) in applications.iter().enumerate() {
            let identity = id("spiffe://cluster.local/ns/shop/sa/app");
            let uid = format!("c//Pod/shop/{name}-{number}");
            let mut pod = Workload::new(uid, "shop", identity);
            pod.name = format!("{name}-{number}").into();
            pod.workload_name = name.into();
            // By an address of its own, so that it is never taken for the waypoint.
            pod.addresses = vec![application.ip()];
            pod.services = [member(&hostname, 80, application.port())].into();
            self.state.update_mesh(|mesh| mesh.upsert_workload(pod));
        }
        SocketAddr::new(address, 80)
    }

    /// A pod of no service that is bound to the waypoint itself.
    pub(crate) fn pod(&self, name: &str, application: SocketAddr) -> SocketAddr {
        let identity = id("spiffe://cluster.local/ns/shop/sa/app");
        let mut pod = Workload::new(format!("c//Pod/shop/{name}"), "shop", identity);
        pod.addresses = vec![application.ip()];
        pod.waypoint = Some(GatewayAddress {
            destination: GatewayDestination::Address(vip(WAYPOINT_VIP)),
            hbone_mtls_port: 15008,
        });
        self.state.update_mesh(|mesh| mesh.upsert_workload(pod));
        application
    }

    /// An endpoint of it that is known by a host name only.
    pub(crate) fn named(&self, name: &str, host_of_endpoint: &str) {
        let identity = id("spiffe://cluster.local/ns/shop/sa/app");
        let mut pod = Workload::new(format!("c//Endpoint/{name}"), "shop", identity);
        pod.hostname = host_of_endpoint.into();
        pod.services = [member(&host(name), 80, 80)].into();
        self.state.update_mesh(|mesh| mesh.upsert_workload(pod));
    }

    /// What the control plane says of a service's port.
    pub(crate) fn serve(&self, name: &str, protocol: wire::Protocol, routes: Vec<wire::HttpRule>) {
        self.tell(name, protocol, routes, (None, Vec::new()));
    }

    /// And of how its endpoints are chosen and spared.
    pub(crate) fn serve_by(
        &self,
        name: &str,
        protocol: wire::Protocol,
        routes: Vec<wire::HttpRule>,
        policy: Option<wire::TrafficPolicy>,
    ) {
        self.tell(name, protocol, routes, (policy, Vec::new()));
    }

    /// And of who may use it.
    pub(crate) fn serve_under(
        &self,
        name: &str,
        protocol: wire::Protocol,
        routes: Vec<wire::HttpRule>,
        policies: Vec<wire::Policy>,
    ) {
        self.tell(name, protocol, routes, (None, policies));
    }

    fn tell(
        &self,
        name: &str,
        protocol: wire::Protocol,
        routes: Vec<wire::HttpRule>,
        (policy, policies): (Option<wire::TrafficPolicy>, Vec<wire::Policy>),
    ) {
        let tables = if routes.is_empty() {
            vec![]
        } else {
            vec![wire::RouteTable {
                http: vec![wire::HttpRoute {
                    rate_limit: None,
                    kind: "HTTPRoute".into(),
                    namespace: "shop".into(),
                    name: "route".into(),
                    created: 1,
                    rules: routes,
                }],
                ..wire::RouteTable::default()
            }]
        };
        self.tell_tables(name, protocol, tables, (policy, policies));
    }

    pub(crate) fn serve_tables(
        &self,
        name: &str,
        protocol: wire::Protocol,
        tables: Vec<wire::RouteTable>,
        policy: Option<wire::TrafficPolicy>,
    ) {
        self.tell_tables(name, protocol, tables, (policy, Vec::new()));
    }

    /// With routes of any kind, and who may use it.
    pub(crate) fn serve_tables_under(
        &self,
        name: &str,
        protocol: wire::Protocol,
        tables: Vec<wire::RouteTable>,
        policies: Vec<wire::Policy>,
    ) {
        self.tell_tables(name, protocol, tables, (None, policies));
    }

    fn tell_tables(
        &self,
        name: &str,
        protocol: wire::Protocol,
        tables: Vec<wire::RouteTable>,
        (policy, policies): (Option<wire::TrafficPolicy>, Vec<wire::Policy>),
    ) {
        let message = wire::Service {
            namespace: "shop".into(),
            hostname: host(name).to_string(),
            ports: vec![wire::Port {
                number: 80,
                protocol: protocol.into(),
                tables,
                traffic_policy: policy.map(Box::new),
            }],
            policies,
            token_rules: Vec::new(),
            telemetry: None,
        };
        let service = route::Service::compile(&message).unwrap();
        let key = NamespacedHostname::new("shop", host(name));
        self.state.update_served(vec![(key, service)], &[]);
    }

    /// Asks the waypoint to end.
    pub(crate) fn drain(&self) {
        self.shutdown.start();
    }

    /// A connection of the client's to an address, as its node's proxy would open it.
    pub(crate) async fn connect(&self, to: SocketAddr) -> Stream {
        self.try_connect(to).await.unwrap()
    }

    /// The same, where it may be refused.
    pub(crate) async fn try_connect(&self, to: SocketAddr) -> Result<Stream, String> {
        let key = PoolKey {
            source: id(CLIENT),
            destination: Arc::new([id(WAYPOINT)]),
            address: self.waypoint,
            source_ip: LOCAL,
        };
        let opened = self
            .pool
            .open(&key, &Loopback, ConnectRequest::new(to.into()));
        let opened = soon(opened).await;
        opened
            .map(|opened| opened.0)
            .map_err(|error| error.to_string())
    }

    /// What is told of everything, but for services that say otherwise.
    pub(crate) fn tell_by(&self, telemetry: &wire::Telemetry) {
        self.state.update_settings(Some(Settings {
            telemetry: waypoint::telemetry::compiled(Some(telemetry), "wp"),
            ..Settings::default()
        }));
    }

    /// The process itself.
    pub(crate) fn process(&self) -> &Waypoint {
        &self.process
    }

    /// What was refused, oldest first.
    pub(crate) fn refusals(&self) -> Vec<waypoint::record::Refusal> {
        self.process.recorder.refusals().latest()
    }

    /// What the process does at each change.
    pub(crate) fn decide_again(&self) -> usize {
        self.process.decide_again()
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, to: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
        let stream = self.connect(to).await;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        answer(soon(sender.send_request(request)).await.unwrap()).await
    }

    pub(crate) async fn get(&self, to: SocketAddr, path: &str) -> Answer {
        self.ask(to, get(path)).await
    }

    /// Waits until a metric is exposed whose line holds all of these.
    pub(crate) async fn until_counted(&self, parts: &[&str]) {
        let looking = async {
            loop {
                let page = self.metrics.render();
                let is_there = |line: &str| parts.iter().all(|part| line.contains(part));
                if page.lines().any(is_there) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(5), looking).await;
        assert!(found.is_ok(), "{parts:?} in {}", self.metrics.render());
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
    pub(crate) trailers: Option<http::HeaderMap>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    /// What the application saw of the request.
    pub(crate) fn seen(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) async fn answer(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = soon(body.collect()).await.unwrap();
    let trailers = body.trailers().cloned();
    Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::from_utf8(body.to_bytes().to_vec()).unwrap(),
        trailers,
    }
}

pub(crate) fn get(path: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .uri(path)
        .header("host", "app.shop")
        .body(Full::default())
        .unwrap()
}

/// An application that says what it saw, over HTTP/1.1.
pub(crate) async fn application(name: &'static str) -> SocketAddr {
    speaking(move |request| async move { echoed(name, request).await }).await
}

pub(crate) async fn echoed(name: &str, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes());
    let body = body.unwrap_or_default();
    let headers: serde_json::Map<_, _> = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or("?").into()))
        .collect();
    let seen = serde_json::json!({
        "app": name,
        "method": head.method.as_str(),
        "uri": head.uri.to_string(),
        "version": format!("{:?}", head.version),
        "headers": headers,
        "bytes": body.len(),
    });
    let mut response = Response::new(Full::from(seen.to_string()));
    let headers = response.headers_mut();
    headers.insert("x-app", name.parse().unwrap());
    // Of this connection: nobody else's business.
    headers.insert("keep-alive", "timeout=5".parse().unwrap());
    response
}

/// An application that answers as it likes.
pub(crate) async fn speaking<F, Fut>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(converse(socket, answer.clone()));
        }
    });
    address
}

/// An application that sends back whatever it gets.
pub(crate) async fn echo() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = socket.into_split();
                // A client that leaves is no news.
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

pub(crate) async fn converse<F, Fut>(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    answer: F,
) where
    F: Fn(Request<Incoming>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answering = answer(request);
        async move { Ok::<_, Infallible>(answering.await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(socket), service)
        .await;
    // A client that leaves is no news.
    let _ = served;
}

struct Loopback;

impl Dial for Loopback {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, std::io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(to))
    }
}

pub(crate) fn host(name: &str) -> Arc<str> {
    format!("{name}.shop.svc.cluster.local").into()
}

fn vip(address: IpAddr) -> NetworkAddress {
    NetworkAddress {
        network: "".into(),
        address,
    }
}

pub(crate) fn member(hostname: &str, port: u16, target: u16) -> Membership {
    Membership {
        service: NamespacedHostname::new("shop", hostname),
        ports: [(port, target)].into_iter().collect::<Ports>(),
    }
}
