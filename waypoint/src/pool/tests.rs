// SPDX-License-Identifier: Apache-2.0

use std::future::ready;

use http::Request;
use mesh::Workload;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::body;
use crate::endpoints::Begun;
use crate::resilience::limits::{Limits, Work};
use crate::resilience::traffic::Connections;
use crate::upstream::Leg;

/// An endpoint that answers, and the connections to it.
struct Near {
    pool: HttpPool,
    chosen: Chosen,
    observed: Arc<Observed>,
}

type Queued = oneshot::Receiver<Granted>;

async fn near(most_idle: usize) -> Near {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4096];
                while matches!(socket.read(&mut head).await, Ok(1..)) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
                    socket.write_all(answer).await.unwrap();
                }
            });
        }
    });
    let identity = "spiffe://cluster.local/ns/shop/sa/app".parse().unwrap();
    Near {
        pool: HttpPool::new(most_idle),
        chosen: Chosen {
            workload: Arc::new(Workload::new("app", "shop", identity)),
            port: address.port(),
            address,
            way: Way::Plain,
            tls: None,
        },
        observed: Arc::default(),
    }
}

impl Near {
    fn checkout_of(&self, most: usize) -> Result<Checkout, Failure> {
        let bounds = (most, Duration::from_secs(5));
        self.pool.checkout(&self.chosen, Version::Http1, bounds)
    }

    fn checkout(&self) -> Checkout {
        let checkout = self.checkout_of(200);
        checkout.expect("there is room")
    }

    /// So many requests at once: those that may connect, and those that wait.
    fn crowd(&self, count: usize) -> (Vec<Place>, Vec<Queued>) {
        let (mut places, mut queued) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match self.checkout() {
                Checkout::Connect(place) => places.push(place),
                Checkout::Wait(granted) => queued.push(granted),
                Checkout::Ready(_) => panic!("there is no connection yet"),
            }
        }
        (places, queued)
    }

    async fn connect(&self, place: Place) -> Lease {
        let leg = TcpStream::connect(self.chosen.address).await.unwrap();
        let reached = ready(Ok(Leg::Plain(leg)));
        let filled = place.fill(reached, self.counted()).await;
        // Its task has to be told that it may take a request.
        tokio::task::yield_now().await;
        filled.expect("the endpoint speaks HTTP")
    }

    async fn fail(&self, place: Place) {
        let failure = Failure::ConnectTimeout {
            to: self.chosen.address,
            limit: Duration::from_secs(1),
        };
        let filled = place.fill(ready(Err(failure)), self.counted()).await;
        assert!(filled.is_err());
    }

    fn counted(&self) -> (Arc<Observed>, Connections, Begun) {
        let begun = self.observed.begin(Work::Connection, &Limits::default());
        let begun = begun.expect("there is no limit");
        (Arc::clone(&self.observed), Connections::default(), begun)
    }

    /// How many of so many requests find a connection at once.
    fn ready(&self, count: usize) -> usize {
        let checkouts: Vec<_> = (0..count).map(|_| self.checkout()).collect();
        let is_ready = |checkout: &&Checkout| matches!(checkout, Checkout::Ready(_));
        checkouts.iter().filter(is_ready).count()
    }
}

/// Has a request answered.
async fn used(mut lease: Lease) {
    let request = Request::get("/").header("host", "app");
    let sent = lease.send(request.body(body::empty()).unwrap()).await;
    let answer = sent
        .map_err(|unanswered| unanswered.error)
        .expect("the endpoint answers");
    assert!(body::read_to_end(answer.into_body()).await);
    lease.give_back();
}

#[tokio::test]
async fn a_crowd_waits_in_order_for_what_becomes_free_first() {
    let near = near(100).await;
    let (mut places, mut queued) = near.crowd(20);
    assert_eq!((places.len(), queued.len()), (16, 4));
    // One connection is made, so that another may be.
    let first = near.connect(places.pop().unwrap()).await;
    let granted = queued[0].try_recv();
    assert!(matches!(granted, Ok(Granted::Place(_))));
    assert!(queued[1].try_recv().is_err());
    // It has its answer, and is the next one's.
    assert!(!first.reused);
    used(first).await;
    let Ok(Granted::Lease(second)) = queued[1].try_recv() else {
        panic!("what was given back is not kept from those that wait");
    };
    assert!(second.reused && queued[2].try_recv().is_err());
    // Who comes now comes behind them.
    let Checkout::Wait(mut last) = near.checkout() else {
        panic!("somebody waits already");
    };
    used(second).await;
    assert!(matches!(queued[2].try_recv(), Ok(Granted::Lease(_))));
    assert!(last.try_recv().is_err());
}

