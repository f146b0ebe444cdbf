// SPDX-License-Identifier: Apache-2.0
//! Lines in Envoy's formats: text with operators in percent signs, or a JSON object of such texts.
//!
//! What an operator has nothing to say about prints as `-`, or as null where it is all of a JSON value. An operator that a
//! waypoint doesn't know makes the format one that can't be used: a log that lacks what was asked for is found out late.

use std::collections::BTreeMap;

use http::HeaderName;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::{Told, expression::value_of};

/// A format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    Text(Template),
    Json(Vec<(String, Template)>),
}

/// A text with operators in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Operator(Operator, Option<usize>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    StartTime,
    /// The first of these that is there.
    Request(Vec<OfRequest>),
    Answer(HeaderName),
    Protocol,
    Status,
    Flags,
    Details,
    TransportFailure,
    Received,
    Sent,
    Duration,
    UpstreamHost,
    UpstreamCluster,
    Source,
    SourceWithoutPort,
    SourceIdentity,
    Route,
    GrpcStatus,
    /// Known, and never there.
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum OfRequest {
    Method,
    Path,
    Authority,
    Header(HeaderName),
}

impl Format {
    /// Reads a text format.
    ///
    /// # Errors
    /// Names the operator that is not known.
    pub fn text(text: &str) -> Result<Self, String> {
        Template::read(text).map(Self::Text)
    }

    /// Reads a JSON format: texts by key.
    ///
    /// # Errors
    /// Names the operator that is not known.
    pub fn json(fields: &BTreeMap<String, String>) -> Result<Self, String> {
        let fields = fields
            .iter()
            .map(|(key, text)| Ok((key.clone(), Template::read(text)?)));
        fields.collect::<Result<_, _>>().map(Self::Json)
    }

    /// The headers that it looks at, of requests and of answers.
    pub(super) fn headers(&self, wanted: &mut [Vec<HeaderName>; 2]) {
        let templates: Vec<&Template> = match self {
            Self::Text(template) => vec![template],
            Self::Json(fields) => fields.iter().map(|(_, template)| template).collect(),
        };
        for part in templates.into_iter().flat_map(|template| &template.0) {
            match part {
                Part::Operator(Operator::Request(from), _) => {
                    let headers = from.iter().filter_map(|one| match one {
                        OfRequest::Header(name) => Some(name.clone()),
                        OfRequest::Method | OfRequest::Path | OfRequest::Authority => None,
                    });
                    wanted[0].extend(headers);
                }
                Part::Operator(Operator::Answer(name), _) => wanted[1].push(name.clone()),
                Part::Operator(..) | Part::Text(_) => {}
            }
        }
    }

    /// The line of a request, without its end.
    pub fn line(&self, told: &Told<'_>) -> String {
        match self {
            Self::Text(template) => template.print(told),
            Self::Json(fields) => {
                let fields = fields
                    .iter()
                    .map(|(key, template)| (key.clone(), template.json(told)));
                serde_json::Value::Object(fields.collect()).to_string()
            }
        }
    }
}

impl Template {
    fn read(mut text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        while let Some((before, rest)) = text.split_once('%') {
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (operator, rest) = rest.split_once('%').ok_or("a percent sign stands alone")?;
            parts.push(match operator {
                "" => Part::Text("%".to_owned()),
                operator => read(operator)?,
            });
            text = rest;
        }
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        Ok(Self(parts))
    }

    fn print(&self, told: &Told<'_>) -> String {
        let mut line = String::with_capacity(256);
        for part in &self.0 {
            match part {
                Part::Text(text) => line.push_str(text),
                Part::Operator(operator, most) => match operator.say(told) {
                    // A line is one line, whoever said what.
                    Some(said) => line.extend(
                        shortened(&said, *most)
                            .chars()
                            .map(|c| if c.is_control() { ' ' } else { c }),
                    ),
                    None => line.push('-'),
                },
            }
        }
        line
    }

    /// A number stays one where it is all that there is.
    fn json(&self, told: &Told<'_>) -> serde_json::Value {
        let [Part::Operator(operator, most)] = &*self.0 else {
            return self.print(told).into();
        };
        let Some(said) = operator.say(told) else {
            return serde_json::Value::Null;
        };
        match operator {
            Operator::Status | Operator::Received | Operator::Sent | Operator::Duration => said
                .parse::<u64>()
                .map_or_else(|_| said.clone().into(), Into::into),
            _ => shortened(&said, *most).into(),
        }
    }
}

fn shortened(text: &str, most: Option<usize>) -> &str {
    let end = most.and_then(|most| text.char_indices().nth(most));
    end.map_or(text, |(end, _)| &text[..end])
}

