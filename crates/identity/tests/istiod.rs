// SPDX-License-Identifier: Apache-2.0
//! The certificate service over a real TLS and gRPC server in this process.
#![expect(clippy::unwrap_used, reason = "a failed step of a test must stop it")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use identity::testing::{TestAuthority, Validity};
use identity::{
    CaClient, CertificateError, Certificates, Config, ControlPlane, ControlPlaneConfig,
    ControlPlaneError, CsrRequest, IMPERSONATED_IDENTITY, IstioCa, RootSource, Secret, TokenSource,
};
use prost_types::value::Kind;
use proto::ca::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use rustls::ServerConfig;
use spiffe::SpiffeId;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

fn web() -> SpiffeId {
    "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap()
}

/// What the service saw of one request.
#[derive(Debug, Clone)]
struct SeenRequest {
    authorization: Option<String>,
    cluster_id: Option<String>,
    extra: Option<String>,
    impersonated: Option<String>,
    validity: i64,
}

#[derive(Clone)]
struct Service {
    authority: Arc<TestAuthority>,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
}

#[tonic::async_trait]
impl IstioCertificateService for Service {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let header = |name: &str| {
            let value = request.metadata().get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        let (authorization, cluster_id, extra) = (
            header("authorization"),
            header("clusterid"),
            header("x-team"),
        );
        let message = request.into_inner();
        let field = message
            .metadata
            .and_then(|mut metadata| metadata.fields.remove(IMPERSONATED_IDENTITY));
        let impersonated = match field.and_then(|value| value.kind) {
            Some(Kind::StringValue(identity)) => Some(identity),
            _ => None,
        };
        self.seen.lock().unwrap().push(SeenRequest {
            authorization,
            cluster_id,
            extra,
            impersonated: impersonated.clone(),
            validity: message.validity_duration,
        });
        // Who names nobody means itself; all tokens here are the web's.
        let identity: SpiffeId = match impersonated {
            Some(identity) => identity
                .parse()
                .map_err(|_| Status::unauthenticated("no identity"))?,
            None => web(),
        };
        let ttl = Duration::from_secs(message.validity_duration.unsigned_abs());
        let cert_chain = self
            .authority
            .answer(&message.csr, &identity, Validity::lasting(ttl));
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

/// A control plane on loopback, whose serving certificate names `dns_name`.
struct ControlPlaneServer {
    service: Service,
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl ControlPlaneServer {
    async fn start(dns_name: &str) -> Self {
        let service = Service {
            authority: Arc::new(TestAuthority::new("root")),
            seen: Arc::default(),
        };
        let tls = service.authority.serving_config(dns_name);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<AtomicUsize>::default();
        let incoming = terminate_tls(listener, tls, Arc::clone(&connections));
        tokio::spawn(
            Server::builder()
                .add_service(IstioCertificateServiceServer::new(service.clone()))
                .serve_with_incoming(incoming),
        );
        Self {
            service,
            address,
            connections,
        }
    }

    /// How many were accepted.
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn config(&self, root: RootSource, token: TokenSource) -> ControlPlaneConfig {
        ControlPlaneConfig {
            address: format!("localhost:{}", self.address.port()),
            root,
            token,
            cluster_id: "east".into(),
            alt_hostname: None,
            headers: vec![("X-Team".into(), "mesh".into())],
        }
    }

    fn root(&self) -> RootSource {
        RootSource::Inline(self.service.authority.root_pem().into())
    }

    fn seen(&self) -> Vec<SeenRequest> {
        self.service.seen.lock().unwrap().clone()
    }
}

/// Plain streams for tonic, whose own TLS is not compiled in.
fn terminate_tls(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    connections: Arc<AtomicUsize>,
) -> ReceiverStream<std::io::Result<DuplexStream>> {
    let (accepted, incoming) = tokio::sync::mpsc::channel(8);
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let acceptor = TlsAcceptor::from(Arc::clone(&config));
            let accepted = accepted.clone();
            let connections = Arc::clone(&connections);
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(tcp).await else {
                    return;
                };
                connections.fetch_add(1, Ordering::SeqCst);
                let (mut inside, outside) = duplex(64 << 10);
                let _ = accepted.send(Ok(outside)).await;
                let _ = copy_bidirectional(&mut tls, &mut inside).await;
            });
        }
    });
    ReceiverStream::new(incoming)
}

