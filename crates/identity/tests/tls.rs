// SPDX-License-Identifier: Apache-2.0
//! Two ends over loopback: who is let in, and who is refused, by name.
#![expect(clippy::unwrap_used, reason = "a failed step of a test must stop it")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use identity::testing::{TestAuthority, Validity};
use identity::tls::{self, PeerRefused, TlsError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, ClientConfig, CommonState, DigitallySignedStruct, HandshakeKind, NamedGroup,
    ProtocolVersion, ServerConfig, SignatureScheme,
};
use spiffe::SpiffeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn id(text: &str) -> SpiffeId {
    text.parse().unwrap()
}

fn web() -> SpiffeId {
    id("spiffe://cluster.local/ns/shop/sa/web")
}

fn cart() -> SpiffeId {
    id("spiffe://cluster.local/ns/shop/sa/cart")
}

/// What one end saw of a connection that worked.
#[derive(Debug)]
struct Seen {
    peer: Result<SpiffeId, TlsError>,
    version: Option<ProtocolVersion>,
    suite: Option<CipherSuite>,
    group: Option<NamedGroup>,
    kind: Option<HandshakeKind>,
}

fn seen(connection: &CommonState) -> Seen {
    Seen {
        peer: tls::authenticated_peer(connection),
        version: connection.protocol_version(),
        suite: connection
            .negotiated_cipher_suite()
            .map(|suite| suite.suite()),
        group: connection
            .negotiated_key_exchange_group()
            .map(|group| group.name()),
        kind: connection.handshake_kind(),
    }
}

/// Runs both ends; a byte from the server makes its verdict reach the client.
async fn handshake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
) -> (io::Result<Seen>, io::Result<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async {
        let (tcp, _) = listener.accept().await?;
        let mut stream = TlsAcceptor::from(server).accept(tcp).await?;
        stream.write_all(b"!").await?;
        stream.flush().await?;
        assert_eq!(stream.get_ref().1.server_name(), None, "no name is sent");
        let seen = seen(stream.get_ref().1);
        let _ = stream.shutdown().await;
        Ok(seen)
    };
    let call = async {
        let tcp = TcpStream::connect(address).await?;
        let mut stream = TlsConnector::from(client)
            .connect(tls::server_name(), tcp)
            .await?;
        stream.read_u8().await?;
        Ok(seen(stream.get_ref().1))
    };
    tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(call, serve) })
        .await
        .expect("handshakes end")
}

fn error(result: io::Result<Seen>) -> io::Error {
    result.expect_err("must be refused")
}

#[tokio::test]
async fn the_expected_peer_is_let_in_over_the_best_of_tls() {
    let authority = TestAuthority::new("root");
    let (client, server) = (authority.issue(&web()), authority.issue(&cart()));
    let expected = [id("spiffe://cluster.local/ns/x/sa/y"), cart()];
    let client_config = tls::client_config(&client, &expected).unwrap();
    let server_config = tls::server_config(&server).unwrap();
    // Twice: nothing of the first connection is resumed by the second.
    for _ in 0..2 {
        let (called, served) =
            handshake(Arc::clone(&client_config), Arc::clone(&server_config)).await;
        let (called, served) = (called.unwrap(), served.unwrap());
        assert_eq!(called.peer.unwrap(), cart());
        assert_eq!(served.peer.unwrap(), web());
        assert_eq!(called.version, Some(ProtocolVersion::TLSv1_3));
        assert_eq!(called.suite, Some(CipherSuite::TLS13_AES_256_GCM_SHA384));
        assert_eq!(called.group, Some(NamedGroup::X25519MLKEM768));
        assert_eq!(called.kind, Some(HandshakeKind::Full));
    }
}

#[test]
fn the_server_configuration_is_made_once_per_certificate() {
    let certificate = TestAuthority::new("root").issue(&cart());
    let (first, second) = (
        tls::server_config(&certificate).unwrap(),
        tls::server_config(&certificate).unwrap(),
    );
    assert!(Arc::ptr_eq(&first, &second));
}

#[test]
fn groups_are_offered_post_quantum_first() {
    let groups: Vec<_> = tls::provider().kx_groups.iter().map(|g| g.name()).collect();
    assert_eq!(
        groups,
        [
            NamedGroup::X25519MLKEM768,
            NamedGroup::X25519,
            NamedGroup::secp256r1
        ]
    );
}

