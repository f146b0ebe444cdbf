// SPDX-License-Identifier: Apache-2.0
//! Tries on this very kernel what capture needs: two fresh network namespaces, a node's and a pod's, the rules that a pod
//! of the mesh gets, and real connections. Nothing of the node is touched, and nothing is left. Blocking.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use capture::Netns;
use capture::contract::PACKET_MARK;
use capture::socket::{self, ListenOptions, original_dst};
use futures_util::TryStreamExt;
use netlink_packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::{Handle, LinkUnspec, LinkVeth};

use crate::plan::{Dns, Families, Inbound, PodOptions, pod_plan};
use crate::program;
use crate::rules::Family;

/// More than any kernel needs for a connection within itself.
const PATIENCE: Duration = Duration::from_secs(2);
const OUTBOUND: u16 = 15001;
const PLAINTEXT: u16 = 15006;
const APPLICATION: u16 = 8080;
const POD_LINK: &str = "eth0";

/// What is tried, in this order; each needs those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Namespaces,
    Link,
    Rules,
    Outbound,
    Inbound,
    Source,
}

/// What did not work, and the kernel's word.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct Failed {
    pub step: Step,
    pub cause: String,
}

/// Tries all of it for one family.
///
/// # Errors
/// The first step that fails.
pub fn run(family: Family) -> Result<(), Failed> {
    let at = |step: Step| move |cause: String| Failed { step, cause };
    let (node, pod) = namespaces().map_err(|error| at(Step::Namespaces)(error.to_string()))?;
    join(&node, &pod, family).map_err(at(Step::Link))?;
    let options = PodOptions {
        families: match family {
            Family::V4 => Families::V4,
            Family::V6 => Families::Dual,
        },
        inbound: Inbound::Captured,
        dns: Dns::Captured,
        outbound_interfaces: Vec::new(),
    };
    program::apply(&pod, &pod_plan(&options))
        .map_err(|error| at(Step::Rules)(error.to_string()))?;

    let proxy = |port| listen(&pod, port, Some(PACKET_MARK.value));
    let far = SocketAddr::new(node_ip(family), APPLICATION);
    let near = SocketAddr::new(pod_ip(family), APPLICATION);
    captured(&pod, far, &proxy(OUTBOUND).map_err(at(Step::Outbound))?)
        .map_err(at(Step::Outbound))?;
    captured(&node, near, &proxy(PLAINTEXT).map_err(at(Step::Inbound))?)
        .map_err(at(Step::Inbound))?;
    borrowed(&pod, near, node_ip(family)).map_err(at(Step::Source))
}

/// A connection from `netns` to `to` ends at `proxy`, which learns where it was meant to go.
fn captured(netns: &Netns, to: SocketAddr, proxy: &TcpListener) -> Result<(), String> {
    let connecting = netns.enter(|| TcpStream::connect_timeout(&to, PATIENCE));
    let _client = connecting
        .and_then(|connected| connected)
        .map_err(|error| format!("connecting to {to}: {error}"))?;
    let (served, _) = accept(proxy)?;
    let meant = original_dst(&served).map_err(|error| format!("original destination: {error}"))?;
    match meant == to {
        true => Ok(()),
        false => Err(format!(
            "the original destination is {meant} instead of {to}"
        )),
    }
}

/// An application in the pod sees the address of a far peer, from which ztunnel speaks to it, and can answer.
fn borrowed(pod: &Netns, to: SocketAddr, peer: IpAddr) -> Result<(), String> {
    let application = listen(pod, to.port(), None)?;
    let connect = || -> io::Result<TcpStream> {
        let domain = socket::domain_of(to.ip());
        let socket = socket::tcp_socket(pod, domain, Some(PACKET_MARK.value), Some(peer))?;
        socket.set_nonblocking(false)?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        Ok(socket.into())
    };
    let _client = connect().map_err(|error| format!("connecting from {peer} to {to}: {error}"))?;
    let (_, seen) = accept(&application)?;
    match seen == peer {
        true => Ok(()),
        false => Err(format!("the application sees {seen} instead of {peer}")),
    }
}

fn listen(netns: &Netns, port: u16, mark: Option<u32>) -> Result<TcpListener, String> {
    let options = ListenOptions {
        mark,
        reuse_port: false,
        v6: true,
    };
    socket::listen(netns, port, options).map_err(|error| format!("listening on {port}: {error}"))
}

fn accept(listener: &TcpListener) -> Result<(TcpStream, IpAddr), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => return Ok((stream, peer.ip().to_canonical())),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(format!("accepting: {error}"));
            }
            Err(_) if Instant::now() > deadline => {
                return Err("the connection did not come to where it is redirected".to_owned());
            }
            Err(_) => std::thread::park_timeout(Duration::from_millis(1)),
        }
    }
}

fn node_ip(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(198, 51, 100, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    }
}

fn pod_ip(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(198, 51, 100, 2).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2).into(),
    }
}

fn namespaces() -> io::Result<(Netns, Netns)> {
    let (node, pod) = (Netns::create()?, Netns::create()?);
    node.loopback_up()?;
    pod.loopback_up()?;
    Ok((node, pod))
}

/// Joins the two by a link on which each has an address.
fn join(node: &Netns, pod: &Netns, family: Family) -> Result<(), String> {
    let fd = pod
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| error.to_string())?;
    talk(node, async move |handle| {
        let veth = LinkVeth::new("pod", POD_LINK).build();
        handle.link().add(veth).execute().await?;
        let moved = LinkUnspec::new_with_index(index(&handle, POD_LINK).await?)
            .setns_by_fd(fd.as_raw_fd())
            .build();
        handle.link().set(moved).execute().await?;
        bring_up(&handle, "pod", node_ip(family)).await
    })?;
    talk(pod, async move |handle| {
        bring_up(&handle, POD_LINK, pod_ip(family)).await
    })
}

async fn bring_up(handle: &Handle, link: &str, ip: IpAddr) -> Result<(), rtnetlink::Error> {
    let index = index(handle, link).await?;
    let prefix = if ip.is_ipv4() { 24 } else { 64 };
    let mut request = handle.address().add(index, ip, prefix);
    if ip.is_ipv6() {
        // Detecting duplicates takes a second.
        let flags = AddressAttribute::Flags(AddressFlags::Nodad);
        request.message_mut().attributes.push(flags);
    }
    request.execute().await?;
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await
}

async fn index(handle: &Handle, link: &str) -> Result<u32, rtnetlink::Error> {
    let mut links = handle.link().get().match_name(link.to_owned()).execute();
    let found = links.try_next().await?;
    found
        .map(|link| link.header.index)
        .ok_or(rtnetlink::Error::RequestFailed)
}

/// Talks rtnetlink with a namespace.
fn talk(
    netns: &Netns,
    conversation: impl AsyncFnOnce(Handle) -> Result<(), rtnetlink::Error> + Send + 'static,
) -> Result<(), String> {
    let work = move || -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let (connection, handle, _) =
                rtnetlink::new_connection().map_err(|error| error.to_string())?;
            let connection = tokio::spawn(connection);
            let done = conversation(handle).await;
            connection.abort();
            done.map_err(|error| error.to_string())
        })
    };
    let thread = netns.spawn_thread_in("canary", work);
    let thread = thread.map_err(|error| error.to_string())?;
    let done = thread.join().map_err(|_| "the visit panicked".to_owned())?;
    done.map_err(|error| error.to_string())?
}
