// SPDX-License-Identifier: Apache-2.0
//! A peer that loses its standing while its tunnel lives: either end ends it, with all its streams, and says why.

use std::sync::Arc;

use crate::common::{Mesh, ServerSide, echo, id, key, raw, soon};
use hbone::{Config, End, Engine, Pool, ServeError};
use identity::testing::{TestAuthority, serial};
use identity::{
    FixedCertificates, PeerRole, Revocation, RevocationList, RevocationObserver,
    WorkloadCertificate,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Unheard;

impl RevocationObserver for Unheard {
    fn rejected(&self, _: PeerRole) {}
    fn untracked(&self, _: PeerRole) {}
}

/// A mesh in which each end checks the other by its own list.
struct Checked {
    mesh: Mesh,
    client: Arc<WorkloadCertificate>,
    server: Arc<WorkloadCertificate>,
    known_to_client: Revocation,
    known_to_server: Revocation,
}

impl Checked {
    async fn new(engine: Engine) -> Self {
        let config = Config {
            engine,
            ..Config::default()
        };
        let (known_to_client, known_to_server) =
            (Revocation::new(Unheard), Revocation::new(Unheard));
        let mut mesh = Mesh::new().await;
        let authority = TestAuthority::new("root");
        let client = authority.issue_checking(&id("client"), &known_to_client);
        let server = authority.issue_checking(&id("server"), &known_to_server);
        mesh.server = ServerSide::start(config.clone(), Arc::clone(&server)).await;
        mesh.key = key(mesh.server.address);
        let certificates: FixedCertificates = [Arc::clone(&client)].into_iter().collect();
        mesh.pool = Pool::new(config, Arc::new(certificates));
        mesh.authority = authority;
        Self {
            mesh,
            client,
            server,
            known_to_client,
            known_to_server,
        }
    }

    fn list(&self, certificate: &WorkloadCertificate) -> RevocationList {
        let text = self.mesh.authority.crl(&[serial(certificate, 0)]);
        RevocationList::parse(text.as_bytes()).unwrap()
    }
}

#[tokio::test]
async fn a_server_says_goodbye_to_a_revoked_client_and_ends_its_streams() {
    for engine in [Engine::Own, Engine::Library] {
        let mut checked = Checked::new(engine).await;
        let echo = echo().await;
        let (mut one, first) = checked.mesh.connect(echo).await;
        let (mut two, second) = checked.mesh.connect(echo).await;
        for application in [&mut one, &mut two] {
            application.write_all(b"hello").await.unwrap();
            soon(application.read_exact(&mut [0; 5])).await.unwrap();
        }
        assert_eq!(checked.known_to_server.admitted(), 1, "both share a tunnel");
        let list = checked.list(&checked.client);
        assert_eq!(checked.known_to_server.replace(list), 1);
        let mesh = &mut checked.mesh;
        match soon(mesh.server.ended.recv()).await.unwrap() {
            Err(ServeError::Withdrawn(reason)) => {
                assert!(reason.contains("was revoked by"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        for _ in 0..2 {
            let outcome = soon(mesh.server.outcomes.recv()).await.unwrap();
            assert!(matches!(outcome.end, End::Withdrawn { .. }), "{outcome:?}");
            assert_eq!(
                (outcome.sent, outcome.received),
                (10, 10),
                "of both together"
            );
        }
        // At the other end the tunnel broke, and nothing more is known.
        for (mut application, relay) in [(one, first), (two, second)] {
            let outcome = soon(relay).await.unwrap();
            assert!(
                matches!(outcome.end, End::Reset { .. } | End::Failed { .. }),
                "{outcome:?}"
            );
            assert!(soon(application.read(&mut [0; 1])).await.is_err());
        }
        assert_eq!(mesh.pool.tunnels(), 0);
        assert!(
            soon(mesh.open(echo)).await.is_err(),
            "and it does not come back"
        );
    }
}

#[tokio::test]
async fn the_goodbye_is_a_goaway_without_error() {
    for engine in [Engine::Own, Engine::Library] {
        let checked = Checked::new(engine).await;
        let mut tls = raw::tls(checked.mesh.server.address, &checked.client).await;
        let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        tls.write_all(greeting).await.unwrap();
        // Once its settings have come, the tunnel is served.
        let mut heard = vec![0; 9];
        soon(tls.read_exact(&mut heard)).await.unwrap();
        let list = checked.list(&checked.client);
        assert_eq!(checked.known_to_server.replace(list), 1);
        soon(tls.read_to_end(&mut heard)).await.unwrap();
        // Last stream 0, NO_ERROR.
        let goaway = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert!(
            heard.windows(goaway.len()).any(|window| window == goaway),
            "{heard:02x?}"
        );
    }
}

#[tokio::test]
async fn a_client_drops_its_tunnel_to_a_revoked_server() {
    for engine in [Engine::Own, Engine::Library] {
        let checked = Checked::new(engine).await;
        let echo = echo().await;
        let (mut application, relay) = checked.mesh.connect(echo).await;
        application.write_all(b"hello").await.unwrap();
        soon(application.read_exact(&mut [0; 5])).await.unwrap();
        assert_eq!(checked.known_to_client.admitted(), 1);
        let list = checked.list(&checked.server);
        assert_eq!(checked.known_to_client.replace(list), 1);
        let outcome = soon(relay).await.unwrap();
        let End::Withdrawn { reason } = outcome.end else {
            panic!("{outcome:?}");
        };
        assert!(reason.contains("was revoked by"), "{reason}");
        assert!(
            soon(application.read(&mut [0; 1])).await.is_err(),
            "it is reset"
        );
        assert_eq!(checked.known_to_client.admitted(), 0);
        let error = soon(checked.mesh.open(echo)).await.unwrap_err();
        assert!(error.to_string().contains("evoked"), "{error}");
    }
}
