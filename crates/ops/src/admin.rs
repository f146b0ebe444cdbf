// SPDX-License-Identifier: Apache-2.0
//! Small HTTP/1.1 servers for operators: readiness, metrics, debug pages.
//!
//! A [`Routes`] table maps a method and a path to an answer; [`Routes::serve`] puts it on a listener. Requests are
//! bounded in size, time and number; a body is read only up to a limit, and a large answer is compressed for who asks.
//! Never meant for application traffic.

mod body;
mod compress;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tracing::debug;

use crate::health::Readiness;
use crate::metrics::Metrics;
use crate::serve::serve;
use crate::shutdown::DrainSignal;

/// Connections served at a time by one admin server.
const MAX_CONNECTIONS: usize = 64;
/// The largest request body that is read.
const MAX_BODY: usize = 64 * 1024;
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_HEADER_BUFFER: usize = 8 * 1024;

/// What a handler sees of a request.
#[derive(Debug)]
pub struct AdminRequest {
    /// The method.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// `key=value` pairs of the query, percent-decoded; a key without `=` has an empty value.
    pub query: Vec<(String, String)>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, up to 64 KiB.
    pub body: Bytes,
}

impl AdminRequest {
    /// The first value of a query key.
    pub fn query_value(&self, key: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value.as_str())
    }
}

pub use body::AdminBody;

/// What a handler answers.
pub type AdminResponse = Response<AdminBody>;

type Answer = Pin<Box<dyn Future<Output = AdminResponse> + Send>>;
type Handler = Arc<dyn Fn(AdminRequest) -> Answer + Send + Sync>;

/// An answer with a status, a content type and a body.
pub fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> AdminResponse {
    let mut response = Response::new(AdminBody::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content_type),
    );
    response
}

/// A plain-text answer.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> AdminResponse {
    answer(status, "text/plain; charset=utf-8", body)
}

