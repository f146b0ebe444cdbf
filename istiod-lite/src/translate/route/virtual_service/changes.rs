// SPDX-License-Identifier: Apache-2.0
//! What a rule of a VirtualService does to requests and answers, in the words of Gateway API's filters, which it shares.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use cluster::kinds::{self, virtual_service as vs};
use proto::waypoint as wire;

use super::{
    super::{Faults, Filter, values},
    Here, MAX_BACKENDS, Scoped,
    conditions::{self, How},
};

/// As in Istio.
const MIN_DELAY: Duration = Duration::from_millis(1);
/// As the waypoint takes them.
const MAX_DELAY: Duration = Duration::from_secs(3600);
const MAX_BODY: usize = 1 << 20;

/// What Gateway API has as filters too.
pub(super) fn filters_of(
    one: &vs::HttpRoute,
    at: &str,
    matches: &[Scoped<wire::HttpMatch>],
    own: &mut Faults,
) -> Vec<kinds::RouteFilter> {
    let mut filters = one.headers.as_ref().map_or(Vec::new(), |headers| {
        headers_of(headers, &format!("{at}.headers"), own)
    });
    if let Some(redirect) = &one.redirect {
        filters.push(redirect_of(redirect, &format!("{at}.redirect"), own));
    }
    if let Some(rewrite) = &one.rewrite {
        filters.push(rewrite_of(rewrite, &format!("{at}.rewrite"), matches, own));
    }
    if let Some(cors) = &one.cors_policy {
        filters.push(cors_of(cors, &format!("{at}.corsPolicy"), own));
    }
    filters
}

pub(super) fn headers_of(
    headers: &vs::Headers,
    at: &str,
    own: &mut Faults,
) -> Vec<kinds::RouteFilter> {
    own.unknown(at, &headers.unknown_fields);
    let mut filter = |operations: &vs::HeaderOperations, side: &str| {
        own.unknown(&format!("{at}.{side}"), &operations.unknown_fields);
        let list = |all: &std::collections::BTreeMap<String, String>| {
            all.iter()
                .map(|(name, value)| kinds::HeaderValue {
                    name: name.clone(),
                    value: value.clone(),
                })
                .collect()
        };
        kinds::HeaderFilter {
            set: list(&operations.set),
            add: list(&operations.add),
            remove: operations.remove.clone(),
            unknown_fields: kinds::UnknownFields::new(),
        }
    };
    let request = headers.request.as_ref().map(|given| kinds::RouteFilter {
        filter_type: Some(kinds::FilterType::RequestHeaderModifier),
        request_header_modifier: Some(filter(given, "request")),
        ..kinds::RouteFilter::default()
    });
    let response = headers.response.as_ref().map(|given| kinds::RouteFilter {
        filter_type: Some(kinds::FilterType::ResponseHeaderModifier),
        response_header_modifier: Some(filter(given, "response")),
        ..kinds::RouteFilter::default()
    });
    request.into_iter().chain(response).collect()
}

fn full_path(path: &str) -> kinds::PathModifier {
    kinds::PathModifier {
        modifier_type: Some(kinds::PathModifierType::ReplaceFullPath),
        replace_full_path: Some(path.to_owned()),
        replace_prefix_match: None,
    }
}

fn redirect_of(given: &vs::Redirect, at: &str, own: &mut Faults) -> kinds::RouteFilter {
    own.unknown(at, &given.unknown_fields);
    let authority = given.authority.as_deref().filter(|text| !text.is_empty());
    let (hostname, port) = match authority.map(|text| text.rsplit_once(':').ok_or(text)) {
        None => (None, None),
        Some(Err(host)) => (Some(host.to_owned()), None),
        Some(Ok((host, port))) => match port.parse::<u16>() {
            Ok(port) => (Some(host.to_owned()), Some(i64::from(port))),
            Err(_) => {
                own.add(
                    format!("{at}.authority"),
                    format!("{port:?} is no port number"),
                );
                (None, None)
            }
        },
    };
    let scheme = given.scheme.clone().filter(|text| !text.is_empty());
    let by_protocol = match given.derive_port {
        None | Some(vs::DerivePort::RequestPort) => None,
        Some(vs::DerivePort::ProtocolDefault) => match scheme.as_deref() {
            Some("https") => Some(443),
            _ => Some(80),
        },
        Some(vs::DerivePort::Unknown(ref other)) => {
            own.add(
                format!("{at}.derivePort"),
                format!("{other:?} is not known"),
            );
            None
        }
    };
    let path = given.uri.as_deref().filter(|uri| !uri.is_empty());
    kinds::RouteFilter {
        filter_type: Some(kinds::FilterType::RequestRedirect),
        request_redirect: Some(kinds::RedirectFilter {
            scheme,
            hostname,
            path: path.map(full_path),
            port: given.port.or(port).or(by_protocol),
            status_code: Some(given.redirect_code.unwrap_or(301)),
            unknown_fields: kinds::UnknownFields::new(),
        }),
        ..kinds::RouteFilter::default()
    }
}

