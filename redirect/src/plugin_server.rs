// SPDX-License-Identifier: Apache-2.0
//! Takes the CNI plugin's questions from the unix socket and hands them to the agent, each with a way to answer.
//!
//! An empty or undecodable body is 400; every refusal of the agent is 500 with the reason as text; 200 means that the
//! pod may start. Knows nothing of pods.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::{debug, warn};

use crate::plugin_api::{self, AddReply, AddRequest, DelRequest, GcRequest};

const MAX_BODY: usize = 64 * 1024;
const MAX_CONNECTIONS: usize = 256;
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// A plugin says all that it has to say at once.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);

/// A question of the plugin. An error is text for a person.
#[derive(Debug)]
pub enum Question {
    Add(AddRequest, oneshot::Sender<Result<AddReply, String>>),
    Check(AddRequest, oneshot::Sender<Result<AddReply, String>>),
    Del(DelRequest, oneshot::Sender<()>),
    Gc(GcRequest, oneshot::Sender<()>),
    Status(oneshot::Sender<Result<(), String>>),
}

#[derive(Debug)]
pub struct PluginServer {
    listener: UnixListener,
    questions: mpsc::Sender<Question>,
}

impl PluginServer {
    /// Listens at `path`, in place of what an earlier agent left there; only our own user may connect.
    pub fn bind(path: &Path, questions: mpsc::Sender<Question>) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            listener,
            questions,
        })
    }

    pub async fn run(self) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let slot = Arc::clone(&slots)
                .acquire_owned()
                .await
                .expect("broken invariant: the semaphore is never closed");
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let questions = self.questions.clone();
                    tokio::spawn(async move {
                        serve(stream, questions).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: that passes.
                    metrics::counter!("culvert_accept_exhausted_total", "listener" => "plugin")
                        .increment(1);
                    warn!(%error, "cannot accept a plugin's connection; it waits");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Waits until the agent can answer a plugin.
pub async fn answering(questions: &mpsc::Sender<Question>) {
    while !matches!(put(questions, Question::Status).await, Ok(Ok(()))) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn serve(stream: UnixStream, questions: mpsc::Sender<Question>) {
    let service = service_fn(|request| {
        let questions = questions.clone();
        async move { Ok::<_, Infallible>(respond(request, questions).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "plugin connection ended");
    }
}

async fn respond(
    request: Request<Incoming>,
    questions: mpsc::Sender<Question>,
) -> Response<Full<Bytes>> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => {
            let reason = format!("reading the body: {error}");
            return refuse(StatusCode::INTERNAL_SERVER_ERROR, "body", reason);
        }
        Err(_) => {
            let reason = format!("reading the body: not all of it came within {BODY_TIMEOUT:?}");
            return refuse(StatusCode::REQUEST_TIMEOUT, "timeout", reason);
        }
    };
    match (method, path.as_str()) {
        (Method::POST, plugin_api::ADD) => reply(ask(&body, &questions, Question::Add).await),
        (Method::POST, plugin_api::CHECK) => reply(ask(&body, &questions, Question::Check).await),
        (Method::POST, plugin_api::DEL) => {
            reply(ask(&body, &questions, Question::Del).await.map(Ok))
        }
        (Method::POST, plugin_api::GC) => reply(ask(&body, &questions, Question::Gc).await.map(Ok)),
        (Method::GET, plugin_api::STATUS) => reply(put(&questions, Question::Status).await),
        (method, path) => {
            let reason = format!("nothing is at {method} {}", path.escape_default());
            refuse(StatusCode::NOT_FOUND, "path", reason)
        }
    }
}

struct Failed(StatusCode, String);

async fn ask<Q: serde::de::DeserializeOwned, A>(
    body: &[u8],
    questions: &mpsc::Sender<Question>,
    question: impl FnOnce(Q, oneshot::Sender<A>) -> Question,
) -> Result<A, Failed> {
    let request = serde_json::from_slice(body)
        .map_err(|error| Failed(StatusCode::BAD_REQUEST, format!("body: {error}")))?;
    put(questions, |sender| question(request, sender)).await
}

async fn put<A>(
    questions: &mpsc::Sender<Question>,
    question: impl FnOnce(oneshot::Sender<A>) -> Question,
) -> Result<A, Failed> {
    let stopping = || {
        Failed(
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent is stopping".to_owned(),
        )
    };
    let (sender, receiver) = oneshot::channel();
    questions
        .send(question(sender))
        .await
        .map_err(|_| stopping())?;
    receiver.await.map_err(|_| stopping())
}

fn reply<A: serde::Serialize>(outcome: Result<Result<A, String>, Failed>) -> Response<Full<Bytes>> {
    match outcome {
        Ok(Ok(body)) => {
            let body =
                serde_json::to_vec(&body).expect("broken invariant: an answer is valid JSON");
            answer(StatusCode::OK, body)
        }
        Ok(Err(reason)) => answer(StatusCode::INTERNAL_SERVER_ERROR, reason),
        Err(Failed(status @ StatusCode::BAD_REQUEST, reason)) => refuse(status, "json", reason),
        Err(Failed(status, reason)) => answer(status, reason),
    }
}

/// What is no question at all.
fn refuse(status: StatusCode, word: &'static str, reason: String) -> Response<Full<Bytes>> {
    metrics::counter!("redirect_plugin_refused_total", "reason" => word).increment(1);
    warn!(reason, "plugin's request refused");
    answer(status, reason)
}

fn answer(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}
