// SPDX-License-Identifier: Apache-2.0
//! Namespaces, links, addresses and routes of the lab, by rtnetlink: no `ip` is run.
//!
//! Comes in: the map in [`topology`](crate::topology). Goes out: network namespaces, bound to files so that they can be
//! entered by path, joined as the map says. Knows nothing of the mesh.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use capture::Netns;
use futures_util::TryStreamExt as _;
use netlink_packet_route::rule::RuleAction;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rtnetlink::{
    Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
};

use crate::state::StateDir;
use crate::topology::{Layout, Node, POD_PREFIX, Pair, Place, resolver};

/// The bridge of a node that its pods hang on, and the lab's bridge between the nodes.
pub const POD_BRIDGE: &str = "cni0";
const LINK_BRIDGE: &str = "link0";
/// The device by which a node or the control plane reaches the others, and a pod its node.
pub const UPLINK: &str = "eth0";
/// Without one of its own a bridge takes the lowest of its ports' addresses: each new pod may change it, and what others
/// send to the old one is lost.
const GATEWAY_MAC: [u8; 6] = [0x02, 0x4c, 0x41, 0x42, 0, 1];
/// The kernel's usual routing table, and one of the lab's own.
const MAIN: u32 = 254;
const ANSWERS: u32 = 77;
/// Room for thousands of parallel connections from one pod.
const PORT_RANGE: &str = "20000 60999";

/// Builds the nodes and the places of the control planes and the DNS server, joined by a bridge in the namespace of the
/// calling process.
pub fn build(state: &StateDir, layout: Layout) -> Result<()> {
    let here = Netns::current().context("the lab's own network namespace")?;
    settle(&here)?;
    conversation(&here, async |link| {
        link.link()
            .add(LinkBridge::new(LINK_BRIDGE).up().build())
            .execute()
            .await
            .context("the bridge between the nodes")
    })?;
    for node in Node::ALL {
        let netns = create(&state.netns(&Place::Node(node)))?;
        attach_to_link(&here, &netns, &format!("to-{node}"), node.uplink())?;
        configure_node(&netns, node, layout)?;
    }
    for cluster in layout.clusters().iter().copied() {
        let place = Place::ControlPlane(cluster);
        let (device, addresses) = (cluster.file("to-istiod"), cluster.control_plane());
        attach_beside(
            state,
            &here,
            &place,
            &device,
            addresses,
            layout.nodes(cluster),
        )?;
    }
    let (device, addresses) = ("to-resolver", resolver());
    attach_beside(
        state,
        &here,
        &Place::Resolver,
        device,
        addresses,
        &Node::ALL,
    )
}

/// Gives the namespace of the calling process, in which the nodes' bridge stands, a place on it and a loopback.
pub fn join_link(addresses: Pair) -> Result<()> {
    let here = Netns::current().context("the lab's own network namespace")?;
    here.loopback_up()
        .context("cannot bring up the loopback device")?;
    conversation(&here, async move |link| {
        let bridge = index(&link, LINK_BRIDGE).await?;
        address(&link, bridge, addresses).await
    })
}

/// Makes a place on the link that pods of these nodes can be answered from.
fn attach_beside(
    state: &StateDir,
    here: &Netns,
    place: &Place,
    device: &str,
    addresses: Pair,
    nodes: &'static [Node],
) -> Result<()> {
    let netns = create(&state.netns(place))?;
    attach_to_link(here, &netns, device, addresses)?;
    conversation(&netns, async move |link| {
        let uplink = index(&link, UPLINK).await?;
        for node in nodes {
            route_via(&link, Some(node.pod_network()), node.uplink(), uplink, MAIN).await?;
        }
        Ok(())
    })
}