fn rewrite_of(
    given: &vs::Rewrite,
    at: &str,
    matches: &[Scoped<wire::HttpMatch>],
    own: &mut Faults,
) -> kinds::RouteFilter {
    use wire::path_match::Kind;
    own.unknown(at, &given.unknown_fields);
    let by_regex = given.uri_regex_rewrite.is_some();
    if by_regex && given.uri.as_deref().is_some_and(|uri| !uri.is_empty()) {
        own.add(format!("{at}.uri"), "goes with no uriRegexRewrite");
    }
    let kinds = matches.iter().map(|one| {
        one.condition
            .path
            .as_ref()
            .is_none_or(|path| matches!(path.kind, Some(Kind::Start(_))))
    });
    let (by_start, whole): (Vec<bool>, Vec<bool>) = kinds.partition(|by_start| *by_start);
    let path = given.uri.as_deref().filter(|uri| !uri.is_empty());
    let path = path.and_then(|uri| match (by_start.is_empty(), whole.is_empty()) {
        (_, true) => Some(kinds::PathModifier {
            modifier_type: Some(kinds::PathModifierType::ReplacePrefixMatch),
            replace_prefix_match: Some(uri.to_owned()),
            replace_full_path: None,
        }),
        (true, false) => Some(full_path(uri)),
        (false, false) => {
            let words = "some of the rule's matches are prefixes and some are whole paths: which part is replaced can't be told";
            own.add(format!("{at}.uri"), words);
            None
        }
    });
    kinds::RouteFilter {
        filter_type: Some(kinds::FilterType::UrlRewrite),
        url_rewrite: Some(kinds::RewriteFilter {
            hostname: given.authority.clone().filter(|text| !text.is_empty()),
            path,
            unknown_fields: kinds::UnknownFields::new(),
        }),
        ..kinds::RouteFilter::default()
    }
}

fn cors_of(given: &vs::CorsPolicy, at: &str, own: &mut Faults) -> kinds::RouteFilter {
    own.unknown(at, &given.unknown_fields);
    let mut allow_origins = Vec::new();
    for (position, origin) in given.allow_origins.iter().enumerate() {
        match conditions::text(origin) {
            Ok(How::Exact(exact)) => allow_origins.push(exact.to_owned()),
            Ok(_) => {}
            Err(words) => own.add(format!("{at}.allowOrigins[{position}]"), words),
        }
    }
    let max_age = given
        .max_age
        .as_deref()
        .and_then(|text| match values::duration(text) {
            Ok(age) => i64::try_from(age.as_secs()).ok(),
            Err(words) => {
                own.add(format!("{at}.maxAge"), words);
                None
            }
        });
    kinds::RouteFilter {
        filter_type: Some(kinds::FilterType::Cors),
        cors: Some(kinds::CorsFilter {
            allow_origins,
            allow_credentials: given.allow_credentials,
            allow_methods: given.allow_methods.clone(),
            allow_headers: given.allow_headers.clone(),
            expose_headers: given.expose_headers.clone(),
            max_age,
            unknown_fields: kinds::UnknownFields::new(),
        }),
        ..kinds::RouteFilter::default()
    }
}

