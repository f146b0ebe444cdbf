// SPDX-License-Identifier: Apache-2.0
//! What a rule says of time: timeouts, retries, sessions.

use std::time::Duration;

use cluster::kinds::{self, CookieLifetime, SessionType};
use proto::waypoint::{self as wire, session_persistence::Carrier};

use super::{Faults, values};

/// Retries, where a route asks for some and doesn't say how many.
const DEFAULT_ATTEMPTS: u32 = 2;
/// More are as good as unbounded.
const MAX_ATTEMPTS: u32 = 100;
const MAX_SESSION_NAME: usize = 128;

/// Reads the timeouts of a rule at `at`; 0 means that there is none.
pub(super) fn timeouts(
    wanted: Option<&kinds::RouteTimeouts>,
    at: &str,
    faults: &mut Faults,
) -> Option<wire::Timeouts> {
    let wanted = wanted?;
    let at = format!("{at}.timeouts");
    let request = read(wanted.request.as_deref(), &at, "request", faults);
    let backend = read(
        wanted.backend_request.as_deref(),
        &at,
        "backendRequest",
        faults,
    );
    if let (Some(request), Some(backend)) = (request, backend)
        && backend > request
    {
        let words = "is longer than the timeout of the whole request";
        faults.add(format!("{at}.backendRequest"), words);
    }
    (request.is_some() || backend.is_some()).then(|| wire::Timeouts {
        request: request.map(values::wire),
        backend_request: backend.map(values::wire),
    })
}

/// A duration, unless it is 0.
fn read(text: Option<&str>, at: &str, field: &str, faults: &mut Faults) -> Option<Duration> {
    match values::duration(text?) {
        Ok(duration) => Some(duration).filter(|duration| !duration.is_zero()),
        Err(words) => {
            faults.add(format!("{at}.{field}"), words);
            None
        }
    }
}

/// Reads what a rule at `at` says of retries.
pub(super) fn retry(
    wanted: Option<&kinds::RouteRetry>,
    at: &str,
    faults: &mut Faults,
) -> Option<wire::Retry> {
    let wanted = wanted?;
    let at = format!("{at}.retry");
    let attempts = match wanted.attempts {
        None => DEFAULT_ATTEMPTS,
        Some(asked) => match u32::try_from(asked) {
            Ok(attempts @ 1..) => attempts.min(MAX_ATTEMPTS),
            _ => {
                faults.add(
                    format!("{at}.attempts"),
                    format!("{asked} is not at least 1"),
                );
                0
            }
        },
    };
    let mut codes = Vec::new();
    for (position, asked) in wanted.codes.iter().enumerate() {
        match u32::try_from(*asked) {
            Ok(code @ 400..=599) => {
                if !codes.contains(&code) {
                    codes.push(code);
                }
            }
            _ => {
                let words = format!("{asked} is no status from 400 to 599");
                faults.add(format!("{at}.codes[{position}]"), words);
            }
        }
    }
    let backoff = read(wanted.backoff.as_deref(), &at, "backoff", faults);
    Some(wire::Retry {
        attempts,
        codes,
        backoff: backoff.map(values::wire),
    })
}

