// SPDX-License-Identifier: Apache-2.0
//! Asked over gRPC: `envoy.service.auth.v3.Authorization/Check`.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Version, response};
use prost::Message as _;
use proto::auth::{self, attribute_context as context, check_response::HttpResponse};

use super::answer::{Edit, How};
use super::{Allowed, Answer, Asking, BadAnswer, Call, Denied, PARTIAL_BODY, Party, Question};

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

pub(super) fn call(asking: &Asking, question: &Question<'_>) -> Call {
    let message = request(asking, question);
    let length = message.encoded_len();
    let mut body = Vec::with_capacity(5 + length);
    body.push(0);
    let length = u32::try_from(length).expect("broken invariant: heads and bodies are bounded");
    body.extend_from_slice(&length.to_be_bytes());
    message
        .encode(&mut body)
        .expect("broken invariant: a vector grows");
    let mut headers = HeaderMap::new();
    let host = format!("{}:{}", asking.hostname, asking.port);
    if let Ok(host) = HeaderValue::try_from(host) {
        headers.insert(header::HOST, host);
    }
    headers.insert(header::CONTENT_TYPE, GRPC);
    headers.insert(header::TE, TRAILERS);
    // At most eight digits.
    let milliseconds = asking.timeout.as_millis().clamp(1, 99_999_999);
    if let Ok(timeout) = HeaderValue::try_from(format!("{milliseconds}m")) {
        headers.insert(TIMEOUT, timeout);
    }
    Call {
        method: Method::POST,
        path: PathAndQuery::from_static(CHECK),
        headers,
        body: body.into(),
    }
}

