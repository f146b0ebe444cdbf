// SPDX-License-Identifier: Apache-2.0
//! One client's subscriptions, as a pure state machine.
//!
//! ```text
//!             first request          push sent              all answered
//!  unknown ──────────────► owed ──────────────► in flight ──────────────► current
//!                            ▲                      │ changes meanwhile      │
//!                            └──── more asked for ──┴───── are merged ◄──────┘
//! ```
//!
//! In: requests, and the published tables. Out: what to send next. One push is in
//! flight at a time. Within a push, policies that are new go before the workloads
//! that may name them, and policies that are gone after; that is why the first
//! answer about workloads waits for the client's request for policies. What a waypoint
//! does with its services goes after the services.
//!
//! What a client holds is not remembered by name: the generation that it was
//! brought to says it, together with the versions that it lists when it comes back.

mod demand;
mod interest;
mod news;

use std::{collections::BTreeMap, mem};

use proto::ads::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

use self::{
    demand::{Demand, Told},
    interest::{Everything, Interest, Owed, WILDCARD},
    news::{Known, News, resource},
};
use crate::{
    catalogue::{ResourceType, Table, Tables, TooFarBehind},
    facts::NamespacedName,
};

/// How many names a client may subscribe to, for each type.
const MAX_NAMES: usize = 100_000;

/// A client's side of the protocol.
#[derive(Debug, Default)]
pub struct Session {
    addresses: Subscription,
    authorizations: Subscription,
    whole: Subscription,
    services: Subscription,
    connection_logs: Subscription,
    in_flight: BTreeMap<String, Sent>,
    nonces: u64,
    policies_first: PoliciesFirst,
    /// The client's node, whose workloads it is told of unasked.
    node: Option<String>,
    /// The waypoint that the client is an instance of, if it is.
    waypoint: Option<NamespacedName>,
}

/// Whether workloads wait for a subscription to policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum PoliciesFirst {
    #[default]
    Wait,
    WaitedEnough,
}

#[derive(Debug)]
struct Sent {
    of: ResourceType,
    generation: u64,
}

#[derive(Debug, Default)]
struct Subscription {
    interest: Option<Interest>,
    /// The generation that the client was brought to.
    seen: u64,
    owed: Owed,
    /// Where not everything is wanted, what was sent.
    told: Told,
    dropped: Dropped,
    report: TypeReport,
}

/// Whether names were unsubscribed from since the last push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Dropped {
    #[default]
    Nothing,
    Some,
    /// The client wanted all until then.
    Everything,
}

/// What a type's subscription has come to, for the debug page.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeReport {
    /// `*`, a number of names, or nothing yet.
    pub subscribed: String,
    /// The generation last sent.
    pub sent_generation: u64,
    /// The generation last accepted.
    pub acked_generation: u64,
    /// Resources sent so far.
    pub resources: u64,
    /// The last rejection, unless something was accepted since.
    pub rejected: Option<String>,
}

/// What a request turned out to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// It asks for something, or no longer does.
    Subscription,
    /// An answer to the latest response of this type.
    Accepted(ResourceType),
    /// The client could not use something.
    Rejected(ResourceType, String),
    /// An answer to a response that we don't remember.
    Stale(ResourceType),
    /// It asks for a type that we have nothing of; this says so.
    UnknownType(Box<DeltaDiscoveryResponse>),
    /// It answers about such a type.
    Ignored,
}

/// Why a client cannot be served any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The bound on names.
    #[error("more than {MAX_NAMES} names of one type are subscribed to")]
    TooManyNames,
}

/// What to send, in this order.
#[derive(Debug, Default)]
pub struct Push {
    /// The responses.
    pub responses: Vec<DeltaDiscoveryResponse>,
    /// About how many bytes of memory it takes to send them.
    pub bytes: usize,
}

impl Session {
    /// A session with a client on this node, if it has said so, and of this waypoint, if
    /// it has proved that it is an instance of one.
    pub fn new(node: Option<String>, waypoint: Option<NamespacedName>) -> Self {
        Self {
            node,
            waypoint,
            ..Self::default()
        }
    }

