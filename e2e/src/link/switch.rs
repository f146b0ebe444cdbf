// SPDX-License-Identifier: Apache-2.0
//! The devices of a link, the routes that lead to them, and the loop that carries packets from one to the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use capture::Netns;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{read, write};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};

use super::DEVICE;
use super::shaper::Shaper;
use super::terms::Terms;
use crate::network::{conversation, index, set};
use crate::state::StateDir;
use crate::topology::{Cluster, Node, POD_PREFIX, Pair, Place};

/// Packets that a device keeps until they are read.
const DEVICE_QUEUE: u32 = 10_000;
/// Packets read from one device before the others get their turn.
const BATCH: usize = 64;
/// New terms and the end are looked for this often.
const LOOK: Duration = Duration::from_millis(50);

/// One end of the link.
struct End {
    place: Place,
    netns: Netns,
    device: OwnedFd,
}

/// A star of three ends, each direction between two of them shaped by itself.
pub(super) struct Switch {
    ends: Vec<End>,
    shapers: Vec<Shaper>,
    started: Instant,
    frame: Vec<u8>,
}

/// Which places there are; the DNS server stays on the wire as it was.
fn places() -> [Place; 3] {
    [
        Place::Node(Node::A),
        Place::Node(Node::B),
        Place::ControlPlane(Cluster::First),
    ]
}

impl Switch {
    pub(super) fn open(state: &StateDir, terms: &Terms) -> Result<Self> {
        let mut ends = Vec::new();
        for place in places() {
            let path = state.netns(&place);
            let netns = Netns::open(&path)
                .with_context(|| format!("no network namespace at {}", path.display()))?;
            let device = capture::tun::create(&netns, DEVICE).with_context(|| {
                format!("cannot make a TUN device in {place:?} (/dev/net/tun must be usable, and no other link at work)")
            })?;
            ends.push(End {
                place,
                netns,
                device,
            });
        }
        let count = ends.len() as u64;
        let switch = Self {
            ends,
            shapers: (0..count * count)
                .map(|direction| Shaper::new(terms, direction))
                .collect(),
            started: Instant::now(),
            frame: vec![0; 64 << 10],
        };
        for end in &switch.ends {
            end.configure(terms.mtu)?;
        }
        for end in &switch.ends {
            end.lead_here()?;
        }
        Ok(switch)
    }

    pub(super) fn change(&mut self, terms: &Terms) -> Result<()> {
        for end in &self.ends {
            end.configure(terms.mtu)?;
        }
        for (direction, shaper) in (0..).zip(&mut self.shapers) {
            shaper.change(terms, direction);
        }
        Ok(())
    }

    /// Waits for what comes next, for a moment at most, and carries it.
    pub(super) fn turn(&mut self) -> Result<()> {
        let next = self.shapers.iter().filter_map(Shaper::next).min();
        let wait = next.map_or(LOOK, |next| {
            next.saturating_sub(self.started.elapsed()).min(LOOK)
        });
        // Rounded down: the last part of a millisecond is spent asking again.
        let wait = PollTimeout::try_from(wait.as_millis()).unwrap_or(PollTimeout::ZERO);
        let mut watched: Vec<PollFd<'_>> = self
            .ends
            .iter()
            .map(|end| PollFd::new(end.device.as_fd(), PollFlags::POLLIN))
            .collect();
        match poll(&mut watched, wait) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for packets"),
        }
        let readable: Vec<bool> = watched.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        for (from, _) in readable.iter().enumerate().filter(|(_, any)| **any) {
            self.take_in(from)?;
        }
        self.give_out()
    }

    fn take_in(&mut self, from: usize) -> Result<()> {
        for _ in 0..BATCH {
            let length = match read(self.ends[from].device.as_fd(), &mut self.frame) {
                Ok(length) => length,
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
                Err(error) => return Err(error).context("cannot read from a device"),
            };
            let packet = &self.frame[..length];
            let Some(to) = destination(packet).and_then(behind) else {
                continue;
            };
            let Some(to) = self.ends.iter().position(|end| end.place == to) else {
                continue;
            };
            let direction = from * self.ends.len() + to;
            self.shapers[direction].offer(self.started.elapsed(), packet.to_vec());
        }
        Ok(())
    }

    fn give_out(&mut self) -> Result<()> {
        let now = self.started.elapsed();
        let count = self.ends.len();
        for (direction, shaper) in self.shapers.iter_mut().enumerate() {
            let end = &self.ends[direction % count];
            while let Some(packet) = shaper.take(now) {
                match write(&end.device, &packet) {
                    // Longer than the device allows since its terms have changed, or no room: lost.
                    Ok(_)
                    | Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINVAL | Errno::EMSGSIZE) => {}
                    Err(error) => return Err(error).context("cannot write to a device"),
                }
            }
        }
        Ok(())
    }
}

