// SPDX-License-Identifier: Apache-2.0
//! One condition: an attribute, and the values of which it has to have one, or none.

use http::HeaderName;
use proto::waypoint as wire;
use serde_json::Value;

use super::pattern::{Block, Case, Pattern};
use super::{Access, Action, Request, ServerName};
use crate::token;

#[derive(Debug)]
pub(super) struct Condition {
    attribute: Attribute,
    /// It has to have none of them, or not be there.
    negated: bool,
}

#[derive(Debug)]
enum Attribute {
    Principal(Box<[Pattern]>),
    Namespace(Box<[Pattern]>),
    ServiceAccount(Box<[Pattern]>),
    TrustDomain(Box<[Pattern]>),
    SourceIp(Box<[Block]>),
    RemoteIp(Box<[Block]>),
    DestinationIp(Box<[Block]>),
    DestinationPort(Box<[u16]>),
    ServerName(Box<[Pattern]>),
    OfRequest(OfRequest),
}

#[derive(Debug)]
enum OfRequest {
    Host(Box<[Pattern]>),
    Method(Box<[Pattern]>),
    Path(Box<[Pattern]>),
    Header(HeaderName, Lines, Box<[Pattern]>),
    /// Issuer and subject.
    Principal(Box<[(Pattern, Pattern)]>),
    Claim(Box<[Box<str>]>, Box<[Pattern]>),
}

/// How a header is read that stands there several times. As one list, as most readers take it; and where a rule denies, by
/// each of its lines as well, so that nothing is hidden from it by saying something else beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    Joined,
    EachToo,
}

/// The trust domain that stands for the mesh's own, whatever that is called.
const DEFAULT_TRUST_DOMAIN: &str = "cluster.local";

impl Condition {
    pub(super) fn compile(condition: &wire::Condition, action: Action) -> Result<Self, String> {
        use wire::Attribute as Wire;
        let attribute = wire::Attribute::try_from(condition.attribute);
        let attribute = attribute.unwrap_or(Wire::NoAttribute);
        let some = |count: usize| match count {
            0 => Err(format!("{} has no value", attribute.as_str_name())),
            _ => Ok(()),
        };
        let patterns = |case: Case| -> Result<Box<[Pattern]>, String> {
            some(condition.patterns.len())?;
            let each = condition.patterns.iter();
            each.map(|pattern| Pattern::compile(pattern, case))
                .collect()
        };
        let texts = || patterns(Case::Counts);
        let blocks = || -> Result<Box<[Block]>, String> {
            some(condition.blocks.len())?;
            condition.blocks.iter().map(Block::compile).collect()
        };
        let key = || match &*condition.key {
            [name] => Ok(name.as_str()),
            _ => Err(format!("{} has no name", attribute.as_str_name())),
        };
        let claim = |way: &[&str]| -> Result<OfRequest, String> {
            let way = way.iter().map(|step| (*step).into()).collect();
            Ok(OfRequest::Claim(way, texts()?))
        };
        let attribute = match attribute {
            Wire::NoAttribute => {
                let number = condition.attribute;
                return Err(format!("attribute {number} is not known here"));
            }
            Wire::SourcePrincipal => Attribute::Principal(texts()?),
            Wire::SourceNamespace => Attribute::Namespace(texts()?),
            Wire::SourceServiceAccount => Attribute::ServiceAccount(texts()?),
            Wire::SourceTrustDomain => Attribute::TrustDomain(texts()?),
            Wire::SourceIp => Attribute::SourceIp(blocks()?),
            Wire::RemoteIp => Attribute::RemoteIp(blocks()?),
            Wire::DestinationIp => Attribute::DestinationIp(blocks()?),
            Wire::DestinationPort => {
                some(condition.ports.len())?;
                let number = |port: &u32| {
                    u16::try_from(*port).map_err(|_| format!("{port} is no port number"))
                };
                let ports = condition.ports.iter().map(number);
                Attribute::DestinationPort(ports.collect::<Result<_, _>>()?)
            }
            Wire::ServerName => Attribute::ServerName(patterns(Case::Ignored)?),
            Wire::Host => Attribute::OfRequest(OfRequest::Host(patterns(Case::Ignored)?)),
            Wire::Method => Attribute::OfRequest(OfRequest::Method(texts()?)),
            Wire::Path => Attribute::OfRequest(OfRequest::Path(texts()?)),
            Wire::RequestHeader => {
                let name = key()?;
                let parsed = name.parse::<HeaderName>();
                let parsed = parsed.map_err(|_| format!("{name:?} is no header's name"))?;
                // What matches is let in, or what matches is kept out.
                let lines = match (action == Action::Allow) == condition.negated {
                    true => Lines::EachToo,
                    false => Lines::Joined,
                };
                Attribute::OfRequest(OfRequest::Header(parsed, lines, texts()?))
            }
            Wire::RequestPrincipal => {
                some(condition.request_principals.len())?;
                let part = |pattern: &Option<wire::Pattern>| match pattern {
                    Some(pattern) => Pattern::compile(pattern, Case::Counts),
                    None => Err("a request principal lacks a part".to_owned()),
                };
                let both = |principal: &wire::RequestPrincipal| -> Result<_, String> {
                    Ok((part(&principal.issuer)?, part(&principal.subject)?))
                };
                let all = condition.request_principals.iter().map(both);
                Attribute::OfRequest(OfRequest::Principal(all.collect::<Result<_, _>>()?))
            }
            Wire::Audience => Attribute::OfRequest(claim(&["aud"])?),
            Wire::Presenter => Attribute::OfRequest(claim(&["azp"])?),
            Wire::Claim => {
                let way: Vec<&str> = condition.key.iter().map(String::as_str).collect();
                if way.is_empty() {
                    return Err("a claim has no name".to_owned());
                }
                Attribute::OfRequest(claim(&way)?)
            }
        };
        Ok(Self {
            attribute,
            negated: condition.negated,
        })
    }

