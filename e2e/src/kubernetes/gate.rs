// SPDX-License-Identifier: Apache-2.0
//! The way to a server, which can be cut and made slow.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How much passes at once where the way is slow.
const SIP: usize = 16 << 10;

/// How the way is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// What is under way is lost, and nobody gets through.
    Cut,
    /// Each few bytes wait for this long.
    Slow(Duration),
}

/// A loopback port that leads to a server. Closed when it is dropped.
#[derive(Debug)]
pub struct Gate {
    pub address: SocketAddr,
    way: Arc<watch::Sender<Way>>,
}

impl Gate {
    pub async fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port")?;
        let address = listener.local_addr()?;
        let way = Arc::new(watch::Sender::new(Way::Open));
        let weak = Arc::downgrade(&way);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(way) = weak.upgrade() else { return };
                if *way.borrow() != Way::Cut {
                    tokio::spawn(pass(client, server, way.subscribe()));
                }
            }
        });
        Ok(Self { address, way })
    }

    pub fn open(&self) {
        self.way.send_replace(Way::Open);
    }

    pub fn cut(&self) {
        self.way.send_replace(Way::Cut);
    }

    pub fn slow(&self, pause: Duration) {
        self.way.send_replace(Way::Slow(pause));
    }
}

async fn pass(client: TcpStream, server: SocketAddr, mut way: watch::Receiver<Way>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let (up, down) = (way.clone(), way.clone());
    let cut = async move {
        // An error says that the gate is gone.
        let _gone = way.wait_for(|way| *way == Way::Cut).await;
    };
    tokio::select! {
        _ = copy(from_client, to_server, up) => {}
        _ = copy(from_server, to_client, down) => {}
        () = cut => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    way: watch::Receiver<Way>,
) -> io::Result<()> {
    let mut buffer = vec![0; SIP];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let now = *way.borrow();
        if let Way::Slow(pause) = now {
            tokio::time::sleep(pause).await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}
