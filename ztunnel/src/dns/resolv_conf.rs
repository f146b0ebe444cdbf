// SPDX-License-Identifier: Apache-2.0
//! Pure: the text of a resolv.conf(5) → the upstream servers and how to ask them.
//!
//! The search list is not read: names are forwarded as they were asked for. What can't be used is left out, with a reason.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const DNS_PORT: u16 = 53;
/// As many as any cluster lists; the C library reads three.
const MOST_SERVERS: usize = 8;
/// Where the file doesn't say: two tries fit into the five seconds that clients wait before they ask again.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(2);
const DEFAULT_ATTEMPTS: u32 = 2;
// The C library's bounds.
const MOST_SECONDS: u64 = 30;
const MOST_ATTEMPTS: u32 = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvConf {
    /// In the order in which they are asked.
    pub servers: Vec<SocketAddr>,
    /// How long one server may take.
    pub patience: Duration,
    /// How often the list is gone through.
    pub attempts: u32,
    pub turn: Turn,
    /// Lines that name a server which can't be one.
    pub unusable: Vec<String>,
}

/// Who is asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The first in the list.
    InOrder,
    /// Each in turn.
    Rotating,
}

impl ResolvConf {
    pub fn parse(text: &str) -> Self {
        let mut conf = Self {
            servers: Vec::new(),
            patience: DEFAULT_PATIENCE,
            attempts: DEFAULT_ATTEMPTS,
            turn: Turn::InOrder,
            unusable: Vec::new(),
        };
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => conf.server(words.next().unwrap_or_default()),
                Some("options") => words.for_each(|option| conf.option(option)),
                _ => {}
            }
        }
        conf
    }

    fn server(&mut self, text: &str) {
        let usable = match text.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            Err(_) => Err("is no IP address"),
            Ok(ip) if ip.is_loopback() => Err("is this machine's loopback, which pods can't reach"),
            Ok(ip) if ip.is_unspecified() || ip.is_multicast() => Err("is no server's address"),
            Ok(_) if self.servers.len() >= MOST_SERVERS => Err("is one server too many"),
            Ok(ip) => Ok(SocketAddr::new(ip, DNS_PORT)),
        };
        match usable {
            Ok(server) if self.servers.contains(&server) => {}
            Ok(server) => self.servers.push(server),
            Err(reason) => self.unusable.push(format!("nameserver {text:?} {reason}")),
        }
    }

    fn option(&mut self, option: &str) {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        match (name, value.parse::<u32>()) {
            ("rotate", _) => self.turn = Turn::Rotating,
            ("timeout", Ok(seconds)) => {
                self.patience = Duration::from_secs(u64::from(seconds).clamp(1, MOST_SECONDS));
            }
            ("attempts", Ok(attempts)) => self.attempts = attempts.clamp(1, MOST_ATTEMPTS),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn servers_and_options_are_read_and_the_rest_is_left_alone() {
        let conf = ResolvConf::parse(
            "# from the kubelet\nsearch shop.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\n\
             nameserver fd96::a ; second\n  nameserver\t10.96.0.10\noptions ndots:5 timeout:1 attempts:3 rotate edns0\nsortlist 1.2.3.4\n",
        );
        assert_eq!(conf.servers, servers(&["10.96.0.10:53", "[fd96::a]:53"]));
        assert_eq!((conf.patience, conf.attempts), (Duration::from_secs(1), 3));
        assert_eq!(conf.turn, Turn::Rotating);
        assert_eq!(conf.unusable, [""; 0]);
    }

    #[test]
    fn an_empty_file_names_nobody() {
        let conf = ResolvConf::parse("");
        assert!(conf.servers.is_empty());
        assert_eq!((conf.patience, conf.attempts), (Duration::from_secs(2), 2));
        assert_eq!(conf.turn, Turn::InOrder);
    }

    #[test]
    fn servers_that_no_pod_could_ask_are_left_out_with_a_reason() {
        let check = |line: &str, reason: &str| {
            let conf = ResolvConf::parse(line);
            assert!(conf.servers.is_empty(), "{line}");
            assert!(
                conf.unusable.len() == 1 && conf.unusable[0].contains(reason),
                "{line}: {:?}",
                conf.unusable
            );
        };
        check("nameserver 127.0.0.53", "loopback");
        check("nameserver ::1", "loopback");
        check("nameserver ::ffff:127.0.0.1", "loopback");
        check("nameserver 0.0.0.0", "no server");
        check("nameserver fe80::1%eth0", "no IP address");
        check("nameserver", "no IP address");
    }

    #[test]
    fn senseless_options_are_brought_within_bounds() {
        let check = |options: &str, seconds: u64, attempts: u32| {
            let conf = ResolvConf::parse(&format!("options {options}"));
            assert_eq!(
                (conf.patience, conf.attempts),
                (Duration::from_secs(seconds), attempts),
                "{options}"
            );
        };
        check("timeout:0 attempts:0", 1, 1);
        check("timeout:900 attempts:900", 30, 5);
        check("timeout:x attempts:-1", 2, 2);
        check("timeout attempts", 2, 2);
    }

    #[test]
    fn a_list_without_end_is_cut() {
        let text: String = (0..20)
            .map(|n| format!("nameserver 10.0.0.{n}\n"))
            .collect();
        let conf = ResolvConf::parse(&text.replace("10.0.0.0\n", "10.0.1.0\n"));
        assert_eq!(conf.servers.len(), MOST_SERVERS);
        assert_eq!(conf.unusable.len(), 12);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "(nameserver |options |timeout:|attempts:|[0-9.:%]|\\PC|\n){0,40}") {
            ResolvConf::parse(&text);
        }
    }
}
