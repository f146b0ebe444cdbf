// SPDX-License-Identifier: Apache-2.0
//! Compresses an answer for who says that it reads compressed ones (RFC 9110 §12.5.3).

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use http::{HeaderMap, HeaderValue, header};

use super::{AdminBody, AdminResponse};

/// Smaller bodies are not worth it.
const LEAST: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
}

impl Coding {
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    fn compress(self, body: &[u8]) -> io::Result<Vec<u8>> {
        let out = Vec::with_capacity(body.len() / 8);
        match self {
            Self::Gzip => {
                let mut encoder = GzEncoder::new(out, Compression::fast());
                encoder.write_all(body)?;
                encoder.finish()
            }
            Self::Deflate => {
                let mut encoder = ZlibEncoder::new(out, Compression::fast());
                encoder.write_all(body)?;
                encoder.finish()
            }
        }
    }
}

/// The same answer, smaller if `asked` permits and it is worth it.
pub(super) fn compressed(response: AdminResponse, asked: &HeaderMap) -> AdminResponse {
    let Some(coding) = acceptable(asked) else {
        return response;
    };
    let (mut parts, body) = response.into_parts();
    let body = match body.whole() {
        Ok(whole) => whole,
        // Nobody who looks on waits for a full window of the coding.
        Err(lines) => return AdminResponse::from_parts(parts, lines),
    };
    if body.len() < LEAST || parts.headers.contains_key(header::CONTENT_ENCODING) {
        return AdminResponse::from_parts(parts, AdminBody::from(body));
    }
    let Ok(smaller) = coding.compress(&body) else {
        return AdminResponse::from_parts(parts, AdminBody::from(body));
    };
    let headers = &mut parts.headers;
    headers.insert(
        header::CONTENT_ENCODING,
        HeaderValue::from_static(coding.name()),
    );
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    AdminResponse::from_parts(parts, AdminBody::from(Bytes::from(smaller)))
}

/// The coding that the asker likes best among those known here; gzip, if it likes both alike.
fn acceptable(asked: &HeaderMap) -> Option<Coding> {
    let mut weights: [Option<f32>; 2] = [None; 2];
    let mut any = None;
    let values = asked.get_all(header::ACCEPT_ENCODING).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    for item in values.flat_map(|value| value.split(',')) {
        let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
        let weight = match parameters.trim().strip_prefix("q=") {
            Some(weight) => weight.trim().parse().unwrap_or(0.0),
            None => 1.0,
        };
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => weights[0] = Some(weight),
            "deflate" => weights[1] = Some(weight),
            "*" => any = Some(weight),
            _ => {}
        }
    }
    let weight = |coding: Coding| {
        let own = weights[usize::from(coding == Coding::Deflate)];
        own.or(any).unwrap_or(0.0)
    };
    let best = match weight(Coding::Deflate) > weight(Coding::Gzip) {
        true => Coding::Deflate,
        false => Coding::Gzip,
    };
    (weight(best) > 0.0).then_some(best)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::{GzDecoder, ZlibDecoder};
    use http::StatusCode;

    use super::super::text;
    use super::*;

    fn asking(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, accept.parse().unwrap());
        headers
    }

    #[test]
    fn the_coding_is_the_one_that_the_asker_likes_best() {
        for (accept, expected) in [
            ("gzip", Some(Coding::Gzip)),
            ("GZIP;q=0.5", Some(Coding::Gzip)),
            ("deflate, gzip", Some(Coding::Gzip)),
            ("gzip;q=0.2, deflate;q=0.9", Some(Coding::Deflate)),
            ("zstd, br", None),
            ("gzip;q=0", None),
            ("*", Some(Coding::Gzip)),
            ("gzip;q=0, *", Some(Coding::Deflate)),
            ("identity", None),
            ("gzip;q=much", None),
        ] {
            assert_eq!(acceptable(&asking(accept)), expected, "{accept}");
        }
        assert_eq!(acceptable(&HeaderMap::new()), None);
    }

    #[test]
    fn what_was_compressed_is_read_back_whole() {
        let body = "a line like many others\n".repeat(200);
        for accept in ["gzip", "deflate"] {
            let answer = text(StatusCode::OK, body.clone());
            let answer = compressed(answer, &asking(accept));
            assert_eq!(answer.headers()[header::CONTENT_ENCODING], accept);
            let bytes = answer.into_body().whole().unwrap();
            assert!(bytes.len() < body.len() / 10);
            let mut back = String::new();
            match accept {
                "gzip" => GzDecoder::new(&*bytes).read_to_string(&mut back).unwrap(),
                _ => ZlibDecoder::new(&*bytes).read_to_string(&mut back).unwrap(),
            };
            assert_eq!(back, body);
        }
    }

    #[test]
    fn a_small_answer_stays_as_it_is() {
        let answer = compressed(text(StatusCode::OK, "ready\n"), &asking("gzip"));
        assert!(!answer.headers().contains_key(header::CONTENT_ENCODING));
        let bytes = answer.into_body().whole().unwrap();
        assert_eq!(&*bytes, b"ready\n");
    }
}
