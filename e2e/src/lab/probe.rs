// SPDX-License-Identifier: Apache-2.0
//! Readiness probes, made from the node as a kubelet makes them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use capture::Netns;
use cluster::k8s_openapi::api::core::v1::Probe;
use cluster::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::{TcpSocket, TcpStream};

use crate::traffic::http;

const TIMEOUT: Duration = Duration::from_secs(2);

/// A check of one container.
#[derive(Debug, Clone)]
pub enum Check {
    Http {
        port: u16,
        path: String,
    },
    Tcp {
        port: u16,
    },
    /// Nothing to ask: ready as soon as it runs.
    Nothing,
}

impl Check {
    pub fn of_probe(probe: Option<&Probe>) -> Result<Self> {
        let Some(probe) = probe else {
            return Ok(Self::Nothing);
        };
        let number = |port: &IntOrString| match port {
            IntOrString::Int(port) => {
                u16::try_from(*port).context("readinessProbe: port out of range")
            }
            IntOrString::String(name) => {
                anyhow::bail!("readinessProbe: port `{name}`: the lab wants a number")
            }
        };
        Ok(match (&probe.http_get, &probe.tcp_socket) {
            (Some(get), _) => Self::Http {
                port: number(&get.port)?,
                path: get.path.clone().unwrap_or_else(|| "/".into()),
            },
            (None, Some(tcp)) => Self::Tcp {
                port: number(&tcp.port)?,
            },
            (None, None) => Self::Nothing,
        })
    }

    /// Asks from inside the node's namespace; the answer says why if it is no.
    pub async fn ask(&self, node: &Netns, address: IpAddr) -> Result<(), String> {
        let port = match self {
            Self::Nothing => return Ok(()),
            Self::Http { port, .. } | Self::Tcp { port } => *port,
        };
        let target = SocketAddr::new(address, port);
        let attempt = async {
            let stream = connect_from(node, target)
                .await
                .map_err(|error| format!("connect to {target}: {error}"))?;
            match self {
                Self::Http { path, .. } => match http::get(stream, &target.to_string(), path).await
                {
                    Ok(answer) if (200..400).contains(&answer.status) => Ok(()),
                    Ok(answer) => Err(format!(
                        "{path} answered {}: {}",
                        answer.status,
                        answer.body.trim()
                    )),
                    Err(error) => Err(format!("{path}: {error}")),
                },
                Self::Tcp { .. } | Self::Nothing => Ok(()),
            }
        };
        tokio::time::timeout(TIMEOUT, attempt)
            .await
            .unwrap_or_else(|_| Err(format!("no answer from {target} in {TIMEOUT:?}")))
    }
}

/// Connects from a namespace: a socket stays where it was made.
pub async fn connect_from(netns: &Netns, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = netns.enter(|| match target {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    })??;
    socket.connect(target).await
}

/// GETs a page of a daemon from inside a namespace.
pub async fn fetch(netns: &Path, target: SocketAddr, path: &str) -> Result<http::Answer> {
    let netns = Netns::open(netns)
        .with_context(|| format!("no network namespace at {}", netns.display()))?;
    let answer = async {
        http::get(
            connect_from(&netns, target).await?,
            &target.to_string(),
            path,
        )
        .await
    };
    let answer = tokio::time::timeout(TIMEOUT, answer)
        .await
        .with_context(|| format!("no answer from {target}"))?;
    answer.with_context(|| format!("http://{target}{path}"))
}
