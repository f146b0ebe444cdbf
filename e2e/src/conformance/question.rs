// SPDX-License-Identifier: Apache-2.0
//! One question to the authority, and its answer.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use identity::{
    ControlPlane, ControlPlaneConfig, IMPERSONATED_IDENTITY, RootSource, Secret, TokenSource,
};
use prost_types::{Struct, Value, value::Kind};
use proto::ca::IstioCertificateRequest;
use proto::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use spiffe::SpiffeId;
use tonic::Code;

use super::Authority;
use crate::peers::{self, signing_request};

/// What questions ask for, in seconds.
pub(super) const VALIDITY: i64 = 600;
const PAUSE: Duration = Duration::from_millis(100);

/// What is asked, and as whom.
#[derive(Debug, Clone)]
pub(super) struct Question {
    token: Option<String>,
    cluster_id: String,
    /// Whose certificate a proxy asks for; None: the caller's own.
    wanted: Option<String>,
    csr: String,
    key: String,
}

/// What is answered.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The chain, from the leaf up, the roots last.
    Issued(Vec<String>),
    /// With these words.
    Refused(String),
}

impl Question {
    /// A proper one: a proxy asks for an account of its node.
    pub(super) fn of(authority: &Authority, token: &str, wanted: &SpiffeId) -> Result<Self> {
        let (csr, key) = signing_request(wanted)?;
        Ok(Self {
            token: Some(token.to_owned()),
            cluster_id: authority.cluster_id.clone(),
            wanted: Some(wanted.to_string()),
            csr,
            key,
        })
    }

    /// By another token, or none.
    pub(super) fn by(mut self, token: Option<String>) -> Self {
        self.token = token;
        self
    }

    /// Of another cluster; of none where the name is empty.
    pub(super) fn of_cluster(mut self, id: &str) -> Self {
        id.clone_into(&mut self.cluster_id);
        self
    }

    /// For somebody else, whoever that is.
    pub(super) fn naming(mut self, wanted: Option<&str>) -> Self {
        self.wanted = wanted.map(str::to_owned);
        self
    }

    /// With another request to sign.
    pub(super) fn signing(mut self, csr: String, key: String) -> Self {
        (self.csr, self.key) = (csr, key);
        self
    }

    /// Asks once.
    ///
    /// # Errors
    /// If the authority gives no verdict: it can't be reached, or it fails.
    pub(super) async fn ask(&self, authority: &Authority) -> Result<Verdict> {
        let patience = authority.patience;
        let asked = tokio::time::timeout(patience, self.ask_without_end(authority)).await;
        asked.with_context(|| format!("no answer within {patience:?}"))?
    }

    async fn ask_without_end(&self, authority: &Authority) -> Result<Verdict> {
        let token = self.token.clone();
        let plane = ControlPlane::new(ControlPlaneConfig {
            address: format!("https://{}", authority.address),
            root: RootSource::File(authority.roots.clone()),
            token: token.map_or(TokenSource::None, |token| {
                TokenSource::Literal(Secret::from(token))
            }),
            cluster_id: self.cluster_id.clone(),
            alt_hostname: None,
            headers: Vec::new(),
        })?;
        let message = IstioCertificateRequest {
            csr: self.csr.clone(),
            validity_duration: VALIDITY,
            metadata: self.wanted.as_deref().map(impersonated),
        };
        let mut client = IstioCertificateServiceClient::new(plane.channel().await?);
        match client.create_certificate(message).await {
            Ok(response) => Ok(Verdict::Issued(response.into_inner().cert_chain)),
            Err(status) => match status.code() {
                Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument => {
                    Ok(Verdict::Refused(status.message().to_owned()))
                }
                code => bail!("no verdict but {code:?}: {}", status.message()),
            },
        }
    }

    /// Asks until it is issued, for the authority has to hear of pods first. The leaf, described.
    pub(super) async fn is_issued(&self, authority: &Authority) -> Result<Issued> {
        let until = tokio::time::Instant::now() + authority.patience;
        loop {
            match self.ask(authority).await? {
                Verdict::Issued(chain) => {
                    return Ok(Issued {
                        leaf: peers::leaf(&chain)?,
                        chain,
                        key: self.key.clone(),
                    });
                }
                Verdict::Refused(words) if tokio::time::Instant::now() > until => {
                    bail!("was refused: {words}")
                }
                Verdict::Refused(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Asks until it is refused, for the authority has to hear that pods are gone.
    pub(super) async fn becomes_refused(&self, authority: &Authority) -> Result<()> {
        let until = tokio::time::Instant::now() + authority.patience;
        while self.is_refused(authority).await.is_err() {
            if tokio::time::Instant::now() > until {
                bail!("is still issued {:?} later", authority.patience);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Asks once, and it is refused.
    pub(super) async fn is_refused(&self, authority: &Authority) -> Result<()> {
        match self.ask(authority).await? {
            Verdict::Issued(_) => bail!("was issued"),
            Verdict::Refused(_) => Ok(()),
        }
    }
}

/// A certificate that was issued.
pub(super) struct Issued {
    pub(super) leaf: peers::Answer,
    pub(super) chain: Vec<String>,
    pub(super) key: String,
}

fn impersonated(identity: &str) -> Struct {
    let value = Value {
        kind: Some(Kind::StringValue(identity.to_owned())),
    };
    Struct {
        fields: BTreeMap::from([(IMPERSONATED_IDENTITY.to_owned(), value)]),
    }
}