/// Reads how a rule at `at` keeps sessions.
pub(super) fn session(
    wanted: Option<&kinds::RouteSessionPersistence>,
    at: &str,
    faults: &mut Faults,
) -> Option<wire::SessionPersistence> {
    let wanted = wanted?;
    let at = format!("{at}.sessionPersistence");
    let carrier = match &wanted.session_type {
        None | Some(SessionType::Cookie) => Carrier::Cookie,
        Some(SessionType::Header) => Carrier::Header,
        Some(SessionType::Unknown(other)) => {
            faults.add(format!("{at}.type"), format!("type {other:?} is not known"));
            Carrier::Cookie
        }
    };
    let name = wanted.session_name.clone().unwrap_or_default();
    if !name.is_empty() && (name.len() > MAX_SESSION_NAME || !values::is_token(&name)) {
        let words = format!("{name:?} is no name of a cookie or header");
        faults.add(format!("{at}.sessionName"), words);
    }
    if name.is_empty() && carrier == Carrier::Header {
        faults.add(
            format!("{at}.sessionName"),
            "is required: it is the header's name",
        );
    }
    let absolute = read(
        wanted.absolute_timeout.as_deref(),
        &at,
        "absoluteTimeout",
        faults,
    );
    let idle = read(wanted.idle_timeout.as_deref(), &at, "idleTimeout", faults);
    let cookie = wanted.cookie_config.as_ref();
    match cookie.and_then(|cookie| cookie.lifetime_type.as_ref()) {
        None | Some(CookieLifetime::Session) => {}
        Some(CookieLifetime::Permanent) if absolute.is_some() => {}
        Some(CookieLifetime::Permanent) => {
            let words = "is required: the cookie is to be permanent";
            faults.add(format!("{at}.absoluteTimeout"), words);
        }
        Some(CookieLifetime::Unknown(other)) => {
            let field = format!("{at}.cookieConfig.lifetimeType");
            faults.add(field, format!("{other:?} is not known"));
        }
    }
    Some(wire::SessionPersistence {
        name,
        carrier: carrier.into(),
        absolute_timeout: absolute.map(values::wire),
        idle_timeout: idle.map(values::wire),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn faults_of(read: impl FnOnce(&mut Faults)) -> Vec<String> {
        let mut faults = Faults::default();
        read(&mut faults);
        faults.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn timeouts_of_nothing_are_none_and_the_inner_one_is_no_longer_than_the_outer() {
        let read = |wanted: Value| {
            let wanted = serde_json::from_value(wanted).expect("timeouts");
            let mut faults = Faults::default();
            let read = timeouts(Some(&wanted), "r", &mut faults);
            let seconds = |d: Option<prost_types::Duration>| d.map(|d| d.seconds);
            let read = read.map(|t| (seconds(t.request), seconds(t.backend_request)));
            (read, faults.0.len())
        };
        assert_eq!(
            read(json!({"request": "2s", "backendRequest": "1s"})),
            (Some((Some(2), Some(1))), 0)
        );
        assert_eq!(
            read(json!({"request": "0s", "backendRequest": "1s"})),
            (Some((None, Some(1))), 0)
        );
        assert_eq!(read(json!({"request": "0s"})), (None, 0));
        assert_eq!(read(json!({"request": "1s", "backendRequest": "2s"})).1, 1);
        assert_eq!(read(json!({"request": "soon"})).1, 1);
    }

    #[test]
    fn retries_are_bounded() {
        let read = |wanted: Value, faults: &mut Faults| {
            let wanted = serde_json::from_value(wanted).expect("a retry");
            retry(Some(&wanted), "r", faults).expect("some")
        };
        let mut faults = Faults::default();
        let asked = read(
            json!({"codes": [503, 500, 503], "backoff": "100ms"}),
            &mut faults,
        );
        assert_eq!((asked.attempts, asked.codes), (2, vec![503, 500]));
        assert_eq!(
            read(json!({"attempts": 100_000}), &mut faults).attempts,
            100
        );
        assert!(faults.0.is_empty());
        let wrong = faults_of(|faults| {
            read(json!({"attempts": 0, "codes": [200, 600]}), faults);
        });
        assert_eq!(
            wrong,
            [
                "r.retry.attempts: 0 is not at least 1",
                "r.retry.codes[0]: 200 is no status from 400 to 599",
                "r.retry.codes[1]: 600 is no status from 400 to 599",
            ]
        );
    }

    #[test]
    fn a_session_by_header_has_a_name_and_a_permanent_cookie_an_end() {
        let wrong = |wanted: Value| {
            let wanted = serde_json::from_value(wanted).expect("a session");
            faults_of(|faults| {
                session(Some(&wanted), "r", faults);
            })
        };
        assert_eq!(wrong(json!({})), [""; 0]);
        assert_eq!(
            wrong(json!({"type": "Header", "sessionName": "x-session"})),
            [""; 0]
        );
        assert_eq!(
            wrong(json!({"type": "Header"})),
            ["r.sessionPersistence.sessionName: is required: it is the header's name"]
        );
        assert_eq!(
            wrong(json!({"cookieConfig": {"lifetimeType": "Permanent"}})),
            ["r.sessionPersistence.absoluteTimeout: is required: the cookie is to be permanent"]
        );
        assert_eq!(
            wrong(json!({"type": "Query", "sessionName": "a b"})).len(),
            2
        );
    }
}
