// SPDX-License-Identifier: Apache-2.0
//! Pure: what a ztunnel says would become of a connection, as lines for people. It decides; here it is only told.

use std::fmt::Write as _;

use clap::Args;
use serde_json::Value;

use crate::admin;
use crate::ps::{items, text};

/// A request that a waypoint is asked about.
#[derive(Debug, Args)]
pub(crate) struct Request {
    /// Of a request by way of the waypoint at --waypoint: its method
    #[arg(long, requires = "waypoint", default_value = "GET")]
    method: String,
    /// Its path, with the query
    #[arg(long, requires = "waypoint", default_value = "/")]
    path: String,
    /// A header of it, "name: value"; may be given again
    #[arg(long, requires = "waypoint", value_name = "NAME: VALUE")]
    header: Vec<String>,
}

impl Request {
    /// What its waypoint's admin port is asked, if the way of a connection leads by one on behalf of a service. A client
    /// that names no other host names the destination as it was asked for.
    pub(crate) fn question(&self, answer: &Value, destination: &str) -> Option<String> {
        let hops = items(answer, "hops");
        let hop = hops.iter().find(|hop| hop["to"] == "waypoint")?;
        let service = answer.get("service").map(text)?;
        let address = text(&answer["destination"]);
        let port = address.rsplit_once(':')?.1.to_owned();
        let mut path = format!(
            "/debug/explain?service={}&port={port}&source={}&method={}&path={}",
            encoded(&service),
            encoded(&text(&hop["clientIdentity"])),
            encoded(&self.method),
            encoded(&self.path),
        );
        let is_host = |header: &String| {
            let name = header.split(':').next().unwrap_or_default();
            name.trim().eq_ignore_ascii_case("host")
        };
        let host = format!("host: {destination}");
        let host = (!self.header.iter().any(is_host)).then_some(&host);
        for header in host.into_iter().chain(&self.header) {
            let _written = write!(path, "&header={}", encoded(header));
        }
        Some(path)
    }

    /// What the waypoint says, below the way there.
    pub(crate) fn table(&self, waypoint: &str, told: &Value) -> String {
        let mut lines = String::new();
        let mut line = |name: &str, says: String| {
            let _written = writeln!(lines, "{name:<12} {says}");
        };
        line(
            "request",
            format!("{} {} at {waypoint}", self.method, self.path),
        );
        for asks in items(told, "asks") {
            line("  asks", text(asks));
        }
        for (name, key) in [
            ("  route", "route"),
            ("  leads to", "leadsTo"),
            ("  dry run", "dryRun"),
        ] {
            if let Some(says) = told.get(key) {
                line(name, text(says));
            }
        }
        for note in items(told, "notes") {
            line("  note", text(note));
        }
        let why = text(&told["why"]);
        line(
            "  verdict",
            match allowed(told) {
                // That says so itself.
                true => why,
                false => format!("{}: {why}", word(told)),
            },
        );
        lines
    }
}

