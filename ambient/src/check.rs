// SPDX-License-Identifier: Apache-2.0
//! Pure: can a ztunnel do its work, by what it says of itself; and is the mesh installed whole, by what the API server
//! says ([`install`]).

pub(crate) mod install;

use std::fmt::Write as _;

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::admin;
use crate::ps::{items, rfc3339, text};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Ok,
    Warning,
    Failure,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) category: String,
    pub(crate) level: Level,
    pub(crate) says: String,
}

pub(crate) fn works(findings: &[Finding]) -> bool {
    findings
        .iter()
        .all(|finding| finding.level < Level::Failure)
}

/// What a ztunnel's dump means, or that it gave none.
pub(crate) fn judge(
    ztunnel: &str,
    dump: Result<Value, admin::Error>,
    now: OffsetDateTime,
) -> Vec<Finding> {
    let finding = |level, says: String| Finding {
        category: format!("ztunnel {ztunnel}"),
        level,
        says,
    };
    let dump = match dump {
        Ok(dump) => dump,
        Err(error) => return vec![finding(Level::Failure, format!("can't be asked: {error}"))],
    };
    let version = text(&dump["version"]["version"]);
    let mut findings = vec![finding(Level::Ok, format!("answers, version {version}"))];

    let known = items(&dump, "workloads").len();
    findings.push(match known {
        0 => finding(
            Level::Failure,
            "knows no workload: it has not heard from the control plane; see its log for xds"
                .to_owned(),
        ),
        known => finding(Level::Ok, format!("knows {known} workloads")),
    });

    let pods = items(&dump, "workloadState");
    let mut bad_pods = 0;
    for pod in &pods {
        let name = format!(
            "{}/{}",
            text(&pod["info"]["namespace"]),
            text(&pod["info"]["name"])
        );
        if let Some(why) = pod.get("unbound") {
            bad_pods += 1;
            findings.push(finding(
                Level::Failure,
                format!("pod {name} is refused: {}", text(why)),
            ));
        }
    }
    if bad_pods == 0 {
        findings.push(finding(Level::Ok, format!("serves {} pods", pods.len())));
    }

    let now = rfc3339(now);
    let certificates = items(&dump, "certificates");
    let mut bad = 0;
    for certificate in &certificates {
        let (identity, state) = (text(&certificate["identity"]), text(&certificate["state"]));
        let expires = text(&certificate["certChain"][0]["expirationTime"]);
        let (level, says) = match &*state {
            "Available" if now < expires => continue,
            "Available" => (Level::Failure, format!("expired at {expires}")),
            state if state.starts_with("Available") => (Level::Warning, state.to_owned()),
            state => (Level::Failure, state.to_owned()),
        };
        bad += 1;
        findings.push(finding(level, format!("certificate of {identity}: {says}")));
    }
    if bad == 0 {
        findings.push(finding(
            Level::Ok,
            format!("{} certificates are in their time", certificates.len()),
        ));
    }

    for endpoint in items(&dump, "ejectedEndpoints") {
        findings.push(finding(
            Level::Warning,
            format!("avoids an endpoint that fails to connect: {endpoint}"),
        ));
    }
    let refusals = items(&dump, "refusals");
    if let Some(last) = refusals
        .iter()
        .max_by_key(|entry| entry["unixMilliseconds"].as_u64())
    {
        let (from, to, why) = (
            text(&last["src"]),
            text(&last["dst"]),
            text(&last["reason"]),
        );
        let count = refusals.len();
        findings.push(finding(
            Level::Warning,
            format!("{count} connections failed lately, the last from {from} to {to}: {why}"),
        ));
    }
    findings
}

pub(crate) fn table(findings: &[Finding]) -> String {
    let mut lines = String::new();
    let mut category = "";
    for finding in findings {
        if finding.category != category {
            category = &finding.category;
            let _written = writeln!(lines, "{category}");
        }
        let mark = match finding.level {
            Level::Ok => "ok  ",
            Level::Warning => "warn",
            Level::Failure => "FAIL",
        };
        let _written = writeln!(lines, "  {mark}  {}", finding.says);
    }
    lines
}

pub(crate) fn json(findings: &[Finding]) -> Value {
    let one = |finding: &Finding| {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Failure => "failure",
        };
        json!({"category": finding.category, "level": level, "says": finding.says})
    };
    json!({"works": works(findings), "findings": findings.iter().map(one).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

    fn dump() -> Value {
        json!({
            "version": {"version": "0.1.0"},
            "workloads": [{"name": "web"}],
            "workloadState": {"u1": {"info": {"name": "web", "namespace": "shop"}}},
            "certificates": [{
                "identity": "spiffe://c/ns/shop/sa/web", "state": "Available",
                "certChain": [{"expirationTime": "2026-01-02T00:00:00Z"}],
            }],
            "refusals": [],
        })
    }

    /// A change to a good dump, and what is then said.
    fn check(pointer: &str, value: Value, level: Level, says: &str) {
        let mut dump = dump();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        dump.pointer_mut(parent).unwrap()[key] = value;
        let findings = judge("a:1", Ok(dump), NOW);
        let found = findings.iter().find(|finding| finding.says.contains(says));
        let found = found.unwrap_or_else(|| panic!("{says} is not in {findings:?}"));
        assert_eq!(found.level, level);
        assert_eq!(works(&findings), level < Level::Failure);
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        let good = judge("a:1", Ok(dump()), NOW);
        assert!(
            good.iter().all(|finding| finding.level == Level::Ok),
            "{good:?}"
        );
        assert!(table(&good).starts_with("ztunnel a:1\n  ok    answers, version 0.1.0\n"));
        check("/workloads", json!([]), Level::Failure, "control plane");
        check(
            "/workloadState/u1/unbound",
            json!("another"),
            Level::Failure,
            "shop/web is refused: another",
        );
        check(
            "/certificates/0/state",
            json!("Unavailable: no"),
            Level::Failure,
            "Unavailable: no",
        );
        check(
            "/certificates/0/state",
            json!("Available, renewal failed: no"),
            Level::Warning,
            "renewal failed",
        );
        let past = json!([{"expirationTime": "2025-12-31T00:00:00Z"}]);
        check(
            "/certificates/0/certChain",
            past,
            Level::Failure,
            "expired at 2025",
        );
        let refusals = json!([
            {"unixMilliseconds": 2, "src": "1.1.1.1:1", "dst": "2.2.2.2:2", "reason": "denied"},
            {"unixMilliseconds": 1, "reason": "older"},
        ]);
        check(
            "/refusals",
            refusals,
            Level::Warning,
            "2 connections failed lately, the last from 1.1.1.1:1 to 2.2.2.2:2: denied",
        );
    }

    #[test]
    fn a_ztunnel_that_does_not_answer_fails() {
        let error = admin::Error {
            asked: "http://a:1/config_dump".to_owned(),
            cause: "refused".to_owned(),
        };
        let findings = judge("a:1", Err(error), NOW);
        assert!(!works(&findings));
        assert_eq!(json(&findings)["works"], false);
        assert!(table(&findings).contains("FAIL  can't be asked: http://a:1/config_dump: refused"));
    }
}
