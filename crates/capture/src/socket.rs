// SPDX-License-Identifier: Apache-2.0
//! Sockets inside a pod: where a captured connection wanted to go, listeners that capture rules lead to, and connectors
//! that the rules leave alone.
//!
//! Only making and binding a socket happens inside the pod's namespace; everything later runs on the caller's thread
//! where it is.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::contract::{BORROWED_SOURCE_MARK, PACKET_MARK};
use crate::netns::Netns;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Where a redirected connection wanted to go. A connection that was not redirected yields the address it reached.
pub fn original_dst(socket: &impl AsFd) -> io::Result<SocketAddr> {
    let socket = SockRef::from(socket);
    let local = canonical(&socket.local_addr()?)?;
    // A dual-stack socket carries both families; conntrack keeps each under its own option.
    let original = match local {
        SocketAddr::V4(_) => socket.original_dst_v4()?,
        SocketAddr::V6(_) => socket.original_dst_v6()?,
    };
    canonical(&original)
}

fn canonical(address: &SockAddr) -> io::Result<SocketAddr> {
    let address = address
        .as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an IP socket"))?;
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Whether sockets of a namespace may speak from addresses that are not its own: needs CAP_NET_ADMIN or CAP_NET_RAW.
///
/// # Errors
/// The kernel's, where they may not.
pub fn may_borrow_sources(netns: &Netns) -> io::Result<()> {
    netns.enter(|| set_transparent(&tcp(Ipv4Addr::UNSPECIFIED.into())?, true))?
}

/// What a listener in a pod is like.
#[derive(Debug, Clone, Copy)]
pub struct ListenOptions {
    /// Mark of the packets of every accepted connection.
    pub mark: Option<u32>,
    /// Lets an old and a new process listen on the port at the same time.
    pub reuse_port: bool,
    /// Serve IPv6 too, where the kernel has it.
    pub v6: bool,
}

/// Listens on all addresses of a pod, or of its loopback with [`listen_at`]. The socket is non-blocking.
pub fn listen(netns: &Netns, port: u16, options: ListenOptions) -> io::Result<TcpListener> {
    if options.v6 {
        match listen_at(
            netns,
            SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
            options,
        ) {
            Err(error) if no_ipv6(&error) => {}
            other => return other,
        }
    }
    listen_at(
        netns,
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
        options,
    )
}

/// Listens on one address inside a namespace; the IPv6 wildcard serves IPv4 as well.
///
/// The listener is not transparent, and needs not be, since what is redirected comes to an address of the pod. It must
/// not: two connections from one port of a client to two ports of the pod are the same to a socket here until
/// translation gives the younger one another source port, and for transparent sockets the kernel keeps to the one that
/// it found before (`nf_nat_ipv4_local_in`), so that the younger one is never answered.
pub fn listen_at(
    netns: &Netns,
    address: SocketAddr,
    options: ListenOptions,
) -> io::Result<TcpListener> {
    let socket = netns.enter(|| -> io::Result<_> {
        let socket = tcp(address.ip())?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        // A restarted process finds its old connections in TIME_WAIT on this port.
        socket.set_reuse_address(true)?;
        if options.reuse_port {
            socket.set_reuse_port(true)?;
        }
        if let Some(mark) = options.mark {
            socket.set_mark(mark)?;
        }
        socket.bind(&address.into())?;
        Ok(socket)
    })??;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A socket to connect with from inside a namespace, non-blocking. `bind` makes it speak from that address, which may
/// belong to somebody else ([`may_borrow_sources`]): its mark says so ([`BORROWED_SOURCE_MARK`]).
pub fn tcp_socket(
    netns: &Netns,
    family: Domain,
    mark: Option<u32>,
    bind: Option<IpAddr>,
) -> io::Result<Socket> {
    netns.enter(|| {
        let socket = Socket::new(
            family,
            Type::STREAM.nonblocking().cloexec(),
            Some(Protocol::TCP),
        )?;
        socket.set_tcp_nodelay(true)?;
        if let Some(mark) = mark {
            socket.set_mark(match bind {
                Some(_) => mark | BORROWED_SOURCE_MARK.value & !PACKET_MARK.mask,
                None => mark,
            })?;
        }
        if let Some(address) = bind {
            set_transparent(&socket, true)?;
            // The port is chosen at connect, so that one source may hold one port towards many destinations.
            setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
            socket.bind(&SocketAddr::new(address, 0).into())?;
        }
        Ok(socket)
    })?
}

/// A UDP socket on one address inside a namespace, non-blocking.
pub fn udp_at(
    netns: &Netns,
    address: SocketAddr,
    mark: Option<u32>,
    reuse_port: bool,
) -> io::Result<UdpSocket> {
    let socket = netns.enter(|| -> io::Result<_> {
        let socket = udp(address.ip())?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if reuse_port {
            socket.set_reuse_port(true)?;
        }
        if let Some(mark) = mark {
            socket.set_mark(mark)?;
        }
        socket.bind(&address.into())?;
        Ok(socket)
    })??;
    Ok(socket.into())
}

/// A UDP socket of a namespace, non-blocking, that speaks with `peer` alone from a port that the kernel draws.
pub fn udp_towards(netns: &Netns, peer: SocketAddr, mark: Option<u32>) -> io::Result<UdpSocket> {
    let socket = netns.enter(|| udp(peer.ip()))??;
    if let Some(mark) = mark {
        socket.set_mark(mark)?;
    }
    socket.connect(&peer.into())?;
    Ok(socket.into())
}

/// The socket domain that reaches an address.
pub fn domain_of(address: IpAddr) -> Domain {
    match address {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    }
}

/// Takes from a listener that another process has made what [`listen_at`] does not give.
pub fn make_plain(listener: &impl AsFd) -> io::Result<()> {
    SockRef::from(listener).set_ip_transparent_v4(false)
}

/// Marks the packets of a socket.
pub fn set_mark(socket: &impl AsFd, mark: u32) -> io::Result<()> {
    SockRef::from(socket).set_mark(mark)
}

/// What every connection that a listener accepts has from its beginning, without a call for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    pub keepalive: Option<Keepalive>,
    /// See [`set_user_timeout`].
    pub user_timeout: Option<Duration>,
    pub on_close: OnClose,
}

/// What the peer sees when a socket is closed that nobody has shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnClose {
    /// FIN: the end of all there was.
    Fin,
    /// RST, also if the process is killed: nobody takes it for an answer.
    Reset,
}

