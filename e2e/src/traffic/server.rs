// SPDX-License-Identifier: Apache-2.0
//! What pods of the lab serve: one process, one port for each manner of conversation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::traffic::{http, payload::Receipt, proxied, secured, web};

/// A manner of conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// HTTP/1.1: `/` says who answers and who asked, `/healthz` is for probes, `/receipt/ID` is what `finish-first` got.
    /// `/asked/PATH` says how often PATH was asked for, `/fail/N/…` answers 503 the first N times, `/slow/N/…` after N ms,
    /// `/status/403/…` that it is forbidden.
    Http,
    /// The same over TLS, with the certificate and key of the file that `TLS_FILE` names: `/` says which server was asked for.
    Https,
    /// Sends back what comes.
    Echo,
    /// Speaks first, then sends back what comes.
    Greet,
    /// Reads to the end, then answers with a receipt: the client's half is closed by then.
    Sink,
    /// HTTP/1.1 after a PROXY protocol header: `/` says what that told.
    Proxied,
    /// HTTP/1.1 and HTTP/2 as applications serve them: see [`web`].
    Web,
    /// Speaks an id, closes its half at once and reads on; the receipt is had by HTTP.
    FinishFirst,
}

impl Manner {
    pub const ALL: [(Self, &'static str, u16); 8] = [
        (Self::Http, "http", 8080),
        (Self::Web, "web", 8090),
        (Self::Https, "https", 8443),
        (Self::Echo, "echo", 9000),
        (Self::Greet, "greet", 9001),
        (Self::Sink, "sink", 9002),
        (Self::FinishFirst, "finish-first", 9003),
        (Self::Proxied, "proxied", 15088),
    ];
    /// What a pod serves that is told nothing.
    const USUAL: [Self; 6] = [
        Self::Http,
        Self::Web,
        Self::Echo,
        Self::Greet,
        Self::Sink,
        Self::FinishFirst,
    ];
}

/// A manner and its port, written `echo=9000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    pub manner: Manner,
    pub port: u16,
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, port) = text.split_once('=').unwrap_or((text, ""));
        let known = Manner::ALL.iter().find(|(_, known, _)| *known == name);
        let (manner, _, usual) = known.ok_or_else(|| {
            let names: Vec<&str> = Manner::ALL.iter().map(|(_, name, _)| *name).collect();
            format!("`{name}` is not served; there are: {}", names.join(", "))
        })?;
        let port = if port.is_empty() {
            Ok(*usual)
        } else {
            port.parse()
        };
        Ok(Self {
            manner: *manner,
            port: port.map_err(|error| format!("port of `{text}`: {error}"))?,
        })
    }
}

struct Shared {
    name: String,
    tls_file: Option<PathBuf>,
    receipts: RefCell<HashMap<String, Option<String>>>,
    /// How often each page was asked for.
    asked: RefCell<HashMap<String, u32>>,
    closing: CancellationToken,
    open: TaskTracker,
}

/// How many pages' counts are kept.
const MOST_PAGES: usize = 4096;

/// How long conversations that are open at SIGTERM have to come to their end.
const LAST_WORDS: Duration = Duration::from_millis(700);

/// Serves until SIGTERM, then as a good application does: nobody who connected is turned away, nobody else is let in.
/// `tls_file` has the chain and the key for [`Manner::Https`].
pub async fn serve(name: String, tls_file: Option<PathBuf>, services: Vec<Service>) -> Result<()> {
    let services = if services.is_empty() {
        let usual = Manner::ALL.iter();
        usual
            .filter(|(manner, _, _)| Manner::USUAL.contains(manner))
            .map(|(manner, _, port)| Service {
                manner: *manner,
                port: *port,
            })
            .collect()
    } else {
        services
    };
    let shared = Rc::new(Shared {
        name,
        tls_file,
        receipts: RefCell::default(),
        asked: RefCell::default(),
        closing: CancellationToken::new(),
        open: TaskTracker::new(),
    });
    for service in services {
        let listener = listen(service.port)
            .await
            .with_context(|| format!("cannot listen on port {}", service.port))?;
        println!("serving {:?} on port {}", service.manner, service.port);
        let accepting = accept(listener, service.manner, shared.clone());
        shared.open.spawn_local(accepting);
    }
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    terminate.recv().await;
    shared.closing.cancel();
    shared.open.close();
    let _whoever_is_left_is_reset = timeout(LAST_WORDS, shared.open.wait()).await;
    Ok(())
}

async fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = tokio::net::TcpSocket::new_v6()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))?;
    socket.listen(4096)
}

