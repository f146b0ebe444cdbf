// SPDX-License-Identifier: Apache-2.0
//! What the wire of a node carries, by AF_PACKET.
//!
//! Each packet passes several devices of a node; it is taken where it comes in: from a pod's device or from the uplink.
//! So every packet is seen once, also those between two pods of the node. What the node itself sends to its pods
//! (health checks) is taken where it leaves.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use capture::contract::{PROBE_SOURCE_V4, PROBE_SOURCE_V6};
use nix::net::if_::{Interface, if_nameindex};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket,
    sockopt,
};
use serde::{Deserialize, Serialize};

use crate::link;
use crate::network::{self, POD_BRIDGE};
use crate::topology::Node;
use crate::wire::{self, Packet, RST, Records, SYN};

/// The port of the tunnel.
pub const TUNNEL_PORT: u16 = capture::contract::INBOUND_HBONE_PORT;

/// What was seen, by conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    pub packets: u64,
    pub flows: Vec<Flow>,
}

/// One direction of one conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub packets: u64,
    pub bytes: u64,
    /// Its beginning was seen.
    pub opened: bool,
    pub reset: bool,
    /// Nothing but TLS records were seen.
    pub tls: bool,
    pub tls_records: u64,
    /// The text that was looked for was seen.
    pub marker: bool,
    /// What the first payload is, in words.
    pub first: String,
}

impl Traffic {
    /// Conversations in which a text stood in the clear.
    pub fn with_marker(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter().filter(|flow| flow.marker)
    }

    /// Conversations between two hosts, in either direction.
    pub fn between(&self, a: IpAddr, b: IpAddr) -> impl Iterator<Item = &Flow> {
        self.flows.iter().filter(move |flow| {
            let pair = (flow.source.ip(), flow.destination.ip());
            pair == (a, b) || pair == (b, a)
        })
    }
}

impl Flow {
    /// One end is the tunnel port of a pod.
    pub fn is_tunnel(&self) -> bool {
        self.source.port() == TUNNEL_PORT || self.destination.port() == TUNNEL_PORT
    }

    /// Bytes to or from one of the servers' own ports: there is no tunnel around them. A node's health checks are none
    /// of these, they have to be plain.
    pub fn is_in_the_clear(&self) -> bool {
        let own = |address: SocketAddr| matches!(address.port(), 8080 | 9000..=9003);
        let checks = |address: IpAddr| {
            address == IpAddr::from(PROBE_SOURCE_V4)
                || address == IpAddr::from(PROBE_SOURCE_V6)
                || Node::ALL
                    .iter()
                    .any(|node| node.gateway().both().contains(&address))
        };
        let of_node = checks(self.source.ip()) || checks(self.destination.ip());
        self.bytes > 0 && !of_node && (own(self.source) || own(self.destination))
    }
}

/// When to stop.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    pub packets: Option<u64>,
    pub time: Option<Duration>,
}

/// How packets are shown as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// A line for each packet that carries something or begins or ends a conversation.
    Packets,
    /// The same as JSON objects.
    PacketsAsJson,
    /// Nothing until the end.
    Nothing,
}

/// A packet as it is shown.
#[derive(Debug, Serialize)]
struct Line<'a> {
    seconds: f64,
    device: &'a str,
    source: SocketAddr,
    destination: SocketAddr,
    flags: String,
    bytes: usize,
    what: String,
}

/// An open capture.
pub struct Capture {
    socket: OwnedFd,
    devices: BTreeMap<usize, String>,
    /// Addresses from which the node itself speaks to its pods.
    own: Vec<IpAddr>,
    marker: Option<Vec<u8>>,
    flows: BTreeMap<(SocketAddr, SocketAddr), Following>,
    packets: u64,
}

#[derive(Default)]
struct Following {
    flow: Option<Flow>,
    records: Records,
    /// The end of what came before, so that a text cut in two is found.
    tail: Vec<u8>,
}

