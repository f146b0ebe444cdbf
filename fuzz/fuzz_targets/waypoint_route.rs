// SPDX-License-Identifier: Apache-2.0
//! A service's routes as a control plane tells them, and what a client asks of them.
//!
//! Parts: 0 a resource, 1 the head of a request (a line each, the first "METHOD target"), which the routes that were read
//! last answer, 2 a path, 3 a server name.
#![no_main]

use std::fmt::Debug;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use libfuzzer_sys::fuzz_target;
use mesh::Endpoint;
use prost::Message as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use waypoint::hygiene;
use waypoint::path::{self, Normalization};
use waypoint::route::{Answer, Forward, Here, Reason, Request, Service, Table};
use waypoint::session::UnixTime;

const NOW: UnixTime = UnixTime(1_700_000_000);

const MODES: [Normalization; 4] = [
    Normalization::None,
    Normalization::Base,
    Normalization::MergeSlashes,
    Normalization::DecodeAndMergeSlashes,
];

fuzz_target!(|data: &[u8]| {
    let mut service = None;
    for (kind, part) in fuzz::parts(data).take(16) {
        match kind {
            0 => {
                let wire = proto::waypoint::Service::decode(part).ok();
                service = wire.and_then(|wire| Service::compile(&wire).ok());
                if let Some(service) = &service {
                    let problems = service.problems();
                    assert!(problems.map(|(_, why)| why).all(|why| !why.is_empty()));
                }
            }
            1 => asked(part, service.as_ref()),
            2 => {
                if let Ok(path) = std::str::from_utf8(part) {
                    spelled(path);
                }
            }
            _ => named(part, service.as_ref()),
        }
    }
});

/// The same facts lead to the same answer.
fn twice<A: Debug>(answer: impl Fn(&mut StdRng) -> A) -> A {
    let ask = || answer(&mut StdRng::seed_from_u64(1));
    let first = ask();
    assert_eq!(format!("{first:?}"), format!("{:?}", ask()));
    first
}

fn tables(service: Option<&Service>) -> impl Iterator<Item = (u16, &Table)> {
    let ports = service.into_iter().flat_map(Service::ports);
    ports.flat_map(|(number, port)| {
        let tables = ["shop", ""].map(|namespace| port.table(namespace));
        tables
            .into_iter()
            .flatten()
            .map(move |table| (number, table))
    })
}

