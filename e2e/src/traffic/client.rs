// SPDX-License-Identifier: Apache-2.0
//! Clients of the lab's servers. Each checks every byte and reports how the conversation ended.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;

use crate::lifeline::input_ended;
use crate::traffic::payload::{Payload, Receipt};
use crate::traffic::requests::{self, Requests};
use crate::traffic::{Outcome, Report, http, load, secured};

/// What a client does.
#[derive(Debug, Clone, Subcommand)]
pub enum Conversation {
    /// GET a page: `e2e traffic get web.shop:80 /`
    Get {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
        #[arg(default_value = "/")]
        path: String,
        /// A header to send, as `name: value`; may be given again
        #[arg(long = "header")]
        headers: Vec<String>,
        /// So many requests, one after the other, each on a connection of its own; the answers are told one after the other
        #[arg(long, default_value_t = 1)]
        times: u32,
        /// Begin TLS first, with the server of this name
        #[arg(long, value_name = "NAME", requires = "trusts")]
        tls: Option<String>,
        /// A file with who certifies that server
        #[arg(long, value_name = "FILE", requires = "tls")]
        trusts: Option<PathBuf>,
    },
    /// Ask as applications do, on connections that are kept: `e2e traffic requests grpc 10.96.0.10:80 --times 10`
    Requests(Requests),
    /// Find the address that a name leads to, as any application would, and leave it at that
    Lookup {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
    },
    /// Send bytes to an echo server and check that the same come back
    Echo {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
        #[command(flatten)]
        volume: Volume,
    },
    /// Wait for the server to speak first
    Greet {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
    },
    /// Send, close the own half, then read the server's receipt
    FinishAfterSending {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
        #[command(flatten)]
        volume: Volume,
    },
    /// Let the server close its half first, send on, then fetch its receipt by HTTP
    FinishAfterServer {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
        /// Where the same server answers HTTP
        #[arg(long, value_parser = endpoint)]
        receipts: SocketAddr,
        #[command(flatten)]
        volume: Volume,
    },
    /// Open many connections, use each, hold all of them open together, use each again
    Parallel {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
        #[arg(long, default_value_t = 100)]
        connections: u32,
    },
    /// Send many writes of one byte each to an echo server
    Drip {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
        #[arg(long, default_value_t = 1000)]
        writes: u64,
    },
    /// Keep one connection to an echo server in use until it ends or the input does
    Hold {
        #[arg(value_parser = endpoint)]
        target: SocketAddr,
    },
    /// Keep traffic of all kinds up until the input ends; one JSON line for each thing that happens
    Load(load::Plan),
}

/// An address with a port, or a name with one: then the C library's resolver is asked, as any application would.
fn endpoint(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| format!("resolving it: {error}"))?;
    found.next().ok_or_else(|| "it has no address".into())
}

/// How much to send, and what.
#[derive(Debug, Clone, Args)]
pub struct Volume {
    #[arg(long, default_value_t = 1024)]
    pub bytes: u64,
    /// Send this text over and over, to be looked for on the wire; random bytes otherwise
    #[arg(long)]
    pub marker: Option<String>,
}

