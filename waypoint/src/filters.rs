// SPDX-License-Identifier: Apache-2.0
//! What a route's rule does to the requests that it matches, and to their responses.
//!
//! In: the filters of a rule or of one of its backends, compiled once; a request's method, path and headers. Out: changed
//! headers, another path or host, the `Location` of a redirect, the headers of a CORS preflight, who gets a copy.
//! A filter that can't be honoured makes its rule (or its backend) answer 500 with the reason: it is never left out.
//!
//! ```text
//! request ─► CORS: a preflight is answered ─► redirect: answered ─► headers, host, path ─► copies ─► backend
//! response ◄──────────────── CORS ◄── headers ◄──────────────────────────────────────────────────────┘
//! ```

pub mod cors;
pub mod headers;
pub mod location;

use http::HeaderValue;
use http::header::HeaderMap;
use proto::waypoint::http_filter::Kind;

use crate::route::{BadDestination, Destination};
use crate::split::Fraction;
pub use cors::Cors;
pub use headers::HeaderEdit;
pub use location::{PathChange, Redirect, Rewrite};

/// Most filters of a rule or a backend, as in Gateway API.
const MOST: usize = 16;

/// A copy of some requests, whose response nobody waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Who gets the copies.
    pub destination: Destination,
    /// Of which share of the requests.
    pub fraction: Fraction,
}

/// The filters of a rule or of a backend, in the order in which they apply.
#[derive(Debug, Clone, Default)]
pub struct Filters {
    request: Option<HeaderEdit>,
    response: Option<HeaderEdit>,
    /// Answers instead of any backend.
    pub redirect: Option<Redirect>,
    /// Another path or host for the backend.
    pub rewrite: Option<Rewrite>,
    /// Who gets copies.
    pub mirrors: Box<[Mirror]>,
    /// Who may read responses in a browser.
    pub cors: Option<Cors>,
}

/// Why a filter can't be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFilter {
    /// More than a route can have.
    #[error("{0} filters, more than {MOST}")]
    Many(usize),
    /// A kind that this waypoint doesn't know.
    #[error("a filter of an unknown kind")]
    Unset,
    /// An extension that is not there or not known.
    #[error("extension {0} is not known")]
    Unknown(String),
    /// One that may stand once only.
    #[error("more than one {0} filter")]
    Repeated(&'static str),
    /// Two that exclude each other.
    #[error("a redirect and a rewrite in one rule")]
    RedirectAndRewrite,
    /// See [`headers::BadEdit`].
    #[error("{0} header modifier: {1}")]
    Headers(&'static str, headers::BadEdit),
    /// See [`location::BadChange`].
    #[error("{0}: {1}")]
    Change(&'static str, location::BadChange),
    /// See [`cors::BadCors`].
    #[error("CORS: {0}")]
    Cors(cors::BadCors),
    /// A copy can't be sent there.
    #[error("mirror: {0}")]
    Mirror(BadDestination),
}

impl Filters {
    /// Compiles the filters of a rule or a backend.
    ///
    /// # Errors
    /// If one can't be honoured.
    pub fn compile(filters: &[proto::waypoint::HttpFilter]) -> Result<Self, BadFilter> {
        if filters.len() > MOST {
            return Err(BadFilter::Many(filters.len()));
        }
        let mut compiled = Self::default();
        let mut mirrors = Vec::new();
        for filter in filters {
            match filter.kind.as_ref().ok_or(BadFilter::Unset)? {
                Kind::RequestHeaders(edit) => {
                    let edit = HeaderEdit::compile(edit);
                    let edit = edit.map_err(|error| BadFilter::Headers("request", error))?;
                    once(&mut compiled.request, edit, "request header")?;
                }
                Kind::ResponseHeaders(edit) => {
                    let edit = HeaderEdit::compile(edit);
                    let edit = edit.map_err(|error| BadFilter::Headers("response", error))?;
                    once(&mut compiled.response, edit, "response header")?;
                }
                Kind::Redirect(redirect) => {
                    let redirect = Redirect::compile(redirect);
                    let redirect =
                        redirect.map_err(|error| BadFilter::Change("redirect", error))?;
                    once(&mut compiled.redirect, redirect, "redirect")?;
                }
                Kind::Rewrite(rewrite) => {
                    let rewrite = Rewrite::compile(rewrite);
                    let rewrite = rewrite.map_err(|error| BadFilter::Change("rewrite", error))?;
                    once(&mut compiled.rewrite, rewrite, "rewrite")?;
                }
                Kind::Mirror(mirror) => mirrors.extend(compile_mirror(mirror)?),
                Kind::Cors(cors) => {
                    let cors = Cors::compile(cors).map_err(BadFilter::Cors)?;
                    once(&mut compiled.cors, cors, "CORS")?;
                }
                Kind::Unknown(name) => return Err(BadFilter::Unknown(name.clone())),
            }
        }
        if compiled.redirect.is_some() && compiled.rewrite.is_some() {
            return Err(BadFilter::RedirectAndRewrite);
        }
        compiled.mirrors = mirrors.into();
        Ok(compiled)
    }

    /// Whether one of them replaces the prefix that a rule matched, which there has to be then.
    pub fn replaces_prefix(&self) -> bool {
        let redirect = self
            .redirect
            .as_ref()
            .and_then(|filter| filter.path.as_ref());
        let rewrite = self
            .rewrite
            .as_ref()
            .and_then(|filter| filter.path.as_ref());
        let mut paths = redirect.into_iter().chain(rewrite);
        paths.any(|path| matches!(path, PathChange::Prefix(_)))
    }

    /// Changes the headers of a request.
    pub fn edit_request(&self, headers: &mut HeaderMap) {
        if let Some(edit) = &self.request {
            edit.apply(headers);
        }
    }

    /// Changes the headers of a response.
    pub fn edit_response(&self, headers: &mut HeaderMap) {
        if let Some(edit) = &self.response {
            edit.apply(headers);
        }
    }

    /// The host that the backend is to see; none for that of the request.
    pub fn host(&self) -> Option<&HeaderValue> {
        self.rewrite.as_ref()?.host.as_ref()
    }
}

fn once<T>(place: &mut Option<T>, filter: T, name: &'static str) -> Result<(), BadFilter> {
    match place.replace(filter) {
        None => Ok(()),
        Some(_) => Err(BadFilter::Repeated(name)),
    }
}

/// Nothing for a reference that leads nowhere: then nothing is copied, and the request itself goes its way.
fn compile_mirror(mirror: &proto::waypoint::Mirror) -> Result<Option<Mirror>, BadFilter> {
    let Some(destination) = &mirror.destination else {
        return Ok(None);
    };
    let destination = Destination::compile(destination);
    Ok(Some(Mirror {
        destination: destination.map_err(BadFilter::Mirror)?,
        fraction: Fraction {
            numerator: mirror.numerator,
            denominator: mirror.denominator,
        },
    }))
}
