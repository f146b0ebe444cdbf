// SPDX-License-Identifier: Apache-2.0
//! The ZDS server against scripted ztunnels.
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use capture::Netns;
use capture::seqpacket::SeqPacket;
use prost::Message;
use proto::zds::{WorkloadRequest, workload_request::Payload};
use redirect::zds_link::{Intent, Wanted, WantedPod};
use redirect::zds_server::{Answers, ZdsServer};
use tokio::sync::watch;

const HELLO: &[u8] = &[0x08, 0x01];
const CONSENT: &[u8] = &[0x0a, 0x00];

struct Agent {
    wanted: watch::Sender<Option<Arc<Wanted>>>,
    answers: watch::Receiver<Answers>,
    folder: tempfile::TempDir,
}

impl Agent {
    fn start(wanted: Option<Wanted>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (sender, receiver) = watch::channel(wanted.map(Arc::new));
        let (server, answers) = ZdsServer::bind(folder.path().join("zds.sock"), receiver).unwrap();
        tokio::spawn(server.run());
        Self {
            wanted: sender,
            answers,
            folder,
        }
    }

    fn want(&self, wanted: Wanted) {
        self.wanted.send_replace(Some(Arc::new(wanted)));
    }

    async fn until_answered(&mut self, uid: &str, error: &str) {
        let answered =
            |answers: &Answers| answers.get(uid).is_some_and(|answer| answer.error == error);
        within(self.answers.wait_for(answered)).await.unwrap();
    }
}

struct Ztunnel(SeqPacket);

impl Ztunnel {
    fn connect(folder: &Path) -> Self {
        Self(SeqPacket::connect(folder.join("zds.sock")).unwrap())
    }

    async fn greeting(folder: &Path) -> Self {
        let ztunnel = Self::connect(folder);
        ztunnel.send(HELLO).await;
        ztunnel
    }

    async fn send(&self, bytes: &[u8]) {
        self.0.send(bytes, None).await.unwrap();
    }

    async fn refuse(&self, error: &str) {
        let ack = proto::zds::WorkloadResponse {
            payload: Some(proto::zds::workload_response::Payload::Ack(
                proto::zds::Ack {
                    error: error.into(),
                    release: None,
                },
            )),
        };
        self.send(&ack.encode_to_vec()).await;
    }

    /// What the agent says, in short; checks that a namespace comes with `add` and with nothing else.
    async fn hear(&self) -> String {
        let mut packet = within(self.0.recv(1024)).await.unwrap();
        assert!(!packet.truncated);
        if packet.is_end() {
            return "closed".into();
        }
        let request = WorkloadRequest::decode(packet.bytes.as_slice()).unwrap();
        let (said, fds) = match request.payload.unwrap() {
            Payload::Add(add) => {
                let info = add.workload_info.unwrap();
                (
                    format!(
                        "add {} {}/{} {}",
                        add.uid, info.namespace, info.name, info.service_account
                    ),
                    1,
                )
            }
            Payload::Keep(keep) => (format!("keep {}", keep.uid), 0),
            Payload::Del(del) => (format!("del {}", del.uid), 0),
            Payload::Release(release) => (format!("release {}", release.uid), 0),
            Payload::SnapshotSent(_) => ("snapshot".into(), 0),
        };
        assert_eq!(packet.fds.len(), fds, "{said}");
        for fd in packet.fds.drain(..) {
            Netns::from_fd(fd).unwrap();
        }
        said
    }

    async fn expect(&self, said: &str) {
        assert_eq!(self.hear().await, said);
    }

    async fn consent_to(&self, said: &str) {
        self.expect(said).await;
        self.send(CONSENT).await;
    }

    async fn hear_nothing(&self) {
        let heard = tokio::time::timeout(Duration::from_millis(150), self.hear()).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future)
        .await
        .expect("nothing happened for 10 s")
}

fn pod(netns: Option<Netns>) -> WantedPod {
    WantedPod {
        name: "web".into(),
        namespace: "shop".into(),
        service_account: "clerk".into(),
        netns,
        intent: Intent::Serve,
    }
}

fn served() -> WantedPod {
    pod(Some(Netns::create().expect(
        "creating a network namespace needs root, or `unshare -Urnm`",
    )))
}

fn wanted<const N: usize>(pods: [(&str, WantedPod); N]) -> Wanted {
    pods.map(|(uid, pod)| (uid.to_owned(), pod)).into()
}

#[tokio::test]
async fn the_snapshot_comes_first_and_one_message_at_a_time() {
    let mut agent = Agent::start(Some(wanted([
        ("a", served()),
        ("b", pod(None)),
        ("c", served()),
    ])));
    let ztunnel = Ztunnel::greeting(agent.folder.path()).await;
    ztunnel.expect("add a shop/web clerk").await;
    ztunnel.hear_nothing().await;
    ztunnel.send(CONSENT).await;
    ztunnel.consent_to("keep b").await;
    ztunnel.consent_to("add c shop/web clerk").await;
    ztunnel.consent_to("snapshot").await;
    agent.until_answered("a", "").await;
    agent.until_answered("c", "").await;
    ztunnel.hear_nothing().await;
}

