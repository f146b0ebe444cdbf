// SPDX-License-Identifier: Apache-2.0
//! How many requests a route takes: the annotation `culvert.io/rate-limit`, since no API of the cluster has a word for it.
//!
//! ```text
//! 100/1m                          100 requests a minute, all clients together, 100 at once where few came before
//! 10/1s; burst=30                 30 at once
//! 10/1s; by=identity              each client for itself, as its tunnel has proven it
//! 10/1s; by=header:x-api-key      each value of the header for itself
//! ```
//!
//! All rules of the route share it. Each process of a waypoint counts for itself. One that can't be read makes all rules
//! of the route answer with an error: nobody is let in unlimited by a slip of the pen.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::waypoint::{self as wire, rate_limit::By};

use super::{Fault, Faults, Route, Rules, said, values};
use crate::{facts::annotation, wellknown};

/// Requests and burst; the waypoint takes no more.
const MOST: u32 = 1_000_000;
const LONGEST: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

/// The route with the limit that its annotation says.
pub(super) fn limited(mut route: Route, metadata: &ObjectMeta) -> Route {
    let Some(text) = annotation(metadata, wellknown::RATE_LIMIT) else {
        return route;
    };
    match read(text) {
        Ok(limit) => route.rate_limit = Some(limit),
        Err(words) => {
            let mut faults = Faults::default();
            let field = format!("metadata.annotations[{}]", wellknown::RATE_LIMIT);
            faults.add(field, words);
            route.close(&faults.0);
            route.faults.extend(faults.0);
        }
    }
    route
}

impl Route {
    /// Has all its rules for requests answer with an error.
    fn close(&mut self, why: &[Fault]) {
        let (rules, ordered) = match &mut self.rules {
            Rules::Http(rules) => (rules.as_mut_slice(), &mut [][..]),
            Rules::Virtual(rules) => (&mut [][..], rules.http.as_mut_slice()),
            Rules::Tls { .. } | Rules::Tcp(_) => return,
        };
        for rule in rules
            .iter_mut()
            .chain(ordered.iter_mut().map(|one| &mut one.rule))
        {
            rule.message.invalid = said(why);
            rule.broken = true;
        }
    }
}

fn read(text: &str) -> Result<wire::RateLimit, String> {
    let mut parts = text.split(';').map(str::trim);
    let rate = parts.next().unwrap_or_default();
    let wrong = || format!("{rate:?} is no rate such as 100/1m");
    let (requests, per) = rate.split_once('/').ok_or_else(wrong)?;
    let per = values::duration(per.trim())?;
    if per.is_zero() || per > LONGEST {
        return Err(format!("the period of {rate:?} is not from 1ms to 24h"));
    }
    let mut limit = wire::RateLimit {
        requests: count(requests.trim())?,
        per: Some(values::wire(per)),
        ..wire::RateLimit::default()
    };
    for part in parts {
        match part
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
        {
            Some(("burst", burst)) if limit.burst == 0 => limit.burst = count(burst)?,
            Some(("by", by)) if limit.by.is_none() => limit.by = Some(client(by)?),
            Some(("burst" | "by", _)) => return Err(format!("{part:?} is said twice")),
            _ => {
                return Err(format!(
                    "{part:?} is neither burst=N nor by=identity nor by=header:NAME"
                ));
            }
        }
    }
    Ok(limit)
}

fn count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (1..=MOST).contains(count));
    count.ok_or_else(|| format!("{text:?} is no number from 1 to {MOST}"))
}

fn client(text: &str) -> Result<By, String> {
    match text.strip_prefix("header:") {
        None if text == "identity" => Ok(By::Identity(())),
        Some(name) if values::is_token(name) => Ok(By::Header(name.to_ascii_lowercase())),
        _ => Err(format!(
            "by={text} is neither by=identity nor by=header:NAME"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_rate_and_what_is_counted_together() {
        let check = |text: &str, requests, seconds, burst, by| {
            let limit = wire::RateLimit {
                requests,
                per: Some(prost_types::Duration { seconds, nanos: 0 }),
                burst,
                by,
            };
            assert_eq!(read(text), Ok(limit), "{text}");
        };
        check("100/1m", 100, 60, 0, None);
        check(" 1 / 24h ", 1, 86_400, 0, None);
        check(
            "10/1s; burst=30; by=identity",
            10,
            1,
            30,
            Some(By::Identity(())),
        );
        check(
            "10/1s;by=header:X-Key;burst=1",
            10,
            1,
            1,
            Some(By::Header("x-key".into())),
        );
    }

    #[test]
    fn what_is_no_limit_is_told_with_its_words() {
        let check = |text: &str, words: &str| {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{text:?}: {error}");
        };
        check("", "is no rate such as 100/1m");
        check("100", "is no rate such as 100/1m");
        check("0/1s", "\"0\" is no number from 1 to 1000000");
        check("-1/1s", "\"-1\" is no number");
        check("1000001/1s", "is no number");
        check("1/0s", "not from 1ms to 24h");
        check("1/25h", "not from 1ms to 24h");
        check("1/s", "is no duration");
        check("1/1s; burst=0", "\"0\" is no number");
        check("1/1s; burst=2; burst=3", "is said twice");
        check("1/1s; by=ip", "by=ip is neither");
        check("1/1s; by=header:a b", "is neither");
        check("1/1s;", "\"\" is neither burst=N");
    }
}
