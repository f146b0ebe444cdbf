// SPDX-License-Identifier: Apache-2.0
//! What rewrites make of paths and hosts, by Gateway API's table and its conformance suite.

use proto::waypoint::http_filter::Kind;
use proto::waypoint::{Redirect, Rewrite};

use super::redirects::{backed, full, prefix, redirected, ruled};
use super::*;

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
