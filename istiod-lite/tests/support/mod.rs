// SPDX-License-Identifier: Apache-2.0
//! A control plane over a directory of manifests, and a client to it.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL};
use clap::Parser as _;
use identity::{
    AuthenticatedChannel, ControlPlane, ControlPlaneConfig, RootSource, Secret, TokenSource,
};
use istiod_lite::{
    app::{self, Running},
    config::{Arguments, Config},
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use ops::{
    metrics::{Limits, Metrics},
    shutdown::{self, Shutdown},
};
use proto::ads::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Status,
    aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
};
use rcgen::{KeyPair, PublicKeyData as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
};
use tonic::Streaming;

const PATIENCE: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_millis(300);

/// A running control plane.
pub struct Lab {
    directory: TempDir,
    key: KeyPair,
    pub running: Running,
    pub shutdown: Shutdown,
}

/// Whom a token is for.
#[derive(Clone, Copy)]
pub struct Bearer<'a> {
    pub namespace: &'a str,
    pub account: &'a str,
    pub pod: &'a str,
    pub uid: &'a str,
}

/// The proxy of node a, as the manifests of the tests know it.
pub const ZTUNNEL: Bearer<'static> = Bearer {
    namespace: "istio-system",
    account: "ztunnel",
    pod: "ztunnel-a",
    uid: "z-a",
};

/// A pod as the lab's kubelet would report it.
pub fn pod(namespace: &str, name: &str, account: &str, node: &str, uid: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "labels": {"app": name}},
        "spec": {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

impl Lab {
    /// Starts over these files.
    pub async fn start(files: &[(&str, Value)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let key = KeyPair::generate().expect("a key");
        fs::write(directory.path().join("jwks.json"), jwks(&key)).expect("written");
        fs::create_dir(directory.path().join("manifests")).expect("created");
        for (name, object) in files {
            write(&directory.path().join("manifests").join(name), object);
        }
        let (running, shutdown) = run(directory.path()).await;
        Self {
            directory,
            key,
            running,
            shutdown,
        }
    }

    /// Stops, and starts again over the same directory.
    pub async fn restart(&mut self) {
        self.shutdown.start();
        self.running.finished().await.expect("ended well");
        (self.running, self.shutdown) = run(self.directory.path()).await;
    }

    pub fn put(&self, name: &str, object: &Value) {
        write(&self.manifests().join(name), object);
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.manifests().join(name)).expect("removed");
    }

    pub fn manifests(&self) -> std::path::PathBuf {
        self.directory.path().join("manifests")
    }

    pub fn token(&self, bearer: Bearer<'_>) -> String {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("after 1970");
        let claims = json!({
            "iss": "lab", "aud": ["istio-ca"], "exp": since.as_secs() + 600,
            "sub": format!("system:serviceaccount:{}:{}", bearer.namespace, bearer.account),
            "kubernetes.io": {
                "namespace": bearer.namespace,
                "serviceaccount": {"name": bearer.account, "uid": "s"},
                "pod": {"name": bearer.pod, "uid": bearer.uid},
            },
        });
        let header = Header {
            kid: Some("lab".into()),
            ..Header::new(Algorithm::ES256)
        };
        let key = EncodingKey::from_ec_der(self.key.serialized_der());
        jsonwebtoken::encode(&header, &claims, &key).expect("signed")
    }

    /// An authenticated channel, or an anonymous one.
    pub async fn channel(&self, bearer: Option<Bearer<'_>>) -> AuthenticatedChannel {
        let token = match bearer {
            Some(bearer) => TokenSource::Literal(Secret::from(self.token(bearer))),
            None => TokenSource::None,
        };
        let config = ControlPlaneConfig {
            address: format!("https://{}", self.running.address),
            root: RootSource::File(self.directory.path().join("state/root-cert.pem")),
            token,
            cluster_id: "Kubernetes".into(),
            alt_hostname: None,
            headers: Vec::new(),
        };
        ControlPlane::new(config)
            .expect("valid")
            .channel()
            .await
            .expect("connected")
    }

    pub async fn discover(&self) -> Stream {
        Stream::open(self.channel(Some(ZTUNNEL)).await)
            .await
            .expect("a stream")
    }

    /// One page of the admin server.
    pub async fn page(&self, path: &str) -> String {
        page(self.running.admin, path).await
    }

    /// One page of the monitoring server.
    pub async fn monitoring(&self, path: &str) -> String {
        page(self.running.monitoring, path).await
    }
}

async fn page(of: std::net::SocketAddr, path: &str) -> String {
    let mut socket = tokio::net::TcpStream::connect(of).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("read");
    answer
}

async fn run(directory: &Path) -> (Running, Shutdown) {
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let arguments = Arguments::parse_from([
        "istiod-lite".to_owned(),
        format!("--source=dir:{}", path("manifests")),
        format!("--state={}", path("state")),
        format!("--jwks={}", path("jwks.json")),
        "--issuer=lab".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
        "--monitoring=127.0.0.1:0".to_owned(),
        "--name=127.0.0.1".to_owned(),
    ]);
    let config = Config::read(&arguments, &Default::default()).expect("valid");
    let (shutdown, drain) = shutdown::channel();
    let metrics = Metrics::new(Limits::default());
    let running = app::start(config, metrics, drain).await.expect("started");
    (running, shutdown)
}

fn write(path: &Path, object: &Value) {
    // Written beside and renamed, as careful writers do.
    let partial = path.with_extension("new");
    fs::write(&partial, object.to_string()).expect("written");
    fs::rename(&partial, path).expect("renamed");
}

/// The key set of an EC P-256 key: its point is the tail of the public key's DER.
fn jwks(key: &KeyPair) -> String {
    let der = key.subject_public_key_info();
    let (x, y) = der[der.len() - 64..].split_at(32);
    json!({"keys": [{
        "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "lab",
        "x": BASE64URL.encode(x), "y": BASE64URL.encode(y),
    }]})
    .to_string()
}

/// A discovery stream.
pub struct Stream {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

/// What one response said.
#[derive(Debug, PartialEq)]
pub struct Said {
    pub kind: &'static str,
    pub updated: Vec<String>,
    pub removed: Vec<String>,
}

pub fn said(response: &DeltaDiscoveryResponse) -> Said {
    Said {
        kind: match response.type_url.as_str() {
            proto::ADDRESS_TYPE_URL => "address",
            proto::WAYPOINT_SERVICE_TYPE_URL => "waypoint",
            proto::WAYPOINT_TYPE_URL => "whole",
            _ => "policy",
        },
        updated: response
            .resources
            .iter()
            .map(|resource| resource.name.clone())
            .collect(),
        removed: response.removed_resources.clone(),
    }
}

pub fn node(namespace: &str) -> Node {
    use prost_types::{Struct, Value, value::Kind};
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.into())),
    };
    Node {
        id: "ztunnel~1.1.1.1~ztunnel-a.istio-system~istio-system.svc.cluster.local".into(),
        metadata: Some(Struct {
            fields: [("NAMESPACE".into(), text(namespace))].into(),
        }),
        ..Node::default()
    }
}

