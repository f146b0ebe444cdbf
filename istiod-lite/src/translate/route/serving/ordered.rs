// SPDX-License-Identifier: Apache-2.0
//! What VirtualServices come to at a port of a service: for each group of clients their rules in order, those that name its
//! host itself before those that do by a wildcard, then older objects first. They decide only where no route of the Gateway
//! API does.

use std::collections::BTreeSet;

use proto::waypoint::{self as wire, Protocol};

use super::{
    super::{Connections, Rules, Virtual, closeness},
    Attached, Following, Resolver, Served,
};

pub(super) fn tables(
    served: &Served<'_>,
    port: u16,
    speaks: Protocol,
    taken: &[wire::RouteTable],
    resolver: &impl Resolver,
) -> Vec<wire::RouteTable> {
    let taken = |clients: &str| taken.iter().any(|table| table.client_namespace == clients);
    let mut virtuals: Vec<(&Attached<'_>, &Virtual)> = served
        .virtuals
        .iter()
        .filter_map(|attached| match &attached.route.rules {
            Rules::Virtual(rules) => Some((attached, rules)),
            Rules::Http(_) | Rules::Tls { .. } | Rules::Tcp(_) => None,
        })
        .collect();
    if virtuals.is_empty() || taken("") {
        return Vec::new();
    }
    virtuals.sort_by_key(|(attached, _)| {
        let hosts = attached.route.hosts.iter();
        let closest = hosts
            .filter_map(|host| closeness(host, served.hostname))
            .max();
        (
            std::cmp::Reverse(closest),
            attached.route.created,
            &attached.id.name,
        )
    });
    let named: BTreeSet<&str> = virtuals
        .iter()
        .flat_map(|(_, rules)| rules.clients())
        .collect();
    let groups = named
        .into_iter()
        .filter(|clients| !taken(clients))
        .chain([""]);
    let table = |clients: &str| {
        let at = At {
            virtuals: &virtuals,
            port,
            clients,
            resolver,
        };
        at.table(speaks)
    };
    groups.filter_map(table).collect()
}

/// A port, and a group of clients.
struct At<'a, R> {
    virtuals: &'a [(&'a Attached<'a>, &'a Virtual)],
    port: u16,
    clients: &'a str,
    resolver: &'a R,
}

impl<R: Resolver> At<'_, R> {
    fn table(&self, speaks: Protocol) -> Option<wire::RouteTable> {
        let mut table = wire::RouteTable {
            client_namespace: self.clients.to_owned(),
            in_order: true,
            ..wire::RouteTable::default()
        };
        let mut virtuals = self.virtuals.iter();
        let is_http = !matches!(speaks, Protocol::Tcp | Protocol::Tls);
        if is_http && virtuals.any(|(_, rules)| !rules.http.is_empty()) {
            table.http = self.http();
            return Some(table);
        }
        if speaks == Protocol::Tls {
            table.tls = self.tls();
        }
        if table.tls.is_empty() {
            table.tcp = self.tcp().into_iter().collect();
        }
        (!table.tls.is_empty() || !table.tcp.is_empty()).then_some(table)
    }

    fn following<'a>(&'a self, attached: &'a Attached<'_>) -> Following<'a, R> {
        Following {
            id: attached.id,
            asked: self.port,
            resolver: self.resolver,
        }
    }

    fn http(&self) -> Vec<wire::HttpRoute> {
        let route = |(attached, rules): &(&Attached<'_>, &Virtual)| {
            let following = self.following(attached);
            let concerned = rules.http.iter().filter_map(|one| {
                let matches = one.matches.iter();
                let matches = matches.filter(|one| one.concerns(self.port, self.clients));
                let matches: Vec<_> = matches.map(|one| one.condition.clone()).collect();
                // None at all would be everything.
                (one.matches.is_empty() || !matches.is_empty()).then(|| wire::HttpRule {
                    matches,
                    ..following.rule(&one.rule)
                })
            });
            wire::HttpRoute {
                rate_limit: attached.route.rate_limit.clone(),
                kind: attached.id.kind.as_str().to_owned(),
                namespace: attached.id.name.namespace.to_string(),
                name: attached.id.name.name.to_string(),
                created: attached.route.created,
                rules: concerned.collect(),
            }
        };
        let with_rules = self
            .virtuals
            .iter()
            .filter(|(_, rules)| !rules.http.is_empty());
        with_rules.map(route).collect()
    }

    fn tls(&self) -> Vec<wire::TlsRoute> {
        let of = |(attached, rules): &(&Attached<'_>, &Virtual)| {
            let following = self.following(attached);
            let routes = rules.tls.iter().filter_map(|rule| {
                let matches = rule.matches.iter();
                let matches = matches.filter(|one| one.concerns(self.port, self.clients));
                let hostnames: Vec<String> = matches
                    .flat_map(|one| one.condition.iter().cloned())
                    .collect();
                (!hostnames.is_empty()).then(|| wire::TlsRoute {
                    namespace: attached.id.name.namespace.to_string(),
                    name: attached.id.name.name.to_string(),
                    created: attached.route.created,
                    hostnames,
                    backends: following.shares(rule.invalid.clone(), &rule.backends),
                })
            });
            routes.collect::<Vec<_>>()
        };
        self.virtuals.iter().flat_map(of).collect()
    }

    /// The first rule that is for these clients at this port.
    fn tcp(&self) -> Option<wire::TcpRoute> {
        let concerns = |rule: &Connections| {
            let mut matches = rule.matches.iter();
            rule.matches.is_empty() || matches.any(|one| one.concerns(self.port, self.clients))
        };
        let mut rules = self.virtuals.iter().flat_map(|(attached, rules)| {
            let rules = rules.tcp.iter();
            rules.map(move |rule| (attached, rule))
        });
        let (attached, rule) = rules.find(|(_, rule)| concerns(rule))?;
        Some(wire::TcpRoute {
            namespace: attached.id.name.namespace.to_string(),
            name: attached.id.name.name.to_string(),
            created: attached.route.created,
            backends: self
                .following(attached)
                .shares(rule.invalid.clone(), &rule.backends),
        })
    }
}