#[tokio::test]
async fn nothing_is_said_before_the_cluster_is_known() {
    let agent = Agent::start(None);
    let ztunnel = Ztunnel::greeting(agent.folder.path()).await;
    ztunnel.hear_nothing().await;
    agent.want(Wanted::new());
    ztunnel.consent_to("snapshot").await;
}

#[tokio::test]
async fn changes_follow_the_snapshot() {
    let agent = Agent::start(Some(Wanted::new()));
    let ztunnel = Ztunnel::greeting(agent.folder.path()).await;
    ztunnel.consent_to("snapshot").await;
    agent.want(wanted([("a", served())]));
    ztunnel.consent_to("add a shop/web clerk").await;
    agent.want(Wanted::new());
    ztunnel.consent_to("del a").await;
}

#[tokio::test]
async fn a_refused_pod_is_tried_again() {
    let mut agent = Agent::start(Some(wanted([("a", served())])));
    let ztunnel = Ztunnel::greeting(agent.folder.path()).await;
    ztunnel.expect("add a shop/web clerk").await;
    ztunnel.refuse("port 15001 is taken").await;
    ztunnel.consent_to("snapshot").await;
    agent.until_answered("a", "port 15001 is taken").await;
    ztunnel.consent_to("add a shop/web clerk").await;
    agent.until_answered("a", "").await;
}

#[tokio::test]
async fn a_ztunnel_that_comes_back_gets_the_snapshot_again() {
    let agent = Agent::start(Some(wanted([("a", served())])));
    let ztunnel = Ztunnel::greeting(agent.folder.path()).await;
    ztunnel.expect("add a shop/web clerk").await;
    drop(ztunnel);
    let ztunnel = Ztunnel::greeting(agent.folder.path()).await;
    ztunnel.consent_to("add a shop/web clerk").await;
    ztunnel.consent_to("snapshot").await;
}

#[tokio::test]
async fn the_newest_ztunnel_gets_new_pods_and_all_hear_of_removals() {
    let a = served();
    let agent = Agent::start(Some(wanted([("a", a.clone())])));
    let old = Ztunnel::greeting(agent.folder.path()).await;
    old.consent_to("add a shop/web clerk").await;
    old.consent_to("snapshot").await;
    let new = Ztunnel::greeting(agent.folder.path()).await;
    new.consent_to("add a shop/web clerk").await;
    new.consent_to("snapshot").await;
    let b = served();
    agent.want(wanted([("a", a), ("b", b.clone())]));
    new.consent_to("add b shop/web clerk").await;
    old.hear_nothing().await;
    agent.want(wanted([("b", b)]));
    new.consent_to("del a").await;
    old.consent_to("del a").await;
    // The older one is all there is once the newest dies, and catches up.
    drop(new);
    old.consent_to("add b shop/web clerk").await;
}

#[tokio::test]
async fn whoever_breaks_the_protocol_is_cut_off_and_nobody_else() {
    let agent = Agent::start(Some(Wanted::new()));
    let good = Ztunnel::greeting(agent.folder.path()).await;
    good.consent_to("snapshot").await;

    let no_hello = Ztunnel::connect(agent.folder.path());
    no_hello.send(&[0xff; 8]).await;
    no_hello.expect("closed").await;

    let bad_answer = Ztunnel::greeting(agent.folder.path()).await;
    bad_answer.expect("snapshot").await;
    bad_answer.send(&[0x12, 0x00]).await;
    bad_answer.expect("closed").await;

    let talkative = Ztunnel::greeting(agent.folder.path()).await;
    talkative.consent_to("snapshot").await;
    talkative.send(CONSENT).await;
    talkative.expect("closed").await;

    let long = Ztunnel::greeting(agent.folder.path()).await;
    long.expect("snapshot").await;
    long.send(&[0x0a; 4000]).await;
    long.expect("closed").await;

    agent.want(wanted([("a", served())]));
    good.consent_to("add a shop/web clerk").await;
}

#[tokio::test]
async fn a_ztunnel_without_a_hello_or_an_answer_is_cut_off_after_five_seconds() {
    let agent = Agent::start(Some(Wanted::new()));
    let silent = Ztunnel::connect(agent.folder.path());
    let mute = Ztunnel::greeting(agent.folder.path()).await;
    mute.expect("snapshot").await;
    silent.expect("closed").await;
    mute.expect("closed").await;
}

#[tokio::test]
async fn a_pod_whose_message_would_be_too_long_stops_nobody_else() {
    let mut odd = served();
    odd.name = "x".repeat(2000);
    let mut agent = Agent::start(Some(wanted([("a", odd), ("b", served())])));
    let ztunnel = Ztunnel::greeting(agent.folder.path()).await;
    ztunnel.consent_to("add b shop/web clerk").await;
    ztunnel.consent_to("snapshot").await;
    let too_long = |answers: &Answers| {
        answers
            .get("a")
            .is_some_and(|answer| answer.error.contains("more than 1024"))
    };
    within(agent.answers.wait_for(too_long)).await.unwrap();
}