/// A waypoint's pod, by its own word.
pub fn waypoint_node(namespace: &str, gateway: &str) -> Node {
    use prost_types::{Struct, Value, value::Kind};
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.into())),
    };
    let label = "gateway.networking.k8s.io/gateway-name".to_owned();
    let labels = Struct {
        fields: [(label, text(gateway))].into(),
    };
    let labels = Value {
        kind: Some(Kind::StructValue(labels)),
    };
    Node {
        id: format!("waypoint~1.1.1.1~w.{namespace}~{namespace}.svc.cluster.local"),
        metadata: Some(Struct {
            fields: [
                ("NAMESPACE".into(), text(namespace)),
                ("LABELS".into(), labels),
            ]
            .into(),
        }),
        ..Node::default()
    }
}

impl Stream {
    pub async fn open(channel: AuthenticatedChannel) -> Result<Self, tonic::Status> {
        let (requests, queue) = mpsc::channel(16);
        let stream = tokio_stream::wrappers::ReceiverStream::new(queue);
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let responses = client
            .delta_aggregated_resources(stream)
            .await?
            .into_inner();
        Ok(Self {
            requests,
            responses,
        })
    }

    pub async fn send(&self, request: DeltaDiscoveryRequest) {
        self.requests
            .send(request)
            .await
            .expect("the stream is open");
    }

    /// Subscribes to everything of both types, addresses first, as ztunnel does.
    pub async fn subscribe(&self, held: &[(String, String)]) {
        for type_url in [proto::ADDRESS_TYPE_URL, proto::AUTHORIZATION_TYPE_URL] {
            let initial = held.iter().filter(|(name, _)| {
                name.starts_with("policy ") == (type_url == proto::AUTHORIZATION_TYPE_URL)
            });
            self.send(DeltaDiscoveryRequest {
                node: Some(node("istio-system")),
                type_url: type_url.into(),
                initial_resource_versions: initial
                    .map(|(name, version)| {
                        (
                            name.trim_start_matches("policy ").to_owned(),
                            version.clone(),
                        )
                    })
                    .collect(),
                ..Default::default()
            })
            .await;
        }
    }

    pub async fn receive(&mut self) -> Result<DeltaDiscoveryResponse, tonic::Status> {
        let message = tokio::time::timeout(PATIENCE, self.responses.message()).await;
        message
            .expect("an answer in time")?
            .ok_or_else(|| tonic::Status::ok("ended"))
    }

    pub async fn next(&mut self) -> DeltaDiscoveryResponse {
        self.receive().await.expect("a response")
    }

    pub async fn answer(&self, response: &DeltaDiscoveryResponse, error: Option<&str>) {
        self.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail: error.map(|message| Status {
                message: message.into(),
                ..Default::default()
            }),
            ..Default::default()
        })
        .await;
    }

    /// Receives and accepts.
    pub async fn accept(&mut self) -> Said {
        let response = self.next().await;
        self.answer(&response, None).await;
        said(&response)
    }

    /// Nothing comes for a moment.
    pub async fn is_quiet(&mut self) -> bool {
        tokio::time::timeout(QUIET, self.responses.message())
            .await
            .is_err()
    }
}
