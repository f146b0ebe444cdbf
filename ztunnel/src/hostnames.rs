// SPDX-License-Identifier: Apache-2.0
//! Addresses of endpoints that are known by a host name only, found when a connection needs them.
//!
//! In: a host, and the pod from which to ask the upstream servers. Out: an address, of the family that the client uses
//! if there is one. Answers are kept for as long as they say, those that there is nothing for a moment; connections that
//! need one host at the same time ask once. At most [`MAX_HOSTS`] are kept.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh::Workload;
use ops::metrics::Metrics;
use parking_lot::Mutex;
use rand::Rng;
use rand::seq::IndexedRandom as _;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Ipv6;
use crate::dns::answer::Transport;
use crate::dns::message::{self, Family, Query, Rcode};
use crate::dns::upstreams::{UpstreamError, Upstreams, Way};

/// How many hosts are kept.
const MAX_HOSTS: usize = 4096;
/// Shortest and longest time for which an answer is kept, whatever it says.
const KEPT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
/// How long it is kept that a host has no address.
const NOTHING_KEPT: Duration = Duration::from_secs(1);

/// Why a host has no address to connect to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("it is no host name")]
    NoName,
    #[error("it has no address")]
    NoAddress,
    #[error("it can't be resolved: {0}")]
    Upstream(Arc<str>),
    #[error("it was not resolved")]
    NotAsked,
}

pub struct Hostnames {
    upstreams: Arc<Upstreams>,
    ipv6: Ipv6,
    metrics: Metrics,
    hosts: Mutex<HashMap<Arc<str>, Host>>,
}

/// What is known of a host.
enum Host {
    Known(Answer),
    /// Somebody is asking, and says here what went wrong; its end without a word says that
    /// there is an answer, or that they gave up.
    Asked(watch::Receiver<Option<HostError>>),
}

#[derive(Clone)]
struct Answer {
    addresses: Arc<[IpAddr]>,
    until: Instant,
}

impl Hostnames {
    pub fn new(upstreams: Arc<Upstreams>, ipv6: Ipv6, metrics: Metrics) -> Self {
        metrics.describe(
            "istio_on_demand_dns_total",
            "The total number of connections whose endpoint was found by DNS (unstable)",
        );
        Self {
            upstreams,
            ipv6,
            metrics,
            hosts: Mutex::default(),
        }
    }

    /// An address of a host, for a connection of a workload that goes to `original` for all it knows.
    ///
    /// # Errors
    /// Says why there is none.
    pub async fn resolve(
        &self,
        way: Way<'_>,
        source: &Workload,
        host: &Arc<str>,
        original: IpAddr,
    ) -> Result<IpAddr, HostError> {
        self.count(source, host);
        let answer = self.answer(way, host).await?;
        choose(&answer, original, &mut rand::rng()).ok_or(HostError::NoAddress)
    }

    async fn answer(&self, way: Way<'_>, host: &Arc<str>) -> Result<Arc<[IpAddr]>, HostError> {
        loop {
            let asking = {
                let mut hosts = self.hosts.lock();
                match hosts.get(host) {
                    Some(Host::Known(answer)) if Instant::now() < answer.until => {
                        return Ok(answer.addresses.clone());
                    }
                    Some(Host::Asked(asking)) => Err(asking.clone()),
                    Some(Host::Known(_)) | None => {
                        make_room(&mut hosts);
                        let (asked, asking) = watch::channel(None);
                        hosts.insert(host.clone(), Host::Asked(asking));
                        Ok(asked)
                    }
                }
            };
            match asking {
                Err(mut asking) => {
                    while asking.changed().await.is_ok() {}
                    if let Some(error) = asking.borrow().clone() {
                        return Err(error);
                    }
                }
                Ok(asked) => {
                    let mut question = Question {
                        hostnames: self,
                        host,
                        answer: None,
                    };
                    let answer = self.ask(way, host).await;
                    match &answer {
                        Ok(answer) => question.answer = Some(answer.clone()),
                        Err(error) => {
                            asked.send_replace(Some(error.clone()));
                        }
                    }
                    // Its place is settled before those who wait look there.
                    drop(question);
                    return answer.map(|answer| answer.addresses);
                }
            }
        }
    }

