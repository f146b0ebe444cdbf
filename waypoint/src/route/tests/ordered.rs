// SPDX-License-Identifier: Apache-2.0
//! Rules that count in the order in which they stand, as those of VirtualServices.

use super::*;

/// `^start` stands for a path that begins so, `!name:value` for a header that must not be so.
fn ordered(rules: &[(&str, &str)]) -> HttpTable {
    let ordered = |(words, backend): &(&str, &str)| {
        let mut wire = HttpMatch::default();
        for word in words.split_whitespace() {
            match (word.strip_prefix('^'), word.strip_prefix('!')) {
                (Some(start), _) => wire.path = path(Path::Start(start.into())),
                (None, Some(header)) => wire.headers.push(ValueMatch {
                    inverted: true,
                    ..conditions(header).headers.remove(0)
                }),
                (None, None) => {
                    let more = conditions(word);
                    wire.path = more.path.or(wire.path);
                    wire.headers.extend(more.headers);
                }
            }
        }
        HttpRule {
            matches: vec![wire],
            ..rule(&format!("-> {backend}"))
        }
    };
    HttpTable::in_order(&[route("r", rules.iter().map(ordered))])
}

fn goes_to(table: &HttpTable, request: &str) -> String {
    outcome(table, request)
}

#[test]
fn the_first_rule_that_matches_counts_however_well_others_would() {
    let table = ordered(&[
        ("^/a", "first"),
        ("=/a/b", "exact"),
        ("x:1", "header"),
        ("^/b/", "below"),
        ("", "rest"),
    ]);
    assert_eq!(goes_to(&table, "/a/b"), "first");
    assert_eq!(
        goes_to(&table, "/ab x:1"),
        "first",
        "letter by letter, not by elements"
    );
    assert_eq!(goes_to(&table, "/c x:1"), "header");
    assert_eq!(goes_to(&table, "/b/c"), "below");
    assert_eq!(goes_to(&table, "/b"), "rest");
}

#[test]
fn a_header_may_be_asked_not_to_be_there() {
    let table = ordered(&[("!x~.*", "without"), ("!x:1", "other"), ("", "rest")]);
    assert_eq!(goes_to(&table, "/"), "without");
    assert_eq!(goes_to(&table, "/ x:2"), "other");
    assert_eq!(goes_to(&table, "/ x:1"), "rest");
    let both = ordered(&[("x~.* !x:1", "some-other"), ("", "rest")]);
    assert_eq!(goes_to(&both, "/ x:2"), "some-other");
    assert_eq!(goes_to(&both, "/ x:1"), "rest");
    assert_eq!(goes_to(&both, "/"), "rest");
}

#[test]
fn what_a_start_matched_is_replaced_as_a_prefix_is() {
    let rewritten = |start: &str, to: &str, asked: &str| {
        let mut only = rule("-> v1");
        only.matches = vec![HttpMatch {
            path: path(Path::Start(start.into())),
            ..HttpMatch::default()
        }];
        let prefix = proto::waypoint::path_rewrite::Kind::Prefix(to.into());
        only.filters = vec![HttpFilter {
            kind: Some(http_filter::Kind::Rewrite(proto::waypoint::Rewrite {
                hostname: String::new(),
                path: Some(proto::waypoint::PathRewrite { kind: Some(prefix) }),
            })),
        }];
        let table = HttpTable::in_order(&[route("r", [only])]);
        let asked = Asked::new(asked);
        match table.answer(&asked.request(), NOW, &mut rng()) {
            Answer::Forward(forward) => forward.path_and_query.expect("another path").to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(rewritten("/api/", "/v2/", "/api/x?y=1"), "/v2/x?y=1");
    assert_eq!(rewritten("/api", "/", "/api/x"), "/x");
    assert_eq!(rewritten("/api", "/v2", "/apis"), "/v2s");
    assert_eq!(rewritten("/", "/v2", "/x"), "/v2/x");
}

#[test]
fn a_rule_may_answer_itself_or_fail_on_purpose() {
    use proto::waypoint::fault::{Abort, abort::Status};
    use proto::waypoint::{DirectResponse, Fault, Share};
    let mut direct = rule("");
    direct.direct_response = Some(DirectResponse {
        status: 418,
        body: b"short and stout".to_vec(),
    });
    let table = HttpTable::in_order(&[route("r", [direct.clone()])]);
    assert_eq!(outcome(&table, "/"), "418");
    let all = Some(Share {
        numerator: 1,
        denominator: 1,
    });
    let abort = Abort {
        share: all,
        status: Some(Status::Http(503)),
    };
    direct.fault = Some(Fault {
        delay: None,
        abort: Some(abort),
    });
    let table = HttpTable::in_order(&[route("r", [direct.clone()])]);
    assert_eq!(outcome(&table, "/"), "503", "before anything else");
    direct.fault = None;
    direct.direct_response = Some(DirectResponse::default());
    let table = HttpTable::in_order(&[route("r", [direct])]);
    assert_eq!(outcome(&table, "/"), "500");
    let why: Vec<_> = table.problems().map(|(_, why)| why.to_owned()).collect();
    assert_eq!(why, ["direct_response: no status 0"]);
}

#[test]
fn what_an_expression_matches_is_replaced_and_the_query_stays() {
    let rewritten = |pattern: &str, substitution: &str, asked: &str| {
        let mut only = rule("-> v1");
        let regex = proto::waypoint::RegexRewrite {
            pattern: pattern.into(),
            substitution: substitution.into(),
        };
        let kind = proto::waypoint::path_rewrite::Kind::Regex(regex);
        only.filters = vec![HttpFilter {
            kind: Some(http_filter::Kind::Rewrite(proto::waypoint::Rewrite {
                hostname: String::new(),
                path: Some(proto::waypoint::PathRewrite { kind: Some(kind) }),
            })),
        }];
        let table = HttpTable::in_order(&[route("r", [only])]);
        let asked = Asked::new(asked);
        match table.answer(&asked.request(), NOW, &mut rng()) {
            Answer::Forward(forward) => forward.path_and_query.map(|path| path.to_string()),
            Answer::Here(Here::Refuse { reason, .. }) => Some(reason.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let path = |text: &str| Some(text.to_owned());
    let swapped = rewritten("^/([^/]+)/(.*)$", r"/\2/\1", "/a/b/c?q=1");
    assert_eq!(swapped, path("/b/c/a?q=1"));
    let no_path = path("the route's rewrite leads to no path");
    assert_eq!(rewritten("^/", "", "/a"), no_path);
    assert_eq!(rewritten("b", "?", "/b"), no_path);
    assert_eq!(
        rewritten("(a", "", "/a"),
        path("the route's rule is invalid: rewrite: path expression \"(a\": unclosed group")
    );
}
