// SPDX-License-Identifier: Apache-2.0
//! The filters of a rule or of a backend.

use std::{collections::BTreeSet, sync::Arc};

use cluster::{
    Kind, check_subdomain,
    kinds::{self, FilterType, PathModifierType},
};
use proto::waypoint::{self as wire, http_filter, path_rewrite};

use super::{Faults, Filter, Reason, Target, matching, reference, values};
use crate::facts::service::port_number;

/// Filters of a rule, or of a backend.
const MAX_FILTERS: usize = 16;
/// Entries of each list of a header modifier.
const MAX_HEADERS: usize = 16;
const MAX_CORS: usize = 64;
const MAX_CORS_METHODS: usize = 9;
const DEFAULT_MAX_AGE: u32 = 5;
const MAX_PATH: usize = 1024;

/// Where filters stand.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The route's namespace.
    pub(super) namespace: &'a Arc<str>,
    /// The route's kind.
    pub(super) kind: Kind,
    /// What the rule matches.
    pub(super) prefix: Prefix,
}

/// Whether a rule matches by one prefix, so that it can be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    One,
    None,
}

/// Reads the filters at `at`.
pub(super) fn read(
    filters: &[kinds::RouteFilter],
    at: &str,
    place: Place<'_>,
    faults: &mut Faults,
) -> Vec<Filter> {
    let at = format!("{at}.filters");
    faults.at_most(MAX_FILTERS, filters.len(), &at);
    let mut read = Vec::new();
    let mut once = Vec::new();
    for (position, one) in filters.iter().take(MAX_FILTERS).enumerate() {
        let at = format!("{at}[{position}]");
        faults.unknown(&at, &one.unknown_fields);
        let Some(kind) = &one.filter_type else {
            faults.add(format!("{at}.type"), "is required");
            continue;
        };
        let repeatable = matches!(kind, FilterType::RequestMirror | FilterType::ExtensionRef);
        if !repeatable && once.contains(kind) {
            let words = format!("{kind} stands there twice");
            faults.because(Reason::IncompatibleFilters, &at, words);
        }
        once.push(kind.clone());
        read.extend(filter(one, kind, &at, place, faults));
    }
    if once.contains(&FilterType::RequestRedirect) && once.contains(&FilterType::UrlRewrite) {
        let words = "RequestRedirect and URLRewrite exclude each other";
        faults.because(Reason::IncompatibleFilters, &at, words);
    }
    read
}

fn filter(
    filter: &kinds::RouteFilter,
    kind: &FilterType,
    at: &str,
    place: Place<'_>,
    faults: &mut Faults,
) -> Option<Filter> {
    let for_grpc = matches!(
        kind,
        FilterType::RequestHeaderModifier
            | FilterType::ResponseHeaderModifier
            | FilterType::RequestMirror
            | FilterType::ExtensionRef
    );
    if place.kind == Kind::GRPCRoute && !for_grpc {
        faults.add(
            format!("{at}.type"),
            format!("{kind} is no filter of a GRPCRoute"),
        );
        return None;
    }
    let missing = |faults: &mut Faults| {
        faults.add(at, format!("{kind} is not filled in"));
        None
    };
    let ready = |kind| Some(Filter::Ready(wire::HttpFilter { kind: Some(kind) }));
    match kind {
        FilterType::RequestHeaderModifier => match &filter.request_header_modifier {
            Some(headers) => ready(http_filter::Kind::RequestHeaders(modifier(
                headers, at, faults,
            ))),
            None => missing(faults),
        },
        FilterType::ResponseHeaderModifier => match &filter.response_header_modifier {
            Some(headers) => ready(http_filter::Kind::ResponseHeaders(modifier(
                headers, at, faults,
            ))),
            None => missing(faults),
        },
        FilterType::RequestRedirect => match &filter.request_redirect {
            Some(wanted) => ready(http_filter::Kind::Redirect(redirect(
                wanted, at, place, faults,
            ))),
            None => missing(faults),
        },
        FilterType::UrlRewrite => match &filter.url_rewrite {
            Some(wanted) => ready(http_filter::Kind::Rewrite(rewrite(
                wanted, at, place, faults,
            ))),
            None => missing(faults),
        },
        FilterType::Cors => match &filter.cors {
            Some(wanted) => ready(http_filter::Kind::Cors(cors(wanted, at, faults))),
            None => missing(faults),
        },
        FilterType::RequestMirror => match &filter.request_mirror {
            Some(wanted) => mirror(wanted, at, place, faults),
            None => missing(faults),
        },
        FilterType::ExtensionRef => {
            let extension = filter.extension_ref.clone().unwrap_or_default();
            let (kind, name) = (extension.kind, extension.name);
            Some(Filter::Extension {
                field: format!("{at}.extensionRef"),
                name: format!("{kind} {name} of group {}", extension.group),
            })
        }
        FilterType::ExternalAuth | FilterType::Unknown(_) => {
            faults.add(format!("{at}.type"), format!("{kind} is not supported"));
            None
        }
    }
}

