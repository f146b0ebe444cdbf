// SPDX-License-Identifier: Apache-2.0
//! Certificates for those who may have them.
//!
//! A caller proves who it is by its token. It gets its own identity, or, as the
//! proxy of a node, that of a pod there. It learns nothing of why it is refused;
//! the log and a counter do.

use std::{sync::Arc, time::SystemTime};

use proto::ca::{
    IstioCertificateRequest, IstioCertificateResponse,
    istio_certificate_service_server::IstioCertificateService,
};
use spiffe::{SpiffeError, SpiffeId};
use tonic::{Request, Response, Status, metadata::MetadataMap};

use crate::{
    authenticate::{AuthenticationError, Caller, OPAQUE_REFUSAL, REVIEW_OUTAGE, Refusal, Tokens},
    authority::Asked,
    bearer,
    ca::SignError,
};

/// Names, in a request's metadata, whom the certificate is for.
const IMPERSONATED_IDENTITY: &str = "ImpersonatedIdentity";
/// The header that names the cluster whose tokens are meant.
const CLUSTER_ID: &str = "clusterid";

/// The certificate service.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// Signs, and knows what callers may have.
    pub asked: Asked,
    /// Know callers.
    pub tokens: Arc<Tokens>,
    /// This cluster.
    pub cluster_id: Arc<str>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
enum Denied {
    #[error("there is no bearer token")]
    NoToken,
    #[error(transparent)]
    Token(#[from] AuthenticationError),
    #[error("the request names cluster {0:?}")]
    Cluster(String),
    #[error("a request for another's identity must name its cluster")]
    NoCluster,
    #[error("{caller} asks for an identity that is none: {error}")]
    Identity {
        caller: Box<Caller>,
        error: SpiffeError,
    },
    #[error("{caller}: {refusal}")]
    Refused {
        caller: Box<Caller>,
        refusal: Box<Refusal>,
    },
    #[error("{caller} asks for {identity}: {error}")]
    Sign {
        caller: Box<Caller>,
        identity: SpiffeId,
        error: SignError,
    },
}

impl Denied {
    /// What a client is told: whose fault it is, and of its own request the rest.
    fn status(&self) -> Status {
        match self {
            Self::Sign { error, .. } if error.code() == tonic::Code::InvalidArgument => {
                Status::invalid_argument(error.to_string())
            }
            // Whoever may have the certificate may know whom to wait for.
            Self::Sign { error, .. } if error.is_of_time() => {
                Status::new(error.code(), error.to_string())
            }
            Self::Sign { error, .. } => {
                Status::new(error.code(), "the certificate can't be signed")
            }
            Self::Token(error) if error.is_outage() => Status::unavailable(REVIEW_OUTAGE),
            Self::NoToken
            | Self::Token(_)
            | Self::Cluster(_)
            | Self::NoCluster
            | Self::Identity { .. }
            | Self::Refused { .. } => Status::unauthenticated(OPAQUE_REFUSAL),
        }
    }

    /// The counter's label.
    fn label(&self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::Token(error) if error.is_outage() => "token_review",
            Self::Token(_) => "token",
            Self::Cluster(_) | Self::NoCluster => "cluster",
            Self::Identity { .. } => "identity",
            Self::Refused { refusal, .. } => match &**refusal {
                Refusal::NotTrusted { .. } => "not_trusted",
                Refusal::NoPod { .. } => "no_pod",
                Refusal::OtherUid { .. } => "other_uid",
                Refusal::OtherServiceAccount { .. } => "other_service_account",
                Refusal::Ended { .. } => "ended",
                Refusal::NoNode { .. } => "no_node",
                Refusal::OtherNode { .. } => "other_node",
                Refusal::ForeignTrustDomain { .. } => "foreign_trust_domain",
                Refusal::NotOnNode { .. } => "not_on_node",
                Refusal::NoIdentity(_) => "no_identity",
            },
            Self::Sign { error, .. } => match error {
                SignError::Request(_) | SignError::Signature | SignError::Key(_) => "request",
                SignError::TooLong { .. } => "validity",
                SignError::SignerExpired(_) => "signer_expired",
                SignError::SignerNotYetValid(_) => "signer_not_yet_valid",
                SignError::Name { .. } | SignError::Signing(_) => "signing",
            },
        }
    }
}

