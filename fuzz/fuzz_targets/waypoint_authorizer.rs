// SPDX-License-Identifier: Apache-2.0
//! Whom CUSTOM policies ask, and what they answer over HTTP and gRPC.
//!
//! Parts: 0 an authorizer; 1 an answer, whose first line is a status, headers up to an empty line, then the body; 2 a
//! CheckResponse, framed as gRPC does; 3 the body of a gRPC answer as it is.
#![no_main]

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use waypoint::authorizer::{Answer, Asking, Authorizer};

fuzz_target!(|data: &[u8]| {
    let mut asking: Option<Asking> = None;
    for (kind, part) in fuzz::parts(data).take(16) {
        if kind == 0 {
            let written = proto::waypoint::Authorizer::decode(part).ok();
            asking = written.and_then(|written| Authorizer::compile(&written).asking.ok());
            continue;
        }
        let Some(asking) = &asking else { continue };
        match kind {
            1 => {
                let text = String::from_utf8_lossy(part);
                let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
                let mut lines = head.lines();
                let status = lines.next().and_then(|line| line.parse::<u16>().ok());
                let mut headers = HeaderMap::new();
                for line in lines.take(32) {
                    let (name, value) = line.split_once(':').unwrap_or((line, ""));
                    let (name, value) = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
                    if let (Ok(name), Ok(value)) = (name, value) {
                        headers.append(name, value);
                    }
                }
                answered(asking, status.unwrap_or(200), headers, body.to_owned().into());
            }
            2 => {
                let length = u32::try_from(part.len()).unwrap_or_default();
                let framed = [&[0], &length.to_be_bytes()[..], part].concat();
                answered(asking, 200, HeaderMap::new(), framed.into());
            }
            _ => answered(asking, 200, HeaderMap::new(), part.to_vec().into()),
        }
    }
});

fn answered(asking: &Asking, status: u16, headers: HeaderMap, body: Bytes) {
    let Ok(response) = http::Response::builder().status(status).body(()) else {
        return;
    };
    let (mut head, ()) = response.into_parts();
    head.headers = headers;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    match asking.answer(&head, body, Some(&trailers)) {
        Ok(Answer::Allowed(allowed)) => {
            // Whom a request is for and where it ends, no authorizer changes.
            const KEPT: [HeaderName; 3] = [header::HOST, header::CONTENT_LENGTH, header::TE];
            let mut request = HeaderMap::new();
            for name in KEPT {
                request.insert(name, HeaderValue::from_static("kept"));
            }
            allowed.change(&mut request);
            for name in KEPT {
                let lines: Vec<_> = request.get_all(&name).iter().collect();
                assert_eq!(lines, ["kept"], "{name}");
            }
            assert!(!request.contains_key(header::TRANSFER_ENCODING));
            let mut answer = HeaderMap::new();
            allowed.change_answer(&mut answer);
            assert!(!answer.contains_key(header::CONTENT_LENGTH));
        }
        Ok(Answer::Denied(denied)) => {
            assert!(!denied.status.is_informational());
            assert!(!denied.headers.contains_key(header::CONTENT_LENGTH));
        }
        Err(why) => _ = why.to_string(),
    }
}
