// SPDX-License-Identifier: Apache-2.0
//! Asks the upstream servers: one after the other until one answers, over the transport that the client chose.
//!
//! In: a query and the pod from which to ask. Out: the response with the client's id, untouched otherwise, or what each
//! server did instead. Each try has a socket, a port and an id of its own, and takes only what that server says to that
//! question (RFC 5452). Which servers there are stands in a file that is read again and again, since it may change.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capture::Netns;
use parking_lot::{Mutex, RwLock};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::answer::Transport;
use super::message::{self, Query, Rcode};
use super::resolv_conf::{ResolvConf, Turn};

/// Everything that is tried for one query ends after this: no client waits longer.
const LONGEST_QUERY: Duration = Duration::from_secs(10);
/// A server that didn't answer is asked last for this long.
const DEMOTED_FOR: Duration = Duration::from_secs(30);
/// How often the file is looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(5);
const LONGEST_MESSAGE: usize = 65_535;

/// Where the sockets are made.
#[derive(Debug, Clone, Copy)]
pub struct Way<'a> {
    pub netns: &'a Netns,
    /// Keeps capture rules from sending our own queries back to us.
    pub mark: Option<u32>,
}

pub struct Upstreams {
    path: PathBuf,
    conf: RwLock<Arc<ResolvConf>>,
    /// The file as it was read last, or why it couldn't be.
    text: Mutex<Result<String, String>>,
    rotation: AtomicUsize,
    demoted: Mutex<Option<Demoted>>,
}

/// The first `count` servers of the list did not answer.
#[derive(Debug, Clone, Copy)]
struct Demoted {
    count: usize,
    until: Instant,
}

#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("{0} names no usable upstream server")]
    NoServer(String),
    #[error("no upstream server answered: {}", .0.join("; "))]
    Silent(Vec<String>),
}

impl Upstreams {
    pub fn read(path: PathBuf) -> Arc<Self> {
        let upstreams = Self {
            path,
            conf: RwLock::new(Arc::new(ResolvConf::parse(""))),
            text: Mutex::new(Ok(String::new())),
            rotation: AtomicUsize::new(0),
            demoted: Mutex::new(None),
        };
        upstreams.look(First::Yes);
        Arc::new(upstreams)
    }

