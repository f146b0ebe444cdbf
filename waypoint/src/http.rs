// SPDX-License-Identifier: Apache-2.0
//! A connection on which HTTP is spoken: which version, then request after request.
//!
//! A drain lets the requests that are under way end and takes no further ones, but for a last one of each HTTP/1 client; a
//! policy that no longer allows the connection cuts it.

mod wire;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::{CONNECTION, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ops::shutdown::DrainSignal;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::Instant;
use tracing::debug;

use self::wire::{Again, Answering, Back, Heads, Watch, linger};
use crate::connections::Tracked;
use crate::destination::Destination;
use crate::detect::{self, Spoken};
use crate::failure::Failure;
use crate::listener::Arrival;
use crate::memory::OfService;
use crate::request;
use crate::upstream::Version;
use crate::waypoint::Waypoint;

/// Bytes of a request's headers.
pub const MAX_HEADERS: usize = 60 * 1024;

/// Requests that an HTTP/2 client may have under way on one connection.
const MAX_STREAMS: u32 = 256;

/// Bytes that may be on their way on one stream, and on one connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// How long an HTTP/1 client may send one more request once the waypoint drains.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// How long an HTTP/1 connection is idle, at least, before what the library holds for it is given back: some 16 KiB of
/// buffers.
const REST: Duration = Duration::from_secs(5);

/// Bytes of a client that are read at once where nothing is under way.
const FIRST: usize = 4 << 10;

/// What the requests of one connection share.
pub struct Conversation {
    pub waypoint: Arc<Waypoint>,
    pub arrival: Arrival,
    /// As it was when the connection came: what is said of its routes is looked up anew for each request.
    pub destination: Destination,
    pub tracked: Tracked,
    /// Where it is noted what is asked for; nothing of what is meant for no service.
    pub memory: Option<Arc<OfService>>,
    introduction: OnceLock<Introduction>,
}

/// What every request of a connection tells of its client.
pub struct Introduction {
    /// For `x-forwarded-client-cert`.
    pub certificate: Option<HeaderValue>,
    pub ip: IpAddr,
    /// The same as a value.
    pub address: HeaderValue,
}

impl Conversation {
    pub fn new(
        waypoint: Arc<Waypoint>,
        arrival: Arrival,
        destination: Destination,
        tracked: Tracked,
    ) -> Self {
        let service = destination.service();
        let memory = service.and_then(|service| waypoint.memory.of(&service.key()));
        Self {
            waypoint,
            arrival,
            destination,
            tracked,
            memory,
            introduction: OnceLock::new(),
        }
    }

    /// Made with the first request.
    pub fn introduction(&self) -> &Introduction {
        self.introduction.get_or_init(|| {
            let (own, client) = (&self.waypoint.own.identity, &self.arrival.identity);
            let certificate = HeaderValue::try_from(format!("By={own};URI={client}"));
            let ip = self.arrival.peer.ip();
            let address = HeaderValue::try_from(ip.to_string());
            Introduction {
                certificate: certificate.ok(),
                ip,
                address: address.expect("broken invariant: an address is a header's value"),
            }
        })
    }
}

/// Finds out which version a client speaks, and serves it.
pub async fn serve(
    conversation: Arc<Conversation>,
    mut client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let mut first = BytesMut::new();
    let version = loop {
        match detect::http(&first) {
            Spoken::Http(version) => break version,
            Spoken::Unclear | Spoken::Other => {}
        }
        let Some((more, same)) = next(&conversation, client).await else {
            return;
        };
        client = same;
        first.extend_from_slice(&more);
    };
    serve_as(version, conversation, first.freeze(), client).await;
}

/// What a client says next, of whom nothing is under way. It is only then that there is room for it.
async fn next<S: AsyncRead + AsyncWrite + Unpin>(
    conversation: &Conversation,
    mut client: S,
) -> Option<(Bytes, S)> {
    let read = poll_fn(|cx| {
        let mut room = [MaybeUninit::uninit(); FIRST];
        let mut read = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut client).poll_read(cx, &mut read))?;
        Poll::Ready(io::Result::Ok(Bytes::copy_from_slice(read.filled())))
    });
    let read = tokio::select! {
        read = read => read,
        () = quiet(&conversation.waypoint.draining) => {
            // Given up without an end, it would be reset. If it is gone, nobody waits for one.
            let _ = client.shutdown().await;
            linger(client).await;
            return None;
        }
        _ = conversation.tracked.stop().stopped() => return None,
    };
    let said = read.ok()?;
    if said.is_empty() {
        // It has ended, and nothing is owed. If it is gone, nobody waits for ours.
        let _ = client.shutdown().await;
        return None;
    }
    Some((said, client))
}

/// Serves a client whose first bytes have been read.
pub async fn serve_as(
    version: Version,
    conversation: Arc<Conversation>,
    first: Bytes,
    client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let ended = match version {
        Version::Http1 => serve_http1(&conversation, first, client).await,
        Version::Http2 => serve_http2(&conversation, first, client).await,
    };
    match ended {
        // Answered by the library itself, before anything else saw it.
        Err(error) if error.is_parse() => {
            let failure = Failure::ClientHttp(error.to_string().into());
            let recorder = &conversation.waypoint.recorder;
            recorder.refuse(&conversation.arrival.ends(), &failure);
        }
        Err(error) => {
            let peer = conversation.arrival.peer;
            debug!(%peer, %error, "HTTP connection ended");
        }
        Ok(()) => {}
    }
}

