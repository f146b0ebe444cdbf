// SPDX-License-Identifier: Apache-2.0
//! A connection that arrives in a pod and is meant for somebody else: a node's route leads it there.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rtnetlink::RouteMessageBuilder;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[derive(Debug, Clone, clap::Args)]
pub struct Stray {
    /// The pod's address, whose node this is
    #[arg(long)]
    pub pod: Ipv4Addr,
    /// Whom the connection is meant for
    #[arg(long)]
    pub to: SocketAddrV4,
}

/// What it met.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Strayed {
    /// Somebody took the connection.
    pub connected: bool,
    /// Bytes that came back.
    pub heard: usize,
    /// How it ended; none while it goes on.
    pub error: Option<String>,
}

const PATIENCE: Duration = Duration::from_secs(10);

pub async fn run(stray: &Stray) -> Result<Strayed> {
    let (connection, link, _) = rtnetlink::new_connection().context("netlink")?;
    tokio::spawn(connection);
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(*stray.to.ip(), 32)
        .gateway(stray.pod)
        .build();
    let added = link.route().add(route.clone()).execute().await;
    added.with_context(|| format!("cannot lead {} to {}", stray.to.ip(), stray.pod))?;
    let strayed = meet(stray).await;
    let removed = link.route().del(route).execute().await;
    removed.context("cannot take the route away")?;
    Ok(strayed)
}

async fn meet(stray: &Stray) -> Strayed {
    let mut strayed = Strayed {
        connected: false,
        heard: 0,
        error: None,
    };
    let meeting = async {
        let mut socket = TcpStream::connect(stray.to).await?;
        strayed.connected = true;
        socket.write_all(b"is anybody there?\n").await?;
        let mut heard = [0; 256];
        loop {
            match socket.read(&mut heard).await? {
                0 => return Err(std::io::Error::other("closed without a word")),
                count => strayed.heard += count,
            }
        }
    };
    let met: Result<std::io::Result<()>, _> = tokio::time::timeout(PATIENCE, meeting).await;
    strayed.error = met
        .ok()
        .and_then(Result::err)
        .map(|error| error.to_string());
    strayed
}
