// SPDX-License-Identifier: Apache-2.0
//! From whatever state a pod's namespace is found in (what an older version left, a plan that was half applied, other
//! people's tables, rules and routes), applying a plan leads to the one state that it leads to from nothing; a second
//! time changes nothing; and what is not ours is as it was. Real kernel, one namespace for each state. Needs root, or a
//! user namespace of one's own.
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use capture::Netns;
use capture::contract::{
    CONNECTION_MARK, MANGLE_TABLE, NAT_TABLE, RAW_TABLE, ROUTE_TABLE, RULE_PRIORITY,
};
use futures_util::TryStreamExt as _;
use netlink_bindings::nftables::{self as nft, Nfgenmsg};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_socket2::NetlinkSocket;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redirect::nftables;
use redirect::plan::{
    Dns, Families, Inbound, POD_TABLES, PodOptions, PodPlan, Reach, pod_plan, reduced_plan,
};
use redirect::program::{self, Programmed};
use redirect::rules::{
    Action, Base, Chain, ChainKind, Family, Hook, Match, Rule, Set, Table, Transport,
};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use support::{FAMILIES, talk};

const STATES: u32 = 48;

// What a namespace holds before.

#[derive(Debug, Clone)]
struct Start {
    tables: Vec<Table>,
    oddities: Vec<Oddity>,
    leftovers: Vec<(Family, Leftover)>,
}

/// What the words of a plan can't say.
#[derive(Debug, Clone, Copy)]
enum Oddity {
    /// One of our tables is switched off.
    Dormant(&'static str),
    /// A chain of the plan's name and hook lets nothing through.
    Dropping(&'static str),
    /// A table of another family that has our name.
    OtherFamily(&'static str),
}

#[derive(Debug, Clone, Copy)]
enum Leftover {
    Rule,
    Route,
    /// Ours, but for some packets only.
    NarrowRule,
    InvertedRule,
    /// The same way, at another place.
    EarlierRule,
    ForeignRule,
    /// In our table, more specific than the one route that belongs there.
    ForeignRoute,
    /// In the place of our route.
    BlackholeRoute,
}

fn options() -> impl Strategy<Value = PodOptions> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(dual, captured, dns, vms)| PodOptions {
            families: if dual { Families::Dual } else { Families::V4 },
            inbound: if captured {
                Inbound::Captured
            } else {
                Inbound::Bypassed
            },
            dns: if dns { Dns::Captured } else { Dns::Untouched },
            outbound_interfaces: if vms { vec!["vm0".into()] } else { vec![] },
        },
    )
}

fn a_plan() -> impl Strategy<Value = PodPlan> {
    let reach = prop::sample::select(vec![Reach::Everything, Reach::Inbound, Reach::Nothing]);
    (options(), reach).prop_map(|(options, reach)| reduced_plan(&options, reach))
}

/// How a table differs from a plan's; numbers point at chains and rules, modulo as many as there are.
#[derive(Debug, Clone, Copy)]
enum Change {
    DropTable(usize),
    DropRule(usize, usize),
    RepeatRule(usize, usize),
    SwapRules(usize, usize),
    OtherRule(usize, usize),
    EmptyChain(usize),
    DropLastChain(usize),
    OtherPriority(usize),
    OtherHook(usize),
    MoreChain(usize),
    MoreSet(usize),
}

fn a_change() -> impl Strategy<Value = Change> {
    let n = || 0..12_usize;
    prop_oneof![
        n().prop_map(Change::DropTable),
        (n(), n()).prop_map(|(c, r)| Change::DropRule(c, r)),
        (n(), n()).prop_map(|(c, r)| Change::RepeatRule(c, r)),
        (n(), n()).prop_map(|(c, r)| Change::SwapRules(c, r)),
        (n(), n()).prop_map(|(c, r)| Change::OtherRule(c, r)),
        n().prop_map(Change::EmptyChain),
        n().prop_map(Change::DropLastChain),
        n().prop_map(Change::OtherPriority),
        n().prop_map(Change::OtherHook),
        n().prop_map(Change::MoreChain),
        n().prop_map(Change::MoreSet),
    ]
}

impl Change {
    fn to(self, tables: &mut Vec<Table>) {
        let count = tables.len();
        if count == 0 {
            return;
        }
        if let Self::DropTable(at) = self {
            tables.remove(at % count);
            return;
        }
        let (Self::DropRule(at, _)
        | Self::RepeatRule(at, _)
        | Self::SwapRules(at, _)
        | Self::OtherRule(at, _)
        | Self::EmptyChain(at)
        | Self::DropLastChain(at)
        | Self::OtherPriority(at)
        | Self::OtherHook(at)
        | Self::MoreChain(at)
        | Self::MoreSet(at)
        | Self::DropTable(at)) = self;
        let table = &mut tables[at % count];
        match self {
            Self::MoreChain(_) => table.chains.push(Chain {
                name: "left-over",
                base: None,
                rules: vec![Rule {
                    matches: vec![Match::Transport(Transport::Udp)],
                    action: Action::Return,
                }],
            }),
            Self::MoreSet(_) => table.sets.push(Set {
                name: "left-over",
                family: Family::V4,
            }),
            Self::DropLastChain(_) => {
                table.chains.pop();
            }
            _ => {
                let chains = table.chains.len();
                if chains == 0 {
                    return;
                }
                self.to_chain(&mut table.chains[at / count % chains]);
            }
        }
    }

