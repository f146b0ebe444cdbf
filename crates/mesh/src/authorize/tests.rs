// SPDX-License-Identifier: Apache-2.0

mod naive;

use super::*;
use crate::policy::{PolicyScope, ServiceAccountMatch, StringMatch, Unparsable};

fn policy(name: &str, action: Action, matches: &[Match]) -> Arc<Policy> {
    let clause = Clause {
        matches: matches.to_vec(),
    };
    policy_of_rules(
        name,
        action,
        vec![Rule {
            clauses: vec![clause],
        }],
    )
}

fn policy_of_rules(name: &str, action: Action, rules: Vec<Rule>) -> Arc<Policy> {
    Arc::new(Policy {
        name: name.into(),
        namespace: "shop".into(),
        scope: PolicyScope::Namespace,
        action,
        rules,
        enforcement: Enforcement::Enforced,
    })
}

fn dry_run(policy: &Arc<Policy>) -> Arc<Policy> {
    let mut policy = (**policy).clone();
    policy.enforcement = Enforcement::DryRun;
    Arc::new(policy)
}

fn set(policies: &[Arc<Policy>]) -> PolicySet {
    let mut set = PolicySet::default();
    for policy in policies {
        set.add(policy);
    }
    set
}

fn everything() -> Rule {
    Rule::default()
}

fn unreadable<T>() -> Values<T> {
    Values {
        known: Vec::new(),
        unparsable: vec![Unparsable("newer than we are".into())],
    }
}

fn exact(text: &str) -> StringMatch {
    StringMatch::Exact(text.into())
}

const WEB: &str = "spiffe://cluster.local/ns/front/sa/web";

/// Who connects: the service account web of the namespace front, or nobody; always from 10.0.0.7 to 10.1.0.9:8080.
fn decide(policies: &PolicySet, identity: Option<&str>) -> Decision {
    let identity = identity.map(|id| id.parse().unwrap());
    authorize(policies, &connection(identity.as_ref()))
}

fn connection(identity: Option<&SpiffeId>) -> Connection<'_> {
    Connection {
        source_ip: "10.0.0.7".parse().unwrap(),
        identity,
        caller: None,
        destination: "10.1.0.9:8080".parse().unwrap(),
    }
}

/// What one match does to the mesh connection and to the plaintext one.
#[track_caller]
fn check(m: Match, with_identity: bool, without: bool) {
    let set = set(&[policy("p", Action::Allow, &[m])]);
    assert_eq!(
        decide(&set, Some(WEB)).is_allowed(),
        with_identity,
        "with an identity"
    );
    assert_eq!(
        decide(&set, None).is_allowed(),
        without,
        "without an identity"
    );
}

#[test]
fn each_field_compares_what_it_names() {
    let account = |namespace: &str, service_account: &str| {
        Values::from(vec![ServiceAccountMatch {
            namespace: namespace.into(),
            service_account: service_account.into(),
        }])
    };
    let range = |cidr: &str| Values::from(vec![cidr.parse().unwrap()]);
    let principal = || Values::from(vec![exact("cluster.local/ns/front/sa/web")]);

    let m = Match::default;
    check(
        Match {
            namespaces: vec![exact("front")].into(),
            ..m()
        },
        true,
        false,
    );
    check(
        Match {
            namespaces: vec![exact("back")].into(),
            ..m()
        },
        false,
        false,
    );
    check(
        Match {
            not_namespaces: vec![exact("front")].into(),
            ..m()
        },
        false,
        true,
    );
    check(
        Match {
            principals: principal(),
            ..m()
        },
        true,
        false,
    );
    check(
        Match {
            principals: vec![exact(WEB)].into(),
            ..m()
        },
        false,
        false,
    );
    check(
        Match {
            not_principals: principal(),
            ..m()
        },
        false,
        true,
    );
    check(
        Match {
            not_principals: vec![StringMatch::Presence].into(),
            ..m()
        },
        false,
        true,
    );
    check(
        Match {
            service_accounts: account("front", "web"),
            ..m()
        },
        true,
        false,
    );
    check(
        Match {
            service_accounts: account("back", "web"),
            ..m()
        },
        false,
        false,
    );
    check(
        Match {
            not_service_accounts: account("front", "web"),
            ..m()
        },
        false,
        true,
    );
    check(
        Match {
            source_ips: range("10.0.0.0/24"),
            ..m()
        },
        true,
        true,
    );
    check(
        Match {
            source_ips: range("fd00::/8"),
            ..m()
        },
        false,
        false,
    );
    check(
        Match {
            not_source_ips: range("10.0.0.7/32"),
            ..m()
        },
        false,
        false,
    );
    check(
        Match {
            destination_ips: range("10.1.0.0/16"),
            ..m()
        },
        true,
        true,
    );
    check(
        Match {
            not_destination_ips: range("10.2.0.0/16"),
            ..m()
        },
        true,
        true,
    );
    check(
        Match {
            destination_ports: vec![80, 8080].into(),
            ..m()
        },
        true,
        true,
    );
    check(
        Match {
            not_destination_ports: vec![8080].into(),
            ..m()
        },
        false,
        false,
    );
}