fn request(asking: &Asking, question: &Question<'_>) -> auth::CheckRequest {
    let head = question.head;
    let text = |name: &str| {
        let value = head.headers.get(name);
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let scheme = text("x-forwarded-proto").unwrap_or_else(|| "http".to_owned());
    let mut headers: BTreeMap<String, String> = [
        (":authority", question.authority),
        (":method", head.method.as_str()),
        (":path", question.path_and_query),
        (":scheme", &scheme),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    for name in head.headers.keys().filter(|name| **name != header::HOST) {
        let lines = head.headers.get_all(name).iter();
        let lines: Vec<_> = lines
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        headers.insert(name.to_string(), lines.join(","));
    }
    let (mut body, mut raw_body) = (String::new(), Vec::new());
    if let (Some(told), Some(limit)) = (question.body, asking.body) {
        headers.insert(PARTIAL_BODY.to_string(), (!told.whole).to_string());
        match limit.as_bytes {
            true => raw_body = told.bytes.to_vec(),
            false => body = String::from_utf8_lossy(&told.bytes).into_owned(),
        }
    }
    let size = text("content-length").and_then(|text| text.parse().ok());
    let http = context::HttpRequest {
        id: text("x-request-id").unwrap_or_default(),
        method: head.method.to_string(),
        headers,
        path: question.path_and_query.to_owned(),
        host: question.authority.to_owned(),
        scheme,
        size: size.unwrap_or(-1),
        protocol: match head.version {
            Version::HTTP_2 => "HTTP/2",
            Version::HTTP_10 => "HTTP/1.0",
            _ => "HTTP/1.1",
        }
        .to_owned(),
        body,
        raw_body,
    };
    let since = question.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let attributes = auth::AttributeContext {
        source: Some(peer(question.source)),
        destination: Some(peer(question.destination)),
        request: Some(context::Request {
            time: Some(prost_types::Timestamp {
                seconds: i64::try_from(since.as_secs()).unwrap_or_default(),
                nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
            }),
            http: Some(http),
        }),
    };
    auth::CheckRequest {
        attributes: Some(attributes),
    }
}

fn peer(party: Party<'_>) -> context::Peer {
    let socket = auth::SocketAddress {
        address: party.address.ip().to_string(),
        port_specifier: Some(auth::socket_address::PortSpecifier::PortValue(
            party.address.port().into(),
        )),
    };
    context::Peer {
        address: Some(auth::Address {
            address: Some(auth::address::Address::SocketAddress(socket)),
        }),
        principal: party.principal.to_owned(),
        ..context::Peer::default()
    }
}

pub(super) fn answer(
    head: &response::Parts,
    body: &Bytes,
    trailers: Option<&HeaderMap>,
) -> Result<Answer, BadAnswer> {
    if head.status != StatusCode::OK {
        return Err(BadAnswer::Status(head.status.as_u16()));
    }
    // Where there is no message, the status stands in the head.
    let ends = [trailers, Some(&head.headers)];
    let end = ends
        .into_iter()
        .flatten()
        .find(|end| end.contains_key(STATUS));
    let end = end.ok_or(BadAnswer::Malformed("it has no gRPC status"))?;
    let text = |name: &HeaderName| {
        let value = end.get(name).map(HeaderValue::as_bytes);
        String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
    };
    let code = text(&STATUS);
    if code != "0" {
        let mut message = decoded(&text(&MESSAGE));
        message.truncate(message.floor_char_boundary(256));
        return Err(BadAnswer::Grpc { code, message });
    }
    let malformed = BadAnswer::Malformed;
    let (prefix, message) = body
        .split_at_checked(5)
        .ok_or(malformed("it has no message"))?;
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if prefix[0] != 0 {
        return Err(malformed("it is compressed, which was not asked for"));
    }
    if usize::try_from(length) != Ok(message.len()) {
        return Err(malformed("it is not one message"));
    }
    let response = auth::CheckResponse::decode(message);
    let response = response.map_err(|_| malformed("its message is no CheckResponse"))?;
    read(response)
}

/// A message as gRPC's headers have it: percent-encoded; what isn't is left as it is.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part.get(..2).map(|digits| u8::from_str_radix(digits, 16));
        match byte {
            Some(Ok(byte)) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            _ => {
                bytes.push(b'%');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read(response: auth::CheckResponse) -> Result<Answer, BadAnswer> {
    let is_ok = response.status.is_none_or(|status| status.code == 0);
    match (is_ok, response.http_response) {
        (true, None) => Ok(Answer::Allowed(Allowed::default())),
        (true, Some(HttpResponse::OkResponse(ok))) => {
            if !ok.query_parameters_to_set.is_empty() || !ok.query_parameters_to_remove.is_empty() {
                return Err(BadAnswer::Query);
            }
            // Those that no request can do without stay, as the contract has it.
            let remove = ok.headers_to_remove.iter();
            let remove = remove.filter_map(|name| name.parse::<HeaderName>().ok());
            Ok(Answer::Allowed(Allowed {
                remove: remove.filter(|name| !super::is_of_message(name)).collect(),
                upstream: edits(&ok.headers)?,
                downstream: edits(&ok.response_headers_to_add)?,
            }))
        }
        (true, Some(HttpResponse::DeniedResponse(_))) => {
            Err(BadAnswer::Malformed("it allows and denies"))
        }
        (false, Some(HttpResponse::DeniedResponse(denied))) => {
            let code = denied.status.map_or(0, |status| status.code);
            let status = match u16::try_from(code) {
                Ok(0) => Ok(StatusCode::FORBIDDEN),
                Ok(code) => StatusCode::from_u16(code).map_err(|_| ()),
                Err(_) => Err(()),
            };
            let status = status.ok().filter(|status| !status.is_informational());
            let mut headers = HeaderMap::new();
            super::answer::apply(&edits(&denied.headers)?, &mut headers);
            Ok(Answer::Denied(Denied {
                status: status.ok_or(BadAnswer::Malformed("its status is none"))?,
                headers,
                body: denied.body.into(),
            }))
        }
        (false, _) => Ok(Answer::Denied(Denied {
            status: StatusCode::FORBIDDEN,
            headers: HeaderMap::new(),
            body: Bytes::new(),
        })),
    }
}

fn edits(options: &[auth::HeaderValueOption]) -> Result<Vec<Edit>, BadAnswer> {
    use auth::header_value_option::HeaderAppendAction as Action;
    let edit = |option: &auth::HeaderValueOption| {
        let none = || BadAnswer::Header(String::new());
        let header = option.header.as_ref().ok_or_else(none)?;
        let value = match header.raw_value.as_slice() {
            [] => header.value.as_bytes(),
            raw => raw,
        };
        let how = match (option.append, option.append_action()) {
            (Some(true), _) => How::Append,
            (Some(false), _) => How::Set,
            // By contract, what is the default elsewhere stands for nothing said.
            (None, Action::AppendIfExistsOrAdd | Action::OverwriteIfExistsOrAdd) => How::Set,
            (None, Action::AddIfAbsent) => How::IfAbsent,
            (None, Action::OverwriteIfExists) => How::IfPresent,
        };
        Edit::asked(&header.key, value, how)
    };
    options.iter().map(edit).collect()
}
