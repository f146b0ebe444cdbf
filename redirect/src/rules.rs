// SPDX-License-Identifier: Apache-2.0
//! The words a plan is written in: tables, chains and rules as values. Pure; prints itself in nft's own notation.

use std::fmt;
use std::net::IpAddr;

use capture::contract::Mark;

/// A table of family `inet`: both IPv4 and IPv6 pass through it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub name: &'static str,
    pub sets: Vec<Set>,
    pub chains: Vec<Chain>,
}

/// A set of addresses. Its elements come and go without touching the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set {
    pub name: &'static str,
    pub family: Family,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub name: &'static str,
    /// Where packets enter; a chain without is only jumped to.
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    pub kind: ChainKind,
    pub hook: Hook,
    pub priority: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
    /// Looks up the route again after the mark changed.
    Route,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Prerouting,
    Output,
    Postrouting,
}

/// All matches must hold, then the action runs. Every rule but a jump counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub matches: Vec<Match>,
    pub action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    Equal,
    Not,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// One condition. An address implies its family, a port its transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    InInterface(String),
    OutInterface(Is, String),
    Transport(Transport),
    Source(Is, IpAddr),
    Destination(Is, IpAddr),
    DestinationIn(Set),
    SourcePort(Transport, Is, u16),
    DestinationPort(Transport, Is, u16),
    PacketMark(Is, Mark),
    ConnectionMark(Is, Mark),
    /// The user that owns the local socket.
    SocketOwner(u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Jump(&'static str),
    Accept,
    Return,
    /// To this port of the same host.
    Redirect(u16),
    /// Replaces the bits of the mask in the connection's mark.
    MarkConnection(Mark),
    /// Copies the connection's whole mark to the packet.
    RestoreMark,
    /// Tracks the connection apart from those of other zones.
    Zone(u16),
    /// Tracks the connection's own direction apart; replies are looked for where all others are.
    OriginalZone(u16),
    /// Rewrites the source.
    Snat(IpAddr),
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl Table {
    /// How many rules the table has in all.
    pub fn rule_count(&self) -> usize {
        self.chains.iter().map(|chain| chain.rules.len()).sum()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table inet {} {{", self.name)?;
        for set in &self.sets {
            let kind = match set.family {
                Family::V4 => "ipv4_addr",
                Family::V6 => "ipv6_addr",
            };
            writeln!(f, "  set {} {{ type {kind}; }}", set.name)?;
        }
        for chain in &self.chains {
            writeln!(f, "  chain {} {{", chain.name)?;
            if let Some(base) = chain.base {
                writeln!(
                    f,
                    "    type {} hook {} priority {};",
                    base.kind, base.hook, base.priority
                )?;
            }
            for rule in &chain.rules {
                writeln!(f, "    {rule}")?;
            }
            writeln!(f, "  }}")?;
        }
        writeln!(f, "}}")
    }
}

impl ChainKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

impl fmt::Display for ChainKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in &self.matches {
            write!(f, "{condition} ")?;
        }
        if !matches!(self.action, Action::Jump(_)) {
            f.write_str("counter ")?;
        }
        write!(f, "{}", self.action)
    }
}

impl fmt::Display for Is {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => Ok(()),
            Self::Not => f.write_str("!= "),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

fn ip(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InInterface(name) => write!(f, "iifname \"{name}\""),
            Self::OutInterface(is, name) => write!(f, "oifname {is}\"{name}\""),
            Self::Transport(transport) => write!(f, "meta l4proto {transport}"),
            Self::Source(is, address) => {
                write!(f, "{} saddr {is}{address}", ip(Family::of(*address)))
            }
            Self::Destination(is, address) => {
                write!(f, "{} daddr {is}{address}", ip(Family::of(*address)))
            }
            Self::DestinationIn(set) => write!(f, "{} daddr @{}", ip(set.family), set.name),
            Self::SourcePort(transport, is, port) => write!(f, "{transport} sport {is}{port}"),
            Self::DestinationPort(transport, is, port) => write!(f, "{transport} dport {is}{port}"),
            Self::PacketMark(is, Mark { value, mask }) => {
                write!(f, "meta mark & {mask:#x} {}{value:#x}", equality(*is))
            }
            Self::ConnectionMark(is, Mark { value, mask }) => {
                write!(f, "ct mark & {mask:#x} {}{value:#x}", equality(*is))
            }
            Self::SocketOwner(uid) => write!(f, "meta skuid {uid}"),
        }
    }
}

fn equality(is: Is) -> &'static str {
    match is {
        Is::Equal => "== ",
        Is::Not => "!= ",
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Accept => f.write_str("accept"),
            Self::Return => f.write_str("return"),
            Self::Redirect(port) => write!(f, "redirect to :{port}"),
            Self::MarkConnection(Mark { value, mask }) => {
                write!(f, "ct mark set ct mark & {:#x} ^ {value:#x}", !mask)
            }
            Self::RestoreMark => f.write_str("meta mark set ct mark"),
            Self::Zone(zone) => write!(f, "ct zone set {zone}"),
            Self::OriginalZone(zone) => write!(f, "ct original zone set {zone}"),
            Self::Snat(address) => write!(f, "snat {} to {address}", ip(Family::of(*address))),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
