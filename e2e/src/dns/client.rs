// SPDX-License-Identifier: Apache-2.0
//! `e2e resolve`: asks one question as raw bytes and reports everything about the answer as JSON.
//!
//! Without `--udp` or `--tcp` it does what stub resolvers do: UDP first, and TCP where the answer is cut short.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use crate::dns::message::{Asking, Edns, Message, hex, query, type_number, unhex};
use crate::traffic::Outcome;

#[derive(Debug, Clone, Args)]
pub struct Resolve {
    /// The name, as it is: no search domain is tried
    pub name: String,
    /// A, SRV, TYPE65280
    #[arg(default_value = "A", value_parser = type_number)]
    pub record_type: u16,
    /// Whom to ask; else the first nameserver of /etc/resolv.conf
    #[arg(long)]
    pub server: Option<IpAddr>,
    /// Over UDP only
    #[arg(long, conflicts_with = "tcp")]
    pub udp: bool,
    /// Over TCP only
    #[arg(long)]
    pub tcp: bool,
    /// Speak EDNS and take answers of so many bytes over UDP
    #[arg(long, value_name = "BYTES")]
    pub edns: Option<u16>,
    /// With EDNS: ask for signatures
    #[arg(long, requires = "edns")]
    pub dnssec: bool,
    /// With EDNS: an option
    #[arg(long, value_name = "CODE=HEX", requires = "edns", value_parser = option)]
    pub option: Vec<(u16, String)>,
    /// Ask so many times from the same UDP socket
    #[arg(long, default_value_t = 1)]
    pub times: u32,
    /// Give up after so many milliseconds
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    pub patience: u64,
}

fn option(text: &str) -> Result<(u16, String), String> {
    let (code, bytes) = text.split_once('=').ok_or("write CODE=HEX")?;
    unhex(bytes).map_err(|error| error.to_string())?;
    let code = code.parse().map_err(|error| format!("`{code}`: {error}"))?;
    Ok((code, bytes.to_owned()))
}

/// What came of a question.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answered {
    pub outcome: Outcome,
    pub server: SocketAddr,
    /// `udp`, `tcp`, or `udp, tcp` where the first answer was cut short.
    pub transport: String,
    /// How often it was answered.
    pub answered: u32,
    pub milliseconds: u64,
    /// The last query and the last response, byte for byte.
    pub query: String,
    pub response: String,
    pub message: Option<Message>,
}

impl Answered {
    /// What the response says.
    pub fn message(&self) -> Result<&Message> {
        self.message.as_ref().with_context(|| format!("{self:?}"))
    }
}

impl Resolve {
    pub async fn ask(&self) -> Result<Answered> {
        let server = match self.server {
            Some(server) => server,
            None => first_server(&std::fs::read_to_string("/etc/resolv.conf")?)?,
        };
        let server = SocketAddr::new(server, 53);
        let started = Instant::now();
        let mut answered = Answered {
            outcome: Outcome::Done,
            server,
            transport: if self.tcp { "tcp" } else { "udp" }.into(),
            answered: 0,
            milliseconds: 0,
            query: String::new(),
            response: String::new(),
            message: None,
        };
        if let Err(outcome) = self.converse(server, &mut answered).await {
            answered.outcome = outcome;
        }
        answered.milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(answered)
    }

    async fn converse(&self, server: SocketAddr, answered: &mut Answered) -> Result<(), Outcome> {
        if !self.tcp {
            let any: SocketAddr = match server {
                SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(any).await?;
            socket.connect(server).await?;
            for _ in 0..self.times {
                self.over_udp(&socket, answered).await?;
            }
            let cut_short = answered
                .message
                .as_ref()
                .is_some_and(|message| message.has("tc"));
            if self.udp || !cut_short {
                return Ok(());
            }
            answered.transport = "udp, tcp".into();
        }
        self.over_tcp(server, answered).await
    }

    fn query(&self, answered: &mut Answered) -> Result<Vec<u8>, Outcome> {
        let asking = Asking {
            id: rand::random(),
            name: &self.name,
            record_type: self.record_type,
            edns: self.edns.map(|payload| Edns {
                payload,
                version: 0,
                dnssec_ok: self.dnssec,
                options: self.option.clone(),
            }),
        };
        let bytes = query(&asking).map_err(|error| Outcome::Failed(format!("{error:#}")))?;
        answered.query = hex(&bytes);
        Ok(bytes)
    }

    async fn over_udp(&self, socket: &UdpSocket, answered: &mut Answered) -> Result<(), Outcome> {
        let query = self.query(answered)?;
        socket.send(&query).await?;
        let mut buffer = vec![0; 65_535];
        let length = self.patiently(socket.recv(&mut buffer)).await?;
        self.take(&buffer[..length], &query, answered)
    }

    async fn over_tcp(&self, server: SocketAddr, answered: &mut Answered) -> Result<(), Outcome> {
        let query = self.query(answered)?;
        let mut socket = self.patiently(TcpStream::connect(server)).await?;
        let length = u16::try_from(query.len()).unwrap_or(u16::MAX).to_be_bytes();
        socket.write_all(&[&length[..], &query].concat()).await?;
        let length = self.patiently(socket.read_u16()).await?;
        let mut response = vec![0; length.into()];
        self.patiently(socket.read_exact(&mut response)).await?;
        self.take(&response, &query, answered)
    }

    fn take(&self, response: &[u8], query: &[u8], answered: &mut Answered) -> Result<(), Outcome> {
        answered.response = hex(response);
        answered.answered += 1;
        let corrupted = |error: anyhow::Error| Outcome::Corrupted(format!("{error:#}"));
        let message = Message::parse(response).map_err(corrupted)?;
        if response[..2] != query[..2] {
            return Err(Outcome::Corrupted("another query's id".into()));
        }
        answered.message = Some(message);
        Ok(())
    }

    async fn patiently<T>(
        &self,
        work: impl Future<Output = std::io::Result<T>>,
    ) -> Result<T, Outcome> {
        let limit = Duration::from_millis(self.patience);
        Ok(tokio::time::timeout(limit, work)
            .await
            .map_err(|_| Outcome::TimedOut)??)
    }
}

fn first_server(resolv_conf: &str) -> Result<IpAddr> {
    let mut servers = resolv_conf.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "nameserver").then(|| words.next())?
    });
    let server = servers.next().context("/etc/resolv.conf names no server")?;
    server
        .parse()
        .with_context(|| format!("/etc/resolv.conf: nameserver {server}"))
}
