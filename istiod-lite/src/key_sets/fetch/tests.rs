// SPDX-License-Identifier: Apache-2.0
//! Servers over loopback, which only the tests' own rule of addresses allows.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

const KEYS: &str = r#"{"keys": []}"#;

fn only_one(address: IpAddr) -> Option<&'static str> {
    (address != IpAddr::V4(Ipv4Addr::LOCALHOST)).then_some("is not the tests'")
}

fn fetcher() -> Fetcher {
    Fetcher::with(RootCertStore::empty(), only_one).unwrap()
}

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn to(location: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
}

struct Server {
    at: SocketAddr,
    /// The paths that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Answers each path as told; an empty answer is none.
    async fn start(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(SocketAddr, &str) -> String + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (noted, answer) = (Arc::clone(&asked), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (noted, answer, tls) = (Arc::clone(&noted), Arc::clone(&answer), tls.clone());
                let answer = move |path: &str| {
                    noted.lock().push(path.to_owned());
                    answer(at, path)
                };
                tokio::spawn(async move {
                    match tls {
                        None => converse(socket, answer).await,
                        // A client that doesn't trust it is no news here.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(socket).await {
                                converse(stream, answer).await;
                            }
                        }
                    }
                });
            }
        });
        Self { at, asked }
    }

    fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }
}

async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(&str) -> String,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let answer = answer(head.split(' ').nth(1).unwrap_or_default());
    if answer.is_empty() {
        return std::future::pending().await;
    }
    // Whoever has read enough may leave.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn fetch(fetcher: &Fetcher, uri: &str) -> Result<KeySet, String> {
    let source = KeySource::uri(uri, Duration::from_secs(5));
    fetcher.fetch(&source).await
}

#[tokio::test]
async fn a_set_is_fetched_as_it_is_now() {
    let turn = AtomicUsize::new(0);
    let server = Server::start(None, move |_, _| {
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        let body = format!(r#"{{"keys": [{{"kid": "{turn}"}}]}}"#);
        ok(&body).replace("\r\n\r\n", "\r\nCache-Control: public, max-age=90\r\n\r\n")
    })
    .await;
    for turn in 0..2 {
        let set = fetch(&fetcher(), &server.uri("/keys?a=b")).await.unwrap();
        assert_eq!(set.keys, format!(r#"{{"keys": [{{"kid": "{turn}"}}]}}"#));
        assert_eq!(set.fresh_for, Some(Duration::from_secs(90)));
    }
    assert_eq!(*server.asked.lock(), ["/keys?a=b", "/keys?a=b"]);
}

#[tokio::test]
async fn over_tls_its_authority_has_to_be_trusted() {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names)
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .unwrap();
    let server = Server::start(
        Some(TlsAcceptor::from(Arc::new(config))),
        |_, path| match path {
            "/down" => to("http://127.0.0.1:1/keys"),
            "/on" => to("/keys"),
            _ => ok(KEYS),
        },
    )
    .await;
    let uri = |path: &str| format!("https://{}{path}", server.at);
    let error = fetch(&fetcher(), &uri("/keys")).await.unwrap_err();
    assert!(error.starts_with("TLS with 127.0.0.1"), "{error}");
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let trusting = Fetcher::with(roots, only_one).unwrap();
    for path in ["/keys", "/on"] {
        assert_eq!(fetch(&trusting, &uri(path)).await.unwrap().keys, KEYS);
    }
    let error = fetch(&trusting, &uri("/down")).await.unwrap_err();
    assert!(error.contains("without TLS"), "{error}");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), certificate.pem()).unwrap();
    assert!(Fetcher::new(file.path()).is_ok());
    std::fs::write(file.path(), certificate.pem().replace('A', "!")).unwrap();
    assert!(Fetcher::new(file.path()).is_err());
    assert!(Fetcher::new(Path::new("/nothing/there")).is_ok());
}

#[tokio::test]
async fn redirects_are_followed_a_few_times_and_never_to_where_nothing_is_fetched() {
    let server = Server::start(None, |at, path| match path {
        "/one" => to("/two?x=y"),
        "/two?x=y" => to(&format!("http://{at}/three")),
        "/three" => to("/keys"),
        "/round" => to("/round"),
        "/elsewhere" => to("http://127.0.0.2:1/keys"),
        "/metadata" => to("http://169.254.169.254/latest"),
        "/nowhere" => to("keys"),
        "/protocol" => to("//127.0.0.1/keys"),
        _ => ok(KEYS),
    })
    .await;
    let set = fetch(&fetcher(), &server.uri("/one")).await;
    assert_eq!(set.unwrap().keys, KEYS);
    for (path, words) in [
        ("/round", "redirected 3 times"),
        (
            "/elsewhere",
            "127.0.0.2 is 127.0.0.2, which is not the tests'",
        ),
        ("/metadata", "169.254.169.254, which"),
        ("/nowhere", "redirected to \"keys\""),
        ("/protocol", "redirected to \"//127.0.0.1/keys\""),
    ] {
        let error = fetch(&fetcher(), &server.uri(path)).await.unwrap_err();
        assert!(error.contains(words), "{path}: {error}");
    }
}

