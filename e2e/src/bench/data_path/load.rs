// SPDX-License-Identifier: Apache-2.0
//! The load of the data-path bench: a server of three ports and a client that does one kind of work for a while and says
//! what came of it as one JSON object. Both run inside pods and know nothing of proxies.
//!
//! A request of fixed length has an answer of fixed length, so that neither end spends its time on parsing: what is to
//! be measured lies between them.

mod requests;
mod server;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at};

pub use self::server::serve;
use crate::lifeline::input_ended;

/// Where the server takes bulk, HTTP, single bytes, and HTTP that proxies have read.
pub const BULK: u16 = 7501;
pub const HTTP: u16 = 7502;
pub const ECHO: u16 = 7503;
pub const REQUESTS: u16 = 7504;

const UP: u8 = b'u';
const DOWN: u8 = b'd';
/// As much as an application that moves files reads and writes at once.
const CHUNK: usize = 256 << 10;
const REQUEST: &[u8] = b"GET /sixty-four HTTP/1.1\r\nHost: bench.example\r\nAccept: */*\r\n\r\n";
/// Connections that may fail while many are opened.
const MOST_ERRORS: u64 = 1000;
/// How long anything may take that should take a moment.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long connections on which requests were made are left alone before they are weighed: a proxy may give back then
/// what it holds for those at work.
pub const REST: Duration = Duration::from_secs(8);
/// How long clients may still wait when their time is over, some of them for a new connection first.
const GRACE: Duration = Duration::from_secs(60);
/// How long after something failed it is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// An HTTP response with a body of 64 bytes.
fn response() -> Vec<u8> {
    let mut text =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 64\r\n\r\n".to_vec();
    text.extend([b'.'; 64]);
    text
}

/// One kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The client sends as fast as it can
    BulkUp,
    /// The server sends as fast as it can
    BulkDown,
    /// Requests and answers on connections that are kept
    Http,
    /// Connect, one byte there and back, close
    Connect,
    /// One byte there and back, again and again
    Ping,
    /// Hold connections that have carried one byte, until the input ends
    Idle,
    /// As `http`, through proxies that read requests
    Requests,
    /// As `idle`, with a request
    IdleRequests,
}

impl Kind {
    pub fn port(self) -> u16 {
        match self {
            Self::BulkUp | Self::BulkDown => BULK,
            Self::Http => HTTP,
            Self::Connect | Self::Ping | Self::Idle => ECHO,
            Self::Requests | Self::IdleRequests => REQUESTS,
        }
    }
}

/// What a client does.
#[derive(Debug, Clone, Args)]
pub struct Load {
    pub kind: Kind,
    pub target: SocketAddr,
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Bytes that arrived, or requests, connections, round trips.
    pub units: u64,
    pub seconds: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub errors: u64,
}

/// Congestion control without pacing, and ports that may be used again: both of this network namespace alone. What paces
/// would be measured instead of what is to be.
fn tune() -> Result<()> {
    for (name, value) in [("tcp_congestion_control", "reno"), ("tcp_tw_reuse", "1")] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        std::fs::write(&path, value).with_context(|| format!("cannot set {path} to {value}"))?;
    }
    Ok(())
}

/// Does the work and prints what came of it; of idle connections as soon as they are open.
pub async fn run(load: &Load) -> Result<()> {
    tune()?;
    ensure!(load.connections > 0, "there is nothing to do");
    if matches!(load.kind, Kind::Idle | Kind::IdleRequests) {
        return idle(load).await;
    }
    say(&work(load).await?)
}

fn say(done: &Done) -> Result<()> {
    println!("{}", serde_json::to_string(done)?);
    Ok(())
}

