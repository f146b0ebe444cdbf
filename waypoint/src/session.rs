// SPDX-License-Identifier: Apache-2.0
//! Session persistence: a client comes back to the endpoint that served it.
//!
//! In: a request's headers, the time; out: which endpoint served it, and what the response is to carry. The client's
//! token holds hashes of the destination and of the endpoint, and times. It is compared with the endpoints that could be
//! picked anyway, so whoever forges one gets an endpoint of the same service and nothing else; it tells no address.
//!
//! ```text
//! token = base64url( version 1 | destination, 8 bytes | endpoint, 8 | begun, 4 | used, 4 )   Unix seconds, big-endian
//! ```

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use mesh::Endpoint;
use proto::waypoint::SessionPersistence;
use proto::waypoint::session_persistence::Carrier as Wire;
use xxhash_rust::xxh64::Xxh64;

use crate::filters::headers::route_header;
use crate::route::{Destination, RuleName};

/// Seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixTime(pub u32);

/// How a rule's clients are brought back.
#[derive(Debug, Clone)]
pub struct Session {
    carrier: Carrier,
    absolute: Option<u32>,
    idle: Option<u32>,
}

#[derive(Debug, Clone)]
enum Carrier {
    Cookie(Box<str>),
    Header(HeaderName),
}

/// Where a client was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    destination: u64,
    endpoint: u64,
    begun: UnixTime,
    used: UnixTime,
}

const VERSION: u8 = 1;
const LENGTH: usize = 25;
const ENCODED: usize = LENGTH.div_ceil(3) * 4 - 2;

/// Cookies of one request that are looked at.
const MOST_COOKIES: usize = 256;

impl Session {
    pub(crate) fn compile(wire: &SessionPersistence, rule: &RuleName) -> Result<Self, String> {
        let seconds = |what: &str, given: Option<_>| match given {
            None => Ok(None),
            Some(given) => match Duration::try_from(given) {
                Ok(time) => Ok(u32::try_from(time.as_secs()).ok().filter(|time| *time > 0)),
                Err(_) => Err(format!(
                    "session persistence: the {what} timeout is no time"
                )),
            },
        };
        let name = match wire.name.as_str() {
            "" => format!(
                "culvert-{:016x}",
                hash(&[&rule.namespace, &rule.route, &rule.rule].map(|part| part.as_bytes()))
            ),
            name => name.to_owned(),
        };
        let bad = |why: String| format!("session persistence: {why}");
        let carrier = match Wire::try_from(wire.carrier) {
            Ok(Wire::Cookie) => {
                // A token as a header's name is (RFC 6265 §4.1.1), but case counts.
                let token = HeaderName::from_bytes(name.as_bytes());
                token.map_err(|_| bad(format!("{name:?} is not a cookie's name")))?;
                Carrier::Cookie(name.into())
            }
            Ok(Wire::Header) => {
                let header = route_header(&name).map_err(|error| bad(error.to_string()))?;
                if [header::COOKIE, header::SET_COOKIE].contains(&header) {
                    return Err(bad(format!("{header} is for cookies")));
                }
                Carrier::Header(header)
            }
            Err(_) => return Err(bad(format!("carrier {} is not known", wire.carrier))),
        };
        Ok(Self {
            carrier,
            absolute: seconds("absolute", wire.absolute_timeout)?,
            idle: seconds("idle", wire.idle_timeout)?,
        })
    }

    /// Where the client was, if it says so and its time isn't over.
    pub fn read(&self, headers: &HeaderMap, now: UnixTime) -> Option<Pin> {
        let pin = match &self.carrier {
            Carrier::Header(name) => Pin::decode(headers.get(name)?.as_bytes()),
            Carrier::Cookie(name) => {
                let lines = headers.get_all(header::COOKIE).iter();
                let cookies = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
                let mut values = cookies.take(MOST_COOKIES).filter_map(|cookie| {
                    let value = cookie.trim_ascii().strip_prefix(name.as_bytes())?;
                    value.strip_prefix(b"=")
                });
                values.find_map(Pin::decode)
            }
        }?;
        let is_over = |since: UnixTime, limit: Option<u32>| {
            limit.is_some_and(|limit| now.0.saturating_sub(since.0) >= limit)
        };
        // What begins in the future was not made here.
        let is_past = pin.begun <= now && pin.used <= now;
        (is_past && !is_over(pin.begun, self.absolute) && !is_over(pin.used, self.idle))
            .then_some(pin)
    }

