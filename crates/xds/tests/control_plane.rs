// SPDX-License-Identifier: Apache-2.0
//! The client against a scripted control plane over loopback.
#![expect(clippy::unwrap_used, reason = "a failed step of a test must stop it")]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use proto::ads;
use proto::ads::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use proto::ads::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use xds::{Client, Demand, Handler, Observer, Rejection, Resource, Termination};

const PODS: &str = "type.example/Pod";
const RULES: &str = "type.example/Rule";
const PATIENCE: Duration = Duration::from_secs(10);

/// One accepted stream, in the test's hands.
struct Accepted {
    requests: Streaming<DeltaDiscoveryRequest>,
    responses: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
}

impl Accepted {
    async fn request(&mut self) -> DeltaDiscoveryRequest {
        tokio::time::timeout(PATIENCE, self.requests.message())
            .await
            .expect("a request in time")
            .expect("a healthy stream")
            .expect("an open stream")
    }

    async fn send(&self, response: DeltaDiscoveryResponse) {
        self.responses
            .send(Ok(response))
            .await
            .expect("an open stream");
    }

    async fn fail(self, status: Status) {
        self.responses
            .send(Err(status))
            .await
            .expect("an open stream");
    }
}

struct ScriptedServer(mpsc::Sender<Accepted>);

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for ScriptedServer {
    type StreamAggregatedResourcesStream = Responses<ads::DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        _request: Request<Streaming<ads::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("delta only"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (responses, outgoing) = mpsc::channel(8);
        let accepted = Accepted {
            requests: request.into_inner(),
            responses,
        };
        self.0.send(accepted).await.expect("the test listens");
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}

/// Remembers what it was told; refuses resources whose body is "bad".
struct Recorder {
    type_url: &'static str,
    demand: Option<Demand>,
    log: Log,
}

type Log = Arc<Mutex<Vec<String>>>;

impl Handler for Recorder {
    fn type_url(&self) -> &'static str {
        self.type_url
    }

    fn demand(&self) -> Option<Demand> {
        self.demand.clone()
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        let mut log = self.log.lock().unwrap();
        let mut rejections = Vec::new();
        for resource in resources {
            log.push(format!("+{}@{}", resource.name, resource.version));
            if &resource.body[..] == b"bad" {
                rejections.push(Rejection {
                    name: resource.name.to_string(),
                    reason: "body is bad".into(),
                });
            }
        }
        log.extend(removed.iter().map(|name| format!("-{name}")));
        rejections
    }
}

#[derive(Clone, Default)]
struct Counts(
    Arc<Mutex<(Vec<Termination>, usize, usize)>>,
    Arc<Mutex<Vec<(String, usize)>>>,
);

impl Observer for Counts {
    fn terminated(&mut self, why: Termination) {
        self.0.lock().unwrap().0.push(why);
    }

    fn message(&mut self, _type_url: &str, bytes: usize) {
        let mut counts = self.0.lock().unwrap();
        counts.1 += 1;
        counts.2 += bytes;
    }

    fn refused(&mut self, type_url: &str, resources: usize) {
        self.1
            .lock()
            .unwrap()
            .push((type_url.to_owned(), resources));
    }
}

struct Harness {
    streams: mpsc::Receiver<Accepted>,
    log: Log,
    counts: Counts,
    synced: watch::Receiver<bool>,
    client: tokio::task::JoinHandle<()>,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.client.abort();
    }
}

impl Harness {
    async fn start() -> Self {
        Self::start_with(None).await
    }

    /// With pods asked for by key, where there is a demand.
    async fn start_with(demand: Option<Demand>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, streams) = mpsc::channel(8);
        tokio::spawn(
            Server::builder()
                .add_service(AggregatedDiscoveryServiceServer::new(ScriptedServer(
                    accepted,
                )))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        let log = Log::default();
        let counts = Counts::default();
        let recorder = |type_url| -> Box<dyn Handler> {
            Box::new(Recorder {
                type_url,
                demand: demand.clone().filter(|_| type_url == PODS),
                log: Arc::clone(&log),
            })
        };
        let connect =
            move || -> xds::BoxFuture<'static, Result<Channel, tonic::transport::Error>> {
                Box::pin(async move {
                    Endpoint::from_shared(format!("http://{address}"))?
                        .connect()
                        .await
                })
            };
        let node = ads::Node {
            id: "ztunnel~test".into(),
            ..Default::default()
        };
        let handlers = vec![recorder(PODS), recorder(RULES)];
        let client = Client::new(connect, node, handlers, counts.clone());
        let synced = client.synced();
        Self {
            streams,
            log,
            counts,
            synced,
            client: tokio::spawn(client.run()),
        }
    }

    /// The next stream, past its two first requests.
    async fn accept(&mut self) -> (Accepted, DeltaDiscoveryRequest, DeltaDiscoveryRequest) {
        let mut stream = tokio::time::timeout(PATIENCE, self.streams.recv())
            .await
            .expect("a stream in time")
            .expect("a running server");
        let pods = stream.request().await;
        let rules = stream.request().await;
        assert_eq!(
            (pods.type_url.as_str(), rules.type_url.as_str()),
            (PODS, RULES)
        );
        (stream, pods, rules)
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn terminations(&self) -> Vec<Termination> {
        self.counts.0.lock().unwrap().0.clone()
    }
}

