// SPDX-License-Identifier: Apache-2.0
//! Holds one conversation with everybody watching, then reads what each of them saw.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::access_log::{self, Entry};
use crate::handle::{Access, eventually, proxy_of};
use crate::sniff::{Flow, Traffic};
use crate::telemetry::Metrics;
use crate::topology::Node;
use crate::tour::scenarios::{Family, Manner, Target, Witness};
use crate::tour::{Fact, Scenario, Seen, Transport, Verdict};
use crate::traffic::{Outcome, Report};

/// How much is sent where the amount is ours to choose.
const BYTES: u64 = 65_536;
/// More requests than any fair choice between two endpoints needs to reach both.
const REQUESTS: usize = 24;

pub(super) fn gather(lab: &Access, scenario: &Scenario) -> Result<Fact> {
    let target = resolve(lab, scenario)?;
    let source = lab
        .pod(scenario.source)?
        .addresses
        .context("the client has no address")?;
    let source: IpAddr = if target.is_ipv6() {
        source.v6.into()
    } else {
        source.v4.into()
    };
    let before = Before::note(lab, source)?;
    let marker = format!("culvert-{:016x}-", rand::random::<u64>());
    let spoken = match scenario.target {
        Target::Name { host, port } => format!("{host}:{port}"),
        Target::Pod { .. } | Target::Address(_) => target.to_string(),
    };
    let talk = || converse(lab, scenario, &spoken, &marker);
    let ((reports, on_b), on_a) = lab.sniff(Node::A, Some(&marker), || {
        lab.sniff(Node::B, Some(&marker), talk)
    })?;
    let mut seen = Seen {
        outcome: outcome(&reports).to_string(),
        answered_by: answered_by(&reports),
        ..Seen::default()
    };
    look_at_the_wire(&mut seen, source, &[on_a, on_b]);
    before.read_logs(lab, scenario, &reports, &mut seen)?;
    let failures = judge(scenario, &reports, &seen);
    Ok(Fact {
        path: scenario.path.into(),
        source: scenario.source.into(),
        destination: scenario.destination.into(),
        expected: scenario.expected.clone(),
        seen,
        holds: failures.is_empty(),
        failures,
    })
}

fn resolve(lab: &Access, scenario: &Scenario) -> Result<SocketAddr> {
    match scenario.target {
        Target::Pod {
            name,
            family: Family::V4,
            port,
        } => lab.v4(name, port),
        Target::Pod {
            name,
            family: Family::V6,
            port,
        } => lab.v6(name, port),
        Target::Address(text) => text.parse().context("a scenario's address"),
        Target::Name { host, port } => {
            let name = format!("{host}:{port}");
            let report = lab.traffic(scenario.source, &["lookup", &name])?;
            report
                .target
                .with_context(|| format!("{name} leads nowhere"))
        }
    }
}

fn converse(lab: &Access, scenario: &Scenario, target: &str, marker: &str) -> Result<Vec<Report>> {
    match scenario.manner {
        Manner::Echo => {
            let bytes = BYTES.to_string();
            let arguments = ["echo", target, "--bytes", &bytes, "--marker", marker];
            Ok(vec![lab.traffic(scenario.source, &arguments)?])
        }
        Manner::Greet => Ok(vec![lab.traffic(scenario.source, &["greet", target])?]),
        Manner::Requests => {
            let path = format!("/{marker}");
            let mut reports = Vec::new();
            for _request in 0..REQUESTS {
                reports.push(lab.traffic(scenario.source, &["get", target, &path])?);
                let all = scenario
                    .expected
                    .answered_by
                    .iter()
                    .all(|pod| answered_by(&reports).contains(pod));
                if all {
                    break;
                }
            }
            Ok(reports)
        }
    }
}

fn outcome(reports: &[Report]) -> Outcome {
    let failed = reports.iter().find(|report| !report.is_done());
    failed.map_or(Outcome::Done, |report| report.outcome.clone())
}

/// The pods that answered requests, by what they said.
fn answered_by(reports: &[Report]) -> Vec<String> {
    let mut pods: Vec<String> = reports
        .iter()
        .filter_map(|report| {
            serde_json::from_str::<serde_json::Value>(report.answer.as_deref()?).ok()
        })
        .filter_map(|page| Some(page["pod"].as_str()?.to_owned()))
        .collect();
    pods.sort();
    pods.dedup();
    pods
}