    fn to_chain(self, chain: &mut Chain) {
        let rules = chain.rules.len();
        match self {
            Self::EmptyChain(_) => chain.rules.clear(),
            Self::OtherPriority(_) => {
                if let Some(base) = &mut chain.base {
                    base.priority -= 7;
                }
            }
            Self::OtherHook(_) => {
                chain.base = Some(Base {
                    kind: ChainKind::Filter,
                    hook: Hook::Output,
                    priority: 3,
                });
            }
            Self::DropRule(_, at) if rules > 0 => {
                chain.rules.remove(at % rules);
            }
            Self::RepeatRule(_, at) if rules > 0 => {
                chain.rules.push(chain.rules[at % rules].clone())
            }
            Self::SwapRules(_, at) if rules > 0 => chain.rules.swap(0, at % rules),
            Self::OtherRule(_, at) if rules > 0 => chain.rules[at % rules].matches.push(
                Match::SourcePort(Transport::Tcp, redirect::rules::Is::Not, 9),
            ),
            _ => {}
        }
    }
}

fn start() -> impl Strategy<Value = Start> {
    let changes = prop::collection::vec(a_change(), 0..4);
    let ours = (prop::option::weighted(0.8, a_plan()), changes).prop_map(|(plan, changes)| {
        let mut tables = plan.map_or(vec![], |plan| plan.tables);
        for change in changes {
            change.to(&mut tables);
        }
        tables
    });
    let table = || prop::sample::select(POD_TABLES.to_vec());
    let oddity = prop_oneof![
        table().prop_map(Oddity::Dormant),
        prop::sample::select(vec![MANGLE_TABLE, NAT_TABLE]).prop_map(Oddity::Dropping),
        table().prop_map(Oddity::OtherFamily),
    ];
    let leftover = prop::sample::select(vec![
        Leftover::Rule,
        Leftover::Route,
        Leftover::NarrowRule,
        Leftover::InvertedRule,
        Leftover::EarlierRule,
        Leftover::ForeignRule,
        Leftover::ForeignRoute,
        Leftover::BlackholeRoute,
    ]);
    (
        ours,
        prop::collection::vec(oddity, 0..2),
        prop::collection::vec((prop::sample::select(FAMILIES.to_vec()), leftover), 0..5),
    )
        .prop_map(|(tables, oddities, leftovers)| Start {
            tables,
            oddities,
            leftovers,
        })
}

/// Somebody else's, with rules like ours.
fn foreign_table() -> Table {
    let mut table = pod_plan(&PodOptions {
        families: Families::Dual,
        inbound: Inbound::Captured,
        dns: Dns::Captured,
        outbound_interfaces: vec!["eth1".into()],
    })
    .tables
    .remove(1);
    table.name = "istio-ambient-nat-of-others";
    table.sets.push(Set {
        name: "theirs",
        family: Family::V6,
    });
    table
}

/// Brings a namespace into a state. What the kernel refuses is not part of it; says how much was.
fn install(netns: &Netns, start: &Start) -> usize {
    let tables = start.tables.clone();
    let oddities = start.oddities.clone();
    let install = move || {
        nftables::apply(&[foreign_table()], &[]).unwrap();
        let mut refused = 0;
        for table in tables {
            refused += usize::from(nftables::apply(&[table], &[]).is_err());
        }
        for oddity in oddities {
            oddity.install();
        }
        refused
    };
    let refused = within(netns, install);
    let leftovers = start.leftovers.clone();
    talk(netns, async move |handle| {
        for (family, leftover) in leftovers {
            leftover.install(&handle, family).await;
        }
    });
    refused
}

fn within<T: Send + 'static>(netns: &Netns, work: impl FnOnce() -> T + Send + 'static) -> T {
    netns
        .spawn_thread_in("within", work)
        .unwrap()
        .join()
        .unwrap()
        .unwrap()
}