/// Where a packet is to go.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => {
            let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        }
        6 => {
            let octets: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// The place that an address lies in or behind.
fn behind(address: IpAddr) -> Option<Place> {
    if Cluster::First.control_plane().both().contains(&address) {
        return Some(Place::ControlPlane(Cluster::First));
    }
    let node = Node::ALL.into_iter().find(|node| {
        node.uplink().both().contains(&address)
            || match address {
                IpAddr::V4(address) => address.octets()[..3] == node.pod_network().v4.octets()[..3],
                IpAddr::V6(address) => {
                    address.segments()[..4] == node.pod_network().v6.segments()[..4]
                }
            }
    });
    node.map(Place::Node)
}

impl End {
    fn configure(&self, mtu: u32) -> Result<()> {
        conversation(&self.netns, async move |link| {
            let device = index(&link, DEVICE).await?;
            let change = LinkUnspec::new_with_index(device)
                .mtu(mtu)
                .txqueuelen(DEVICE_QUEUE)
                .up();
            set(&link, change).await
        })
    }

    /// Routes to the other ends, more specific than those of the lab's own link.
    fn lead_here(&self) -> Result<()> {
        let own = match self.place {
            Place::Node(node) => node.uplink(),
            Place::ControlPlane(cluster) => cluster.control_plane(),
            Place::Resolver | Place::Pod(_) => {
                unreachable!("broken invariant: a link ends at nodes and the control plane")
            }
        };
        let place = self.place.clone();
        conversation(&self.netns, async move |link| {
            let device = index(&link, DEVICE).await?;
            for other in places().into_iter().filter(|other| *other != place) {
                let host = match other {
                    Place::Node(node) => node.uplink(),
                    Place::ControlPlane(cluster) => cluster.control_plane(),
                    Place::Resolver | Place::Pod(_) => {
                        unreachable!("broken invariant: a link ends at nodes and the control plane")
                    }
                };
                route(&link, device, own, host, Width::HOST).await?;
                if let Place::Node(node) = other {
                    for half in halves(node.pod_network()) {
                        route(&link, device, own, half, Width::HALF).await?;
                    }
                }
            }
            Ok(())
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Width {
    v4: u8,
    v6: u8,
}

impl Width {
    const HOST: Self = Self { v4: 32, v6: 128 };
    const HALF: Self = Self {
        v4: POD_PREFIX.v4 + 1,
        v6: POD_PREFIX.v6 + 1,
    };
}

/// The two halves of a pod network.
fn halves(network: Pair) -> [Pair; 2] {
    let upper = Pair {
        v4: Ipv4Addr::from_bits(network.v4.to_bits() | 1 << (31 - POD_PREFIX.v4)),
        v6: Ipv6Addr::from_bits(network.v6.to_bits() | 1 << (127 - POD_PREFIX.v6)),
    };
    [network, upper]
}

async fn route(link: &Handle, device: u32, own: Pair, to: Pair, width: Width) -> Result<()> {
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(to.v4, width.v4)
        .pref_source(own.v4)
        .output_interface(device);
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(to.v6, width.v6)
        .pref_source(own.v6)
        .output_interface(device);
    for message in [v4.build(), v6.build()] {
        link.route()
            .add(message)
            .execute()
            .await
            .with_context(|| format!("cannot lead {} through the link", to.v4))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_behind_their_places() {
        for (address, place) in [
            ("10.77.1.12", Some(Place::Node(Node::A))),
            ("10.77.0.2", Some(Place::Node(Node::B))),
            ("fd77:2::12", Some(Place::Node(Node::B))),
            ("10.77.0.10", Some(Place::ControlPlane(Cluster::First))),
            ("fd77::10", Some(Place::ControlPlane(Cluster::First))),
            ("192.0.2.1", None),
        ] {
            assert_eq!(behind(address.parse().unwrap()), place, "{address}");
        }
    }

    #[test]
    fn a_pod_network_has_two_halves() {
        let [lower, upper] = halves(Node::B.pod_network());
        assert_eq!(lower.v4.to_string(), "10.77.2.0");
        assert_eq!(upper.v4.to_string(), "10.77.2.128");
        assert_eq!(upper.v6.to_string(), "fd77:2:0:0:8000::");
    }

    #[test]
    fn no_packet_is_too_odd_to_be_looked_at() {
        for packet in [&[][..], &[0x45], &[0x60; 39], &[0xff; 60]] {
            let _not_sent = destination(packet);
        }
        let mut packet = [0; 20];
        packet[0] = 0x45;
        packet[16..].copy_from_slice(&[10, 77, 2, 9]);
        assert_eq!(destination(&packet), Some("10.77.2.9".parse().unwrap()));
    }
}