#[test]
fn texts_match_exactly_by_prefix_by_suffix_and_by_being_there() {
    let namespaces = |value: StringMatch| Match {
        namespaces: vec![value].into(),
        ..Match::default()
    };
    check(namespaces(StringMatch::Prefix("fr".into())), true, false);
    check(namespaces(StringMatch::Suffix("nt".into())), true, false);
    check(namespaces(StringMatch::Prefix("nt".into())), false, false);
    check(namespaces(StringMatch::Presence), true, false);
}

#[test]
fn all_fields_of_a_match_must_pass() {
    let both = |port: u16| Match {
        namespaces: vec![exact("front")].into(),
        destination_ports: vec![port].into(),
        ..Match::default()
    };
    check(both(8080), true, false);
    check(both(81), false, false);
}

#[test]
fn a_match_without_fields_matches_nothing() {
    check(Match::default(), false, false);
}

#[test]
fn what_has_no_parts_matches_by_its_kind() {
    let rules = |rules| decide(&set(&[policy_of_rules("p", Action::Allow, rules)]), None);
    assert!(
        !rules(vec![]).is_allowed(),
        "a policy without rules never matches"
    );
    assert!(
        rules(vec![everything()]).is_allowed(),
        "a rule without clauses matches"
    );
    let empty_clause = Rule {
        clauses: vec![Clause::default()],
    };
    assert!(
        rules(vec![empty_clause]).is_allowed(),
        "a clause without matches matches"
    );
}

#[test]
fn clauses_are_all_needed_and_matches_are_alternatives() {
    let port = |port: u16| Match {
        destination_ports: vec![port].into(),
        ..Match::default()
    };
    let clause = |ports: &[u16]| Clause {
        matches: ports.iter().map(|p| port(*p)).collect(),
    };
    let rule = |clauses: &[Clause]| {
        let rule = Rule {
            clauses: clauses.to_vec(),
        };
        decide(
            &set(&[policy_of_rules("p", Action::Allow, vec![rule])]),
            None,
        )
        .is_allowed()
    };
    assert!(rule(&[clause(&[80, 8080])]));
    assert!(rule(&[clause(&[80, 8080]), clause(&[8080])]));
    assert!(!rule(&[clause(&[80, 8080]), clause(&[80])]));
}

#[test]
fn without_policies_everything_may_pass() {
    assert_eq!(
        decide(&PolicySet::default(), None),
        Decision::Allow { rule: None }
    );
}

#[test]
fn deny_comes_before_allow_and_names_its_rule() {
    let never = Rule {
        clauses: vec![Clause {
            matches: vec![Match::default()],
        }],
    };
    let deny = policy_of_rules("no", Action::Deny, vec![never, everything()]);
    let allow = policy_of_rules("yes", Action::Allow, vec![everything()]);
    let Decision::Deny { reason } = decide(&set(&[allow, deny]), Some(WEB)) else {
        panic!("it must be denied");
    };
    assert_eq!(reason.to_string(), "denied by policy shop/no rule[1]");
}

#[test]
fn an_allowed_connection_knows_the_rule_that_allowed_it() {
    let allow = policy_of_rules("yes", Action::Allow, vec![everything()]);
    let Decision::Allow { rule: Some(rule) } = decide(&set(&[allow]), None) else {
        panic!("it must be allowed by a rule");
    };
    assert_eq!(rule.to_string(), "shop/yes rule[0]");
}

#[test]
fn what_no_allow_policy_matches_is_denied_by_name() {
    let nothing = policy_of_rules("a", Action::Allow, vec![]);
    let nothing_too = policy_of_rules("b", Action::Allow, vec![]);
    let reason = |policies: &[Arc<Policy>]| match decide(&set(policies), None) {
        Decision::Deny { reason } => reason.to_string(),
        Decision::Allow { .. } => panic!("it must be denied"),
    };
    assert_eq!(
        reason(std::slice::from_ref(&nothing)),
        "not matched by the ALLOW policy shop/a"
    );
    assert_eq!(
        reason(&[nothing, nothing_too]),
        "not matched by the ALLOW policy shop/a nor 1 others"
    );
}

