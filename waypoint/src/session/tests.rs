// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::route::Protocol;
use proptest::prelude::*;

fn rule() -> RuleName {
    RuleName {
        kind: "HTTPRoute".into(),
        namespace: "shop".into(),
        route: "cart".into(),
        rule: "#0".into(),
    }
}

fn to(hostname: &str, port: u16) -> Destination {
    Destination {
        namespace: "shop".into(),
        hostname: hostname.into(),
        port,
        protocol: Protocol::Http1,
        policy: Default::default(),
    }
}

fn at(workload: &str, port: u16) -> Endpoint {
    Endpoint {
        workload: workload.into(),
        port,
    }
}

fn session(carrier: Wire, name: &str, absolute: i64, idle: i64) -> Session {
    let time = |seconds| (seconds > 0).then_some(prost_types::Duration { seconds, nanos: 0 });
    let wire = SessionPersistence {
        name: name.into(),
        carrier: carrier.into(),
        absolute_timeout: time(absolute),
        idle_timeout: time(idle),
    };
    Session::compile(&wire, &rule()).unwrap()
}

/// What a response to a request tells the client: name of the header, and value.
fn told(
    session: &Session,
    pin: Option<Pin>,
    endpoint: &Endpoint,
    now: u32,
) -> Option<(String, String)> {
    let mut headers = HeaderMap::new();
    session.write(pin, &to("cart", 80), endpoint, UnixTime(now), &mut headers);
    let (name, value) = headers.iter().next()?;
    Some((name.to_string(), value.to_str().unwrap().to_owned()))
}

fn sent(name: &str, value: &str) -> HeaderMap {
    let name: HeaderName = name.parse().unwrap();
    HeaderMap::from_iter([(name, value.parse().unwrap())])
}

#[test]
fn a_cookie_brings_the_client_back() {
    let session = session(Wire::Cookie, "my", 0, 0);
    let (name, value) = told(&session, None, &at("pod", 8080), 1000).unwrap();
    assert_eq!(name, "set-cookie");
    let (token, attributes) = value.split_once(';').unwrap();
    assert_eq!(attributes, " Path=/; HttpOnly; SameSite=Lax");
    assert!(
        token.starts_with("my=") && token.len() == 3 + ENCODED,
        "{token}"
    );
    for cookies in [
        token.to_owned(),
        format!("a=b;  {token} ; my=x"),
        format!("my=bad; my; {token}"),
    ] {
        let pin = session
            .read(&sent("cookie", &cookies), UnixTime(5000))
            .unwrap();
        assert!(
            pin.is_for(&to("cart", 80)) && pin.is_at(&at("pod", 8080)),
            "{cookies}"
        );
        assert!(!pin.is_for(&to("cart", 81)) && !pin.is_for(&to("other", 80)));
        assert!(!pin.is_at(&at("pod", 8081)) && !pin.is_at(&at("po", 8080)));
        // It knows already.
        assert_eq!(told(&session, Some(pin), &at("pod", 8080), 5000), None);
        // It was served elsewhere, since its endpoint is gone.
        assert!(told(&session, Some(pin), &at("other", 8080), 5000).is_some());
    }
    for cookies in [
        format!("my2={token}"),
        format!("MY{}", &token[2..]),
        "my=".into(),
        "my".into(),
    ] {
        assert_eq!(
            session.read(&sent("cookie", &cookies), UnixTime(5000)),
            None,
            "{cookies}"
        );
    }
}

#[test]
fn a_header_does_too() {
    let session = session(Wire::Header, "X-Session", 0, 0);
    let (name, token) = told(&session, None, &at("pod", 8080), 1000).unwrap();
    assert_eq!((name.as_str(), token.len()), ("x-session", ENCODED));
    let pin = session
        .read(&sent("x-session", &token), UnixTime(1000))
        .unwrap();
    assert!(pin.is_at(&at("pod", 8080)));
    assert_eq!(
        session.read(
            &sent("cookie", &format!("x-session={token}")),
            UnixTime(1000)
        ),
        None
    );
}

