// SPDX-License-Identifier: Apache-2.0
//! What a control plane might say that is wrong, each under a name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use prost::Message as _;
use proto::ads::DeltaDiscoveryResponse;
use proto::workload::{Address, Workload, address};
use proto::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL};
use tonic::Status;
use xds::Resource;

use super::learnt::{Learnt, response};
use super::wire::Said;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Act {
    /// Nothing, once two clients are there.
    Wait,
    /// Bytes that are no message.
    NoMessage,
    /// The beginning of a message in order.
    CutMessage,
    /// The end of the stream, with a reason.
    Refusal,
    /// All workloads and services, each body cut short.
    CutBodies,
    /// A resource without a body, and one without a name.
    Hollow,
    /// A type that nobody asked for.
    UnknownType,
    /// A policy where an address belongs.
    WrongType,
    /// Workloads whose fields hold what they must not.
    BadFields,
    /// A thousand resources that are nothing.
    ManyBad,
    /// Four megabytes of one workload that is in order.
    Huge,
    /// A true resource between two of its name that are wrong.
    Duplicates,
    /// Versions that are empty, that go back, that are a megabyte.
    Versions,
    /// Five hundred responses that each change a workload nobody speaks with.
    Endless,
    /// The same wrong resource again each time that it is refused.
    Obstinacy,
    /// Removes what is not there.
    RemoveUnknown,
    /// Removes every workload, service and policy.
    RemoveAll,
    /// Sends them all again, and takes back what others of these acts left.
    SendAll,
}

/// How long the obstinate one goes on.
pub(super) const OBSTINATE: Duration = Duration::from_secs(3);