    /// Whether the client asks for workloads and services by key: [`Self::push`] has to
    /// find them then.
    pub fn is_on_demand(&self) -> bool {
        let interest = self.addresses.interest.as_ref();
        interest.is_some_and(|interest| interest.everything == Everything::NotWanted)
    }

    /// Takes in a request.
    ///
    /// # Errors
    /// When the client asks for more than it may.
    pub fn hear(&mut self, request: DeltaDiscoveryRequest) -> Result<Heard, Violation> {
        let Some(of) = ResourceType::from_url(&request.type_url) else {
            return Ok(self.hear_unknown(request));
        };
        let answered = (!request.response_nonce.is_empty())
            .then(|| self.in_flight.remove(&request.response_nonce));
        let rejected = request
            .error_detail
            .as_ref()
            .map(|status| status.message.clone());
        let subscription = self.subscription(of);
        subscription.ask(request)?;
        Ok(match (answered, rejected) {
            (None, _) => Heard::Subscription,
            (Some(None), _) => Heard::Stale(of),
            (Some(Some(_)), Some(reason)) => {
                subscription.report.rejected = Some(reason.clone());
                Heard::Rejected(of, reason)
            }
            (Some(Some(sent)), None) => {
                subscription.report.acked_generation = sent.generation;
                subscription.report.rejected = None;
                Heard::Accepted(of)
            }
        })
    }

    /// An empty answer keeps a client from waiting for a type that we don't have.
    fn hear_unknown(&mut self, request: DeltaDiscoveryRequest) -> Heard {
        if !request.response_nonce.is_empty() {
            return Heard::Ignored;
        }
        Heard::UnknownType(Box::new(DeltaDiscoveryResponse {
            type_url: request.type_url,
            nonce: self.nonce(0),
            removed_resources: request.resource_names_subscribe,
            ..DeltaDiscoveryResponse::default()
        }))
    }

    /// Whether the first answer about workloads waits for a request for policies.
    pub fn waits_for_policies(&self) -> bool {
        self.policies_first == PoliciesFirst::Wait
            && self.authorizations.interest.is_none()
            && matches!(self.addresses.owed, Owed::Everything(_))
    }

    /// This client may never ask for policies.
    pub fn stop_waiting(&mut self) {
        self.policies_first = PoliciesFirst::WaitedEnough;
    }

    /// Whether the client has answered all that was sent.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// How many bytes [`Self::push`] may come to now, for a client that wants everything;
    /// 0 for others, since it takes as long to find out as to do it.
    pub fn at_most(&self, tables: &Tables) -> usize {
        if !self.is_idle() || tables.generation() == 0 {
            return 0;
        }
        let of = |of, subscription: &Subscription| subscription.at_most(tables.of(of));
        of(ResourceType::Address, &self.addresses)
            + of(ResourceType::Authorization, &self.authorizations)
            + of(ResourceType::ConnectionLogs, &self.connection_logs)
            + self.whole.at_most(self.own(ResourceType::Waypoint, tables))
            + self
                .services
                .at_most(self.own(ResourceType::WaypointService, tables))
    }

