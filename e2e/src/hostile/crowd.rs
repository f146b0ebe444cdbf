// SPDX-License-Identifier: Apache-2.0
//! Many connections that come to nothing: they take a place and give nothing for it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::lifeline::input_ended;

#[derive(Debug, Clone, clap::Args)]
pub struct Crowd {
    /// The pod's address with port 15008
    pub target: SocketAddr,
    /// How many at a time
    #[arg(long, default_value_t = 1000)]
    pub count: u32,
    /// What each of them does
    #[arg(long, value_enum, default_value = "silent")]
    pub manner: Manner,
    /// Whoever is sent away comes again, until the input ends
    #[arg(long)]
    pub again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Manner {
    /// Says nothing at all
    Silent,
    /// Begins a handshake, and goes on with a byte now and then
    Dribbling,
    /// Says what is no TLS
    Garbage,
    /// Is gone as soon as it is there
    Fleeting,
}

/// What the crowd met.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Crowded {
    /// Connections that were accepted by the other end's kernel.
    pub connected: u64,
    /// Those that could not even be made.
    pub refused: u64,
    /// Those that the other end has ended.
    pub sent_away: u64,
    /// The longest that one was borne with.
    pub longest: Duration,
}

/// The first record of TLS 1.3 says it is a handshake of 512 bytes; most of them never come.
const BEGINNING: [u8; 9] = [22, 3, 1, 2, 0, 1, 0, 1, 252];
const BETWEEN_BYTES: Duration = Duration::from_millis(200);
/// No more connects than this are under way at a time.
const AT_ONCE: usize = 64;

/// What became of one of them.
enum Fate {
    /// The end came before it did.
    Late,
    NotConnected,
    SentAway(Duration),
    /// It stood there until the end.
    Borne(Duration),
}

pub async fn run(crowd: &Crowd) -> Result<Crowded> {
    let over = CancellationToken::new();
    let connects = std::sync::Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    let mut members = JoinSet::new();
    for _ in 0..crowd.count {
        let (crowd, over, connects) = (crowd.clone(), over.clone(), connects.clone());
        members.spawn_local(async move {
            let mut fates = Vec::new();
            loop {
                let fate = one(&crowd, &over, &connects).await;
                let refused = matches!(fate, Fate::NotConnected);
                fates.push(fate);
                if !crowd.again || over.is_cancelled() {
                    return fates;
                }
                if refused {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
    }
    let mut crowded = Crowded::default();
    let mut count = |fates: Vec<Fate>| {
        for fate in fates {
            let borne = match fate {
                Fate::Late => continue,
                Fate::NotConnected => {
                    crowded.refused += 1;
                    continue;
                }
                Fate::SentAway(after) => {
                    crowded.sent_away += 1;
                    after
                }
                Fate::Borne(time) => time,
            };
            crowded.connected += 1;
            crowded.longest = crowded.longest.max(borne);
        }
    };
    let mut end = std::pin::pin!(input_ended());
    loop {
        tokio::select! {
            () = &mut end, if !over.is_cancelled() => over.cancel(),
            fates = members.join_next() => match fates {
                Some(fates) => count(fates?),
                None => break,
            },
        }
    }
    Ok(crowded)
}

async fn one(crowd: &Crowd, over: &CancellationToken, connects: &tokio::sync::Semaphore) -> Fate {
    let connected = {
        let _turn = connects.acquire().await;
        tokio::select! {
            connected = TcpStream::connect(crowd.target) => connected,
            () = over.cancelled() => return Fate::Late,
        }
    };
    let Ok(mut stream) = connected else {
        return Fate::NotConnected;
    };
    let since = Instant::now();
    if crowd.manner == Manner::Fleeting {
        return Fate::Borne(since.elapsed());
    }
    tokio::select! {
        () = behave(crowd.manner, &mut stream) => Fate::SentAway(since.elapsed()),
        () = over.cancelled() => Fate::Borne(since.elapsed()),
    }
}

/// Returns once the other end has had enough.
async fn behave(manner: Manner, stream: &mut TcpStream) {
    let (mut reader, mut writer) = stream.split();
    let saying = async {
        match manner {
            Manner::Silent | Manner::Fleeting => std::future::pending().await,
            Manner::Garbage => {
                let _not_taken = writer.write_all(&[0xa5; 1024]).await;
                std::future::pending().await
            }
            Manner::Dribbling => {
                let mut said = writer.write_all(&BEGINNING).await;
                while said.is_ok() {
                    tokio::time::sleep(BETWEEN_BYTES).await;
                    said = writer.write_all(&[0]).await;
                }
            }
        }
    };
    let hearing = async {
        let mut heard = [0; 256];
        while reader.read(&mut heard).await.is_ok_and(|count| count > 0) {}
    };
    tokio::select! {
        () = saying => {}
        () = hearing => {}
    }
}
