// SPDX-License-Identifier: Apache-2.0
//! Records of connections on their way to collectors, by OTLP over gRPC.
//!
//! Whoever closes a connection leaves its record and goes on; control work's thread sends. A collector is a service that the
//! mesh knows, and is connected to from this process's own namespace, in plain: this process has no identity of the mesh.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::Uri;
use hyper_util::rt::TokioIo;
use mesh::balance::{Address, choose_address, draw, permitted, preferred};
use mesh::{NoEndpoint, PortRule, Seen, Workload};
use ops::export::{Deliver, Outgoing};
use proto::opentelemetry::proto as otlp;
use spiffe::{SpiffeId, TrustDomain};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::config::Node;
use crate::endpoints::Endpoints;
use crate::mesh_state::MeshState;
use crate::record::Labels;
use crate::telling::Collector;

use otlp::collector::logs::v1::{ExportLogsServiceRequest, logs_service_client::LogsServiceClient};
use otlp::common::v1::{AnyValue, KeyValue, any_value::Value};
use otlp::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use otlp::resource::v1::Resource;

/// How long a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// By what collectors are found.
#[derive(Clone)]
pub struct Finder {
    pub mesh: Arc<MeshState>,
    pub endpoints: Arc<Endpoints>,
    /// The node's own: an address of another may be somebody else's here.
    pub network: Arc<str>,
}

/// Sends what is left, for as long as the process lives.
pub async fn run(outgoing: Outgoing<Arc<Collector>, LogRecord>, finder: Finder, node: &Node) {
    let resource = this(node);
    let open = |to: &Arc<Collector>| Lane {
        channel: channel_to(finder.clone(), Arc::clone(to)),
        resource: resource.clone(),
    };
    outgoing.run(open).await;
}

struct Lane {
    channel: Channel,
    resource: Resource,
}

impl Deliver<LogRecord> for Lane {
    async fn deliver(&mut self, log_records: Vec<LogRecord>) -> Result<(), String> {
        let request = ExportLogsServiceRequest {
            resource_logs: vec![ResourceLogs {
                resource: Some(self.resource.clone()),
                scope_logs: vec![ScopeLogs { log_records }],
            }],
        };
        let mut client = LogsServiceClient::new(self.channel.clone());
        let answer = client.export(request).await;
        answer.map(|_| ()).map_err(|status| {
            let cause = std::error::Error::source(&status).map(ToString::to_string);
            format!("{}: {}", status.message(), cause.unwrap_or_default())
        })
    }
}

fn channel_to(finder: Finder, to: Arc<Collector>) -> Channel {
    let connector = tower::service_fn(move |_: Uri| {
        let found = finder.find(&to);
        async move {
            let address = found.map_err(io::Error::other)?;
            Ok::<_, io::Error>(TokioIo::new(TcpStream::connect(address).await?))
        }
    });
    Endpoint::from_static("http://collector")
        .timeout(PATIENCE)
        .connect_timeout(PATIENCE)
        .connect_with_connector_lazy(connector)
}

impl Finder {
    /// An endpoint of a collector.
    fn find(&self, to: &Collector) -> Result<SocketAddr, String> {
        let store = self.mesh.read();
        let service = match &*to.namespace {
            "" => store.services_by_host(&to.hostname).next(),
            namespace => store.service(namespace, &to.hostname),
        };
        let service =
            service.ok_or_else(|| format!("{} is no service of the mesh", to.hostname))?;
        let standings = self.endpoints.standings();
        let seen = Seen {
            standings: &standings,
            tried: &[],
            now: Instant::now(),
        };
        // Nobody of the mesh, anywhere on this network.
        let nobody = SpiffeId::new(&TrustDomain::default(), "-", "-").map_err(|e| e.to_string())?;
        let mut source = Workload::new("", "", nobody);
        source.network = self.network.clone();
        let rule = PortRule::Defined;
        let all = permitted(&store, service, &source, to.port, rule, seen.tried);
        let mut here = all.map_err(|none| format!("{}: {none}", to.hostname))?;
        here.retain(|(workload, _)| workload.network == self.network);
        if here.is_empty() {
            return Err(format!(
                "{} has no endpoint on this network ({:?})",
                to.hostname, self.network
            ));
        }
        let chosen = draw(
            &preferred(here, service, &source, seen),
            |(workload, _)| u64::from(workload.capacity),
            |_| 0,
            &mut rand::rng(),
        );
        let (workload, port) =
            chosen.ok_or_else(|| format!("{}: {}", to.hostname, NoEndpoint::NoCapacity))?;
        let anywhere = IpAddr::from([0, 0, 0, 0]);
        match choose_address(workload, Some(service), anywhere) {
            Address::Ip(ip) => Ok(SocketAddr::new(ip, port)),
            Address::Hostname(_) | Address::Unreachable => {
                Err(format!("{}: {} has no address", to.hostname, workload.uid))
            }
        }
    }
}

