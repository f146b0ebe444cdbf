// SPDX-License-Identifier: Apache-2.0
//! A node whose names, accounts and addresses are reused at once, again and again, with a control plane and an agent that
//! are late by any number of steps: no connection is ever made or taken as another pod, which one that differs from its
//! predecessor in nothing but its UID is as well; or, where the control plane says no UID, under another identity.
//!
//! The mesh, the pods and the decisions are the real ones; what is played is the cluster, in which everything is known,
//! and the two queues that lead from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use mesh::{Seen, Standings, Store, Workload};
use proptest::prelude::*;

use super::{described, pod};
use crate::binding::Handed;
use crate::config::Socks5;
use crate::pods::{Action, Pod, PodUid, Pods};
use crate::route::{self, Outbound, Route};

const NAMES: usize = 3;
const ADDRESSES: usize = 3;
const ACCOUNTS: usize = 3;

/// What happens next.
#[derive(Debug, Clone)]
enum Event {
    /// A pod starts, under a name and an address that are free.
    Create {
        name: usize,
        address: usize,
        account: usize,
    },
    Delete {
        name: usize,
    },
    /// The control plane's next word arrives.
    Mesh,
    /// The agent's next message arrives.
    Agent,
    /// The agent connects anew and says all that it knows.
    Snapshot,
    /// Somebody connects from the pod of this name to an address.
    Connect {
        from: usize,
        to: usize,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..NAMES, 0..ADDRESSES, 0..ACCOUNTS)
            .prop_map(|(name, address, account)| Event::Create { name, address, account }),
        3 => (0..NAMES).prop_map(|name| Event::Delete { name }),
        5 => Just(Event::Mesh),
        5 => Just(Event::Agent),
        1 => Just(Event::Snapshot),
        8 => (0..NAMES, 0..ADDRESSES).prop_map(|(from, to)| Event::Connect { from, to }),
    ];
    prop::collection::vec(event, 1..120)
}

/// A pod as it truly is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Truth {
    uid: PodUid,
    name: usize,
    address: usize,
    account: usize,
    netns: u32,
}

/// Whether the control plane says which UID a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Uids {
    Said,
    /// As Istio's does not.
    Unsaid,
}

impl Truth {
    fn description(&self, uids: Uids) -> Workload {
        let (name, account) = (name_of(self.name), account_of(self.account));
        let address = address_of(self.address).to_string();
        Workload {
            protocol: mesh::workload::TunnelProtocol::Hbone,
            pod_uid: (uids == Uids::Said).then(|| Box::new(self.uid.clone())),
            ..described("c", &name, &account, &[&address])
        }
    }

    fn handed(&self) -> Pod<u32> {
        Pod {
            uid: self.uid.clone(),
            info: pod(&name_of(self.name), &account_of(self.account)),
            netns: self.netns,
        }
    }
}

/// Half of them as static pods have them.
fn uid_of(number: usize) -> PodUid {
    let text = match number % 2 {
        0 => format!("{number:08x}-0000-4000-8000-000000000000"),
        _ => format!("{number:032x}"),
    };
    PodUid::from(&*text)
}

fn name_of(name: usize) -> String {
    format!("pod-{name}")
}

fn account_of(account: usize) -> String {
    format!("account-{account}")
}

fn address_of(address: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, u8::try_from(address).unwrap() + 1).into()
}

enum Word {
    Describe(Box<Workload>),
    Withdraw(Arc<str>),
}

enum Message {
    Add(Pod<u32>),
    Delete(PodUid),
}

struct World {
    uids: Uids,
    live: BTreeMap<usize, Truth>,
    /// Everything that ever had a namespace; none is given out twice.
    namespaces: Vec<Truth>,
    words: VecDeque<Word>,
    messages: VecDeque<Message>,
    store: Store,
    pods: Pods<u32>,
    /// What is served, as the shell would have it.
    proxies: BTreeMap<PodUid, Pod<u32>>,
    made: usize,
    /// Pods that differ from the last one of their name in nothing but their UID.
    twins: usize,
}

