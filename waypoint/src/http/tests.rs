// SPDX-License-Identifier: Apache-2.0

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::body::{self, Downward};

/// A client's connection to a service that answers once it may.
struct Near {
    client: DuplexStream,
    answers: watch::Sender<bool>,
    resting: tokio::task::JoinHandle<Option<(Bytes, DuplexStream)>>,
}

fn near() -> Near {
    let (client, server) = duplex(64 << 10);
    let (answers, may) = watch::channel(true);
    let (heads, back) = (Arc::<Heads>::default(), Back::default());
    let watch = Some(Watch::new(&heads));
    let io = TokioIo::new(Again::new(Bytes::new(), server, watch, Arc::clone(&back)));
    let watched = Arc::clone(&heads);
    let service = service_fn(move |asked: Request<Incoming>| {
        watched.next().unwrap();
        let (taken, mut may) = (watched.take(), may.clone());
        async move {
            assert!(body::read_to_end(asked.into_body()).await);
            let _ = may.wait_for(|may| *may).await;
            let body = Downward::detached(body::text("hi"));
            Ok::<_, Infallible>(Response::new(Answering {
                body,
                _taken: taken,
            }))
        }
    });
    let resting = tokio::spawn(async move {
        let connection = http1::Builder::new().serve_connection(io, service);
        let rests = {
            let mut connection = pin!(connection);
            until_rest(connection.as_mut(), &heads).await.is_none()
        };
        assert!(rests, "the connection ended");
        back.lock().take()
    });
    Near {
        client,
        answers,
        resting,
    }
}

const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nhost: app\r\ncontent-length: 3\r\n\r\nabc";

impl Near {
    async fn send(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).await.unwrap();
    }

    async fn answer(&mut self) {
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhi") {
            assert!(self.client.read_buf(&mut answer).await.unwrap() > 0);
        }
    }

    async fn rests(&mut self) -> bool {
        timeout(10 * REST, &mut self.resting).await.is_ok()
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_rests_once_nothing_was_under_way_for_a_while() {
    let mut near = near();
    for _ in 0..5 {
        near.send(REQUEST).await;
        near.answer().await;
        let waited = timeout(REST * 9 / 10, &mut near.resting).await;
        assert!(waited.is_err(), "it is in use");
    }
    let (first, mut server) = near.resting.await.unwrap().expect("its stream is there");
    assert!(first.is_empty());
    // And is whole: what is said now is read as it comes.
    near.client.write_all(REQUEST).await.unwrap();
    let mut said = vec![0; REQUEST.len()];
    server.read_exact(&mut said).await.unwrap();
    assert_eq!(said, REQUEST);
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_a_part_of_a_request_or_an_answer_does_not_rest() {
    for sent in [1, 40, REQUEST.len() - 1] {
        let mut near = near();
        near.send(REQUEST).await;
        near.answer().await;
        near.send(&REQUEST[..sent]).await;
        assert!(!near.rests().await, "{sent} bytes of a request");
        near.send(&REQUEST[sent..]).await;
        near.answer().await;
        assert!(near.rests().await);
    }
    let mut near = near();
    near.answers.send_replace(false);
    near.send(REQUEST).await;
    assert!(!near.rests().await, "an answer is owed");
    near.answers.send_replace(true);
    near.answer().await;
    assert!(near.rests().await);
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_answer_is_not_taken_does_not_rest() {
    let (client, server) = duplex(16);
    let heads = Arc::<Heads>::default();
    let watch = Some(Watch::new(&heads));
    let mut io = Again::new(Bytes::new(), server, watch, Back::default());
    assert_eq!(heads.at_rest(), Some(0));
    let write = timeout(REST, io.write_all(&[0; 17]));
    assert!(write.await.is_err() && heads.at_rest().is_none());
    drop(client);
}