    /// Whether it asks for something of a request.
    pub(super) fn is_of_requests(&self) -> bool {
        matches!(self.attribute, Attribute::OfRequest(_))
    }

    /// Whether it asks which server a TLS client wants.
    pub(super) fn is_of_server_names(&self) -> bool {
        matches!(self.attribute, Attribute::ServerName(_))
    }

    /// Whether it holds. What it asks of a request where there is none counts as fulfilled, as what nobody has looked for; what
    /// it asks of headers and tokens is as `doubtful` says, where that says anything.
    pub(super) fn holds(&self, access: &Access<'_>, doubtful: Option<bool>) -> bool {
        let found = match &self.attribute {
            Attribute::OfRequest(attribute) => match &access.request {
                Some(_) if doubtful.is_some() && attribute.is_of_headers() => {
                    return doubtful.unwrap_or_default();
                }
                Some(request) => attribute.is_found(request),
                None => return true,
            },
            Attribute::ServerName(patterns) => match access.server_name {
                ServerName::Unseen => return true,
                ServerName::Absent => false,
                ServerName::Named(name) => {
                    let mut patterns = patterns.iter();
                    patterns.any(|pattern| pattern.matches(name, Case::Ignored))
                }
            },
            attribute => attribute.is_found(access),
        };
        found != self.negated
    }
}

impl Attribute {
    fn is_found(&self, access: &Access<'_>) -> bool {
        let id = access.identity;
        match self {
            Self::Principal(patterns) => {
                any(patterns, id.principal())
                    || patterns
                        .iter()
                        .filter_map(Pattern::exact)
                        .any(|exact| is_alias(exact, access))
            }
            Self::Namespace(patterns) => any(patterns, id.namespace()),
            Self::ServiceAccount(patterns) => patterns.iter().any(|pattern| {
                let account = pattern.exact().and_then(|exact| exact.split_once('/'));
                account == Some((id.namespace(), id.service_account()))
            }),
            Self::TrustDomain(patterns) => {
                any(patterns, id.trust_domain())
                    || is_ours(id.trust_domain(), access)
                        && patterns
                            .iter()
                            .filter_map(Pattern::exact)
                            .any(|exact| is_ours(exact, access))
            }
            Self::SourceIp(blocks) => blocks.iter().any(|block| block.holds(access.source_ip)),
            Self::RemoteIp(blocks) => blocks.iter().any(|block| block.holds(access.remote_ip)),
            Self::DestinationIp(blocks) => {
                let mut ips = access.destination_ips.iter();
                ips.any(|ip| blocks.iter().any(|block| block.holds(*ip)))
            }
            Self::DestinationPort(ports) => ports.contains(&access.destination_port),
            Self::OfRequest(_) | Self::ServerName(_) => false,
        }
    }
}

