// SPDX-License-Identifier: Apache-2.0
//! A control plane that is none: it has learnt what the real one says, takes its place, and then says what it is told to.
//!
//! ```text
//!   learn from the real one ─► wait until its port is free ─► serve: what it learnt ─► one act per line of input ─► …
//! ```
//! In: the acts' names ([`acts`]), one a line. Out: a JSON value each, with all that the clients replied to it. It signs
//! nothing: whoever asks for a certificate gets none.

mod acts;
mod learnt;
mod wire;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use proto::ads::DeltaDiscoveryRequest;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::StreamExt as _;
use tonic::Status;

pub use self::acts::Act;
pub use self::learnt::Count;
use self::learnt::Learnt;
use self::wire::Said;
use crate::member::Member;

#[derive(Debug, Clone, clap::Args)]
pub struct Mimic {
    /// Who it is to the real one
    #[command(flatten)]
    pub member: Member,
    /// PEM file with the chain and the key to show to clients
    #[arg(long)]
    pub credentials: PathBuf,
    /// Where the real one listens
    #[arg(long)]
    pub listen: SocketAddr,
}

/// What came of an act.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Done {
    /// Clients that it was done to.
    pub clients: usize,
    /// Those that were there again, or still, at its end.
    pub back: usize,
    /// Messages that each of them was sent.
    pub messages: usize,
    /// Replies that accepted.
    pub accepted: usize,
    /// The reasons of those that did not.
    pub refused: Vec<String>,
    pub took: Duration,
}

/// How long replies are waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Messages that may wait for a client that does not read.
const QUEUE: usize = 64;

/// All clients' streams.
struct Stage {
    learnt: Learnt,
    clients: Mutex<Vec<mpsc::Sender<Said>>>,
    /// Replies by the nonce of what they answer: none accepts, some says why not.
    replies: Mutex<Vec<(String, Option<String>)>>,
    /// Changes with everything that is heard.
    changed: watch::Sender<u64>,
}

pub async fn run(mimic: &Mimic) -> Result<()> {
    let learnt = Learnt::from(&mimic.member).await?;
    let tls = TlsAcceptor::from(Arc::new(config(&mimic.credentials)?));
    super::print(&learnt.count())?;
    let stage = Arc::new(Stage {
        learnt,
        clients: Mutex::default(),
        replies: Mutex::default(),
        changed: watch::Sender::new(0),
    });
    let listener = listen(mimic.listen).await?;
    tokio::spawn(accept(listener, tls, Arc::clone(&stage)));
    let (told, mut lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lines().map_while(Result::ok);
        lines.try_for_each(|line| told.blocking_send(line))
    });
    while let Some(line) = lines.recv().await {
        let act: Act = line.parse().map_err(anyhow::Error::msg)?;
        super::print(&stage.perform(act).await?)?;
    }
    Ok(())
}

/// The real one may still be there.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let started = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if started.elapsed() > PATIENCE => {
                return Err(error).with_context(|| format!("cannot listen on {address}"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn config(credentials: &std::path::Path) -> Result<ServerConfig> {
    let text = std::fs::read(credentials)
        .with_context(|| format!("cannot read {}", credentials.display()))?;
    let chain = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .context("--credentials: the chain")?;
    let key = PrivateKeyDer::from_pem_slice(&text).context("--credentials: the key")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context("TLS 1.3")?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("--credentials")?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, stage: Arc<Stage>) {
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, stage) = (tls.clone(), Arc::clone(&stage));
        tokio::spawn(async move {
            let Ok(secured) = tls.accept(socket).await else {
                return;
            };
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let stage = Arc::clone(&stage);
                async move {
                    let discovery = request.uri().path().ends_with("/DeltaAggregatedResources");
                    let mut grpc = tonic::server::Grpc::new(wire::ByHand);
                    Ok::<_, Infallible>(match discovery {
                        true => grpc.streaming(wire::Session(stage), request).await,
                        false => Status::unimplemented("not here").into_http(),
                    })
                }
            });
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ended_by_either = http.serve_connection(TokioIo::new(secured), service).await;
        });
    }
}

