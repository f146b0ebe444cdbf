// SPDX-License-Identifier: Apache-2.0
//! What a policy that is not in force would have done in the last minutes: the control plane says whom it concerns, and each
//! proxy judges what it remembers, by the code that decides on real traffic. Nothing is changed anywhere.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::admin::{self, Question};
use crate::ps::{items, text};
use crate::table::render;
use crate::ztunnels::Ztunnels;

/// Lines of each policy for people.
const LINES: usize = 20;

/// What is tried out, and who else knows of it.
#[derive(Debug, Args)]
pub(crate) struct Tried {
    /// An AuthorizationPolicy in YAML or JSON: what it would have done in the last minutes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "destination"])]
    pub(crate) policy: Option<PathBuf>,
    /// Admin address of istiod-lite, instead of a cluster's, which says whom a policy concerns
    #[arg(long, value_name = "HOST:PORT", requires = "policy")]
    istiod: Option<String>,
    /// Admin address of a waypoint, for policies with targetRefs, or for what becomes of requests; may be given again
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) waypoint: Vec<String>,
}

/// Asks all of them.
pub(crate) fn run(file: &Path, tried: &Tried, ztunnels: &Ztunnels) -> Result<Value, admin::Error> {
    let written = std::fs::read_to_string(file).map_err(|error| admin::Error {
        asked: file.display().to_string(),
        cause: error.to_string(),
    })?;
    let described = Question::Post("/debug/policy", &written);
    let mut told = match &tried.istiod {
        Some(address) => admin::ask(address, described)?,
        None => ztunnels.ask_istiod(described)?,
    };
    let mut answers = Vec::new();
    let mut answered = |proxy: String, said: Result<Value, admin::Error>| {
        answers.push(match said {
            Ok(answer) => json!({"proxy": proxy, "answer": answer}),
            Err(error) => json!({"proxy": proxy, "error": error.to_string()}),
        });
    };
    if let Some(body) = told.get("ztunnel").filter(|body| !body.is_null()) {
        let body = body.to_string();
        for one in ztunnels.ask(Question::Post("/debug/dry-run", &body))? {
            answered(format!("ztunnel {}", one.ztunnel), one.said);
        }
    }
    if let Some(body) = told.get("waypoint").filter(|body| !body.is_null()) {
        let body = body.to_string();
        for address in &tried.waypoint {
            let said = admin::ask(address, Question::Post("/debug/dry-run", &body));
            answered(format!("waypoint {address}"), said);
        }
    }
    told["answers"] = answers.into();
    Ok(told)
}

/// Sums, then what would change, the most frequent first.
pub(crate) fn table(told: &Value) -> String {
    let mut lines = String::new();
    let policy = text(&told["policy"]);
    for problem in items(told, "problems") {
        let _written = writeln!(lines, "problem  {}", text(problem));
    }
    let answers = items(told, "answers");
    if answers.is_empty() {
        let by = match told["waypoint"].is_null() {
            false => "by waypoints; name one with --waypoint",
            true => "by no proxy",
        };
        let _written = writeln!(lines, "{policy} is enforced {by}: nobody was asked");
        return lines;
    }
    for one in answers {
        let (proxy, answer) = (text(&one["proxy"]), &one["answer"]);
        if let Some(error) = one.get("error") {
            let _written = writeln!(lines, "{proxy} can't be asked: {}", text(error));
            continue;
        }
        let trial = &answer["policies"][&policy];
        let minutes = text(&answer["minutes"]);
        if trial.is_null() {
            let _written = writeln!(lines, "{proxy}: {policy} concerns nothing that it serves");
            continue;
        }
        if let Some(note) = trial.get("note") {
            let _written = writeln!(lines, "{proxy}: {}", text(note));
            continue;
        }
        let number = |key: &str| trial[key].as_u64().unwrap_or_default();
        let looked_at = number("connections") + number("accesses");
        let _written = writeln!(
            lines,
            "{proxy}: of {looked_at} in the last {minutes} minutes {policy} would have denied {}{} and let pass {}; {} are forgotten",
            number("wouldDeny"),
            match number("mightDeny") {
                0 => String::new(),
                might => format!(", perhaps {might} more,"),
            },
            number("wouldAllow"),
            number("forgotten") + number("missed"),
        );
        let changes = items(trial, "changes");
        if changes.is_empty() {
            continue;
        }
        let rows: Vec<Vec<String>> = changes.iter().take(LINES).map(|one| row(one)).collect();
        lines += &render(
            &["COUNT", "CHANGE", "SOURCE", "TO", "REQUEST", "WHY"],
            &rows,
        );
        if let Some(more @ 1..) = changes.len().checked_sub(LINES) {
            let _written = writeln!(lines, "and {more} more kinds");
        }
    }
    lines
}