/// A JSON answer; a value that can't be serialised is a 500 that says why.
pub fn json(value: &impl serde::Serialize) -> AdminResponse {
    match serde_json::to_vec_pretty(value) {
        Ok(body) => answer(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// An answer of lines as they come, for so long; nothing is waited for before the first one.
pub fn lines(
    content_type: &'static str,
    lines: mpsc::Receiver<Bytes>,
    limit: Duration,
) -> AdminResponse {
    let response = answer(StatusCode::OK, content_type, Bytes::new());
    response.map(|_| AdminBody::lines(lines, limit))
}

/// The table of one server.
#[derive(Clone, Default)]
pub struct Routes(BTreeMap<&'static str, Vec<(Option<Method>, Handler)>>);

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Routes {
    /// An empty table: everything is a 404.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers GET (and HEAD) at `path`.
    pub fn get(
        self,
        path: &'static str,
        handler: impl Fn(AdminRequest) -> AdminResponse + Send + Sync + 'static,
    ) -> Self {
        self.on(Some(Method::GET), path, ready(handler))
    }

    /// Answers POST at `path`.
    pub fn post(
        self,
        path: &'static str,
        handler: impl Fn(AdminRequest) -> AdminResponse + Send + Sync + 'static,
    ) -> Self {
        self.on(Some(Method::POST), path, ready(handler))
    }

    /// Answers any method at `path`.
    pub fn any(
        self,
        path: &'static str,
        handler: impl Fn(AdminRequest) -> AdminResponse + Send + Sync + 'static,
    ) -> Self {
        self.on(None, path, ready(handler))
    }

    /// Answers POST at `path` with something that takes a while.
    pub fn post_async<Fut>(
        self,
        path: &'static str,
        handler: impl Fn(AdminRequest) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = AdminResponse> + Send + 'static,
    {
        self.on(Some(Method::POST), path, later(handler))
    }

    /// Answers any method at `path` with something that takes a while.
    pub fn any_async<Fut>(
        self,
        path: &'static str,
        handler: impl Fn(AdminRequest) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = AdminResponse> + Send + 'static,
    {
        self.on(None, path, later(handler))
    }

    /// `/healthz/ready`: 200 when nothing is pending, else 500 with what is.
    pub fn readiness(self, readiness: Readiness) -> Self {
        self.get("/healthz/ready", move |_| match readiness.report() {
            Ok(body) => text(StatusCode::OK, body),
            Err(body) => text(StatusCode::INTERNAL_SERVER_ERROR, body),
        })
    }

    /// `/metrics` and `/stats/prometheus`: the exposition, in the content type that the scraper asks for.
    pub fn metrics(self, metrics: Metrics) -> Self {
        let page = move |request: AdminRequest| {
            let open_metrics = request
                .headers
                .get_all(header::ACCEPT)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .flat_map(|value| value.split(','))
                .any(|item| item.trim().starts_with("application/openmetrics-text"));
            let content_type = if open_metrics {
                "application/openmetrics-text;charset=utf-8;version=1.0.0"
            } else {
                "text/plain; charset=utf-8"
            };
            answer(StatusCode::OK, content_type, metrics.render())
        };
        self.any("/metrics", page.clone())
            .any("/stats/prometheus", page)
    }

    fn on(mut self, method: Option<Method>, path: &'static str, handler: Handler) -> Self {
        self.0.entry(path).or_default().push((method, handler));
        self
    }

    /// Serves the table until the drain is over.
    ///
    /// # Errors
    /// Only when the listener itself is broken.
    pub async fn serve(
        self,
        listener: TcpListener,
        name: &'static str,
        drain: DrainSignal,
    ) -> io::Result<()> {
        let routes = Arc::new(self);
        let draining = drain.clone();
        serve(
            listener,
            name,
            MAX_CONNECTIONS,
            drain,
            move |socket, peer| {
                let routes = Arc::clone(&routes);
                let draining = draining.clone();
                async move {
                    if let Err(error) = routes.converse(socket, draining).await {
                        debug!(server = name, %peer, %error, "admin connection ended");
                    }
                }
            },
        )
        .await
    }

    /// One connection, over any byte stream.
    async fn converse<T>(self: Arc<Self>, socket: T, draining: DrainSignal) -> hyper::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let service = service_fn(move |request| {
            let routes = Arc::clone(&self);
            async move { Ok::<_, Infallible>(routes.respond(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .half_close(true)
            .header_read_timeout(HEADER_READ_TIMEOUT)
            .max_buf_size(MAX_HEADER_BUFFER)
            .serve_connection(TokioIo::new(socket), service);
        tokio::pin!(connection);
        tokio::select! {
            result = &mut connection => result,
            () = draining.requested() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }

    /// Answers what a client sends on a connection, over any byte stream.
    #[cfg(fuzzing)]
    #[doc(hidden)]
    pub async fn converse_for_fuzzing<T: AsyncRead + AsyncWrite + Unpin>(self, socket: T) {
        let (_shutdown, drain) = crate::shutdown::channel();
        let _ = Arc::new(self).converse(socket, drain).await;
    }

    async fn respond(&self, request: Request<Incoming>) -> AdminResponse {
        let Some(handlers) = self.0.get(request.uri().path()) else {
            return text(StatusCode::NOT_FOUND, "not found\n");
        };
        let head_is_get = if request.method() == Method::HEAD {
            Method::GET
        } else {
            request.method().clone()
        };
        let Some((_, handler)) = handlers
            .iter()
            .find(|(method, _)| method.as_ref().is_none_or(|m| *m == head_is_get))
        else {
            return text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
        };
        let (parts, body) = request.into_parts();
        let body = match Limited::new(body, MAX_BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return text(StatusCode::PAYLOAD_TOO_LARGE, format!("{error}\n")),
        };
        let headers = parts.headers.clone();
        let answer = handler(AdminRequest {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: parse_query(parts.uri.query().unwrap_or_default()),
            headers: parts.headers,
            body,
        })
        .await;
        compress::compressed(answer, &headers)
    }
}

fn later<Fut>(handler: impl Fn(AdminRequest) -> Fut + Send + Sync + 'static) -> Handler
where
    Fut: Future<Output = AdminResponse> + Send + 'static,
{
    Arc::new(move |request| Box::pin(handler(request)))
}

fn ready(handler: impl Fn(AdminRequest) -> AdminResponse + Send + Sync + 'static) -> Handler {
    Arc::new(move |request| Box::pin(std::future::ready(handler(request))))
}

fn parse_query(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(key), percent_decode(value))
        })
        .collect()
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match tail {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = &tail[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|d| u8::try_from(d).ok())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::shutdown;

    async fn ask(routes: Routes, request: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, drain) = shutdown::channel();
        let served = tokio::spawn(routes.serve(listener, "test", drain));
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        shutdown.start();
        served.await.unwrap().unwrap();
        answer
    }

    fn request(method: &str, path: &str, headers: &str) -> String {
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")
    }

    #[tokio::test]
    async fn readiness_is_500_with_the_pending_parts_then_200() {
        let readiness = Readiness::default();
        let part = readiness.register("proxy");
        let routes = Routes::new().readiness(readiness);
        let before = ask(routes.clone(), &request("GET", "/healthz/ready", "")).await;
        assert!(before.starts_with("HTTP/1.1 500 "), "{before}");
        assert!(before.ends_with("not ready, pending: proxy\n"), "{before}");
        part.ready();
        let after = ask(routes.clone(), &request("GET", "/healthz/ready", "")).await;
        assert!(
            after.starts_with("HTTP/1.1 200 ") && after.ends_with("ready\n"),
            "{after}"
        );
        let post = ask(routes.clone(), &request("POST", "/healthz/ready", "")).await;
        assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
        let other = ask(routes, &request("GET", "/nope", "")).await;
        assert!(other.starts_with("HTTP/1.1 404 "), "{other}");
    }

    #[tokio::test]
    async fn the_scraper_gets_the_content_type_it_asked_for() {
        let routes = Routes::new().metrics(Metrics::default());
        let accept = "accept: text/html, application/openmetrics-text; version=1.0.0\r\n";
        let open = ask(routes.clone(), &request("GET", "/metrics", accept)).await;
        assert!(
            open.contains("content-type: application/openmetrics-text"),
            "{open}"
        );
        assert!(open.ends_with("# EOF\n"), "{open}");
        let plain = ask(routes, &request("GET", "/stats/prometheus", "")).await;
        assert!(plain.contains("content-type: text/plain"), "{plain}");
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_is_refused() {
        let routes = Routes::new().post("/x", |_| text(StatusCode::OK, "read"));
        let body = "y".repeat(MAX_BODY + 1);
        let head = request("POST", "/x", &format!("content-length: {}\r\n", body.len()));
        let answer = ask(routes, &(head + &body)).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }

    #[tokio::test]
    async fn lines_come_as_they_are_said_and_end_with_their_time() {
        let (said, heard) = mpsc::channel(1);
        let heard = std::sync::Mutex::new(Some(heard));
        let routes = Routes::new().get("/lines", move |_| {
            let heard = heard.lock().unwrap().take().unwrap();
            lines("application/jsonl", heard, Duration::from_millis(300))
        });
        let request = request("GET", "/lines", "accept-encoding: gzip\r\n");
        let asking = ask(routes, &request);
        let saying = async {
            said.send(Bytes::from_static(b"one\n")).await.unwrap();
            said.send(Bytes::from_static(b"two\n")).await.unwrap();
            said.closed().await;
        };
        let (answer, ()) = tokio::join!(asking, saying);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(
            answer.contains("4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n"),
            "{answer}"
        );
    }

    #[test]
    fn queries_are_split_and_decoded() {
        let pairs = parse_query("level=a%3Ddebug,b&reset&x=%zz+1");
        let want = [("level", "a=debug,b"), ("reset", ""), ("x", "%zz 1")];
        let want: Vec<_> = want.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(pairs, want);
    }
}
