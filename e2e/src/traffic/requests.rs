// SPDX-License-Identifier: Apache-2.0
//! Clients that ask, and go on asking, as applications do: what one of them may take for granted is that a request that
//! was sent is answered. A connection that its server has ended between two requests is replaced without a word.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HOST, HeaderValue, UPGRADE};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::lifeline::input_ended;
use crate::traffic::{Outcome, Report};

/// What is asked, of a server of the manner `web`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Requests on a connection that is kept
    Http,
    /// A body that waits for the server's go-ahead
    Continue,
    /// Calls with trailers on a connection that is kept
    Grpc,
    /// Talks of a few messages each, on a connection of its own
    Websocket,
}

#[derive(Debug, Clone, Args)]
pub struct Requests {
    pub kind: Kind,
    pub target: SocketAddr,
    /// So many in all, and then an end; without, until the input ends
    #[arg(long)]
    pub times: Option<u32>,
    /// Between two requests, or two messages of a talk
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub pause: u64,
    /// Clients at a time, each with a connection of its own
    #[arg(long, default_value_t = 1)]
    pub clients: u32,
}

/// Anything that should take a moment.
const PATIENCE: Duration = Duration::from_secs(10);
const MESSAGES: u32 = 4;
const FAILURES_TOLD: usize = 20;

/// Asks. The report counts answers as `connections`, and its answer tells the first failures, a line each.
pub async fn ask(requests: &Requests) -> Report {
    let told = RefCell::new(Vec::new());
    let mut report = Report::new(Outcome::Done);
    report.target = Some(requests.target);
    let clients = (0..requests.clients).map(|_| client(requests, &told));
    let asking = futures_util::future::join_all(clients);
    match requests.times {
        Some(_) => drop(asking.await),
        None => tokio::select! {
            _ = asking => {}
            () = input_ended() => {}
        },
    }
    let told = told.into_inner();
    let all = told.len();
    let failures: Vec<String> = told.into_iter().filter_map(Result::err).collect();
    report.connections = (all - failures.len()) as u64;
    if !failures.is_empty() {
        report.outcome = Outcome::Failed(format!("{} of {all} requests failed", failures.len()));
        let few: Vec<String> = failures.into_iter().take(FAILURES_TOLD).collect();
        report.answer = Some(few.join("\n"));
    }
    report
}

/// That a request was answered, or why not and when.
type Told = Result<(), String>;

async fn client(requests: &Requests, told: &RefCell<Vec<Told>>) {
    let began = Instant::now();
    let mut kept = Kept::default();
    let mut left = requests.times;
    while left != Some(0) {
        left = left.map(|left| left - 1);
        let asked = tokio::time::timeout(PATIENCE, kept.ask(requests)).await;
        let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
        let at = began.elapsed().as_secs_f32();
        told.borrow_mut()
            .push(asked.map_err(|why| format!("after {at:.2} s: {why}")));
        tokio::time::sleep(Duration::from_millis(requests.pause)).await;
    }
}

type Whole = Full<Bytes>;

/// The connection that is used again.
#[derive(Default)]
struct Kept {
    http1: Option<http1::SendRequest<Whole>>,
    http2: Option<http2::SendRequest<Whole>>,
}

fn words(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

async fn connect(target: SocketAddr) -> Result<TokioIo<TcpStream>, String> {
    let stream = TcpStream::connect(target).await.map_err(words)?;
    stream.set_nodelay(true).map_err(words)?;
    Ok(TokioIo::new(stream))
}

async fn connect1(target: SocketAddr) -> Result<http1::SendRequest<Whole>, String> {
    let (sender, connection) = http1::handshake(connect(target).await?)
        .await
        .map_err(words)?;
    tokio::task::spawn_local(connection.with_upgrades());
    Ok(sender)
}

async fn connect2(target: SocketAddr) -> Result<http2::SendRequest<Whole>, String> {
    let handshake = http2::handshake(TokioExecutor::new(), connect(target).await?);
    let (sender, connection) = handshake.await.map_err(words)?;
    tokio::task::spawn_local(connection);
    Ok(sender)
}

/// As a library for gRPC has it: a GOAWAY without an error fails the streams that the server will not answer.
fn was_not_looked_at(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error);
    let cause = cause.and_then(|cause| cause.downcast_ref::<h2::Error>());
    error.is_canceled()
        || cause.is_some_and(|cause| {
            cause.is_go_away() && cause.is_remote() && cause.reason() == Some(h2::Reason::NO_ERROR)
        })
}