fn modifier(headers: &kinds::HeaderFilter, at: &str, faults: &mut Faults) -> wire::HeaderModifier {
    faults.unknown(at, &headers.unknown_fields);
    let mut named: BTreeSet<String> = BTreeSet::new();
    let mut list = |all: &[kinds::HeaderValue], field: &str, faults: &mut Faults| {
        faults.at_most(MAX_HEADERS, all.len(), &format!("{at}.{field}"));
        let mut own = BTreeSet::new();
        let mut read = Vec::new();
        for (position, one) in all.iter().take(MAX_HEADERS).enumerate() {
            let at = format!("{at}.{field}[{position}]");
            let name = one.name.to_ascii_lowercase();
            if !values::is_token(&name) {
                faults.add(at, format!("{:?} is no name of a header", one.name));
            } else if let Some(why) = values::why_unchangeable(&name) {
                faults.add(at, format!("{name} {why}"));
            } else if !values::is_header_value(&one.value) {
                faults.add(
                    at,
                    format!("the value of {} can't be one of a header", one.name),
                );
            } else if own.insert(name.clone()) {
                if !named.insert(name) {
                    faults.add(at, format!("{} is changed in two ways", one.name));
                }
                read.push(wire::Header {
                    name: one.name.clone(),
                    value: one.value.clone(),
                });
            }
        }
        read
    };
    let set = list(&headers.set, "set", faults);
    let add = list(&headers.add, "add", faults);
    faults.at_most(MAX_HEADERS, headers.remove.len(), &format!("{at}.remove"));
    let mut removed = BTreeSet::new();
    let mut remove = Vec::new();
    for (position, name) in headers.remove.iter().take(MAX_HEADERS).enumerate() {
        let at = format!("{at}.remove[{position}]");
        let lower = name.to_ascii_lowercase();
        if !values::is_token(name) {
            faults.add(at, format!("{name:?} is no name of a header"));
        } else if let Some(why) = values::why_unchangeable(&lower) {
            faults.add(at, format!("{lower} {why}"));
        } else if removed.insert(lower.clone()) {
            if !named.insert(lower) {
                faults.add(at, format!("{name} is changed in two ways"));
            }
            remove.push(name.clone());
        }
    }
    wire::HeaderModifier { set, add, remove }
}

fn redirect(
    wanted: &kinds::RedirectFilter,
    at: &str,
    place: Place<'_>,
    faults: &mut Faults,
) -> wire::Redirect {
    faults.unknown(at, &wanted.unknown_fields);
    let scheme = wanted.scheme.clone().unwrap_or_default();
    if !matches!(scheme.as_str(), "" | "http" | "https") {
        faults.add(
            format!("{at}.scheme"),
            format!("{scheme:?} is neither http nor https"),
        );
    }
    let port = match wanted.port {
        None => 0,
        Some(number) => match i32::try_from(number).ok().and_then(port_number) {
            Some(port) => port.into(),
            None => {
                faults.add(format!("{at}.port"), format!("{number} is no port number"));
                0
            }
        },
    };
    let status = match wanted.status_code {
        None => 302,
        Some(code @ (301 | 302 | 303 | 307 | 308)) => u32::try_from(code).unwrap_or_default(),
        Some(code) => {
            let words = format!("{code} is none of 301, 302, 303, 307 and 308");
            faults.add(format!("{at}.statusCode"), words);
            302
        }
    };
    wire::Redirect {
        scheme,
        hostname: hostname(wanted.hostname.as_deref(), at, faults),
        path: path(wanted.path.as_ref(), at, place, faults),
        port,
        status,
    }
}

fn rewrite(
    wanted: &kinds::RewriteFilter,
    at: &str,
    place: Place<'_>,
    faults: &mut Faults,
) -> wire::Rewrite {
    faults.unknown(at, &wanted.unknown_fields);
    wire::Rewrite {
        hostname: hostname(wanted.hostname.as_deref(), at, faults),
        path: path(wanted.path.as_ref(), at, place, faults),
    }
}

fn hostname(wanted: Option<&str>, at: &str, faults: &mut Faults) -> String {
    let hostname = wanted.unwrap_or_default();
    if !hostname.is_empty()
        && let Err(reason) = check_subdomain(hostname)
    {
        faults.add(format!("{at}.hostname"), format!("{hostname:?} {reason}"));
    }
    hostname.to_owned()
}