#[tokio::test]
async fn a_server_with_another_identity_is_refused_by_both_names() {
    let authority = TestAuthority::new("root");
    let (client, server) = (authority.issue(&web()), authority.issue(&web()));
    let (called, served) = handshake(
        tls::client_config(&client, &[cart()]).unwrap(),
        tls::server_config(&server).unwrap(),
    )
    .await;
    let called = error(called);
    assert_eq!(
        tls::peer_refusal(&called),
        Some(&PeerRefused::WrongIdentity {
            expected: cart().to_string(),
            found: web(),
        })
    );
    assert!(called.to_string().contains("sa/web"), "{called}");
    error(served);
}

#[tokio::test]
async fn a_client_of_another_trust_domain_is_refused_even_with_a_common_root() {
    let authority = TestAuthority::new("root");
    let stranger = id("spiffe://elsewhere.example/ns/shop/sa/web");
    let (client, server) = (authority.issue(&stranger), authority.issue(&cart()));
    let (called, served) = handshake(
        tls::client_config(&client, &[cart()]).unwrap(),
        tls::server_config(&server).unwrap(),
    )
    .await;
    assert_eq!(
        tls::peer_refusal(&error(served)),
        Some(&PeerRefused::WrongTrustDomain {
            expected: "cluster.local".into(),
            found: stranger,
        })
    );
    error(called);
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let authority = TestAuthority::new("root");
    let server = authority.issue(&cart());
    let mut client = anonymous_client();
    client.alpn_protocols = vec![tls::ALPN_H2.to_vec()];
    let (called, served) = handshake(Arc::new(client), tls::server_config(&server).unwrap()).await;
    let served = error(served).to_string();
    assert!(served.contains("peer sent no certificates"), "{served}");
    let called = error(called).to_string();
    assert!(called.contains("CertificateRequired"), "{called}");
}