async fn accept(listener: TcpListener, manner: Manner, shared: Rc<Shared>) {
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = shared.closing.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let _nagle_stays = stream.set_nodelay(true);
                let open = shared.open.clone();
                let shared = shared.clone();
                open.spawn_local(async move {
                    if let Err(error) = converse(stream, peer, manner, &shared).await {
                        println!("{manner:?} with {peer}: {error}");
                    }
                });
            }
            // Out of file descriptors, as a rule: others must close theirs first.
            Err(error) => {
                println!("cannot accept: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn converse<'a>(
    stream: TcpStream,
    peer: SocketAddr,
    manner: Manner,
    shared: &'a Shared,
) -> std::pin::Pin<Box<dyn Future<Output = io::Result<()>> + 'a>> {
    Box::pin(async move {
        match manner {
            Manner::Http => {
                let local = stream.local_addr()?;
                page(stream, Between { peer, local }, None, shared).await
            }
            Manner::Https => {
                let local = stream.local_addr()?;
                let (stream, asked) = secured::accept(stream, shared.tls_file.as_deref()).await?;
                page(stream, Between { peer, local }, asked.as_deref(), shared).await
            }
            Manner::Web => web::serve(stream, &shared.name, &shared.closing, &shared.open).await,
            Manner::Proxied => proxied::page(stream, peer, &shared.name).await,
            Manner::Echo => echo(stream).await,
            Manner::Greet => greet(stream, shared).await,
            Manner::Sink => sink(stream).await,
            Manner::FinishFirst => finish_first(stream, shared).await,
        }
    })
}

/// The ends of a connection.
struct Between {
    peer: SocketAddr,
    local: SocketAddr,
}

/// Answers one request; `asked` is the server that the client's TLS asked for.
async fn page(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    Between { peer, local }: Between,
    asked: Option<&str>,
    shared: &Shared,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let head = http::read_head(&mut stream).await?;
    let path = head
        .first()
        .and_then(|line| line.split(' ').nth(1))
        .unwrap_or("/");
    if let Some(id) = path.strip_prefix("/receipt/") {
        let receipt = shared.receipts.borrow().get(id).cloned().flatten();
        return match receipt {
            Some(text) => http::answer(&mut stream, 200, "text/plain", &text).await,
            None => http::answer(&mut stream, 404, "text/plain", "no such receipt yet").await,
        };
    }
    if let Some(path) = path.strip_prefix("/asked") {
        let times = shared.asked.borrow().get(path).copied().unwrap_or(0);
        return http::answer(&mut stream, 200, "text/plain", &times.to_string()).await;
    }
    let times = shared.note(path);
    let number = |name: &str| {
        let rest = path.strip_prefix(name)?.split('/').next()?;
        rest.parse::<u32>().ok()
    };
    if number("/fail/").is_some_and(|failures| times <= failures) {
        return http::answer(&mut stream, 503, "text/plain", "not yet").await;
    }
    if number("/status/") == Some(403) {
        return http::answer(&mut stream, 403, "text/plain", "not for you").await;
    }
    if let Some(wait) = number("/slow/") {
        tokio::time::sleep(Duration::from_millis(wait.into())).await;
    }
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let local = SocketAddr::new(local.ip().to_canonical(), local.port());
    let headers = head.get(1..).unwrap_or_default();
    let body = serde_json::json!({
        "pod": shared.name, "client": peer, "server": local, "path": path, "headers": headers,
        "sni": asked,
    });
    let body = body.to_string() + "\n";
    http::answer(&mut stream, 200, "application/json", &body).await
}

impl Shared {
    /// Counts a page that is asked for, which stands for all others once there are too many to remember.
    fn note(&self, path: &str) -> u32 {
        let mut asked = self.asked.borrow_mut();
        let known = asked.len() < MOST_PAGES || asked.contains_key(path);
        let times = asked
            .entry(if known { path } else { "" }.to_owned())
            .or_default();
        *times += 1;
        *times
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

async fn greet(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream
        .write_all(format!("welcome to {}\n", shared.name).as_bytes())
        .await?;
    echo(stream).await
}

async fn sink(mut stream: TcpStream) -> io::Result<()> {
    let receipt = drain(&mut stream).await?;
    stream
        .write_all(format!("{}\n", receipt.text()).as_bytes())
        .await?;
    stream.shutdown().await
}

async fn finish_first(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let id = format!("{:016x}", rand::random::<u64>());
    shared.receipts.borrow_mut().insert(id.clone(), None);
    stream.write_all(format!("{id}\n").as_bytes()).await?;
    stream.shutdown().await?;
    let receipt = drain(&mut stream).await?;
    shared
        .receipts
        .borrow_mut()
        .insert(id, Some(receipt.text()));
    Ok(())
}

async fn drain(stream: &mut TcpStream) -> io::Result<Receipt> {
    let mut receipt = Receipt::default();
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(receipt);
        }
        receipt.add(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_written_with_or_without_port() {
        assert_eq!(
            "echo".parse(),
            Ok(Service {
                manner: Manner::Echo,
                port: 9000
            })
        );
        assert_eq!(
            "http=80".parse(),
            Ok(Service {
                manner: Manner::Http,
                port: 80
            })
        );
        assert!(
            "gopher"
                .parse::<Service>()
                .unwrap_err()
                .contains("finish-first")
        );
        assert!("http=x".parse::<Service>().is_err());
    }
}