impl World {
    fn new(uids: Uids) -> Self {
        let mut pods = Pods::new();
        pods.connected();
        pods.snapshot_sent().unwrap();
        Self {
            uids,
            live: BTreeMap::new(),
            namespaces: Vec::new(),
            words: VecDeque::new(),
            messages: VecDeque::new(),
            store: Store::new(Some("n1")),
            pods,
            proxies: BTreeMap::new(),
            made: 0,
            twins: 0,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Create {
                name,
                address,
                account,
            } => self.create(name, address, account),
            Event::Delete { name } => self.delete(name),
            Event::Mesh => self.hear_mesh(),
            Event::Agent => self.hear_agent(),
            Event::Snapshot => self.snapshot(),
            Event::Connect { from, to } => self.connect(from, to),
        }
        // Pods that are gone but still served, too.
        let served: Vec<_> = self.proxies.values().map(|pod| pod.netns).collect();
        for netns in served {
            let address = address_of(self.namespaces[netns as usize].address);
            self.bound(netns, address);
        }
    }

    fn create(&mut self, name: usize, address: usize, account: usize) {
        let taken = self.live.contains_key(&name)
            || self.live.values().any(|other| other.address == address);
        if taken {
            return;
        }
        let number = self.namespaces.len();
        let truth = Truth {
            uid: uid_of(number),
            name,
            address,
            account,
            netns: u32::try_from(number).unwrap(),
        };
        let same = |other: &Truth| (other.address, other.account) == (address, account);
        let mut before = self.namespaces.iter().rev();
        let last = before.find(|other| other.name == name);
        self.twins += usize::from(last.is_some_and(same));
        let words = Word::Describe(Box::new(truth.description(self.uids)));
        self.words.push_back(words);
        self.messages.push_back(Message::Add(truth.handed()));
        self.namespaces.push(truth.clone());
        self.live.insert(name, truth);
    }

    fn delete(&mut self, name: usize) {
        if let Some(gone) = self.live.remove(&name) {
            self.words
                .push_back(Word::Withdraw(gone.description(self.uids).uid));
            self.messages.push_back(Message::Delete(gone.uid));
        }
    }

    fn hear_mesh(&mut self) {
        match self.words.pop_front() {
            Some(Word::Describe(workload)) => drop(self.store.upsert_workload(*workload)),
            Some(Word::Withdraw(uid)) => drop(self.store.remove(&uid)),
            None => {}
        }
    }

    fn hear_agent(&mut self) {
        match self.messages.pop_front() {
            Some(Message::Add(pod)) => {
                let actions = self.pods.add(pod).actions;
                self.carry_out(actions);
            }
            Some(Message::Delete(uid)) => {
                let actions = self.pods.delete(&uid);
                self.carry_out(actions);
            }
            None => {}
        }
    }

    fn snapshot(&mut self) {
        self.messages.clear();
        self.pods.disconnected();
        self.pods.connected();
        let live: Vec<_> = self.live.values().map(Truth::handed).collect();
        for pod in live {
            let actions = self.pods.add(pod).actions;
            self.carry_out(actions);
        }
        let actions = self.pods.snapshot_sent().unwrap();
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action<u32>>) {
        for action in actions {
            match action {
                Action::Stop(uid) => drop(self.proxies.remove(&uid)),
                Action::Stay(uid) => assert!(self.proxies.contains_key(&uid)),
                Action::Start(pod) => {
                    self.pods.started(pod.clone());
                    self.proxies.insert(pod.uid.clone(), pod);
                }
            }
        }
        let namespaces: BTreeSet<_> = self.proxies.values().map(|pod| pod.netns).collect();
        assert_eq!(namespaces.len(), self.proxies.len(), "one pod for each");
    }

    /// The proxy in a namespace, what it takes its pod for at an address, and what the pod truly is.
    fn bound(&self, netns: u32, address: IpAddr) -> Option<(Arc<Workload>, &Truth)> {
        let proxy = self.proxies.values().find(|pod| pod.netns == netns)?;
        let truth = &self.namespaces[netns as usize];
        let handed = Handed {
            uid: &proxy.uid,
            info: &proxy.info,
            held: &[IpAddr::from(Ipv4Addr::LOCALHOST), address_of(truth.address)].into(),
        };
        let plain = handed.workload_reached(&self.store, address).ok();
        let workload = handed.workload_at(&self.store, address).ok();
        if let Some(plain) = plain {
            self.check(&plain, truth);
        }
        let workload = workload?;
        self.check(&workload, truth);
        Some((workload, truth))
    }

    #[track_caller]
    fn check(&self, used: &Workload, truth: &Truth) {
        assert_eq!(*used, truth.description(self.uids), "used for {truth:?}");
    }

