// SPDX-License-Identifier: Apache-2.0
//! The listeners of a pod: which there are, how they listen, what their connections are like.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use capture::Netns;
use capture::contract::{INBOUND_HBONE_PORT, INBOUND_PLAINTEXT_PORT, OUTBOUND_PORT, SOCKS5_PORT};
use capture::socket::{Accepted, ListenOptions, OnClose};

use super::connect::keepalive;
use crate::config::{InPod, Ipv6, PortReuse, Socks5, Tcp};
use crate::record::Reporter;

/// Which of a pod's listeners took a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entrance {
    Outbound,
    Hbone,
    Plaintext,
    Socks5,
}

impl Entrance {
    /// Those that are open, in the order of their opening.
    pub(super) fn all(socks5: Socks5) -> &'static [Self] {
        match socks5 {
            Socks5::On => &[Self::Hbone, Self::Plaintext, Self::Outbound, Self::Socks5],
            Socks5::Off => &[Self::Hbone, Self::Plaintext, Self::Outbound],
        }
    }

    pub(super) fn listen(self, netns: &Netns, inpod: &InPod) -> io::Result<TcpListener> {
        let options = listen_options(inpod);
        if self != Self::Socks5 {
            return capture::socket::listen(netns, self.port(), options);
        }
        // For the pod itself alone, whose connections have no address but this to have been meant for.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()));
        let options = ListenOptions {
            v6: false,
            ..options
        };
        capture::socket::listen_at(netns, address, options)
    }

    /// What its connections are like.
    pub(super) fn accepted(self, tcp: &Tcp) -> Accepted {
        Accepted {
            keepalive: tcp.keepalive.map(keepalive),
            user_timeout: tcp.user_timeout,
            on_close: match self {
                // A tunnel says by itself when it ends in order.
                Self::Hbone => OnClose::Fin,
                // An application never takes for an answer that it got none.
                Self::Outbound | Self::Plaintext | Self::Socks5 => OnClose::Reset,
            },
        }
    }

    pub(super) fn port(self) -> u16 {
        match self {
            Self::Outbound => OUTBOUND_PORT,
            Self::Hbone => INBOUND_HBONE_PORT,
            Self::Plaintext => INBOUND_PLAINTEXT_PORT,
            Self::Socks5 => SOCKS5_PORT,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::Hbone => "inbound",
            Self::Plaintext => "passthrough",
            Self::Socks5 => "socks5",
        }
    }

    pub(super) fn reporter(self) -> Reporter {
        match self {
            Self::Outbound | Self::Socks5 => Reporter::Source,
            Self::Hbone | Self::Plaintext => Reporter::Destination,
        }
    }
}

/// A listener that another process has opened for the pod.
pub(super) fn inherit(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = TcpListener::from(socket);
    // It shares its flags with the other process's, which needs it the same way.
    listener.set_nonblocking(true)?;
    capture::socket::make_plain(&listener)?;
    Ok(listener)
}

fn listen_options(inpod: &InPod) -> ListenOptions {
    ListenOptions {
        mark: Some(inpod.mark),
        reuse_port: inpod.port_reuse == PortReuse::Shared,
        v6: inpod.ipv6 == Ipv6::Enabled,
    }
}
