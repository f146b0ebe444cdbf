// SPDX-License-Identifier: Apache-2.0
//! `/debug/explain`: what would become of a request, decided by the code that decides on real ones. Nobody is asked, nothing
//! is sent, counted or remembered. What it can't know (what an authorizer would say, whether a limit is used up) it says.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use mesh::NamespacedHostname;
use ops::admin::{AdminRequest, AdminResponse, json, text};
use serde::Serialize;
use spiffe::SpiffeId;

use crate::authorize::{Facts, Rules};
use crate::authz;
use crate::hygiene;
use crate::path;
use crate::route::{self, Answer, Here, Table};
use crate::session::UnixTime;
use crate::state::Known;
use crate::waypoint::Waypoint;

const USAGE: &str = "usage: GET /debug/explain?service=<namespace>/<host>&port=<port>&source=<SPIFFE id>\n\
optional: ip=<the client's> method=<GET> path=</> header=<name: value>, again for each\n";

/// Headers that may be given.
const MOST_HEADERS: usize = 64;

/// A request that nobody made.
#[derive(Debug)]
struct Asked {
    service: NamespacedHostname,
    port: u16,
    source: SpiffeId,
    ip: Option<IpAddr>,
    head: http::request::Parts,
}

/// What would become of it.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    allowed: bool,
    /// What decides.
    why: String,
    /// Authorizers that have to agree first, by which rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    asks: Vec<String>,
    /// What policies in dry run would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<String>,
    /// The rule that is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<String>,
    /// Where it leads; one of several by chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    leads_to: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<&'static str>,
}

pub(super) fn page(waypoint: &Waypoint, request: &AdminRequest) -> AdminResponse {
    match Asked::read(&request.query) {
        Ok(asked) => json(&explain(asked, &waypoint.state.read())),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n{USAGE}")),
    }
}

impl Asked {
    /// # Errors
    /// Names the field that is missing or none.
    fn read(query: &[(String, String)]) -> Result<Self, String> {
        let (mut service, mut port, mut source, mut ip) = (None, None, None, None);
        let mut method = Method::GET;
        let mut path = "/";
        let mut headers = Vec::new();
        for (key, value) in query {
            let wrong = |what: &str| format!("{key}: {value:?} is no {what}");
            match key.as_str() {
                "service" => {
                    let (namespace, host) = value
                        .split_once('/')
                        .ok_or_else(|| wrong("namespace/host"))?;
                    service = Some(NamespacedHostname {
                        namespace: namespace.into(),
                        hostname: host.into(),
                    });
                }
                "port" => port = Some(value.parse().map_err(|_| wrong("port"))?),
                "source" => source = Some(value.parse().map_err(|_| wrong("SPIFFE id"))?),
                "ip" => ip = Some(value.parse().map_err(|_| wrong("address"))?),
                "method" => method = value.parse().map_err(|_| wrong("method"))?,
                "path" => path = value,
                "header" if headers.len() < MOST_HEADERS => {
                    let (name, value) = value.split_once(':').ok_or_else(|| wrong("header"))?;
                    let name: HeaderName = name.trim().parse().map_err(|_| wrong("header"))?;
                    let value: HeaderValue = value.trim().parse().map_err(|_| wrong("header"))?;
                    headers.push((name, value));
                }
                "header" => return Err(format!("header: more than {MOST_HEADERS}")),
                _ => return Err(format!("{key} is not known")),
            }
        }
        let service = service.ok_or("service is missing")?;
        let mut request = http::Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| name == http::header::HOST) {
            request = request.header(http::header::HOST, &*service.hostname);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(());
        let request = request.map_err(|error| format!("path: {path:?}: {error}"))?;
        Ok(Self {
            service,
            port: port.ok_or("port is missing")?,
            source: source.ok_or("source is missing")?,
            ip,
            head: request.into_parts().0,
        })
    }
}

fn explain(mut asked: Asked, known: &Known) -> Told {
    let mut told = Told::default();
    if asked.ip.is_none() {
        told.notes
            .push("no ip was given: rules about addresses are looked at as if it were 0.0.0.0");
    }
    match decided(&mut asked, known, &mut told) {
        Ok(why) => (told.allowed, told.why) = (true, why),
        Err(why) => told.why = why,
    }
    told
}

