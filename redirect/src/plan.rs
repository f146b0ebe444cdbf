// SPDX-License-Identifier: Apache-2.0
//! Pod and options → the rules and routes that must hold. Pure: nothing here looks at a kernel.
//!
//! In a pod:
//! ```text
//!  application ── connect ──► nat output ──► 15001 (ztunnel, outbound)
//!  peer ── plain TCP ──────► nat prerouting ──► 15006 (ztunnel, plaintext inbound)
//!  peer ── HBONE ──────────► 15008, not redirected
//!  ztunnel ── as the peer ──► application; the reply carries the connection mark ──► rule ──► table 100 ──► ztunnel
//! ```
//! On the node: probes of the kubelet get a source address by which a pod can tell them from other traffic.
//! Names, chains and the order within each chain are those of Istio ambient's nftables mode, and one rule is ours: what
//! ztunnel says to the application in a client's name is tracked apart from what that client says itself.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use capture::contract::{
    BORROWED_SOURCE_MARK, BORROWED_SOURCE_ZONE, CONNECTION_MARK, DNS_PORT, INBOUND_HBONE_PORT,
    INBOUND_PLAINTEXT_PORT, MANGLE_TABLE, NAT_TABLE, OUTBOUND_PORT, PACKET_MARK, PROBE_SET_V4,
    PROBE_SET_V6, PROBE_SOURCE_V4, PROBE_SOURCE_V6, RAW_TABLE, ROUTE_TABLE, RULE_PRIORITY,
};

use crate::enroll::Labels;
use crate::rules::{
    Action, Base, Chain, ChainKind, Family, Hook, Is, Match, Rule, Set, Table, Transport,
};

const PREROUTING: &str = "istio-prerouting";
const OUTPUT: &str = "istio-output";
/// ztunnel's own DNS queries are tracked in this conntrack zone.
const DNS_ZONE: u16 = 1;

const BYPASS_INBOUND: &str = "ambient.istio.io/bypass-inbound-capture";
const DNS_CAPTURE: &str = "ambient.istio.io/dns-capture";
const REROUTE_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";

/// Every table that may be ours in a pod, also of other options.
pub const POD_TABLES: [&str; 3] = [MANGLE_TABLE, NAT_TABLE, RAW_TABLE];

/// What may differ from pod to pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodOptions {
    pub families: Families,
    pub inbound: Inbound,
    pub dns: Dns,
    /// Traffic that arrives from these interfaces is outbound: virtual machines and containers nested in the pod.
    pub outbound_interfaces: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    V4,
    Dual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inbound {
    Captured,
    /// Ingress gateways take plain traffic themselves.
    Bypassed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dns {
    Captured,
    Untouched,
}

impl PodOptions {
    /// The pod's annotations override the node's defaults; what can't be read counts as absent.
    pub fn for_pod(annotations: &Labels, families: Families, dns: Dns) -> Self {
        let flag = |key| annotations.get(key).and_then(|value| parse_bool(value));
        Self {
            families,
            inbound: match flag(BYPASS_INBOUND) {
                Some(true) => Inbound::Bypassed,
                _ => Inbound::Captured,
            },
            dns: match flag(DNS_CAPTURE) {
                Some(true) => Dns::Captured,
                Some(false) => Dns::Untouched,
                None => dns,
            },
            outbound_interfaces: annotations
                .get(REROUTE_INTERFACES)
                .map(|list| {
                    list.split(',')
                        .map(str::trim)
                        .filter(|name| is_interface(name))
                        .map(str::to_owned)
                        .collect()
                })
                .unwrap_or_default(),
        }
    }
}

/// The usual spellings of a boolean annotation.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The kernel's rules for interface names (IFNAMSIZ includes the end mark).
fn is_interface(name: &str) -> bool {
    (1..16).contains(&name.len())
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || "/:\"".contains(c))
}

/// All that must hold in a pod's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlan {
    pub tables: Vec<Table>,
    pub routing: Vec<Routing>,
}

/// A rule that sends replies of marked connections to a table whose only route delivers them locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    pub family: Family,
    pub mark: u32,
    pub mask: u32,
    pub priority: u32,
    pub table: u32,
}

pub fn pod_plan(options: &PodOptions) -> PodPlan {
    PodPlan {
        tables: vec![mangle_table(), nat_table(options), raw_table(options.dns)],
        routing: families(options.families).map(routing).collect(),
    }
}

/// How much of a pod's new traffic is captured. What is established stays with whom it is in any case, as long as the
/// tables exist: the kernel goes on translating, and ztunnel's own connections are told by their marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Everything,
    /// The pod leaves the mesh, and its peers have not been told: what comes in is still decided on.
    Inbound,
    /// The pod has left the mesh; ztunnel carries what is open to its end.
    Nothing,
}

