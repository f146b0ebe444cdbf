// SPDX-License-Identifier: Apache-2.0
//! What the tour shows, as a table: who talks to whom, how, and what must be seen.

use serde::{Deserialize, Serialize};

use crate::tour::{Transport, Verdict};

/// One conversation.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub path: &'static str,
    pub source: &'static str,
    /// As shown to people.
    pub destination: &'static str,
    pub target: Target,
    pub manner: Manner,
    pub witness: Witness,
    pub expected: Expected,
}

/// Whose proxy is asked what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness {
    /// The destination's, where policies are enforced.
    Destination,
    /// The source's: the destination has none.
    Source,
}

/// Where to.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    Pod {
        name: &'static str,
        family: Family,
        port: u16,
    },
    Address(&'static str),
    /// As an application's resolver finds it, which only the mesh can answer.
    Name {
        host: &'static str,
        port: u16,
    },
}

#[derive(Debug, Clone, Copy)]
pub enum Family {
    V4,
    V6,
}

/// What is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// A text sent and echoed.
    Echo,
    /// The server speaks first.
    Greet,
    /// Several requests, until every endpoint has answered.
    Requests,
}

/// What must be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    pub transport: Transport,
    pub verdict: Verdict,
    pub source_identity: Option<String>,
    pub destination_identity: Option<String>,
    /// The policy that must be named as the one that decided.
    pub policy: Option<String>,
    /// Pods of which each must have answered.
    pub answered_by: Vec<String>,
}

const ECHO: u16 = 9000;
const GREET: u16 = 9001;

fn id(namespace: &str, account: &str) -> Option<String> {
    Some(format!(
        "spiffe://cluster.local/ns/{namespace}/sa/{account}"
    ))
}

fn allowed(source: (&str, &str), destination: (&str, &str)) -> Expected {
    Expected {
        transport: Transport::MutualTls,
        verdict: Verdict::Allowed,
        source_identity: id(source.0, source.1),
        destination_identity: id(destination.0, destination.1),
        policy: None,
        answered_by: Vec::new(),
    }
}

impl Expected {
    fn denied_by(mut self, policy: &str) -> Self {
        self.verdict = Verdict::Denied;
        self.policy = Some(policy.into());
        self
    }

    fn allowed_by(mut self, policy: &str) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// Nobody has proved anything to anybody.
    fn in_the_clear(mut self) -> Self {
        self.transport = Transport::Plaintext;
        (self.source_identity, self.destination_identity) = (None, None);
        self
    }

    fn answered_by(mut self, pods: &[&str]) -> Self {
        self.answered_by = pods.iter().map(|pod| (*pod).to_owned()).collect();
        self
    }
}

fn pod(name: &'static str, port: u16) -> Target {
    Target::Pod {
        name,
        family: Family::V4,
        port,
    }
}

/// The whole tour.
pub fn all() -> Vec<Scenario> {
    let client = ("shop", "client");
    let stranger = ("shop", "stranger");
    let web = ("shop", "web");
    let legacy = ("outside", "legacy");
    vec![
        Scenario {
            path: "pod, other node",
            source: "shop/client",
            destination: "shop/web-b",
            target: pod("shop/web-b", ECHO),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(client, web),
        },
        Scenario {
            path: "pod, same node",
            source: "shop/client",
            destination: "shop/web-a",
            target: pod("shop/web-a", ECHO),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(client, web),
        },
        Scenario {
            path: "Service, both nodes",
            source: "shop/client",
            destination: "shop/web (10.96.0.10)",
            target: Target::Address("10.96.0.10:80"),
            manner: Manner::Requests,
            witness: Witness::Destination,
            expected: allowed(client, web).answered_by(&["web-a", "web-b"]),
        },
        Scenario {
            path: "Service, by its name",
            source: "shop/client",
            destination: "web.shop",
            target: Target::Name {
                host: "web.shop",
                port: 80,
            },
            manner: Manner::Requests,
            witness: Witness::Destination,
            expected: allowed(client, web).answered_by(&["web-a", "web-b"]),
        },
        Scenario {
            path: "headless Service",
            source: "shop/client",
            destination: "shop/web-headless",
            target: pod("shop/web-b", GREET),
            manner: Manner::Greet,
            witness: Witness::Destination,
            expected: allowed(client, web),
        },
        Scenario {
            path: "pod, IPv6",
            source: "shop/client",
            destination: "shop/web-b",
            target: Target::Pod {
                name: "shop/web-b",
                family: Family::V6,
                port: ECHO,
            },
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(client, web),
        },
        Scenario {
            path: "Service, IPv6",
            source: "shop/client",
            destination: "shop/web (fd96::10)",
            target: Target::Address("[fd96::10]:9000"),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(client, web),
        },
        Scenario {
            path: "into the mesh",
            source: "outside/legacy",
            destination: "shop/web-b",
            target: pod("shop/web-b", ECHO),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(legacy, web).in_the_clear(),
        },
        Scenario {
            path: "out of the mesh",
            source: "shop/client",
            destination: "outside/legacy",
            target: pod("outside/legacy", ECHO),
            manner: Manner::Echo,
            witness: Witness::Source,
            expected: allowed(client, legacy).in_the_clear(),
        },
        Scenario {
            path: "ALLOW policy, named",
            source: "shop/client",
            destination: "shop/vault",
            target: Target::Address("10.96.0.20:9000"),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(client, ("shop", "vault")).allowed_by("shop/vault-clients"),
        },
        Scenario {
            path: "ALLOW policy, not named",
            source: "shop/stranger",
            destination: "shop/vault",
            target: Target::Address("10.96.0.20:9000"),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(stranger, ("shop", "vault")).denied_by("shop/vault-clients"),
        },
        Scenario {
            path: "DENY policy, other port",
            source: "shop/stranger",
            destination: "shop/web-b",
            target: pod("shop/web-b", ECHO),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(stranger, web),
        },
        Scenario {
            path: "DENY policy, its port",
            source: "shop/stranger",
            destination: "shop/web-b",
            target: pod("shop/web-b", GREET),
            manner: Manner::Greet,
            witness: Witness::Destination,
            expected: allowed(stranger, web).denied_by("shop/web-refuses-stranger"),
        },
        Scenario {
            path: "STRICT, by the mesh",
            source: "shop/client",
            destination: "strict/ledger",
            target: Target::Address("10.96.0.30:9000"),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(client, ("strict", "ledger")),
        },
        Scenario {
            path: "STRICT, plaintext",
            source: "outside/legacy",
            destination: "strict/ledger",
            target: pod("strict/ledger", ECHO),
            manner: Manner::Echo,
            witness: Witness::Destination,
            expected: allowed(legacy, ("strict", "ledger"))
                .in_the_clear()
                .denied_by("istio-system/istio_converted_static_strict"),
        },
    ]
}
