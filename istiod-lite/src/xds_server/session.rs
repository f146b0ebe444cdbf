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
//! answer about workloads waits for the client's request for policies.
//!
//! What a client holds is not remembered by name: the generation that it was
//! brought to says it, together with the versions that it lists when it comes back.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use proto::ads::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource, ResourceBody};

use crate::catalogue::{Entry, ResourceType, Table, Tables, TooFarBehind};

/// How many names a client may subscribe to, for each type.
const MAX_NAMES: usize = 100_000;

/// Stands for all resources of a type.
const WILDCARD: &str = "*";

/// A client's side of the protocol.
#[derive(Debug, Default)]
pub struct Session {
    addresses: Subscription,
    authorizations: Subscription,
    in_flight: BTreeMap<String, Sent>,
    nonces: u64,
    policies_first: PoliciesFirst,
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
    report: TypeReport,
}

/// What a client wants of a type.
#[derive(Debug, Default)]
struct Interest {
    everything: Everything,
    names: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Everything {
    Wanted,
    #[default]
    NotWanted,
}

/// What has to be answered, whether anything changed or not.
#[derive(Debug, Default)]
enum Owed {
    /// Nothing.
    #[default]
    Nothing,
    /// All that it is interested in, but for what it holds already.
    Everything(BTreeMap<String, String>),
    /// These names, as they are now.
    Names(BTreeSet<String>),
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
    /// How many bytes of resources they hold.
    pub bytes: usize,
}

impl Session {
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

    /// What to send now; nothing while something is in flight or the client is current.
    ///
    /// # Errors
    /// When it has missed more than is remembered.
    pub fn push(&mut self, tables: &Tables) -> Result<Push, TooFarBehind> {
        if !self.is_idle() || tables.generation() == 0 {
            return Ok(Push::default());
        }
        let policies = self
            .authorizations
            .news(tables.of(ResourceType::Authorization), tables.generation())?;
        let addresses = if self.waits_for_policies() {
            None
        } else {
            self.addresses
                .news(tables.of(ResourceType::Address), tables.generation())?
        };
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

    fn send(&mut self, of: ResourceType, news: News<'_>, generation: u64, push: &mut Push) {
        push.bytes += news
            .updated
            .iter()
            .map(|(_, entry)| entry.body.len())
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
                .map(|(name, entry)| resource(of, name, entry))
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
        ])
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
                let wanted = interest.change(subscribe, &unsubscribe);
                self.owe(wanted);
            }
        }
        match &self.interest {
            Some(interest) if interest.names.len() > MAX_NAMES => Err(Violation::TooManyNames),
            _ => Ok(()),
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
        table: &'a Table,
        generation: u64,
    ) -> Result<Option<News<'a>>, TooFarBehind> {
        let Some(interest) = &self.interest else {
            return Ok(None);
        };
        let mut news = News::default();
        match mem::take(&mut self.owed) {
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

impl Interest {
    /// A first request that subscribes to nothing in particular wants everything,
    /// unless it says in the same breath that it does not.
    fn first(
        subscribe: Vec<String>,
        unsubscribe: &[String],
        held: &BTreeMap<String, String>,
    ) -> Self {
        let asks = subscribe.is_empty() || subscribe.iter().any(|name| name == WILDCARD);
        let declines = unsubscribe.iter().any(|name| name == WILDCARD);
        let mut names: BTreeSet<String> = subscribe
            .into_iter()
            .filter(|name| name != WILDCARD)
            .collect();
        let everything = if asks && !declines {
            Everything::Wanted
        } else {
            Everything::NotWanted
        };
        if everything == Everything::NotWanted {
            names.extend(held.keys().cloned());
        }
        Self { everything, names }
    }

    fn change(&mut self, subscribe: Vec<String>, unsubscribe: &[String]) -> Owed {
        for name in unsubscribe {
            self.names.remove(name);
        }
        if unsubscribe.iter().any(|name| name == WILDCARD) {
            self.everything = Everything::NotWanted;
        }
        let mut wanted = BTreeSet::new();
        let mut newly_everything = false;
        for name in subscribe {
            if name == WILDCARD {
                newly_everything = self.everything == Everything::NotWanted;
                self.everything = Everything::Wanted;
            } else {
                self.names.insert(name.clone());
                wanted.insert(name);
            }
        }
        if newly_everything {
            Owed::Everything(BTreeMap::new())
        } else {
            Owed::Names(wanted)
        }
    }

    fn covers(&self, name: &str) -> bool {
        self.everything == Everything::Wanted || self.names.contains(name)
    }

    fn all<'a>(&self, table: &'a Table, mut held: BTreeMap<String, String>, news: &mut News<'a>) {
        let mut unless_held = |name: &'a Arc<str>, entry: &'a Entry| {
            if held
                .remove(&**name)
                .is_none_or(|version| version != entry.version.to_string())
            {
                news.updated.push((name, entry));
            }
        };
        if self.everything == Everything::Wanted {
            table
                .iter()
                .for_each(|(name, entry)| unless_held(name, entry));
        } else {
            let named = self.names.iter().filter_map(|name| table.get(name));
            named.for_each(|(name, entry)| unless_held(name, entry));
        }
        let unknown = |name: &&String| table.get(name).is_none() && !held.contains_key(*name);
        news.removed
            .extend(self.names.iter().filter(unknown).cloned());
        news.removed.extend(held.into_keys());
    }

    fn changed<'a>(
        &self,
        table: &'a Table,
        seen: u64,
        news: &mut News<'a>,
    ) -> Result<(), TooFarBehind> {
        let missed = table.since(seen)?;
        news.updated.extend(
            missed
                .updated
                .into_iter()
                .filter(|(name, _)| self.covers(name)),
        );
        let removed = missed.removed.into_iter().filter(|name| self.covers(name));
        news.removed.extend(removed.map(ToString::to_string));
        Ok(())
    }
}

/// What is sent of one type.
#[derive(Debug, Default)]
struct News<'a> {
    updated: Vec<(&'a Arc<str>, &'a Entry)>,
    removed: Vec<String>,
    /// An empty response is due as well: the client waits for it.
    must_answer: bool,
}

impl<'a> News<'a> {
    fn is_empty(&self) -> bool {
        self.updated.is_empty() && self.removed.is_empty()
    }

    fn add_named(&mut self, table: &'a Table, names: BTreeSet<String>) {
        let sent: BTreeSet<&str> = self.updated.iter().map(|(name, _)| &***name).collect();
        let gone: BTreeSet<&str> = self.removed.iter().map(String::as_str).collect();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in names {
            match table.get(&name) {
                Some(_) if sent.contains(name.as_str()) => {}
                Some(entry) => found.push(entry),
                None if gone.contains(name.as_str()) => {}
                None => missing.push(name),
            }
        }
        self.updated.extend(found);
        self.removed.extend(missing);
    }
}

fn resource(of: ResourceType, name: &Arc<str>, entry: &Entry) -> Resource {
    Resource {
        name: name.to_string(),
        version: entry.version.to_string(),
        resource: Some(ResourceBody {
            type_url: of.url().to_owned(),
            value: entry.body.clone(),
        }),
        ..Resource::default()
    }
}

#[cfg(test)]
mod tests;