fn look_at_the_wire(seen: &mut Seen, source: IpAddr, wires: &[Traffic]) {
    let ours = |flow: &&Flow| flow.source.ip() == source || flow.destination.ip() == source;
    let flows = || wires.iter().flat_map(|wire| &wire.flows);
    seen.tls_records = flows()
        .filter(ours)
        .filter(|flow| flow.is_tunnel() && flow.tls)
        .map(|flow| flow.tls_records)
        .sum();
    // The text counts wherever it stood: a proxy that speaks for the pod from another address would be no better.
    seen.transport =
        if flows().any(|flow| flow.marker) || flows().filter(ours).any(Flow::is_in_the_clear) {
            Some(Transport::Plaintext)
        } else if seen.tls_records > 0 {
            Some(Transport::MutualTls)
        } else {
            None
        };
}

/// How logs and counters stood before the conversation.
struct Before {
    source: IpAddr,
    entries: [usize; 2],
    decisions: [usize; 2],
    metrics: [Metrics; 2],
}

impl Before {
    fn note(lab: &Access, source: IpAddr) -> Result<Self> {
        let decisions = |node| {
            Ok::<_, anyhow::Error>(access_log::decisions(&lab.log(proxy_of(node))?, source).len())
        };
        Ok(Self {
            source,
            decisions: [decisions(Node::A)?, decisions(Node::B)?],
            entries: [
                lab.access_log(Node::A)?.len(),
                lab.access_log(Node::B)?.len(),
            ],
            metrics: [lab.metrics(Node::A)?, lab.metrics(Node::B)?],
        })
    }

    /// Reads what the proxies wrote and counted since. A conversation that leaves the mesh is seen by its source only.
    fn read_logs(
        &self,
        lab: &Access,
        scenario: &Scenario,
        reports: &[Report],
        seen: &mut Seen,
    ) -> Result<()> {
        let direction = match scenario.witness {
            Witness::Destination => "inbound",
            Witness::Source => "outbound",
        };
        let found = eventually(
            "the proxies log the conversation",
            Duration::from_secs(5),
            || {
                let mut found = Vec::new();
                for (node, skip) in Node::ALL.into_iter().zip(self.entries) {
                    let entries = lab.access_log(node)?.into_iter().skip(skip);
                    let ours = |entry: &Entry| {
                        entry.is_final()
                            && entry.is("direction", direction)
                            && entry
                                .source()
                                .is_some_and(|address| address.ip().to_canonical() == self.source)
                    };
                    found.extend(entries.filter(ours));
                }
                ensure!(
                    found.len() >= reports.len(),
                    "{} of {} lines",
                    found.len(),
                    reports.len()
                );
                Ok(found)
            },
        );
        // Their absence is judged like anything else that was expected and not seen.
        let Ok(entries) = found else { return Ok(()) };
        if let Some(entry) = entries.last() {
            seen.source_identity = entry.field("src.identity");
            seen.destination_identity = entry.field("dst.identity");
            let denied = entry.error().filter(|error| error.contains("polic"));
            seen.verdict = Some(if denied.is_some() {
                Verdict::Denied
            } else {
                Verdict::Allowed
            });
            // The access log says who refused; who allowed stands in the proxy's log of decisions.
            seen.rule = match denied {
                Some(reason) => policy_in(&reason),
                None => self.last_decision(lab)?.as_deref().and_then(policy_in),
            };
        }
        self.count(lab, direction, reports, seen)
    }

    /// What policies decided last about this source since.
    fn last_decision(&self, lab: &Access) -> Result<Option<String>> {
        let mut last = None;
        for (node, skip) in Node::ALL.into_iter().zip(self.decisions) {
            let decisions = access_log::decisions(&lab.log(proxy_of(node))?, self.source);
            last = decisions.into_iter().skip(skip).last().or(last);
        }
        Ok(last)
    }