impl Stage {
    /// Notes what a client says. The first request for a type is answered with what it lacks of what was learnt.
    fn hear(&self, request: &DeltaDiscoveryRequest, first: bool) -> Option<Vec<u8>> {
        if first {
            return self.learnt.beyond(request);
        }
        if !request.response_nonce.is_empty() {
            let refusal = request
                .error_detail
                .as_ref()
                .map(|error| error.message.clone());
            let reply = (request.response_nonce.clone(), refusal);
            self.replies.lock().push(reply);
            self.changed.send_modify(|count| *count += 1);
        }
        None
    }

    fn enter(&self, client: mpsc::Sender<Said>) {
        self.clients.lock().push(client);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Those whose stream goes on.
    fn present(&self) -> Vec<mpsc::Sender<Said>> {
        let mut clients = self.clients.lock();
        clients.retain(|client| !client.is_closed());
        clients.clone()
    }

    /// Does it to everybody, and waits for what they say.
    async fn perform(&self, act: Act) -> Result<Done> {
        let started = Instant::now();
        if act == Act::Wait {
            // For the two proxies of the lab.
            self.until(|stage| stage.present().len() >= 2).await;
        }
        let clients = self.present();
        let nonce = format!("{act}#{:016x}", rand::random::<u64>());
        let script = acts::script(act, &nonce, &self.learnt);
        self.replies.lock().clear();
        let messages = script.len();
        for client in &clients {
            for message in &script {
                // A client may leave at any of them; that is what some are for.
                let sent = client.send(message.clone());
                let _gone = tokio::time::timeout(PATIENCE, sent).await;
            }
        }
        let wanted = match act.is_answered() {
            true => clients.len() * messages,
            false => 0,
        };
        let answered = |stage: &Self| stage.replies(&nonce).len() >= wanted;
        match act {
            Act::Obstinacy => self.insist(&nonce, &script, &clients).await,
            _ => self.until(answered).await,
        }
        if !act.is_answered() {
            // Whoever was driven away comes back.
            self.until(|_| clients.iter().all(|client| client.is_closed()))
                .await;
            self.until(|stage| stage.present().len() >= clients.len())
                .await;
        }
        let replies = self.replies(&nonce);
        let (accepted, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(Option::is_none);
        Ok(Done {
            clients: clients.len(),
            back: self.present().len(),
            messages,
            accepted: accepted.len(),
            refused: refused.into_iter().flatten().collect(),
            took: started.elapsed(),
        })
    }

    /// Says the same again whenever it is refused, for a while.
    async fn insist(&self, nonce: &str, messages: &[Said], clients: &[mpsc::Sender<Said>]) {
        let mut changed = self.changed.subscribe();
        let insisting = async {
            let mut said = clients.len();
            loop {
                while said - self.replies(nonce).len() < clients.len() {
                    for client in clients {
                        let _gone = client.send(messages[0].clone()).await;
                        said += 1;
                    }
                }
                let _never_closed = changed.changed().await;
            }
        };
        let _over = tokio::time::timeout(acts::OBSTINATE, insisting).await;
    }

    fn replies(&self, nonce: &str) -> Vec<Option<String>> {
        let replies = self.replies.lock();
        let of_it = replies.iter().filter(|(of, _)| of == nonce);
        of_it.map(|(_, refusal)| refusal.clone()).collect()
    }

    /// Until it holds, or for as long as patience lasts: the report says which.
    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !holds(self) {
                // Streams that end say nothing.
                let _look =
                    tokio::time::timeout(Duration::from_millis(50), changed.changed()).await;
            }
        };
        let _in_time = tokio::time::timeout(PATIENCE, waiting).await;
    }

    /// Hears a client out.
    async fn converse(
        self: Arc<Self>,
        mut requests: tonic::Streaming<DeltaDiscoveryRequest>,
        messages: mpsc::Sender<Said>,
    ) {
        self.enter(messages.clone());
        let mut types = BTreeSet::new();
        while let Some(Ok(request)) = requests.next().await {
            let first = request.response_nonce.is_empty() && types.insert(request.type_url.clone());
            if let Some(message) = self.hear(&request, first)
                && messages.send(Ok(message)).await.is_err()
            {
                return;
            }
        }
    }
}