/// A GSO segment may be far longer than the link's unit.
const LONGEST_FRAME: usize = 256 << 10;

impl Capture {
    /// Opens a capture in the namespace of the calling process. From its return on nothing is missed.
    pub fn open(node: Node, marker: Option<&str>) -> Result<Self> {
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthAll,
        )
        .context("cannot open a packet socket; it takes CAP_NET_RAW")?;
        // Where the limit is lower, the kernel gives what it may.
        setsockopt(&socket, sockopt::RcvBuf, &(8 << 20)).context("the capture's buffer")?;
        let mut capture = Self {
            socket,
            devices: BTreeMap::new(),
            own: node
                .gateway()
                .both()
                .into_iter()
                .chain([PROBE_SOURCE_V4.into(), PROBE_SOURCE_V6.into()])
                .collect(),
            marker: marker.map(|text| text.as_bytes().to_vec()),
            flows: BTreeMap::new(),
            packets: 0,
        };
        capture.learn_devices()?;
        Ok(capture)
    }

    fn learn_devices(&mut self) -> Result<()> {
        let found = if_nameindex().context("cannot list devices")?;
        let known = |device: &Interface| {
            Some((
                usize::try_from(device.index()).ok()?,
                device.name().to_string_lossy().into_owned(),
            ))
        };
        self.devices = found.iter().filter_map(known).collect();
        Ok(())
    }

    /// Takes packets until a limit is reached, or the input given as `until` ends; then reads what is still queued.
    pub fn run(
        &mut self,
        limits: Limits,
        show: Show,
        until: Option<&OwnedFd>,
        out: &mut impl Write,
    ) -> Result<()> {
        let started = Instant::now();
        let mut frame = vec![0; LONGEST_FRAME];
        let mut ending = None;
        while ending.is_none_or(|deadline| Instant::now() < deadline)
            && limits.packets.is_none_or(|most| self.packets < most)
        {
            while limits.packets.is_none_or(|most| self.packets < most)
                && self.take_one(&mut frame, started, show, out)?
            {}
            let mut watched = vec![PollFd::new(
                std::os::fd::AsFd::as_fd(&self.socket),
                PollFlags::POLLIN,
            )];
            if let Some(input) = until.filter(|_| ending.is_none()) {
                watched.push(PollFd::new(
                    std::os::fd::AsFd::as_fd(input),
                    PollFlags::POLLIN,
                ));
            }
            poll(&mut watched, PollTimeout::from(50_u16)).context("cannot wait for packets")?;
            let told = watched.get(1).and_then(PollFd::any).unwrap_or(false);
            let over = limits.time.is_some_and(|time| started.elapsed() >= time);
            if ending.is_none() && (told || over) {
                // The last packets may still be on their way through the node.
                ending = Some(
                    Instant::now()
                        + if told {
                            Duration::from_millis(150)
                        } else {
                            Duration::ZERO
                        },
                );
            }
        }
        Ok(())
    }

    /// Takes one packet if there is one.
    fn take_one(
        &mut self,
        frame: &mut [u8],
        started: Instant,
        show: Show,
        out: &mut impl Write,
    ) -> Result<bool> {
        let (length, from) = match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), frame) {
            Ok(received) => received,
            Err(nix::errno::Errno::EAGAIN) => return Ok(false),
            Err(nix::errno::Errno::ENETDOWN | nix::errno::Errno::EINTR) => return Ok(true),
            Err(error) => return Err(error).context("cannot read packets"),
        };
        let Some(from) = from else { return Ok(true) };
        if !self.devices.contains_key(&from.ifindex()) {
            // A device that came with a new pod.
            self.learn_devices()?;
        }
        let device = self
            .devices
            .get(&from.ifindex())
            .cloned()
            .unwrap_or_default();
        let frame = &frame[..length.min(frame.len())];
        let packet = match from.hatype() {
            NO_FRAMES => wire::parse_bare(frame),
            _ => wire::parse(frame),
        };
        let Some(packet) = packet else {
            return Ok(true);
        };
        if !self.is_the_place_to_look(&device, from.pkttype(), packet.source.ip()) {
            return Ok(true);
        }
        self.packets += 1;
        let (telling, what) = self.note(&packet);
        if telling {
            let line = Line {
                seconds: started.elapsed().as_secs_f64(),
                device: &device,
                source: packet.source,
                destination: packet.destination,
                flags: packet.segment.flags(),
                bytes: packet.payload.len(),
                what,
            };
            line.print(show, out)?;
        }
        Ok(true)
    }

    /// A packet is taken where it enters the node, or where the node's own packets leave towards pods.
    fn is_the_place_to_look(&self, device: &str, packet_type: u8, source: IpAddr) -> bool {
        match packet_type {
            TO_HOST | TO_OTHER => {
                device.starts_with("pod") || [network::UPLINK, link::DEVICE].contains(&device)
            }
            OUTGOING => device == POD_BRIDGE && self.own.contains(&source),
            _ => false,
        }
    }

    /// Adds a packet to its conversation; tells whether it is worth a line, and what it is.
    fn note(&mut self, packet: &Packet<'_>) -> (bool, String) {
        let following = self
            .flows
            .entry((packet.source, packet.destination))
            .or_default();
        let new = following.records.take(packet.segment, packet.payload);
        let flow = following.flow.get_or_insert_with(|| Flow {
            source: packet.source,
            destination: packet.destination,
            packets: 0,
            bytes: 0,
            opened: false,
            reset: false,
            tls: false,
            tls_records: 0,
            marker: false,
            first: String::new(),
        });
        flow.packets += 1;
        flow.bytes += new.len() as u64;
        flow.opened |= packet.segment.has(SYN);
        flow.reset |= packet.segment.has(RST);
        flow.tls = following.records.is_tls();
        flow.tls_records = following.records.application + following.records.handshake;
        let what = wire::describe(packet.payload);
        if flow.first.is_empty() {
            flow.first.clone_from(&what);
        }
        if let Some(marker) = &self.marker {
            following.tail.extend_from_slice(new);
            flow.marker |= contains(&following.tail, marker);
            let keep = following.tail.len().min(marker.len().saturating_sub(1));
            following.tail.drain(..following.tail.len() - keep);
        }
        let telling = !packet.payload.is_empty() || packet.segment.has(SYN | RST | wire::FIN);
        (telling, what)
    }

    /// All that was seen.
    pub fn traffic(self) -> Traffic {
        let flows = self
            .flows
            .into_values()
            .filter_map(|following| following.flow)
            .collect();
        Traffic {
            packets: self.packets,
            flows,
        }
    }
}

impl Line<'_> {
    fn print(&self, show: Show, out: &mut impl Write) -> Result<()> {
        match show {
            Show::Nothing => Ok(()),
            Show::PacketsAsJson => {
                let text = serde_json::to_string(self)?;
                writeln!(out, "{text}")
                    .and_then(|()| out.flush())
                    .context("output")
            }
            Show::Packets => {
                let what = if self.what.is_empty() {
                    &self.flags
                } else {
                    &self.what
                };
                let (source, destination) = (self.source.to_string(), self.destination.to_string());
                writeln!(
                    out,
                    "{:9.4}  {:<7} {source:>22} → {destination:<22} {what}",
                    self.seconds, self.device
                )
                .and_then(|()| out.flush())
                .context("output")
            }
        }
    }
}

/// The `sll_hatype` of devices whose packets have nothing around them (ARPHRD_NONE).
const NO_FRAMES: u16 = 0xfffe;

/// Values of `sll_pkttype`: for this host, seen as addressed to another, sent by this host.
const TO_HOST: u8 = 0;
const TO_OTHER: u8 = 3;
const OUTGOING: u8 = 4;

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    !text.is_empty() && memchr::memmem::find(bytes, text).is_some()
}