#[test]
fn the_more_connections_there_are_the_more_may_be_made() {
    for (version, open, expected) in [
        (Version::Http1, 0, 16),
        (Version::Http1, 512, 16),
        (Version::Http1, 1024, 32),
        (Version::Http2, 0, 2),
        (Version::Http2, 100, 3),
    ] {
        let may = entry::made_at_a_time(version, open);
        assert_eq!(may, expected, "{version:?}, {open}");
    }
}

#[tokio::test]
async fn where_no_connection_can_be_made_all_that_wait_are_told() {
    let near = near(100).await;
    let (mut places, mut queued) = near.crowd(18);
    let open = near.connect(places.pop().unwrap()).await;
    // While there is one, others may have it.
    near.fail(places.pop().unwrap()).await;
    assert!(matches!(queued[0].try_recv(), Ok(Granted::Place(_))));
    assert!(matches!(queued[1].try_recv(), Ok(Granted::Place(_))));
    drop((places, open));
    near.pool.close_idle(&near.observed);
    let (mut places, mut queued) = near.crowd(18);
    near.fail(places.pop().unwrap()).await;
    for queued in &mut queued {
        assert!(matches!(queued.try_recv(), Ok(Granted::Failed(_))));
    }
}

#[tokio::test]
async fn who_gives_up_leaves_it_to_the_next() {
    let near = near(100).await;
    let (mut places, mut queued) = near.crowd(18);
    drop(queued.remove(0));
    drop(places.pop());
    let Ok(Granted::Place(place)) = queued[0].try_recv() else {
        panic!("a place that nobody wants is the next one's");
    };
    let lease = near.connect(place).await;
    drop(places);
    // Nothing was sent on it.
    drop(lease);
    assert_eq!(near.ready(2), 1);
    let Checkout::Ready(mut lease) = near.checkout() else {
        panic!("it is there still");
    };
    // Something was, and no answer read.
    let request = Request::get("/").header("host", "app");
    let sent = lease.send(request.body(body::empty()).unwrap()).await;
    assert!(sent.is_ok());
    drop(lease);
    assert_eq!(near.ready(1), 0);
}

#[tokio::test]
async fn no_more_are_under_way_than_may_be_and_those_that_gave_up_are_not() {
    let near = near(100).await;
    let (_places, mut queued) = near.crowd(50);
    let more = || near.checkout_of(50);
    assert!(matches!(more(), Err(Failure::Overflow(50))));
    queued.pop();
    assert!(matches!(more(), Ok(Checkout::Wait(_))));
}

#[tokio::test]
async fn idle_connections_are_bounded_and_those_that_waited_longest_go() {
    let near = near(4).await;
    let mut leases = Vec::new();
    for place in near.crowd(5).0 {
        leases.push(near.connect(place).await);
    }
    for lease in leases {
        used(lease).await;
    }
    // Half of four made room for the fifth.
    assert_eq!(near.ready(5), 3);
    near.pool.close_idle(&near.observed);
    assert_eq!(near.ready(1), 0);
    near.pool.expire();
    assert!(near.pool.0.lock().entries.is_empty());
}

#[tokio::test]
async fn a_crowd_gets_more_connections_only_once_it_shows_what_they_bring() {
    let near = near(200).await;
    let (mut places, mut queued) = near.crowd(80);
    let mut leases = Vec::new();
    let granted = |queued: &mut Vec<Queued>| match queued.first_mut().map(Queued::try_recv) {
        Some(Ok(Granted::Place(place))) => Some((place, queued.remove(0))),
        _ => None,
    };
    while let Some(place) = places.pop() {
        leases.push(near.connect(place).await);
        places.extend(granted(&mut queued).map(|(place, _)| place));
    }
    assert_eq!((leases.len(), queued.len()), (64, 16));
    // Nobody is answered: that can't be worse.
    let first = queued.remove(0).await;
    assert!(matches!(first, Ok(Granted::Place(_))));
}
