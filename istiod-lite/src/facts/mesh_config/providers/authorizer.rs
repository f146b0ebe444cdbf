// SPDX-License-Identifier: Apache-2.0
//! `envoyExtAuthzGrpc` and `envoyExtAuthzHttp`, as waypoints ask by them. A field that is not known might be a limit:
//! such a provider can't be used.

use http::{HeaderName, HeaderValue};
use proto::waypoint as wire;
use serde_json::{Map, Value};
use wire::{authorizer::Protocol, pattern::Kind};

use super::backend;
use crate::translate::route;

/// Bytes of a request that are held for an authorizer, at most.
const MOST_BYTES: u32 = 1 << 20;

pub(super) fn grpc(
    name: &str,
    mut written: Map<String, Value>,
) -> Result<wire::Authorizer, String> {
    let authorizer = common(name, &mut written)?;
    nothing_else(&written)?;
    Ok(wire::Authorizer {
        protocol: Some(Protocol::Grpc(())),
        ..authorizer
    })
}

pub(super) fn http(
    name: &str,
    mut written: Map<String, Value>,
) -> Result<wire::Authorizer, String> {
    let authorizer = common(name, &mut written)?;
    let path_prefix = text(&mut written, "pathPrefix")?.unwrap_or_default();
    if !path_prefix.is_empty()
        && (!path_prefix.starts_with('/') || path_prefix.contains(['?', '#']))
    {
        return Err(format!("pathPrefix: {path_prefix:?} is none"));
    }
    let mut request_headers = patterns(&mut written, "includeRequestHeadersInCheck")?;
    // Its name until it was found to say too little.
    request_headers.extend(patterns(&mut written, "includeHeadersInCheck")?);
    let http = wire::HttpAuthorizer {
        path_prefix,
        request_headers,
        added_headers: added(&mut written)?,
        upstream_on_allow: patterns(&mut written, "headersToUpstreamOnAllow")?,
        downstream_on_deny: patterns(&mut written, "headersToDownstreamOnDeny")?,
        downstream_on_allow: patterns(&mut written, "headersToDownstreamOnAllow")?,
    };
    nothing_else(&written)?;
    Ok(wire::Authorizer {
        protocol: Some(Protocol::Http(http)),
        ..authorizer
    })
}

/// What both kinds have.
fn common(name: &str, written: &mut Map<String, Value>) -> Result<wire::Authorizer, String> {
    let service = written.remove("service");
    let at = backend(service.as_ref(), written.remove("port").as_ref())?;
    let timeout = text(written, "timeout")?;
    let timeout = timeout.map(|text| {
        let read = route::fraction(&text).map_err(|reason| format!("timeout: {reason}"))?;
        if read.is_zero() {
            return Err("timeout: is zero".to_owned());
        }
        Ok(prost_types::Duration {
            seconds: i64::try_from(read.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(read.subsec_nanos()).unwrap_or_default(),
        })
    });
    // Which route a request takes is found out only once it was allowed.
    flag(written, "clearRouteCache")?;
    Ok(wire::Authorizer {
        name: name.to_owned(),
        invalid: String::new(),
        namespace: at.namespace,
        hostname: at.hostname,
        port: at.port.into(),
        timeout: timeout.transpose()?,
        fail_open: flag(written, "failOpen")?,
        status_on_error: status(written)?,
        body: body(written)?,
        protocol: None,
    })
}

fn status(written: &mut Map<String, Value>) -> Result<u32, String> {
    let number = match written.remove("statusOnError") {
        None | Some(Value::Null) => return Ok(0),
        Some(Value::String(text)) if text.is_empty() => return Ok(0),
        Some(Value::String(text)) => text.parse().ok(),
        Some(Value::Number(number)) => number.as_u64(),
        Some(_) => None,
    };
    let status = number.filter(|status| (200..=599).contains(status));
    let status = status.and_then(|status| u32::try_from(status).ok());
    status.ok_or_else(|| "statusOnError: is no status that ends a request".to_owned())
}

fn body(written: &mut Map<String, Value>) -> Result<Option<wire::AuthorizerBody>, String> {
    const FIELD: &str = "includeRequestBodyInCheck";
    let mut fields = match written.remove(FIELD) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(format!("{FIELD} is no object")),
    };
    let within = |reason: String| format!("{FIELD}.{reason}");
    let most = fields.remove("maxRequestBytes");
    let most = most.as_ref().and_then(Value::as_u64).unwrap_or_default();
    let most = u32::try_from(most)
        .ok()
        .filter(|most| (1..=MOST_BYTES).contains(most));
    let body = wire::AuthorizerBody {
        max_bytes: most
            .ok_or_else(|| within(format!("maxRequestBytes: has to be from 1 to {MOST_BYTES}")))?,
        allow_partial: flag(&mut fields, "allowPartialMessage").map_err(within)?,
        as_bytes: flag(&mut fields, "packAsBytes").map_err(within)?,
    };
    nothing_else(&fields).map_err(within)?;
    Ok(Some(body))
}

fn added(written: &mut Map<String, Value>) -> Result<Vec<wire::AddedHeader>, String> {
    const FIELD: &str = "includeAdditionalHeadersInCheck";
    let fields = match written.remove(FIELD) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(format!("{FIELD} is no object")),
    };
    let header = |(name, value): (String, Value)| {
        let value = value.as_str().unwrap_or_default();
        match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            (Ok(name), Ok(_)) => Ok(wire::AddedHeader {
                name: name.to_string(),
                value: value.to_owned(),
            }),
            _ => Err(format!("{FIELD}[{name:?}] is no header")),
        }
    };
    fields.into_iter().map(header).collect()
}

/// Names of headers, whatever their case: all of it, its beginning or its end.
fn patterns(written: &mut Map<String, Value>, field: &str) -> Result<Vec<wire::Pattern>, String> {
    let texts = match written.remove(field) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(texts)) => texts,
        Some(_) => return Err(format!("{field} is no list")),
    };
    let pattern = |(position, text): (usize, Value)| {
        let text = text.as_str().unwrap_or_default().to_ascii_lowercase();
        let (kind, rest) = match (text.strip_prefix('*'), text.strip_suffix('*')) {
            (Some(rest), _) => (Kind::Suffix(rest.to_owned()), rest),
            (None, Some(rest)) => (Kind::Prefix(rest.to_owned()), rest),
            (None, None) => (Kind::Exact(text.clone()), &*text),
        };
        match rest.parse::<HeaderName>() {
            Ok(_) if !rest.contains('*') => Ok(wire::Pattern { kind: Some(kind) }),
            _ => Err(format!("{field}[{position}]: {text:?} names no header")),
        }
    };
    texts.into_iter().enumerate().map(pattern).collect()
}

fn flag(written: &mut Map<String, Value>, field: &str) -> Result<bool, String> {
    match written.remove(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(value),
        Some(_) => Err(format!("{field}: is neither true nor false")),
    }
}

fn text(written: &mut Map<String, Value>, field: &str) -> Result<Option<String>, String> {
    match written.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{field}: is no text")),
    }
}

fn nothing_else(written: &Map<String, Value>) -> Result<(), String> {
    match written.keys().next() {
        Some(field) => Err(format!("{field}: is not known")),
        None => Ok(()),
    }
}