#[tokio::test]
async fn this_host_is_asked_for_nothing_by_whatever_name() {
    let server = Server::start(None, |_, _| ok(KEYS)).await;
    let strict = Fetcher::with(RootCertStore::empty(), address::forbidden).unwrap();
    let port = server.at.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "127.1",
    ] {
        let error = fetch(&strict, &format!("http://{host}:{port}/keys"))
            .await
            .unwrap_err();
        // Not every resolver takes the short form for an address.
        assert!(
            error.contains("nothing is fetched") || host == "127.1",
            "{host}: {error}"
        );
    }
    assert_eq!(server.asked.lock().len(), 0);
}

#[tokio::test]
async fn what_is_no_set_is_told_as_what_it_is() {
    let server = Server::start(None, |_, path| match path {
        "/missing" => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".into(),
        "/text" => ok("keys"),
        "/other" => ok(r#"{"keys": "none"}"#),
        "/large" => ok(&" ".repeat(LONGEST + 1)),
        "/short" => "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".into(),
        "/noise" => "220 ready\r\n".into(),
        _ => String::new(),
    })
    .await;
    for (path, words) in [
        ("/missing", "127.0.0.1 answered 404"),
        ("/text", "is no JSON"),
        ("/other", "has no list of keys"),
        ("/large", "longer than"),
        ("/short", "broke off"),
        ("/noise", "127.0.0.1: "),
    ] {
        let error = fetch(&fetcher(), &server.uri(path)).await.unwrap_err();
        assert!(error.contains(words), "{path}: {error}");
    }
    let silent = KeySource::uri(server.uri("/silence"), Duration::from_millis(200));
    let error = fetcher().fetch(&silent).await.unwrap_err();
    assert_eq!(error, "it took longer than 200ms");
    for uri in [
        "",
        "keys",
        "ftp://127.0.0.1/",
        "http://",
        "http://user@127.0.0.1/",
        "http:///x",
    ] {
        let error = fetch(&fetcher(), uri).await.unwrap_err();
        assert!(
            error.contains("is no http or https address"),
            "{uri}: {error}"
        );
    }
}

#[tokio::test]
async fn an_issuer_tells_where_its_keys_are() {
    let server = Server::start(None, |at, path| match path {
        "/good/.well-known/openid-configuration" => ok(&format!(
            r#"{{"issuer": "http://{at}/good/", "jwks_uri": "http://{at}/keys"}}"#
        )),
        "/bad/.well-known/openid-configuration" => ok(&format!(
            r#"{{"issuer": "http://{at}/good", "jwks_uri": "http://{at}/keys"}}"#
        )),
        "/none/.well-known/openid-configuration" => ok(r#"{}"#),
        "/local/.well-known/openid-configuration" => ok(r#"{"jwks_uri": "http://127.0.0.9/"}"#),
        _ => ok(KEYS),
    })
    .await;
    let issuer = |path: &str| KeySource {
        place: KeyPlace::Issuer(server.uri(path)),
        timeout: Duration::from_secs(5),
    };
    let fetcher = fetcher();
    assert_eq!(fetcher.fetch(&issuer("/good")).await.unwrap().keys, KEYS);
    for (path, words) in [
        ("/bad", "tells of issuer"),
        ("/none", "has no jwks_uri"),
        ("/local", "127.0.0.9, which"),
    ] {
        let error = fetcher.fetch(&issuer(path)).await.unwrap_err();
        assert!(error.contains(words), "{path}: {error}");
    }
}

#[tokio::test]
async fn a_set_that_could_not_be_fetched_is_fetched_once_it_can_be() {
    let turn = AtomicUsize::new(0);
    let server = Server::start(None, move |_, _| {
        match turn.fetch_add(1, Ordering::Relaxed) {
            0 => "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".into(),
            _ => ok(KEYS),
        }
    })
    .await;
    let source = KeySource::uri(server.uri("/"), Duration::from_secs(5));
    let (wanted, wants) = tokio::sync::watch::channel([source.clone()].into());
    let (tell, mut told) = tokio::sync::mpsc::channel(1);
    let (_shutdown, drain) = ops::shutdown::channel();
    let keeping = tokio::spawn(super::super::keep(wants, tell, fetcher(), drain));
    let first = told.recv().await.unwrap();
    assert_eq!(
        first,
        (
            source.clone(),
            Err("127.0.0.1 answered 503 Service Unavailable".into())
        )
    );
    let second = timeout(Duration::from_secs(5), told.recv()).await;
    assert_eq!(second.unwrap().unwrap(), (source, Ok(KEYS.into())));
    drop(wanted);
    let ended = timeout(Duration::from_secs(5), keeping).await;
    ended.unwrap().unwrap();
}