impl OfRequest {
    /// Whether it is about what headers say, or a token in them.
    fn is_of_headers(&self) -> bool {
        match self {
            Self::Host(_) | Self::Method(_) | Self::Path(_) => false,
            Self::Header(name, ..) => *name != http::header::HOST,
            Self::Principal(_) | Self::Claim(..) => true,
        }
    }

    fn is_found(&self, request: &Request<'_>) -> bool {
        match self {
            Self::Host(patterns) => {
                let mut patterns = patterns.iter();
                patterns.any(|pattern| pattern.matches(request.authority, Case::Ignored))
            }
            Self::Method(patterns) => any(patterns, request.method),
            Self::Path(patterns) => any(patterns, request.path),
            Self::Header(name, lines, patterns) => {
                header(request, name, *lines, |value| any(patterns, value))
            }
            Self::Principal(patterns) => {
                let claim = |name: &str| request.token?.claims.get(name)?.as_str();
                let issuer = claim("iss").filter(|issuer| !issuer.is_empty());
                let subject = claim("sub").unwrap_or_default();
                issuer.is_some_and(|issuer| {
                    patterns.iter().any(|(of_issuer, of_subject)| {
                        of_issuer.matches(issuer, Case::Counts)
                            && of_subject.matches(subject, Case::Counts)
                    })
                })
            }
            Self::Claim(way, patterns) => {
                let claims = request.token.map(|token| token.claims);
                let found = claims.and_then(|claims| token::claim(claims, way));
                match found {
                    Some(Value::String(text)) => any(patterns, text),
                    Some(Value::Array(list)) => {
                        let texts = list.iter().filter_map(Value::as_str);
                        texts.into_iter().any(|text| any(patterns, text))
                    }
                    _ => false,
                }
            }
        }
    }
}

fn any(patterns: &[Pattern], text: &str) -> bool {
    let mut patterns = patterns.iter();
    patterns.any(|pattern| pattern.matches(text, Case::Counts))
}

fn header(
    request: &Request<'_>,
    name: &HeaderName,
    lines: Lines,
    matches: impl Fn(&str) -> bool,
) -> bool {
    if *name == http::header::HOST {
        return matches(request.authority);
    }
    let mut values = request.headers.get_all(name).iter();
    let texts = values
        .by_ref()
        .map(|value| String::from_utf8_lossy(value.as_bytes()));
    let texts: Vec<_> = texts.collect();
    match &*texts {
        [] => false,
        [one] => matches(one),
        several => {
            let each = lines == Lines::EachToo && several.iter().any(|one| matches(one));
            each || matches(&several.join(","))
        }
    }
}

fn is_ours(trust_domain: &str, access: &Access<'_>) -> bool {
    let mut ours = access.trust_domains.iter();
    ours.any(|ours| **ours == *trust_domain)
}

/// Whether a principal as written is the client under another trust domain that stands for its own.
fn is_alias(principal: &str, access: &Access<'_>) -> bool {
    let id = access.identity;
    let Some((trust_domain, path)) = principal.split_once('/') else {
        return false;
    };
    let own = id.principal().split_once('/').map(|(_, path)| path);
    own == Some(path)
        && is_ours(id.trust_domain(), access)
        && (trust_domain == DEFAULT_TRUST_DOMAIN || is_ours(trust_domain, access))
}
