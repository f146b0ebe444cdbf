// SPDX-License-Identifier: Apache-2.0
//! Where redirects lead, by Gateway API's rules and its conformance suite.

use proto::waypoint::http_filter::Kind;
use proto::waypoint::path_rewrite;
use proto::waypoint::{PathRewrite, Redirect, Rewrite};

use super::*;

pub(super) fn full(path: &str) -> Option<PathRewrite> {
    let kind = Some(path_rewrite::Kind::Full(path.into()));
    Some(PathRewrite { kind })
}

pub(super) fn prefix(path: &str) -> Option<PathRewrite> {
    let kind = Some(path_rewrite::Kind::Prefix(path.into()));
    Some(PathRewrite { kind })
}

/// A rule that does this.
pub(super) fn ruled(matches: &str, kind: Kind) -> HttpTable {
    let mut rule = rule(&format!("{matches} -> v1"));
    rule.filters.push(filter(kind));
    HttpTable::compile(&[route("r", [rule])])
}

/// A rule whose only backend does this.
pub(super) fn backed(matches: &str, kind: Kind) -> HttpTable {
    let mut rule = rule(&format!("{matches} -> v1"));
    rule.backends[0].filters.push(filter(kind));
    HttpTable::compile(&[route("r", [rule])])
}

/// Status and location.
#[track_caller]
pub(super) fn redirected(table: &HttpTable, asked: &Asked) -> (u16, String) {
    match table.answer(&asked.request(), NOW, &mut rng()) {
        Answer::Here(Here::Redirect {
            status, location, ..
        }) => (status.as_u16(), location.to_str().unwrap().into()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn redirects_of_the_suite() {
    let to = |scheme: &str, hostname: &str, port, status, path| Redirect {
        scheme: scheme.into(),
        hostname: hostname.into(),
        path,
        port,
        status,
    };
    let org = "example.org";
    let cases = [
        (
            "U01",
            "/original-prefix",
            "/original-prefix/lemon",
            to("", "", 0, 0, prefix("/replacement-prefix")),
            302,
            "http://echo.shop/replacement-prefix/lemon",
        ),
        (
            "U02",
            "/full",
            "/full/path/original",
            to("", "", 0, 0, full("/full-path-replacement")),
            302,
            "http://echo.shop/full-path-replacement",
        ),
        (
            "U03",
            "/path-and-host",
            "/path-and-host",
            to("", org, 0, 302, prefix("/replacement-prefix")),
            302,
            "http://example.org/replacement-prefix",
        ),
        (
            "U04",
            "/path-and-status",
            "/path-and-status",
            to("", "", 0, 301, prefix("/replacement-prefix")),
            301,
            "http://echo.shop/replacement-prefix",
        ),
        (
            "U05",
            "/full-path-and-host",
            "/full-path-and-host",
            to("", org, 0, 302, full("/replacement-full")),
            302,
            "http://example.org/replacement-full",
        ),
        (
            "U06",
            "/full-path-and-status",
            "/full-path-and-status",
            to("", "", 0, 301, full("/replacement-full")),
            301,
            "http://echo.shop/replacement-full",
        ),
        (
            "U07",
            "/port",
            "/port",
            to("", "", 8083, 0, None),
            302,
            "http://echo.shop:8083/port",
        ),
        (
            "U08",
            "/port-and-host",
            "/port-and-host",
            to("", org, 8083, 0, None),
            302,
            "http://example.org:8083/port-and-host",
        ),
        (
            "U09",
            "/port-and-status",
            "/port-and-status",
            to("", "", 8083, 301, None),
            301,
            "http://echo.shop:8083/port-and-status",
        ),
        (
            "U10",
            "/p",
            "/p",
            to("", org, 8083, 302, None),
            302,
            "http://example.org:8083/p",
        ),
        (
            "U11",
            "/scheme",
            "/scheme",
            to("https", "", 0, 0, None),
            302,
            "https://echo.shop/scheme",
        ),
        (
            "U12",
            "/scheme-and-host",
            "/scheme-and-host",
            to("https", org, 0, 0, None),
            302,
            "https://example.org/scheme-and-host",
        ),
        (
            "U13",
            "/scheme-and-status",
            "/scheme-and-status",
            to("https", "", 0, 301, None),
            301,
            "https://echo.shop/scheme-and-status",
        ),
        (
            "U14",
            "/s",
            "/s",
            to("https", org, 0, 302, None),
            302,
            "https://example.org/s",
        ),
        (
            "U15",
            "/hostname-redirect",
            "/hostname-redirect",
            to("", org, 0, 0, None),
            302,
            "http://example.org/hostname-redirect",
        ),
        (
            "U16",
            "/host-and-status",
            "/host-and-status",
            to("", org, 0, 301, None),
            301,
            "http://example.org/host-and-status",
        ),
        (
            "U17, M15",
            "/see-other",
            "/see-other",
            to("", "", 0, 303, None),
            303,
            "http://echo.shop/see-other",
        ),
        (
            "U18, M16",
            "/temporary",
            "/temporary",
            to("", "", 0, 307, None),
            307,
            "http://echo.shop/temporary",
        ),
        (
            "U19, M17",
            "/permanent",
            "/permanent",
            to("", "", 0, 308, None),
            308,
            "http://echo.shop/permanent",
        ),
        (
            "query stays",
            "/q",
            "/q?a=b%20c&d",
            to("", org, 0, 0, None),
            302,
            "http://example.org/q?a=b%20c&d",
        ),
        (
            "query stays",
            "/q",
            "/q/x?a=b",
            to("", "", 0, 0, prefix("/z")),
            302,
            "http://echo.shop/z/x?a=b",
        ),
        (
            "query stays",
            "/q",
            "/q/x?a=b",
            to("", "", 0, 0, full("/z")),
            302,
            "http://echo.shop/z?a=b",
        ),
    ];
    // M07 and M10-M12 ask for the same, and compare the status only.
    for (case, matches, request, redirect, status, location) in cases {
        let expected = (status, location.to_owned());
        let asked = Asked::new(request);
        assert_eq!(
            redirected(&ruled(matches, Kind::Redirect(redirect.clone())), &asked),
            expected,
            "{case}"
        );
        // U20: the same from a backend.
        assert_eq!(
            redirected(&backed(matches, Kind::Redirect(redirect)), &asked),
            expected,
            "{case}, U20"
        );
    }
}

/// V01-V15: scheme and port of a `Location`.
#[test]
fn ports_are_named_where_the_scheme_does_not_say_them() {
    let cases = [
        ("V01", 80, "", 0, "http://h/"),
        ("V02", 80, "", 80, "http://h/"),
        ("V03", 80, "", 8080, "http://h:8080/"),
        ("V04", 80, "https", 0, "https://h/"),
        ("V05", 80, "https", 443, "https://h/"),
        ("V06", 80, "https", 8443, "https://h:8443/"),
        ("V07", 8080, "", 0, "http://h:8080/"),
        ("V08", 8080, "", 80, "http://h/"),
        ("V09", 8080, "https", 0, "https://h/"),
        ("V10", 443, "", 0, "https://h/"),
        ("V11", 443, "", 443, "https://h/"),
        ("V12", 443, "", 8443, "https://h:8443/"),
        ("V13", 443, "http", 0, "http://h/"),
        ("V14", 443, "http", 80, "http://h/"),
        ("V15", 443, "http", 8080, "http://h:8080/"),
    ];
    for (case, listener, scheme, port, location) in cases {
        let redirect = Redirect {
            scheme: scheme.into(),
            port,
            ..Redirect::default()
        };
        let mut asked = Asked::new("/");
        asked.port = listener;
        asked.scheme = if listener == 443 { "https" } else { "http" };
        // The port in `Host` says nothing.
        for authority in ["h", "h:1234"] {
            asked.authority = authority.into();
            let seen = redirected(&ruled("/", Kind::Redirect(redirect.clone())), &asked);
            assert_eq!(seen, (302, location.to_owned()), "{case}");
        }
    }
    let mut asked = Asked::new("/");
    asked.authority = "[fd00::1]:8080".into();
    let seen = redirected(&ruled("/", Kind::Redirect(Redirect::default())), &asked);
    assert_eq!(seen.1, "http://[fd00::1]/");
}

/// Why the rule answers 500.
#[track_caller]
fn check_bad(matches: &str, kind: Kind, expected: &str) {
    for table in [ruled(matches, kind.clone()), backed(matches, kind)] {
        let asked = Asked::new("/a");
        match table.answer(&asked.request(), NOW, &mut rng()) {
            Answer::Here(Here::Refuse {
                reason: Reason::InvalidRule(why) | Reason::InvalidBackend(why),
                ..
            }) => {
                assert_eq!(why, expected);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_leads_nowhere_is_answered_as_an_error() {
    let redirect = |change: fn(&mut Redirect)| {
        let mut redirect = Redirect::default();
        change(&mut redirect);
        Kind::Redirect(redirect)
    };
    check_bad(
        "/",
        redirect(|to| to.scheme = "ftp".into()),
        "redirect: scheme \"ftp\" is neither http nor https",
    );
    check_bad(
        "/",
        redirect(|to| to.port = 65_536),
        "redirect: 65536 is not a port",
    );
    check_bad(
        "/",
        redirect(|to| to.status = 200),
        "redirect: 200 is not a status of a redirect",
    );
    for host in ["a/b", "a:80", "x@b", "a b", "a\r\nb", "a,b"] {
        let kind = Kind::Redirect(Redirect {
            hostname: host.into(),
            ..Redirect::default()
        });
        check_bad("/", kind, &format!("redirect: {host:?} is not a host"));
        let kind = Kind::Rewrite(Rewrite {
            hostname: host.into(),
            path: None,
        });
        check_bad("/", kind, &format!("rewrite: {host:?} is not a host"));
    }
    for path in ["/a?b", "/a#b", "/a b", "/a\r\nLocation: b"] {
        let kind = Kind::Rewrite(Rewrite {
            path: full(path),
            ..Rewrite::default()
        });
        check_bad("/", kind, &format!("rewrite: {path:?} is not a path"));
    }
    check_bad(
        "/",
        redirect(|to| to.path = Some(PathRewrite::default())),
        "redirect: a path change of an unknown kind",
    );
    let no_prefix = "a prefix is to be replaced, and not every match is a prefix";
    for matches in ["=/a", "~/.*", "/ or =/b", "grpc:/a or /"] {
        check_bad(
            matches,
            Kind::Rewrite(Rewrite {
                path: prefix("/b"),
                ..Rewrite::default()
            }),
            no_prefix,
        );
        check_bad(matches, redirect(|to| to.path = prefix("/b")), no_prefix);
    }
}

#[test]
fn a_redirect_needs_a_host() {
    for authority in ["", "a b", "a@b"] {
        let mut asked = Asked::new("/");
        asked.authority = authority.into();
        let table = ruled("/", Kind::Redirect(Redirect::default()));
        let answer = table.answer(&asked.request(), NOW, &mut rng());
        assert!(
            matches!(
                answer,
                Answer::Here(Here::Refuse {
                    reason: Reason::NoHost,
                    ..
                })
            ),
            "{authority:?}: {answer:?}"
        );
    }
}