    /// As the outbound and the inbound proxy would go about it.
    fn connect(&mut self, from: usize, to: usize) {
        let destination = address_of(to);
        let Some(client) = self.live.get(&from) else {
            return;
        };
        let Some((source, _)) = self.bound(client.netns, address_of(client.address)) else {
            return;
        };
        let (standings, tried) = (Standings::default(), []);
        let connection = Outbound {
            source: &source,
            source_ip: address_of(client.address),
            destination: (destination, 80).into(),
            network: "",
            own_ports: route::OwnPorts::with(Socks5::Off),
            seen: Seen {
                standings: &standings,
                tried: &tried,
                now: Instant::now(),
            },
        };
        let route = route::route(&self.store, connection, &mut rand::rng());
        let Route::Hbone { expected, .. } = route else {
            return;
        };
        // The network leads to whoever has the address now.
        let Some(server) = self.live.values().find(|pod| pod.address == to) else {
            return;
        };
        let Some((presented, truth)) = self.bound(server.netns, destination) else {
            return;
        };
        if expected.contains(&presented.identity) {
            self.check(&presented, truth);
            self.made += 1;
        }
    }

    /// Everybody has heard everything.
    fn settle(&mut self) {
        while !self.words.is_empty() {
            self.hear_mesh();
        }
        while !self.messages.is_empty() {
            self.hear_agent();
        }
        let retries = self.pods.retry();
        self.carry_out(retries);
        assert!(self.pods.is_ready());
        let served: BTreeSet<_> = self.proxies.keys().collect();
        let live: BTreeSet<_> = self.live.values().map(|pod| &pod.uid).collect();
        assert_eq!(served, live);
        for pod in self.live.values() {
            let bound = self.bound(pod.netns, address_of(pod.address));
            assert!(bound.is_some(), "{pod:?} may speak");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_identity_is_only_ever_used_by_its_own_pod(
        events in events(),
        uids in prop_oneof![3 => Just(Uids::Said), 1 => Just(Uids::Unsaid)],
    ) {
        let mut world = World::new(uids);
        for event in events {
            world.happen(event);
        }
        world.settle();
    }

    /// The agent confuses namespaces: whatever it says, an identity is used only where the control plane places it.
    #[test]
    fn a_confused_agent_lends_no_identity(
        described_at in prop::collection::vec((0..NAMES, 0..ACCOUNTS, 0..ADDRESSES), 1..6),
        handed in (0..NAMES, 0..ACCOUNTS, 0..ADDRESSES),
        at in 0..ADDRESSES,
    ) {
        let mut store = Store::new(Some("n1"));
        for (name, account, address) in described_at {
            let address = address_of(address).to_string();
            store.upsert_workload(described("c", &name_of(name), &account_of(account), &[&address]));
        }
        let (name, account, address) = handed;
        let (held, at) = (address_of(address), address_of(at));
        let info = pod(&name_of(name), &account_of(account));
        let handed = Handed { uid: &"u1".into(), info: &info, held: &[held].into() };
        let uses = [handed.workload_at(&store, at), handed.workload_reached(&store, at)];
        for used in uses.into_iter().flatten() {
            prop_assert_eq!(held, at);
            prop_assert!(used.addresses.contains(&at));
            prop_assert_eq!(&used.name, &info.name);
            prop_assert_eq!(used.identity.service_account(), &*info.service_account);
        }
    }
}

/// Thousands in one life, so that what is left behind would be met again.
#[test]
fn five_thousand_reuses_in_one_node_make_no_connection_under_a_wrong_identity() {
    use rand::SeedableRng as _;
    let mut rng = rand::rngs::StdRng::seed_from_u64(7);
    let mut world = World::new(Uids::Said);
    while world.namespaces.len() < 5_000 {
        let name = rng.random_range(0..NAMES);
        let address = rng.random_range(0..ADDRESSES);
        world.happen(match rng.random_range(0..10) {
            0 | 1 => Event::Create {
                name,
                address,
                account: rng.random_range(0..ACCOUNTS),
            },
            2 => Event::Delete { name },
            3 | 4 => Event::Mesh,
            5 | 6 => Event::Agent,
            7 if rng.random_range(0..50) == 0 => Event::Snapshot,
            _ => Event::Connect {
                from: name,
                to: address,
            },
        });
    }
    world.settle();
    assert!(world.made > 1_000, "{} connections", world.made);
    assert!(world.twins > 300, "{} twins", world.twins);
}