impl Kept {
    async fn ask(&mut self, requests: &Requests) -> Told {
        let Requests {
            kind,
            target,
            pause,
            ..
        } = *requests;
        match kind {
            Kind::Http => self.plain(request(target, "/"), None).await,
            Kind::Continue => {
                let mut request = request(target, "/echo");
                request
                    .headers_mut()
                    .insert(EXPECT, HeaderValue::from_static("100-continue"));
                *request.body_mut() = Full::new(Bytes::from_static(b"worth waiting for"));
                self.plain(request, Some(b"worth waiting for")).await
            }
            Kind::Grpc => self.call(target).await,
            Kind::Websocket => talk(target, Duration::from_millis(pause)).await,
        }
    }

    async fn plain(&mut self, request: Request<Whole>, body: Option<&[u8]>) -> Told {
        let target = request.uri().to_string();
        let address: SocketAddr = request.headers()[HOST]
            .to_str()
            .map_err(words)?
            .parse()
            .map_err(words)?;
        let mut kept = self.http1.take();
        if let Some(sender) = &mut kept
            && sender.ready().await.is_err()
        {
            kept = None;
        }
        let mut sender = match kept {
            Some(sender) => sender,
            None => connect1(address).await?,
        };
        let response = match sender.try_send_request(request).await {
            Ok(response) => response,
            Err(mut error) => match error.take_message() {
                Some(request) => {
                    sender = connect1(address).await?;
                    sender.send_request(request).await.map_err(words)?
                }
                None => return Err(words(error.into_error())),
            },
        };
        let status = response.status();
        let said = response
            .into_body()
            .collect()
            .await
            .map_err(words)?
            .to_bytes();
        self.http1 = Some(sender);
        if status != StatusCode::OK {
            return Err(format!(
                "{target}: {status}: {}",
                String::from_utf8_lossy(&said)
            ));
        }
        match body {
            Some(body) if *said != *body => Err(format!("{said:?} came back")),
            _ => Ok(()),
        }
    }

    async fn call(&mut self, target: SocketAddr) -> Told {
        let mut kept = self.http2.take();
        if let Some(sender) = &mut kept
            && sender.ready().await.is_err()
        {
            kept = None;
        }
        let mut sender = match kept {
            Some(sender) => sender,
            None => connect2(target).await?,
        };
        let message: &'static [u8] = b"\0\0\0\0\x05hello";
        let mut again = true;
        let response = loop {
            let request = Request::post(format!("http://{target}/grpc/echo"))
                .header(CONTENT_TYPE, "application/grpc")
                .header("te", "trailers")
                .body(Full::new(Bytes::from_static(message)))
                .map_err(words)?;
            match sender.send_request(request).await {
                Ok(response) => break response,
                // The server is about to end the connection, and has not looked at this.
                Err(error) if again && was_not_looked_at(&error) => {
                    again = false;
                    sender = connect2(target).await?;
                }
                Err(error) => return Err(words(error)),
            }
        };
        let status = response.status();
        let whole = response.into_body().collect().await.map_err(words)?;
        let grpc = whole
            .trailers()
            .and_then(|all| all.get("grpc-status"))
            .cloned();
        let said = whole.to_bytes();
        self.http2 = Some(sender);
        let good = grpc.as_ref().is_some_and(|code| code == "0");
        match status == StatusCode::OK && good && *said == *message {
            true => Ok(()),
            false => Err(format!("{status}, grpc-status {grpc:?}, {said:?}")),
        }
    }
}

fn request(target: SocketAddr, path: &'static str) -> Request<Whole> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = http::Uri::from_static(path);
    let host = HeaderValue::from_str(&target.to_string());
    request
        .headers_mut()
        .insert(HOST, host.expect("an address is a header's value"));
    request
}

/// Messages there and back, and an end that both say.
async fn talk(target: SocketAddr, pause: Duration) -> Told {
    let mut sender = connect1(target).await?;
    let mut asked = request(target, "/ws");
    asked
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    asked
        .headers_mut()
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    let response = sender.send_request(asked).await.map_err(words)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(response.status().to_string());
    }
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.map_err(words)?);
    for number in 0..MESSAGES {
        let message = format!("message {number}\n");
        stream.write_all(message.as_bytes()).await.map_err(words)?;
        let mut back = vec![0; message.len()];
        stream.read_exact(&mut back).await.map_err(words)?;
        if back != message.as_bytes() {
            return Err(format!("{back:?} instead of {message:?}"));
        }
        tokio::time::sleep(pause).await;
    }
    let said_and_ended = async {
        stream.shutdown().await?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await?;
        Ok::<_, io::Error>(rest)
    };
    match said_and_ended.await.map_err(words)?.len() {
        0 => Ok(()),
        more => Err(format!("{more} bytes more than were sent")),
    }
}
