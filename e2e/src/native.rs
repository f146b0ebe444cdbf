// SPDX-License-Identifier: Apache-2.0
//! A pod that terminates tunnels itself, as one with a sidecar does: no proxy of a node has a part in it.
//!
//! ```text
//!  others' proxies ═ 15008 ═► serve ─► application on loopback
//!  application ─► loopback port ─► forward ═ tunnel ═► 15008 of a pod
//! ```

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hbone::wire::{Authority, ConnectRequest};
use hbone::{BoxFuture, Dial, Handler, Incoming, Meter, Pool, PoolKey, Stop};
use http::StatusCode;
use identity::{CaClient as _, CsrRequest, IstioCa};
use spiffe::SpiffeId;
use tokio::net::{TcpListener, TcpStream};

use crate::lifeline::input_ended;
use crate::member::{self, Member};
use crate::peers::signing_request;

/// What such a pod does.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Native {
    /// Take tunnels and hand what comes in to the application on loopback
    Serve {
        #[command(flatten)]
        member: Member,
    },
    /// Listen on a loopback port, which is printed, and tunnel what comes to a pod; until the input ends
    Forward {
        #[command(flatten)]
        member: Member,
        /// The application's address
        #[arg(long)]
        to: SocketAddr,
        /// Where the tunnel ends, if not at the application's own address
        #[arg(long)]
        through: Option<IpAddr>,
        /// Who may answer the tunnel
        #[arg(long, value_name = "SPIFFE_ID")]
        expect: SpiffeId,
    },
    /// Write the own certificate as certificate.pem, key.pem and roots.pem, for a program that reads files
    Certify {
        #[command(flatten)]
        member: Member,
        #[arg(long)]
        directory: PathBuf,
    },
}

pub async fn run(native: Native) -> Result<()> {
    match native {
        Native::Serve { member } => serve(&member).await,
        Native::Forward {
            member,
            to,
            through,
            expect,
        } => forward(&member, to, through.unwrap_or(to.ip()), expect).await,
        Native::Certify { member, directory } => certify(&member, &directory).await,
    }
}

async fn serve(member: &Member) -> Result<()> {
    let identity = member.identity()?;
    let certificates = member.certificates()?;
    let listener = member::listen(hbone::wire::PORT)?;
    println!("tunnels end here as {identity}");
    member::serve_tunnels(listener, identity, certificates, Arc::new(ToLoopback)).await
}

struct ToLoopback;

impl Handler for ToLoopback {
    async fn connect(self: Arc<Self>, incoming: Incoming) {
        let (peer, authority) = (incoming.peer.clone(), incoming.request.authority.clone());
        let port = match &authority {
            Authority::Addr(address) if address.port() != hbone::wire::PORT => address.port(),
            _ => return incoming.reject(StatusCode::BAD_REQUEST),
        };
        let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let Ok(application) = TcpStream::connect(local).await else {
            return incoming.reject(StatusCode::SERVICE_UNAVAILABLE);
        };
        let _ = application.set_nodelay(true);
        let meter = Arc::new(Meter::new());
        let end = match incoming.accept(None) {
            Ok(stream) => {
                let outcome = stream.relay(application, &meter, &Stop::new()).await;
                format!("{:?}", outcome.end)
            }
            Err(error) => error.to_string(),
        };
        let record = serde_json::json!({
            "peer": peer.to_string(), "authority": authority.to_string(),
            "sent": meter.sent(), "received": meter.received(), "outcome": end,
        });
        println!("{record}");
    }
}

struct Directly;

impl Dial for Directly {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(to))
    }
}

async fn forward(member: &Member, to: SocketAddr, tunnel: IpAddr, expect: SpiffeId) -> Result<()> {
    let pool = Pool::new(hbone::Config::default(), Arc::new(member.certificates()?));
    let key = PoolKey {
        source: member.identity()?,
        destination: Arc::new([expect]),
        address: SocketAddr::new(tunnel, hbone::wire::PORT),
        source_ip: IpAddr::from(Ipv4Addr::UNSPECIFIED),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .context("cannot listen on loopback")?;
    let port = listener.local_addr().context("the own port")?.port();
    println!("{port}");
    let accepting = async {
        loop {
            let Ok((socket, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let _ = socket.set_nodelay(true);
            let (pool, key) = (pool.clone(), key.clone());
            tokio::spawn(async move {
                let request = ConnectRequest::new(to.into());
                match pool.open(&key, &Directly, request).await {
                    Ok((stream, _peer)) => {
                        let meter = Arc::new(Meter::new());
                        stream.relay(socket, &meter, &Stop::new()).await;
                    }
                    Err(error) => {
                        println!("{error}");
                        // What listens on loopback must not look as if all were well.
                        let _ = socket.set_zero_linger();
                    }
                }
            });
        }
    };
    tokio::select! {
        () = accepting => Ok(()),
        () = input_ended() => Ok(()),
    }
}

async fn certify(member: &Member, directory: &Path) -> Result<()> {
    let identity = member.identity()?;
    let (csr_pem, key) = signing_request(&identity)?;
    let request = CsrRequest {
        csr_pem,
        identity,
        ttl: Duration::from_secs(3600),
    };
    let chain = IstioCa::for_itself(member.control_plane()?)
        .sign(request)
        .await
        .context("the control plane signed nothing")?;
    let (roots, certificates) = chain.split_last().context("the answer is empty")?;
    let mut text = String::new();
    for certificate in certificates {
        writeln!(text, "{}", certificate.trim()).context("a certificate")?;
    }
    for (name, text) in [
        ("certificate.pem", text.as_str()),
        ("key.pem", &key),
        ("roots.pem", roots),
    ] {
        let path = directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