/// Serves until the client ends, or is ended. Between requests, once it rests, there is nothing but its stream.
async fn serve_http1<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    conversation: &Arc<Conversation>,
    first: Bytes,
    client: S,
) -> hyper::Result<()> {
    let mut client = (first, client);
    loop {
        // Boxed: nearly all of it is over when the client rests.
        match Box::pin(serve_until_rest(conversation, client)).await {
            Served::Ended(ended) => return ended,
            Served::Rests(Some((first, same))) if !first.is_empty() => client = (first, same),
            Served::Rests(Some((_, same))) => match next(conversation, same).await {
                Some(more) => client = more,
                None => return Ok(()),
            },
            // Its end was said, and what is to come of it is somebody else's.
            Served::Rests(None) => return Ok(()),
        }
    }
}

/// What became of an HTTP/1 connection.
enum Served<S> {
    Ended(hyper::Result<()>),
    /// Nothing is under way: its stream, with what was read and not looked at.
    Rests(Option<(Bytes, S)>),
}

async fn serve_until_rest<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    conversation: &Arc<Conversation>,
    (first, client): (Bytes, S),
) -> Served<S> {
    let heads = Arc::<Heads>::default();
    let back = Back::default();
    let watch = Some(Watch::new(&heads));
    let client = TokioIo::new(Again::new(first, client, watch, Arc::clone(&back)));
    let asked = Arc::clone(conversation);
    let watched = Arc::clone(&heads);
    let service = service_fn(move |asked_for| {
        let framed = watched.next();
        let taken = watched.take();
        let heads = Arc::clone(&watched);
        let draining = asked.waypoint.draining.clone();
        let answering = request::respond(Arc::clone(&asked), asked_for, framed);
        async move {
            let mut answer = answering.await?;
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                heads.end();
            } else if draining.is_draining() {
                let headers = answer.headers_mut();
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer.map(|body| Answering {
                body,
                _taken: taken,
            }))
        }
    });
    let (draining, stop) = (&conversation.waypoint.draining, conversation.tracked.stop());
    let ended = {
        let connection = http1::Builder::new()
            .half_close(true)
            .max_buf_size(MAX_HEADERS)
            .serve_connection(client, service)
            .with_upgrades();
        let mut connection = pin!(connection);
        tokio::select! {
            ended = until_rest(connection.as_mut(), &heads) => ended,
            _ = stop.stopped() => Some(Ok(())),
            () = quiet(draining) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => Some(ended),
                    _ = stop.stopped() => Some(Ok(())),
                }
            }
        }
    };
    match ended {
        Some(ended) => Served::Ended(ended),
        None => Served::Rests(back.lock().take()),
    }
}

/// The end of a connection; nothing if it rests before.
async fn until_rest(
    mut connection: Pin<&mut impl Future<Output = hyper::Result<()>>>,
    heads: &Heads,
) -> Option<hyper::Result<()>> {
    let mut clock = pin!(tokio::time::sleep(REST));
    // How many requests there had been when the clock was set. It runs on over those that come meanwhile, so that a busy
    // connection pays for it once in so many seconds, not with each of them.
    let mut set: Option<usize> = None;
    poll_fn(|cx| {
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            return Poll::Ready(Some(ended));
        }
        let now = heads.at_rest();
        if set.is_some() && clock.as_mut().poll(cx).is_ready() {
            if now == set {
                return Poll::Ready(None);
            }
            set = None;
        }
        if set.is_none() && now.is_some() {
            set = now;
            clock.as_mut().reset(Instant::now() + REST);
            // Asked, it wakes this task in time.
            let _not_yet = clock.as_mut().poll(cx);
        }
        Poll::Pending
    })
    .await
}

async fn serve_http2(
    conversation: &Arc<Conversation>,
    first: Bytes,
    client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> hyper::Result<()> {
    let client = TokioIo::new(Again::new(first, client, None, Back::default()));
    let asked = Arc::clone(conversation);
    // Its frames say what belongs to what.
    let service =
        service_fn(move |asked_for| request::respond(Arc::clone(&asked), asked_for, Ok(())));
    let (draining, stop) = (&conversation.waypoint.draining, conversation.tracked.stop());
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .enable_connect_protocol()
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(client, service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stop.stopped() => Ok(()),
        () = draining.requested() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                _ = stop.stopped() => Ok(()),
            }
        }
    }
}

/// Comes a while after a drain was asked for. HTTP/1 has no word by which a server ends an idle connection: a request may
/// be on its way, and its client would take the end for an answer that was lost. Until then each answer says that it is
/// the last.
async fn quiet(draining: &DrainSignal) {
    draining.requested().await;
    tokio::time::sleep(LAST_REQUESTS).await;
}

#[cfg(test)]
mod tests;