/// What Gateway API's filters have no words for is put into those that were made of them.
pub(super) fn beyond(one: &vs::HttpRoute, at: &str, filters: &mut [Filter], own: &mut Faults) {
    use wire::http_filter::Kind;
    for filter in filters {
        let Filter::Ready(wire::HttpFilter { kind: Some(kind) }) = filter else {
            continue;
        };
        match kind {
            Kind::Rewrite(rewrite) => {
                let given = one.rewrite.as_ref();
                if let Some(given) = given.and_then(|given| given.uri_regex_rewrite.as_ref()) {
                    rewrite.path = regex_rewrite(given, &format!("{at}.rewrite"), own);
                }
            }
            Kind::Cors(cors) => {
                let Some(given) = &one.cors_policy else {
                    continue;
                };
                let at = format!("{at}.corsPolicy");
                cors.origin_patterns = origin_patterns(given, &at, own);
                cors.forward_preflights = match &given.unmatched_preflights {
                    Some(vs::UnmatchedPreflights::Ignore) => false,
                    None
                    | Some(
                        vs::UnmatchedPreflights::Unspecified | vs::UnmatchedPreflights::Forward,
                    ) => true,
                    Some(vs::UnmatchedPreflights::Unknown(other)) => {
                        let words = format!("{other:?} is not known");
                        own.add(format!("{at}.unmatchedPreflights"), words);
                        false
                    }
                };
            }
            _ => {}
        }
    }
}

fn regex_rewrite(
    given: &vs::RegexRewrite,
    at: &str,
    own: &mut Faults,
) -> Option<wire::PathRewrite> {
    let at = format!("{at}.uriRegexRewrite");
    let groups = match values::groups(&given.r#match) {
        Ok(groups) => groups,
        Err(words) => {
            own.add(format!("{at}.match"), words);
            return None;
        }
    };
    if let Err(words) = values::substitution(&given.rewrite, groups) {
        own.add(format!("{at}.rewrite"), words);
        return None;
    }
    let change = wire::RegexRewrite {
        pattern: given.r#match.clone(),
        substitution: given.rewrite.clone(),
    };
    Some(wire::PathRewrite {
        kind: Some(wire::path_rewrite::Kind::Regex(change)),
    })
}

/// Origins that are known by their beginning, or by an expression.
fn origin_patterns(given: &vs::CorsPolicy, at: &str, own: &mut Faults) -> Vec<String> {
    let mut patterns = Vec::new();
    for (position, origin) in given.allow_origins.iter().enumerate() {
        // What can't be read was told already.
        match conditions::text(origin).map(conditions::value) {
            Ok(Ok(wire::value_match::Value::Regex(pattern))) => patterns.push(pattern),
            Ok(Err(words)) => own.add(format!("{at}.allowOrigins[{position}]"), words),
            Ok(Ok(wire::value_match::Value::Exact(_))) | Err(_) => {}
        }
    }
    patterns
}

/// What is made of requests on purpose.
pub(super) fn fault(one: &vs::HttpRoute, at: &str, own: &mut Faults) -> Option<wire::Fault> {
    let given = one.fault.as_ref()?;
    let at = format!("{at}.fault");
    own.unknown(&at, &given.unknown_fields);
    let delay = given.delay.as_ref().map(|delay| {
        let at = format!("{at}.delay");
        own.unknown(&at, &delay.unknown_fields);
        let time = match delay.fixed_delay.as_deref().map(values::fraction) {
            Some(Ok(time)) if (MIN_DELAY..=MAX_DELAY).contains(&time) => Some(time),
            Some(Err(words)) => {
                own.add(format!("{at}.fixedDelay"), words);
                None
            }
            Some(Ok(_)) | None => {
                own.add(format!("{at}.fixedDelay"), "is no time from 1ms to 1h");
                None
            }
        };
        wire::fault::Delay {
            share: share(delay.percentage.as_ref(), &format!("{at}.percentage"), own),
            duration: time.map(values::wire),
        }
    });
    let abort = given.abort.as_ref().map(|abort| {
        use wire::fault::abort::Status;
        let at = format!("{at}.abort");
        own.unknown(&at, &abort.unknown_fields);
        let grpc = abort.grpc_status.as_deref().map(str::trim);
        let status = match (abort.http_status, grpc.filter(|text| !text.is_empty())) {
            (Some(code), None) => match status(code) {
                Some(code) => Ok(Status::Http(code)),
                None => Err(format!("{code} is no status from 200 to 599")),
            },
            (None, Some(name)) => match values::grpc_status(name) {
                Some(code) => Ok(Status::Grpc(code)),
                None => Err(format!("{name:?} is no status of gRPC")),
            },
            _ => Err("names not one of httpStatus and grpcStatus".to_owned()),
        };
        wire::fault::Abort {
            share: share(abort.percentage.as_ref(), &format!("{at}.percentage"), own),
            status: status.map_err(|words| own.add(&at, words)).ok(),
        }
    });
    if delay.is_none() && abort.is_none() {
        own.add(&at, "names neither a delay nor an abort");
    }
    Some(wire::Fault { delay, abort })
}

