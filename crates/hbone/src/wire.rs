// SPDX-License-Identifier: Apache-2.0
//! The contract of a CONNECT request: port, authority and headers, parsed and built.
//!
//! Building always gives something that HTTP can carry: what cannot be carried is left out. Parsing is strict about
//! the authority, which decides where bytes go, and lenient about everything that only describes the connection: a
//! header that can't be read counts as absent. All of it is bounded.

mod authority;
mod baggage;
mod forwarded;
mod traceparent;

pub use authority::{Authority, AuthorityError};
pub use baggage::{Baggage, WorkloadKind};
pub use forwarded::Forwarded;
pub use traceparent::TraceParent;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use spiffe::SpiffeId;

/// Where workloads accept tunnels.
pub const PORT: u16 = 15008;

const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const FORWARDED_NETWORK: HeaderName = HeaderName::from_static("x-forwarded-network");
const CALLER: HeaderName = HeaderName::from_static("x-culvert-caller");

/// Longest descriptive header that is looked at, in bytes; longer ones count as absent.
const MAX_HEADER: usize = 8 * 1024;

/// What a stream is asked to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Where the peer is to connect.
    pub authority: Authority,
    /// Who the source is, for telemetry; not proven by anything.
    pub baggage: Option<Baggage>,
    /// The client's address and the service that it meant.
    pub forwarded: Option<Forwarded>,
    /// The trace that the connection belongs to.
    pub traceparent: Option<TraceParent>,
    /// The network of the source, where a gateway may lie between; the network without a name is one too.
    pub network: Option<String>,
    /// Who a waypoint says that it speaks for; worth as much as whoever says so.
    pub caller: Option<SpiffeId>,
}

/// Why a request is no CONNECT that can be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRequest {
    /// Another method.
    #[error("method is {0}, not CONNECT")]
    Method(Box<str>),
    /// No authority, or none that can be read.
    #[error("authority: {0}")]
    Authority(#[from] AuthorityError),
}

impl ConnectRequest {
    /// A request with nothing but its destination.
    pub fn new(authority: Authority) -> Self {
        Self {
            authority,
            baggage: None,
            forwarded: None,
            traceparent: None,
            network: None,
            caller: None,
        }
    }

    /// As HTTP.
    pub(crate) fn to_http(&self) -> Result<Request<()>, http::Error> {
        let authority = self.authority.to_string();
        let uri = Uri::builder().authority(authority).build()?;
        let mut request = Request::new(());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        if let Some(baggage) = &self.baggage {
            headers.insert(BAGGAGE, baggage.to_header());
        }
        if let Some(value) = self.forwarded.as_ref().and_then(Forwarded::to_header) {
            headers.insert(FORWARDED, value);
        }
        if let Some(traceparent) = &self.traceparent {
            headers.insert(TRACEPARENT, traceparent.to_header());
        }
        if let Some(network) = &self.network
            && let Ok(value) = HeaderValue::from_str(network)
        {
            headers.insert(FORWARDED_NETWORK, value);
        }
        if let Some(caller) = &self.caller
            && let Ok(value) = HeaderValue::from_str(caller.as_str())
        {
            headers.insert(CALLER, value);
        }
        Ok(request)
    }

    /// From HTTP.
    pub(crate) fn from_http<B>(request: &Request<B>) -> Result<Self, MalformedRequest> {
        if request.method() != Method::CONNECT {
            return Err(MalformedRequest::Method(request.method().as_str().into()));
        }
        let authority = request
            .uri()
            .authority()
            .map_or("", |a| a.as_str())
            .parse()?;
        let headers = request.headers();
        Ok(Self {
            authority,
            baggage: Baggage::from_headers(all_of(headers, &BAGGAGE)),
            forwarded: first_of(headers, &FORWARDED).and_then(Forwarded::parse),
            traceparent: first_of(headers, &TRACEPARENT).and_then(TraceParent::parse),
            network: first_of(headers, &FORWARDED_NETWORK).map(str::to_owned),
            caller: only(headers, &CALLER).and_then(|caller| caller.parse().ok()),
        })
    }
}

/// The answer to a request: 200 and what the server says of the destination.
pub(crate) fn accepted(baggage: Option<&Baggage>) -> Response<()> {
    let mut response = Response::new(());
    if let Some(baggage) = baggage {
        response.headers_mut().insert(BAGGAGE, baggage.to_header());
    }
    response
}

/// A refusal.
pub(crate) fn refused(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}

/// What an answer says of the destination.
pub(crate) fn response_baggage<B>(response: &Response<B>) -> Option<Baggage> {
    Baggage::from_headers(all_of(response.headers(), &BAGGAGE))
}

fn all_of<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h HeaderValue> + use<'h> {
    headers.get_all(name).iter()
}

/// The first header of a name, if it is ASCII and not too long.
fn first_of<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).and_then(readable)
}

/// The header of a name that decides something: of two, neither is taken.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then(|| readable(first)).flatten()
}

fn readable(value: &HeaderValue) -> Option<&str> {
    (value.len() <= MAX_HEADER)
        .then(|| value.to_str().ok())
        .flatten()
}

#[cfg(test)]
mod tests;