    /// Reads the file again whenever it has changed, for as long as the process lives.
    pub async fn follow(&self) {
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            self.look(First::No);
        }
    }

    fn look(&self, first: First) {
        let text = std::fs::read_to_string(&self.path).map_err(|error| error.to_string());
        let path = self.path.display();
        {
            let mut known = self.text.lock();
            if *known == text && first == First::No {
                return;
            }
            known.clone_from(&text);
        }
        let conf = match text {
            Ok(text) => ResolvConf::parse(&text),
            Err(error) => {
                warn!(%path, error, "upstream DNS servers can't be read; those known are kept");
                return;
            }
        };
        for reason in &conf.unusable {
            warn!(%path, "{reason}; set RESOLV_CONF to another file if this one is the node's own");
        }
        if conf.servers.is_empty() {
            warn!(%path, "no usable upstream DNS server: only names of the mesh are answered");
        } else {
            info!(%path, servers = ?conf.servers, "upstream DNS servers");
        }
        *self.conf.write() = Arc::new(conf);
        *self.demoted.lock() = None;
    }

    pub fn servers(&self) -> Vec<SocketAddr> {
        self.conf.read().servers.clone()
    }

    /// Asks until a server answers.
    ///
    /// # Errors
    /// Names each server and what it did instead.
    pub async fn ask(
        &self,
        way: Way<'_>,
        query: &Query,
        transport: Transport,
    ) -> Result<Vec<u8>, UpstreamError> {
        let conf = Arc::clone(&self.conf.read());
        let count = conf.servers.len();
        if count == 0 {
            return Err(UpstreamError::NoServer(self.path.display().to_string()));
        }
        let deadline = Instant::now() + LONGEST_QUERY;
        let first = self.first(&conf);
        let mut refusal = None;
        let mut failures = Vec::new();
        for _attempt in 0..conf.attempts {
            for position in 0..count {
                let index = (first + position) % count;
                let server = conf.servers[index];
                let patience = conf
                    .patience
                    .min(deadline.saturating_duration_since(Instant::now()));
                if patience.is_zero() {
                    break;
                }
                let failure = match timeout(patience, once(way, server, query, transport)).await {
                    Ok(Ok(response)) if is_last_word(&response) || count == 1 => {
                        return Ok(response);
                    }
                    Ok(Ok(response)) => {
                        refusal.get_or_insert(response);
                        continue;
                    }
                    Ok(Err(error)) => format!("{server}: {error}"),
                    Err(_) => format!("{server}: no answer within {patience:?}"),
                };
                failures.push(failure);
                self.demote(&conf, index);
            }
            // All have been asked; what one of them refuses they won't do the next time.
            if refusal.is_some() {
                break;
            }
        }
        refusal.ok_or(UpstreamError::Silent(failures))
    }

    fn first(&self, conf: &ResolvConf) -> usize {
        if conf.turn == Turn::Rotating {
            return self.rotation.fetch_add(1, Ordering::Relaxed) % conf.servers.len();
        }
        let demoted = *self.demoted.lock();
        demoted
            .filter(|demoted| Instant::now() < demoted.until)
            .map_or(0, |demoted| demoted.count % conf.servers.len())
    }

    fn demote(&self, conf: &ResolvConf, index: usize) {
        if conf.servers.len() > 1 {
            *self.demoted.lock() = Some(Demoted {
                count: index + 1,
                until: Instant::now() + DEMOTED_FOR,
            });
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Yes,
    No,
}

/// Another server may do what this one could not; as the C library's resolver has it.
fn is_last_word(response: &[u8]) -> bool {
    !matches!(
        message::rcode_of(response),
        Rcode::SERVER_FAILURE | Rcode::NOT_IMPLEMENTED | Rcode::REFUSED
    )
}

async fn once(
    way: Way<'_>,
    server: SocketAddr,
    query: &Query,
    transport: Transport,
) -> io::Result<Vec<u8>> {
    let id = rand::random();
    let mut message = query.bytes().to_vec();
    message::set_id(&mut message, id);
    let mut response = match transport {
        Transport::Udp => over_udp(way, server, query, id, &message).await?,
        Transport::Tcp => over_tcp(way, server, query, id, &message).await?,
    };
    message::set_id(&mut response, query.id());
    Ok(response)
}

async fn over_udp(
    way: Way<'_>,
    server: SocketAddr,
    query: &Query,
    id: u16,
    message: &[u8],
) -> io::Result<Vec<u8>> {
    let socket = capture::socket::udp_towards(way.netns, server, way.mark)?;
    let socket = UdpSocket::from_std(socket)?;
    socket.send(message).await?;
    // The word that nobody listens there makes a socket no more readable than it was.
    let something = Interest::READABLE | Interest::ERROR;
    loop {
        let receive = || {
            // Made only once there is something to read: most of the time a query waits.
            let mut response = vec![0; LONGEST_MESSAGE];
            let length = (&*SockRef::from(&socket)).read(&mut response)?;
            response.truncate(length);
            Ok(response)
        };
        let mut response = socket.async_io(something, receive).await?;
        if message::is_response_to(query, id, &response) {
            response.shrink_to_fit();
            return Ok(response);
        }
    }
}

async fn over_tcp(
    way: Way<'_>,
    server: SocketAddr,
    query: &Query,
    id: u16,
    message: &[u8],
) -> io::Result<Vec<u8>> {
    let family = capture::socket::domain_of(server.ip());
    let socket = capture::socket::tcp_socket(way.netns, family, way.mark, None)?;
    let mut stream = TcpSocket::from_std_stream(socket.into())
        .connect(server)
        .await?;
    stream.write_all(&framed(message)).await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; usize::from(length)];
    stream.read_exact(&mut response).await?;
    if message::is_response_to(query, id, &response) {
        Ok(response)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "answered another question",
        ))
    }
}

/// A message as it stands on a TCP connection: its length first (RFC 1035 §4.2.2).
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).expect("broken invariant: messages are bounded");
    [&length.to_be_bytes()[..], message].concat()
}

#[cfg(test)]
mod tests;
