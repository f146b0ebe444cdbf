// SPDX-License-Identifier: Apache-2.0
//! A certificate request goes out, a certificate chain comes in.
//!
//! The transport to Istio's certificate service. It sees requests and chains as
//! text: no keys, no interpretation of the answer.

use std::collections::BTreeMap;
use std::time::Duration;

use prost_types::{Struct, Value, value::Kind};
use proto::ca::IstioCertificateRequest;
use proto::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use spiffe::SpiffeId;
use tokio::sync::Mutex;

use crate::{AuthenticatedChannel, BoxFuture, CertificateError, ControlPlane, chain};

/// The metadata key under which a node names the workload it asks for.
pub const IMPERSONATED_IDENTITY: &str = "ImpersonatedIdentity";

/// A request for one certificate.
#[derive(Debug, Clone)]
pub struct CsrRequest {
    /// The PEM request, signed by the key that will belong to the certificate.
    pub csr_pem: String,
    /// Whose certificate is asked for.
    pub identity: SpiffeId,
    /// The validity wished for.
    pub ttl: Duration,
}

/// Someone who signs certificate requests.
pub trait CaClient: Send + Sync {
    /// The chain as PEM elements: leaf first, the bundle of roots last.
    fn sign(&self, request: CsrRequest) -> BoxFuture<'_, Result<Vec<String>, CertificateError>>;
}

/// Istio's certificate service.
pub struct IstioCa {
    control_plane: ControlPlane,
    asks: Asks,
    /// Kept between requests; given up when a call finds it broken, or when the roots have changed.
    held: Mutex<Option<Held>>,
}

/// A channel, and the roots that the server was verified by.
struct Held {
    channel: AuthenticatedChannel,
    roots: Option<Vec<u8>>,
}

/// For whom certificates are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// For the node's workloads, which the caller's account may act for.
    OnBehalf,
    /// For the workload that the caller is itself.
    ForItself,
}

impl IstioCa {
    /// The client of a node's proxy, which asks on behalf of its workloads. It connects at the first request.
    pub fn new(control_plane: ControlPlane) -> Self {
        Self {
            control_plane,
            asks: Asks::OnBehalf,
            held: Mutex::new(None),
        }
    }

    /// The client of a workload that asks for itself: whoever its token speaks for is certified, and nobody else.
    pub fn for_itself(control_plane: ControlPlane) -> Self {
        Self {
            asks: Asks::ForItself,
            ..Self::new(control_plane)
        }
    }

    async fn channel(&self) -> Result<AuthenticatedChannel, String> {
        let mut held = self.held.lock().await;
        let roots = self.control_plane.root_file();
        if let Some(held) = &*held
            && held.roots == roots
        {
            return Ok(held.channel.clone());
        }
        match (self.control_plane.channel().await, &mut *held) {
            (Ok(channel), held) => {
                let fresh = Held { channel, roots };
                Ok(held.insert(fresh).channel.clone())
            }
            // Roots that are half replaced must not cost us a channel that works.
            (Err(error), Some(held)) => {
                tracing::warn!(%error, "no channel by the new roots, keeping the one by the old");
                Ok(held.channel.clone())
            }
            (Err(error), None) => Err(chain(&error)),
        }
    }

    async fn create(&self, request: CsrRequest) -> Result<Vec<String>, String> {
        let mut client = IstioCertificateServiceClient::new(self.channel().await?);
        let message = IstioCertificateRequest {
            csr: request.csr_pem,
            validity_duration: i64::try_from(request.ttl.as_secs()).unwrap_or(i64::MAX),
            metadata: match self.asks {
                Asks::OnBehalf => Some(impersonate(&request.identity)),
                Asks::ForItself => None,
            },
        };
        match client.create_certificate(message).await {
            Ok(response) => Ok(response.into_inner().cert_chain),
            Err(status) => {
                // A broken channel is rebuilt by the next request, with the roots of that time.
                if status.code() == tonic::Code::Unavailable {
                    *self.held.lock().await = None;
                }
                Err(describe(&status))
            }
        }
    }
}

impl CaClient for IstioCa {
    fn sign(&self, request: CsrRequest) -> BoxFuture<'_, Result<Vec<String>, CertificateError>> {
        Box::pin(async move {
            let identity = request.identity.clone();
            self.create(request)
                .await
                .map_err(|reason| CertificateError::Authority { identity, reason })
        })
    }
}

fn impersonate(identity: &SpiffeId) -> Struct {
    let value = Value {
        kind: Some(Kind::StringValue(identity.to_string())),
    };
    Struct {
        fields: BTreeMap::from([(IMPERSONATED_IDENTITY.into(), value)]),
    }
}

fn describe(status: &tonic::Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    if let Some(source) = std::error::Error::source(status) {
        text.push_str(": ");
        text.push_str(&chain(source));
    }
    text
}
