// SPDX-License-Identifier: Apache-2.0
//! Against a server that says what a script tells it to: the gaps that a real one leaves only after minutes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::api::{Api, Connection};
use crate::source::{Batch, Event};

/// What one request is answered with, and whether the answer ends there.
struct Answer {
    lines: Vec<Value>,
    ends: bool,
}

/// Answers requests in turn; the last answer goes on for ever.
async fn serve(listener: TcpListener, answers: Vec<Answer>, asked: Arc<Mutex<Vec<String>>>) {
    for answer in answers {
        let (mut client, _) = listener.accept().await.unwrap();
        let request = head(&mut client).await;
        asked.lock().unwrap().push(request);
        let mut text =
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
                .to_owned();
        for line in answer.lines {
            text += &format!("{line}\n");
        }
        client.write_all(text.as_bytes()).await.unwrap();
        if !answer.ends {
            return std::future::pending().await;
        }
    }
}

/// The line that says what is asked for.
async fn head(client: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(client.read_u8().await.unwrap());
    }
    let read = String::from_utf8(read).unwrap();
    read.lines().next().unwrap_or_default().to_owned()
}

fn pod(event: &str, name: &str, version: u32) -> Value {
    json!({"type": event, "object": {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": version.to_string()},
        "spec": {"containers": []}, "status": {"message": version.to_string()},
    }})
}

fn bookmark(version: u32, complete: bool) -> Value {
    let mut bookmark = json!({"type": "BOOKMARK", "object": {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"resourceVersion": version.to_string()},
    }});
    if complete {
        bookmark["object"]["metadata"]["annotations"] =
            json!({"k8s.io/initial-events-end": "true"});
    }
    bookmark
}

fn expired() -> Value {
    json!({"type": "ERROR", "object": {
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410,
        "message": "too old resource version",
    }})
}

/// What a batch says, as `+name` and `-name`.
fn said(batch: &Batch) -> BTreeSet<String> {
    let event = |event: Event| match event {
        Event::Applied(object) => format!("+{}", object.name()),
        Event::Deleted(key) => format!("-{}", key.name),
    };
    batch.events.iter().map(event).collect()
}

#[tokio::test]
async fn a_gap_in_bookmarks_costs_a_listing_at_most_and_takes_nothing_back() {
    let ends = |lines: Vec<Value>| Answer { lines, ends: true };
    let answers = vec![
        // No bookmark after the first one: what was seen last is all that is known of how far things have gone.
        ends(vec![
            pod("ADDED", "a", 7),
            pod("ADDED", "b", 5),
            bookmark(10, true),
            pod("MODIFIED", "b", 12),
        ]),
        // Meanwhile the server has forgotten that time.
        ends(vec![expired()]),
        ends(vec![
            pod("ADDED", "b", 12),
            pod("ADDED", "c", 11),
            bookmark(30, true),
            // And nothing of this kind happens for long.
            bookmark(90, false),
        ]),
        Answer {
            lines: vec![pod("MODIFIED", "c", 91)],
            ends: false,
        },
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let serving = tokio::spawn(serve(listener, answers, asked.clone()));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let file = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(&path, file.to_string()).unwrap();
    let connection = Connection::kubeconfig(&path).await.unwrap();
    let mut source = Api::open(&connection, [Follow::all(Kind::Pod)]).unwrap();

    let mut batches: Vec<Vec<String>> = Vec::new();
    while !batches.concat().contains(&"+c 91".to_owned()) {
        let next = tokio::time::timeout(Duration::from_secs(30), source.next());
        let batch = next.await.expect("a batch");
        let mut lines: Vec<String> = said(&batch).into_iter().collect();
        for event in batch.events.iter() {
            if let Event::Applied(crate::Object::Pod(pod)) = event {
                let said = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.message.clone());
                let name = pod.metadata.name.clone().unwrap_or_default();
                lines.push(format!("+{name} {}", said.unwrap_or_default()));
            }
        }
        batches.push(lines);
    }
    serving.abort();
    // The first batch is whole, what is gone goes only with the listing that lacks it, and `b` is told of as often as it
    // changed.
    let all = batches.concat();
    let times = |what: &str| all.iter().filter(|one| *one == what).count();
    assert!(batches[0].contains(&"+a".to_owned()) && batches[0].contains(&"+b".to_owned()));
    assert_eq!(
        (times("-a"), times("-b"), times("-c")),
        (1, 0, 0),
        "{batches:?}"
    );
    assert_eq!(times("+b 12"), 1, "{batches:?}");

    let asked = asked.lock().unwrap().clone();
    let expected = [
        "sendInitialEvents=true",
        "resourceVersion=12 ",
        "sendInitialEvents=true",
        "resourceVersion=90 ",
    ];
    assert_eq!(asked.len(), expected.len(), "{asked:?}");
    for (asked, expected) in asked.iter().zip(expected) {
        assert!(asked.contains(expected), "{asked} lacks {expected}");
    }
}
