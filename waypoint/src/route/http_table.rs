// SPDX-License-Identifier: Apache-2.0
//! HTTPRoutes and GRPCRoutes of one group of clients: finds the rule that a request is for.
//!
//! In: routes; a request. Out: the rule of the first match by Gateway API's precedence: path, method, headers, query
//! parameters, then the older route, then the route's name, then the order of its rules. Both kinds of routes stand in
//! one order, as in Istio: a gRPC method is a path, a service the prefix of its methods. Rules that stand in an order of
//! their own, as those of VirtualServices, are asked one after the other.

use proto::waypoint::path_match::Kind;
use proto::waypoint::{GrpcMethodMatch, HttpMatch, HttpRoute, PathMatch};

use super::conditions::Conditions;
use super::paths::{self, Part, Paths, Place, Test};
use super::rule::{self, Rule, RuleName};
use super::{Answer, Here, Reason, Request};
use crate::pattern::Pattern;
use crate::session::UnixTime;

/// Routes, compiled.
#[derive(Debug)]
pub struct HttpTable {
    matches: Matches,
    rules: Vec<Rule>,
}

#[derive(Debug)]
enum Matches {
    ByPrecedence(Paths<Match>),
    InOrder(Vec<(Place, Match)>),
}

/// One match of a rule.
#[derive(Debug)]
struct Match {
    conditions: Conditions,
    /// Which of the table's rules, older ones first.
    rule: usize,
}

/// The rule that a request is for.
#[derive(Debug, Clone, Copy)]
pub struct Hit<'t> {
    /// Which it is.
    pub rule: &'t Rule,
    /// Bytes of the path that its prefix matched; 0 for "/".
    pub(super) prefix: usize,
}

impl HttpTable {
    /// By Gateway API's precedence.
    pub(super) fn compile(routes: &[HttpRoute]) -> Self {
        let mut ordered: Vec<_> = routes.iter().collect();
        ordered.sort_by_cached_key(|route| {
            (route.created, format!("{}/{}", route.namespace, route.name))
        });
        Self::of(ordered, Matches::ByPrecedence(Paths::default()))
    }

    /// In the order in which routes and rules stand.
    pub(super) fn in_order(routes: &[HttpRoute]) -> Self {
        Self::of(routes.iter().collect(), Matches::InOrder(Vec::new()))
    }

    fn of(ordered: Vec<&HttpRoute>, matches: Matches) -> Self {
        let mut table = Self {
            matches,
            rules: Vec::new(),
        };
        for route in ordered {
            let limit = RuleName::limit(route);
            for (place, wire) in route.rules.iter().enumerate() {
                let mut problems: Vec<_> = limit.as_ref().err().cloned().into_iter().collect();
                if wire.matches.is_empty() {
                    table.add(&HttpMatch::default(), &mut problems);
                }
                for a_match in &wire.matches {
                    table.add(a_match, &mut problems);
                }
                let name = RuleName::new(route, place, wire);
                let limit = limit.as_ref().ok().cloned().flatten();
                table.rules.push(rule::compile(name, wire, limit, problems));
            }
        }
        if let Matches::ByPrecedence(matches) = &mut table.matches {
            matches.sort(|a_match| (a_match.conditions.specificity(), a_match.rule));
        }
        table
    }

    /// Adds a match of the rule that comes next.
    fn add(&mut self, wire: &HttpMatch, problems: &mut Vec<String>) {
        let place = match (&wire.grpc, &wire.path) {
            (Some(grpc), _) => grpc_place(grpc, problems),
            (None, Some(path)) => http_place(path, problems),
            (None, None) => Place::Any,
        };
        let compiled = Conditions::compile(wire);
        problems.extend(compiled.problem);
        if let Some(conditions) = compiled.conditions {
            let rule = self.rules.len();
            let a_match = Match { conditions, rule };
            match &mut self.matches {
                Matches::ByPrecedence(matches) => matches.insert(place, a_match),
                Matches::InOrder(matches) => matches.push((place, a_match)),
            }
        }
    }

    /// The rule that a request is for.
    pub fn find(&self, request: &Request<'_>) -> Option<Hit<'_>> {
        let holds = |a_match: &Match| a_match.conditions.hold(request);
        let (found, prefix) = match &self.matches {
            Matches::ByPrecedence(matches) => matches.find(request.path, holds)?,
            Matches::InOrder(matches) => matches.iter().find_map(|(place, a_match)| {
                let prefix = place.covers(request.path)?;
                holds(a_match).then_some((a_match, prefix))
            })?,
        };
        let rule = self.rules.get(found.rule)?;
        Some(Hit { rule, prefix })
    }

    /// All that becomes of a request: [`Self::find`], then [`Hit::decide`]; refused where there is no rule for it.
    pub fn answer(
        &self,
        request: &Request<'_>,
        now: UnixTime,
        rng: &mut impl rand::Rng,
    ) -> Answer<'_> {
        match self.find(request) {
            Some(hit) => hit.decide(request, now, rng),
            None => Answer::Here(Here::Refuse {
                rule: None,
                reason: Reason::NoRoute,
            }),
        }
    }

    /// The rules, older routes first.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = (&RuleName, &str)> {
        self.rules().flat_map(Rule::problems)
    }
}

fn http_place(path: &PathMatch, problems: &mut Vec<String>) -> Place {
    match &path.kind {
        Some(Kind::Exact(path)) => Place::Exact(path.as_str().into()),
        Some(Kind::Prefix(prefix)) => {
            if !prefix.starts_with('/') {
                problems.push(format!(
                    "path prefix {prefix:?} does not begin with a slash"
                ));
            }
            match prefix.trim_end_matches('/') {
                "" => Place::Any,
                prefix => Place::Prefix(prefix.into()),
            }
        }
        Some(Kind::Start(start)) => {
            Place::Pattern(Test::Start(start.as_str().into(), (start.len(), 0)))
        }
        Some(Kind::Regex(expression)) => {
            let longer = (expression.len(), 0);
            Place::Pattern(match Pattern::new(expression) {
                Ok(pattern) => Test::Whole(pattern, longer),
                Err(error) => {
                    problems.push(format!("path expression {expression:?}: {error}"));
                    Test::Start(paths::literal_start(expression).into(), longer)
                }
            })
        }
        None => {
            problems.push("a path match of an unknown kind".into());
            Place::Any
        }
    }
}

fn grpc_place(grpc: &GrpcMethodMatch, problems: &mut Vec<String>) -> Place {
    let (service, method) = (grpc.service.as_str(), grpc.method.as_str());
    match (service, method) {
        ("", "") => Place::Any,
        (service, "") if !grpc.regex => Place::Prefix(format!("/{service}").into()),
        (service, method) if !grpc.regex && !service.is_empty() => {
            Place::Exact(format!("/{service}/{method}").into())
        }
        _ => {
            let mut part = |what: &str, text: &str| match (text, grpc.regex) {
                ("", _) => Part::Any,
                (text, false) => Part::Exact(text.into()),
                (text, true) => match Pattern::new(text) {
                    Ok(pattern) => Part::Pattern(pattern),
                    Err(error) => {
                        problems.push(format!("{what} expression {text:?}: {error}"));
                        Part::Any
                    }
                },
            };
            Place::Pattern(Test::Grpc {
                service: part("service", service),
                method: part("method", method),
                longer: (service.len(), method.len()),
            })
        }
    }
}
