// SPDX-License-Identifier: Apache-2.0
//! One resource type's subscription, without I/O: what is held, what was accepted,
//! what was refused and why.
//!
//! In: responses, and the handler's verdict on them. Out: the requests to send.
//!
//! ```text
//! open() ──request──► ... response ──► receive() ──Delivery──► handler
//!    ▲                                                            │ rejections
//!    └─ new stream ──────────── reply ◄── conclude() ◄────────────┘
//! ```
//!
//! The subscription is to every resource of its type, the way that naming none
//! means it; or to keys, which the stream's first request lists along with the
//! versions held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proto::ads::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Status};

use crate::held::{Held, Version};

/// Stands for all resources of a type.
const EVERYTHING: &str = "*";

/// How many refusals a reply gives the reasons of.
const MOST_REASONS: usize = 20;

/// A resource as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The name that versions and removals refer to. Whoever keeps it may share it: it is kept here too.
    pub name: Arc<str>,
    /// The version, which may be empty.
    pub version: String,
    /// The resource, serialised.
    pub body: Bytes,
}

/// A resource that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Which.
    pub name: String,
    /// Why, in words that help the control plane's operator.
    pub reason: String,
}

/// A response, split into what the handler gets and what the reply needs.
#[derive(Debug)]
pub struct Delivery {
    /// To be applied first.
    pub resources: Vec<Resource>,
    /// To be removed after that.
    pub removed: Vec<String>,
    /// What the reply is made of.
    pub pending: Pending,
}

/// A response that has not been answered yet.
#[derive(Debug)]
#[must_use = "each response must be answered"]
pub struct Pending {
    nonce: String,
    versions: Vec<(Arc<str>, Version)>,
    removed: Vec<String>,
    refused: Vec<Rejection>,
}

impl Pending {
    /// How many of its resources never reached the handler.
    pub(crate) fn refused(&self) -> usize {
        self.refused.len()
    }
}

/// What is asked for and held of one resource type; outlives streams.
#[derive(Debug)]
pub struct Subscription {
    type_url: &'static str,
    held: Held,
    acknowledged: bool,
}

impl Subscription {
    /// Everything of this type; nothing is held yet.
    pub fn new(type_url: &'static str) -> Self {
        Self {
            type_url,
            held: Held::default(),
            acknowledged: false,
        }
    }

    /// The type subscribed to.
    pub fn type_url(&self) -> &'static str {
        self.type_url
    }

    /// Name to version of what was accepted.
    pub fn held(&self) -> BTreeMap<String, String> {
        self.held.listed()
    }

    /// True once a whole response was accepted. Losing the stream does not undo it.
    pub fn acknowledged(&self) -> bool {
        self.acknowledged
    }

    /// The first request of a stream: it says what is held already, so that only
    /// the difference comes.
    pub fn open(&self, node: &Node) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            node: Some(node.clone()),
            type_url: self.type_url.into(),
            initial_resource_versions: self.held.listed(),
            ..DeltaDiscoveryRequest::default()
        }
    }

    /// The first request of a stream that wants some keys only. Subscribing to and
    /// unsubscribing from everything at once means nothing but what is listed; a key that
    /// nothing is held of by that name is listed with an empty version.
    pub fn open_keys(&self, node: &Node, keys: &[Arc<str>]) -> DeltaDiscoveryRequest {
        let mut request = self.open(node);
        for key in keys {
            let listed = &mut request.initial_resource_versions;
            listed.entry(key.to_string()).or_default();
        }
        request.resource_names_subscribe = vec![EVERYTHING.into()];
        request.resource_names_unsubscribe = vec![EVERYTHING.into()];
        request
    }

    /// Takes a response apart. A resource without a body, or with one that says that it is something else, is refused
    /// here.
    pub fn receive(&self, response: DeltaDiscoveryResponse) -> Delivery {
        let mut resources = Vec::with_capacity(response.resources.len());
        let mut pending = Pending {
            nonce: response.nonce,
            versions: Vec::with_capacity(response.resources.len()),
            removed: response.removed_resources.clone(),
            refused: Vec::new(),
        };
        for resource in response.resources {
            let Some(body) = resource.resource else {
                pending.refused.push(Rejection {
                    name: resource.name,
                    reason: "resource has no body".into(),
                });
                continue;
            };
            // Its bytes might well be read as what they are not.
            if !body.type_url.is_empty() && body.type_url != self.type_url {
                pending.refused.push(Rejection {
                    name: resource.name,
                    reason: format!("its body is a {:?}", body.type_url),
                });
                continue;
            }
            let name = Arc::<str>::from(resource.name);
            let version = Version::from(resource.version.as_str());
            pending.versions.push((Arc::clone(&name), version));
            resources.push(Resource {
                name,
                version: resource.version,
                body: body.value,
            });
        }
        Delivery {
            resources,
            removed: response.removed_resources,
            pending,
        }
    }

    /// Records what the handler made of a delivery, and words the reply.
    ///
    /// A refused resource keeps the version that was accepted before, if any: the
    /// control plane will send it again to a new stream.
    pub fn conclude(
        &mut self,
        pending: Pending,
        rejections: Vec<Rejection>,
    ) -> DeltaDiscoveryRequest {
        let mut refused = pending.refused;
        refused.extend(rejections);
        let names: BTreeSet<&str> = refused
            .iter()
            .map(|refusal| refusal.name.as_str())
            .collect();
        for (name, version) in pending.versions {
            if !names.contains(&*name) {
                self.held.insert(name, version);
            }
        }
        for name in &pending.removed {
            self.held.remove(name);
        }
        let error_detail = (!refused.is_empty()).then(|| nack(&refused));
        self.acknowledged |= error_detail.is_none();
        DeltaDiscoveryRequest {
            type_url: self.type_url.into(),
            response_nonce: pending.nonce,
            error_detail,
            ..DeltaDiscoveryRequest::default()
        }
    }
}

/// A later request for some keys of a type, or no longer for some.
pub fn change_keys(
    type_url: &str,
    subscribe: &[Arc<str>],
    unsubscribe: &[Arc<str>],
) -> DeltaDiscoveryRequest {
    let texts = |keys: &[Arc<str>]| keys.iter().map(ToString::to_string).collect();
    DeltaDiscoveryRequest {
        type_url: type_url.into(),
        resource_names_subscribe: texts(subscribe),
        resource_names_unsubscribe: texts(unsubscribe),
        ..DeltaDiscoveryRequest::default()
    }
}

/// The reply to a response of a type that nobody subscribed to: refused, so that
/// the control plane's operator sees it, and the stream goes on.
pub fn refuse_unknown_type(response: DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    let refusal = Rejection {
        name: response.type_url.clone(),
        reason: "type was not subscribed to".into(),
    };
    DeltaDiscoveryRequest {
        type_url: response.type_url,
        response_nonce: response.nonce,
        error_detail: Some(nack(&[refusal])),
        ..DeltaDiscoveryRequest::default()
    }
}

/// Names the first of those that were refused, for a person to read.
fn nack(refused: &[Rejection]) -> Status {
    let reasons: Vec<_> = refused
        .iter()
        .take(MOST_REASONS)
        .map(|refusal| format!("{}: {}", refusal.name, refusal.reason))
        .collect();
    let mut message = reasons.join("; ");
    if let Some(more @ 1..) = refused.len().checked_sub(MOST_REASONS) {
        message.push_str(&format!("; and {more} more"));
    }
    Status {
        message,
        ..Status::default()
    }
}

#[cfg(test)]
mod tests;