fn family_header(family: i32) -> Nfgenmsg {
    Nfgenmsg {
        nfgen_family: u8::try_from(family).unwrap(),
        ..Nfgenmsg::default()
    }
}

impl Oddity {
    fn install(self) {
        let mut batch = nft::Chained::new(1);
        let mut frame = Nfgenmsg::new();
        frame.set_res_id(u16::try_from(libc::NFNL_SUBSYS_NFTABLES).unwrap());
        batch.request().op_batch_begin_do(&frame);
        let inet = family_header(libc::NFPROTO_INET);
        match self {
            Self::Dormant(table) => {
                let mut request = batch.request().set_create().op_newtable_do(&inet);
                request
                    .encode()
                    .push_name_bytes(table.as_bytes())
                    .push_flags(1);
            }
            Self::Dropping(table) => {
                // The first base chain of the plan's table, by the plan's own words.
                let plan = pod_plan(&PodOptions {
                    families: Families::V4,
                    inbound: Inbound::Captured,
                    dns: Dns::Untouched,
                    outbound_interfaces: vec![],
                });
                let planned = plan
                    .tables
                    .iter()
                    .find(|planned| planned.name == table)
                    .unwrap();
                let chain = planned
                    .chains
                    .iter()
                    .find(|chain| chain.base.is_some())
                    .unwrap();
                let base = chain.base.unwrap();
                let mut request = batch.request().set_create().op_newtable_do(&inet);
                request.encode().push_name_bytes(table.as_bytes());
                drop(request);
                let mut request = batch.request().set_create().op_newchain_do(&inet);
                request
                    .encode()
                    .push_table_bytes(table.as_bytes())
                    .push_name_bytes(chain.name.as_bytes())
                    .nested_hook()
                    .push_num(match base.hook {
                        Hook::Prerouting => 0,
                        Hook::Output => 3,
                        Hook::Postrouting => 4,
                    })
                    .push_priority(base.priority)
                    .end_nested()
                    .push_policy(0)
                    .push_type_bytes(base.kind.name().as_bytes());
            }
            Self::OtherFamily(table) => {
                let ip = family_header(libc::NFPROTO_IPV4);
                let mut request = batch.request().set_create().op_newtable_do(&ip);
                request.encode().push_name_bytes(table.as_bytes());
            }
        }
        batch.request().op_batch_end_do(&frame);
        let messages = batch.finalize();
        let mut socket = NetlinkSocket::new();
        // What is there in another shape already may be in the way.
        let _ = socket
            .request_chained(&messages)
            .map(|mut replies| replies.recv_all());
    }
}

fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

fn marked_rule(family: Family, priority: u32) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = address_family(family);
    rule.header.action = RuleAction::ToTable;
    rule.attributes = vec![
        RuleAttribute::Priority(priority),
        RuleAttribute::FwMark(CONNECTION_MARK.value),
        RuleAttribute::FwMask(CONNECTION_MARK.mask),
        RuleAttribute::Table(ROUTE_TABLE),
    ];
    rule
}