    /// What to send now; nothing while something is in flight or the client is current.
    ///
    /// # Errors
    /// When it has missed more than is remembered.
    pub fn push(&mut self, tables: &Tables) -> Result<Push, TooFarBehind> {
        if !self.is_idle() || tables.generation() == 0 {
            return Ok(Push::default());
        }
        let generation = tables.generation();
        let node = self.node.clone();
        let known = Known {
            table: tables.of(ResourceType::Authorization),
            lookup: None,
            node: None,
        };
        let policies = self.authorizations.news(known, generation)?;
        let addresses = if self.waits_for_policies() {
            None
        } else {
            let known = Known {
                table: tables.of(ResourceType::Address),
                lookup: tables.lookup(),
                node: node.as_deref(),
            };
            self.addresses.news(known, generation)?
        };
        let known = Known {
            table: self.own(ResourceType::Waypoint, tables),
            lookup: None,
            node: None,
        };
        let whole = self.whole.news(known, generation)?;
        let known = Known {
            table: self.own(ResourceType::WaypointService, tables),
            lookup: None,
            node: None,
        };
        let services = self.services.news(known, generation)?;
        let known = Known {
            table: tables.of(ResourceType::ConnectionLogs),
            lookup: None,
            node: None,
        };
        let logs = self.connection_logs.news(known, generation)?;
        let mut push = Push::default();
        let mut retired = None;
        if let Some(mut news) = policies {
            if addresses.is_some() && !news.removed.is_empty() {
                let removed = mem::take(&mut news.removed);
                retired = Some(News {
                    removed,
                    ..News::default()
                });
            }
            if !news.is_empty() || news.must_answer || retired.is_none() {
                self.send(
                    ResourceType::Authorization,
                    news,
                    tables.generation(),
                    &mut push,
                );
            }
        }
        if let Some(news) = addresses {
            self.send(ResourceType::Address, news, tables.generation(), &mut push);
        }
        if let Some(news) = whole {
            self.send(ResourceType::Waypoint, news, generation, &mut push);
        }
        if let Some(news) = services {
            self.send(ResourceType::WaypointService, news, generation, &mut push);
        }
        if let Some(news) = logs {
            self.send(ResourceType::ConnectionLogs, news, generation, &mut push);
        }
        if let Some(news) = retired {
            self.send(
                ResourceType::Authorization,
                news,
                tables.generation(),
                &mut push,
            );
        }
        Ok(push)
    }

    fn send(&mut self, of: ResourceType, mut news: News<'_>, generation: u64, push: &mut Push) {
        push.bytes += news
            .updated
            .iter()
            .map(|(name, entry)| entry.weight(name))
            .sum::<usize>();
        let nonce = self.nonce(generation);
        let report = &mut self.subscription(of).report;
        report.sent_generation = generation;
        report.resources += u64::try_from(news.updated.len()).unwrap_or(u64::MAX);
        push.responses.push(DeltaDiscoveryResponse {
            system_version_info: format!("{generation:x}"),
            type_url: of.url().to_owned(),
            nonce: nonce.clone(),
            resources: news
                .updated
                .into_iter()
                .map(|(name, entry)| {
                    let aliases = news.aliases.remove(name).unwrap_or_default();
                    resource(of, name, entry, aliases)
                })
                .collect(),
            removed_resources: news.removed,
        });
        self.in_flight.insert(nonce, Sent { of, generation });
    }

    fn nonce(&mut self, generation: u64) -> String {
        self.nonces += 1;
        format!("{generation:x}-{:x}", self.nonces)
    }

    fn subscription(&mut self, of: ResourceType) -> &mut Subscription {
        match of {
            ResourceType::Address => &mut self.addresses,
            ResourceType::Authorization => &mut self.authorizations,
            ResourceType::Waypoint => &mut self.whole,
            ResourceType::WaypointService => &mut self.services,
            ResourceType::ConnectionLogs => &mut self.connection_logs,
        }
    }

    /// What the subscriptions have come to.
    pub fn report(&self) -> BTreeMap<&'static str, TypeReport> {
        let of = |of: ResourceType, subscription: &Subscription| {
            let subscribed = match &subscription.interest {
                None => String::new(),
                Some(Interest {
                    everything: Everything::Wanted,
                    ..
                }) => WILDCARD.to_owned(),
                Some(Interest { names, .. }) => format!("{} names", names.len()),
            };
            (
                of.label(),
                TypeReport {
                    subscribed,
                    ..subscription.report.clone()
                },
            )
        };
        BTreeMap::from([
            of(ResourceType::Address, &self.addresses),
            of(ResourceType::Authorization, &self.authorizations),
            of(ResourceType::Waypoint, &self.whole),
            of(ResourceType::WaypointService, &self.services),
            of(ResourceType::ConnectionLogs, &self.connection_logs),
        ])
    }

    /// What is for the client's waypoint; nothing where it is no instance of one.
    fn own<'a>(&self, of: ResourceType, tables: &'a Tables) -> &'a Table {
        match &self.waypoint {
            Some(waypoint) => tables.of_waypoint(of, waypoint),
            None => tables.of(of),
        }
    }

    /// The types of what is in flight, for the debug page.
    pub fn unanswered(&self) -> Vec<&'static str> {
        self.in_flight
            .values()
            .map(|sent| sent.of.label())
            .collect()
    }
}