    fn count(
        &self,
        lab: &Access,
        direction: &str,
        reports: &[Report],
        seen: &mut Seen,
    ) -> Result<()> {
        let reporter = if direction == "outbound" {
            "source"
        } else {
            "destination"
        };
        let total = |metrics: &[Metrics; 2], name: &str| -> u64 {
            let sum: f64 = metrics
                .iter()
                .map(|metrics| metrics.sum(name, &[("reporter", reporter)]))
                .sum();
            // Counters are whole numbers and far below what a float holds exactly.
            sum as u64
        };
        let wanted: u64 = reports.iter().map(|report| report.sent).sum();
        let counted = eventually("the bytes are counted", Duration::from_secs(3), || {
            let now = [lab.metrics(Node::A)?, lab.metrics(Node::B)?];
            let since = |name: &str| total(&now, name).saturating_sub(total(&self.metrics, name));
            let counted = (
                since("istio_tcp_received_bytes_total"),
                since("istio_tcp_sent_bytes_total"),
            );
            ensure!(
                seen.verdict != Some(Verdict::Allowed) || counted.0 >= wanted,
                "{counted:?}"
            );
            Ok(counted)
        });
        (seen.bytes_received, seen.bytes_sent) = counted.unwrap_or_default();
        Ok(())
    }
}

/// The policy named in a reason: the first word that looks like `namespace/name`, with its rule.
fn policy_in(reason: &str) -> Option<String> {
    let mut words = reason
        .split_whitespace()
        .map(|word| word.trim_matches([',', ':', '.', '"']));
    let policy = words.find(|word| word.contains('/') && !word.contains("://"))?;
    Some(match words.next() {
        Some(rule) if rule.starts_with("rule[") => format!("{policy} {rule}"),
        _ => policy.to_owned(),
    })
}

fn judge(scenario: &Scenario, reports: &[Report], seen: &Seen) -> Vec<String> {
    let expected = &scenario.expected;
    let mut failures = Vec::new();
    let mut check = |what: &str, wanted: String, had: String| {
        if wanted != had {
            failures.push(format!("{what}: expected {wanted}, saw {had}"));
        }
    };
    let words = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".into());
    let works = outcome(reports) == Outcome::Done;
    match expected.verdict {
        Verdict::Allowed => check("client", Outcome::Done.to_string(), seen.outcome.clone()),
        Verdict::Denied => check(
            "client",
            "a failure".into(),
            if works {
                "success".into()
            } else {
                "a failure".into()
            },
        ),
    }
    // Who is refused in the clear may not have come to say a word.
    let unsaid = expected.verdict == Verdict::Denied
        && expected.transport == Transport::Plaintext
        && seen.transport.is_none();
    if !unsaid {
        check(
            "wire",
            format!("{:?}", Some(expected.transport)),
            format!("{:?}", seen.transport),
        );
    }
    check(
        "source identity",
        words(&expected.source_identity),
        words(&seen.source_identity),
    );
    check(
        "destination identity",
        words(&expected.destination_identity),
        words(&seen.destination_identity),
    );
    check(
        "verdict",
        format!("{:?}", Some(expected.verdict)),
        format!("{:?}", seen.verdict),
    );
    if let Some(policy) = &expected.policy {
        let named = seen
            .rule
            .as_ref()
            .and_then(|rule| rule.split(' ').next())
            .map(ToOwned::to_owned);
        check("policy", policy.clone(), words(&named));
    }
    let missing: Vec<&str> = expected
        .answered_by
        .iter()
        .filter(|pod| !seen.answered_by.contains(pod))
        .map(String::as_str)
        .collect();
    check(
        "endpoints without an answer",
        "none".into(),
        if missing.is_empty() {
            "none".into()
        } else {
            missing.join(", ")
        },
    );
    let sent: u64 = reports.iter().map(|report| report.sent).sum();
    if expected.verdict == Verdict::Allowed && seen.bytes_received < sent {
        failures.push(format!(
            "metrics: expected at least {sent} bytes from the client, saw {}",
            seen.bytes_received
        ));
    }
    if expected.verdict == Verdict::Denied && seen.bytes_sent > 0 {
        failures.push(format!(
            "metrics: expected no byte from the server of a refused connection, saw {}",
            seen.bytes_sent
        ));
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_found_in_a_reason() {
        let check = |reason: &str, expected: Option<&str>| {
            assert_eq!(policy_in(reason).as_deref(), expected, "{reason}")
        };
        check("denied by policy shop/no rule[0]", Some("shop/no rule[0]"));
        check(
            "not matched by the ALLOW policy shop/vault-clients",
            Some("shop/vault-clients"),
        );
        check("connection to spiffe://a/ns/b refused", None);
    }
}