fn some_network(family: Family) -> (IpAddr, u8) {
    match family {
        Family::V4 => (Ipv4Addr::new(10, 9, 0, 0).into(), 16),
        Family::V6 => (Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 0).into(), 32),
    }
}

impl Leftover {
    async fn install(self, handle: &Handle, family: Family) {
        let rule = match self {
            Self::Rule => marked_rule(family, RULE_PRIORITY),
            Self::EarlierRule => marked_rule(family, 90),
            Self::NarrowRule => {
                let (network, length) = some_network(family);
                let mut rule = marked_rule(family, RULE_PRIORITY);
                rule.header.src_len = length;
                rule.attributes.push(RuleAttribute::Source(network));
                rule
            }
            Self::InvertedRule => {
                let mut rule = marked_rule(family, RULE_PRIORITY);
                rule.header.flags = RuleFlags::Invert;
                rule
            }
            Self::ForeignRule => {
                let mut rule = marked_rule(family, 7000);
                rule.attributes = vec![
                    RuleAttribute::Priority(7000),
                    RuleAttribute::FwMark(7),
                    RuleAttribute::Table(200),
                ];
                rule
            }
            Self::Route | Self::ForeignRoute | Self::BlackholeRoute => {
                let mut route = route(family);
                match self {
                    Self::Route => {
                        route.header.kind = RouteType::Local;
                        route.header.scope = RouteScope::Host;
                    }
                    Self::BlackholeRoute => route.header.kind = RouteType::BlackHole,
                    _ => {
                        let (network, length) = some_network(family);
                        route.header.kind = RouteType::Unicast;
                        route.header.scope = RouteScope::Link;
                        route.header.destination_prefix_length = length;
                        let network = match network {
                            IpAddr::V4(v4) => RouteAddress::Inet(v4),
                            IpAddr::V6(v6) => RouteAddress::Inet6(v6),
                        };
                        route.attributes.push(RouteAttribute::Destination(network));
                    }
                }
                if !matches!(self, Self::BlackholeRoute) {
                    route.attributes.push(RouteAttribute::Oif(1));
                }
                // It may be there already.
                let _ = handle.route().add(route).execute().await;
                return;
            }
        };
        let mut request = handle.rule().add();
        *request.message_mut() = rule;
        let _ = request.execute().await;
    }
}

fn route(family: Family) -> RouteMessage {
    let mut route = match family {
        Family::V4 => RouteMessageBuilder::<Ipv4Addr>::new().build(),
        Family::V6 => RouteMessageBuilder::<Ipv6Addr>::new().build(),
    };
    route.header.table = 0;
    route
        .attributes
        .retain(|attribute| !matches!(attribute, RouteAttribute::Table(_)));
    route.attributes.push(RouteAttribute::Table(ROUTE_TABLE));
    route
}

// What it holds afterwards, read without the code under test.

/// Of our tables what a packet meets; of all others every detail, so that a handle tells whether they were made anew.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    ours: BTreeMap<String, String>,
    others: BTreeSet<String>,
}

