// SPDX-License-Identifier: Apache-2.0
//! Finds rules the slow way: all that match, sorted by precedence, the first. The table has to find the same.

use std::cmp::Reverse;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// Whether a path is matched, and where that stands: greater goes first.
fn path_rank(wire: &HttpMatch, path: &str) -> Option<(u8, usize, usize)> {
    let whole = |expression: &str, value: &str| {
        regex::Regex::new(&format!("^(?:{expression})$"))
            .unwrap()
            .is_match(value)
    };
    if let Some(grpc) = &wire.grpc {
        let parts: Vec<_> = path.split('/').collect();
        let (service, method) = (grpc.service.len(), grpc.method.len());
        let part = |expected: &str, given: &str| match (expected, grpc.regex) {
            ("", _) => !given.is_empty(),
            (expected, true) => whole(expected, given),
            (expected, false) => expected == given,
        };
        return match parts[..] {
            _ if service == 0 && method == 0 => Some((0, 0, 0)),
            ["", s, ..] if service > 0 && method == 0 && !grpc.regex => {
                part(&grpc.service, s).then_some((2, service + 1, 0))
            }
            ["", s, m] if part(&grpc.service, s) && part(&grpc.method, m) => {
                let is_exact = !grpc.regex && service > 0;
                Some(if is_exact {
                    (3, path.len(), 0)
                } else {
                    (1, service, method)
                })
            }
            _ => None,
        };
    }
    match wire.path.as_ref().and_then(|path| path.kind.as_ref()) {
        None => Some((0, 0, 0)),
        Some(Path::Exact(exact)) => (exact == path).then_some((3, path.len(), 0)),
        Some(Path::Prefix(prefix)) => {
            let prefix = prefix.trim_end_matches('/');
            let rest = path.strip_prefix(prefix)?;
            let rank = if prefix.is_empty() { 0 } else { 2 };
            (rest.is_empty() || rest.starts_with('/')).then_some((rank, prefix.len(), 0))
        }
        Some(Path::Start(start)) => path
            .starts_with(start.as_str())
            .then_some((1, start.len(), 0)),
        Some(Path::Regex(expression)) => {
            whole(expression, path).then_some((1, expression.len(), 0))
        }
    }
}

fn conditions_hold(wire: &HttpMatch, asked: &Asked) -> bool {
    let value = |wanted: &ValueMatch, given: Option<String>| match (&wanted.value, given) {
        (Some(Value::Exact(exact)), Some(given)) => *exact == given,
        _ => false,
    };
    let header = |wanted: &ValueMatch| {
        let lines: Vec<_> = asked
            .headers
            .get_all(wanted.name.as_str())
            .iter()
            .map(|v| v.to_str().unwrap())
            .collect();
        value(wanted, (!lines.is_empty()).then(|| lines.join(",")))
    };
    let parameter = |wanted: &ValueMatch| {
        let query = asked.uri.query().unwrap_or_default();
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        value(
            wanted,
            pairs
                .find(|(name, _)| *name == wanted.name)
                .map(|(_, value)| value.to_owned()),
        )
    };
    (wire.method.is_empty() || wire.method == asked.method.as_str())
        && wire.headers.iter().all(header)
        && wire.query.iter().all(parameter)
}

/// Name and place of the rule.
fn find(routes: &[HttpRoute], asked: &Asked) -> Option<(String, usize)> {
    let mut found = Vec::new();
    for route in routes {
        for (place, rule) in route.rules.iter().enumerate() {
            let everything = [HttpMatch::default()];
            let matches = if rule.matches.is_empty() {
                &everything[..]
            } else {
                &rule.matches
            };
            for wire in matches {
                if let Some(rank) =
                    path_rank(wire, asked.uri.path()).filter(|_| conditions_hold(wire, asked))
                {
                    let conditions = (
                        !wire.method.is_empty(),
                        wire.headers.len(),
                        wire.query.len(),
                    );
                    let name = format!("{}/{}", route.namespace, route.name);
                    found.push((Reverse((rank, conditions)), route.created, name, place));
                }
            }
        }
    }
    found.sort();
    let (.., name, place) = found.into_iter().next()?;
    Some((name, place))
}

fn some_path() -> impl Strategy<Value = String> {
    let elements = prop::collection::vec(select(vec!["a", "b", "ab", "pkg.S", ""]), 1..4);
    elements.prop_map(|elements| format!("/{}", elements.join("/")))
}

fn some_conditions() -> impl Strategy<Value = String> {
    let path = prop_oneof![
        2 => Just(String::new()),
        4 => some_path().prop_map(|path| format!("={path}")),
        6 => some_path(),
        2 => select(vec!["~/a/.*", "~/[ab]+", "~.*b", "~/a|/b/?", "~(/a)*"]).prop_map(str::to_owned),
        2 => select(vec!["grpc:a/b", "grpc:pkg.S/", "grpc:/b", "grpc:~a.?/", "grpc:~/b", "grpc:~a|b/a|b", "grpc:a/"])
            .prop_map(str::to_owned),
    ];
    let method = select(vec!["", "", "GET", "POST"]);
    let headers = prop::sample::subsequence(vec!["x:1", "y:1", "x:1,2"], 0..3);
    let query = prop::sample::subsequence(vec!["?p=1", "?q=2"], 0..3);
    (path, method, headers, query)
        .prop_filter("two conditions for one header", |(_, _, headers, _)| {
            !(headers.contains(&"x:1") && headers.contains(&"x:1,2"))
        })
        .prop_map(|(path, method, headers, query)| {
            format!("{path} {method} {} {}", headers.join(" "), query.join(" "))
        })
}

fn some_routes() -> impl Strategy<Value = Vec<HttpRoute>> {
    let rules = prop::collection::vec(prop::collection::vec(some_conditions(), 0..3), 1..5);
    let route = (rules, 0..3_i64).prop_map(|(rules, created)| {
        let rules = rules.into_iter().map(|matches| HttpRule {
            matches: matches.iter().map(|text| conditions(text)).collect(),
            ..rule("-> v1")
        });
        (rules.collect::<Vec<_>>(), created)
    });
    prop::collection::vec(route, 1..4).prop_map(|routes| {
        // Later names first, so that order comes from names and times.
        let named = routes
            .into_iter()
            .enumerate()
            .map(|(at, (rules, created))| HttpRoute {
                rate_limit: None,
                created,
                ..super::route(["c", "b", "a"][at], rules)
            });
        named.collect()
    })
}

fn some_request() -> impl Strategy<Value = String> {
    let query = select(vec!["", "?p=1", "?q=2&p=1", "?p=2&p=1", "?p=1&q=2"]);
    let headers = prop::sample::subsequence(vec!["x:1", "y:1", "x:2", "z:1"], 0..4);
    (
        select(vec!["GET", "POST", "PUT"]),
        some_path(),
        query,
        headers,
    )
        .prop_map(|(method, path, query, headers)| {
            format!("{method} {path}{query} {}", headers.join(" "))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_table_finds_what_a_scan_finds(
        routes in some_routes(),
        requests in prop::collection::vec(some_request(), 1..8),
    ) {
        let table = HttpTable::compile(&routes);
        for request in requests {
            let asked = Asked::new(&request);
            let found = table.find(&asked.request()).map(|hit| {
                let name = &hit.rule.name;
                let place: usize = name.rule.trim_start_matches('#').parse().unwrap();
                (format!("{}/{}", name.namespace, name.route), place)
            });
            prop_assert_eq!(found, find(&routes, &asked), "{}", request);
        }
    }
}
