// SPDX-License-Identifier: Apache-2.0
//! Which object a tree speaks of, under the rules that Kubernetes has for names.

use std::borrow::Cow;

use super::Fault;
use crate::object::{Kind, ObjectKey, Scope};
use crate::tree::Node;

/// The object's key, with the namespace filled in.
pub(super) fn key_of(node: &Node<'_>, kind: Kind) -> Result<ObjectKey, Fault> {
    let Some(metadata) = node.field("metadata") else {
        return Err(Fault::new(node, &["metadata"], "is required"));
    };
    let text = |field: &'static str| match metadata.field(field) {
        Some(value) if value.is_null() => Ok(None),
        Some(value) => match value.text() {
            Some(text) => Ok(Some((value, text))),
            None => Err(Fault::new(value, &["metadata", field], "expected a text")),
        },
        None => Ok(None),
    };
    let Some((name_node, name)) = text("name")? else {
        return Err(Fault::new(metadata, &["metadata", "name"], "is required"));
    };
    // The names of these two become labels of host names.
    let name_is_label = matches!(kind, Kind::Namespace | Kind::Service);
    if let Err(reason) = if name_is_label {
        check_label(name)
    } else {
        check_subdomain(name)
    } {
        return Err(Fault::new(
            name_node,
            &["metadata", "name"],
            format!("{name:?} {reason}"),
        ));
    }
    let namespace = match (kind.scope(), text("namespace")?) {
        (Scope::Cluster, None | Some((_, ""))) => None,
        (Scope::Cluster, Some((node, _))) => {
            return Err(Fault::new(
                node,
                &["metadata", "namespace"],
                format!("a {kind} lives outside of namespaces"),
            ));
        }
        (Scope::Namespace, None | Some((_, ""))) => Some("default"),
        (Scope::Namespace, Some((node, namespace))) => match check_label(namespace) {
            Ok(()) => Some(namespace),
            Err(reason) => {
                return Err(Fault::new(
                    node,
                    &["metadata", "namespace"],
                    format!("{namespace:?} {reason}"),
                ));
            }
        },
    };
    Ok(ObjectKey {
        kind,
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    })
}

/// RFC 1123 label.
pub(crate) fn check_label(name: &str) -> Result<(), Cow<'static, str>> {
    match check_characters(name) {
        _ if name.len() > 63 => Err("is longer than 63 characters".into()),
        Ok(()) if name.contains('.') => Err("must not contain a dot".into()),
        result => result,
    }
}

/// Whether this is a name as most objects have one: RFC 1123 labels with dots between them, 253 characters at most.
///
/// # Errors
/// What is wrong with it, to be read after the name.
pub fn check_subdomain(name: &str) -> Result<(), Cow<'static, str>> {
    if name.len() > 253 {
        return Err("is longer than 253 characters".into());
    }
    name.split('.').try_for_each(check_characters)
}

fn check_characters(label: &str) -> Result<(), Cow<'static, str>> {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = label.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last))
            if alphanumeric(first)
                && alphanumeric(last)
                && bytes
                    .iter()
                    .all(|byte| alphanumeric(byte) || matches!(byte, b'-' | b'.')) =>
        {
            Ok(())
        }
        _ => Err("is not a name: a-z, 0-9 and - inside".into()),
    }
}
