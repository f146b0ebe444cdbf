// SPDX-License-Identifier: Apache-2.0
//! Traffic that goes on until it is told to end, and says what happens to it as it happens.
//!
//! ```text
//!  transfers   few connections, bytes all the time at a steady rate, echoed and compared
//!  talks       few connections, a short request and its answer again and again
//!  visits      a new connection each time: one request, one answer, the end
//! ```
//! Comes in: a plan on the command line; the end of standard input ends it in order. Goes out: one [`Event`] a line. A
//! connection that is broken is told and made again. Judges nothing: [`crate::load`] does.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::lifeline::input_ended;
use crate::traffic::payload::Payload;
use crate::traffic::{Outcome, Report};

/// What to send, how often, and to whom.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Echo servers; connections are dealt out to them in turn
    #[arg(required = true)]
    pub targets: Vec<SocketAddr>,
    /// Connections that carry bytes all the time
    #[arg(long, default_value_t = 2)]
    pub transfers: u32,
    /// Bytes per second of each transfer, in each direction
    #[arg(long, default_value_t = 1 << 20)]
    pub rate: u64,
    /// Connections that carry requests and answers
    #[arg(long, default_value_t = 2)]
    pub talks: u32,
    /// Requests per second of each talk
    #[arg(long, default_value_t = 20)]
    pub requests: u32,
    /// New connections per second
    #[arg(long, default_value_t = 20)]
    pub visits: u32,
    /// A text woven into all that is sent, to be looked for on the wire
    #[arg(long, default_value = "load")]
    pub marker: String,
    /// Seconds without a byte, on a connection in use, that end it
    #[arg(long, default_value_t = 20)]
    pub stall: u64,
    /// Go on until killed, whatever becomes of standard input
    #[arg(long)]
    pub forever: bool,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in microseconds since the epoch.
    pub at: u64,
    pub line: Line,
    pub what: What,
}

/// Which kind of traffic it happened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    Transfer,
    Talk,
    Visit,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum What {
    /// A transfer has had so many bytes back, all of them right.
    Moved { bytes: u64 },
    /// A request had its answer, or a visit was made, in so many microseconds.
    Answered { micros: u64 },
    /// A visit or the making of a connection failed after so many microseconds.
    Refused {
        outcome: Outcome,
        micros: u64,
        local: Option<SocketAddr>,
    },
    /// A connection that had worked came to its end.
    Ended {
        outcome: Outcome,
        local: Option<SocketAddr>,
        sent: u64,
        received: u64,
    },
}

/// This moment as events tell it.
pub fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

const CONNECT: Duration = Duration::from_secs(15);
/// Before a broken connection is made again.
const PAUSE: Duration = Duration::from_millis(100);
/// Visits under way at a time; more would hide that they have come to a halt.
const MOST_VISITS: usize = 256;
const CHUNK: usize = 16 << 10;
const TELL: Duration = Duration::from_millis(100);

/// What every part of the traffic knows.
#[derive(Clone)]
struct Shared {
    plan: Rc<Plan>,
    stop: CancellationToken,
    next_target: Rc<Cell<usize>>,
    tally: Rc<Cell<Counts>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    connections: u64,
    sent: u64,
    received: u64,
    wrong: u64,
}

/// Keeps the traffic up until standard input ends. The report sums it up.
pub async fn generate(plan: &Plan) -> Report {
    let shared = Shared {
        plan: Rc::new(plan.clone()),
        stop: CancellationToken::new(),
        next_target: Rc::default(),
        tally: Rc::default(),
    };
    let mut parts = JoinSet::new();
    for _ in 0..plan.transfers {
        parts.spawn_local(keep_transferring(shared.clone()));
    }
    for _ in 0..plan.talks {
        parts.spawn_local(keep_talking(shared.clone()));
    }
    parts.spawn_local(keep_visiting(shared.clone()));
    if plan.forever {
        std::future::pending::<()>().await;
    }
    input_ended().await;
    shared.stop.cancel();
    while parts.join_next().await.is_some() {}
    let counts = shared.tally.get();
    let mut report = Report::new(match counts.wrong {
        0 => Outcome::Done,
        wrong => Outcome::Corrupted(format!("{wrong} connections")),
    });
    report.connections = counts.connections;
    report.sent = counts.sent;
    report.received = counts.received;
    report
}