fn held(netns: &Netns) -> Held {
    within(netns, || {
        let mut held = Held {
            ours: BTreeMap::new(),
            others: BTreeSet::new(),
        };
        let mut socket = NetlinkSocket::new();
        let inet = u8::try_from(libc::NFPROTO_INET).unwrap();
        let any = Nfgenmsg::default();
        macro_rules! read {
            ($operation:ident, $table:ident, |$attributes:ident| $facts:expr) => {
                let request = nft::Request::new().$operation(&any);
                let mut replies = socket.request(&request).unwrap();
                while let Some(reply) = replies.recv() {
                    let (header, $attributes) = reply.unwrap();
                    let table = $attributes.$table().unwrap().to_string_lossy().into_owned();
                    if header.nfgen_family == inet && POD_TABLES.contains(&table.as_str()) {
                        let facts: (String, String) = $facts;
                        let key = format!("{table} {}", facts.0);
                        let known = held.ours.entry(key).or_default();
                        known.push_str(&facts.1);
                        known.push('\n');
                    } else {
                        held.others
                            .insert(format!("{} {:?}", header.nfgen_family, $attributes));
                    }
                }
            };
        }
        read!(op_gettable_dump, get_name, |table| {
            (
                String::new(),
                format!("flags {:?}", table.get_flags().unwrap_or_default()),
            )
        });
        read!(op_getchain_dump, get_table, |chain| {
            let hook = chain
                .get_hook()
                .ok()
                .map(|hook| (hook.get_num().unwrap(), hook.get_priority().unwrap()));
            let kind = chain.get_type().ok().map(|kind| kind.to_owned());
            let facts = format!("{hook:?} {kind:?} policy {:?}", chain.get_policy().ok());
            (format!("chain {:?}", chain.get_name().unwrap()), facts)
        });
        read!(op_getset_dump, get_table, |set| {
            let facts = format!(
                "{:?} {:?}",
                set.get_key_len(),
                set.get_flags().unwrap_or_default()
            );
            (format!("set {:?}", set.get_name().unwrap()), facts)
        });
        read!(op_getrule_dump, get_table, |rule| {
            let expressions = rule.get_expressions().map(|list| list.get_buf().to_vec());
            (
                format!("rules of {:?}", rule.get_chain().unwrap()),
                format!("{:?}", expressions.unwrap()),
            )
        });
        held
    })
}

/// Rules and routes of a family as text.
fn routing_of(netns: &Netns, family: Family) -> BTreeSet<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    talk(netns, async move |handle| {
        let version = match family {
            Family::V4 => IpVersion::V4,
            Family::V6 => IpVersion::V6,
        };
        let mut rules = handle.rule().get(version).execute();
        while let Some(mut rule) = rules.try_next().await.unwrap() {
            rule.attributes
                .sort_by_key(|attribute| format!("{attribute:?}"));
            sender.send(format!("rule {rule:?}")).unwrap();
        }
        let mut filter = RouteMessage::default();
        filter.header.address_family = address_family(family);
        let mut routes = handle.route().get(filter).execute();
        while let Some(route) = routes.try_next().await.unwrap() {
            let ours = route
                .attributes
                .contains(&RouteAttribute::Table(ROUTE_TABLE));
            if ours {
                sender.send(format!("route {route:?}")).unwrap();
            }
        }
    });
    receiver.into_iter().collect()
}

/// Whether the kernel delivers marked packets here, wherever they go.
fn marked_stay_here(netns: &Netns, family: Family) -> bool {
    let (sender, receiver) = std::sync::mpsc::channel();
    talk(netns, async move |handle| {
        let mut asked = RouteMessage::default();
        asked.header.address_family = address_family(family);
        let (to, length) = match family {
            Family::V4 => (RouteAddress::Inet(Ipv4Addr::new(192, 0, 2, 1)), 32),
            Family::V6 => (
                RouteAddress::Inet6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
                128,
            ),
        };
        asked.header.destination_prefix_length = length;
        asked.attributes = vec![
            RouteAttribute::Destination(to),
            RouteAttribute::Mark(CONNECTION_MARK.value),
        ];
        let found = handle.route().get(asked).execute().try_next().await;
        let local = matches!(found, Ok(Some(route)) if route.header.kind == RouteType::Local);
        sender.send(local).unwrap();
    });
    receiver.recv().unwrap()
}

fn fresh() -> Netns {
    let netns =
        Netns::create().expect("creating a network namespace needs root, or `unshare -Urnm`");
    netns.loopback_up().unwrap();
    netns
}

