// SPDX-License-Identifier: Apache-2.0
//! What a hostile peer reaches: the headers of a request, and either end of a tunnel right behind TLS.
//!
//! Built for the fuzz targets only. The caller brings the runtime; nothing here waits for a peer that stays silent.

use std::sync::Arc;

use http::{Request, StatusCode};
use identity::Standing;
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;

use crate::client::{self, Checkout};
use crate::config::Config;
pub use crate::engine::fuzzing::{records, session};
use crate::engine::tunnel::Farewell;
use crate::server::{Handler, Incoming, Peer, Server};
use crate::wire::{Authority, ConnectRequest};

/// Reads a request; what could be read must come back the same once it is written.
pub fn connect_request(request: &Request<()>) {
    let Ok(read) = ConnectRequest::from_http(request) else {
        return;
    };
    let again = |read: &ConnectRequest| {
        let written = read.to_http().expect("what was read can be written");
        ConnectRequest::from_http(&written).expect("what was written can be read")
    };
    let second = again(&read);
    assert_eq!(second.authority, read.authority);
    assert_eq!(second.traceparent, read.traceparent);
    // Descriptions lose what HTTP cannot carry when they are written first, and nothing after that.
    assert_eq!(again(&second), second);
}

/// Serves, with the library, a client whose bytes come out of `io`; echoes what its streams send.
pub async fn serve<T>(io: T)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let server = Server::new(Config::default());
    let Ok(opened) = server.open(io, Standing::unconditional()).await else {
        return;
    };
    let peer = Peer {
        identity: someone(),
        address: None,
    };
    let (_drain, drain) = watch::channel(false);
    let _ = server.carry(opened, peer, Arc::new(Echo), drain).await;
}

/// Opens a stream, with the library, to a server whose bytes come out of `io`; sends some, reads all.
pub async fn open<T>(io: T)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = Config::default();
    let server = client::Peer {
        identity: someone(),
        standing: Standing::unconditional(),
    };
    let Ok(connected) = client::open(io, server, Farewell::Close, &config).await else {
        return;
    };
    let driver = tokio::spawn(connected.driver);
    if let Checkout::Ready(lease) = connected.tunnel.checkout() {
        let request = ConnectRequest::new(Authority::Host("web.shop".into(), 80));
        let request = request.to_http().expect("a request of ours");
        if let Ok((mut stream, _info)) = lease.request(request, &config).await {
            let _ = stream.write_all(b"hello").await;
            let _ = stream.shutdown().await;
            let mut taken = Vec::new();
            let _ = stream.read_to_end(&mut taken).await;
        }
    }
    connected.tunnel.abort();
    let _ = driver.await;
}

fn someone() -> SpiffeId {
    "spiffe://cluster.local/ns/shop/sa/web"
        .parse()
        .expect("an identity")
}

struct Echo;

impl Handler for Echo {
    async fn connect(self: Arc<Self>, incoming: Incoming) {
        if incoming.request.authority.port() == 1 {
            return incoming.reject(StatusCode::FORBIDDEN);
        }
        let baggage = incoming.request.baggage.clone();
        let Ok(stream) = incoming.accept(baggage.as_ref()) else {
            return;
        };
        let (mut read, mut write) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    }
}
