// SPDX-License-Identifier: Apache-2.0
//! `Location` and rewritten paths, by Gateway API's tables and its conformance suite.

use proto::waypoint::http_filter::Kind;
use proto::waypoint::path_rewrite;
use proto::waypoint::{PathRewrite, Redirect, Rewrite};

use super::*;

fn full(path: &str) -> Option<PathRewrite> {
    let kind = Some(path_rewrite::Kind::Full(path.into()));
    Some(PathRewrite { kind })
}

fn prefix(path: &str) -> Option<PathRewrite> {
    let kind = Some(path_rewrite::Kind::Prefix(path.into()));
    Some(PathRewrite { kind })
}

/// A rule that does this.
fn ruled(matches: &str, kind: Kind) -> HttpTable {
    let mut rule = rule(&format!("{matches} -> v1"));
    rule.filters.push(filter(kind));
    HttpTable::compile(&[route("r", [rule])])
}

/// A rule whose only backend does this.
fn backed(matches: &str, kind: Kind) -> HttpTable {
    let mut rule = rule(&format!("{matches} -> v1"));
    rule.backends[0].filters.push(filter(kind));
    HttpTable::compile(&[route("r", [rule])])
}

/// Status and location.
#[track_caller]
fn redirected(table: &HttpTable, asked: &Asked) -> (u16, String) {
    match table.answer(&asked.request(), NOW, &mut rng()) {
        Answer::Redirect {
            status, location, ..
        } => (status.as_u16(), location.to_str().unwrap().into()),
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

/// Gateway API's table for ReplacePrefixMatch, for redirects and rewrites alike.
#[test]
fn prefixes_are_replaced_by_elements() {
    let cases = [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        // Of all paths, and of a replacement without a slash.
        ("/foo", "/", "/xyz", "/xyz/foo"),
        ("/foo/bar", "/foo", "xyz", "/xyz/bar"),
        ("/foo?a=/foo", "/foo", "/xyz", "/xyz?a=/foo"),
        ("/foo?a", "/foo", "", "/?a"),
    ];
    for (request, matched, replacement, result) in cases {
        let asked = Asked::new(request);
        let redirect = Redirect {
            path: prefix(replacement),
            ..Redirect::default()
        };
        let (_, location) = redirected(&ruled(matched, Kind::Redirect(redirect)), &asked);
        assert_eq!(
            location,
            format!("http://echo.shop{result}"),
            "{request} {matched} {replacement}"
        );
        let rewrite = Rewrite {
            path: prefix(replacement),
            ..Rewrite::default()
        };
        let table = ruled(matched, Kind::Rewrite(rewrite));
        assert_eq!(
            rewritten(&table, &asked).0,
            result,
            "{request} {matched} {replacement}"
        );
    }
}

/// Path and host that the backend is asked for.
#[track_caller]
fn rewritten(table: &HttpTable, asked: &Asked) -> (String, String) {
    let request = asked.request();
    match table.answer(&request, NOW, &mut rng()) {
        Answer::Forward(forward) => {
            let path = forward.path_and_query.as_ref();
            let path = path.or(asked.uri.path_and_query()).unwrap();
            let host = forward
                .host()
                .map_or(request.authority, |host| host.to_str().unwrap());
            (path.to_string(), host.into())
        }
        other => panic!("{other:?}"),
    }
}

/// R01-R11, M13. R05, R06 and R09 have header modifiers beside them, which is a test of its own.
#[test]
fn rewrites_of_the_suite() {
    let to = |hostname: &str, path| Rewrite {
        hostname: hostname.into(),
        path,
    };
    let cases = [
        (
            "R01",
            "/prefix/one",
            "/prefix/one/two",
            to("", prefix("/one")),
            "/one/two",
            "rewrite.example",
        ),
        (
            "R02",
            "/strip-prefix",
            "/strip-prefix/three",
            to("", prefix("/")),
            "/three",
            "rewrite.example",
        ),
        (
            "R03",
            "/strip-prefix",
            "/strip-prefix",
            to("", prefix("/")),
            "/",
            "rewrite.example",
        ),
        (
            "R04",
            "/full/one",
            "/full/one/two",
            to("", full("/one")),
            "/one",
            "rewrite.example",
        ),
        (
            "R05",
            "/full/rewrite",
            "/full/rewrite/test",
            to("", full("/test")),
            "/test",
            "rewrite.example",
        ),
        (
            "R06",
            "/prefix/rewrite",
            "/prefix/rewrite/one",
            to("", prefix("/prefix")),
            "/prefix/one",
            "rewrite.example",
        ),
        (
            "R07",
            "/one",
            "/one",
            to("one.example.org", None),
            "/one",
            "one.example.org",
        ),
        (
            "R08",
            "",
            "/two",
            to("example.org", None),
            "/two",
            "example.org",
        ),
        (
            "R09",
            "/rewrite-host",
            "/rewrite-host",
            to("test.example.org", None),
            "/rewrite-host",
            "test.example.org",
        ),
        (
            "R10",
            "/full",
            "/full/original",
            to("", full("/rewritten-full")),
            "/rewritten-full",
            "rewrite.example",
        ),
        (
            "R11",
            "/prefix",
            "/prefix/original",
            to("", prefix("/rewritten-prefix")),
            "/rewritten-prefix/original",
            "rewrite.example",
        ),
        (
            "query stays",
            "/full",
            "/full/a?b=c",
            to("", full("/one")),
            "/one?b=c",
            "rewrite.example",
        ),
    ];
    for (case, matches, request, rewrite, path, host) in cases {
        let asked = Asked::new(&format!("@rewrite.example {request}"));
        let expected = (path.to_owned(), host.to_owned());
        let kind = Kind::Rewrite(rewrite);
        assert_eq!(
            rewritten(&ruled(matches, kind.clone()), &asked),
            expected,
            "{case}"
        );
        assert_eq!(
            rewritten(&backed(matches, kind), &asked),
            expected,
            "{case} of a backend"
        );
    }
}

#[test]
fn a_backends_rewrite_goes_before_the_rules() {
    let mut rule = rule("/a -> v1");
    rule.filters.push(filter(Kind::Rewrite(Rewrite {
        hostname: "rule".into(),
        path: full("/rule"),
    })));
    let own = Rewrite {
        hostname: "own".into(),
        path: prefix("/own"),
    };
    rule.backends[0].filters.push(filter(Kind::Rewrite(own)));
    let table = HttpTable::compile(&[route("r", [rule])]);
    assert_eq!(
        rewritten(&table, &Asked::new("/a/b")),
        ("/own/b".into(), "own".into())
    );
}

/// Why the rule answers 500.
#[track_caller]
fn check_bad(matches: &str, kind: Kind, expected: &str) {
    for table in [ruled(matches, kind.clone()), backed(matches, kind)] {
        let asked = Asked::new("/a");
        match table.answer(&asked.request(), NOW, &mut rng()) {
            Answer::Refuse {
                reason: Reason::InvalidRule(why) | Reason::InvalidBackend(why),
                ..
            } => {
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
                Answer::Refuse {
                    reason: Reason::NoHost,
                    ..
                }
            ),
            "{authority:?}: {answer:?}"
        );
    }
}
