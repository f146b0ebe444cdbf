// SPDX-License-Identifier: Apache-2.0
//! One response of the control plane, decoded and converted before anybody holds a lock.
//!
//! A resource that is refused does not hold up the others: it becomes a [`Rejection`] for the answer to the control
//! plane, and what was known under its name stays.

use std::sync::Arc;

use prost::Message;

use crate::from_proto::{self, ConvertError};
use crate::intern::Common;
use crate::policy::Policy;
use crate::service::Service;
use crate::workload::Workload;

/// A resource as it came from the wire.
#[derive(Debug, Clone, Copy)]
pub struct Update<'a> {
    /// The resource's name.
    pub name: &'a Arc<str>,
    /// Its encoded body.
    pub body: &'a [u8],
}

/// A resource that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The resource's name.
    pub name: String,
    /// Object, field and what is wrong with it.
    pub reason: String,
}

/// Workloads and services to add, names to remove.
#[derive(Debug, Default)]
pub struct AddressBatch {
    /// Added or replaced, in this order.
    pub workloads: Vec<Workload>,
    /// Added or replaced, in this order.
    pub services: Vec<Service>,
    /// Uids or `namespace/hostname`, removed after that.
    pub removed: Vec<String>,
}

impl AddressBatch {
    /// Decodes `istio.workload.Address` resources.
    pub fn decode<'a>(
        updates: impl IntoIterator<Item = Update<'a>>,
        removed: Vec<String>,
    ) -> (Self, Vec<Rejection>) {
        use proto::workload::address::Type;

        let mut batch = Self {
            removed,
            ..Self::default()
        };
        let mut rejections = Vec::new();
        let mut common = Common::default();
        for update in updates {
            let converted =
                decode::<proto::workload::Address>("Address", update).and_then(|address| {
                    match address.r#type {
                        Some(Type::Workload(workload)) => {
                            let mut workload = from_proto::workload(workload)?;
                            common.share(&mut workload);
                            // The name is the uid, and whoever asks for updates keeps the name.
                            if workload.uid == *update.name {
                                workload.uid = Arc::clone(update.name);
                            }
                            batch.workloads.push(workload);
                            Ok(())
                        }
                        Some(Type::Service(service)) => {
                            batch.services.push(from_proto::service(service)?);
                            Ok(())
                        }
                        None => Err(ConvertError::new(
                            format!("Address {}", update.name),
                            "type",
                            "is neither a workload nor a service",
                        )),
                    }
                });
            reject(update, converted, &mut rejections);
        }
        (batch, rejections)
    }
}

/// Policies to add, keys to remove.
#[derive(Debug, Default)]
pub struct PolicyBatch {
    /// Added or replaced, with the keys by which workloads name them.
    pub policies: Vec<(Arc<str>, Policy)>,
    /// Keys, removed after that.
    pub removed: Vec<String>,
}

impl PolicyBatch {
    /// Decodes `istio.security.Authorization` resources. A resource's name is the policy's key.
    pub fn decode<'a>(
        updates: impl IntoIterator<Item = Update<'a>>,
        removed: Vec<String>,
    ) -> (Self, Vec<Rejection>) {
        let mut batch = Self {
            removed,
            ..Self::default()
        };
        let mut rejections = Vec::new();
        for update in updates {
            let converted = decode("Authorization", update)
                .and_then(from_proto::policy)
                .map(|policy| batch.policies.push((Arc::clone(update.name), policy)));
            reject(update, converted, &mut rejections);
        }
        (batch, rejections)
    }
}

fn decode<M: Message + Default>(kind: &str, update: Update<'_>) -> Result<M, ConvertError> {
    M::decode(update.body).map_err(|error| {
        ConvertError::new(format!("{kind} {}", update.name), "body", error.to_string())
    })
}

fn reject(
    update: Update<'_>,
    converted: Result<(), ConvertError>,
    rejections: &mut Vec<Rejection>,
) {
    if let Err(error) = converted {
        rejections.push(Rejection {
            name: update.name.to_string(),
            reason: error.to_string(),
        });
    }
}
