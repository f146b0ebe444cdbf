// SPDX-License-Identifier: Apache-2.0
//! A client of the control plane that holds nothing but names and versions, so that many fit into one process.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use identity::{
    CaClient as _, ControlPlane as Plane, ControlPlaneConfig, CsrRequest, IstioCa, RootSource,
    Secret, TokenSource,
};
use proto::ads::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use proto::ads::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use proto::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL};
use spiffe::SpiffeId;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::ControlPlane;
use crate::peers::signing_request;

const PATIENCE: Duration = Duration::from_secs(300);
const LARGEST: usize = 200 << 20;

/// Name to version.
pub type Held = BTreeMap<String, String>;

/// What all clients have in common.
#[derive(Clone)]
pub struct Clients {
    plane: Plane,
}

impl Clients {
    pub fn new(plane: &ControlPlane) -> Result<Self> {
        Self::with_token(plane, plane.token())
    }

    pub fn with_token(plane: &ControlPlane, token: &str) -> Result<Self> {
        let config = ControlPlaneConfig {
            address: format!("https://{}", plane.address()),
            root: RootSource::File(plane.roots()),
            token: TokenSource::Literal(Secret::from(token.to_owned())),
            cluster_id: "Kubernetes".to_owned(),
            alt_hostname: None,
            headers: Vec::new(),
        };
        Ok(Self {
            plane: Plane::new(config)?,
        })
    }
}

impl Clients {
    /// Asks for a certificate of this identity, as a node's proxy does. The chain as PEM, from the leaf up.
    pub async fn certify(&self, identity: &SpiffeId) -> Result<Vec<String>> {
        let (csr_pem, _key) = signing_request(identity)?;
        let request = CsrRequest {
            csr_pem,
            identity: identity.clone(),
            ttl: Duration::from_secs(600),
        };
        let signing = IstioCa::new(self.plane.clone()).sign(request).await;
        signing.context("no certificate")
    }
}

pub struct Client {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Client {
    /// Subscribes to everything, as a ztunnel does that holds this already.
    pub async fn open(clients: &Clients, number: usize, held: &Held) -> Result<Self> {
        let channel = clients.plane.channel().await?;
        let (requests, queue) = mpsc::channel(16);
        for type_url in [ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL] {
            let listed = (type_url == ADDRESS_TYPE_URL).then(|| held.clone());
            let request = DeltaDiscoveryRequest {
                node: Some(Node {
                    id: format!(
                        "ztunnel~127.0.0.1~ztunnel-{number}.istio-system~istio-system.svc.cluster.local"
                    ),
                    ..Node::default()
                }),
                type_url: type_url.to_owned(),
                initial_resource_versions: listed.unwrap_or_default(),
                ..DeltaDiscoveryRequest::default()
            };
            requests.send(request).await?;
        }
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(LARGEST);
        let stream = client
            .delta_aggregated_resources(ReceiverStream::new(queue))
            .await?;
        Ok(Self {
            requests,
            responses: stream.into_inner(),
        })
    }

    /// The first answer about workloads and services: what it sends, by name and version.
    pub async fn complete(mut self) -> Result<(Self, Held)> {
        let response = self.next_addresses().await?;
        let resources = response.resources.into_iter();
        let sent = resources
            .map(|resource| (resource.name, resource.version))
            .collect();
        Ok((self, sent))
    }

    /// The next push about workloads and services, and how many resources it holds.
    pub async fn next_push(mut self) -> Result<(Self, usize)> {
        let response = self.next_addresses().await?;
        Ok((self, response.resources.len()))
    }

    /// The next answer about workloads and services, accepted.
    pub async fn next_addresses(&mut self) -> Result<DeltaDiscoveryResponse> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.responses.message()).await;
            let Some(response) = message.context("no answer in time")?? else {
                bail!("the control plane ended the stream");
            };
            let accepted = DeltaDiscoveryRequest {
                type_url: response.type_url.clone(),
                response_nonce: response.nonce.clone(),
                ..DeltaDiscoveryRequest::default()
            };
            self.requests.send(accepted).await?;
            if response.type_url == ADDRESS_TYPE_URL {
                return Ok(response);
            }
        }
    }
}
