// SPDX-License-Identifier: Apache-2.0
//! Authority, baggage, forwarded and traceparent of a CONNECT, and the trace contexts of a request (W3C's and B3's): first
//! line the authority, then `name: value` lines.
#![no_main]

use http::{HeaderName, HeaderValue, Method, Request, Uri};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    if let Ok(uri) = Uri::builder()
        .authority(lines.next().unwrap_or_default())
        .build()
    {
        *request.uri_mut() = uri;
    }
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':');
        let Some((name, value)) = colon.map(|at| (&line[..at], &line[at + 1..])) else {
            continue;
        };
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            request.headers_mut().append(name, value);
        }
    }
    hbone::fuzzing::connect_request(&request);
    waypoint::trace::check(request.headers(), false);
    waypoint::trace::check(request.headers(), true);
});