impl Shared {
    fn say(&self, line: Line, what: What) {
        let mut counts = self.tally.get();
        if let What::Ended {
            outcome,
            sent,
            received,
            ..
        } = &what
        {
            counts.sent += sent;
            counts.received += received;
            counts.wrong += u64::from(matches!(outcome, Outcome::Corrupted(_)));
        }
        self.tally.set(counts);
        let event = Event {
            at: now(),
            line,
            what,
        };
        // Plain data always has a JSON form.
        if let Ok(text) = serde_json::to_string(&event) {
            println!("{text}");
        }
    }

    fn target(&self) -> SocketAddr {
        let next = self.next_target.get();
        self.next_target.set(next.wrapping_add(1));
        self.plan.targets[next % self.plan.targets.len()]
    }

    async fn connect(&self) -> Result<TcpStream, Outcome> {
        let connected = timeout(CONNECT, TcpStream::connect(self.target())).await;
        let stream = connected.map_err(|_| Outcome::TimedOut)??;
        stream.set_nodelay(true)?;
        let mut counts = self.tally.get();
        counts.connections += 1;
        self.tally.set(counts);
        Ok(stream)
    }

    /// Connects and says something that comes back: through a proxy only that shows that there is a connection.
    async fn open(&self, line: Line) -> Option<TcpStream> {
        let started = Instant::now();
        let mut local = None;
        let opened = async {
            let mut stream = self.connect().await?;
            local = stream.local_addr().ok();
            exchange(self, &mut stream, &self.request(0)).await?;
            Ok(stream)
        };
        match opened.await {
            Ok(stream) => Some(stream),
            Err(outcome) => {
                let micros = micros(started);
                self.say(
                    line,
                    What::Refused {
                        outcome,
                        micros,
                        local,
                    },
                );
                self.pause().await;
                None
            }
        }
    }

    fn request(&self, number: u64) -> Vec<u8> {
        let mut request = self.plan.marker.clone().into_bytes();
        request.extend(number.to_be_bytes());
        request.extend(rand::random::<[u8; 8]>());
        request
    }

    async fn within<T>(
        &self,
        step: impl Future<Output = std::io::Result<T>>,
    ) -> Result<T, Outcome> {
        Ok(timeout(Duration::from_secs(self.plan.stall), step)
            .await
            .map_err(|_| Outcome::TimedOut)??)
    }

