// SPDX-License-Identifier: Apache-2.0
//! Why a route refuses a request, with the status, the flag and the words for log, metric and body.

use http::StatusCode;

use super::fault::Abort;

/// Why a request or a connection gets no backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason<'t> {
    /// There are routes, and none matches.
    #[error("no route matches")]
    NoRoute,
    /// The rule that matched can't be honoured, for this reason.
    #[error("the route's rule is invalid: {0}")]
    InvalidRule(&'t str),
    /// The reference drawn leads nowhere, for this reason.
    #[error("the route's backend is invalid: {0}")]
    InvalidBackend(&'t str),
    /// The rule has no backend, or none of any weight.
    #[error("the route's rule has no backend")]
    NoBackend,
    /// A script of an origin that may not ask.
    #[error("the route allows no requests of this origin")]
    Origin,
    /// A redirect needs a host, and the request names none.
    #[error("the request names no host")]
    NoHost,
    /// The backend's rewrite makes a path that is none.
    #[error("the route's rewrite leads to no path")]
    BadRewrite,
    /// The rule wants it so.
    #[error("the route's rule answers with an error on purpose")]
    Fault(Abort),
}

impl Reason<'_> {
    /// What the client is answered.
    pub fn status(self) -> StatusCode {
        match self {
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::NoHost => StatusCode::BAD_REQUEST,
            Self::InvalidRule(_) | Self::InvalidBackend(_) | Self::NoBackend | Self::BadRewrite => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Fault(abort) => abort.status,
        }
    }

    /// What a client that speaks gRPC is answered: UNIMPLEMENTED where nothing matches, UNAVAILABLE for what is the
    /// route's fault; none: what its status translates to.
    pub fn grpc_status(self) -> Option<u8> {
        const INTERNAL: u8 = 13;
        const PERMISSION_DENIED: u8 = 7;
        const UNAVAILABLE: u8 = 14;
        const UNIMPLEMENTED: u8 = 12;
        Some(match self {
            Self::Fault(abort) => return abort.grpc,
            Self::NoRoute => UNIMPLEMENTED,
            Self::Origin => PERMISSION_DENIED,
            Self::NoHost => INTERNAL,
            Self::InvalidRule(_) | Self::InvalidBackend(_) | Self::NoBackend | Self::BadRewrite => {
                UNAVAILABLE
            }
        })
    }

    /// Short name, for metrics and as flag: Envoy's where it has one.
    pub fn flag(self) -> &'static str {
        match self {
            Self::NoRoute => "NR",
            Self::InvalidRule(_) => "invalid_rule",
            Self::InvalidBackend(_) => "invalid_backend",
            Self::NoBackend => "no_backend",
            Self::Origin => "cors_origin",
            Self::NoHost => "DPE",
            Self::BadRewrite => "bad_rewrite",
            Self::Fault(_) => "FI",
        }
    }
}