    /// Both families at once, each by TCP where UDP doesn't hold the answer.
    async fn ask(&self, way: Way<'_>, host: &str) -> Result<Answer, HostError> {
        let v4 = self.ask_family(way, host, Family::V4);
        let v6 = async {
            match self.ipv6 {
                Ipv6::Enabled => self.ask_family(way, host, Family::V6).await,
                Ipv6::Disabled => Ok(Vec::new()),
            }
        };
        let (v4, v6) = tokio::join!(v4, v6);
        let found = match (v4, v6) {
            // One family's servers may fail where the other's answer is good.
            (Ok(v4), Ok(v6)) => [v4, v6].concat(),
            (Ok(found), Err(_)) | (Err(_), Ok(found)) if !found.is_empty() => found,
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let usable = |(ip, _): &(IpAddr, Duration)| {
            !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
        };
        let kept = found.iter().map(|(_, ttl)| *ttl).min();
        let kept = kept.map_or(NOTHING_KEPT, |ttl| ttl.clamp(KEPT.0, KEPT.1));
        Ok(Answer {
            addresses: found
                .iter()
                .filter(|one| usable(one))
                .map(|(ip, _)| *ip)
                .collect(),
            until: Instant::now() + kept,
        })
    }

    async fn ask_family(
        &self,
        way: Way<'_>,
        host: &str,
        family: Family,
    ) -> Result<Vec<(IpAddr, Duration)>, HostError> {
        // A wildcard stands for names, and is none.
        let host = Some(host).filter(|host| !host.contains('*'));
        let query = host.and_then(|host| Query::for_host(host, family.record_type()));
        let query = query.ok_or(HostError::NoName)?;
        let upstream = |error: UpstreamError| HostError::Upstream(error.to_string().into());
        let ask = |transport| self.upstreams.ask(way, &query, transport);
        let mut response = ask(Transport::Udp).await.map_err(upstream)?;
        if message::is_truncated(&response) {
            response = ask(Transport::Tcp).await.map_err(upstream)?;
        }
        match message::rcode_of(&response) {
            Rcode::NO_ERROR => Ok(message::records_in(&response, family)),
            Rcode::NAME_ERROR => Ok(Vec::new()),
            other => Err(HostError::Upstream(
                format!("the server answered {}", other.name()).into(),
            )),
        }
    }

    fn count(&self, source: &Workload, host: &str) {
        let known = |text: &Arc<str>| {
            if text.is_empty() {
                "unknown".to_owned()
            } else {
                text.to_string()
            }
        };
        let labels = [
            ("source_workload", known(&source.workload_name)),
            ("source_canonical_service", known(&source.canonical_name)),
            (
                "source_canonical_revision",
                known(&source.canonical_revision),
            ),
            ("source_workload_namespace", known(&source.namespace)),
            ("source_principal", source.identity.to_string()),
            ("source_app", known(&source.canonical_name)),
            ("source_version", known(&source.canonical_revision)),
            ("source_cluster", known(&source.cluster_id)),
            ("hostname", host.to_owned()),
        ];
        let labels = labels
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        self.metrics
            .counter("istio_on_demand_dns_total", &labels)
            .increment(1);
    }
}

/// Puts the answer in its place, or makes place for whoever asks next, in whichever way it ends.
struct Question<'a> {
    hostnames: &'a Hostnames,
    host: &'a Arc<str>,
    answer: Option<Answer>,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut hosts = self.hostnames.hosts.lock();
        match self.answer.take() {
            Some(answer) => {
                hosts.insert(self.host.clone(), Host::Known(answer));
            }
            None => {
                hosts.remove(self.host);
            }
        }
    }
}

/// Where there are too many, what is over goes first, and then whatever ends soonest.
fn make_room(hosts: &mut HashMap<Arc<str>, Host>) {
    if hosts.len() < MAX_HOSTS {
        return;
    }
    let now = Instant::now();
    hosts.retain(|_, host| !matches!(host, Host::Known(answer) if answer.until <= now));
    if hosts.len() < MAX_HOSTS {
        return;
    }
    let ends = |host: &Host| match host {
        Host::Known(answer) => Some(answer.until),
        Host::Asked(_) => None,
    };
    let mut known: Vec<_> = hosts
        .iter()
        .filter_map(|(name, host)| Some((ends(host)?, name.clone())))
        .collect();
    known.sort_unstable();
    for (_, name) in known.into_iter().take(MAX_HOSTS / 8) {
        hosts.remove(&name);
    }
}

/// Any of the client's family, else any.
fn choose(addresses: &[IpAddr], original: IpAddr, rng: &mut impl Rng) -> Option<IpAddr> {
    let same = addresses
        .iter()
        .filter(|ip| ip.is_ipv4() == original.is_ipv4());
    let same: Vec<IpAddr> = same.copied().collect();
    same.choose(rng).or_else(|| addresses.choose(rng)).copied()
}

#[cfg(test)]
mod tests;
