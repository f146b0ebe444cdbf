// SPDX-License-Identifier: Apache-2.0
//! Either engine at either end: a tunnel of two kinds carries what a tunnel of one kind carries.

use std::time::Duration;

use crate::common::{Mesh, soon};
use hbone::{Config, End, Engine, Side};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PAIRS: [(Engine, Engine); 3] = [
    (Engine::Own, Engine::Library),
    (Engine::Library, Engine::Own),
    (Engine::Own, Engine::Own),
];

fn with(engine: Engine) -> Config {
    Config {
        engine,
        ..Config::default()
    }
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// What one connection does.
#[derive(Debug, Clone)]
struct Talk {
    seed: u8,
    up: usize,
    down: usize,
    write: usize,
    end: Finish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// The client closes its direction first, then the server answers.
    ClientFirst,
    /// Both at once.
    Together,
    /// The client aborts after it has heard all.
    Abort,
}

fn talk() -> impl Strategy<Value = Talk> {
    let size =
        || prop_oneof![3 => 0usize..2000, 2 => 10_000usize..200_000, 1 => 200_000usize..3_000_000];
    let end = prop_oneof![
        Just(Finish::ClientFirst),
        Just(Finish::Together),
        Just(Finish::Abort)
    ];
    (any::<u8>(), size(), size(), 1usize..300_000, end).prop_map(|(seed, up, down, write, end)| {
        Talk {
            seed,
            up,
            // An abort may overtake what the other end has not answered.
            down: down + 1,
            write,
            end,
        }
    })
}

async fn serve(listener: &TcpListener, talk: &Talk) -> TcpStream {
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    let (mut read, mut write) = server.split();
    let hear = async {
        let mut seen = vec![0; talk.up];
        read.read_exact(&mut seen).await.unwrap();
        assert!(seen == pattern(talk.seed, talk.up), "upwards");
        if talk.end == Finish::ClientFirst {
            assert_eq!(read.read(&mut [0; 1]).await.unwrap(), 0, "FIN upwards");
        }
    };
    let answer = pattern(talk.seed ^ 0xff, talk.down);
    if talk.end != Finish::Together {
        soon(hear).await;
        soon(write.write_all(&answer)).await.unwrap();
    } else {
        soon(async { tokio::join!(hear, async { write.write_all(&answer).await.unwrap() }) }).await;
    }
    if talk.end != Finish::Abort {
        write.shutdown().await.unwrap();
    }
    server
}

async fn speak(mut client: TcpStream, talk: &Talk) {
    let (mut read, mut write) = client.split();
    let say = async {
        for part in pattern(talk.seed, talk.up).chunks(talk.write) {
            write.write_all(part).await.unwrap();
        }
        if talk.end == Finish::ClientFirst {
            write.shutdown().await.unwrap();
        }
    };
    let hear = async {
        let mut seen = vec![0; talk.down];
        read.read_exact(&mut seen).await.unwrap();
        assert!(seen == pattern(talk.seed ^ 0xff, talk.down), "downwards");
    };
    soon(async { tokio::join!(say, hear) }).await;
    if talk.end == Finish::Abort {
        client.set_zero_linger().unwrap();
        return;
    }
    assert_eq!(
        soon(read.read(&mut [0; 1])).await.unwrap(),
        0,
        "FIN downwards"
    );
}

async fn carry(client: Engine, server: Engine, talks: &[Talk]) {
    let mut mesh = Mesh::between(with(client), with(server)).await;
    let conversation = async |talk: &Talk| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (socket, relay) = mesh.connect(listener.local_addr().unwrap()).await;
        let (mut answering, ()) = tokio::join!(serve(&listener, talk), speak(socket, talk));
        if talk.end == Finish::Abort {
            let error = soon(answering.read(&mut [0; 1])).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        drop(answering);
        let outcome = soon(relay).await.unwrap();
        match talk.end {
            Finish::Abort => assert!(
                matches!(outcome.end, End::Reset { by: Side::Near }),
                "{outcome:?}"
            ),
            _ => assert!(matches!(outcome.end, End::Finished), "{outcome:?}"),
        }
    };
    futures_util::future::join_all(talks.iter().map(conversation)).await;
    assert_eq!(mesh.dial.count(), 1, "one tunnel carried all");
    let total = |part: fn(&Talk) -> usize| talks.iter().map(part).sum::<usize>() as u64;
    let counted = (mesh.meter.sent(), mesh.meter.received());
    assert_eq!(counted, (total(|talk| talk.up), total(|talk| talk.down)));
    for _ in talks {
        soon(mesh.server.outcomes.recv()).await.unwrap();
    }
    while mesh.pool.streams() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn whatever_connections_do_the_other_engine_carries_it() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let config = ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(talks in proptest::collection::vec(talk(), 1..12))| {
        for (client, server) in PAIRS {
            runtime.block_on(carry(client, server, &talks));
        }
    });
}

#[tokio::test]
async fn keys_are_renewed_under_way_in_both_directions() {
    for (client, server) in PAIRS {
        let often = |engine| Config {
            records_per_key: 7,
            ..with(engine)
        };
        let mesh = Mesh::between(often(client), often(server)).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (socket, relay) = mesh.connect(listener.local_addr().unwrap()).await;
        let talk = Talk {
            seed: 9,
            up: 5_000_000,
            down: 5_000_000,
            write: 30_000,
            end: Finish::Together,
        };
        tokio::join!(serve(&listener, &talk), speak(socket, &talk));
        let outcome = soon(relay).await.unwrap();
        assert!(matches!(outcome.end, End::Finished), "{outcome:?}");
    }
}