fn response(
    type_url: &str,
    nonce: &str,
    updates: &[(&str, &str, &'static str)],
    removed: &[&str],
) -> DeltaDiscoveryResponse {
    let resources = updates.iter().map(|(name, version, body)| ads::Resource {
        name: (*name).into(),
        version: (*version).into(),
        resource: Some(ads::ResourceBody {
            type_url: type_url.into(),
            value: Bytes::from_static(body.as_bytes()),
        }),
        ..Default::default()
    });
    DeltaDiscoveryResponse {
        type_url: type_url.into(),
        nonce: nonce.into(),
        resources: resources.collect(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn versions(request: &DeltaDiscoveryRequest) -> Vec<(&str, &str)> {
    request
        .initial_resource_versions
        .iter()
        .map(|(name, version)| (name.as_str(), version.as_str()))
        .collect()
}

#[tokio::test]
async fn each_type_is_asked_for_in_order_with_the_node() {
    let mut harness = Harness::start().await;
    let (_stream, pods, rules) = harness.accept().await;
    for request in [pods, rules] {
        assert_eq!(request.node.expect("a node").id, "ztunnel~test");
        assert!(request.initial_resource_versions.is_empty());
        assert!(request.resource_names_subscribe.is_empty());
    }
}

#[tokio::test]
async fn updates_are_applied_before_removals_and_acknowledged() {
    let mut harness = Harness::start().await;
    let (mut stream, ..) = harness.accept().await;
    stream
        .send(response(
            PODS,
            "n1",
            &[("a", "1", "x"), ("b", "1", "yz")],
            &["c"],
        ))
        .await;
    let ack = stream.request().await;
    assert_eq!(ack.response_nonce, "n1");
    assert_eq!(ack.type_url, PODS);
    assert_eq!((ack.error_detail, ack.node), (None, None));
    assert_eq!(harness.log(), ["+a@1", "+b@1", "-c"]);
    let counts = harness.counts.0.lock().unwrap();
    assert_eq!((counts.1, counts.2), (1, 3), "messages, bytes");
}

#[tokio::test]
async fn a_new_stream_resumes_from_what_was_accepted() {
    let mut harness = Harness::start().await;
    let (mut stream, ..) = harness.accept().await;
    stream
        .send(response(
            PODS,
            "n1",
            &[("good", "1", "x"), ("gone", "1", "x"), ("bad", "1", "bad")],
            &[],
        ))
        .await;
    let nack = stream.request().await;
    assert_eq!(nack.response_nonce, "n1");
    assert_eq!(
        nack.error_detail.expect("a NACK").message,
        "bad: body is bad"
    );
    stream.send(response(PODS, "n2", &[], &["gone"])).await;
    assert_eq!(stream.request().await.response_nonce, "n2");
    stream
        .fail(Status::unavailable("transport is closing"))
        .await;

    let (_stream, pods, rules) = harness.accept().await;
    assert_eq!(versions(&pods), [("good", "1")]);
    assert!(pods.node.is_some() && pods.response_nonce.is_empty());
    assert!(versions(&rules).is_empty());
    assert_eq!(harness.terminations(), [Termination::Reconnect]);
}

#[tokio::test]
async fn synced_waits_for_an_accepted_response_of_each_type_and_stays() {
    let mut harness = Harness::start().await;
    let (mut stream, ..) = harness.accept().await;
    stream
        .send(response(PODS, "n1", &[("a", "1", "bad")], &[]))
        .await;
    stream.request().await;
    stream.send(response(RULES, "n2", &[], &[])).await;
    stream.request().await;
    assert!(
        !*harness.synced.borrow(),
        "a refused response does not count"
    );
    stream
        .send(response(PODS, "n3", &[("a", "2", "x")], &[]))
        .await;
    stream.request().await;
    tokio::time::timeout(PATIENCE, harness.synced.wait_for(|synced| *synced))
        .await
        .expect("synced in time")
        .expect("a living client");
    drop(stream);
    let _again = harness.accept().await;
    assert!(
        *harness.synced.borrow(),
        "losing the stream does not undo it"
    );
}

#[tokio::test]
async fn an_unknown_type_is_refused_and_the_stream_goes_on() {
    let mut harness = Harness::start().await;
    let (mut stream, ..) = harness.accept().await;
    stream
        .send(response("type.example/New", "n1", &[("a", "1", "x")], &[]))
        .await;
    let nack = stream.request().await;
    assert_eq!(
        (nack.type_url.as_str(), nack.response_nonce.as_str()),
        ("type.example/New", "n1")
    );
    assert!(nack.error_detail.is_some());
    let refused = harness.counts.1.lock().unwrap().clone();
    assert_eq!(refused, [("unknown".to_owned(), 1)]);
    stream
        .send(response(PODS, "n2", &[("a", "1", "x")], &[]))
        .await;
    assert_eq!(stream.request().await.response_nonce, "n2");
    assert_eq!(harness.log(), ["+a@1"]);
}

#[tokio::test]
async fn a_clean_end_and_a_refusal_are_followed_by_a_new_stream() {
    let mut harness = Harness::start().await;
    let (stream, ..) = harness.accept().await;
    drop(stream);
    let (stream, ..) = harness.accept().await;
    stream.fail(Status::permission_denied("not you")).await;
    let _stream = harness.accept().await;
    assert_eq!(
        harness.terminations(),
        [Termination::Complete, Termination::Error]
    );
}

#[tokio::test]
async fn a_first_response_larger_than_the_default_limit_is_read() {
    let mut harness = Harness::start().await;
    let (mut stream, ..) = harness.accept().await;
    let mut large = response(PODS, "n1", &[("a", "1", "x")], &[]);
    let body = large.resources[0].resource.as_mut().expect("a body");
    body.value = vec![7; 32 << 20].into();
    stream.send(large).await;
    assert_eq!(stream.request().await.response_nonce, "n1");
}

#[tokio::test]
async fn keys_are_asked_for_as_they_are_needed_and_answered_by_name_alias_or_removal() {
    let demand = Demand::new();
    let mut harness = Harness::start_with(Some(demand.clone())).await;
    let (mut stream, pods, rules) = harness.accept().await;
    assert_eq!(pods.resource_names_subscribe, ["*"]);
    assert_eq!(pods.resource_names_unsubscribe, ["*"]);
    assert!(rules.resource_names_subscribe.is_empty());

    let ask = |key: &str| tokio::time::timeout(PATIENCE, demand.ask(key).expect("room"));
    let by_name = ask("a");
    assert_eq!(stream.request().await.resource_names_subscribe, ["a"]);
    stream
        .send(response(PODS, "n1", &[("a", "1", "x")], &[]))
        .await;
    stream.request().await;
    by_name.await.expect("answered");
    assert_eq!(harness.log(), ["+a@1"], "applied before the answer");

    let (by_alias, by_removal) = (ask("alias"), ask("nobody"));
    let mut asked = stream.request().await.resource_names_subscribe;
    if asked.len() == 1 {
        asked.extend(stream.request().await.resource_names_subscribe);
    }
    assert_eq!(asked, ["alias", "nobody"]);
    let mut answer = response(PODS, "n2", &[("b", "1", "x")], &["nobody"]);
    answer.resources[0].aliases = vec!["alias".into()];
    stream.send(answer).await;
    stream.request().await;
    by_alias.await.expect("answered");
    by_removal.await.expect("answered");
    assert!(demand.answered("nobody").is_some());

    let pending = ask("later");
    assert_eq!(stream.request().await.resource_names_subscribe, ["later"]);
    drop(stream);
    let (mut stream, pods, _) = harness.accept().await;
    assert_eq!(pods.resource_names_unsubscribe, ["*"]);
    let listed = [
        ("a", "1"),
        ("alias", ""),
        ("b", "1"),
        ("later", ""),
        ("nobody", ""),
    ];
    assert_eq!(versions(&pods), listed);
    stream.send(response(PODS, "n3", &[], &["later"])).await;
    stream.request().await;
    pending.await.expect("answered on the new stream");

    stream.send(response(RULES, "n4", &[], &[])).await;
    stream.request().await;
    let synced = harness.synced.wait_for(|synced| *synced);
    tokio::time::timeout(PATIENCE, synced)
        .await
        .expect("keys are not waited for")
        .expect("alive");
}

/// An unreachable control plane costs no more than patience.
#[tokio::test(start_paused = true)]
async fn failed_connects_back_off_and_are_counted() {
    let counts = Counts::default();
    let connect = || -> xds::BoxFuture<'static, Result<Channel, String>> {
        Box::pin(std::future::ready(Err("no route".to_owned())))
    };
    let client = Client::new(connect, ads::Node::default(), Vec::new(), counts.clone());
    // 10 ms doubled up to 15 s, and at least half of each: 60 s hold at most 17 tries.
    let ended = tokio::time::timeout(Duration::from_secs(60), client.run()).await;
    assert!(ended.is_err(), "the client never gives up");
    let terminations = counts.0.lock().unwrap().0.clone();
    assert!(
        (13..=18).contains(&terminations.len()),
        "{} tries in a minute",
        terminations.len()
    );
    assert!(
        terminations
            .iter()
            .all(|why| *why == Termination::ConnectionError)
    );
}