#[tokio::test]
async fn a_forged_identity_is_refused_by_its_unknown_root() {
    let (authority, forger) = (TestAuthority::new("root"), TestAuthority::new("root"));
    let (true_web, true_cart) = (authority.issue(&web()), authority.issue(&cart()));
    // The forger trusts the true root, so that the other side alone must refuse.
    let forger = forger.also_trusting(&authority);
    let (false_web, false_cart) = (forger.issue(&web()), forger.issue(&cart()));

    let (_, served) = handshake(
        tls::client_config(&false_web, &[cart()]).unwrap(),
        tls::server_config(&true_cart).unwrap(),
    )
    .await;
    let (called, _) = handshake(
        tls::client_config(&true_web, &[cart()]).unwrap(),
        tls::server_config(&false_cart).unwrap(),
    )
    .await;
    for refused in [error(served), error(called)] {
        let text = refused.to_string();
        assert!(
            text.contains("UnknownIssuer") || text.contains("BadSignature"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn an_expired_certificate_is_refused_on_either_side() {
    let authority = TestAuthority::new("root");
    let fresh = |who: &SpiffeId| authority.issue(who);
    let stale = |who: &SpiffeId| authority.issue_valid(who, Validity::expired());

    let (_, served) = handshake(
        tls::client_config(&stale(&web()), &[cart()]).unwrap(),
        tls::server_config(&fresh(&cart())).unwrap(),
    )
    .await;
    let (called, _) = handshake(
        tls::client_config(&fresh(&web()), &[cart()]).unwrap(),
        tls::server_config(&stale(&cart())).unwrap(),
    )
    .await;
    for refused in [error(served), error(called)] {
        assert!(
            refused.to_string().contains("certificate expired"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn peers_of_both_roots_of_a_bundle_are_trusted() {
    let (old, new) = (TestAuthority::new("old"), TestAuthority::new("new"));
    let new = new.also_trusting(&old);
    let old = old.also_trusting(&new);
    for (client, server) in [
        (old.issue(&web()), new.issue(&cart())),
        (new.issue(&web()), old.issue(&cart())),
    ] {
        let (called, served) = handshake(
            tls::client_config(&client, &[cart()]).unwrap(),
            tls::server_config(&server).unwrap(),
        )
        .await;
        assert_eq!(called.unwrap().peer.unwrap(), cart());
        assert_eq!(served.unwrap().peer.unwrap(), web());
    }
}

#[tokio::test]
async fn a_certificate_without_a_spiffe_id_is_refused_on_either_side() {
    let authority = TestAuthority::new("root");
    let key = rcgen::KeyPair::generate().unwrap();
    let name = rcgen::SanType::DnsName("cart.shop".try_into().unwrap());
    let leaf = authority.sign(&key, vec![name], Validity::lasting(Duration::from_secs(60)));
    let chain = vec![CertificateDer::from(
        pem::parse(leaf).unwrap().into_contents(),
    )];
    let key = || PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));

    let mut nameless = ClientConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAnybody))
        .with_client_auth_cert(chain.clone(), key())
        .unwrap();
    nameless.enable_sni = false;
    let (_, served) = handshake(
        Arc::new(nameless),
        tls::server_config(&authority.issue(&cart())).unwrap(),
    )
    .await;
    assert_eq!(
        tls::peer_refusal(&error(served)),
        Some(&PeerRefused::NoIdentity {
            expected: "one of trust domain cluster.local".into(),
        })
    );

    let nameless = ServerConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key())
        .unwrap();
    let (called, _) = handshake(
        tls::client_config(&authority.issue(&web()), &[cart()]).unwrap(),
        Arc::new(nameless),
    )
    .await;
    assert_eq!(
        tls::peer_refusal(&error(called)),
        Some(&PeerRefused::NoIdentity {
            expected: cart().to_string(),
        })
    );
}

#[tokio::test]
async fn a_peer_that_does_not_negotiate_h2_is_refused() {
    let authority = TestAuthority::new("root");
    let (client, server) = (authority.issue(&web()), authority.issue(&cart()));
    let mut silent = (*tls::client_config(&client, &[cart()]).unwrap()).clone();
    silent.alpn_protocols.clear();
    let (_, served) = handshake(
        Arc::new(silent.clone()),
        tls::server_config(&server).unwrap(),
    )
    .await;
    assert!(matches!(
        served.unwrap().peer,
        Err(TlsError::Protocol { .. })
    ));

    silent.alpn_protocols = vec![b"http/1.1".to_vec()];
    let (called, served) = handshake(Arc::new(silent), tls::server_config(&server).unwrap()).await;
    error(called);
    error(served);
}

#[tokio::test]
async fn an_older_peer_without_post_quantum_groups_still_gets_in() {
    let authority = TestAuthority::new("root");
    let (client, server) = (authority.issue(&web()), authority.issue(&cart()));
    for group in [
        rustls::crypto::aws_lc_rs::kx_group::X25519,
        rustls::crypto::aws_lc_rs::kx_group::SECP256R1,
    ] {
        let mut provider = (*tls::provider()).clone();
        provider.kx_groups = vec![group];
        let mut older = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustAnybody))
            .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(Arc::clone(
                client.certified_key(),
            ))));
        older.enable_sni = false;
        older.alpn_protocols = vec![tls::ALPN_H2.to_vec()];
        let (called, served) =
            handshake(Arc::new(older), tls::server_config(&server).unwrap()).await;
        assert_eq!(called.unwrap().group, Some(group.name()));
        assert_eq!(served.unwrap().peer.unwrap(), web());
    }
}

#[tokio::test]
async fn tls_1_2_is_refused() {
    let server = TestAuthority::new("root").issue(&cart());
    let old = ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS12])
    .unwrap()
    .dangerous()
    .with_custom_certificate_verifier(Arc::new(TrustAnybody))
    .with_no_client_auth();
    let (called, served) = handshake(Arc::new(old), tls::server_config(&server).unwrap()).await;
    let served = error(served).to_string();
    assert!(served.contains("peer is incompatible"), "{served}");
    error(called);
}

#[test]
fn a_client_must_say_whom_it_expects() {
    let certificate = TestAuthority::new("root").issue(&web());
    assert!(matches!(
        tls::client_config(&certificate, &[]),
        Err(TlsError::NobodyExpected)
    ));
}

fn anonymous_client() -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAnybody))
        .with_no_client_auth();
    config.enable_sni = false;
    config
}

/// A client that leaves the refusing to the server.
#[derive(Debug)]
struct TrustAnybody;

impl ServerCertVerifier for TrustAnybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        tls::provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