/// Makes a namespace and binds it to a file, so that whoever is in the lab's mount namespace can enter it.
pub fn create(path: &Path) -> Result<Netns> {
    let netns = Netns::create().context("cannot make a network namespace")?;
    File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let source = format!("/proc/self/fd/{}", netns.as_fd().as_raw_fd());
    mount(
        Some(source.as_str()),
        path,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .with_context(|| format!("cannot bind a network namespace to {}", path.display()))?;
    netns
        .loopback_up()
        .context("cannot bring up a loopback device")?;
    settle(&netns)?;
    Ok(netns)
}

/// Unbinds a namespace from its file; the namespace ends with its last process. What is gone already stays gone.
pub fn remove(path: &Path) -> Result<()> {
    if path.exists() {
        // A file that nothing is bound to is left by an interrupted start.
        let _not_bound = umount2(path, MntFlags::MNT_DETACH);
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Gives a pod its device: one end in the pod as eth0, the other on the node's bridge. This is what a primary CNI
/// plugin does; returns the pod device's hardware address.
pub fn attach_pod(
    node: &Netns,
    pod: &Netns,
    host_device: &str,
    addresses: Pair,
    gateway: Pair,
) -> Result<String> {
    let target = pod.as_fd().as_raw_fd();
    let host = host_device.to_owned();
    conversation(node, async move |link| {
        let peer = format!("{host}p");
        link.link()
            .add(LinkVeth::new(&host, &peer).build())
            .execute()
            .await
            .context("a pair of devices")?;
        let bridge = index(&link, POD_BRIDGE).await?;
        let (host, peer) = (index(&link, &host).await?, index(&link, &peer).await?);
        set(
            &link,
            LinkUnspec::new_with_index(host).controller(bridge).up(),
        )
        .await?;
        set(
            &link,
            LinkUnspec::new_with_index(peer)
                .name(UPLINK)
                .setns_by_fd(target),
        )
        .await
    })?;
    conversation(pod, async move |link| {
        let device = index(&link, UPLINK).await?;
        set(&link, LinkUnspec::new_with_index(device).up()).await?;
        address(&link, device, addresses).await?;
        route_via(&link, None, gateway, device, MAIN).await?;
        hardware_address(&link, UPLINK).await
    })
}

/// Removes a pod's device from the node's side; its peer goes with it. Gone already is fine.
pub fn detach_pod(node: &Netns, host_device: &str) -> Result<()> {
    let host = host_device.to_owned();
    conversation(node, async move |link| match index(&link, &host).await {
        Ok(index) => link
            .link()
            .del(index)
            .execute()
            .await
            .context("a pod's device"),
        Err(_) => Ok(()),
    })
}

fn attach_to_link(here: &Netns, target: &Netns, name: &str, addresses: Pair) -> Result<()> {
    let fd = target.as_fd().as_raw_fd();
    let near = name.to_owned();
    conversation(here, async move |link| {
        let far = format!("{near}p");
        link.link()
            .add(LinkVeth::new(&near, &far).build())
            .execute()
            .await
            .with_context(|| format!("the link {near}"))?;
        let bridge = index(&link, LINK_BRIDGE).await?;
        let (near, far) = (index(&link, &near).await?, index(&link, &far).await?);
        set(
            &link,
            LinkUnspec::new_with_index(near).controller(bridge).up(),
        )
        .await?;
        set(
            &link,
            LinkUnspec::new_with_index(far).name(UPLINK).setns_by_fd(fd),
        )
        .await
    })?;
    conversation(target, async move |link| {
        let device = index(&link, UPLINK).await?;
        set(&link, LinkUnspec::new_with_index(device).up()).await?;
        address(&link, device, addresses).await
    })
}

fn configure_node(netns: &Netns, node: Node, layout: Layout) -> Result<()> {
    in_namespace(netns, || {
        sysctl("net/ipv4/ip_forward", "1")?;
        sysctl("net/ipv6/conf/all/forwarding", "1")
    })?;
    conversation(netns, async move |link| {
        link.link()
            .add(
                LinkBridge::new(POD_BRIDGE)
                    .address(GATEWAY_MAC.to_vec())
                    .up()
                    .build(),
            )
            .execute()
            .await
            .context("the pods' bridge")?;
        let bridge = index(&link, POD_BRIDGE).await?;
        address(&link, bridge, node.gateway()).await?;
        let uplink = index(&link, UPLINK).await?;
        let other = node.other();
        let table = match layout {
            Layout::OneCluster => MAIN,
            // The other network's pods are reached only by what answers them from this node's own address: they come
            // to the gateway that listens there, and no pod and nobody else on this node comes to them.
            Layout::TwoNetworks => {
                answer_from(&link, node.uplink()).await?;
                ANSWERS
            }
        };
        let pods = Some(other.pod_network());
        route_via(&link, pods, other.uplink(), uplink, table).await
    })
}

/// Has packets from these addresses routed by the table [`ANSWERS`] first.
async fn answer_from(link: &Handle, addresses: Pair) -> Result<()> {
    let v4 = link.rule().add().v4().source_prefix(addresses.v4, 32);
    let v6 = link.rule().add().v6().source_prefix(addresses.v6, 128);
    let v4 = v4.table_id(ANSWERS).action(RuleAction::ToTable);
    let v6 = v6.table_id(ANSWERS).action(RuleAction::ToTable);
    v4.execute().await.context("cannot add a routing rule")?;
    v6.execute().await.context("cannot add a routing rule")
}

/// The settings every namespace of the lab gets before it has devices.
fn settle(netns: &Netns) -> Result<()> {
    in_namespace(netns, || {
        for family in ["all", "default"] {
            sysctl(&format!("net/ipv6/conf/{family}/disable_ipv6"), "0")?;
            // Addresses are made up without conflicts; waiting a second for a duplicate only slows the start.
            sysctl(&format!("net/ipv6/conf/{family}/accept_dad"), "0")?;
            // The kernel hands the host's setting down; a strict one drops the transparent connections of the proxy.
            sysctl(&format!("net/ipv4/conf/{family}/rp_filter"), "0")?;
        }
        sysctl("net/ipv4/ip_local_port_range", PORT_RANGE)?;
        sysctl("net/ipv4/ip_unprivileged_port_start", "0")?;
        // Pacing congestion controls such as bbr halve the rate of virtual devices.
        sysctl("net/ipv4/tcp_congestion_control", "reno")
    })
}

fn sysctl(name: &str, value: &str) -> Result<()> {
    let path = Path::new("/proc/sys").join(name);
    std::fs::write(&path, value)
        .with_context(|| format!("cannot set {} to `{value}`", path.display()))
}

/// Runs blocking work on a thread inside a namespace.
pub fn in_namespace<T: Send + 'static>(
    netns: &Netns,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let thread = netns
        .spawn_thread_in("netns", work)
        .context("cannot start a thread")?;
    thread
        .join()
        .map_err(|_panic| anyhow!("work in a network namespace panicked"))?
        .context("cannot enter a namespace")?
}

/// Talks rtnetlink with a namespace, on a thread of its own.
pub(crate) fn conversation<T, W>(netns: &Netns, work: W) -> Result<T>
where
    T: Send + 'static,
    W: AsyncFnOnce(Handle) -> Result<T> + Send + 'static,
{
    in_namespace(netns, move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("a runtime")?;
        runtime.block_on(async {
            let (connection, handle, _messages) =
                rtnetlink::new_connection().context("cannot open a netlink socket")?;
            tokio::spawn(connection);
            work(handle).await
        })
    })
}

pub(crate) async fn index(link: &Handle, name: &str) -> Result<u32> {
    let found = link
        .link()
        .get()
        .match_name(name.to_owned())
        .execute()
        .try_next()
        .await;
    let message = found.with_context(|| format!("cannot look up the device {name}"))?;
    Ok(message
        .with_context(|| format!("there is no device {name}"))?
        .header
        .index)
}

async fn hardware_address(link: &Handle, name: &str) -> Result<String> {
    use netlink_packet_route::link::LinkAttribute;
    let found = link
        .link()
        .get()
        .match_name(name.to_owned())
        .execute()
        .try_next()
        .await
        .context("cannot look up a device")?;
    let attributes = found
        .with_context(|| format!("there is no device {name}"))?
        .attributes;
    let bytes = attributes
        .into_iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Address(bytes) => Some(bytes),
            _ => None,
        });
    let octets: Vec<String> = bytes
        .unwrap_or_default()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(octets.join(":"))
}