/// Who tells it.
fn this(node: &Node) -> Resource {
    let attributes = [
        ("service.name", "ztunnel"),
        ("k8s.cluster.name", &*node.cluster_id),
        ("k8s.namespace.name", node.pod_namespace.as_str()),
        ("k8s.pod.name", node.pod_name.as_str()),
        ("k8s.node.name", node.name.as_deref().unwrap_or_default()),
    ];
    let attributes = attributes.into_iter();
    let known = attributes.filter(|(_, value)| !value.is_empty());
    Resource {
        attributes: known.map(|(key, value)| text(key, value)).collect(),
    }
}

/// A connection that has ended.
pub struct Ended<'c> {
    pub labels: &'c Labels,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub authority: Option<&'c str>,
    pub took: Duration,
    /// What the pod has sent, and what it got.
    pub bytes: [u64; 2],
    pub flag: &'static str,
    pub error: Option<String>,
}

/// The record of a connection, with the names that the log has.
pub fn record(ended: &Ended<'_>) -> LogRecord {
    let labels = ended.labels;
    let (from, to) = (&labels.source, &labels.destination);
    let service = labels.service.as_ref();
    let identity = |id: Option<&SpiffeId>| id.map(|id| id.as_str().to_owned());
    let texts = [
        ("src.addr", Some(ended.source.to_string())),
        ("src.workload", from.log_name().map(str::to_owned)),
        ("src.namespace", Some(from.namespace.to_string())),
        ("src.identity", identity(labels.source_identity())),
        ("dst.addr", Some(ended.destination.to_string())),
        ("dst.hbone_addr", ended.authority.map(str::to_owned)),
        (
            "dst.service",
            service.map(|service| service.hostname.to_string()),
        ),
        ("dst.workload", to.log_name().map(str::to_owned)),
        ("dst.namespace", Some(to.namespace.to_string())),
        ("dst.identity", identity(labels.destination_identity())),
        ("direction", Some(labels.reporter.direction().to_owned())),
        (
            "connection_security_policy",
            Some(labels.security.as_str().to_owned()),
        ),
        ("response_flags", Some(ended.flag.to_owned())),
        ("error", ended.error.clone()),
    ];
    let texts = texts
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    let texts = texts.filter(|(_, value)| !value.is_empty());
    let mut attributes: Vec<KeyValue> = texts.map(|(key, value)| text(key, &value)).collect();
    let milliseconds = u64::try_from(ended.took.as_millis()).unwrap_or(u64::MAX);
    let [sent, received] = ended.bytes;
    for (key, value) in [
        ("bytes_sent", sent),
        ("bytes_recv", received),
        ("duration_ms", milliseconds),
    ] {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        attributes.push(attribute(key, Value::IntValue(value)));
    }
    let began = SystemTime::now().checked_sub(ended.took);
    let began = began.and_then(|began| began.duration_since(UNIX_EPOCH).ok());
    let nanoseconds = began.map_or(0, |began| began.as_nanos());
    LogRecord {
        time_unix_nano: u64::try_from(nanoseconds).unwrap_or_default(),
        body: Some(AnyValue {
            value: Some(Value::StringValue("connection complete".to_owned())),
        }),
        attributes,
        ..LogRecord::default()
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

#[cfg(test)]
mod tests {
    use mesh::{Service, Store};
    use ops::export::Exporter;
    use ops::metrics::Metrics;
    use otlp::collector::logs::v1::{
        ExportLogsServiceResponse,
        logs_service_server::{LogsService, LogsServiceServer},
    };
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tonic::{Request, Response, Status};

    use super::*;
    use crate::record::{End, Reporter, Security};

    /// A collector that keeps what it is told.
    struct Taking(mpsc::UnboundedSender<ExportLogsServiceRequest>);

    #[tonic::async_trait]
    impl LogsService for Taking {
        async fn export(
            &self,
            request: Request<ExportLogsServiceRequest>,
        ) -> Result<Response<ExportLogsServiceResponse>, Status> {
            self.0.send(request.into_inner()).expect("is read");
            Ok(Response::new(ExportLogsServiceResponse {}))
        }
    }

    fn labels() -> Labels {
        let end = |name: &str| End {
            pod: format!("{name}-0").into(),
            namespace: "shop".into(),
            principal: SpiffeId::new(&TrustDomain::default(), "shop", name).ok(),
            ..End::default()
        };
        Labels {
            reporter: Reporter::Source,
            source: end("web"),
            destination: end("cart"),
            service: None,
            security: Security::MutualTls,
        }
    }

    fn ended(labels: &Labels) -> Ended<'_> {
        Ended {
            labels,
            source: SocketAddr::from(([10, 0, 0, 1], 1234)),
            destination: SocketAddr::from(([10, 0, 0, 2], 15008)),
            authority: Some("10.0.0.2:80"),
            took: Duration::from_millis(12),
            bytes: [7, 9],
            flag: "DENY",
            error: Some("policy".to_owned()),
        }
    }

    fn node() -> Node {
        Node {
            name: Some("node-a".into()),
            network: "".into(),
            cluster_id: "c".into(),
            instance_ip: None,
            pod_name: "ztunnel-x".to_owned(),
            pod_namespace: "istio-system".to_owned(),
            istio_version: String::new(),
            metadata: std::collections::BTreeMap::new(),
        }
    }

    fn said(attributes: &[KeyValue]) -> Vec<String> {
        let said = attributes.iter().map(|one| {
            let value = one.value.as_ref().and_then(|value| value.value.clone());
            match value {
                Some(Value::StringValue(text)) => format!("{}={text}", one.key),
                Some(Value::IntValue(number)) => format!("{}={number}", one.key),
                other => format!("{}={other:?}", one.key),
            }
        });
        said.collect()
    }

    /// A collector's pod is at this address of a network.
    fn serves(mesh: &MeshState, address: SocketAddr, network: &str) {
        mesh.update(|store| {
            let mut service = Service::new("obs", "otel.obs");
            service.ports = [(4317, address.port())].into_iter().collect();
            let identity = SpiffeId::new(&TrustDomain::default(), "obs", "otel").expect("is one");
            let mut workload = Workload::new("c//Pod/obs/otel", "obs", identity);
            workload.network = network.into();
            workload.addresses = vec![address.ip()];
            workload.services = [mesh::workload::Membership {
                service: service.key(),
                ports: service.ports.clone(),
            }]
            .into();
            store.upsert_service(service);
            store.upsert_workload(workload)
        });
    }

    #[tokio::test]
    async fn a_collector_of_the_mesh_is_found_and_told() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let address = listener.local_addr().expect("has one");
        let (sender, mut told) = mpsc::unbounded_channel();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let mut server = tonic::transport::Server::builder();
        let server = server.add_service(LogsServiceServer::new(Taking(sender)));
        tokio::spawn(server.serve_with_incoming(incoming));

        let metrics = Metrics::default();
        let mesh = Arc::new(MeshState::new(Store::new(None)));
        let finder = Finder {
            mesh: Arc::clone(&mesh),
            endpoints: Endpoints::new(&metrics),
            network: "".into(),
        };
        let exporter = Exporter::new("logs", metrics.clone());
        let outgoing = exporter.outgoing().expect("once");
        let finds = finder.clone();
        tokio::spawn(async move { run(outgoing, finds, &node()).await });
        let to = Arc::new(Collector {
            namespace: "".into(),
            hostname: "otel.obs".into(),
            port: 4317,
        });
        let labels = labels();
        // Nobody knows it yet.
        exporter.tell(Arc::clone(&to), record(&ended(&labels)));
        let dropped = || metrics.counters("culvert_telemetry_dropped_total");
        let is_dropped = async {
            while dropped().values().all(|count| *count == 0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let is_dropped = tokio::time::timeout(Duration::from_secs(20), is_dropped);
        is_dropped.await.expect("counted");
        // Somebody else may have that address here.
        serves(&mesh, address, "elsewhere");
        assert_eq!(
            finder.find(&to).expect_err("not on this network"),
            "otel.obs has no endpoint on this network (\"\")"
        );
        serves(&mesh, address, "");
        exporter.tell(to, record(&ended(&labels)));
        let told = tokio::time::timeout(Duration::from_secs(20), told.recv()).await;
        let told = told.expect("in time").expect("told");
        let of = &told.resource_logs[0];
        let resource = of.resource.as_ref().expect("there");
        assert_eq!(
            said(&resource.attributes),
            [
                "service.name=ztunnel",
                "k8s.cluster.name=c",
                "k8s.namespace.name=istio-system",
                "k8s.pod.name=ztunnel-x",
                "k8s.node.name=node-a"
            ]
        );
        let record = &of.scope_logs[0].log_records[0];
        assert!(record.time_unix_nano > 0);
        assert_eq!(
            said(&record.attributes),
            [
                "src.addr=10.0.0.1:1234",
                "src.workload=web-0",
                "src.namespace=shop",
                "src.identity=spiffe://cluster.local/ns/shop/sa/web",
                "dst.addr=10.0.0.2:15008",
                "dst.hbone_addr=10.0.0.2:80",
                "dst.workload=cart-0",
                "dst.namespace=shop",
                "dst.identity=spiffe://cluster.local/ns/shop/sa/cart",
                "direction=outbound",
                "connection_security_policy=mutual_tls",
                "response_flags=DENY",
                "error=policy",
                "bytes_sent=7",
                "bytes_recv=9",
                "duration_ms=12"
            ]
        );
    }
}