#[tonic::async_trait]
impl IstioCertificateService for Certificates {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        metrics::counter!("citadel_server_csr_count_total").increment(1);
        let (metadata, _, request) = request.into_parts();
        match self.certify(&metadata, &request).await {
            Ok(cert_chain) => {
                metrics::counter!("citadel_server_success_cert_issuance_count_total").increment(1);
                Ok(Response::new(IstioCertificateResponse { cert_chain }))
            }
            Err(denied) => {
                let reason = denied.label();
                metrics::counter!("culvert_ca_refused_total", "reason" => reason).increment(1);
                tracing::warn!(reason, error = %denied, "certificate refused");
                Err(denied.status())
            }
        }
    }
}

impl Certificates {
    async fn certify(
        &self,
        metadata: &MetadataMap,
        request: &IstioCertificateRequest,
    ) -> Result<Vec<String>, Denied> {
        let now = SystemTime::now();
        let token = bearer::token(metadata).ok_or(Denied::NoToken)?;
        let caller = self.tokens.caller(token, now).await?;
        let cluster = self.named_cluster(metadata)?;
        let identity = match impersonated(request) {
            Some(text) => {
                // The rules of another cluster are not ours to guess.
                cluster.ok_or(Denied::NoCluster)?;
                self.impersonated_identity(&caller, text)?
            }
            None => self.own_identity(&caller)?,
        };
        let signed = self.asked.authority.sign(
            &request.csr,
            &identity,
            &caller,
            request.validity_duration,
            now,
        );
        let chain = match signed {
            Ok(chain) => chain,
            Err(error) => {
                return Err(Denied::Sign {
                    caller: Box::new(caller),
                    identity,
                    error,
                });
            }
        };
        tracing::debug!(%caller, %identity, "certificate issued");
        Ok(chain)
    }

    /// The cluster that the request names: ours, or none.
    fn named_cluster(&self, metadata: &MetadataMap) -> Result<Option<Named>, Denied> {
        let Some(value) = metadata.get(CLUSTER_ID) else {
            return Ok(None);
        };
        match value.to_str().unwrap_or("not text") {
            "" => Ok(None),
            named if *named == *self.cluster_id => Ok(Some(Named)),
            other => Err(Denied::Cluster(other.to_owned())),
        }
    }

    fn own_identity(&self, caller: &Caller) -> Result<SpiffeId, Denied> {
        let Asked {
            authorizer, index, ..
        } = &self.asked;
        let decision = authorizer.own_identity(caller, &*index.read());
        decision.map_err(|refusal| Denied::Refused {
            caller: Box::new(caller.clone()),
            refusal: Box::new(refusal),
        })
    }

    fn impersonated_identity(&self, caller: &Caller, text: &str) -> Result<SpiffeId, Denied> {
        let identity: SpiffeId = text.parse().map_err(|error| Denied::Identity {
            caller: Box::new(caller.clone()),
            error,
        })?;
        let Asked {
            authorizer, index, ..
        } = &self.asked;
        let decision = authorizer.may_impersonate(caller, &identity, &*index.read());
        decision.map_err(|refusal| Denied::Refused {
            caller: Box::new(caller.clone()),
            refusal: Box::new(refusal),
        })?;
        Ok(identity)
    }
}

/// The request names our cluster.
struct Named;

/// Whose identity is asked for; a value of another type is as good as a wrong one.
fn impersonated(request: &IstioCertificateRequest) -> Option<&str> {
    let value = request
        .metadata
        .as_ref()?
        .fields
        .get(IMPERSONATED_IDENTITY)?;
    match &value.kind {
        Some(prost_types::value::Kind::StringValue(text)) => Some(text),
        _ => Some(""),
    }
}
