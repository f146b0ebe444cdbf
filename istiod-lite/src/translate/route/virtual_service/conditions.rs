// SPDX-License-Identifier: Apache-2.0
//! What a rule of a VirtualService matches. A condition that can't be read matches nothing, and breaks its rule; one that
//! can't hold inside the mesh is none.

use cluster::kinds::virtual_service as vs;
use proto::waypoint as wire;
use regex::escape;
use wire::{path_match::Kind, value_match::Value};

use super::{
    super::{Faults, matching::METHODS, values},
    MAX_MATCHES, Scoped, in_mesh, port,
};

const MAX_TEXT: usize = 4096;
const MAX_VALUES: usize = 64;

/// Reads the conditions of a rule at `at`.
pub(super) fn read(
    matches: &[vs::HttpMatch],
    at: &str,
    own: &mut Faults,
    notes: &mut Faults,
) -> Vec<Scoped<wire::HttpMatch>> {
    let read = matches.iter().take(MAX_MATCHES).enumerate();
    read.filter_map(|(position, one)| {
        condition(one, &format!("{at}.match[{position}]"), own, notes)
    })
    .collect()
}

/// Whether a name stands for a claim of the request's token, such as `@request.auth.claims[roles]` or
/// `@request.auth.claims.realm.name`: rules go by tokens once those were verified.
fn is_claim(name: &str) -> bool {
    let Some(way) = name.strip_prefix("@request.auth.claims") else {
        return false;
    };
    let is_step = |step: &str| !step.is_empty() && !step.contains(['[', ']']);
    match (way.strip_prefix('.'), way.strip_prefix('[')) {
        (Some(way), _) => way.split('.').all(is_step),
        (None, Some(way)) => way
            .strip_suffix(']')
            .is_some_and(|way| way.split("][").all(is_step)),
        (None, None) => false,
    }
}

fn condition(
    one: &vs::HttpMatch,
    at: &str,
    own: &mut Faults,
    notes: &mut Faults,
) -> Option<Scoped<wire::HttpMatch>> {
    let before = own.0.len();
    own.unknown(at, &one.unknown_fields);
    let port = port(one.port, at, own).ok()?;
    let path = one.uri.as_ref().and_then(|uri| {
        let read = text(uri).and_then(|how| path(how, one.ignore_uri_case));
        read.unwrap_or_else(|words| {
            own.add(format!("{at}.uri"), words);
            None
        })
    });
    let method = one.method.as_ref().map(|method| match text(method) {
        Ok(How::Exact(name)) if METHODS.contains(&name) => Ok(name.to_owned()),
        Ok(_) => Err("can be matched only exactly, by a name of HTTP".to_owned()),
        Err(words) => Err(words),
    });
    let method = method.transpose().unwrap_or_else(|words| {
        own.add(format!("{at}.method"), words);
        None
    });
    let mut headers = values(&one.headers, &format!("{at}.headers"), false, own);
    headers.extend(values(
        &one.without_headers,
        &format!("{at}.withoutHeaders"),
        true,
        own,
    ));
    if let Some(authority) = &one.authority {
        match text(authority).and_then(value) {
            Ok(value) => headers.push(wire::ValueMatch {
                name: "host".to_owned(),
                value: Some(value),
                inverted: false,
            }),
            Err(words) => own.add(format!("{at}.authority"), words),
        }
    }
    for header in &headers {
        if !values::is_token(&header.name) && !is_claim(&header.name) {
            own.add(
                format!("{at}.headers"),
                format!("{:?} is no name of a header", header.name),
            );
        }
    }
    let query = values(&one.query_params, &format!("{at}.queryParams"), false, own);
    if own.0.len() > before {
        return None;
    }
    // Inside the mesh nothing comes by TLS of its own.
    let by_scheme = one.scheme.as_ref().is_none_or(|scheme| match text(scheme) {
        Ok(How::Exact(text)) => text == "http",
        Ok(How::Start(text)) => "http".starts_with(text),
        Ok(How::Any) => true,
        Ok(How::Pattern(_)) | Err(_) => false,
    });
    // As in Istio, which labels a client has is not known to a waypoint.
    if !one.source_labels.is_empty() {
        notes.add(
            format!("{at}.sourceLabels"),
            "is not known to waypoints: the condition is left out",
        );
        return None;
    }
    (by_scheme && in_mesh(&one.gateways)).then(|| Scoped {
        port,
        clients: one.source_namespace.clone().filter(|name| !name.is_empty()),
        condition: wire::HttpMatch {
            path: path.map(|kind| wire::PathMatch { kind: Some(kind) }),
            headers,
            query,
            method: method.unwrap_or_default(),
            grpc: None,
        },
    })
}