fn row(change: &Value) -> Vec<String> {
    let source = match change.get("caller").unwrap_or(&change["source"]) {
        Value::Null => format!("plaintext {}", text(&change["sourceIp"])),
        source => text(source),
    };
    let server = change.get("pod").unwrap_or(&change["service"]);
    let what = match text(&change["change"]).as_str() {
        "wouldDeny" => "deny",
        "mightDeny" => "deny?",
        "wouldAllow" => "allow",
        _ => "",
    };
    let request = [&change["method"], &change["path"]].map(text).join(" ");
    vec![
        text(&change["count"]),
        what.to_owned(),
        source,
        format!("{}:{}", text(server), text(&change["port"])),
        request.trim().to_owned(),
        text(&change["why"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(answer: Value) -> Value {
        json!({
            "policy": "shop/p", "problems": ["spec.x: odd"], "ztunnel": {}, "waypoint": null,
            "answers": [{"proxy": "ztunnel a:1", "answer": {"minutes": 10, "policies": {"shop/p": answer}}}],
        })
    }

    #[test]
    fn what_would_change_is_summed_up_and_listed() {
        let lines = table(&told(json!({
            "pods": 1, "connections": 7, "wouldDeny": 5, "wouldAllow": 0, "forgotten": 2,
            "changes": [
                {"source": "spiffe://c/ns/a/sa/b", "sourceIp": "10.0.0.1", "pod": "shop/db", "port": 80, "count": 4,
                 "change": "wouldDeny", "why": "denied"},
                {"source": null, "sourceIp": "10.0.0.2", "pod": "shop/db", "port": 80, "count": 1,
                 "change": "wouldDeny", "why": "denied"},
            ],
        })));
        assert_eq!(
            lines,
            "problem  spec.x: odd
ztunnel a:1: of 7 in the last 10 minutes shop/p would have denied 5 and let pass 0; 2 are forgotten
COUNT  CHANGE  SOURCE                TO          REQUEST  WHY
4      deny    spiffe://c/ns/a/sa/b  shop/db:80           denied
1      deny    plaintext 10.0.0.2    shop/db:80           denied
"
        );
        let request = json!({
            "source": "s", "service": "shop/db", "port": 80, "count": 3, "method": "GET", "path": "/a",
            "change": "mightDeny", "why": "denied",
        });
        assert_eq!(
            row(&request),
            ["3", "deny?", "s", "shop/db:80", "GET /a", "denied"]
        );
    }

    #[test]
    fn who_was_not_asked_or_not_concerned_is_told() {
        let none = json!({"policy": "shop/p", "ztunnel": null, "waypoint": {}, "answers": []});
        assert!(table(&none).contains("by waypoints; name one with --waypoint"));
        let mut other = told(Value::Null);
        other["answers"][0]["answer"]["policies"] = json!({});
        assert!(table(&other).contains("concerns nothing that it serves"));
        let note = told(json!({"note": "only some are tried out"}));
        assert!(table(&note).contains("ztunnel a:1: only some are tried out"));
    }
}
