// SPDX-License-Identifier: Apache-2.0
//! Reads a proxy's access log: JSON lines, those of scope `access`.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One line about one connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub level: String,
    pub message: String,
    pub fields: Map<String, Value>,
}

impl Entry {
    /// A field as text, whatever its JSON type.
    pub fn field(&self, name: &str) -> Option<String> {
        match self.fields.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    pub fn is(&self, name: &str, value: &str) -> bool {
        self.field(name).as_deref() == Some(value)
    }

    pub fn source(&self) -> Option<SocketAddr> {
        self.field("src.addr")?.parse().ok()
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    pub fn error(&self) -> Option<String> {
        self.field("error")
    }

    /// A connection that is over, well or badly.
    pub fn is_final(&self) -> bool {
        self.message == "connection complete" || self.message == "connection failed"
    }

    pub fn is_inbound(&self) -> bool {
        self.is("direction", "inbound")
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.level, self.message)?;
        self.fields
            .iter()
            .try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// The access lines of a log; other lines are passed over.
pub fn parse(log: &str) -> Vec<Entry> {
    log.lines().filter_map(parse_line).collect()
}

/// What a proxy's policies decided, for a source address, in the order of the log.
pub fn decisions(log: &str, source: std::net::IpAddr) -> Vec<String> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = lines.filter(|line| {
        let address: Option<std::net::IpAddr> = line["src"]
            .as_str()
            .and_then(|address| address.parse().ok());
        line["message"] == "policy decision" && address == Some(source)
    });
    ours.filter_map(|line| Some(line["decision"].as_str()?.to_owned()))
        .collect()
}

fn parse_line(line: &str) -> Option<Entry> {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(line) else {
        return None;
    };
    if fields.get("scope").and_then(Value::as_str) != Some("access") {
        return None;
    }
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (level, message) = (text("level"), text("message"));
    text("scope");
    text("time");
    Some(Entry {
        level,
        message,
        fields,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_access_lines_are_taken() {
        let log = concat!(
            r#"{"level":"info","time":"t","scope":"access","message":"connection complete","src.addr":"10.0.0.1:5","bytes_sent":7}"#,
            "\n",
            r#"{"level":"info","time":"t","scope":"ztunnel::app","message":"up"}"#,
            "\nnot json\n"
        );
        let entries = parse(log);
        assert_eq!(entries.len(), 1);
        assert!(entries[0].is_final());
        assert_eq!(entries[0].source(), Some("10.0.0.1:5".parse().unwrap()));
        assert_eq!(entries[0].number("bytes_sent"), Some(7));
    }
}
