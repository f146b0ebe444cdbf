// SPDX-License-Identifier: Apache-2.0
//! A program of the mesh that no proxy speaks for: it holds the certificate of its own account and tunnels itself.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hbone::{Handler, Server};
use identity::{Certificates, ControlPlane, ControlPlaneConfig, IstioCa, RootSource, TokenSource};
use spiffe::{SpiffeId, TrustDomain};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::topology::{CLUSTER_ID, TRUST_DOMAIN};

/// Who it is, and who certifies it.
#[derive(Debug, Clone, clap::Args)]
pub struct Member {
    /// Its service account, written NAMESPACE/NAME
    #[arg(long)]
    pub account: Account,
    /// Where the control plane serves: https://HOST:PORT
    #[arg(long)]
    pub control_plane: String,
    /// The cluster that its token is of
    #[arg(long, default_value = CLUSTER_ID)]
    pub cluster_id: String,
    /// File with the token of its account
    #[arg(long)]
    pub token: PathBuf,
    /// File with the roots that vouch for the control plane
    #[arg(long)]
    pub roots: PathBuf,
}

/// A service account with its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub namespace: String,
    pub name: String,
}

impl std::str::FromStr for Account {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.into(),
                    name: name.into(),
                })
            }
            _ => Err(format!("`{text}` is no account: write NAMESPACE/NAME")),
        }
    }
}

/// How long open connections get once the program is to end.
const GRACE: Duration = Duration::from_secs(2);

impl Member {
    pub fn identity(&self) -> Result<SpiffeId> {
        let domain: TrustDomain = TRUST_DOMAIN.parse().context("the lab's trust domain")?;
        SpiffeId::new(&domain, &self.account.namespace, &self.account.name)
            .context("the account makes no identity")
    }

    pub fn control_plane(&self) -> Result<ControlPlane> {
        ControlPlane::new(ControlPlaneConfig {
            address: self.control_plane.clone(),
            root: RootSource::File(self.roots.clone()),
            token: TokenSource::File(self.token.clone()),
            cluster_id: self.cluster_id.clone(),
            alt_hostname: None,
            headers: Vec::new(),
        })
        .context("--control-plane")
    }

    /// Its own certificate, fetched when it is first needed and renewed in time.
    pub fn certificates(&self) -> Result<Certificates> {
        let authority = IstioCa::for_itself(self.control_plane()?);
        let settings = identity::Config::default();
        Ok(Certificates::new(
            Arc::new(authority),
            settings,
            Handle::current(),
        ))
    }
}

/// Accepts tunnels under a member's identity until SIGTERM, then lets those that are open end for a while.
pub async fn serve_tunnels(
    listener: TcpListener,
    identity: SpiffeId,
    certificates: Certificates,
    handler: Arc<impl Handler>,
) -> Result<()> {
    let server = Server::new(hbone::Config::default());
    let (drain, draining) = watch::channel(false);
    let mut tunnels = JoinSet::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    let certificates = certificates.clone();
                    let (server, handler) = (server.clone(), Arc::clone(&handler));
                    let (identity, draining) = (identity.clone(), draining.clone());
                    tunnels.spawn(async move {
                        let served = serve_one(&server, socket, identity, &certificates, handler, draining);
                        if let Err(error) = served.await {
                            println!("tunnel from {peer}: {error:#}");
                        }
                    });
                }
                // Out of file descriptors, as a rule: others must close theirs first.
                Err(error) => {
                    println!("cannot accept: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_ended) = tunnels.join_next() => {}
            _ = terminate.recv() => break,
        }
    }
    drain.send_replace(true);
    let ended = async { while tunnels.join_next().await.is_some() {} };
    // What is still open then is reset with the process.
    let _in_time = tokio::time::timeout(GRACE, ended).await;
    Ok(())
}

async fn serve_one(
    server: &Server,
    socket: TcpStream,
    identity: SpiffeId,
    certificates: &Certificates,
    handler: Arc<impl Handler>,
    draining: watch::Receiver<bool>,
) -> Result<()> {
    let certificate = certificates
        .certificate(&identity)
        .await
        .context("own certificate")?;
    server
        .serve(socket, certificate, handler, draining)
        .await
        .context("serving")
}

/// Listens on a port of every address, of both families.
pub fn listen(port: u16) -> Result<TcpListener> {
    let listen = || {
        let socket = tokio::net::TcpSocket::new_v6()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))?;
        socket.listen(4096)
    };
    listen().with_context(|| format!("cannot listen on port {port}"))
}