async fn work(load: &Load) -> Result<Done> {
    let (ready, errors) = match load.kind {
        // Each of its connections is part of the work.
        Kind::Connect => ((0..load.connections).map(|_| None).collect(), 0),
        _ => {
            let (open, errors) = open_all(load, || connect(load.target)).await?;
            (open.into_iter().map(Some).collect::<Vec<_>>(), errors)
        }
    };
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(load.seconds);
    let mut running = JoinSet::new();
    for socket in ready {
        let load = load.clone();
        running.spawn_local(async move { one(&load, socket, until).await });
    }
    let mut all = Part {
        errors,
        ..Part::default()
    };
    let late = until + GRACE;
    loop {
        let part = timeout_at(late.into(), running.join_next());
        let part = part.await.with_context(|| {
            format!(
                "{} has left a client without answer for {GRACE:?}",
                load.target
            )
        })?;
        let Some(part) = part else { break };
        all.add(part.context("a client panicked")??);
    }
    let seconds = began.elapsed().as_secs_f64();
    ensure!(all.units > 0, "nothing was done in {seconds:.1} s");
    all.micros.sort_unstable();
    let percentile = |share: f64| {
        let last = all.micros.len().checked_sub(1)?;
        let index = (last as f64 * share).round() as usize;
        Some(f64::from(all.micros[index]) / 10.0)
    };
    Ok(Done {
        units: all.units,
        seconds,
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        errors: all.errors,
    })
}

/// What one connection, or one after another, came to.
#[derive(Default)]
struct Part {
    units: u64,
    /// Each in tenths of a microsecond.
    micros: Vec<u32>,
    errors: u64,
}

impl Part {
    fn add(&mut self, other: Self) {
        self.units += other.units;
        self.errors += other.errors;
        self.micros.extend(other.micros);
    }

    fn took(&mut self, since: Instant) {
        self.units += 1;
        let tenths = since.elapsed().as_nanos() / 100;
        self.micros.push(u32::try_from(tenths).unwrap_or(u32::MAX));
    }
}

