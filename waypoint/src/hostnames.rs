// SPDX-License-Identifier: Apache-2.0
//! Addresses of endpoints that are known by a host name only, by the resolver of the waypoint's own pod.
//!
//! In: a host. Out: one of its addresses, of the preferred family if there is one. Answers are kept for ten seconds, that
//! there is none for one; connections that need a host at the same time ask once. At most [`MAX_HOSTS`] are kept.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::seq::IndexedRandom as _;
use tokio::net::lookup_host;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};

use crate::endpoints::{Choice, Chosen, Place};
use crate::failure::Failure;

const MAX_HOSTS: usize = 4096;

/// How long what was found is kept, and that nothing was: the resolver tells no times.
const KEPT: Duration = Duration::from_secs(10);
const NOTHING_KEPT: Duration = Duration::from_secs(1);

const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Hostnames(Mutex<HashMap<Arc<str>, Arc<OnceCell<Answer>>>>);

#[derive(Debug, Clone)]
struct Answer {
    addresses: Result<Arc<[IpAddr]>, Arc<str>>,
    until: Instant,
}

impl Hostnames {
    /// Finds the address of an endpoint that was chosen, if that is yet to be done.
    ///
    /// # Errors
    /// Its host has none; another endpoint may do better.
    pub async fn settle(&self, choice: Choice, preferred: IpAddr) -> Result<Chosen, Failure> {
        let address = match &choice.place {
            Place::At(address) => *address,
            Place::Named(host, port) => {
                let found = self.resolve(host, preferred).await;
                let ip = found.map_err(|error| Failure::Unresolved {
                    host: host.clone(),
                    error,
                })?;
                SocketAddr::new(ip, *port)
            }
        };
        Ok(choice.at(address))
    }

    async fn resolve(&self, host: &Arc<str>, preferred: IpAddr) -> Result<IpAddr, Arc<str>> {
        let place = self.place(host);
        let answer = place.get_or_init(|| ask(host)).await;
        let all = answer.addresses.as_ref().map_err(Arc::clone)?;
        let same = all.iter().filter(|ip| ip.is_ipv4() == preferred.is_ipv4());
        let same: Vec<_> = same.copied().collect();
        let rng = &mut rand::rng();
        let chosen = same.choose(rng).or_else(|| all.choose(rng)).copied();
        chosen.ok_or_else(|| "it has no address to connect to".into())
    }

    /// Where the answer is, or will be.
    fn place(&self, host: &Arc<str>) -> Arc<OnceCell<Answer>> {
        let now = Instant::now();
        let is_good = |cell: &OnceCell<Answer>| cell.get().is_none_or(|answer| now < answer.until);
        let mut hosts = self.0.lock();
        if let Some(cell) = hosts.get(host).filter(|cell| is_good(cell)) {
            return Arc::clone(cell);
        }
        if hosts.len() >= MAX_HOSTS {
            hosts.retain(|_, cell| is_good(cell));
            // What is asked for anew then is found anew.
            if hosts.len() >= MAX_HOSTS {
                hosts.clear();
            }
        }
        let cell = Arc::default();
        hosts.insert(Arc::clone(host), Arc::clone(&cell));
        cell
    }
}

async fn ask(host: &str) -> Answer {
    let addresses = look_up(host).await;
    let kept = match &addresses {
        Ok(addresses) if !addresses.is_empty() => KEPT,
        _ => NOTHING_KEPT,
    };
    Answer {
        addresses,
        until: Instant::now() + kept,
    }
}

async fn look_up(host: &str) -> Result<Arc<[IpAddr]>, Arc<str>> {
    // A wildcard stands for names, and is none.
    if host.contains('*') {
        return Err("it is no host name".into());
    }
    let mut name = host.to_owned();
    // Whole as it is: no domain of the pod's belongs behind it.
    if host.parse::<IpAddr>().is_err() && !host.ends_with('.') {
        name.push('.');
    }
    let found = timeout(PATIENCE, lookup_host((name, 0))).await;
    let found = found.map_err(|_| format!("it was not resolved within {PATIENCE:?}"))?;
    let found = found.map_err(|error| error.to_string())?;
    // Nobody's name leads to this pod's own ports.
    let is_usable = |ip: &IpAddr| !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast());
    Ok(found
        .map(|at| at.ip().to_canonical())
        .filter(is_usable)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn a_name_that_leads_here_or_nowhere_is_told_so() {
        let hostnames = Hostnames::default();
        for (host, expected) in [
            ("127.0.0.1", "it has no address to connect to"),
            ("::ffff:127.0.0.1", "it has no address to connect to"),
            ("*.example.com", "it is no host name"),
        ] {
            let found = hostnames.resolve(&host.into(), V4).await;
            assert_eq!(found.unwrap_err().as_ref(), expected, "{host}");
        }
        let found = hostnames.resolve(&"192.0.2.7".into(), V4).await;
        assert_eq!(found, Ok([192, 0, 2, 7].into()));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_for_a_while() {
        let hostnames = Hostnames::default();
        let host: Arc<str> = "192.0.2.7".into();
        let first = hostnames.place(&host);
        hostnames.resolve(&host, V4).await.unwrap();
        assert!(Arc::ptr_eq(&first, &hostnames.place(&host)));
        tokio::time::advance(KEPT).await;
        assert!(!Arc::ptr_eq(&first, &hostnames.place(&host)));
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        let hostnames = Hostnames::default();
        for number in 0..=MAX_HOSTS {
            hostnames.place(&format!("host-{number}").into());
        }
        assert!(hostnames.0.lock().len() <= MAX_HOSTS);
    }
}
