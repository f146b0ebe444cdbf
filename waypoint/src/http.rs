// SPDX-License-Identifier: Apache-2.0
//! A connection on which HTTP is spoken: which version, then request after request.
//!
//! A drain lets the requests that are under way end and takes no further ones, but for a last one of each HTTP/1 client; a
//! policy that no longer allows the connection cuts it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::StatusCode;
use http::header::{CONNECTION, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ops::shutdown::DrainSignal;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tracing::debug;

use crate::connections::Tracked;
use crate::destination::Destination;
use crate::detect::{self, Spoken};
use crate::failure::Failure;
use crate::framing::{Framing, Verdict};
use crate::hygiene::Malformed;
use crate::listener::Arrival;
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

/// How long, and how much, is read of a client that was answered for the last time.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: u64 = 1 << 20;

/// What the requests of one connection share.
pub struct Conversation {
    pub waypoint: Arc<Waypoint>,
    pub arrival: Arrival,
    /// As it was when the connection came: what is said of its routes is looked up anew for each request.
    pub destination: Destination,
    pub tracked: Tracked,
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
        Self {
            waypoint,
            arrival,
            destination,
            tracked,
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
        let stopped = conversation.tracked.stop().stopped();
        let read = tokio::select! {
            read = client.read_buf(&mut first) => read,
            () = quiet(&conversation.waypoint.draining) => {
                // Given up without an end, it would be reset. If it is gone, nobody waits for one.
                let _ = client.shutdown().await;
                return linger(client).await;
            }
            _ = stopped => return,
        };
        if !matches!(read, Ok(1..)) {
            // It said nothing, and nothing is owed.
            return;
        }
    };
    serve_as(version, conversation, first.freeze(), client).await;
}

/// Serves a client whose first bytes have been read.
pub async fn serve_as(
    version: Version,
    conversation: Arc<Conversation>,
    first: Bytes,
    client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let heads = Arc::<Heads>::default();
    let watch = (version == Version::Http1).then(|| Watch {
        framing: Framing::new(MAX_HEADERS),
        heads: Arc::clone(&heads),
    });
    let client = TokioIo::new(Again {
        first,
        client: Some(client),
        finished: false,
        watch,
    });
    let asked = Arc::clone(&conversation);
    let service = service_fn(move |asked_for| {
        let framed = match version {
            Version::Http1 => heads.next(),
            // Its frames say what belongs to what.
            Version::Http2 => Ok(()),
        };
        let heads = Arc::clone(&heads);
        let draining = asked.waypoint.draining.clone();
        let answering = request::respond(Arc::clone(&asked), asked_for, framed);
        async move {
            let mut answer = answering.await?;
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                heads.end();
            } else if version == Version::Http1 && draining.is_draining() {
                let headers = answer.headers_mut();
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let draining = conversation.waypoint.draining.clone();
    let stop = conversation.tracked.stop().clone();
    let ended = match version {
        Version::Http1 => {
            let connection = http1::Builder::new()
                .half_close(true)
                .max_buf_size(MAX_HEADERS)
                .serve_connection(client, service)
                .with_upgrades();
            let mut connection = pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                _ = stop.stopped() => return,
                () = quiet(&draining) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection => ended,
                        _ = stop.stopped() => return,
                    }
                }
            }
        }
        Version::Http2 => {
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
                _ = stop.stopped() => return,
                () = draining.requested() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection => ended,
                        _ = stop.stopped() => return,
                    }
                }
            }
        }
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

/// What the heads of an HTTP/1.1 connection were found to be, until the library has read them too.
#[derive(Default)]
struct Heads {
    verdicts: Mutex<VecDeque<Verdict>>,
    ended: AtomicBool,
}

/// Heads that the library may have before it; its buffer holds fewer.
const MOST_HEADS: usize = 4096;

impl Heads {
    fn push(&self, verdict: Verdict) {
        let mut verdicts = self.verdicts.lock();
        match verdicts.len() < MOST_HEADS {
            true => verdicts.push_back(verdict),
            false => self.end(),
        }
    }

    /// That of the request that the library has read; a bad one where there is none.
    fn next(&self) -> Verdict {
        let verdict = self.verdicts.lock().pop_front();
        verdict.unwrap_or(Err(Malformed::Beginning))
    }

    /// What comes from here on is no HTTP.
    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

struct Watch {
    framing: Framing,
    heads: Arc<Heads>,
}

impl Watch {
    fn read(&mut self, bytes: &[u8]) {
        if !self.heads.ended.load(Ordering::Relaxed) {
            let heads = &self.heads;
            self.framing.read(bytes, |verdict| heads.push(verdict));
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

/// A stream whose first bytes were read and are to be read again.
///
/// Dropped after its end was said, it goes on reading for a while: a stream that is given up with something unread is
/// reset, and the client might lose the answer that was just sent.
struct Again<S: AsyncRead + Unpin + Send + 'static> {
    first: Bytes,
    /// None once it is dropped.
    client: Option<S>,
    finished: bool,
    /// Looks at what is read, where that is HTTP/1.1.
    watch: Option<Watch>,
}

impl<S: AsyncRead + Unpin + Send + 'static> Again<S> {
    fn client(self: Pin<&mut Self>) -> Pin<&mut S> {
        let client = self.get_mut().client.as_mut();
        Pin::new(client.expect("broken invariant: there until it is dropped"))
    }
}

impl<S: AsyncRead + Unpin + Send + 'static> Drop for Again<S> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take().filter(|_| self.finished) {
            tokio::spawn(linger(client));
        }
    }
}

/// Reads on until the client has ended too, for a while.
async fn linger(client: impl AsyncRead + Unpin) {
    let (mut rest, mut nowhere) = (client.take(LINGER_BYTES), tokio::io::sink());
    let reading = tokio::io::copy(&mut rest, &mut nowhere);
    // Whatever came of it, nobody waits for it.
    let _ = tokio::time::timeout(LINGER, reading).await;
}

impl<S: AsyncRead + Unpin + Send + 'static> AsyncRead for Again<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.first.is_empty() {
            ready!(self.as_mut().client().poll_read(cx, buf))?;
        } else {
            let count = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first[..count]);
            self.first.advance(count);
        }
        if let Some(watch) = &mut self.watch {
            watch.read(&buf.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AsyncWrite for Again<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.client().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.client().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finished = true;
        self.client().poll_shutdown(cx)
    }
}
