// SPDX-License-Identifier: Apache-2.0
//! From a tree to an object as an API server would hand it out, less what nobody here reads.

use std::any::Any;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use xxhash_rust::xxh64::xxh64;

use crate::decode::{DecodeError, decode};
use crate::kinds::Pod;
use crate::object::{Object, ObjectKey, Resource};
use crate::tree::Node;

pub(super) fn read_typed<T: Resource>(
    node: &Node<'_>,
    key: &ObjectKey,
) -> Result<Object, DecodeError> {
    let mut object: T = decode(node)?;
    complete(object.metadata_mut(), key);
    drop_unread(&mut object);
    Ok(object.into_object())
}

/// Fills in what an API server would, and drops bookkeeping that nobody reads.
fn complete(metadata: &mut ObjectMeta, key: &ObjectKey) {
    metadata.namespace.clone_from(&key.namespace);
    if metadata.uid.as_deref().unwrap_or_default().is_empty() {
        metadata.uid = Some(derived_uid(key));
    }
    metadata.managed_fields = None;
    // It says upon which list something was said, where others may say something in it.
    if !key.kind.is_judged() {
        metadata.resource_version = None;
    }
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// The parts of pods that take much memory and that nobody reads. Volumes stay: whoever plays the kubelet mounts them.
fn drop_unread<T: Resource>(object: &mut T) {
    let Some(spec) = (object as &mut dyn Any)
        .downcast_mut::<Pod>()
        .and_then(|pod| pod.spec.as_mut())
    else {
        return;
    };
    spec.affinity = None;
    spec.tolerations = None;
    spec.topology_spread_constraints = None;
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        container.volume_mounts = None;
    }
}

/// A uid for an object that was written without one: always the same for the same name (RFC 9562, version 8).
fn derived_uid(key: &ObjectKey) -> String {
    let name = key.to_string();
    let (high, low) = (xxh64(name.as_bytes(), 1), xxh64(name.as_bytes(), 2));
    let high = (high & !0xf000) | 0x8000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}