pub(crate) async fn set(link: &Handle, change: LinkMessageBuilder<LinkUnspec>) -> Result<()> {
    link.link()
        .set(change.build())
        .execute()
        .await
        .context("cannot configure a device")
}

async fn address(link: &Handle, device: u32, addresses: Pair) -> Result<()> {
    for (address, prefix) in prefixes(addresses) {
        let request = link.address().add(device, address, prefix);
        request
            .execute()
            .await
            .with_context(|| format!("cannot add the address {address}"))?;
    }
    Ok(())
}

fn prefixes(addresses: Pair) -> [(IpAddr, u8); 2] {
    [
        (addresses.v4.into(), POD_PREFIX.v4),
        (addresses.v6.into(), POD_PREFIX.v6),
    ]
}

/// Adds a route to a network, or the default route, for both families.
async fn route_via(
    link: &Handle,
    network: Option<Pair>,
    gateway: Pair,
    device: u32,
    table: u32,
) -> Result<()> {
    let mut v4 = RouteMessageBuilder::<Ipv4Addr>::new()
        .gateway(gateway.v4)
        .output_interface(device)
        .table_id(table);
    let mut v6 = RouteMessageBuilder::<Ipv6Addr>::new()
        .gateway(gateway.v6)
        .output_interface(device)
        .table_id(table);
    if let Some(network) = network {
        v4 = v4.destination_prefix(network.v4, POD_PREFIX.v4);
        v6 = v6.destination_prefix(network.v6, POD_PREFIX.v6);
    }
    link.route()
        .add(v4.build())
        .execute()
        .await
        .with_context(|| format!("cannot add a route by {}", gateway.v4))?;
    link.route()
        .add(v6.build())
        .execute()
        .await
        .with_context(|| format!("cannot add a route by {}", gateway.v6))
}