#[test]
fn a_missing_policy_denies_and_says_which() {
    let mut set = set(&[policy_of_rules("yes", Action::Allow, vec![everything()])]);
    set.missing.push("shop/late".into());
    let policy = "shop/late".into();
    let reason = DenyReason::Missing { policy };
    assert_eq!(decide(&set, Some(WEB)), Decision::Deny { reason });
}

#[test]
fn strict_mode_denies_plaintext_and_lets_the_mesh_pass() {
    let plaintext = Match {
        not_principals: vec![StringMatch::Presence].into(),
        ..Match::default()
    };
    let set = set(&[policy("strict", Action::Deny, &[plaintext])]);
    assert!(decide(&set, Some(WEB)).is_allowed());
    assert!(!decide(&set, None).is_allowed());
}

/// What a match makes of the waypoint `gate/wp` alone, and where it speaks for `front/web`.
#[track_caller]
fn check_caller(m: Match, alone: bool, spoken_for: bool) {
    let set = set(&[policy("p", Action::Allow, &[m])]);
    let waypoint = "spiffe://cluster.local/ns/gate/sa/wp".parse().unwrap();
    let web: SpiffeId = WEB.parse().unwrap();
    let connection = connection(Some(&waypoint));
    assert_eq!(authorize(&set, &connection).is_allowed(), alone);
    let spoken = Connection {
        caller: Some(&web),
        ..connection
    };
    assert_eq!(authorize(&set, &spoken).is_allowed(), spoken_for);
}

#[test]
fn rules_may_name_the_waypoint_or_whom_it_speaks_for() {
    let principals = |text: &str| Values::from(vec![exact(text)]);
    let namespaces = |text: &str| Values::from(vec![exact(text)]);
    let m = Match::default;
    let web = "cluster.local/ns/front/sa/web";
    let wp = "cluster.local/ns/gate/sa/wp";
    check_caller(
        Match {
            principals: principals(web),
            ..m()
        },
        false,
        true,
    );
    check_caller(
        Match {
            principals: principals(wp),
            ..m()
        },
        true,
        true,
    );
    check_caller(
        Match {
            namespaces: namespaces("front"),
            ..m()
        },
        false,
        true,
    );
    let account = ServiceAccountMatch {
        namespace: "front".into(),
        service_account: "web".into(),
    };
    let accounts = || Values::from(vec![account.clone()]);
    check_caller(
        Match {
            service_accounts: accounts(),
            ..m()
        },
        false,
        true,
    );
    // Who is kept out is kept out behind a waypoint as well.
    check_caller(
        Match {
            not_principals: principals(web),
            ..m()
        },
        true,
        false,
    );
    check_caller(
        Match {
            not_namespaces: namespaces("front"),
            ..m()
        },
        true,
        false,
    );
    check_caller(
        Match {
            not_service_accounts: accounts(),
            ..m()
        },
        true,
        false,
    );
    check_caller(
        Match {
            not_principals: principals(wp),
            ..m()
        },
        false,
        false,
    );
    // One source is one party.
    let mixed = Match {
        principals: principals(wp),
        namespaces: namespaces("front"),
        ..m()
    };
    check_caller(mixed, false, false);
}

#[test]
fn ipv4_in_ipv6_clothes_meets_ipv4_ranges() {
    let m = Match {
        source_ips: vec!["10.0.0.0/8".parse().unwrap()].into(),
        destination_ips: vec!["10.1.0.9/32".parse().unwrap()].into(),
        ..Match::default()
    };
    let set = set(&[policy("p", Action::Deny, &[m])]);
    let connection = Connection {
        source_ip: "::ffff:10.0.0.7".parse().unwrap(),
        identity: None,
        caller: None,
        destination: "[::ffff:10.1.0.9]:8080".parse().unwrap(),
    };
    assert!(!authorize(&set, &connection).is_allowed());
}

/// What a match with a value that could not be read does as ALLOW and as DENY.
#[track_caller]
fn check_unreadable(m: &Match, denies: bool) {
    let allow = set(&[policy("p", Action::Allow, std::slice::from_ref(m))]);
    assert!(
        !decide(&allow, Some(WEB)).is_allowed(),
        "as ALLOW it must match nothing"
    );
    let deny = set(&[policy("p", Action::Deny, std::slice::from_ref(m))]);
    assert_eq!(!decide(&deny, Some(WEB)).is_allowed(), denies, "as DENY");
}

