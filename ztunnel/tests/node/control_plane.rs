// SPDX-License-Identifier: Apache-2.0
//! Certificates and discovery in this process, over TLS on a node's loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use capture::Netns;
use identity::testing::{TestAuthority, Validity};
use prost::Message;
use prost_types::value::Kind;
use proto::ads::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use proto::ads::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
    ResourceBody,
};
use proto::ca::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use proto::security::Authorization;
use proto::workload::Address;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

pub(crate) const PORT: u16 = 15012;

type Responses = mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>;

#[derive(Default)]
struct State {
    /// Type URL, then name.
    resources: BTreeMap<&'static str, BTreeMap<String, Vec<u8>>>,
    streams: Vec<Responses>,
    pushes: u64,
    /// Serial numbers of the certificates of each identity.
    issued: BTreeMap<String, Vec<Vec<u8>>>,
}

#[derive(Clone)]
pub(crate) struct ControlPlane {
    authority: Arc<TestAuthority>,
    state: Arc<Mutex<State>>,
}

impl ControlPlane {
    /// Serves inside `node` until the test's process ends.
    pub(crate) fn start(
        node: &Netns,
        addresses: Vec<Address>,
        policies: Vec<Authorization>,
    ) -> Self {
        let plane = Self {
            authority: Arc::new(TestAuthority::new("root")),
            state: Arc::default(),
        };
        {
            let mut state = plane.state.lock().unwrap();
            let named = addresses
                .iter()
                .map(|address| (address_name(address), address.encode_to_vec()));
            state
                .resources
                .insert(proto::ADDRESS_TYPE_URL, named.collect());
            let named = policies
                .iter()
                .map(|policy| (policy_name(policy), policy.encode_to_vec()));
            state
                .resources
                .insert(proto::AUTHORIZATION_TYPE_URL, named.collect());
        }
        let serving = plane.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], PORT)))
                    .await
                    .unwrap();
                ready.send(()).unwrap();
                let tls = serving.authority.serving_config("localhost");
                tonic::transport::Server::builder()
                    .add_service(IstioCertificateServiceServer::new(serving.clone()))
                    .add_service(AggregatedDiscoveryServiceServer::new(serving))
                    .serve_with_incoming(terminate_tls(listener, tls))
                    .await
                    .unwrap();
            });
        };
        node.spawn_thread_in("control-plane", serve).unwrap();
        is_ready.recv_timeout(Duration::from_secs(10)).unwrap();
        plane
    }

    pub(crate) fn root_pem(&self) -> &str {
        self.authority.root_pem()
    }

    /// Serial numbers of the certificates that an identity has had so far.
    pub(crate) fn issued(&self, identity: &str) -> Vec<Vec<u8>> {
        let state = self.state.lock().unwrap();
        state.issued.get(identity).cloned().unwrap_or_default()
    }

    /// A list in PEM that takes these back.
    pub(crate) fn revocation_list(&self, serials: &[Vec<u8>]) -> String {
        self.authority.crl(serials)
    }

    pub(crate) async fn push_policy(&self, policy: Authorization) {
        self.push(
            proto::AUTHORIZATION_TYPE_URL,
            policy_name(&policy),
            policy.encode_to_vec(),
        )
        .await;
    }

    pub(crate) async fn push_address(&self, address: Address) {
        self.push(
            proto::ADDRESS_TYPE_URL,
            address_name(&address),
            address.encode_to_vec(),
        )
        .await;
    }

    async fn push(&self, type_url: &'static str, name: String, body: Vec<u8>) {
        let (response, streams) = {
            let mut state = self.state.lock().unwrap();
            state
                .resources
                .entry(type_url)
                .or_default()
                .insert(name.clone(), body.clone());
            state.pushes += 1;
            let resource = resource(type_url, name, body);
            (
                response(type_url, vec![resource], state.pushes),
                state.streams.clone(),
            )
        };
        for stream in streams {
            // A closed stream belongs to a client that is gone.
            let _ = stream.send(Ok(response.clone())).await;
        }
    }
}

fn address_name(address: &Address) -> String {
    use proto::workload::address::Type;
    match address.r#type.as_ref().unwrap() {
        Type::Workload(workload) => workload.uid.clone(),
        Type::Service(service) => format!("{}/{}", service.namespace, service.hostname),
    }
}

fn policy_name(policy: &Authorization) -> String {
    format!("{}/{}", policy.namespace, policy.name)
}

fn resource(type_url: &str, name: String, body: Vec<u8>) -> Resource {
    Resource {
        name,
        version: "1".into(),
        resource: Some(ResourceBody {
            type_url: type_url.into(),
            value: Bytes::from(body),
        }),
        ..Resource::default()
    }
}

fn response(type_url: &str, resources: Vec<Resource>, nonce: u64) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        resources,
        type_url: type_url.into(),
        nonce: nonce.to_string(),
        ..DeltaDiscoveryResponse::default()
    }
}

#[tonic::async_trait]
impl IstioCertificateService for ControlPlane {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let message = request.into_inner();
        let field = message
            .metadata
            .and_then(|mut metadata| metadata.fields.remove("ImpersonatedIdentity"));
        let Some(Kind::StringValue(identity)) = field.and_then(|field| field.kind) else {
            return Err(Status::unauthenticated("no identity"));
        };
        let identity: spiffe::SpiffeId = identity
            .parse()
            .map_err(|_| Status::invalid_argument("no identity"))?;
        let validity = Validity::lasting(Duration::from_secs(3600));
        let cert_chain = self.authority.answer(&message.csr, &identity, validity);
        let serial = identity::testing::serial_of_pem(&cert_chain[0]);
        let mut state = self.state.lock().unwrap();
        let issued = state.issued.entry(identity.to_string()).or_default();
        issued.push(serial);
        drop(state);
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for ControlPlane {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        _request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("delta only"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (responses, outgoing) = mpsc::channel(16);
        self.state.lock().unwrap().streams.push(responses.clone());
        let state = Arc::clone(&self.state);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                // Answers to pushes carry a nonce; a subscription doesn't.
                if !request.response_nonce.is_empty() {
                    continue;
                }
                let answer = {
                    let state = state.lock().unwrap();
                    let Some((type_url, held)) = state.resources.get_key_value(&*request.type_url)
                    else {
                        continue;
                    };
                    let all = held
                        .iter()
                        .map(|(name, body)| resource(type_url, name.clone(), body.clone()));
                    response(type_url, all.collect(), 0)
                };
                let _ = responses.send(Ok(answer)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// Plain streams for tonic, whose own TLS is not compiled in.
fn terminate_tls(
    listener: TcpListener,
    config: Arc<rustls::ServerConfig>,
) -> ReceiverStream<std::io::Result<DuplexStream>> {
    let (accepted, incoming) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(Arc::clone(&config));
            let accepted = accepted.clone();
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(tcp).await else {
                    return;
                };
                let (mut inside, outside) = duplex(64 << 10);
                let _ = accepted.send(Ok(outside)).await;
                let _ = copy_bidirectional(&mut tls, &mut inside).await;
            });
        }
    });
    ReceiverStream::new(incoming)
}
