// SPDX-License-Identifier: Apache-2.0
//! Does somebody answer DNS in a pod where capture rules would lead? Read from the kernel's tables of sockets, so that
//! nobody is disturbed by the question. Works on the namespace that the calling thread is in.

use std::io;

use capture::contract::DNS_PORT;

/// From linux/tcp_states.h; a UDP socket that takes from everybody counts as closed.
const CLOSE: &str = "07";
const LISTEN: &str = "0A";

/// Whether UDP and TCP are both listened for.
pub fn listens() -> io::Result<bool> {
    let any = |kind: &str, state| -> io::Result<bool> {
        for family in ["", "6"] {
            let path = format!("/proc/thread-self/net/{kind}{family}");
            match std::fs::read_to_string(&path) {
                Ok(text) if has_socket(&text, DNS_PORT, state) => return Ok(true),
                Ok(_) => {}
                // IPv6 is compiled out or switched off.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound && family == "6" => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(false)
    };
    Ok(any("udp", CLOSE)? && any("tcp", LISTEN)?)
}

/// Lines are `sl local_address rem_address st …`, addresses `ADDRESS:PORT`, all in hexadecimal.
fn has_socket(table: &str, port: u16, state: &str) -> bool {
    let port = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().unwrap_or_default();
        local.ends_with(&port) && words.nth(1) == Some(state)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_known_by_its_port_and_state() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
            \x20  0: 0100007F:3ACD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n\
            \x20  1: 0100007F:1F90 0100007F:3ACD 01 00000000:00000000 00:00000000 00000000     0\n";
        assert!(has_socket(table, 15053, LISTEN));
        assert!(!has_socket(table, 15053, CLOSE));
        assert!(!has_socket(table, 8080, LISTEN), "it is connected");
        assert!(!has_socket(table, 53, LISTEN));
        for text in ["", "\n", "x\ny\n", "head\n 0: :3ACD\n", "head\n 0:\n"] {
            assert!(!has_socket(text, 15053, LISTEN), "{text:?}");
        }
        let v6 = "head\n  0: 00000000000000000000000001000000:3ACD 00000000000000000000000000000000:0000 07 0:0\n";
        assert!(has_socket(v6, 15053, CLOSE));
    }
}
