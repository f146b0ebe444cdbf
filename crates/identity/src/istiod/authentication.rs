// SPDX-License-Identifier: Apache-2.0
//! What each request to the control plane carries to prove who sends it.
//!
//! In: where the token is. Out: a tonic interceptor that reads it anew for each
//! request, since the kubelet replaces the file long before the token expires.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tonic::metadata::{Ascii, MetadataKey, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};
use zeroize::Zeroizing;

use super::{ControlPlaneConfig, ControlPlaneError};

/// Text that never shows in logs and is wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// How requests prove who sends them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A file, read at each request.
    File(PathBuf),
    /// The token itself.
    Literal(Secret),
    /// Requests are anonymous.
    None,
}

/// Adds token, cluster id and extra headers to each request.
#[derive(Clone)]
pub struct Authentication {
    token: TokenSource,
    headers: Arc<[(MetadataKey<Ascii>, MetadataValue<Ascii>)]>,
}

impl Authentication {
    pub(super) fn new(config: &ControlPlaneConfig) -> Result<Self, ControlPlaneError> {
        let mut headers = Vec::new();
        for (name, value) in &config.headers {
            headers.push(header(name, value)?);
        }
        if config.token != TokenSource::None {
            headers.push(header("clusterid", &config.cluster_id)?);
        }
        Ok(Self {
            token: config.token.clone(),
            headers: headers.into(),
        })
    }

    /// The token of this moment; `None` for anonymous requests.
    fn token(&self) -> Result<Option<Zeroizing<String>>, String> {
        let text = match &self.token {
            TokenSource::None => return Ok(None),
            TokenSource::Literal(Secret(token)) => token.clone(),
            TokenSource::File(path) => std::fs::read_to_string(path)
                .map(Zeroizing::new)
                .map_err(|error| format!("token file {}: {error}", path.display()))?,
        };
        let token = text.trim();
        if token.is_empty() {
            return Err(match &self.token {
                TokenSource::File(path) => format!("token file {}: is empty", path.display()),
                _ => "token is empty".into(),
            });
        }
        Ok(Some(Zeroizing::new(token.to_owned())))
    }
}

impl Interceptor for Authentication {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        for (name, value) in &*self.headers {
            metadata.insert(name.clone(), value.clone());
        }
        if let Some(token) = self.token().map_err(Status::unauthenticated)? {
            let bearer = Zeroizing::new(format!("Bearer {}", *token));
            let mut value: MetadataValue<Ascii> = bearer.parse().map_err(|_| {
                Status::unauthenticated("token: holds characters that a header cannot carry")
            })?;
            value.set_sensitive(true);
            metadata.insert("authorization", value);
        }
        Ok(request)
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authentication")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

fn header(
    name: &str,
    value: &str,
) -> Result<(MetadataKey<Ascii>, MetadataValue<Ascii>), ControlPlaneError> {
    let refuse = |reason: String| ControlPlaneError::Header {
        name: name.into(),
        reason,
    };
    // Values may be secrets, so the reason does not repeat them.
    Ok((
        MetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes())
            .map_err(|error| refuse(error.to_string()))?,
        MetadataValue::try_from(value)
            .map_err(|_| refuse("value holds characters that a header cannot carry".into()))?,
    ))
}