#[test]
fn an_unreadable_value_never_allows_and_denies_all_that_it_might() {
    let m = Match::default;
    let front = || Values::from(vec![exact("front")]);
    let back = || Values::from(vec![exact("back")]);
    check_unreadable(
        &Match {
            source_ips: unreadable(),
            ..m()
        },
        true,
    );
    check_unreadable(
        &Match {
            not_source_ips: unreadable(),
            ..m()
        },
        true,
    );
    check_unreadable(
        &Match {
            destination_ports: unreadable(),
            ..m()
        },
        true,
    );
    check_unreadable(
        &Match {
            principals: unreadable(),
            namespaces: front(),
            ..m()
        },
        true,
    );
    check_unreadable(
        &Match {
            principals: unreadable(),
            namespaces: back(),
            ..m()
        },
        false,
    );
    let unknown = vec![Unparsable("extension".into())];
    check_unreadable(
        &Match {
            unknown: unknown.clone(),
            ..m()
        },
        true,
    );
    check_unreadable(
        &Match {
            unknown,
            namespaces: back(),
            ..m()
        },
        false,
    );
    let mut known_hit_excluded = front();
    known_hit_excluded.unparsable.push(Unparsable("?".into()));
    check_unreadable(
        &Match {
            not_namespaces: known_hit_excluded.clone(),
            ..m()
        },
        false,
    );
    check_unreadable(
        &Match {
            namespaces: known_hit_excluded,
            ..m()
        },
        true,
    );
}

#[test]
fn an_unreadable_value_spoils_its_own_allow_rule_only() {
    let unreadable = Match {
        source_ips: unreadable(),
        ..Match::default()
    };
    let spoiled = Rule {
        clauses: vec![Clause {
            matches: vec![unreadable],
        }],
    };
    let set = set(&[policy_of_rules(
        "p",
        Action::Allow,
        vec![spoiled, everything()],
    )]);
    let Decision::Allow { rule: Some(rule) } = decide(&set, None) else {
        panic!("the second rule allows it");
    };
    assert_eq!(rule.rule, 1);
}

#[test]
fn a_denial_by_an_unreadable_value_says_so() {
    let m = Match {
        source_ips: unreadable(),
        ..Match::default()
    };
    let set = set(&[policy("p", Action::Deny, &[m])]);
    let Decision::Deny { reason } = decide(&set, None) else {
        panic!("it must be denied");
    };
    assert!(matches!(reason, DenyReason::UnparsableRule(_)), "{reason}");
}

#[test]
fn dry_run_policies_speak_and_have_no_say() {
    let deny = dry_run(&policy_of_rules("no", Action::Deny, vec![everything()]));
    let allow = dry_run(&policy_of_rules("yes", Action::Allow, vec![everything()]));
    let nothing = dry_run(&policy_of_rules("none", Action::Allow, vec![]));
    let enforced = policy_of_rules("real", Action::Allow, vec![everything()]);
    let say = |policies: &[Arc<Policy>]| {
        let set = set(policies);
        assert!(decide(&set, None).is_allowed());
        let said = set.dry_run(&connection(None));
        said.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        say(&[deny]),
        ["dry run: policy shop/no rule[0] would deny it"]
    );
    assert_eq!(
        say(&[allow, nothing.clone()]),
        ["dry run: policy shop/yes rule[0] would allow it"]
    );
    assert_eq!(
        say(std::slice::from_ref(&nothing)),
        ["dry run: no ALLOW policy would match it"]
    );
    assert!(say(&[nothing, enforced]).is_empty());
}

#[test]
fn a_policy_that_is_tried_counts_in_place_of_its_predecessor() {
    let all = Match {
        principals: vec![StringMatch::Presence].into(),
        ..Match::default()
    };
    let strangers = Match {
        principals: vec![exact("cluster.local/ns/front/sa/other")].into(),
        ..Match::default()
    };
    let deny = policy("p", Action::Deny, std::slice::from_ref(&all));
    let allow = policy("p", Action::Allow, &[strangers]);
    let web = WEB.parse().unwrap();
    let passes = |set: &PolicySet| authorize(set, &connection(Some(&web))).is_allowed();
    let none = PolicySet::default();
    assert!(!passes(&none.trying(&deny)));
    assert!(!passes(&none.trying(&dry_run(&deny))));
    assert!(!passes(&none.trying(&allow)));
    assert!(passes(&none), "nothing came of it");
    let denying = set(&[deny]);
    assert!(!passes(&denying));
    assert!(passes(&denying.trying(&policy("p", Action::Allow, &[all]))));
    assert!(!passes(&denying.trying(&policy("q", Action::Allow, &[]))));
}
