// SPDX-License-Identifier: Apache-2.0
//! Compares `authorize` with a second evaluator, written the other way round: it expands a policy into what might and
//! what must match, in three-valued logic, and never looks at the code under test. Not only whether a connection may pass
//! has to agree, but also by which rule or for which reason, and what policies in dry run say of it.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Truth {
    No,
    Unknown,
    Yes,
}

use Truth::{No, Unknown, Yes};

fn truth(is: bool) -> Truth {
    if is { Yes } else { No }
}

fn not(of: Truth) -> Truth {
    match of {
        No => Yes,
        Unknown => Unknown,
        Yes => No,
    }
}

/// Any of the values hits.
fn any<T>(values: &Values<T>, hit: impl Fn(&T) -> bool) -> Truth {
    let known = values.known.iter().map(|value| truth(hit(value)));
    let unknown = values.unparsable.iter().map(|_| Unknown);
    known.chain(unknown).max().unwrap_or(No)
}

fn field<T>(positive: &Values<T>, negative: &Values<T>, hit: impl Fn(&T) -> bool) -> [Truth; 2] {
    let has_any = !(positive.known.is_empty() && positive.unparsable.is_empty());
    [
        if has_any { any(positive, &hit) } else { Yes },
        not(any(negative, &hit)),
    ]
}

fn text_hits(value: &StringMatch, text: &str) -> bool {
    match value {
        StringMatch::Exact(v) => text == &**v,
        StringMatch::Prefix(v) => text.get(..v.len()) == Some(v),
        StringMatch::Suffix(v) => {
            text.len() >= v.len() && text.get(text.len() - v.len()..) == Some(v)
        }
        StringMatch::Presence => !text.is_empty(),
    }
}

fn one_match(m: &Match, c: &Connection<'_>) -> Truth {
    let fields_used = [
        m.namespaces.known.len() + m.namespaces.unparsable.len(),
        m.not_namespaces.known.len() + m.not_namespaces.unparsable.len(),
        m.principals.known.len() + m.principals.unparsable.len(),
        m.not_principals.known.len() + m.not_principals.unparsable.len(),
        m.service_accounts.known.len() + m.service_accounts.unparsable.len(),
        m.not_service_accounts.known.len() + m.not_service_accounts.unparsable.len(),
        m.source_ips.known.len() + m.source_ips.unparsable.len(),
        m.not_source_ips.known.len() + m.not_source_ips.unparsable.len(),
        m.destination_ips.known.len() + m.destination_ips.unparsable.len(),
        m.not_destination_ips.known.len() + m.not_destination_ips.unparsable.len(),
        m.destination_ports.known.len() + m.destination_ports.unparsable.len(),
        m.not_destination_ports.known.len() + m.not_destination_ports.unparsable.len(),
        m.unknown.len(),
    ];
    if fields_used.iter().sum::<usize>() == 0 {
        return No;
    }
    let of_party = |id: Option<&SpiffeId>| -> [[Truth; 2]; 3] {
        let parts: Vec<&str> = id.map_or(vec![], |id| id.as_str().split('/').collect());
        let (namespace, account) = match parts[..] {
            [_, _, _, _, namespace, _, account] => (namespace, account),
            _ => ("", ""),
        };
        let principal = id.map(|id| id.as_str().replacen("spiffe://", "", 1));
        let in_namespace = |v: &StringMatch| text_hits(v, namespace);
        let is_principal = |v: &StringMatch| principal.as_ref().is_some_and(|p| text_hits(v, p));
        let is_account = |v: &ServiceAccountMatch| {
            id.is_some() && *v.namespace == *namespace && *v.service_account == *account
        };
        [
            field(&m.namespaces, &m.not_namespaces, in_namespace),
            field(&m.principals, &m.not_principals, is_principal),
            field(&m.service_accounts, &m.not_service_accounts, is_account),
        ]
    };
    let mut parties = vec![of_party(c.identity)];
    if c.caller.is_some() {
        parties.push(of_party(c.caller));
    }
    let all = |party: &[[Truth; 2]; 3], at: usize| party.iter().map(|field| field[at]).min();
    let named = parties.iter().filter_map(|party| all(party, 0)).max();
    let not_excluded = parties.iter().filter_map(|party| all(party, 1)).min();
    let source = |range: &ipnet::IpNet| range.contains(&c.source_ip);
    let destination = |range: &ipnet::IpNet| range.contains(&c.destination.ip());
    let port = |port: &u16| *port == c.destination.port();
    [
        field(&m.source_ips, &m.not_source_ips, source),
        field(&m.destination_ips, &m.not_destination_ips, destination),
        field(&m.destination_ports, &m.not_destination_ports, port),
    ]
    .into_iter()
    .flatten()
    .chain(named)
    .chain(not_excluded)
    .chain(m.unknown.iter().map(|_| Unknown))
    .min()
    .unwrap_or(No)
}

