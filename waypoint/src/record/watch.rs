// SPDX-License-Identifier: Apache-2.0
//! Requests as they end, for whoever looks on at this moment.
//!
//! Nobody is waited for: who reads too slowly misses some, and is told how many. Where nobody looks on, a request costs one
//! read of a number that rarely changes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

/// Who may look on at a time.
const MOST: usize = 8;

/// Lines that wait for one who looks on.
const WAITING: usize = 256;

/// What of a request is told, one line of JSON each.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen<'e> {
    /// Milliseconds since 1970, of its end.
    pub unix_milliseconds: u128,
    pub method: &'e str,
    pub path: &'e str,
    pub authority: &'e str,
    pub status: u16,
    pub flags: &'static str,
    /// `namespace/workload`, as far as it is known.
    pub source: String,
    pub identity: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<&'e str>,
    pub attempts: u32,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub milliseconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'e str>,
}

/// Which requests somebody wants to see: those that all of it holds for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    method: Option<String>,
    /// What the path begins with.
    path: Option<String>,
    status: Option<Status>,
    /// Part of the source's name or identity.
    source: Option<String>,
    /// Part of the service's name.
    service: Option<String>,
    slower_than: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    One(u16),
    /// The first digit.
    Class(u16),
}

/// What somebody asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    pub filter: Filter,
    /// After so many it is enough.
    pub most: usize,
    /// Or after this time.
    pub limit: Duration,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            filter: Filter::default(),
            most: 1000,
            limit: Duration::from_secs(60),
        }
    }
}

impl Wish {
    /// Reads a query.
    ///
    /// # Errors
    /// Names the key that is none, or whose value is none.
    pub fn read(query: &[(String, String)]) -> Result<Self, String> {
        let mut wish = Self::default();
        for (key, value) in query {
            let wrong = || format!("{key}={value} is nothing to look for");
            let number = || value.parse::<u64>().map_err(|_| wrong());
            let filter = &mut wish.filter;
            match key.as_str() {
                "method" => filter.method = Some(value.to_ascii_uppercase()),
                "path" => filter.path = Some(value.clone()),
                "status" => filter.status = Some(Status::read(value).ok_or_else(wrong)?),
                "source" => filter.source = Some(value.clone()),
                "service" => filter.service = Some(value.clone()),
                "slower_than_ms" => filter.slower_than = Some(Duration::from_millis(number()?)),
                "limit" => {
                    let most = usize::try_from(number()?).ok();
                    let most = most.filter(|most| (1..=100_000).contains(most));
                    wish.most = most.ok_or_else(wrong)?;
                }
                "seconds" => {
                    let seconds = Some(number()?).filter(|seconds| (1..=600).contains(seconds));
                    wish.limit = Duration::from_secs(seconds.ok_or_else(wrong)?);
                }
                _ => return Err(format!("{key:?} is none of {KEYS}")),
            }
        }
        Ok(wish)
    }
}

const KEYS: &str = "method, path, status, source, service, slower_than_ms, limit, seconds";

impl Status {
    fn read(text: &str) -> Option<Self> {
        match text.strip_suffix("xx") {
            Some(class) => class
                .parse()
                .ok()
                .filter(|class| *class <= 9)
                .map(Self::Class),
            None => text.parse().ok().map(Self::One),
        }
    }

    fn is(self, status: u16) -> bool {
        match self {
            Self::One(one) => status == one,
            Self::Class(class) => status / 100 == class,
        }
    }
}

impl Filter {
    fn wants(&self, seen: &Seen<'_>) -> bool {
        let Self {
            method,
            path,
            status,
            source,
            service,
            slower_than,
        } = self;
        let service_is = |part: &String| seen.service.is_some_and(|name| name.contains(&**part));
        method.as_ref().is_none_or(|method| *method == seen.method)
            && path
                .as_ref()
                .is_none_or(|path| seen.path.starts_with(&**path))
            && status.is_none_or(|status| status.is(seen.status))
            && source
                .as_ref()
                .is_none_or(|part| seen.source.contains(&**part) || seen.identity.contains(&**part))
            && service.as_ref().is_none_or(service_is)
            && slower_than.is_none_or(|least| seen.milliseconds >= least.as_secs_f64() * 1000.0)
    }
}

/// Everyone who looks on.
#[derive(Default)]
pub struct Watchers {
    count: AtomicUsize,
    all: Mutex<Vec<Watcher>>,
}

struct Watcher {
    filter: Filter,
    left: usize,
    lines: mpsc::Sender<Bytes>,
    missed: u64,
}