fn read(operator: &str) -> Result<Part, String> {
    let wrong = || format!("operator %{operator}% is not known");
    let name = operator.split(['(', ':']).next().unwrap_or_default();
    let rest = &operator[name.len()..];
    let (argument, length) = match rest.strip_prefix('(') {
        Some(rest) => {
            let (argument, length) = rest.rsplit_once(')').ok_or_else(wrong)?;
            (Some(argument), length)
        }
        None => (None, rest),
    };
    let most = match length.strip_prefix(':') {
        Some(most) => Some(most.parse().map_err(|_| wrong())?),
        None if length.is_empty() => None,
        None => return Err(wrong()),
    };
    let header = |name: &str| name.parse::<HeaderName>().map_err(|_| wrong());
    let read = match (name, argument) {
        ("START_TIME", _) => Operator::StartTime,
        ("REQ", Some(names)) => {
            let names = names.split('?').map(|name| {
                Ok(match name.to_ascii_uppercase().as_str() {
                    ":METHOD" => OfRequest::Method,
                    ":PATH" => OfRequest::Path,
                    ":AUTHORITY" => OfRequest::Authority,
                    _ => OfRequest::Header(header(name)?),
                })
            });
            Operator::Request(names.collect::<Result<_, String>>()?)
        }
        ("RESP", Some(name)) => Operator::Answer(header(name)?),
        (_, Some(_)) => return Err(wrong()),
        ("PROTOCOL", None) => Operator::Protocol,
        ("RESPONSE_CODE", None) => Operator::Status,
        ("RESPONSE_FLAGS", None) => Operator::Flags,
        ("RESPONSE_CODE_DETAILS", None) => Operator::Details,
        ("UPSTREAM_TRANSPORT_FAILURE_REASON", None) => Operator::TransportFailure,
        ("BYTES_RECEIVED", None) => Operator::Received,
        ("BYTES_SENT", None) => Operator::Sent,
        ("DURATION", None) => Operator::Duration,
        ("UPSTREAM_HOST", None) => Operator::UpstreamHost,
        ("UPSTREAM_CLUSTER" | "UPSTREAM_CLUSTER_RAW", None) => Operator::UpstreamCluster,
        ("DOWNSTREAM_REMOTE_ADDRESS", None) => Operator::Source,
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", None) => Operator::SourceWithoutPort,
        ("DOWNSTREAM_PEER_URI_SAN", None) => Operator::SourceIdentity,
        ("ROUTE_NAME", None) => Operator::Route,
        ("GRPC_STATUS" | "GRPC_STATUS_NUMBER", None) => Operator::GrpcStatus,
        (
            "CONNECTION_TERMINATION_DETAILS"
            | "UPSTREAM_LOCAL_ADDRESS"
            | "DOWNSTREAM_LOCAL_ADDRESS"
            | "REQUESTED_SERVER_NAME",
            None,
        ) => Operator::Never,
        _ => return Err(wrong()),
    };
    Ok(Part::Operator(read, most))
}

impl Operator {
    fn say(&self, told: &Told<'_>) -> Option<String> {
        let text = |text: &str| Some(text.to_owned());
        match self {
            Self::StartTime => Some(time(told)),
            Self::Request(from) => from.iter().find_map(|one| one.say(told)).map(str::to_owned),
            Self::Answer(header) => text(value_of(told.answer_headers, header)?),
            Self::Protocol => text(version(told.version?)),
            Self::Status => Some(told.status.unwrap_or_default().to_string()),
            Self::Flags => text(told.flags),
            Self::Details => Some(told.details().into_owned()),
            Self::TransportFailure => text(told.error.filter(|_| told.flags == "UF")?),
            Self::Received => Some(told.received.to_string()),
            Self::Sent => Some(told.sent.to_string()),
            Self::Duration => Some(told.took.as_millis().to_string()),
            Self::UpstreamHost => Some(told.endpoint?.to_string()),
            Self::UpstreamCluster => text(told.service?),
            Self::Source => Some(told.source.to_string()),
            Self::SourceWithoutPort => Some(told.source.ip().to_string()),
            Self::SourceIdentity => text(told.identity),
            Self::Route => text(told.route?),
            Self::GrpcStatus => Some(told.grpc_status?.to_string()),
            Self::Never => None,
        }
    }
}

impl OfRequest {
    fn say<'t>(&self, told: &Told<'t>) -> Option<&'t str> {
        match self {
            Self::Method => told.method,
            Self::Path => told.path,
            Self::Authority => told.authority,
            // Made here where the client sent none.
            Self::Header(header) if header == "x-request-id" => told.request_id,
            Self::Header(header) => value_of(told.request_headers, header),
        }
    }
}

/// As Envoy calls it.
pub(super) fn version(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "HTTP/1.0",
        http::Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// RFC 3339 in UTC, with milliseconds.
fn time(told: &Told<'_>) -> String {
    const FORMAT: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    let started = time::OffsetDateTime::from(told.started);
    started.format(FORMAT).unwrap_or_default()
}