/// Which answer counts where several ztunnels were asked: that of the client's own node, which takes the way.
pub(crate) fn best(
    answers: impl IntoIterator<Item = Result<Value, admin::Error>>,
) -> Result<Value, admin::Error> {
    let is_own = |answer: &Value| answer["source"]["here"] == true;
    let mut failed = None;
    let mut other = None;
    for answer in answers {
        match answer {
            Ok(answer) if is_own(&answer) => return Ok(answer),
            Ok(answer) => other = other.or(Some(answer)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match (other, failed) {
        (Some(answer), _) => Ok(answer),
        (None, Some(error)) => Err(error),
        (None, None) => Err(admin::Error {
            asked: "nobody".to_owned(),
            cause: "no ztunnel was named".to_owned(),
        }),
    }
}

pub(crate) fn allowed(answer: &Value) -> bool {
    answer["allowed"] == true
}

/// Each party and leg on a line of its own, then what decides.
pub(crate) fn table(answer: &Value) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, says: String| {
        let _written = writeln!(lines, "{name:<12} {says}");
    };
    line("source", party(&answer["source"]));
    let service = answer.get("service").map(text);
    let to = text(&answer["destination"]);
    line(
        "destination",
        service.map_or(to.clone(), |service| format!("{service} at {to}")),
    );
    for (number, hop) in items(answer, "hops").iter().enumerate() {
        let server = match hop.get("server") {
            Some(server) => format!("{} {}", text(&hop["to"]), party(server)),
            None => text(&hop["to"]),
        };
        line(
            &format!("hop {}", number + 1),
            format!(
                "{} to {server} at {}",
                text(&hop["transport"]),
                text(&hop["address"])
            ),
        );
        for (name, key) in [
            ("  as", "clientIdentity"),
            ("  for", "onBehalfOf"),
            ("  asks for", "authority"),
            ("  cipher", "cipher"),
        ] {
            if let Some(says) = hop.get(key) {
                line(name, text(says));
            }
        }
        for expected in items(hop, "expected") {
            line("  expects", text(expected));
        }
        let verdict = &hop["verdict"];
        line(
            "  verdict",
            format!("{}: {}", word(verdict), text(&verdict["why"])),
        );
        for policy in items(verdict, "policies") {
            line("  looked at", text(policy));
        }
    }
    for note in items(answer, "notes") {
        line("note", text(note));
    }
    line(
        "result",
        format!("{}: {}", word(answer), text(&answer["why"])),
    );
    lines
}

fn word(verdict: &Value) -> &'static str {
    match allowed(verdict) {
        true => "allowed",
        false => "NOT ALLOWED",
    }
}

fn party(party: &Value) -> String {
    let mut says = text(&party["workload"]);
    let node = text(&party["node"]);
    if !node.is_empty() {
        let _written = write!(says, " on {node}");
    }
    match party["inMesh"] == true {
        true => says + ", in the mesh",
        false => says + ", not in the mesh",
    }
}

/// What is asked of a ztunnel's admin port.
pub(crate) fn path(source: &str, destination: &str) -> String {
    let (host, port) = split(destination);
    let mut path = format!(
        "/debug/explain?source={}&destination={}",
        encoded(source),
        encoded(host)
    );
    if let Some(port) = port {
        let _written = write!(path, "&port={port}");
    }
    path
}

/// HOST:PORT, \[IPv6\]:PORT, or without a port.
fn split(destination: &str) -> (&str, Option<u16>) {
    if let Some(rest) = destination.strip_prefix('[') {
        let (ip, behind) = rest.split_once(']').unwrap_or((rest, ""));
        let port = behind.strip_prefix(':').and_then(|port| port.parse().ok());
        return (ip, port);
    }
    match destination.rsplit_once(':') {
        // More colons are an address of IPv6.
        Some((host, port)) if !host.contains(':') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (destination, None),
        },
        _ => (destination, None),
    }
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' | b':' => {
                out.push(char::from(byte));
            }
            other => {
                let _written = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(here: bool) -> Value {
        json!({
            "source": {"workload": "shop/web", "node": "a", "inMesh": true, "here": here},
            "service": "shop/db.shop.svc.cluster.local",
            "destination": "10.96.0.2:5432",
            "hops": [{
                "transport": "hbone", "to": "endpoint", "clientIdentity": "spiffe://c/ns/shop/sa/web",
                "server": {"workload": "shop/db-1", "node": "", "inMesh": true},
                "address": "10.0.0.2:15008", "expected": ["spiffe://c/ns/shop/sa/db"],
                "verdict": {"allowed": false, "why": "denied by policy shop/no rule[0]", "policies": ["shop/no"]},
            }],
            "allowed": false, "why": "denied by policy shop/no rule[0]",
        })
    }

    #[test]
    fn a_waypoint_on_the_way_is_asked_about_the_request() {
        let request = Request {
            method: "POST".to_owned(),
            path: "/a?b=c d".to_owned(),
            header: vec!["x-canary: yes".to_owned()],
        };
        let mut answer = answer(true);
        assert_eq!(request.question(&answer, "db"), None);
        answer["hops"][0]["to"] = "waypoint".into();
        assert_eq!(
            request.question(&answer, "db.shop:5432").as_deref(),
            Some(
                "/debug/explain?service=shop/db.shop.svc.cluster.local&port=5432&source=spiffe://c/ns/shop/sa/web\
                 &method=POST&path=/a%3Fb%3Dc%20d&header=host:%20db.shop:5432&header=x-canary:%20yes"
            )
        );
        let told = json!({
            "allowed": false, "why": "denied by policy shop/no rule 0", "asks": ["opa by policy shop/ask rule 1"],
            "notes": ["no ip was given"],
        });
        assert_eq!(
            request.table("127.0.0.1:15000", &told),
            "request      POST /a?b=c d at 127.0.0.1:15000
  asks       opa by policy shop/ask rule 1
  note       no ip was given
  verdict    NOT ALLOWED: denied by policy shop/no rule 0
"
        );
    }

    #[test]
    fn each_leg_is_told_and_what_decides() {
        let lines = table(&answer(true));
        assert_eq!(
            lines,
            "source       shop/web on a, in the mesh
destination  shop/db.shop.svc.cluster.local at 10.96.0.2:5432
hop 1        hbone to endpoint shop/db-1, in the mesh at 10.0.0.2:15008
  as         spiffe://c/ns/shop/sa/web
  expects    spiffe://c/ns/shop/sa/db
  verdict    NOT ALLOWED: denied by policy shop/no rule[0]
  looked at  shop/no
result       NOT ALLOWED: denied by policy shop/no rule[0]
"
        );
    }

    #[test]
    fn the_clients_own_node_knows_best() {
        let failed = || {
            Err(admin::Error {
                asked: "http://a:1/".to_owned(),
                cause: "refused".to_owned(),
            })
        };
        let own = best(vec![failed(), Ok(answer(false)), Ok(answer(true))]);
        assert_eq!(own.unwrap(), answer(true));
        assert_eq!(
            best(vec![failed(), Ok(answer(false))]).unwrap(),
            answer(false)
        );
        assert_eq!(best(vec![failed()]).unwrap_err().cause, "refused");
    }

    #[test]
    fn a_destination_may_have_a_port() {
        for (text, expected) in [
            ("db", "destination=db"),
            ("db.shop:80", "destination=db.shop&port=80"),
            ("shop/db-1:80", "destination=shop/db-1&port=80"),
            ("10.0.0.1:80", "destination=10.0.0.1&port=80"),
            ("fd00::1", "destination=fd00::1"),
            ("[fd00::1]:80", "destination=fd00::1&port=80"),
            ("a b&c", "destination=a%20b%26c"),
        ] {
            assert_eq!(
                path("shop/web", text),
                format!("/debug/explain?source=shop/web&{expected}")
            );
        }
    }
}