fn rule(rule: &Rule, c: &Connection<'_>) -> Truth {
    let clause = |clause: &Clause| match clause.matches.iter().map(|m| one_match(m, c)).max() {
        Some(truth) => truth,
        None => Yes,
    };
    rule.clauses.iter().map(clause).min().unwrap_or(Yes)
}

fn holds_unreadable(rule: &Rule) -> bool {
    format!("{rule:?}").contains("Unparsable(")
}

/// The rules of a policy that hit, by their places.
fn hits(policy: &Policy, c: &Connection<'_>) -> Vec<usize> {
    let hit = |r: &Rule| match policy.action {
        Action::Deny => rule(r, c) != No,
        Action::Allow => !holds_unreadable(r) && rule(r, c) == Yes,
    };
    let places = policy.rules.iter().enumerate();
    places.filter(|(_, r)| hit(r)).map(|(at, _)| at).collect()
}

fn named(policy: &Policy) -> PolicyName {
    PolicyName {
        namespace: policy.namespace.clone(),
        name: policy.name.clone(),
    }
}

/// The decision with its reason: which policy and which rule of it, or what is missing.
fn naive(policies: &[Arc<Policy>], missing: Option<&str>, c: &Connection<'_>) -> Decision {
    let of = |action: Action| -> Vec<&Arc<Policy>> {
        let enforced = policies
            .iter()
            .filter(|p| p.enforcement == Enforcement::Enforced);
        enforced.filter(|p| p.action == action).collect()
    };
    let hit = |action: Action| {
        let all = of(action)
            .into_iter()
            .flat_map(|p| hits(p, c).into_iter().map(move |at| (p, at)));
        all.map(|(p, at)| {
            (
                p,
                RuleName {
                    policy: named(p),
                    rule: at,
                },
            )
        })
        .next()
    };
    let deny = |reason| Decision::Deny { reason };
    if let Some((policy, name)) = hit(Action::Deny) {
        return deny(match holds_unreadable(&policy.rules[name.rule]) {
            true => DenyReason::UnparsableRule(name),
            false => DenyReason::Rule(name),
        });
    }
    if let Some(key) = missing {
        return deny(DenyReason::Missing { policy: key.into() });
    }
    match (of(Action::Allow).as_slice(), hit(Action::Allow)) {
        ([], _) => Decision::Allow { rule: None },
        (_, Some((_, name))) => Decision::Allow { rule: Some(name) },
        ([first, others @ ..], None) => deny(DenyReason::NotAllowed {
            policy: named(first),
            others: others.len(),
        }),
    }
}

/// What those in dry run say: the first rule of each that hits, and that nobody would let it pass.
fn naive_dry_run(policies: &[Arc<Policy>], c: &Connection<'_>) -> Vec<DryRun> {
    let is_dry = |p: &&Arc<Policy>| p.enforcement == Enforcement::DryRun;
    let dry: Vec<_> = policies.iter().filter(is_dry).collect();
    let mut said: Vec<_> = dry
        .iter()
        .filter_map(|p| {
            let rule = RuleName {
                policy: named(p),
                rule: *hits(p, c).first()?,
            };
            Some(match p.action {
                Action::Deny => DryRun::WouldDeny(rule),
                Action::Allow => DryRun::WouldAllow(rule),
            })
        })
        .collect();
    let allows = |p: &&Arc<Policy>| p.action == Action::Allow;
    let only_dry = policies.iter().filter(allows).all(|p| is_dry(&p));
    let lets_pass = said.iter().any(|s| matches!(s, DryRun::WouldAllow(_)));
    if only_dry && dry.iter().any(allows) && !lets_pass {
        said.push(DryRun::WouldNotAllow);
    }
    said
}

/// IPv4 addresses that came in IPv6 clothes are the IPv4 addresses.
fn undressed(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => match v6.octets() {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => [a, b, c, d].into(),
            _ => ip,
        },
        IpAddr::V4(_) => ip,
    }
}

fn values<T: fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Values<T>> {
    let entry = prop_oneof![
        9 => value.prop_map(Ok),
        1 => Just(Err(Unparsable("?".into()))),
    ];
    prop_oneof![
        4 => Just(Values::default()),
        1 => prop::collection::vec(entry, 0..3).prop_map(|all| all.into_iter().collect()),
    ]
}