#[test]
fn sessions_end() {
    let session = session(Wire::Cookie, "my", 100, 20);
    let (_, value) = told(&session, None, &at("pod", 1), 1000).unwrap();
    assert!(value.ends_with("; Max-Age=100"), "{value}");
    let cookie = value.split(';').next().unwrap().to_owned();
    let read = |cookie: &str, now| session.read(&sent("cookie", cookie), UnixTime(now));
    assert!(read(&cookie, 1019).is_some());
    assert_eq!(read(&cookie, 1020), None, "idle");
    assert_eq!(read(&cookie, 999), None, "from the future");
    // Used, it lives on, until its whole time is over.
    let pin = read(&cookie, 1004);
    assert_eq!(told(&session, pin, &at("pod", 1), 1004), None);
    let (_, value) = told(&session, read(&cookie, 1015), &at("pod", 1), 1015).unwrap();
    assert!(value.ends_with("; Max-Age=85"), "{value}");
    let used = value.split(';').next().unwrap();
    assert!(read(used, 1034).is_some());
    assert_eq!(read(used, 1035), None);
}

#[test]
fn unnamed_sessions_have_names_of_their_own() {
    let (_, value) = told(&session(Wire::Cookie, "", 0, 0), None, &at("pod", 1), 1).unwrap();
    assert!(value.starts_with("culvert-"), "{value}");
    let mut other = rule();
    other.rule = "#1".into();
    let names = [rule(), other].map(|rule| {
        match Session::compile(&SessionPersistence::default(), &rule)
            .unwrap()
            .carrier
        {
            Carrier::Cookie(name) => name,
            Carrier::Header(name) => panic!("{name}"),
        }
    });
    assert_ne!(names[0], names[1]);
}

#[test]
fn bad_sessions_say_why() {
    let why = |change: fn(&mut SessionPersistence)| {
        let mut wire = SessionPersistence::default();
        change(&mut wire);
        Session::compile(&wire, &rule()).unwrap_err()
    };
    assert_eq!(
        why(|wire| wire.name = "a;b".into()),
        "session persistence: \"a;b\" is not a cookie's name"
    );
    for (name, expected) in [
        ("Host", "the host is changed by a rewrite, not by a header"),
        (
            "Content-Length",
            "content-length is the connection's, not a route's",
        ),
        ("Set-Cookie", "set-cookie is for cookies"),
        ("a;b", "\"a;b\" is not a header's name"),
    ] {
        let wire = SessionPersistence {
            name: name.into(),
            carrier: Wire::Header.into(),
            ..SessionPersistence::default()
        };
        let why = Session::compile(&wire, &rule()).unwrap_err();
        assert_eq!(why, format!("session persistence: {expected}"));
    }
    assert_eq!(
        why(|wire| wire.carrier = 7),
        "session persistence: carrier 7 is not known"
    );
    let negative = |wire: &mut SessionPersistence| {
        wire.idle_timeout = Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        })
    };
    assert_eq!(
        why(negative),
        "session persistence: the idle timeout is no time"
    );
}

proptest! {
    #[test]
    fn tokens_have_one_spelling(destination: u64, endpoint: u64, begun: u32, used: u32) {
        let pin = Pin { destination, endpoint, begun: UnixTime(begun), used: UnixTime(used) };
        let token = pin.encode();
        prop_assert_eq!(token.len(), ENCODED);
        prop_assert_eq!(Pin::decode(token.as_bytes()), Some(pin));
    }

    #[test]
    fn whatever_is_read_is_written_again(token in "[A-Za-z0-9_-]{34}") {
        if let Some(pin) = Pin::decode(token.as_bytes()) {
            prop_assert_eq!(pin.encode(), token);
        }
    }

    #[test]
    fn any_bytes_are_survived(token in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Some(pin) = Pin::decode(&token) {
            prop_assert_eq!(pin.encode().into_bytes(), token);
        }
    }
}