fn holds_from(start: &Start, plan: &PodPlan) -> Result<(), TestCaseError> {
    let target = {
        let netns = fresh();
        program::apply(&netns, plan).unwrap();
        held(&netns).ours
    };
    let netns = fresh();
    install(&netns, start);
    let before = held(&netns);
    let routing_before = FAMILIES.map(|family| routing_of(&netns, family));

    let first = program::apply(&netns, plan);
    prop_assert!(first.is_ok(), "{first:?}");
    let after = held(&netns);
    prop_assert_eq!(&after.ours, &target, "not the planned state");
    prop_assert_eq!(&after.others, &before.others, "others' tables were touched");
    let routing_after = FAMILIES.map(|family| routing_of(&netns, family));
    for (index, family) in FAMILIES.into_iter().enumerate() {
        let lost: Vec<_> = routing_before[index]
            .difference(&routing_after[index])
            .collect();
        let replaced = |line: &&&String| line.contains("BlackHole");
        prop_assert!(
            lost.iter().all(|line| replaced(&line)),
            "others' routing was touched: {:?}",
            lost
        );
        if plan.routing.iter().any(|routing| routing.family == family) {
            prop_assert!(
                marked_stay_here(&netns, family),
                "{:?}: {:#?}",
                family,
                routing_after[index]
            );
        }
    }

    prop_assert_eq!(program::apply(&netns, plan).unwrap(), Programmed::Unchanged);
    prop_assert_eq!(&held(&netns), &after, "a second time changed something");
    prop_assert_eq!(
        &FAMILIES.map(|family| routing_of(&netns, family)),
        &routing_after
    );
    prop_assert_eq!(program::inspect(&netns, plan).unwrap(), vec![]);

    program::remove(&netns).unwrap();
    let gone = held(&netns);
    prop_assert!(gone.ours.is_empty(), "{:?}", gone.ours);
    prop_assert_eq!(&gone.others, &before.others);
    program::remove(&netns).unwrap();
    Ok(())
}

#[test]
fn a_plan_holds_from_any_state_and_touches_nothing_of_others() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: STATES,
        // A namespace is found as it is; shrinking takes hundreds of them.
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&(start(), a_plan()), |(start, plan)| {
        holds_from(&start, &plan)
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// The states that are most likely met, each by name.
#[test]
fn a_plan_holds_from_each_known_kind_of_remainder() {
    let plan = pod_plan(&PodOptions {
        families: Families::Dual,
        inbound: Inbound::Captured,
        dns: Dns::Captured,
        outbound_interfaces: vec![],
    });
    let clean = Start {
        tables: vec![],
        oddities: vec![],
        leftovers: vec![],
    };
    let mut starts = vec![clean.clone()];
    for table in POD_TABLES {
        for oddity in [Oddity::Dormant(table), Oddity::OtherFamily(table)] {
            starts.push(Start {
                tables: plan.tables.clone(),
                oddities: vec![oddity],
                leftovers: vec![],
            });
            starts.push(Start {
                oddities: vec![oddity],
                ..clean.clone()
            });
        }
    }
    for table in [MANGLE_TABLE, NAT_TABLE] {
        starts.push(Start {
            oddities: vec![Oddity::Dropping(table)],
            ..clean.clone()
        });
    }
    for leftover in [
        Leftover::Rule,
        Leftover::Route,
        Leftover::NarrowRule,
        Leftover::InvertedRule,
        Leftover::EarlierRule,
        Leftover::ForeignRule,
        Leftover::ForeignRoute,
        Leftover::BlackholeRoute,
    ] {
        let leftovers = FAMILIES.map(|family| (family, leftover)).to_vec();
        starts.push(Start {
            leftovers,
            ..clean.clone()
        });
    }
    // Half of a plan, table by table and rule by rule.
    for (index, table) in plan.tables.iter().enumerate() {
        starts.push(Start {
            tables: plan.tables[..index].to_vec(),
            ..clean.clone()
        });
        let mut half = table.clone();
        half.chains.iter_mut().for_each(|chain| {
            chain.rules.pop();
        });
        starts.push(Start {
            tables: vec![half],
            ..clean.clone()
        });
    }
    assert!(plan.tables.iter().any(|table| table.name == RAW_TABLE));
    for start in starts {
        if let Err(failure) = holds_from(&start, &plan) {
            panic!("from {start:#?}: {failure}");
        }
    }
}
