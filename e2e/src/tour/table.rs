// SPDX-License-Identifier: Apache-2.0
//! What was proved, for people: a line for each conversation, and below it what did not hold.

use std::fmt::Write as _;

use crate::status::columns;
use crate::topology::TRUST_DOMAIN;
use crate::tour::{Fact, Proved, Transport, Verdict};

/// Whether the reader's terminal shows colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Ansi,
    None,
}

pub(super) fn print(proved: &Proved, colour: Colour) -> String {
    let mut rows = vec![
        [
            "",
            "PATH",
            "FROM",
            "TO",
            "ON THE WIRE",
            "SOURCE",
            "DESTINATION",
            "VERDICT",
            "BYTES",
        ]
        .map(String::from)
        .to_vec(),
    ];
    rows.extend(proved.facts.iter().map(row));
    let table = columns(&rows);
    let mut text = String::new();
    for (line, fact) in table
        .lines()
        .zip([None].into_iter().chain(proved.facts.iter().map(Some)))
    {
        // Writing to a string can't fail.
        let _infallible = writeln!(text, "{}", paint(line, fact.map(|fact| fact.holds), colour));
        for failure in fact.into_iter().flat_map(|fact| &fact.failures) {
            let _infallible = writeln!(text, "      {failure}");
        }
    }
    text.push('\n');
    let heading = ["", "BY WAY OF A WAYPOINT", "SEEN"].map(String::from);
    let claims = proved.claims.iter().map(|claim| {
        let mark = if claim.holds { "✓" } else { "✗" };
        vec![mark.into(), claim.what.clone(), claim.seen.clone()]
    });
    let rows: Vec<Vec<String>> = [heading.to_vec()].into_iter().chain(claims).collect();
    let held = [None].into_iter();
    let held = held.chain(proved.claims.iter().map(|claim| Some(claim.holds)));
    for (line, holds) in columns(&rows).lines().zip(held) {
        let _infallible = writeln!(text, "{}", paint(line, holds, colour));
    }
    let facts = proved.facts.iter().map(|fact| fact.holds);
    let all = facts.chain(proved.claims.iter().map(|claim| claim.holds));
    let (held, all) = all.fold((0, 0), |(held, all), holds| {
        (held + u32::from(holds), all + 1)
    });
    let _infallible = writeln!(text, "\n  {held} of {all} held");
    text
}

fn row(fact: &Fact) -> Vec<String> {
    let seen = &fact.seen;
    let wire = match seen.transport {
        Some(Transport::MutualTls) => format!("mTLS, {} records", seen.tls_records),
        Some(Transport::Plaintext) => "plaintext".into(),
        None => "nothing".into(),
    };
    let verdict = match (seen.verdict, &seen.rule) {
        (Some(Verdict::Allowed), None) => "allowed".into(),
        (Some(Verdict::Allowed), Some(rule)) => format!("allowed by {rule}"),
        (Some(Verdict::Denied), None) => "denied".into(),
        (Some(Verdict::Denied), Some(rule)) => format!("denied by {rule}"),
        (None, _) => "not logged".into(),
    };
    vec![
        if fact.holds { "✓" } else { "✗" }.into(),
        fact.path.clone(),
        fact.source.clone(),
        fact.destination.clone(),
        wire,
        short(&seen.source_identity),
        short(&seen.destination_identity),
        verdict,
        format!("{}↑ {}↓", seen.bytes_received, seen.bytes_sent),
    ]
}

/// An identity as `namespace/account`; the trust domain is the same for all.
fn short(identity: &Option<String>) -> String {
    let Some(identity) = identity else {
        return "–".into();
    };
    let of_lab = identity
        .strip_prefix(&format!("spiffe://{TRUST_DOMAIN}/ns/"))
        .and_then(|rest| rest.split_once("/sa/"));
    of_lab.map_or_else(
        || identity.clone(),
        |(namespace, account)| format!("{namespace}/{account}"),
    )
}

/// A heading, or a line that holds or does not.
fn paint(line: &str, holds: Option<bool>, colour: Colour) -> String {
    let code = match (colour, holds) {
        (Colour::None, _) => return line.to_owned(),
        (Colour::Ansi, None) => 1,
        (Colour::Ansi, Some(true)) => 32,
        (Colour::Ansi, Some(false)) => 31,
    };
    format!("\x1b[{code}m{line}\x1b[0m")
}