fn path(
    wanted: Option<&kinds::PathModifier>,
    at: &str,
    place: Place<'_>,
    faults: &mut Faults,
) -> Option<wire::PathRewrite> {
    let wanted = wanted?;
    let at = format!("{at}.path");
    let value = |text: &Option<String>, field: &str, faults: &mut Faults| {
        let text = text.clone().unwrap_or_default();
        let slashed = text.is_empty() || text.starts_with('/');
        if text.len() > MAX_PATH || !slashed || !matching::is_uri_path(&text) {
            faults.add(format!("{at}.{field}"), format!("{text:?} is no path"));
        }
        text
    };
    let kind = match &wanted.modifier_type {
        Some(PathModifierType::ReplaceFullPath) => {
            path_rewrite::Kind::Full(value(&wanted.replace_full_path, "replaceFullPath", faults))
        }
        Some(PathModifierType::ReplacePrefixMatch) => {
            if place.prefix == Prefix::None {
                let words =
                    "a prefix can be replaced only where the rule has one match, by PathPrefix";
                faults.add(&at, words);
            }
            let text = value(&wanted.replace_prefix_match, "replacePrefixMatch", faults);
            path_rewrite::Kind::Prefix(text)
        }
        Some(PathModifierType::Unknown(other)) => {
            faults.add(format!("{at}.type"), format!("type {other:?} is not known"));
            return None;
        }
        None => {
            faults.add(format!("{at}.type"), "is required");
            return None;
        }
    };
    Some(wire::PathRewrite { kind: Some(kind) })
}

fn mirror(
    wanted: &kinds::MirrorFilter,
    at: &str,
    place: Place<'_>,
    faults: &mut Faults,
) -> Option<Filter> {
    faults.unknown(at, &wanted.unknown_fields);
    let at = format!("{at}.requestMirror");
    let share = match (wanted.percent, &wanted.fraction) {
        (Some(_), Some(_)) => Err("has both percent and fraction".to_owned()),
        (Some(percent), None) => part(percent, 100),
        (None, Some(fraction)) => part(fraction.numerator, fraction.denominator.unwrap_or(100)),
        (None, None) => Ok((100, 100)),
    };
    match share {
        Ok((numerator, denominator)) => Some(Filter::Mirror {
            to: Target {
                field: format!("{at}.backendRef"),
                reference: reference::read(&wanted.backend_ref, place.namespace),
            },
            numerator,
            denominator,
        }),
        Err(words) => {
            faults.add(&at, words);
            None
        }
    }
}

fn part(numerator: i64, denominator: i64) -> Result<(u32, u32), String> {
    let number = |of: i64| u32::try_from(of).ok();
    match (number(numerator), number(denominator)) {
        (Some(part), Some(whole @ 1..)) if part <= whole => Ok((part, whole)),
        _ => Err(format!(
            "{numerator} of {denominator} is no share of the requests"
        )),
    }
}

fn cors(wanted: &kinds::CorsFilter, at: &str, faults: &mut Faults) -> wire::Cors {
    faults.unknown(at, &wanted.unknown_fields);
    let at = format!("{at}.cors");
    let mut list = |all: &[String], field: &str, most: usize, good: fn(&str) -> bool| {
        let at = format!("{at}.{field}");
        faults.at_most(most, all.len(), &at);
        if all.len() > 1 && all.iter().any(|one| one == "*") {
            faults.add(&at, "* stands for all and goes with no others");
        }
        for (position, one) in all.iter().take(most).enumerate() {
            if one != "*" && !good(one) {
                faults.add(
                    format!("{at}[{position}]"),
                    format!("{one:?} can't be one of these"),
                );
            }
        }
        all.iter().take(most).cloned().collect()
    };
    let allow_origins = list(&wanted.allow_origins, "allowOrigins", MAX_CORS, is_origin);
    let allow_methods = list(
        &wanted.allow_methods,
        "allowMethods",
        MAX_CORS_METHODS,
        values::is_token,
    );
    let allow_headers = list(
        &wanted.allow_headers,
        "allowHeaders",
        MAX_CORS,
        values::is_token,
    );
    let expose_headers = list(
        &wanted.expose_headers,
        "exposeHeaders",
        MAX_CORS,
        values::is_token,
    );
    let max_age = match wanted.max_age {
        None => DEFAULT_MAX_AGE,
        Some(seconds) => match u32::try_from(seconds) {
            Ok(seconds @ 1..) => seconds,
            _ => {
                faults.add(
                    format!("{at}.maxAge"),
                    format!("{seconds} is no number of seconds from 1"),
                );
                DEFAULT_MAX_AGE
            }
        },
    };
    wire::Cors {
        allow_origins,
        allow_credentials: wanted.allow_credentials == Some(true),
        allow_methods,
        allow_headers,
        expose_headers,
        max_age,
        ..wire::Cors::default()
    }
}

/// `scheme://host`, perhaps with a port; the host may begin with a wildcard.
fn is_origin(text: &str) -> bool {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let Some(rest) = rest else {
        return false;
    };
    let (host, port) = rest
        .split_once(':')
        .map_or((rest, None), |(h, p)| (h, Some(p)));
    let port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    let host = host.strip_prefix("*.").unwrap_or(host).to_ascii_lowercase();
    port && (host == "*" || check_subdomain(&host).is_ok())
}

#[cfg(test)]
mod tests;