async fn connect(target: SocketAddr) -> Result<TcpStream> {
    let socket = timeout(PATIENCE, TcpStream::connect(target))
        .await
        .with_context(|| format!("{target} does not answer"))?
        .with_context(|| format!("cannot connect to {target}"))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

async fn one(load: &Load, socket: Option<TcpStream>, until: Instant) -> Result<Part> {
    let mut part = Part::default();
    match (load.kind, socket) {
        (Kind::BulkUp, Some(mut socket)) => {
            let block = vec![0; CHUNK];
            socket.write_u8(UP).await?;
            while Instant::now() < until {
                socket.write_all(&block).await?;
            }
            socket.shutdown().await?;
            // What the server has had, and not what lies in buffers.
            part.units = socket.read_u64().await?;
        }
        (Kind::BulkDown, Some(mut socket)) => {
            let mut block = vec![0; CHUNK];
            socket.write_u8(DOWN).await?;
            while Instant::now() < until {
                match socket.read(&mut block).await? {
                    0 => bail!("the server ended its stream"),
                    count => part.units += count as u64,
                }
            }
        }
        (Kind::Http, Some(mut socket)) => {
            let mut answer = response();
            while Instant::now() < until {
                let began = Instant::now();
                socket.write_all(REQUEST).await?;
                socket.read_exact(&mut answer).await?;
                part.took(began);
            }
        }
        (Kind::Requests, Some(mut socket)) => {
            let mut had = Vec::new();
            while Instant::now() < until {
                let began = Instant::now();
                match timeout(PATIENCE, requests::ask(&mut socket, &mut had)).await {
                    Ok(Ok(())) => part.took(began),
                    // What failed or took too long is told, and what else is measured goes on.
                    _ => {
                        part.errors += 1;
                        had.clear();
                        match connect(load.target).await {
                            Ok(anew) => socket = anew,
                            Err(_) => tokio::time::sleep(PAUSE).await,
                        }
                    }
                }
            }
        }
        (Kind::Ping, Some(mut socket)) => {
            while Instant::now() < until {
                let began = Instant::now();
                ping(&mut socket).await?;
                part.took(began);
            }
        }
        (Kind::Connect, _) => {
            while Instant::now() < until {
                let began = Instant::now();
                match visit(load.target).await {
                    Ok(()) => part.took(began),
                    Err(_) => part.errors += 1,
                }
            }
        }
        (kind, _) => bail!("{kind:?} is no work that ends by itself"),
    }
    Ok(part)
}

async fn ping(socket: &mut TcpStream) -> std::io::Result<()> {
    socket.write_u8(1).await?;
    socket.read_u8().await.map(drop)
}

async fn visit(target: SocketAddr) -> Result<()> {
    let mut socket = connect(target).await?;
    timeout(PATIENCE, ping(&mut socket))
        .await
        .with_context(|| format!("{target} takes a byte and sends none"))??;
    Ok(())
}

/// Opens a load's connections, one after the other. What fails is opened again, and counted: proxies may still be busy with
/// the end of an earlier crowd.
async fn open_all<O: Future<Output = Result<TcpStream>>>(
    load: &Load,
    open: impl Fn() -> O,
) -> Result<(Vec<TcpStream>, u64)> {
    let mut held = Vec::with_capacity(load.connections);
    let mut errors = 0;
    while held.len() < load.connections {
        match timeout(PATIENCE, open()).await? {
            Ok(socket) => held.push(socket),
            Err(error) => {
                errors += 1;
                ensure!(errors < MOST_ERRORS, "{errors} of them failed: {error:#}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    Ok((held, errors))
}

/// Opens connections, says so, and holds them until the input ends.
async fn idle(load: &Load) -> Result<()> {
    let began = Instant::now();
    let (held, errors) = open_all(load, || open(load)).await?;
    let seconds = began.elapsed().as_secs_f64();
    if load.kind == Kind::IdleRequests {
        tokio::time::sleep(REST).await;
    }
    say(&Done {
        units: held.len() as u64,
        seconds,
        p50_us: None,
        p99_us: None,
        errors,
    })?;
    input_ended().await;
    Ok(())
}

/// A connection that has been of use once.
async fn open(load: &Load) -> Result<TcpStream> {
    let mut socket = connect(load.target).await?;
    match load.kind {
        Kind::IdleRequests => requests::ask(&mut socket, &mut Vec::new()).await?,
        _ => ping(&mut socket).await?,
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::server::{answer, bulk, echo};
    use super::*;

    async fn served(kind: Kind, connections: usize) -> Done {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        tokio::task::spawn_local(async move {
            let response = response();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let response = response.clone();
                tokio::task::spawn_local(async move {
                    let _ = match kind {
                        Kind::BulkUp | Kind::BulkDown => bulk(socket).await,
                        Kind::Http => answer(socket, &response).await,
                        Kind::Requests => requests::answer(socket, &response).await,
                        _ => echo(socket).await,
                    };
                });
            }
        });
        let load = Load {
            kind,
            target,
            connections,
            seconds: 0.1,
        };
        work(&load).await.unwrap()
    }

    #[tokio::test]
    async fn every_kind_of_work_is_done_and_counted() {
        let work = async {
            for kind in [
                Kind::BulkUp,
                Kind::BulkDown,
                Kind::Http,
                Kind::Connect,
                Kind::Ping,
                Kind::Requests,
            ] {
                let done = served(kind, 3).await;
                assert!(done.units > 0 && done.errors == 0, "{kind:?}: {done:?}");
                let bulk = matches!(kind, Kind::BulkUp | Kind::BulkDown);
                assert_eq!(done.p99_us.is_none(), bulk, "{kind:?}: {done:?}");
            }
        };
        tokio::task::LocalSet::new().run_until(work).await;
    }
    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_is_an_error_and_no_endless_wait() {
        let work = async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let target = listener.local_addr().unwrap();
            for kind in [Kind::Ping, Kind::Connect, Kind::BulkUp, Kind::BulkDown] {
                let load = Load {
                    kind,
                    target,
                    connections: 1,
                    seconds: 0.01,
                };
                // The kernel takes the connection; nobody ever reads it.
                let error = work(&load).await.unwrap_err().to_string();
                let words = ["without answer", "nothing was done"];
                assert!(
                    words.iter().any(|word| error.contains(word)),
                    "{kind:?}: {error}"
                );
            }
            drop(listener);
        };
        tokio::task::LocalSet::new().run_until(work).await;
    }
}