impl Watchers {
    pub(crate) fn are_there(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Lines from now on; none where enough look on already.
    pub fn watch(&self, wish: Wish) -> Option<mpsc::Receiver<Bytes>> {
        let mut all = self.all.lock();
        all.retain(|watcher| !watcher.lines.is_closed());
        let has_room = all.len() < MOST;
        let receiver = has_room.then(|| {
            let (lines, receiver) = mpsc::channel(WAITING);
            all.push(Watcher {
                filter: wish.filter,
                left: wish.most,
                lines,
                missed: 0,
            });
            receiver
        });
        self.count.store(all.len(), Ordering::Relaxed);
        receiver
    }

    pub(crate) fn tell(&self, seen: &Seen<'_>) {
        let mut line = None;
        let mut all = self.all.lock();
        all.retain_mut(|watcher| {
            if watcher.filter.wants(seen) {
                let line: &Bytes = line.get_or_insert_with(|| as_line(seen));
                watcher.tell(line);
            }
            watcher.left > 0 && !watcher.lines.is_closed()
        });
        self.count.store(all.len(), Ordering::Relaxed);
    }
}

impl Watcher {
    fn tell(&mut self, line: &Bytes) {
        if self.missed > 0 {
            let missed = format!("{{\"missed\":{}}}\n", self.missed);
            if self.lines.try_send(missed.into()).is_err() {
                self.missed += 1;
                return;
            }
            self.missed = 0;
        }
        match self.lines.try_send(line.clone()) {
            Ok(()) => self.left -= 1,
            Err(_) => self.missed += 1,
        }
    }
}

fn as_line(seen: &Seen<'_>) -> Bytes {
    let mut line = serde_json::to_vec(seen).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen<'static> {
        Seen {
            unix_milliseconds: 1,
            method: "GET",
            path: "/cart/1?x=y",
            authority: "app.shop",
            status: 503,
            flags: "UH",
            source: "shop/client".into(),
            identity: "spiffe://td/ns/shop/sa/client",
            service: Some("app.shop.svc.cluster.local"),
            endpoint: None,
            route: None,
            policy: None,
            attempts: 0,
            bytes_received: 0,
            bytes_sent: 5,
            milliseconds: 12.5,
            request_id: None,
            error: Some("no \"endpoint\""),
        }
    }

    fn wish(query: &str) -> Result<Wish, String> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let pairs: Vec<_> = pairs
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        Wish::read(&pairs)
    }

    #[test]
    fn all_of_a_filter_has_to_hold() {
        let check = |query: &str, wanted: bool| {
            assert_eq!(
                wish(query).unwrap().filter.wants(&seen()),
                wanted,
                "{query}"
            );
        };
        check("", true);
        check(
            "method=get&path=/cart&status=5xx&source=shop/c&service=app.&slower_than_ms=12",
            true,
        );
        check("method=POST", false);
        check("path=/car/", false);
        check("status=503", true);
        check("status=502", false);
        check("status=4xx", false);
        check("source=sa/client", true);
        check("source=other", false);
        check("service=other", false);
        check("slower_than_ms=13", false);
    }

    #[test]
    fn what_is_no_filter_is_named() {
        let check = |query: &str, words: &str| {
            let error = wish(query).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        check("colour=red", "\"colour\" is none of method, path");
        check("status=often", "status=often is nothing to look for");
        check("limit=0", "limit=0");
        check("seconds=601", "seconds=601");
        check("slower_than_ms=-1", "slower_than_ms=-1");
    }

    #[test]
    fn who_looks_on_gets_lines_until_it_is_enough() {
        let watchers = Watchers::default();
        assert!(!watchers.are_there());
        let mut lines = watchers.watch(wish("limit=2").unwrap()).unwrap();
        for _ in 0..3 {
            watchers.tell(&seen());
        }
        assert!(!watchers.are_there(), "two were enough");
        let line = lines.try_recv().unwrap();
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["error"], "no \"endpoint\"");
        assert_eq!(line["status"], 503);
        assert!(lines.try_recv().is_ok() && lines.try_recv().is_err());
    }

    #[test]
    fn who_reads_too_slowly_is_told_what_was_missed() {
        let watchers = Watchers::default();
        let mut lines = watchers.watch(Wish::default()).unwrap();
        for _ in 0..WAITING + 3 {
            watchers.tell(&seen());
        }
        while lines.try_recv().is_ok() {}
        watchers.tell(&seen());
        assert_eq!(lines.try_recv().unwrap(), "{\"missed\":3}\n");
        assert!(lines.try_recv().is_ok());
    }

    #[test]
    fn places_are_few_and_become_free() {
        let watchers = Watchers::default();
        let mut all: Vec<_> = (0..MOST)
            .filter_map(|_| watchers.watch(Wish::default()))
            .collect();
        assert_eq!(all.len(), MOST);
        assert!(watchers.watch(Wish::default()).is_none());
        all.pop();
        assert!(watchers.watch(Wish::default()).is_some());
    }
}