/// Sets a listener's connections up; those that wait to be accepted already stay as they are.
///
/// # Errors
/// Those of the kernel; times that it does not take are left at its own, since connections without are better than none.
pub fn set_accepted(listener: &impl AsFd, accepted: Accepted) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_tcp_nodelay(true)?;
    if let Some(keepalive) = accepted.keepalive {
        let _ = set_keepalive(listener, keepalive);
    }
    if let Some(limit) = accepted.user_timeout {
        let _ = set_user_timeout(listener, limit);
    }
    if accepted.on_close == OnClose::Reset {
        socket.set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}

/// Connects. Within one machine a connection stands as soon as the call returns, and nobody waits for it.
///
/// # Errors
/// Those of the connection; the caller bounds the time.
pub fn start_connecting(socket: &Socket, to: SocketAddr) -> io::Result<Connecting> {
    match socket.connect(&to.into()) {
        Ok(()) => Ok(Connecting::Done),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            // Whoever has no peer yet has not been answered; or was refused, which the first readiness tells.
            Ok(match socket.peer_addr() {
                Ok(_) => Connecting::Done,
                Err(_) => Connecting::UntilWritable,
            })
        }
        Err(error) => Err(error),
    }
}

/// How far [`start_connecting`] has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connecting {
    Done,
    /// Once it is writable, the socket's pending error says what became of it.
    UntilWritable,
}

/// How a connection notices that its peer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    pub idle: Duration,
    pub interval: Duration,
    pub probes: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(180),
            interval: Duration::from_secs(180),
            probes: 9,
        }
    }
}

impl Keepalive {
    /// The time after which unacknowledged data means the same as unanswered probes.
    pub fn user_timeout(&self) -> Duration {
        self.idle + self.interval * self.probes
    }
}

/// Probes an idle peer.
pub fn set_keepalive(socket: &impl AsFd, keepalive: Keepalive) -> io::Result<()> {
    SockRef::from(socket).set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(keepalive.idle)
            .with_interval(keepalive.interval)
            .with_retries(keepalive.probes),
    )
}

/// Gives up on a peer that acknowledges nothing for this long.
pub fn set_user_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(Some(timeout))
}

fn tcp(family: IpAddr) -> io::Result<Socket> {
    Socket::new(
        domain_of(family),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )
}

fn udp(family: IpAddr) -> io::Result<Socket> {
    Socket::new(
        domain_of(family),
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )
}

/// On Linux the IPv4 option sets the one flag that both families look at.
fn set_transparent(socket: &Socket, transparent: bool) -> io::Result<()> {
    socket.set_ip_transparent_v4(transparent)
}

/// Whether a socket could not be had because its namespace has no IPv6.
pub fn no_ipv6(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}