/// The plan of a pod on its way out of the mesh.
pub fn reduced_plan(options: &PodOptions, reach: Reach) -> PodPlan {
    let mut plan = pod_plan(options);
    let nat = plan
        .tables
        .iter_mut()
        .filter(|table| table.name == NAT_TABLE);
    for chain in nat.flat_map(|table| &mut table.chains) {
        match (chain.name, reach) {
            (PREROUTING, Reach::Inbound) => chain
                .rules
                .retain(|rule| rule.action != Action::Redirect(OUTBOUND_PORT)),
            (PREROUTING, Reach::Nothing) | (OUTPUT, Reach::Inbound | Reach::Nothing) => {
                chain.rules.clear();
            }
            _ => {}
        }
    }
    plan
}

/// The routing rule of one family.
pub fn routing(family: Family) -> Routing {
    Routing {
        family,
        mark: CONNECTION_MARK.value,
        mask: CONNECTION_MARK.mask,
        priority: RULE_PRIORITY,
        table: ROUTE_TABLE,
    }
}

fn families(families: Families) -> impl Iterator<Item = Family> + Clone {
    [Family::V4, Family::V6]
        .into_iter()
        .filter(move |&family| family == Family::V4 || families == Families::Dual)
}

fn mangle_table() -> Table {
    let prerouting = vec![rule(
        [Match::PacketMark(Is::Equal, PACKET_MARK)],
        Action::MarkConnection(CONNECTION_MARK),
    )];
    let output = vec![rule(
        [Match::ConnectionMark(Is::Equal, CONNECTION_MARK)],
        Action::RestoreMark,
    )];
    Table {
        name: MANGLE_TABLE,
        sets: Vec::new(),
        chains: pod_chains(
            [ChainKind::Filter, ChainKind::Route],
            -150,
            prerouting,
            output,
        ),
    }
}

fn nat_table(options: &PodOptions) -> Table {
    let families = families(options.families);
    let mut prerouting = Vec::new();
    for interface in &options.outbound_interfaces {
        let arriving = [
            Match::InInterface(interface.clone()),
            Match::Transport(Transport::Tcp),
        ];
        prerouting.push(rule(arriving.clone(), Action::Redirect(OUTBOUND_PORT)));
        prerouting.push(rule(arriving, Action::Return));
    }
    if options.inbound == Inbound::Captured {
        prerouting.extend(families.clone().map(|family| {
            rule(
                [
                    Match::Source(Is::Equal, probe_source(family)),
                    Match::Transport(Transport::Tcp),
                ],
                Action::Accept,
            )
        }));
        prerouting.extend(families.clone().map(|family| {
            rule(
                [
                    Match::Destination(Is::Not, loopback(family)),
                    Match::DestinationPort(Transport::Tcp, Is::Not, INBOUND_HBONE_PORT),
                    Match::PacketMark(Is::Not, PACKET_MARK),
                ],
                Action::Redirect(INBOUND_PLAINTEXT_PORT),
            )
        }));
    }

    let mut output: Vec<_> = families
        .clone()
        .map(|family| {
            rule(
                [
                    Match::Destination(Is::Equal, probe_source(family)),
                    Match::Transport(Transport::Tcp),
                ],
                Action::Accept,
            )
        })
        .collect();
    if options.dns == Dns::Captured {
        output.push(rule(
            [
                Match::OutInterface(Is::Not, "lo".into()),
                Match::DestinationPort(Transport::Udp, Is::Equal, 53),
                Match::PacketMark(Is::Not, PACKET_MARK),
            ],
            Action::Redirect(DNS_PORT),
        ));
        output.extend(families.clone().map(|family| {
            rule(
                [
                    Match::Destination(Is::Not, loopback(family)),
                    Match::DestinationPort(Transport::Tcp, Is::Equal, 53),
                    Match::PacketMark(Is::Not, PACKET_MARK),
                ],
                Action::Redirect(DNS_PORT),
            )
        }));
    }
    output.push(rule(
        [
            Match::Transport(Transport::Tcp),
            Match::PacketMark(Is::Equal, CONNECTION_MARK),
        ],
        Action::Accept,
    ));
    // The pod talking to its own address.
    output.extend(families.clone().map(|family| {
        rule(
            [
                Match::Destination(Is::Not, loopback(family)),
                Match::OutInterface(Is::Equal, "lo".into()),
            ],
            Action::Accept,
        )
    }));
    output.extend(families.map(|family| {
        rule(
            [
                Match::Destination(Is::Not, loopback(family)),
                Match::Transport(Transport::Tcp),
                Match::PacketMark(Is::Not, PACKET_MARK),
            ],
            Action::Redirect(OUTBOUND_PORT),
        )
    }));
    Table {
        name: NAT_TABLE,
        sets: Vec::new(),
        chains: pod_chains([ChainKind::Nat, ChainKind::Nat], -100, prerouting, output),
    }
}