    async fn pause(&self) {
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

async fn keep_transferring(shared: Shared) {
    while !shared.stop.is_cancelled() {
        let Some(stream) = shared.open(Line::Transfer).await else {
            continue;
        };
        let local = stream.local_addr().ok();
        let (sent, received) = (Cell::new(0), Cell::new(0));
        let outcome = transfer(&shared, stream, &sent, &received).await;
        shared.say(
            Line::Transfer,
            What::Ended {
                outcome: outcome.err().unwrap_or(Outcome::Done),
                local,
                sent: sent.get(),
                received: received.get(),
            },
        );
        shared.pause().await;
    }
}

/// Until told to stop, then to the last byte.
async fn transfer(
    shared: &Shared,
    stream: TcpStream,
    sent: &Cell<u64>,
    received: &Cell<u64>,
) -> Result<(), Outcome> {
    let (reading, writing) = stream.into_split();
    let seed = format!("{}{:016x}", shared.plan.marker, rand::random::<u64>());
    let mut send = std::pin::pin!(send(shared, writing, Payload::numbered(&seed), sent));
    let mut receive = std::pin::pin!(receive(
        shared,
        reading,
        Payload::numbered(&seed),
        sent,
        received
    ));
    tokio::select! {
        biased;
        outcome = &mut receive => outcome,
        outcome = &mut send => match outcome {
            Ok(()) => receive.await,
            // What broke the connection is better told by the side that reads.
            Err(outcome) => match timeout(Duration::from_secs(1), receive).await {
                Ok(Err(told)) => Err(told),
                _ => Err(outcome),
            },
        },
    }
}

async fn send(
    shared: &Shared,
    mut writing: OwnedWriteHalf,
    mut payload: Payload,
    sent: &Cell<u64>,
) -> Result<(), Outcome> {
    let pace = Duration::from_secs_f64(CHUNK as f64 / shared.plan.rate.max(1) as f64);
    let mut pace = interval(pace);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut chunk = vec![0; CHUNK];
    loop {
        tokio::select! {
            _ = pace.tick() => {}
            () = shared.stop.cancelled() => {
                writing.shutdown().await?;
                return Ok(());
            }
        }
        payload.fill(&mut chunk);
        // Counted before: what comes back of it may be there first.
        sent.set(sent.get() + CHUNK as u64);
        shared.within(writing.write_all(&chunk)).await?;
    }
}

async fn receive(
    shared: &Shared,
    mut reading: OwnedReadHalf,
    mut expected: Payload,
    sent: &Cell<u64>,
    received: &Cell<u64>,
) -> Result<(), Outcome> {
    let mut had = vec![0; 64 << 10];
    let mut wanted = vec![0; 64 << 10];
    let mut told = Instant::now();
    loop {
        let count = shared.within(reading.read(&mut had)).await?;
        if count == 0 {
            return match shared.stop.is_cancelled() && sent.get() == received.get() {
                true => Ok(()),
                false => Err(Outcome::Closed),
            };
        }
        expected.fill(&mut wanted[..count]);
        if had[..count] != wanted[..count] {
            let wrong = (0..count)
                .find(|at| had[*at] != wanted[*at])
                .unwrap_or_default();
            return Err(Outcome::Corrupted(format!(
                "byte {} is not the one sent",
                received.get() + wrong as u64
            )));
        }
        received.set(received.get() + count as u64);
        if told.elapsed() >= TELL {
            told = Instant::now();
            shared.say(
                Line::Transfer,
                What::Moved {
                    bytes: received.get(),
                },
            );
        }
    }
}

async fn keep_talking(shared: Shared) {
    while !shared.stop.is_cancelled() {
        let Some(mut stream) = shared.open(Line::Talk).await else {
            continue;
        };
        let local = stream.local_addr().ok();
        let mut passed = 0;
        let outcome = talk(&shared, &mut stream, &mut passed).await;
        shared.say(
            Line::Talk,
            What::Ended {
                outcome: outcome.err().unwrap_or(Outcome::Done),
                local,
                sent: passed,
                received: passed,
            },
        );
        shared.pause().await;
    }
}

async fn talk(shared: &Shared, stream: &mut TcpStream, passed: &mut u64) -> Result<(), Outcome> {
    let mut pace = interval(Duration::from_secs(1) / shared.plan.requests.max(1));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1.. {
        tokio::select! {
            _ = pace.tick() => {}
            () = shared.stop.cancelled() => break,
        }
        let started = Instant::now();
        let request = shared.request(number);
        exchange(shared, stream, &request).await?;
        *passed += request.len() as u64;
        let micros = micros(started);
        shared.say(Line::Talk, What::Answered { micros });
    }
    finish(shared, stream).await
}

async fn keep_visiting(shared: Shared) {
    if shared.plan.visits == 0 {
        return;
    }
    let mut pace = interval(Duration::from_secs(1) / shared.plan.visits);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            _ = pace.tick() => {}
            () = shared.stop.cancelled() => break,
        }
        while open.try_join_next().is_some() {}
        if open.len() < MOST_VISITS {
            let shared = shared.clone();
            open.spawn_local(async move { visit(&shared).await });
        }
    }
    while open.join_next().await.is_some() {}
}

async fn visit(shared: &Shared) {
    let started = Instant::now();
    let mut local = None;
    let visited = async {
        let mut stream = shared.connect().await?;
        local = stream.local_addr().ok();
        exchange(shared, &mut stream, &shared.request(0)).await?;
        finish(shared, &mut stream).await
    };
    let what = match visited.await {
        Ok(()) => What::Answered {
            micros: micros(started),
        },
        Err(outcome) => What::Refused {
            outcome,
            micros: micros(started),
            local,
        },
    };
    shared.say(Line::Visit, what);
}

async fn exchange(shared: &Shared, stream: &mut TcpStream, request: &[u8]) -> Result<(), Outcome> {
    shared.within(stream.write_all(request)).await?;
    let mut answer = vec![0; request.len()];
    shared.within(stream.read_exact(&mut answer)).await?;
    if answer == request {
        Ok(())
    } else {
        Err(Outcome::Corrupted(
            "the answer is not what was asked".into(),
        ))
    }
}

/// Ends the own half and reads the end of the other.
async fn finish(shared: &Shared, stream: &mut TcpStream) -> Result<(), Outcome> {
    stream.shutdown().await?;
    match shared.within(stream.read(&mut [0; 1])).await? {
        0 => Ok(()),
        _ => Err(Outcome::Corrupted("bytes that nobody sent".into())),
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_they_are_written() {
        let event = Event {
            at: 7,
            line: Line::Visit,
            what: What::Refused {
                outcome: Outcome::Corrupted("x".into()),
                micros: 3,
                local: None,
            },
        };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
