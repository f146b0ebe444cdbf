// SPDX-License-Identifier: Apache-2.0
//! Revocation in handshakes and on live connections, between two ends over an in-memory stream.
#![expect(clippy::unwrap_used, reason = "a failed step of a test must stop it")]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use identity::testing::{TestAuthority, serial};
use identity::{
    PeerRole, Revocation, RevocationList, RevocationObserver, Standing, WorkloadCertificate, tls,
};
use spiffe::SpiffeId;
use tokio::io::DuplexStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

fn id(account: &str) -> SpiffeId {
    format!("spiffe://cluster.local/ns/shop/sa/{account}")
        .parse()
        .unwrap()
}

#[derive(Clone, Default)]
struct Counted(Arc<[AtomicUsize; 4]>);

impl Counted {
    fn at(&self, row: usize, peer: PeerRole) -> &AtomicUsize {
        &self.0[row * 2 + usize::from(peer == PeerRole::Server)]
    }

    fn rejected(&self, peer: PeerRole) -> usize {
        self.at(0, peer).load(Ordering::Relaxed)
    }
}

impl RevocationObserver for Counted {
    fn rejected(&self, peer: PeerRole) {
        self.at(0, peer).fetch_add(1, Ordering::Relaxed);
    }

    fn untracked(&self, peer: PeerRole) {
        self.at(1, peer).fetch_add(1, Ordering::Relaxed);
    }
}

/// Two workloads of one authority; each end checks by its own list.
struct Pair {
    authority: TestAuthority,
    counted: Counted,
    client: Arc<WorkloadCertificate>,
    server: Arc<WorkloadCertificate>,
    /// What the client's end knows to be revoked, and the server's.
    known: [Revocation; 2],
}

impl Pair {
    fn new() -> Self {
        let authority = TestAuthority::new("root");
        let counted = Counted::default();
        let known = [(); 2].map(|()| Revocation::new(counted.clone()));
        Self {
            client: authority.issue_checking(&id("web"), &known[0]),
            server: authority.issue_checking(&id("cart"), &known[1]),
            authority,
            counted,
            known,
        }
    }

    fn list(&self, certificate: &WorkloadCertificate) -> RevocationList {
        let text = self.authority.crl(&[serial(certificate, 0)]);
        RevocationList::parse(text.as_bytes()).unwrap()
    }

    async fn shake_hands(
        &self,
    ) -> (
        std::io::Result<client::TlsStream<DuplexStream>>,
        std::io::Result<server::TlsStream<DuplexStream>>,
    ) {
        let (near, far) = tokio::io::duplex(16 << 10);
        let connector =
            TlsConnector::from(tls::client_config(&self.client, &[id("cart")]).unwrap());
        let acceptor = TlsAcceptor::from(tls::server_config(&self.server).unwrap());
        tokio::join!(
            connector.connect(tls::server_name(), near),
            acceptor.accept(far)
        )
    }

    /// A finished handshake, and how each end regards the other.
    async fn connected(&self) -> (Standing, Standing) {
        let (near, far) = self.shake_hands().await;
        (
            tls::standing(near.unwrap().get_ref().1, &self.client, PeerRole::Server),
            tls::standing(far.unwrap().get_ref().1, &self.server, PeerRole::Client),
        )
    }
}

async fn withdrawn(standing: &mut Standing) -> Option<Arc<str>> {
    let ended = poll_fn(|cx| standing.poll_withdrawn(cx));
    timeout(Duration::from_millis(50), ended).await.ok()
}

#[tokio::test]
async fn a_revoked_server_is_refused_by_its_client() {
    let pair = Pair::new();
    pair.known[0].replace(pair.list(&pair.server));
    let (near, _) = pair.shake_hands().await;
    let error = near.unwrap_err();
    assert!(tls::is_revoked(&error), "{error}");
    assert_eq!(pair.counted.rejected(PeerRole::Server), 1);
    // The other end may know nothing of it; an empty list takes it back.
    pair.known[0].replace(RevocationList::default());
    assert!(pair.shake_hands().await.0.is_ok());
}

#[tokio::test]
async fn a_revoked_client_is_refused_by_its_server() {
    let pair = Pair::new();
    pair.known[1].replace(pair.list(&pair.client));
    let (_, far) = pair.shake_hands().await;
    let error = far.unwrap_err();
    assert!(tls::is_revoked(&error), "{error}");
    assert_eq!(pair.counted.rejected(PeerRole::Client), 1);
    assert!(pair.client.revoked_by(&pair.known[1].list()).is_some());
    assert!(pair.server.revoked_by(&pair.known[1].list()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_live_connection_loses_its_standing_when_its_peer_is_revoked() {
    let pair = Pair::new();
    let (mut of_server, mut of_client) = pair.connected().await;
    assert_eq!(pair.known.each_ref().map(Revocation::admitted), [1, 1]);
    // A list of others, and one that the peer knows of itself, change nothing.
    assert_eq!(pair.known[0].replace(pair.list(&pair.client)), 0);
    assert_eq!(withdrawn(&mut of_server).await, None);
    assert_eq!(pair.known[1].replace(pair.list(&pair.client)), 1);
    let reason = withdrawn(&mut of_client).await.unwrap();
    assert!(
        reason.starts_with("peer's certificate with serial "),
        "{reason}"
    );
    assert_eq!(pair.counted.rejected(PeerRole::Client), 1);
    assert_eq!(
        pair.known[1].replace(pair.list(&pair.client)),
        0,
        "it is gone already"
    );
    assert_eq!(withdrawn(&mut of_client).await, None, "it is said once");
    assert_eq!(withdrawn(&mut of_server).await, None);
    drop((of_server, of_client));
    assert_eq!(pair.known.each_ref().map(Revocation::admitted), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_came_between_handshake_and_registration_counts() {
    let pair = Pair::new();
    let (_near, far) = pair.shake_hands().await;
    let far = far.unwrap();
    pair.known[1].replace(pair.list(&pair.client));
    let mut standing = tls::standing(far.get_ref().1, &pair.server, PeerRole::Client);
    assert!(withdrawn(&mut standing).await.is_some());
    assert_eq!(pair.counted.rejected(PeerRole::Client), 1);
    assert_eq!(pair.known[1].admitted(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_intermediate_ends_every_connection_beneath_it() {
    let root = TestAuthority::new("root");
    let intermediate = root.intermediate("intermediate");
    let known = Revocation::new(Counted::default());
    let server = root.issue_checking(&id("cart"), &known);
    let clients = [
        intermediate.issue(&id("web")),
        intermediate.issue(&id("shop")),
    ];
    let mut standings = Vec::new();
    for client in &clients {
        let (near, far) = tokio::io::duplex(16 << 10);
        let connector = TlsConnector::from(tls::client_config(client, &[id("cart")]).unwrap());
        let acceptor = TlsAcceptor::from(tls::server_config(&server).unwrap());
        let (near, far) = tokio::join!(
            connector.connect(tls::server_name(), near),
            acceptor.accept(far)
        );
        near.unwrap();
        let far = far.unwrap();
        standings.push(tls::standing(far.get_ref().1, &server, PeerRole::Client));
    }
    let text = root.crl(&[serial(&clients[0], 1)]);
    assert_eq!(
        known.replace(RevocationList::parse(text.as_bytes()).unwrap()),
        2
    );
    for standing in &mut standings {
        let reason = withdrawn(standing).await.unwrap();
        assert!(reason.contains("authority's certificate"), "{reason}");
    }
}
