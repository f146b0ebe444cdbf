// SPDX-License-Identifier: Apache-2.0
//! Rules of tokens, sets of keys, and requests that carry tokens in headers, parameters and cookies.
//!
//! Parts: 0 a rule; 1 a set of keys, for a rule of any issuer; 2 the rule whose keys the fixtures sign with; otherwise a
//! request, whose first line is "METHOD target" and whose others are headers.
#![no_main]

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use waypoint::token::{TokenRule, authenticate};

const KEYS: &str = include_str!("../fixtures/jwks.json");
const MOST_RULES: usize = 8;
const NOW: i64 = 1_800_000_000;

fuzz_target!(|data: &[u8]| {
    let mut rules: Vec<TokenRule> = Vec::new();
    for (kind, part) in fuzz::parts(data).take(32) {
        let text = String::from_utf8_lossy(part);
        let with = |keys: &str| proto::waypoint::TokenRule {
            keys: keys.to_owned(),
            cookies: vec!["session".into()],
            headers: vec![proto::waypoint::TokenHeader {
                name: "authorization".into(),
                prefix: "Bearer ".into(),
            }],
            payload_header: "x-payload".into(),
            ..proto::waypoint::TokenRule::default()
        };
        let rule = match kind {
            0 => proto::waypoint::TokenRule::decode(part).ok(),
            1 => Some(with(&text)),
            2 => Some(with(KEYS)),
            _ => {
                ask(&rules, &text);
                None
            }
        };
        let rule = rule.and_then(|rule| TokenRule::compile(&rule).ok());
        rules.extend(rule.filter(|_| rules.len() < MOST_RULES));
    }
});

fn ask(rules: &[TokenRule], text: &str) {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let (method, target) = first.split_once(' ').unwrap_or(("GET", first));
    let Ok(request) = http::Request::builder().method(method).uri(target).body(()) else {
        return;
    };
    let (mut head, ()) = request.into_parts();
    for line in lines.take(32) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value.trim())) {
            head.headers.append(name, value);
        }
    }
    let judged = judge(rules, head.clone());
    assert_eq!(judged, judge(rules, head), "the same request, judged twice");
    if rules.iter().all(TokenRule::is_keyless) {
        assert!(!matches!(judged.0, Ok(Some(_))), "no key, and a token is good");
    }
}

type Judged = (Result<Option<String>, String>, HeaderMap);

fn judge(rules: &[TokenRule], mut head: Parts) -> Judged {
    let judged = authenticate(rules.iter(), &mut head, NOW);
    let claims = judged.map(|accepted| accepted.map(|accepted| format!("{:?}", accepted.claims)));
    (claims.map_err(|why| why.to_string()), head.headers)
}