fn string() -> impl Strategy<Value = StringMatch> {
    let text = prop::sample::select(vec![
        "a",
        "b",
        "ab",
        "cluster.local/ns/a/sa/x",
        "sa/x",
        "cl",
    ]);
    (text, 0..4).prop_map(|(text, kind)| match kind {
        0 => StringMatch::Exact(text.into()),
        1 => StringMatch::Prefix(text.into()),
        2 => StringMatch::Suffix(text.into()),
        _ => StringMatch::Presence,
    })
}

fn account() -> impl Strategy<Value = ServiceAccountMatch> {
    let part = || prop::sample::select(vec!["a", "b", "x"]);
    (part(), part()).prop_map(|(namespace, account)| ServiceAccountMatch {
        namespace: namespace.into(),
        service_account: account.into(),
    })
}

fn range() -> impl Strategy<Value = ipnet::IpNet> {
    let ranges = [
        "10.0.0.0/8",
        "10.0.0.1/32",
        "10.0.0.2/31",
        "0.0.0.0/0",
        "fd00::/8",
        "::/0",
    ];
    prop::sample::select(ranges.to_vec()).prop_map(|cidr| cidr.parse().unwrap())
}

fn a_match() -> impl Strategy<Value = Match> {
    let port = || values(80u16..83);
    (
        (
            values(string()),
            values(string()),
            values(string()),
            values(string()),
        ),
        (values(account()), values(account())),
        (
            values(range()),
            values(range()),
            values(range()),
            values(range()),
        ),
        (port(), port(), prop::bool::weighted(0.05)),
    )
        .prop_map(
            |(texts, accounts, ranges, (ports, not_ports, extended))| Match {
                namespaces: texts.0,
                not_namespaces: texts.1,
                principals: texts.2,
                not_principals: texts.3,
                service_accounts: accounts.0,
                not_service_accounts: accounts.1,
                source_ips: ranges.0,
                not_source_ips: ranges.1,
                destination_ips: ranges.2,
                not_destination_ips: ranges.3,
                destination_ports: ports,
                not_destination_ports: not_ports,
                unknown: extended
                    .then(|| Unparsable("extension".into()))
                    .into_iter()
                    .collect(),
            },
        )
}

fn a_policy() -> impl Strategy<Value = Arc<Policy>> {
    let clause = prop::collection::vec(a_match(), 0..3).prop_map(|matches| Clause { matches });
    let rule = prop::collection::vec(clause, 0..3).prop_map(|clauses| Rule { clauses });
    let rules = prop::collection::vec(rule, 0..3);
    (rules, any_bool(), prop::bool::weighted(0.1)).prop_map(|(rules, allow, dry)| {
        let action = if allow { Action::Allow } else { Action::Deny };
        let policy = policy_of_rules("p", action, rules);
        if dry { dry_run(&policy) } else { policy }
    })
}

fn any_bool() -> impl Strategy<Value = bool> {
    prop::bool::ANY
}

fn an_identity() -> impl Strategy<Value = Option<SpiffeId>> {
    let ids = [
        "cluster.local/ns/a/sa/x",
        "other/ns/b/sa/x",
        "cluster.local/ns/ab/sa/b",
    ];
    let id = prop::sample::select(ids.to_vec());
    prop::option::of(id.prop_map(|id| format!("spiffe://{id}").parse().unwrap()))
}

fn an_address() -> impl Strategy<Value = IpAddr> {
    let addresses = [
        "10.0.0.1",
        "10.0.0.3",
        "192.168.0.1",
        "fd00::1",
        "2001:db8::1",
        "::ffff:10.0.0.1",
        "::ffff:192.168.0.1",
    ];
    prop::sample::select(addresses.to_vec()).prop_map(|ip| ip.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn authorize_agrees_with_the_naive_evaluator(
        policies in prop::collection::vec(a_policy(), 0..4),
        identity in an_identity(),
        caller in an_identity(),
        source_ip in an_address(),
        destination in an_address(),
        port in 80u16..83,
        missing in prop::bool::weighted(0.1),
    ) {
        let policies: Vec<_> = policies
            .into_iter()
            .enumerate()
            .map(|(at, policy)| Arc::new(Policy { name: format!("p{at}").into(), ..(*policy).clone() }))
            .collect();
        let connection = Connection {
            source_ip,
            identity: identity.as_ref(),
            caller: caller.as_ref().filter(|_| identity.is_some()),
            destination: SocketAddr::new(destination, port),
        };
        let plain = Connection {
            source_ip: undressed(source_ip),
            destination: SocketAddr::new(undressed(destination), port),
            ..connection
        };
        let mut set = set(&policies);
        let missing = missing.then_some("shop/unknown");
        set.missing.extend(missing.map(Arc::from));
        prop_assert_eq!(authorize(&set, &connection), naive(&policies, missing, &plain));
        prop_assert_eq!(set.dry_run(&connection), naive_dry_run(&policies, &plain));
    }
}