/// How a text is compared.
pub(super) enum How<'a> {
    Exact(&'a str),
    Start(&'a str),
    Pattern(&'a str),
    Any,
}

pub(super) fn text(one: &vs::StringMatch) -> Result<How<'_>, String> {
    if let Some(field) = one.unknown_fields.keys().next() {
        return Err(format!("{field} is not known"));
    }
    let how = match (&one.exact, &one.prefix, &one.regex) {
        (Some(text), None, None) => How::Exact(text),
        (None, Some(text), None) => How::Start(text),
        (None, None, Some(text)) => How::Pattern(text),
        (None, None, None) => How::Any,
        _ => return Err("has more than one of exact, prefix and regex".to_owned()),
    };
    match how {
        How::Exact(text) | How::Start(text) | How::Pattern(text) if text.len() > MAX_TEXT => {
            Err(format!("has {} bytes, {MAX_TEXT} may be", text.len()))
        }
        how => Ok(how),
    }
}

/// None: any path.
fn path(how: How<'_>, any_case: bool) -> Result<Option<Kind>, String> {
    let slashed = |text: &str| match text.starts_with('/') {
        true => Ok(()),
        false => Err(format!("{text:?} does not begin with a slash")),
    };
    Ok(Some(match how {
        How::Any | How::Start("/" | "") => return Ok(None),
        How::Exact(text) if any_case => {
            slashed(text)?;
            Kind::Regex(format!("(?i:{})", escape(text)))
        }
        How::Exact(text) => {
            slashed(text)?;
            Kind::Exact(text.to_owned())
        }
        How::Start(text) if any_case => {
            slashed(text)?;
            Kind::Regex(format!("(?i:{}).*", escape(text)))
        }
        How::Start(text) => {
            slashed(text)?;
            Kind::Start(text.to_owned())
        }
        // Case is the expression's own to say, as in Istio.
        How::Pattern(text) => {
            values::expression(text)?;
            Kind::Regex(text.to_owned())
        }
    }))
}

pub(super) fn value(how: How<'_>) -> Result<Value, String> {
    Ok(match how {
        How::Exact(text) => Value::Exact(text.to_owned()),
        How::Start(text) => Value::Regex(format!("(?s:{}.*)", escape(text))),
        How::Any => Value::Regex("(?s:.*)".to_owned()),
        How::Pattern(text) => {
            values::expression(text)?;
            Value::Regex(text.to_owned())
        }
    })
}

fn values(
    wanted: &std::collections::BTreeMap<String, vs::StringMatch>,
    at: &str,
    inverted: bool,
    own: &mut Faults,
) -> Vec<wire::ValueMatch> {
    own.at_most(MAX_VALUES, wanted.len(), at);
    let mut read = Vec::new();
    for (name, one) in wanted.iter().take(MAX_VALUES) {
        match text(one).and_then(value) {
            Ok(value) => read.push(wire::ValueMatch {
                name: name.clone(),
                value: Some(value),
                inverted,
            }),
            Err(words) => own.add(format!("{at}[{name}]"), words),
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_named_by_a_way_to_it() {
        for (name, is) in [
            ("@request.auth.claims.role", true),
            ("@request.auth.claims.realm.role", true),
            ("@request.auth.claims[realm][a.b]", true),
            ("@request.auth.claims", false),
            ("@request.auth.claims.", false),
            ("@request.auth.claims[]", false),
            ("@request.auth.claims[a]b", false),
            ("@request.auth.claims[a", false),
            ("@request.auth.claimsx", false),
            ("x-role", false),
        ] {
            assert_eq!(is_claim(name), is, "{name}");
        }
    }
}