/// An answer that needs no destination.
pub(super) fn direct_response(
    one: &vs::HttpRoute,
    at: &str,
    own: &mut Faults,
) -> Option<wire::DirectResponse> {
    let given = one.direct_response.as_ref()?;
    let at = format!("{at}.directResponse");
    own.unknown(&at, &given.unknown_fields);
    let status = status(given.status).unwrap_or_else(|| {
        let words = format!("{} is no status from 200 to 599", given.status);
        own.add(format!("{at}.status"), words);
        0
    });
    let body = match &given.body {
        None => Vec::new(),
        Some(body) => {
            own.unknown(&format!("{at}.body"), &body.unknown_fields);
            match (&body.string, &body.bytes) {
                (Some(text), None) => text.as_bytes().to_vec(),
                (None, Some(coded)) => BASE64.decode(coded).unwrap_or_else(|error| {
                    own.add(format!("{at}.body.bytes"), format!("is no base64: {error}"));
                    Vec::new()
                }),
                _ => {
                    own.add(format!("{at}.body"), "is not one of string and bytes");
                    Vec::new()
                }
            }
        }
    };
    if body.len() > MAX_BODY {
        let words = format!("has {} bytes, {MAX_BODY} may be", body.len());
        own.add(format!("{at}.body"), words);
    }
    for (given, field) in [
        (!one.route.is_empty(), "route"),
        (one.redirect.is_some(), "redirect"),
    ] {
        if given {
            own.add(&at, format!("goes with no {field}"));
        }
    }
    Some(wire::DirectResponse { status, body })
}

fn status(code: i64) -> Option<u32> {
    u32::try_from(code)
        .ok()
        .filter(|code| (200..600).contains(code))
}

/// A share, of a million.
fn share(percent: Option<&vs::Percent>, at: &str, own: &mut Faults) -> Option<wire::Share> {
    Some(wire::Share {
        numerator: millionths(percent, at, own),
        denominator: 1_000_000,
    })
}

/// Of a million.
fn millionths(percent: Option<&vs::Percent>, at: &str, own: &mut Faults) -> u32 {
    const MILLION: f64 = 1_000_000.0;
    match percent.map_or(100.0, |percent| percent.value) {
        // Between 0 and a million, so nothing is lost but what is smaller than a millionth.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded right here"
        )]
        value if (0.0..=100.0).contains(&value) => (value / 100.0 * MILLION).round() as u32,
        other => {
            own.add(at, format!("{other} is no percentage"));
            0
        }
    }
}

pub(super) fn mirrors(
    one: &vs::HttpRoute,
    at: &str,
    here: Here<'_>,
    own: &mut Faults,
) -> Vec<Filter> {
    let first = one.mirror.as_ref().map(|to| {
        let numerator = millionths(
            one.mirror_percentage.as_ref(),
            &format!("{at}.mirrorPercentage"),
            own,
        );
        Filter::Mirror {
            to: here.target(to, &format!("{at}.mirror"), own),
            numerator,
            denominator: 1_000_000,
        }
    });
    let mut filters: Vec<Filter> = first.into_iter().collect();
    own.at_most(MAX_BACKENDS, one.mirrors.len(), &format!("{at}.mirrors"));
    for (position, mirror) in one.mirrors.iter().take(MAX_BACKENDS).enumerate() {
        let at = format!("{at}.mirrors[{position}]");
        own.unknown(&at, &mirror.unknown_fields);
        filters.push(Filter::Mirror {
            to: here.target(&mirror.destination, &at, own),
            numerator: millionths(mirror.percentage.as_ref(), &format!("{at}.percentage"), own),
            denominator: 1_000_000,
        });
    }
    filters
}
