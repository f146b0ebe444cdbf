// SPDX-License-Identifier: Apache-2.0
//! How a pod's proxy connects: every socket is made inside the pod's namespace.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use capture::Netns;
use capture::socket::Connecting;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{PodProxy, StartError};
use crate::config::{InPod, Keepalive, OriginalSource, Tcp};
use crate::failure::Failure;

pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an application may leave a connection from a borrowed address unanswered before another port is tried;
/// twice as long for each further one.
const PATIENCE: Duration = Duration::from_millis(250);

/// Which address the application sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenSource {
    Clients,
    /// The pod's own.
    Own,
}

impl SeenSource {
    /// # Errors
    /// Where clients' addresses are required and can't be had.
    pub(super) fn possible(netns: &Netns, inpod: &InPod) -> Result<Self, StartError> {
        if inpod.original_source == OriginalSource::Never {
            return Ok(Self::Own);
        }
        match capture::socket::may_borrow_sources(netns) {
            Ok(()) => Ok(Self::Clients),
            Err(error) if inpod.original_source == OriginalSource::Required => {
                Err(StartError::Source(error))
            }
            Err(_) => Ok(Self::Own),
        }
    }
}

/// Whom a pod's proxy connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherEnd {
    /// The pod itself, from `source` where that is somebody else's address. The same kernel tells when it is gone, so
    /// that nobody probes it.
    Application { source: Option<IpAddr> },
    /// Anybody else.
    Elsewhere,
}

impl PodProxy {
    /// Connects from inside the pod.
    ///
    /// An application answers within the same kernel, at once. One that does not answer a borrowed address may hold a
    /// connection from before its capture with that very client's port, which the kernel could not know when it drew
    /// ours: so another port is tried, about as often as the kernel would repeat itself.
    pub async fn connect(&self, to: SocketAddr, other: OtherEnd) -> io::Result<TcpStream> {
        let mut patience = PATIENCE;
        loop {
            let (stream, connecting) = self.start_connecting(to, other)?;
            match (connecting, other) {
                (Connecting::Done, _) => return Ok(stream),
                (
                    Connecting::UntilWritable,
                    OtherEnd::Application {
                        source: Some(_borrowed),
                    },
                ) => match timeout(patience, stream.writable()).await {
                    Ok(writable) => writable?,
                    Err(_) => {
                        patience *= 2;
                        continue;
                    }
                },
                (Connecting::UntilWritable, _) => stream.writable().await?,
            }
            return match stream.take_error()? {
                Some(error) => Err(error),
                None => Ok(stream),
            };
        }
    }

    fn start_connecting(
        &self,
        to: SocketAddr,
        other: OtherEnd,
    ) -> io::Result<(TcpStream, Connecting)> {
        let family = capture::socket::domain_of(to.ip());
        let mark = Some(self.shared.settings.inpod.mark);
        let source = match other {
            OtherEnd::Application { source } => source,
            OtherEnd::Elsewhere => None,
        };
        let socket = capture::socket::tcp_socket(&self.netns, family, mark, source)?;
        if other == OtherEnd::Elsewhere {
            set_timeouts(&socket, &self.shared.settings.tcp);
        }
        let connecting = capture::socket::start_connecting(&socket, to)?;
        Ok((TcpStream::from_std(socket.into())?, connecting))
    }

    /// As [`Self::connect`], bounded in time.
    pub async fn connect_in_time(
        &self,
        to: SocketAddr,
        other: OtherEnd,
    ) -> Result<TcpStream, Failure> {
        match timeout(CONNECT_TIMEOUT, self.connect(to, other)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(Failure::Connect { to, error }),
            Err(_) => Err(Failure::ConnectTimeout {
                to,
                limit: CONNECT_TIMEOUT,
            }),
        }
    }

    /// Connects to the application, which sees the client's own address where the pod's sockets may use it.
    pub async fn connect_keeping_source(
        &self,
        to: SocketAddr,
        client: IpAddr,
    ) -> Result<TcpStream, Failure> {
        let source = self.kept_source(client, to.ip());
        self.connect_in_time(to, OtherEnd::Application { source })
            .await
    }

    fn kept_source(&self, source: IpAddr, destination: IpAddr) -> Option<IpAddr> {
        let possible = self.source == SeenSource::Clients
            && source != destination
            && source.is_ipv4() == destination.is_ipv4()
            && !source.is_loopback();
        possible.then_some(source)
    }
}

/// Best effort: a connection without them is better than none.
fn set_timeouts(socket: &impl std::os::fd::AsFd, tcp: &Tcp) {
    if let Some(settings) = tcp.keepalive {
        let _ = capture::socket::set_keepalive(socket, keepalive(settings));
    }
    if let Some(limit) = tcp.user_timeout {
        let _ = capture::socket::set_user_timeout(socket, limit);
    }
}

pub(super) fn keepalive(settings: Keepalive) -> capture::socket::Keepalive {
    capture::socket::Keepalive {
        idle: settings.idle,
        interval: settings.interval,
        probes: settings.retries,
    }
}
