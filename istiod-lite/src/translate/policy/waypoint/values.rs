// SPDX-License-Identifier: Apache-2.0
//! The values that policies for waypoints compare with, and the keys of `when`.

use http::HeaderName;
use proto::waypoint as wire;
use wire::{Attribute, pattern::Kind};

use super::super::values;

/// The longest template that waypoints take.
const LONGEST_TEMPLATE: usize = 2048;

/// What a key of `when` means.
pub(super) struct Key {
    /// What is compared.
    pub attribute: Attribute,
    /// The header, or the way to a claim.
    pub way: Vec<String>,
}

/// `*` any, `*x` a suffix, `x*` a prefix, else the text itself.
fn pattern(text: &str) -> Result<wire::Pattern, String> {
    let kind = match text.strip_prefix('*') {
        _ if text.is_empty() => return Err("is empty".to_owned()),
        Some("") => Kind::Present(()),
        Some(suffix) => Kind::Suffix(suffix.to_owned()),
        None => match text.strip_suffix('*') {
            Some(prefix) => Kind::Prefix(prefix.to_owned()),
            None => Kind::Exact(text.to_owned()),
        },
    };
    Ok(of(kind))
}

fn of(kind: Kind) -> wire::Pattern {
    wire::Pattern { kind: Some(kind) }
}

/// Any text.
pub(super) fn text(text: &str, into: &mut wire::Condition) -> Result<(), String> {
    into.patterns.push(pattern(text)?);
    Ok(())
}

/// A name, or some, of which no other part can be left open than one end.
pub(super) fn plain(text: &str, into: &mut wire::Condition) -> Result<(), String> {
    let stars = text.matches('*').count();
    let at_an_end = text.starts_with('*') || text.ends_with('*');
    if text.contains('/') {
        return Err(format!("{text:?} holds a slash"));
    }
    if stars > 1 || stars == 1 && !at_an_end {
        return Err(format!("{text:?} has a star that is not its one end"));
    }
    into.patterns.push(pattern(text)?);
    Ok(())
}

/// A path: a text as others, or a template.
pub(super) fn path(text: &str, into: &mut wire::Condition) -> Result<(), String> {
    if !text.contains(['{', '}']) {
        return self::text(text, into);
    }
    template(text).map_err(|reason| format!("{text:?} is no path template: {reason}"))?;
    into.patterns.push(of(Kind::Template(text.to_owned())));
    Ok(())
}

/// Whether a text is a template that waypoints take.
fn template(text: &str) -> Result<(), &'static str> {
    if text.len() > LONGEST_TEMPLATE {
        return Err("it is too long");
    }
    let rest = text
        .strip_prefix('/')
        .ok_or("it does not begin with a slash")?;
    let segments: Vec<&str> = rest.split('/').collect();
    let mut behind_any = false;
    for (position, segment) in segments.iter().enumerate() {
        match *segment {
            "{*}" | "{**}" if behind_any => return Err("an operator follows {**}"),
            "{**}" => behind_any = true,
            "{*}" => {}
            "" if position + 1 < segments.len() => return Err("a segment within it is empty"),
            literal if !literal.chars().all(is_of_paths) => {
                return Err("a segment is neither {*} nor {**} and holds what no path does");
            }
            _ => {}
        }
    }
    Ok(())
}

/// What may stand in a segment of a path (RFC 3986 §3.3), but for the star.
fn is_of_paths(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._~%!$&'()+,;=:@".contains(c)
}

/// A block of addresses.
pub(super) fn block(text: &str, into: &mut wire::Condition) -> Result<(), String> {
    let block = values::ip_block(text).map_err(|why| why.describe(text))?;
    into.blocks.push(wire::IpBlock {
        address: block.address.to_vec(),
        length: block.length,
    });
    Ok(())
}

/// A port.
pub(super) fn port(text: &str, into: &mut wire::Condition) -> Result<(), String> {
    let port = values::port(text).map_err(|why| why.describe(text))?;
    into.ports.push(port);
    Ok(())
}

