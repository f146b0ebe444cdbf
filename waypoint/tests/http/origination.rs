// SPDX-License-Identifier: Apache-2.0
//! TLS that the waypoint begins with applications outside of the mesh: real servers, which have to prove who they are.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use http_body_util::Full;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::waypoint::{ClientCertificate, Protocol, Tls, TrafficPolicy};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::harness::{World, soon};

const SERVER: &str = "far.example.com";

/// Whom both sides trust, and a folder with files for the waypoint.
struct Outside {
    issuer: Issuer<'static, KeyPair>,
    root: String,
    files: TempDir,
}

impl Outside {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().pem();
        let outside = Self {
            issuer: Issuer::new(params, key),
            root,
            files: tempfile::tempdir().unwrap(),
        };
        outside.write("ca.pem", &outside.root);
        let (chain, key) = outside.certify(&[SanType::DnsName("client".try_into().unwrap())]);
        outside.write("tls.crt", &chain);
        outside.write("tls.key", &key.serialize_pem());
        outside
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.files.path().join(name), text).unwrap();
    }

    fn file(&self, name: &str) -> String {
        let path: &Path = self.files.path();
        path.join(name).to_str().unwrap().to_owned()
    }

    fn certify(&self, names: &[SanType]) -> (String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key)
    }

    /// How a server of these names speaks TLS; whether its clients have to show a certificate.
    fn acceptor(&self, names: &[SanType], asks: bool) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if asks {
            let mut roots = RootCertStore::empty();
            roots.add(self.root()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut config = builder
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    fn root(&self) -> rustls::pki_types::CertificateDer<'static> {
        use rustls::pki_types::pem::PemObject as _;
        rustls::pki_types::CertificateDer::from_pem_slice(self.root.as_bytes()).unwrap()
    }

    /// What a rule says that names the root as the only one to trust.
    fn tls(&self) -> Tls {
        Tls {
            server_name: SERVER.into(),
            authorities: self.file("ca.pem"),
            ..Tls::default()
        }
    }

    fn shown(&self, namespace: &str) -> ClientCertificate {
        ClientCertificate {
            chain: self.file("tls.crt"),
            key: self.file("tls.key"),
            namespace: namespace.into(),
        }
    }
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn policy(tls: Tls) -> Option<TrafficPolicy> {
    Some(TrafficPolicy {
        tls: Some(tls),
        ..TrafficPolicy::default()
    })
}

/// A web server that says in which way it was asked.
async fn web(acceptor: TlsAcceptor) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that doesn't trust it is no news.
                if let Ok(stream) = acceptor.accept(socket).await {
                    answer(stream).await;
                }
            });
        }
    });
    address
}

async fn answer(stream: TlsStream<tokio::net::TcpStream>) {
    let (_, session) = stream.get_ref();
    let asked = session.server_name().unwrap_or("-").to_owned();
    let agreed = session.alpn_protocol().unwrap_or(b"-").to_vec();
    let shown = session.peer_certificates().map_or(0, <[_]>::len);
    let agreed = String::from_utf8(agreed).unwrap();
    let said = format!("{asked} {agreed} {shown}");
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let scheme = request.uri().scheme_str().unwrap_or("-");
        let said = format!("{said} {scheme}");
        async move {
            Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::from(said)))
        }
    });
    let io = TokioIo::new(stream);
    // A client that leaves is no news.
    let _ = match agreed.as_str() {
        "h2" => {
            http2::Builder::new(TokioExecutor::new())
                .serve_connection(io, service)
                .await
        }
        _ => http1::Builder::new().serve_connection(io, service).await,
    };
}

#[tokio::test]
async fn a_server_outside_is_asked_by_name_and_believed_by_its_certificate() {
    let outside = Outside::new();
    let mut world = World::new().await;
    let server = web(outside.acceptor(&[dns(SERVER)], false)).await;
    let to = world.service("far", &[server]);
    for (protocol, expected) in [
        (Protocol::Http1, format!("{SERVER} http/1.1 0 -")),
        (Protocol::Http2, format!("{SERVER} h2 0 https")),
    ] {
        world.serve_by("far", protocol, vec![], policy(outside.tls()));
        for _ in 0..3 {
            let answer = world.get(to, "/").await;
            assert_eq!((answer.status, answer.body), (200, expected.clone()));
        }
    }
    // By another name than it is asked by, or by an identity.
    let identity = "spiffe://cluster.local/ns/far/sa/web";
    let uri = |uri: &str| SanType::URI(uri.try_into().unwrap());
    let address = "https://web.example.com/first";
    let names = [uri(identity), uri(address), dns("other.example.com")];
    let server = web(outside.acceptor(&names, false)).await;
    let to = world.service("named", &[server]);
    for name in ["other.example.com", identity, address] {
        // Whom to trust stands in the rule itself.
        let tls = Tls {
            subject_alt_names: vec!["none.example.com".into(), name.into()],
            authorities: String::new(),
            given_authorities: outside.root.clone(),
            ..outside.tls()
        };
        world.serve_by("named", Protocol::Http1, vec![], policy(tls));
        assert_eq!(world.get(to, "/").await.status, 200, "{name}");
    }
}