fn asked(head: &[u8], service: Option<&Service>) {
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut first = lines
        .next()
        .unwrap_or_default()
        .splitn(2, |byte| *byte == b' ');
    let method = first
        .next()
        .and_then(|method| Method::from_bytes(method).ok());
    let uri = first.next().and_then(|target| Uri::try_from(target).ok());
    let (Some(method), Some(uri)) = (method, uri) else {
        return;
    };
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts
            .next()
            .and_then(|name| HeaderName::from_bytes(name).ok());
        let value = parts
            .next()
            .and_then(|value| HeaderValue::from_bytes(value.trim_ascii()).ok());
        if let (Some(name), Some(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let upgrade = hygiene::upgrade(version, &headers);
        assert!(upgrade.is_none() || version == Version::HTTP_11);
        let Ok(target) = hygiene::read(&method, version, &uri, &headers) else {
            continue;
        };
        let (host, _) = hygiene::split_host(target.authority).expect("it was checked");
        assert!(!host.is_empty() && !host.contains(['@', '/', ',', ' ']));
        let Ok(normal) = path::normalize(target.path, Normalization::default()) else {
            continue;
        };
        for (port, table) in tables(service) {
            let Table::Http(table) = table else { continue };
            let request = Request {
                method: &method,
                scheme: "http",
                authority: target.authority,
                port,
                path: &normal,
                query: target.query,
                headers: &headers,
                claims: None,
            };
            match twice(|rng| table.answer(&request, NOW, rng)) {
                Answer::Forward(forward) => forwarded(&forward, &headers),
                Answer::Here(Here::Redirect {
                    status,
                    location,
                    edits,
                    ..
                }) => {
                    assert!(status.is_redirection());
                    assert!(location.as_bytes().starts_with(b"http"));
                    edits.apply(&mut HeaderMap::new());
                }
                Answer::Here(Here::Preflight { headers, .. }) => {
                    assert!(headers.contains_key("access-control-allow-origin"))
                }
                Answer::Here(Here::Direct {
                    response, edits, ..
                }) => {
                    assert!((200..600).contains(&response.status.as_u16()));
                    edits.apply(&mut HeaderMap::new());
                }
                Answer::Here(Here::Refuse { reason, .. }) => {
                    let on_purpose = matches!(reason, Reason::Fault(_));
                    assert!(on_purpose || reason.status().as_u16() >= 400);
                    assert!(!reason.flag().is_empty());
                }
            }
        }
    }
    hygiene::remove_hop_by_hop(&mut headers);
    for name in [
        "connection",
        "transfer-encoding",
        "upgrade",
        "keep-alive",
        "proxy-connection",
    ] {
        assert!(!headers.contains_key(name));
    }
    assert!(headers.get("te").is_none_or(|te| te == "trailers"));
}

fn forwarded(forward: &Forward<'_>, sent: &HeaderMap) {
    let path = forward.path_and_query.as_ref();
    assert!(path.is_none_or(|path| path.path().starts_with('/')));
    let mut headers = sent.clone();
    forward.edit_request(&mut headers);
    for name in [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "upgrade",
    ] {
        assert_eq!(sent.get(name), headers.get(name), "a filter frames nothing");
    }
    let copies = forward.mirrors(&mut StdRng::seed_from_u64(1)).count();
    assert!(copies <= 32);
    let mut response = HeaderMap::new();
    forward.response_edits().apply(&mut response);
    let Some(session) = forward.session else {
        return;
    };
    // What a client says leads to where it may go anyway, and what it is told brings it back.
    assert!(
        forward
            .pin
            .is_none_or(|pin| pin.is_for(forward.destination))
    );
    let endpoint = Endpoint {
        workload: "pod".into(),
        port: 8080,
    };
    let mut response = HeaderMap::new();
    session.write(None, forward.destination, &endpoint, NOW, &mut response);
    for (name, value) in &response {
        let mut again = HeaderMap::new();
        if name == "set-cookie" {
            let cookie = value
                .as_bytes()
                .split(|byte| *byte == b';')
                .next()
                .unwrap_or_default();
            let cookie = HeaderValue::from_bytes(cookie).expect("a part of a value is one");
            again.insert("cookie", cookie);
        } else {
            again.insert(name, value.clone());
        }
        let pin = session.read(&again, NOW).expect("it was just written");
        assert!(pin.is_for(forward.destination) && pin.is_at(&endpoint));
    }
}

fn spelled(path: &str) {
    for mode in MODES {
        let Ok(normal) = path::normalize(path, mode) else {
            continue;
        };
        assert!(normal.starts_with('/') || normal == "*" || mode == Normalization::None);
        if mode != Normalization::None {
            assert!(
                !normal
                    .split('/')
                    .any(|element| element == "." || element == "..")
            );
            assert!(!normal.contains('\\'));
        }
        if matches!(mode, Normalization::Base | Normalization::MergeSlashes) {
            assert_eq!(path::normalize(&normal, mode).as_deref(), Ok(&*normal));
        }
    }
}

fn named(name: &[u8], service: Option<&Service>) {
    let name = std::str::from_utf8(name).ok();
    for (_, table) in tables(service) {
        match table {
            Table::Tls(table) => drop(twice(|rng| table.answer(name, rng).cloned())),
            Table::Tcp(table) => drop(twice(|rng| table.answer(rng).cloned())),
            Table::Http(_) => {}
        }
    }
}