fn request() -> CsrRequest {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.subject_alt_names = vec![identity::testing::uri(&web())];
    CsrRequest {
        csr_pem: params.serialize_request(&key).unwrap().pem().unwrap(),
        identity: web(),
        ttl: Duration::from_secs(3600),
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn a_workload_certificate_comes_from_a_real_service() {
    let server = ControlPlaneServer::start("localhost").await;
    let token = TokenSource::Literal(Secret::from("secret-token".to_owned()));
    let control_plane = ControlPlane::new(server.config(server.root(), token)).unwrap();
    let certificates = Certificates::new(
        Arc::new(IstioCa::new(control_plane)),
        Config::default(),
        Handle::current(),
    );
    let certificate = certificates.certificate(&web()).await.unwrap();
    assert_eq!(certificate.identity(), &web());
    let seen = &server.seen()[0];
    assert_eq!(seen.impersonated.as_deref(), Some(web().as_str()));
    assert_eq!(seen.validity, 86_400);
    assert_eq!(seen.authorization.as_deref(), Some("Bearer secret-token"));
    assert_eq!(seen.cluster_id.as_deref(), Some("east"));
    assert_eq!(seen.extra.as_deref(), Some("mesh"));
}

#[tokio::test]
async fn a_workload_that_asks_for_itself_names_nobody() {
    let server = ControlPlaneServer::start("localhost").await;
    let token = TokenSource::Literal(Secret::from("secret-token".to_owned()));
    let control_plane = ControlPlane::new(server.config(server.root(), token)).unwrap();
    let authority = IstioCa::for_itself(control_plane);
    assert!(!authority.sign(request()).await.unwrap().is_empty());
    assert_eq!(server.seen()[0].impersonated, None);
}

#[tokio::test]
async fn the_token_is_read_at_each_request_and_trimmed() {
    let server = ControlPlaneServer::start("localhost").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    write(&file, " first\n");
    let config = server.config(server.root(), TokenSource::File(file.clone()));
    let ca = IstioCa::new(ControlPlane::new(config).unwrap());
    ca.sign(request()).await.unwrap();
    write(&file, "second\n");
    ca.sign(request()).await.unwrap();
    let tokens: Vec<_> = server
        .seen()
        .into_iter()
        .map(|seen| seen.authorization)
        .collect();
    assert_eq!(
        tokens,
        [
            Some("Bearer first".to_owned()),
            Some("Bearer second".to_owned())
        ]
    );

    for (content, reason) in [(Some("\n"), "is empty"), (None, "No such file")] {
        match content {
            Some(content) => write(&file, content),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let error = ca.sign(request()).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains(&file.display().to_string()), "{error}");
    }
    assert_eq!(server.seen().len(), 2, "nothing is sent without a token");
}

#[tokio::test]
async fn without_a_token_source_requests_are_anonymous() {
    let server = ControlPlaneServer::start("localhost").await;
    let config = server.config(server.root(), TokenSource::None);
    let ca = IstioCa::new(ControlPlane::new(config).unwrap());
    ca.sign(request()).await.unwrap();
    let seen = &server.seen()[0];
    assert_eq!((&seen.authorization, &seen.cluster_id), (&None, &None));
}

#[tokio::test]
async fn the_root_file_is_read_at_each_connection() {
    let server = ControlPlaneServer::start("localhost").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("root-cert.pem");
    let config = server.config(RootSource::File(file.clone()), TokenSource::None);
    let ca = IstioCa::new(ControlPlane::new(config).unwrap());
    let error = ca.sign(request()).await.unwrap_err().to_string();
    assert!(error.contains("root-cert.pem"), "{error}");

    write(&file, TestAuthority::new("another").root_pem());
    let error = ca.sign(request()).await.unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");

    write(&file, server.service.authority.root_pem());
    ca.sign(request()).await.unwrap();

    // A server that the roots no longer vouch for is asked no more, except while they vouch for nobody who answers.
    let successor = ControlPlaneServer::start("localhost").await;
    write(&file, successor.service.authority.root_pem());
    ca.sign(request()).await.unwrap();
    assert_eq!(
        server.seen().len(),
        2,
        "the channel by the old roots still works"
    );
    let both = [
        successor.service.authority.root_pem(),
        server.service.authority.root_pem(),
    ]
    .concat();
    write(&file, &both);
    let accepted = server.connections();
    ca.sign(request()).await.unwrap();
    assert_eq!(server.connections(), accepted + 1, "by the new roots, anew");
    ca.sign(request()).await.unwrap();
    assert_eq!(server.connections(), accepted + 1, "and kept");
}

#[tokio::test]
async fn the_server_may_carry_the_alternative_name() {
    let server = ControlPlaneServer::start("istiod.istio-system.svc").await;
    let mut config = server.config(server.root(), TokenSource::None);
    let error = ControlPlane::new(config.clone())
        .unwrap()
        .channel()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("localhost") && error.contains("istiod.istio-system.svc"),
        "{error}"
    );
    config.alt_hostname = Some("istiod.istio-system.svc".into());
    ControlPlane::new(config).unwrap().channel().await.unwrap();
}

#[tokio::test]
async fn an_unreachable_control_plane_is_an_error_that_names_it() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let control_plane = ControlPlane::new(ControlPlaneConfig {
        address: address.clone(),
        root: RootSource::Inline(TestAuthority::new("root").root_pem().into()),
        token: TokenSource::None,
        cluster_id: String::new(),
        alt_hostname: None,
        headers: Vec::new(),
    })
    .unwrap();
    let error = IstioCa::new(control_plane)
        .sign(request())
        .await
        .unwrap_err();
    assert!(matches!(error, CertificateError::Authority { .. }));
    let error = error.to_string();
    assert!(
        error.contains(&address) && error.contains("refused"),
        "{error}"
    );
}

