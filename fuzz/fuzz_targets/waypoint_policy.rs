// SPDX-License-Identifier: Apache-2.0
//! What holds at a waypoint as a control plane tells it, path templates, and requests that are decided on.
//!
//! Parts: 0 a resource, 1 a request (a line each, the first "METHOD authority path", then headers), which the policies
//! that were read last decide on, as they do on a connection; 2 a template and a path, one line each.
#![no_main]

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use spiffe::SpiffeId;
use waypoint::authz::{Access, Request, ServerName, Template, decide, remote_ip};
use waypoint::settings::Settings;

fuzz_target!(|data: &[u8]| {
    let identity: SpiffeId = "spiffe://cluster.local/ns/shop/sa/client"
        .parse()
        .expect("an identity");
    let mut settings = None;
    for (kind, part) in fuzz::parts(data).take(16) {
        match kind {
            0 => {
                let wire = proto::waypoint::Waypoint::decode(part).ok();
                settings = wire.and_then(|wire| Settings::compile(&wire).ok());
            }
            1 => {
                if let (Some(settings), Ok(text)) = (&settings, std::str::from_utf8(part)) {
                    ask(settings, &identity, text);
                }
            }
            2 => {
                let text = std::str::from_utf8(part).unwrap_or_default();
                let (template, path) = text.split_once('\n').unwrap_or((text, "/"));
                if let Ok(template) = Template::parse(template) {
                    let _ = template.matches(path);
                }
            }
            _ => {}
        }
    }
});

fn ask(settings: &Settings, identity: &SpiffeId, text: &str) {
    let mut lines = text.lines();
    let mut first = lines.next().unwrap_or_default().splitn(3, ' ');
    let mut word = || first.next().unwrap_or_default();
    let (method, authority, path) = (word(), word(), word());
    let mut headers = HeaderMap::new();
    for (name, value) in lines.take(32).filter_map(|line| line.split_once(':')) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    let peer = IpAddr::from([10, 0, 0, 1]);
    let access = Access {
        identity,
        source_ip: peer,
        remote_ip: remote_ip(peer, &headers, settings.trusted_hops),
        destination_ips: &[peer],
        destination_port: 80,
        trust_domains: &settings.trust_domains,
        server_name: ServerName::Absent,
        request: Some(Request {
            method,
            authority,
            path,
            headers: &headers,
            token: None,
            doubt: None,
        }),
    };
    let policies = settings.policies.iter();
    let decided = decide(policies.clone(), &access);
    assert_eq!(
        decided,
        decide(policies.clone(), &access),
        "the same twice"
    );
    for server_name in [ServerName::Unseen, ServerName::Named(authority)] {
        let bytes = Access {
            request: None,
            server_name,
            ..access
        };
        let _ = decide(policies.clone(), &bytes);
    }
}