    /// Tells the client, in its response, where it is served, unless it knows. `pin` is what [`Self::read`] gave.
    pub fn write(
        &self,
        pin: Option<Pin>,
        destination: &Destination,
        endpoint: &Endpoint,
        now: UnixTime,
        headers: &mut HeaderMap,
    ) {
        let known = pin.filter(|pin| pin.is_for(destination) && pin.is_at(endpoint));
        // A quarter of the idle time may pass untold; the client comes a quarter short of it at worst.
        let is_fresh = |pin: Pin| {
            self.idle
                .is_none_or(|idle| now.0.saturating_sub(pin.used.0) < idle.div_ceil(4))
        };
        if known.is_some_and(is_fresh) {
            return;
        }
        let begun = known.map_or(now, |pin| pin.begun);
        let token = Pin {
            destination: destination_hash(destination),
            endpoint: endpoint_hash(endpoint),
            begun,
            used: now,
        }
        .encode();
        let (name, value) = match &self.carrier {
            Carrier::Header(name) => (name.clone(), token),
            Carrier::Cookie(name) => {
                let age = self
                    .absolute
                    .map(|absolute| absolute - now.0.saturating_sub(begun.0).min(absolute));
                let age = age.map_or(String::new(), |age| format!("; Max-Age={age}"));
                let cookie = format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax{age}");
                (header::SET_COOKIE, cookie)
            }
        };
        if let Ok(value) = HeaderValue::try_from(value) {
            match self.carrier {
                Carrier::Header(_) => drop(headers.insert(name, value)),
                Carrier::Cookie(_) => drop(headers.try_append(name, value)),
            }
        }
    }
}

impl Pin {
    /// Whether the client was served by this destination.
    pub fn is_for(&self, destination: &Destination) -> bool {
        self.destination == destination_hash(destination)
    }

    /// Whether this endpoint served it.
    pub fn is_at(&self, endpoint: &Endpoint) -> bool {
        self.endpoint == endpoint_hash(endpoint)
    }

    fn encode(self) -> String {
        let mut bytes = [0; LENGTH];
        bytes[0] = VERSION;
        bytes[1..9].copy_from_slice(&self.destination.to_be_bytes());
        bytes[9..17].copy_from_slice(&self.endpoint.to_be_bytes());
        bytes[17..21].copy_from_slice(&self.begun.0.to_be_bytes());
        bytes[21..].copy_from_slice(&self.used.0.to_be_bytes());
        BASE64.encode(bytes)
    }

    fn decode(token: &[u8]) -> Option<Self> {
        // Bounds what is decoded; it takes one spelling of each.
        if token.len() != ENCODED {
            return None;
        }
        let bytes = BASE64.decode(token).ok()?;
        let bytes: [u8; LENGTH] = bytes.try_into().ok()?;
        let long = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        (bytes[0] == VERSION).then_some(Self {
            destination: long(1)?,
            endpoint: long(9)?,
            begun: UnixTime(short(17)?),
            used: UnixTime(short(21)?),
        })
    }
}

/// The same in every process of this version, so that clients stay when a waypoint restarts.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = Xxh64::new(u64::from(VERSION));
    for part in parts {
        hasher.update(part);
        hasher.update(&[0]);
    }
    hasher.digest()
}

fn destination_hash(destination: &Destination) -> u64 {
    let Destination {
        namespace,
        hostname,
        port,
        ..
    } = destination;
    hash(&[
        namespace.as_bytes(),
        hostname.as_bytes(),
        &port.to_be_bytes(),
    ])
}

fn endpoint_hash(endpoint: &Endpoint) -> u64 {
    hash(&[endpoint.workload.as_bytes(), &endpoint.port.to_be_bytes()])
}

#[cfg(test)]
mod tests;