#[test]
fn only_addresses_of_https_servers_are_accepted() {
    let check = |address: &str| {
        ControlPlane::new(ControlPlaneConfig {
            address: address.into(),
            root: RootSource::System,
            token: TokenSource::None,
            cluster_id: String::new(),
            alt_hostname: None,
            headers: Vec::new(),
        })
        .map(|_| ())
    };
    for good in [
        "istiod.istio-system.svc:15012",
        "https://istiod.istio-system.svc:15012",
        "https://istiod.istio-system.svc:15012/",
        "10.77.0.2:15012",
        "[fd77::2]:15012",
        "https://istiod",
    ] {
        assert_eq!(check(good), Ok(()), "{good}");
    }
    for bad in [
        "http://istiod:15010",
        "https://istiod:1/path",
        "",
        "a b",
        "unix:///x",
    ] {
        let refused = check(bad);
        assert!(
            matches!(refused, Err(ControlPlaneError::Address { .. })),
            "{bad}: {refused:?}"
        );
    }
}

#[test]
fn a_header_that_cannot_be_sent_is_refused_without_its_value() {
    let refused = ControlPlane::new(ControlPlaneConfig {
        address: "istiod:15012".into(),
        root: RootSource::System,
        token: TokenSource::None,
        cluster_id: String::new(),
        alt_hostname: None,
        headers: vec![("x-key".into(), "hush\n".into())],
    })
    .unwrap_err()
    .to_string();
    assert!(
        refused.contains("x-key") && !refused.contains("hush"),
        "{refused}"
    );
}

#[test]
fn tokens_never_show() {
    let token = TokenSource::Literal(Secret::from("hush".to_owned()));
    assert!(!format!("{token:?}").contains("hush"));
}
