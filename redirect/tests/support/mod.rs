// SPDX-License-Identifier: Apache-2.0
//! A node and a pod as network namespaces, joined by a veth pair. Needs root, or a user namespace of one's own.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use capture::Netns;
use capture::contract::PACKET_MARK;
use capture::socket::{self, ListenOptions};
use netlink_packet_route::address::{AddressAttribute, AddressFlags};
use redirect::rules::Family;
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

pub(crate) struct Pair {
    pub(crate) node: Netns,
    pub(crate) pod: Netns,
}

pub(crate) fn node_ip(family: Family) -> IpAddr {
    match family {
        Family::V4 => "10.77.0.1".parse().unwrap(),
        Family::V6 => "fd77::1".parse().unwrap(),
    }
}

pub(crate) fn pod_ip(family: Family) -> IpAddr {
    match family {
        Family::V4 => "10.77.0.2".parse().unwrap(),
        Family::V6 => "fd77::2".parse().unwrap(),
    }
}

pub(crate) fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => "127.0.0.1".parse().unwrap(),
        Family::V6 => "::1".parse().unwrap(),
    }
}

impl Pair {
    pub(crate) fn new() -> Self {
        let create = || {
            let netns = Netns::create()
                .expect("creating a network namespace needs root, or `unshare -Urnm`");
            netns.loopback_up().unwrap();
            // A link-local address is unusable while duplicates are looked for, and with it the neighbour discovery
            // for packets whose source has been rewritten.
            let no_dad = || std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            netns
                .spawn_thread_in("no-dad", no_dad)
                .unwrap()
                .join()
                .unwrap()
                .unwrap()
                .unwrap();
            netns
        };
        let pair = Self {
            node: create(),
            pod: create(),
        };
        let pod_fd = std::os::fd::AsFd::as_fd(&pair.pod)
            .try_clone_to_owned()
            .unwrap();
        talk(&pair.node, async move |handle| {
            handle
                .link()
                .add(LinkVeth::new("pod", "eth0").build())
                .execute()
                .await
                .unwrap();
            let peer = index(&handle, "eth0").await;
            let moved = LinkUnspec::new_with_index(peer)
                .setns_by_fd(pod_fd.as_raw_fd())
                .build();
            handle.link().set(moved).execute().await.unwrap();
            join(&handle, "pod", node_ip).await;
        });
        talk(&pair.pod, async |handle| {
            join(&handle, "eth0", pod_ip).await;
            for family in FAMILIES {
                let route = match node_ip(family) {
                    IpAddr::V4(via) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(via).build(),
                    IpAddr::V6(via) => RouteMessageBuilder::<Ipv6Addr>::new().gateway(via).build(),
                };
                handle.route().add(route).execute().await.unwrap();
            }
        });
        pair
    }

    /// Gives the node one more address.
    pub(crate) fn add_node_address(&self, address: IpAddr) {
        talk(&self.node, async move |handle| {
            add_address(&handle, "pod", address, host_bits(address)).await
        });
    }
}

fn host_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

async fn join(handle: &Handle, interface: &str, ip: fn(Family) -> IpAddr) {
    for family in FAMILIES {
        let prefix = match family {
            Family::V4 => 24,
            Family::V6 => 64,
        };
        add_address(handle, interface, ip(family), prefix).await;
    }
    let up = LinkUnspec::new_with_index(index(handle, interface).await)
        .up()
        .build();
    handle.link().set(up).execute().await.unwrap();
}

async fn add_address(handle: &Handle, interface: &str, address: IpAddr, prefix: u8) {
    let mut request = handle
        .address()
        .add(index(handle, interface).await, address, prefix);
    if address.is_ipv6() {
        // Detecting duplicates takes a second.
        request
            .message_mut()
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    request.execute().await.unwrap();
}

async fn index(handle: &Handle, name: &str) -> u32 {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    futures_util::TryStreamExt::try_next(&mut links)
        .await
        .unwrap()
        .unwrap()
        .header
        .index
}

pub(crate) fn talk(netns: &Netns, conversation: impl AsyncFnOnce(Handle) + Send + 'static) {
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            let connection = tokio::spawn(connection);
            conversation(handle).await;
            connection.abort();
        });
    };
    netns
        .spawn_thread_in("talk", work)
        .unwrap()
        .join()
        .unwrap()
        .unwrap();
}

/// A listener of ztunnel: marked.
pub(crate) fn proxy(netns: &Netns, port: u16) -> TcpListener {
    let options = ListenOptions {
        mark: Some(PACKET_MARK.value),
        reuse_port: true,
        v6: true,
    };
    socket::listen(netns, port, options).unwrap()
}

/// A listener of an application.
pub(crate) fn application(netns: &Netns, port: u16) -> TcpListener {
    let options = ListenOptions {
        mark: None,
        reuse_port: false,
        v6: true,
    };
    socket::listen(netns, port, options).unwrap()
}

pub(crate) fn connect(netns: &Netns, to: SocketAddr) -> std::io::Result<TcpStream> {
    netns
        .enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(2)))
        .unwrap()
}

/// Connects from a given port, which may be in use towards others.
pub(crate) fn connect_from_port(
    netns: &Netns,
    port: u16,
    to: SocketAddr,
) -> std::io::Result<TcpStream> {
    let socket = socket::tcp_socket(netns, socket::domain_of(to.ip()), None, None)?;
    socket.set_nonblocking(false)?;
    socket.set_reuse_address(true)?;
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    socket.bind(&SocketAddr::new(any, port).into())?;
    socket.connect_timeout(&to.into(), Duration::from_secs(2))?;
    Ok(socket.into())
}

/// Connects as ztunnel does: marked, and from a given address.
pub(crate) fn connect_marked(netns: &Netns, to: SocketAddr, from: Option<IpAddr>) -> TcpStream {
    let domain = socket::domain_of(to.ip());
    let socket = socket::tcp_socket(netns, domain, Some(PACKET_MARK.value), from).unwrap();
    socket.set_nonblocking(false).unwrap();
    socket
        .connect_timeout(&to.into(), Duration::from_secs(2))
        .unwrap();
    socket.into()
}

/// The next connection, or a failure that says who waited in vain.
pub(crate) fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(false).unwrap();
                return (
                    stream,
                    SocketAddr::new(peer.ip().to_canonical(), peer.port()),
                );
            }
            Err(error)
                if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < deadline =>
            {
                std::thread::park_timeout(Duration::from_millis(2));
            }
            Err(error) => panic!("nobody came to {}: {error}", listener.local_addr().unwrap()),
        }
    }
}

pub(crate) fn assert_nobody_came(listener: &TcpListener) {
    assert!(
        listener.accept().is_err(),
        "somebody came to {}",
        listener.local_addr().unwrap()
    );
}

/// Bytes travel both ways.
pub(crate) fn assert_talk(a: &mut TcpStream, b: &mut TcpStream) {
    for stream in [&*a, &*b] {
        stream
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
    }
    let mut bytes = [0; 4];
    a.write_all(b"ping").unwrap();
    b.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"ping");
    b.write_all(b"pong").unwrap();
    a.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"pong");
}
