// SPDX-License-Identifier: Apache-2.0
//! Field blocks as HTTP: a CONNECT request (RFC 9113 §8.5) or the answer to one, checked as §8.1 to §8.3 demand.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};

use super::super::hpack::{Decoder, Encoder, HpackError, Listing};

/// What a field block said.
pub(in crate::engine) enum Block<T> {
    Read(T),
    /// A stream error (RFC 9113 §8.1.1).
    Malformed(&'static str),
    /// More than we are ready to keep.
    TooLong,
}

/// Reads a request.
pub(in crate::engine) fn request(
    decoder: &mut Decoder,
    block: &[u8],
    max_list: usize,
) -> Result<Block<Request<()>>, HpackError> {
    Ok(match Fields::read(decoder, block, max_list)? {
        Block::Read(fields) => match fields.into_request() {
            Ok(request) => Block::Read(request),
            Err(reason) => Block::Malformed(reason),
        },
        Block::Malformed(reason) => Block::Malformed(reason),
        Block::TooLong => Block::TooLong,
    })
}

/// Reads a response.
pub(super) fn response(
    decoder: &mut Decoder,
    block: &[u8],
    max_list: usize,
) -> Result<Block<Response<()>>, HpackError> {
    Ok(match Fields::read(decoder, block, max_list)? {
        Block::Read(fields) => match fields.into_response() {
            Ok(response) => Block::Read(response),
            Err(reason) => Block::Malformed(reason),
        },
        Block::Malformed(reason) => Block::Malformed(reason),
        Block::TooLong => Block::TooLong,
    })
}

/// Reads a block that nobody wants, to keep the table right.
pub(super) fn skip(decoder: &mut Decoder, block: &[u8]) -> Result<(), HpackError> {
    decoder.decode(block, 0, |_, _| {}).map(|_| ())
}

/// Writes a CONNECT request.
pub(in crate::engine) fn write_request(request: &Request<()>, out: &mut Vec<u8>) {
    Encoder::field(out, b":method", request.method().as_str().as_bytes());
    if let Some(authority) = request.uri().authority() {
        Encoder::field(out, b":authority", authority.as_str().as_bytes());
    }
    write_headers(request.headers(), out);
}

/// Writes a response.
pub(super) fn write_response(response: &Response<()>, out: &mut Vec<u8>) {
    Encoder::field(out, b":status", response.status().as_str().as_bytes());
    write_headers(response.headers(), out);
}

fn write_headers(headers: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in headers {
        Encoder::field(out, name.as_str().as_bytes(), value.as_bytes());
    }
}

#[derive(Default)]
struct Fields {
    method: Option<Method>,
    authority: Option<String>,
    /// `:path`, `:scheme` or `:protocol`: never with a plain CONNECT.
    other_pseudo: bool,
    status: Option<StatusCode>,
    headers: HeaderMap,
}

impl Fields {
    fn read(
        decoder: &mut Decoder,
        block: &[u8],
        max_list: usize,
    ) -> Result<Block<Self>, HpackError> {
        let mut fields = Self::default();
        let mut fault = None;
        let listing = decoder.decode(block, max_list, |name, value| {
            if fault.is_none() {
                fault = fields.add(name, value).err();
            }
        })?;
        Ok(match (listing, fault) {
            (Listing::TooLong, _) => Block::TooLong,
            (_, Some(reason)) => Block::Malformed(reason),
            (Listing::Whole, None) => Block::Read(fields),
        })
    }

    fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if name.starts_with(b":") {
            if !self.headers.is_empty() {
                return Err("a pseudo-header behind a header");
            }
            return self.add_pseudo(name, value);
        }
        let name = HeaderName::from_lowercase(name).map_err(|_| "a header name")?;
        let value = HeaderValue::from_bytes(value).map_err(|_| "a header value")?;
        let connection_specific = matches!(
            name.as_str(),
            "connection" | "proxy-connection" | "keep-alive" | "transfer-encoding" | "upgrade"
        );
        if connection_specific || name == "te" && value != "trailers" {
            return Err("a header of HTTP/1.1's connections");
        }
        self.headers
            .try_append(name, value)
            .map_err(|_| "too many headers")?;
        Ok(())
    }

    fn add_pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let repeated = match name {
            b":method" => {
                let method = Method::from_bytes(value).map_err(|_| "the method")?;
                self.method.replace(method).is_some()
            }
            b":authority" => {
                let text = std::str::from_utf8(value).map_err(|_| "the authority")?;
                self.authority.replace(text.to_owned()).is_some()
            }
            b":status" => {
                let status = StatusCode::from_bytes(value).map_err(|_| "the status")?;
                self.status.replace(status).is_some()
            }
            b":path" | b":scheme" | b":protocol" => {
                self.other_pseudo = true;
                false
            }
            _ => return Err("an unknown pseudo-header"),
        };
        if repeated {
            return Err("a pseudo-header twice");
        }
        Ok(())
    }

    fn into_request(self) -> Result<Request<()>, &'static str> {
        let method = self.method.ok_or("a request without method")?;
        if self.status.is_some() {
            return Err("a request with a status");
        }
        if method == Method::CONNECT && self.other_pseudo {
            return Err("a CONNECT with path, scheme or protocol");
        }
        let mut request = Request::new(());
        *request.method_mut() = method;
        // One that can't be written as a URI reads as missing, which is answered with a status and a reason.
        if let Some(authority) = self.authority
            && let Ok(uri) = Uri::builder().authority(authority).build()
        {
            *request.uri_mut() = uri;
        }
        *request.headers_mut() = self.headers;
        Ok(request)
    }

    fn into_response(self) -> Result<Response<()>, &'static str> {
        if self.method.is_some() || self.authority.is_some() || self.other_pseudo {
            return Err("an answer with the parts of a request");
        }
        let mut response = Response::new(());
        *response.status_mut() = self.status.ok_or("an answer without status")?;
        *response.headers_mut() = self.headers;
        Ok(response)
    }
}