impl Act {
    /// Whether each message of it is replied to; the others end the stream.
    pub(super) fn is_answered(self) -> bool {
        !matches!(self, Self::NoMessage | Self::CutMessage | Self::Refusal)
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

impl FromStr for Act {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ValueEnum::from_str(text.trim(), false)
    }
}

/// A workload that runs nowhere.
fn nobody(name: &str) -> Workload {
    Workload {
        uid: format!("Kubernetes//Pod/nowhere/{name}"),
        name: name.to_owned(),
        namespace: "nowhere".into(),
        trust_domain: "cluster.local".into(),
        service_account: "nobody".into(),
        cluster_id: "Kubernetes".into(),
        ..Workload::default()
    }
}

fn resource(name: &str, version: &str, workload: Workload) -> Resource {
    let address = Address {
        r#type: Some(address::Type::Workload(workload)),
    };
    Resource {
        name: name.into(),
        version: version.to_owned(),
        body: address.encode_to_vec().into(),
    }
}

fn of_uid(version: &str, workload: Workload) -> Resource {
    let name = workload.uid.clone();
    resource(&name, version, workload)
}

fn garbage(name: &str) -> Resource {
    Resource {
        name: name.into(),
        version: "1".into(),
        body: vec![0xff; 64].into(),
    }
}

/// What is sent for it.
pub(super) fn script(act: Act, nonce: &str, learnt: &Learnt) -> Vec<Said> {
    let addresses = |resources: &[Resource]| response(ADDRESS_TYPE_URL, nonce, resources, &[]);
    let names = |resources: &[Resource]| -> Vec<String> {
        resources
            .iter()
            .map(|resource| resource.name.to_string())
            .collect()
    };
    let removal = |type_url, names: &[String]| {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        response(type_url, nonce, &[], &names)
    };
    let messages: Vec<DeltaDiscoveryResponse> = match act {
        Act::Wait => vec![],
        Act::NoMessage => return vec![Ok(vec![0xff; 100])],
        Act::CutMessage => {
            let mut whole = addresses(&learnt.addresses).encode_to_vec();
            whole.truncate(whole.len() / 2);
            return vec![Ok(whole)];
        }
        Act::Refusal => return vec![Err(Status::permission_denied("go away"))],
        Act::CutBodies => {
            let cut = learnt.addresses.iter().map(|resource| Resource {
                version: "cut".into(),
                body: resource.body.slice(..resource.body.len() - 1),
                ..resource.clone()
            });
            vec![addresses(&cut.collect::<Vec<_>>())]
        }
        Act::Hollow => {
            let mut hollow = addresses(&[garbage("hollow"), garbage("")]);
            hollow.resources[0].resource = None;
            vec![hollow]
        }
        Act::UnknownType => vec![response(
            "type.example/Nonsense",
            nonce,
            &[garbage("x")],
            &[],
        )],
        Act::WrongType => {
            let mut wrong = addresses(&[of_uid("1", nobody("disguised"))]);
            for resource in &mut wrong.resources {
                if let Some(body) = &mut resource.resource {
                    body.type_url = AUTHORIZATION_TYPE_URL.into();
                }
            }
            vec![wrong]
        }
        Act::BadFields => {
            let bad: Vec<_> = bad_fields().map(|workload| of_uid("1", workload)).collect();
            vec![addresses(&bad)]
        }
        Act::ManyBad => {
            let many: Vec<_> = (0..1000).map(|n| garbage(&format!("bad-{n}"))).collect();
            vec![addresses(&many)]
        }
        Act::Huge => {
            let mut huge = nobody("huge");
            huge.workload_name = "x".repeat(4 << 20);
            vec![addresses(&[of_uid("1", huge)])]
        }
        Act::Duplicates => {
            let all = learnt.addresses.iter().flat_map(|resource| {
                [
                    garbage(&resource.name),
                    resource.clone(),
                    garbage(&resource.name),
                ]
            });
            vec![addresses(&all.collect::<Vec<_>>())]
        }
        Act::Versions => ["9", "", "1", &"v".repeat(1 << 20), "0"]
            .into_iter()
            .map(|version| addresses(&[of_uid(version, nobody("versions"))]))
            .collect(),
        Act::Endless => (0..500)
            .map(|number: u32| {
                let mut changing = nobody("endless");
                changing.canonical_revision = number.to_string();
                addresses(&[of_uid(&number.to_string(), changing)])
            })
            .collect(),
        Act::Obstinacy => vec![addresses(&[garbage("obstinate")])],
        Act::RemoveUnknown => vec![
            removal(ADDRESS_TYPE_URL, &["no/such.thing".into(), String::new()]),
            removal(AUTHORIZATION_TYPE_URL, &["no/such/policy".into()]),
        ],
        Act::RemoveAll => vec![
            removal(ADDRESS_TYPE_URL, &names(&learnt.addresses)),
            removal(AUTHORIZATION_TYPE_URL, &names(&learnt.policies)),
        ],
        Act::SendAll => {
            let left = ["huge", "versions", "endless"].map(|name| nobody(name).uid);
            vec![
                response(AUTHORIZATION_TYPE_URL, nonce, &learnt.policies, &[]),
                addresses(&learnt.addresses),
                removal(ADDRESS_TYPE_URL, &left),
            ]
        }
    };
    messages
        .iter()
        .map(|message| Ok(message.encode_to_vec()))
        .collect()
}

/// Each is refused for one field.
fn bad_fields() -> impl Iterator<Item = Workload> {
    type Spoil = fn(&mut Workload);
    let cases: [(&str, Spoil); 5] = [
        ("three-bytes", |workload| {
            workload.addresses = vec![vec![1, 2, 3].into()]
        }),
        ("no-protocol", |workload| workload.tunnel_protocol = 77),
        ("no-account", |workload| {
            workload.service_account = "a b/c".into()
        }),
        ("no-domain", |workload| {
            workload.trust_domain = "no domain!".into()
        }),
        ("no-status", |workload| workload.status = 99),
    ];
    cases.into_iter().map(|(name, spoil)| {
        let mut workload = nobody(name);
        spoil(&mut workload);
        workload
    })
}
