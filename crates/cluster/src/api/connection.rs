// SPDX-License-Identifier: Apache-2.0
//! How an API server is reached, and one request to it. What is known of kube stands here.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;

const CONNECT: Duration = Duration::from_secs(10);
/// Until an answer begins; one with a body that is not a stream has the same time again for all of it.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);
/// Of what is no list, in bytes.
const MAX_ANSWER: usize = 16 << 20;
/// Of the explanation of a refusal.
const MAX_REFUSAL: usize = 256 << 10;

/// Where an API server is and who we are to it.
#[derive(Clone)]
pub struct Connection(Box<kube::Config>);

/// Why it is not known how to reach an API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("kubeconfig {path}: {source}", path = path.display())]
    Kubeconfig {
        path: PathBuf,
        source: kube::config::KubeconfigError,
    },
    #[error("neither a kubeconfig is named nor is this a pod of a cluster: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("API server {server}: {reason}")]
    Client { server: String, reason: String },
}

impl Connection {
    /// As a kubeconfig file says, or without one as the pod that this process runs in.
    ///
    /// # Errors
    /// A file that can't be used; none, outside of a pod.
    pub async fn open(kubeconfig: Option<&Path>) -> Result<Self, ConnectionError> {
        match kubeconfig {
            Some(path) => Self::kubeconfig(path).await,
            None => Self::in_cluster(),
        }
    }

    /// As the service account of the pod that this process runs in.
    pub fn in_cluster() -> Result<Self, ConnectionError> {
        Ok(Self::new(kube::Config::incluster()?))
    }

    /// As a kubeconfig file says in its current context.
    pub async fn kubeconfig(path: &Path) -> Result<Self, ConnectionError> {
        let named = |source| ConnectionError::Kubeconfig {
            path: path.to_owned(),
            source,
        };
        let file = Kubeconfig::read_from(path).map_err(named)?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await;
        config.map(Self::new).map_err(named)
    }

    fn new(mut config: kube::Config) -> Self {
        config.connect_timeout = Some(CONNECT);
        // A watch is silent for as long as nothing happens, and who waits for how long is decided here.
        (config.read_timeout, config.default_retry) = (None, false);
        Self(Box::new(config))
    }

    /// A client that lives on the runtime it is made in; outside of one it panics.
    pub fn client(&self) -> Result<Client, ConnectionError> {
        let client = kube::Client::try_from((*self.0).clone());
        client.map(Client).map_err(|error| ConnectionError::Client {
            server: self.0.cluster_url.to_string(),
            reason: chain(&error),
        })
    }
}

/// Names the server; the rest is secret.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.0.cluster_url)
    }
}

/// Sends requests, as many at a time as there are callers.
#[derive(Clone)]
pub struct Client(kube::Client);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The server's word.
    #[error("{code} {reason}: {message}")]
    Refused {
        code: u16,
        reason: String,
        message: String,
    },
    /// No connection, or one that broke, or an answer that is none.
    #[error("{0}")]
    Broken(String),
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

impl RequestError {
    /// The HTTP status, where the server answered.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// The part of a `Status` that says why.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    code: u16,
    reason: String,
    message: String,
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        let Refusal {
            code,
            reason,
            message,
        } = refusal;
        Self::Refused {
            code,
            reason,
            message,
        }
    }
}

impl Client {
    /// Sends a request and waits until its answer begins. Statuses other than 2xx are errors.
    pub(crate) async fn open(&self, request: Request<Vec<u8>>) -> Result<Body, RequestError> {
        let sending = self.0.send(request.map(Body::from));
        let response = tokio::time::timeout(ANSWER, sending)
            .await
            .map_err(|_| RequestError::Silent(ANSWER))?
            .map_err(|error| RequestError::Broken(chain(&error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let text = collect(response.into_body(), MAX_REFUSAL).await?;
        let refusal: Refusal = serde_json::from_slice(&text).unwrap_or_default();
        Err(RequestError::Refused {
            code: status.as_u16(),
            reason: refusal.reason,
            // What stands between us and the server explains itself in other words.
            message: Some(refusal.message)
                .filter(|message| !message.is_empty())
                .unwrap_or_else(|| String::from_utf8_lossy(&text).trim().to_owned()),
        })
    }

    /// Sends a request whose URI is a path, and reads the answer as JSON; an empty one is `Null`.
    ///
    /// # Errors
    /// Statuses other than 2xx, and whatever came instead of an answer.
    pub async fn call(&self, request: Request<Vec<u8>>) -> Result<serde_json::Value, RequestError> {
        let text = self.read(request, MAX_ANSWER).await?;
        if text.is_empty() {
            return Ok(serde_json::Value::Null);
        }
        serde_json::from_slice(&text)
            .map_err(|error| RequestError::Broken(format!("the answer is not understood: {error}")))
    }

    /// Server-side apply: creates the object at `path`, or has it say what is said here under the name of `manager`,
    /// whoever said otherwise. What `manager` said before and says no more is taken back.
    ///
    /// # Errors
    /// As of [`Client::call`].
    pub async fn apply(
        &self,
        path: &str,
        manager: &str,
        object: &serde_json::Value,
    ) -> Result<serde_json::Value, RequestError> {
        let request = Request::patch(format!("{path}?fieldManager={manager}&force=true"))
            // JSON is YAML.
            .header(CONTENT_TYPE, "application/apply-patch+yaml")
            .body(object.to_string().into_bytes())
            .map_err(|error| RequestError::Broken(format!("{path}: {error}")))?;
        self.call(request).await
    }

    /// JSON merge patch: has the object at `path` say what is said here, in the name of `manager`; `null` removes.
    ///
    /// # Errors
    /// As of [`Client::call`].
    pub async fn merge(
        &self,
        path: &str,
        manager: &str,
        patch: &serde_json::Value,
    ) -> Result<serde_json::Value, RequestError> {
        let request = Request::patch(format!("{path}?fieldManager={manager}"))
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(patch.to_string().into_bytes())
            .map_err(|error| RequestError::Broken(format!("{path}: {error}")))?;
        self.call(request).await
    }

    /// Sends a request and reads the whole answer, up to a limit in bytes.
    pub(crate) async fn read(
        &self,
        request: Request<Vec<u8>>,
        limit: usize,
    ) -> Result<Bytes, RequestError> {
        collect(self.open(request).await?, limit).await
    }
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, RequestError> {
    let collecting = Limited::new(body, limit).collect();
    match tokio::time::timeout(ANSWER, collecting).await {
        Err(_) => Err(RequestError::Silent(ANSWER)),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(RequestError::TooLarge(limit)),
        Ok(Err(error)) => Err(RequestError::Broken(chain(error.as_ref()))),
    }
}

/// An error with all that caused it, without saying anything twice.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