/// # Errors
/// Why it is refused.
fn decided(asked: &mut Asked, known: &Known, told: &mut Told) -> Result<String, String> {
    let rules = Rules::of(known, Some(&asked.service)).map_err(|error| error.to_string())?;
    let read = hygiene::read(
        &asked.head.method,
        asked.head.version,
        &asked.head.uri,
        &asked.head.headers,
    );
    let read = read.map_err(|error| error.to_string())?;
    let normalization = rules.settings.normalization;
    let path = path::normalize(read.path, normalization).map_err(|error| error.to_string())?;
    let (authority, path) = (read.authority.to_owned(), path.into_owned());
    let query = read.query.map(str::to_owned);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let seconds = i64::try_from(now).unwrap_or(i64::MAX);
    let token = rules.authenticate(&mut asked.head, seconds);
    let token = token.map_err(|error| format!("its token is refused: {error}"))?;
    let ip = asked.ip.unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let service = known
        .mesh
        .service(&asked.service.namespace, &asked.service.hostname);
    let addresses = service.map(|service| service.vips.iter().map(|vip| vip.address));
    let destination_ips: Vec<IpAddr> = addresses.into_iter().flatten().collect();
    let facts = Facts {
        source_ip: ip,
        identity: asked.source.clone(),
        destination: SocketAddr::new(destination_ips.first().copied().unwrap_or(ip), asked.port),
        destination_ips: destination_ips.into(),
        service: Some(asked.service.clone()),
        server_name: OnceLock::new(),
    };
    let claims = token.as_ref().map(|token| &token.claims);
    let access = rules.asking(
        &facts,
        authz::Request {
            method: asked.head.method.as_str(),
            authority: &authority,
            path: &path,
            headers: &asked.head.headers,
            token: claims.map(|claims| authz::Token { claims }),
            doubt: None,
        },
    );
    for custom in rules.custom(&access) {
        let trial = if custom.dry_run { " (dry run)" } else { "" };
        told.asks
            .push(format!("{} by {}{trial}", custom.authorizer, custom.by));
    }
    let decision = rules.decide(&access);
    told.dry_run = decision.dry_run.as_ref().map(ToString::to_string);
    let verdict = decision.verdict.to_string();
    if decision.verdict.is_denied() {
        return Err(verdict);
    }
    let port = known
        .served
        .get(&asked.service)
        .and_then(|served| served.port(asked.port));
    let port = port.ok_or_else(|| format!("the service has no port {}", asked.port))?;
    match port.table(asked.source.namespace()) {
        None => told.leads_to = Some(format!("{}:{}", asked.service, asked.port)),
        Some(Table::Http(table)) => {
            let request = route::Request {
                method: &asked.head.method,
                scheme: "http",
                authority: &authority,
                port: asked.port,
                path: &path,
                query: query.as_deref(),
                headers: &asked.head.headers,
                claims,
            };
            let now = UnixTime(now.try_into().unwrap_or(u32::MAX));
            let answer = table.answer(&request, now, &mut rand::rng());
            told.route = answer.rule().map(|rule| rule.name.to_string());
            told.leads_to = Some(match &answer {
                Answer::Forward(forward) => {
                    let to = forward.destination;
                    format!("{}/{}:{}", to.namespace, to.hostname, to.port)
                }
                Answer::Here(Here::Redirect {
                    status, location, ..
                }) => {
                    let location = location.to_str().unwrap_or("?");
                    format!("{} to {location}", status.as_u16())
                }
                Answer::Here(Here::Preflight { .. }) => "204, as a browser asks".to_owned(),
                Answer::Here(Here::Direct { .. }) => "an answer of the rule's own".to_owned(),
                Answer::Here(Here::Refuse { reason, .. }) => {
                    return Err(format!("{}: {reason}", reason.status().as_u16()));
                }
            });
        }
        Some(Table::Tls(_) | Table::Tcp(_)) => {
            told.notes
                .push("the port carries bytes, which routes follow by connection");
        }
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_and_what_is_wrong_is_named() {
        let read = |query: &[(&str, &str)]| {
            let pairs = query.iter();
            let pairs: Vec<_> = pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            Asked::read(&pairs)
        };
        let whole = [
            ("service", "shop/cart.shop.svc.cluster.local"),
            ("port", "80"),
            ("source", "spiffe://cluster.local/ns/shop/sa/web"),
            ("method", "POST"),
            ("path", "/a?b=c"),
            ("header", "x-canary: yes"),
        ];
        let asked = read(&whole).unwrap();
        assert_eq!(asked.head.headers["x-canary"], "yes");
        assert_eq!(asked.head.headers["host"], "cart.shop.svc.cluster.local");
        assert_eq!((asked.head.method, asked.port), (Method::POST, 80));
        for (change, why) in [
            (("port", "http"), "port: \"http\" is no port"),
            (
                ("service", "cart"),
                "service: \"cart\" is no namespace/host",
            ),
            (("source", "web"), "source: \"web\" is no SPIFFE id"),
            (("header", "x"), "header: \"x\" is no header"),
            (("ip", "x"), "ip: \"x\" is no address"),
            (("nonsense", ""), "nonsense is not known"),
        ] {
            let query: Vec<_> = whole.iter().copied().chain([change]).collect();
            assert_eq!(read(&query).unwrap_err(), why);
        }
        assert_eq!(read(&whole[1..]).unwrap_err(), "service is missing");
    }
}