impl Volume {
    fn payload(&self) -> Payload {
        match &self.marker {
            Some(text) if !text.is_empty() => Payload::marker(text),
            _ => Payload::random(rand::random()),
        }
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A conversation that stands still for this long has failed.
const STALL: Duration = Duration::from_secs(60);

/// Holds the conversation and reports on it.
pub async fn converse(conversation: &Conversation) -> Report {
    let started = Instant::now();
    let mut report = match conversation {
        Conversation::Get {
            target,
            path,
            headers,
            times,
            tls,
            trusts,
        } => {
            let tls = tls.as_deref().zip(trusts.as_deref());
            get(*target, path, headers, *times, tls).await
        }
        Conversation::Requests(plan) => requests::ask(plan).await,
        Conversation::Lookup { target } => Progress::new(*target).end(Ok(())),
        Conversation::Echo { target, volume } => echo(*target, volume).await,
        Conversation::Greet { target } => greet(*target).await,
        Conversation::FinishAfterSending { target, volume } => {
            finish_after_sending(*target, volume).await
        }
        Conversation::FinishAfterServer {
            target,
            receipts,
            volume,
        } => finish_after_server(*target, *receipts, volume).await,
        Conversation::Parallel {
            target,
            connections,
        } => parallel(*target, *connections).await,
        Conversation::Drip { target, writes } => drip(*target, *writes).await,
        Conversation::Hold { target } => hold(*target).await,
        Conversation::Load(plan) => load::generate(plan).await,
    };
    report.milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    report
}

/// Fills a report in as things happen, so that a failure shows how far it got.
struct Progress {
    report: Report,
}

impl Progress {
    fn new(target: SocketAddr) -> Self {
        let mut report = Report::new(Outcome::Done);
        report.target = Some(target);
        Self { report }
    }

    async fn connect(&mut self, target: SocketAddr) -> Result<TcpStream, Outcome> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await;
        let stream = connected.map_err(|_| Outcome::TimedOut)??;
        stream.set_nodelay(true)?;
        self.report.local = stream.local_addr().ok();
        self.report.connections += 1;
        Ok(stream)
    }

    fn end(mut self, outcome: Result<(), Outcome>) -> Report {
        self.report.outcome = outcome.err().unwrap_or(Outcome::Done);
        self.report
    }
}

/// `tls` names the server that TLS is begun with, and the file with who certifies it.
async fn get(
    target: SocketAddr,
    path: &str,
    headers: &[String],
    times: u32,
    tls: Option<(&str, &Path)>,
) -> Report {
    let mut progress = Progress::new(target);
    let outcome = async {
        for _request in 0..times {
            let stream = progress.connect(target).await?;
            let host = target.to_string();
            let answer = match tls {
                None => within(http::get_with(stream, &host, path, headers)).await?,
                Some((name, trusts)) => {
                    let stream = within(secured::begin(stream, name, trusts)).await?;
                    within(http::get_with(stream, name, path, headers)).await?
                }
            };
            progress.report.received += answer.body.len() as u64;
            progress.report.headers = answer.headers;
            let told = progress.report.answer.get_or_insert_default();
            told.push_str(&answer.body);
            if answer.status != 200 {
                return Err(Outcome::Failed(format!("status {}", answer.status)));
            }
        }
        Ok(())
    }
    .await;
    progress.end(outcome)
}

async fn echo(target: SocketAddr, volume: &Volume) -> Report {
    let mut progress = Progress::new(target);
    let outcome = async {
        let stream = progress.connect(target).await?;
        let (mut reading, mut writing) = stream.into_split();
        let mut payload = volume.payload();
        let bytes = volume.bytes;
        let send = async {
            let mut receipt = Receipt::default();
            let mut buffer = vec![0; 128 << 10];
            while receipt.bytes() < bytes {
                let piece = usize::try_from(bytes - receipt.bytes())
                    .unwrap_or(usize::MAX)
                    .min(buffer.len());
                payload.fill(&mut buffer[..piece]);
                within(writing.write_all(&buffer[..piece])).await?;
                receipt.add(&buffer[..piece]);
            }
            writing.shutdown().await?;
            Ok::<_, Outcome>(receipt)
        };
        let receive = receive_all(&mut reading, 256 << 10);
        let (sent, received) = tokio::join!(send, receive);
        progress.report.received = received.as_ref().map(Receipt::bytes).unwrap_or_default();
        progress.report.sent = sent.as_ref().map(Receipt::bytes).unwrap_or_default();
        agree(&sent?, &received?)
    }
    .await;
    progress.end(outcome)
}

/// Reads until the server closes its half, `piece` bytes at most at a time.
async fn receive_all(
    reading: &mut (impl AsyncRead + Unpin),
    piece: usize,
) -> Result<Receipt, Outcome> {
    let mut receipt = Receipt::default();
    let mut buffer = vec![0; piece];
    loop {
        let count = within(reading.read(&mut buffer)).await?;
        if count == 0 {
            return Ok(receipt);
        }
        receipt.add(&buffer[..count]);
    }
}

async fn greet(target: SocketAddr) -> Report {
    let mut progress = Progress::new(target);
    let outcome = async {
        let mut stream = BufReader::new(progress.connect(target).await?);
        let mut greeting = String::new();
        within(stream.read_line(&mut greeting)).await?;
        if greeting.is_empty() {
            return Err(Outcome::Closed);
        }
        progress.report.received = greeting.len() as u64;
        progress.report.answer = Some(greeting.trim().to_owned());
        // And what is said after that still comes back.
        within(stream.write_all(b"thanks\n")).await?;
        let mut back = String::new();
        within(stream.read_line(&mut back)).await?;
        if back == "thanks\n" {
            Ok(())
        } else {
            Err(Outcome::Corrupted(format!("{back:?} instead of thanks")))
        }
    }
    .await;
    progress.end(outcome)
}

async fn finish_after_sending(target: SocketAddr, volume: &Volume) -> Report {
    let mut progress = Progress::new(target);
    let outcome = async {
        let mut stream = progress.connect(target).await?;
        let sent = send_all(&mut stream, volume).await?;
        stream.shutdown().await?;
        progress.report.sent = sent.bytes();
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await?;
        expect_receipt(&mut progress.report, &sent, answer)
    }
    .await;
    progress.end(outcome)
}

async fn finish_after_server(target: SocketAddr, receipts: SocketAddr, volume: &Volume) -> Report {
    let mut progress = Progress::new(target);
    let outcome = async {
        let mut stream = progress.connect(target).await?;
        let mut id = String::new();
        // Reads to the end of the server's half: it is closed before a byte is sent.
        within(stream.read_to_string(&mut id)).await?;
        if id.is_empty() {
            return Err(Outcome::Closed);
        }
        let sent = send_all(&mut stream, volume).await?;
        stream.shutdown().await?;
        progress.report.sent = sent.bytes();
        let path = format!("/receipt/{}", id.trim());
        let deadline = Instant::now() + STALL;
        loop {
            let page = within(http::get(
                TcpStream::connect(receipts).await?,
                &receipts.to_string(),
                &path,
            ))
            .await?;
            if page.status == 200 {
                return expect_receipt(&mut progress.report, &sent, page.body);
            }
            if Instant::now() > deadline {
                return Err(Outcome::TimedOut);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    .await;
    progress.end(outcome)
}

async fn parallel(target: SocketAddr, connections: u32) -> Report {
    let mut progress = Progress::new(target);
    let outcome = async {
        let mut open = Vec::new();
        let mut started = 0;
        // Some at a time, as the backlog of any server is bounded; all stay open.
        while started < connections {
            let wave = (connections - started).min(100);
            let tasks: Vec<_> = (0..wave)
                .map(|_| tokio::task::spawn_local(open_one(target)))
                .collect();
            for task in tasks {
                open.push(
                    task.await
                        .map_err(|error| Outcome::Failed(error.to_string()))??,
                );
                progress.report.connections += 1;
            }
            started += wave;
        }
        for (number, stream) in open.iter_mut().enumerate() {
            exchange(stream, number as u64).await?;
        }
        progress.report.sent = u64::from(connections) * 16;
        progress.report.received = progress.report.sent;
        Ok(())
    }
    .await;
    progress.end(outcome)
}

async fn open_one(target: SocketAddr) -> Result<TcpStream, Outcome> {
    let connected = tokio::time::timeout(STALL, TcpStream::connect(target)).await;
    let mut stream = connected.map_err(|_| Outcome::TimedOut)??;
    exchange(&mut stream, u64::MAX).await?;
    Ok(stream)
}

async fn exchange(stream: &mut TcpStream, word: u64) -> Result<(), Outcome> {
    within(stream.write_all(&word.to_be_bytes())).await?;
    let mut back = [0; 8];
    within(stream.read_exact(&mut back)).await?;
    if back == word.to_be_bytes() {
        Ok(())
    } else {
        Err(Outcome::Corrupted(format!("{back:?} instead of {word}")))
    }
}

async fn drip(target: SocketAddr, writes: u64) -> Report {
    let mut progress = Progress::new(target);
    let outcome = async {
        let stream = progress.connect(target).await?;
        let (mut reading, mut writing) = stream.into_split();
        let send = async {
            let mut receipt = Receipt::default();
            for number in 0..writes {
                let byte = [u8::try_from(number % 251).unwrap_or_default()];
                within(writing.write_all(&byte)).await?;
                receipt.add(&byte);
            }
            writing.shutdown().await?;
            Ok::<_, Outcome>(receipt)
        };
        let receive = receive_all(&mut reading, 64 << 10);
        let (sent, received) = tokio::join!(send, receive);
        progress.report.sent = sent.as_ref().map(Receipt::bytes).unwrap_or_default();
        progress.report.received = received.as_ref().map(Receipt::bytes).unwrap_or_default();
        agree(&sent?, &received?)
    }
    .await;
    progress.end(outcome)
}

/// Says `open` on standard output once the connection works, so that whoever started it can go on.
async fn hold(target: SocketAddr) -> Report {
    let mut progress = Progress::new(target);
    let told_to_end = input_ended();
    tokio::pin!(told_to_end);
    let outcome = async {
        let mut stream = progress.connect(target).await?;
        exchange(&mut stream, 0).await?;
        println!("open");
        for word in 1.. {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
                () = &mut told_to_end => break,
            }
            exchange(&mut stream, word).await?;
            progress.report.sent += 8;
        }
        Ok(())
    }
    .await;
    progress.end(outcome)
}

async fn send_all(stream: &mut TcpStream, volume: &Volume) -> Result<Receipt, Outcome> {
    let mut payload = volume.payload();
    let mut receipt = Receipt::default();
    let mut buffer = vec![0; 64 << 10];
    while receipt.bytes() < volume.bytes {
        let piece = usize::try_from(volume.bytes - receipt.bytes())
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        payload.fill(&mut buffer[..piece]);
        within(stream.write_all(&buffer[..piece])).await?;
        receipt.add(&buffer[..piece]);
    }
    Ok(receipt)
}

fn expect_receipt(report: &mut Report, sent: &Receipt, answer: String) -> Result<(), Outcome> {
    let answer = answer.trim().to_owned();
    report.received = answer.len() as u64;
    let matches = answer == sent.text();
    report.answer = Some(answer.clone());
    match answer.as_str() {
        _ if matches => Ok(()),
        "" => Err(Outcome::Closed),
        other => Err(Outcome::Corrupted(format!(
            "sent {}, the server got {other}",
            sent.text()
        ))),
    }
}

fn agree(sent: &Receipt, received: &Receipt) -> Result<(), Outcome> {
    if sent.text() == received.text() {
        Ok(())
    } else if received.bytes() < sent.bytes() {
        Err(Outcome::Closed)
    } else {
        Err(Outcome::Corrupted(format!(
            "sent {}, got back {}",
            sent.text(),
            received.text()
        )))
    }
}

async fn within<T>(step: impl Future<Output = std::io::Result<T>>) -> Result<T, Outcome> {
    Ok(tokio::time::timeout(STALL, step)
        .await
        .map_err(|_| Outcome::TimedOut)??)
}