#[tokio::test]
async fn who_does_not_prove_who_it_is_gets_no_request() {
    let outside = Outside::new();
    let mut world = World::new().await;
    let server = web(outside.acceptor(&[dns("other.example.com")], false)).await;
    let to = world.service("far", &[server]);
    let stranger = Outside::new();
    let named = |name: &str| Tls {
        subject_alt_names: vec![name.into()],
        ..outside.tls()
    };
    for tls in [
        outside.tls(),
        named("none.example.com"),
        named("spiffe://cluster.local/ns/far/sa/web"),
        named("https://web.example.com/first"),
        Tls {
            server_name: "other.example.com".into(),
            given_authorities: stranger.root.clone(),
            ..Tls::default()
        },
        Tls {
            server_name: "other.example.com".into(),
            given_authorities: "no PEM".into(),
            ..Tls::default()
        },
        Tls {
            server_name: "other.example.com".into(),
            ..stranger.tls()
        },
        Tls {
            server_name: "other.example.com".into(),
            authorities: String::new(),
            ..Tls::default()
        },
        Tls {
            authorities: outside.file("none"),
            ..outside.tls()
        },
        Tls {
            authorities: outside.file("tls.key"),
            ..outside.tls()
        },
    ] {
        world.serve_by("far", Protocol::Http1, vec![], policy(tls.clone()));
        let answer = world.get(to, "/").await;
        assert_eq!(answer.status, 503, "{tls:?}: {answer:?}");
        assert!(answer.body.contains("UF"), "{tls:?}: {answer:?}");
    }
    // It speaks no TLS.
    let plain = world.service("plain", &[crate::harness::application("plain").await]);
    world.serve_by("plain", Protocol::Http1, vec![], policy(outside.tls()));
    assert_eq!(world.get(plain, "/").await.status, 503);
    world
        .until_counted(&[
            "istio_requests_total",
            "destination_service=\"far.shop.svc.cluster.local\"",
            "response_code=\"503\"",
            "response_flags=\"UF\"",
            "} 10",
        ])
        .await;
}

#[tokio::test]
async fn a_server_that_asks_is_shown_a_certificate_of_the_waypoints_own_namespace() {
    let outside = Outside::new();
    let mut world = World::new().await;
    let server = web(outside.acceptor(&[dns(SERVER)], true)).await;
    let to = world.service("far", &[server]);
    let showing = |shown| Tls {
        certificate: shown,
        ..outside.tls()
    };
    let crossed = ClientCertificate {
        key: outside.file("ca.pem"),
        ..outside.shown("shop")
    };
    for (shown, status) in [
        (None, 503),
        (Some(outside.shown("elsewhere")), 503),
        (Some(crossed), 503),
        (Some(outside.shown("shop")), 200),
        (Some(outside.shown("")), 200),
    ] {
        let tls = showing(shown.clone());
        world.serve_by("far", Protocol::Http1, vec![], policy(tls));
        let answer = world.get(to, "/").await;
        assert_eq!(answer.status, status, "{shown:?}: {answer:?}");
        if status == 200 {
            assert_eq!(answer.body, format!("{SERVER} http/1.1 1 -"));
        }
    }
}

#[tokio::test]
async fn bytes_go_out_in_tls_and_come_back_to_their_end() {
    let outside = Outside::new();
    let mut world = World::new().await;
    let acceptor = outside.acceptor(&[dns(SERVER)], false);
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for in_order in [true, false] {
            let (socket, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(socket).await.unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(b"!") {
                assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0);
            }
            stream.write_all(&heard).await.unwrap();
            stream.flush().await.unwrap();
            // An end that anybody on the way could have made is none.
            if in_order {
                stream.shutdown().await.unwrap();
                assert_eq!(stream.read_buf(&mut heard).await.unwrap(), 0);
            }
        }
    });
    let to = world.service("far", &[address]);
    world.serve_by("far", Protocol::Tcp, vec![], policy(outside.tls()));
    let said = format!("{}!", "x".repeat(100_000));
    for in_order in [true, false] {
        let mut stream = world.connect(to).await;
        stream.write_all(said.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = String::new();
        let end = soon(stream.read_to_string(&mut heard)).await;
        assert_eq!(end.is_ok(), in_order, "{end:?}");
        assert!(!in_order || heard == said);
    }
    let heard = format!("}} {}", said.len() * 2);
    world
        .until_counted(&["istio_tcp_received_bytes_total", &heard])
        .await;
    world
        .until_counted(&[
            "istio_tcp_connections_closed_total",
            "response_flags=\"UC\"",
        ])
        .await;
}