fn raw_table(dns: Dns) -> Table {
    let mut prerouting = Vec::new();
    let mut output = vec![rule(
        [
            Match::OutInterface(Is::Equal, "lo".into()),
            Match::Transport(Transport::Tcp),
            Match::PacketMark(Is::Equal, BORROWED_SOURCE_MARK),
        ],
        Action::OriginalZone(BORROWED_SOURCE_ZONE),
    )];
    if dns == Dns::Captured {
        prerouting.push(rule(
            [
                Match::SourcePort(Transport::Udp, Is::Equal, 53),
                Match::PacketMark(Is::Not, PACKET_MARK),
            ],
            Action::Zone(DNS_ZONE),
        ));
        output.push(rule(
            [
                Match::DestinationPort(Transport::Udp, Is::Equal, 53),
                Match::PacketMark(Is::Equal, PACKET_MARK),
            ],
            Action::Zone(DNS_ZONE),
        ));
    }
    Table {
        name: RAW_TABLE,
        sets: Vec::new(),
        chains: pod_chains(
            [ChainKind::Filter, ChainKind::Filter],
            -300,
            prerouting,
            output,
        ),
    }
}

/// Two base chains that only jump, and the two chains that hold the rules.
fn pod_chains(
    kinds: [ChainKind; 2],
    priority: i32,
    prerouting: Vec<Rule>,
    output: Vec<Rule>,
) -> Vec<Chain> {
    let entry = |name, kind, hook, target| Chain {
        name,
        base: Some(Base {
            kind,
            hook,
            priority,
        }),
        rules: vec![rule([], Action::Jump(target))],
    };
    vec![
        entry("prerouting", kinds[0], Hook::Prerouting, PREROUTING),
        entry("output", kinds[1], Hook::Output, OUTPUT),
        Chain {
            name: PREROUTING,
            base: None,
            rules: prerouting,
        },
        Chain {
            name: OUTPUT,
            base: None,
            rules: output,
        },
    ]
}

/// What the node needs beside the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostOptions {
    pub families: Families,
    /// The user that the kubelet runs as.
    pub kubelet_uid: u32,
    pub probe_v4: Ipv4Addr,
    pub probe_v6: Ipv6Addr,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            families: Families::Dual,
            kubelet_uid: 0,
            probe_v4: PROBE_SOURCE_V4,
            probe_v6: PROBE_SOURCE_V6,
        }
    }
}

/// The set that holds captured pods' addresses of one family.
pub fn probe_set(family: Family) -> Set {
    let name = match family {
        Family::V4 => PROBE_SET_V4,
        Family::V6 => PROBE_SET_V6,
    };
    Set { name, family }
}

/// Everything that must hold in the node's network namespace; the sets' elements are kept apart.
pub fn host_plan(options: &HostOptions) -> Table {
    let families = families(options.families);
    let rules = families
        .clone()
        .map(|family| {
            rule(
                [
                    Match::Transport(Transport::Tcp),
                    Match::SocketOwner(options.kubelet_uid),
                    Match::DestinationIn(probe_set(family)),
                ],
                Action::Snat(match family {
                    Family::V4 => options.probe_v4.into(),
                    Family::V6 => options.probe_v6.into(),
                }),
            )
        })
        .collect();
    Table {
        name: NAT_TABLE,
        sets: families.map(probe_set).collect(),
        chains: vec![Chain {
            name: "postrouting",
            base: Some(Base {
                kind: ChainKind::Nat,
                hook: Hook::Postrouting,
                priority: 100,
            }),
            rules,
        }],
    }
}

fn rule<const N: usize>(matches: [Match; N], action: Action) -> Rule {
    Rule {
        matches: matches.into(),
        action,
    }
}

fn probe_source(family: Family) -> IpAddr {
    match family {
        Family::V4 => PROBE_SOURCE_V4.into(),
        Family::V6 => PROBE_SOURCE_V6.into(),
    }
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

impl fmt::Display for PodPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in &self.tables {
            write!(f, "{table}")?;
        }
        self.routing
            .iter()
            .try_for_each(|routing| write!(f, "{routing}"))
    }
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            mark,
            mask,
            priority,
            table,
        } = self;
        let (ip, all) = match family {
            Family::V4 => ("ip -4", "0.0.0.0/0"),
            Family::V6 => ("ip -6", "::/0"),
        };
        writeln!(
            f,
            "{ip} rule fwmark {mark:#x}/{mask:#x} priority {priority} lookup {table}"
        )?;
        writeln!(f, "{ip} route local {all} dev lo table {table} scope host")
    }
}
