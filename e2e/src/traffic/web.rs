// SPDX-License-Identifier: Apache-2.0
//! What applications of today serve: HTTP/1.1 with connections that are kept, HTTP/2 with gRPC and its trailers, WebSocket.
//!
//! Every page says which pod answers; `/grpc` and `/echo` send back the body, `/ws` becomes bytes that come back. Told to
//! end, it lets each connection come to the end of what it is at.

use std::convert::Infallible;
use std::io;
use std::rc::Rc;

use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

type Body = BoxBody<Bytes, hyper::Error>;

/// As long as HTTP/2's preface is unlike any request.
const PREFACE: &[u8] = b"PRI ";

/// Serves a connection until its client ends it, or what it is at once `closing` is said. What it has become goes on among
/// what is `open`.
pub(super) async fn serve(
    stream: TcpStream,
    pod: &str,
    closing: &CancellationToken,
    open: &TaskTracker,
) -> io::Result<()> {
    let mut first = [0; PREFACE.len()];
    while stream.peek(&mut first).await? < PREFACE.len() {
        stream.readable().await?;
        if stream.peek(&mut first).await? == 0 {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
    let pod: Rc<str> = pod.into();
    let open = open.clone();
    let service = service_fn(move |request| answer(Rc::clone(&pod), open.clone(), request));
    let stream = TokioIo::new(stream);
    let ended = if first == PREFACE {
        let connection = http2::Builder::new(Local).serve_connection(stream, service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    } else {
        let connection = http1::Builder::new()
            .serve_connection(stream, service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    ended.map_err(io::Error::other)
}

/// Runs what a connection needs where the connection runs.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

fn text(text: String) -> Body {
    Full::new(text.into())
        .map_err(|never: Infallible| match never {})
        .boxed()
}

async fn answer(
    pod: Rc<str>,
    open: TaskTracker,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut response = Response::new(text(String::new()));
    match path.split('/').nth(1) {
        Some("ws") if request.headers().contains_key(UPGRADE) => {
            let upgrading = hyper::upgrade::on(&mut request);
            open.spawn_local(async move {
                let Ok(upgraded) = upgrading.await else {
                    return;
                };
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
                // Whoever is gone has ended it.
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
            });
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        Some(kind @ ("grpc" | "echo")) => {
            // A whole message, as a unary call has it.
            let body = request.into_body().collect().await;
            let body = body
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            let body = Full::new(body).map_err(|never: Infallible| match never {});
            *response.body_mut() = match kind {
                "grpc" => {
                    response
                        .headers_mut()
                        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
                    let trailers = HeaderMap::from_iter([(
                        http::HeaderName::from_static("grpc-status"),
                        HeaderValue::from_static("0"),
                    )]);
                    body.with_trailers(async move { Some(Ok(trailers)) })
                        .boxed()
                }
                _ => body.boxed(),
            };
        }
        _ => {
            let page = serde_json::json!({"pod": &*pod, "path": path});
            *response.body_mut() = text(page.to_string());
        }
    }
    Ok(response)
}
