// SPDX-License-Identifier: Apache-2.0
//! Serving tunnels with the own engine.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;

use http::StatusCode;
use identity::{BoxFuture, tls};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{Answer, Handler, Incoming, Peer, report};
use crate::engine::link::Link;
use crate::engine::stream::OwnStream;
use crate::engine::tunnel::{Driver, Next};
use crate::error::ServeError;
use crate::stream::TunnelEnd;
use crate::wire::{self, ConnectRequest};

pub(super) fn handshake_error(error: io::Error) -> ServeError {
    let nobody = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref())
        .is_some_and(|error| matches!(error, tls::TlsError::NoPeerIdentity));
    if nobody {
        return ServeError::PeerIdentity;
    }
    ServeError::Handshake(error)
}

/// Serves a tunnel of the own engine until it ends.
pub(super) async fn serve<H: Handler>(
    mut driver: Driver<TcpStream>,
    link: Link,
    peer: Peer,
    handler: Arc<H>,
    mut drain: BoxFuture<'static, ()>,
) -> Result<(), ServeError> {
    let mut tasks = JoinSet::new();
    let outcome = loop {
        let next = poll_fn(|cx| {
            if drain.as_mut().poll(cx).is_ready() {
                drain = Box::pin(std::future::pending());
                link.drain();
            }
            while let Poll::Ready(Some(ended)) = tasks.poll_join_next(cx) {
                report(ended);
            }
            driver.poll_next(cx)
        });
        match next.await {
            Next::Stream(slot, request) => {
                let mut stream = OwnStream::new(link.clone(), slot, TunnelEnd::Server);
                match ConnectRequest::from_http(&request) {
                    Ok(request) => {
                        let incoming = Incoming {
                            peer: peer.identity.clone(),
                            peer_address: peer.address,
                            request,
                            answer: Answer::Own(stream),
                        };
                        tasks.spawn(Arc::clone(&handler).connect(incoming));
                    }
                    Err(error) => {
                        let _gone = stream.respond(&wire::refused(StatusCode::BAD_REQUEST));
                        handler.malformed(&peer.identity, error);
                    }
                }
            }
            Next::Ended(result) => break result,
        }
    };
    // Streams that still live learn that their tunnel is gone.
    drop(driver);
    while let Some(ended) = tasks.join_next().await {
        report(ended);
    }
    outcome.map_err(ServeError::from)
}