/// A service account, of the policy's own namespace unless it names another.
pub(super) fn account(
    text: &str,
    own_namespace: &str,
    into: &mut wire::Condition,
) -> Result<(), String> {
    let account = values::service_account(text, own_namespace).map_err(|why| why.describe(text))?;
    let both = format!("{}/{}", account.namespace, account.service_account);
    into.patterns.push(of(Kind::Exact(both)));
    Ok(())
}

/// `issuer/subject`, with a star in place of either, or at an end. Where there is no slash, `x*` is an issuer's beginning,
/// `*x` a subject's end.
pub(super) fn request_principal(text: &str, into: &mut wire::Condition) -> Result<(), String> {
    let exact = |text: &str| of(Kind::Exact(text.to_owned()));
    let present = || of(Kind::Present(()));
    let (issuer, subject) = match text.rsplit_once('/') {
        _ if text.is_empty() => return Err("is empty".to_owned()),
        _ if text == "*" => (present(), present()),
        Some((issuer, subject)) if text.starts_with('*') => match issuer.strip_prefix('*') {
            Some("") => (present(), exact(subject)),
            rest => (
                of(Kind::Suffix(rest.unwrap_or(issuer).to_owned())),
                exact(subject),
            ),
        },
        Some((issuer, subject)) if issuer.is_empty() || subject.is_empty() => {
            return Err(format!("{text:?} lacks an issuer or a subject"));
        }
        Some((issuer, subject)) => (exact(issuer), pattern(subject)?),
        None => match (text.strip_prefix('*'), text.strip_suffix('*')) {
            (Some(subject), _) => (present(), of(Kind::Suffix(subject.to_owned()))),
            (None, Some(issuer)) => (of(Kind::Prefix(issuer.to_owned())), present()),
            (None, None) => (exact(text), exact("")),
        },
    };
    into.request_principals.push(wire::RequestPrincipal {
        issuer: Some(issuer),
        subject: Some(subject),
    });
    Ok(())
}

/// What a key of `when` means.
pub(super) fn key(key: &str) -> Result<Key, String> {
    let named = |attribute| Key {
        attribute,
        way: Vec::new(),
    };
    Ok(match key {
        "source.ip" => named(Attribute::SourceIp),
        "remote.ip" => named(Attribute::RemoteIp),
        "source.namespace" => named(Attribute::SourceNamespace),
        "source.serviceAccount" => named(Attribute::SourceServiceAccount),
        "source.trustDomain" => named(Attribute::SourceTrustDomain),
        "source.principal" => named(Attribute::SourcePrincipal),
        "destination.ip" => named(Attribute::DestinationIp),
        "destination.port" => named(Attribute::DestinationPort),
        "connection.sni" => named(Attribute::ServerName),
        "request.auth.principal" => named(Attribute::RequestPrincipal),
        "request.auth.audiences" => named(Attribute::Audience),
        "request.auth.presenter" => named(Attribute::Presenter),
        _ => {
            let header = key.strip_prefix("request.headers");
            let claim = key.strip_prefix("request.auth.claims");
            match (header.and_then(brackets), claim.and_then(brackets)) {
                (Some(way), _) => match &*way {
                    [name] if name.parse::<HeaderName>().is_ok() => Key {
                        attribute: Attribute::RequestHeader,
                        way,
                    },
                    _ => return Err(format!("{key:?} names no header")),
                },
                (None, Some(way)) => Key {
                    attribute: Attribute::Claim,
                    way,
                },
                (None, None) => return Err(format!("{key:?} is nothing that a waypoint sees")),
            }
        }
    })
}

/// What stands in brackets, one pair after the other; nothing where anything else does.
fn brackets(text: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (inside, after) = rest.strip_prefix('[')?.split_once(']')?;
        if inside.is_empty() || inside.contains('[') {
            return None;
        }
        found.push(inside.to_owned());
        rest = after;
    }
    (!found.is_empty()).then_some(found)
}