impl Subscription {
    fn ask(&mut self, request: DeltaDiscoveryRequest) -> Result<(), Violation> {
        let DeltaDiscoveryRequest {
            resource_names_subscribe: subscribe,
            resource_names_unsubscribe: unsubscribe,
            initial_resource_versions: held,
            ..
        } = request;
        match &mut self.interest {
            None => {
                self.interest = Some(Interest::first(subscribe, &unsubscribe, &held));
                self.owed = Owed::Everything(held);
            }
            Some(_) if subscribe.is_empty() && unsubscribe.is_empty() => {}
            Some(interest) => {
                let before = interest.everything;
                let wanted = interest.change(subscribe, &unsubscribe);
                if before == Everything::Wanted && interest.everything == Everything::NotWanted {
                    self.dropped = Dropped::Everything;
                } else if !unsubscribe.is_empty() && self.dropped == Dropped::Nothing {
                    self.dropped = Dropped::Some;
                }
                self.owe(wanted);
            }
        }
        match &self.interest {
            Some(interest) if interest.names.len() > MAX_NAMES => Err(Violation::TooManyNames),
            _ => Ok(()),
        }
    }

    fn at_most(&self, table: &Table) -> usize {
        match (&self.interest, &self.owed) {
            (Some(interest), _) if interest.everything == Everything::NotWanted => 0,
            (None, _) => 0,
            (Some(_), Owed::Everything(_)) => table.weight(),
            (Some(_), _) => table.weight_since(self.seen),
        }
    }

    fn owe(&mut self, wanted: Owed) {
        match (&mut self.owed, wanted) {
            (_, Owed::Nothing) | (Owed::Everything(_), Owed::Names(_)) => {}
            (Owed::Names(owed), Owed::Names(wanted)) => owed.extend(wanted),
            (owed, wanted) => *owed = wanted,
        }
    }

    /// What the client does not have yet, or must be answered; it counts as sent.
    fn news<'a>(
        &mut self,
        known: Known<'a, '_>,
        generation: u64,
    ) -> Result<Option<News<'a>>, TooFarBehind> {
        let Some(interest) = &self.interest else {
            return Ok(None);
        };
        let Known {
            table,
            lookup,
            node,
        } = known;
        let mut news = News::default();
        let owed = mem::take(&mut self.owed);
        let dropped = mem::take(&mut self.dropped);
        if let Some(lookup) = lookup.filter(|_| interest.everything == Everything::NotWanted) {
            let demand = Demand {
                table,
                lookup,
                keys: &interest.names,
                node,
            };
            if let Owed::Everything(held) = owed {
                news.must_answer = true;
                self.told.all(demand, held, &mut news);
            } else {
                if self.seen < generation {
                    self.told.changed(demand, self.seen, &mut news)?;
                }
                if let Owed::Names(names) = owed {
                    news.must_answer = true;
                    self.told.asked(demand, &names, &mut news);
                }
                if dropped == Dropped::Everything {
                    self.told = Told::everything(table);
                }
                if dropped != Dropped::Nothing {
                    self.told.forget(demand, &mut news);
                }
            }
            news.once_each();
            self.seen = generation;
            return Ok((news.must_answer || !news.is_empty()).then_some(news));
        }
        match owed {
            Owed::Everything(held) => {
                news.must_answer = true;
                interest.all(table, held, &mut news);
            }
            owed => {
                if self.seen < generation {
                    interest.changed(table, self.seen, &mut news)?;
                }
                if let Owed::Names(names) = owed {
                    news.must_answer = true;
                    news.add_named(table, names);
                }
            }
        }
        self.seen = generation;
        Ok((news.must_answer || !news.is_empty()).then_some(news))
    }
}

#[cfg(test)]
mod tests;
