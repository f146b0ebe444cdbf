// SPDX-License-Identifier: Apache-2.0
//! Connections that are older than a pod's capture, told to the kernel's connection tracking.
//!
//! Tracking begins with the first rule that asks for it. A connection from before would be taken for a new one at its
//! next packet, redirected in mid-stream, and reset. Whoever is tracked before the redirecting rules come is left alone
//! by them: the kernel translates only the first packet of what it tracks. So each open connection of the namespace gets
//! an entry first, as if it had been tracked all along. Works on the namespace that the calling thread is in; blocking.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use netlink_bindings::traits::{NetlinkRequest, Protocol};
use netlink_bindings::utils::{finalize_nested_header, push_header, push_nested_header};
use netlink_socket2::{NetlinkSocket, ReplyError};

#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    #[error("reading open connections from {path}: {cause}")]
    Read {
        path: &'static str,
        cause: io::Error,
    },
    #[error("{path}: line {line:?} can't be read")]
    Line { path: &'static str, line: String },
    #[error("tracking the connection {local} – {remote}: {cause}")]
    Refused {
        local: SocketAddr,
        remote: SocketAddr,
        cause: io::Error,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Connection {
    local: SocketAddr,
    remote: SocketAddr,
}

/// Makes sure that every TCP connection that is open now is tracked; says how many are.
pub fn adopt() -> Result<usize, ConntrackError> {
    let open = open_connections()?;
    let mut socket = NetlinkSocket::new();
    let mut adopted = Vec::new();
    for connection in &open {
        let news = track(&mut socket, connection).map_err(|cause| ConntrackError::Refused {
            local: connection.local,
            remote: connection.remote,
            cause,
        })?;
        if news == News::Yes {
            adopted.push(*connection);
        }
    }
    forget_ended(&mut socket, &adopted, &open_connections()?);
    Ok(open.len())
}

/// What ended before it was tracked has nobody to end its entry, which would let the next connection of the same ports
/// pass around the mesh for days.
fn forget_ended(socket: &mut NetlinkSocket, adopted: &[Connection], open: &[Connection]) {
    let open: HashSet<&Connection> = open.iter().collect();
    for connection in adopted.iter().filter(|one| !open.contains(one)) {
        // Where the entry is gone already, all is well; where it can't be told to go, its time-out remains.
        let _ = ask(socket, &Ask::forget(connection));
    }
}

/// All that the namespace has, of both families.
fn open_connections() -> Result<Vec<Connection>, ConntrackError> {
    let mut open = Vec::new();
    for path in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // IPv6 is compiled out or switched off.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && path.ends_with('6') => {
                continue;
            }
            Err(cause) => return Err(ConntrackError::Read { path, cause }),
        };
        open.extend(parse(path, &text)?);
    }
    Ok(open)
}

/// The kernel's table of TCP sockets, as far as packets may still come and go on them.
fn parse(path: &'static str, text: &str) -> Result<Vec<Connection>, ConntrackError> {
    let lines = text.lines().skip(1);
    let found = lines.map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let mut endpoint = || address(words.next()?);
        let (local, remote) = (endpoint()?, endpoint()?);
        let state = u8::from_str_radix(words.next()?, 16).ok()?;
        Some((Connection { local, remote }, state))
    });
    let read = found.zip(text.lines().skip(1)).map(|(found, line)| {
        found.ok_or_else(|| ConntrackError::Line {
            path,
            line: line.to_owned(),
        })
    });
    let mut connections = Vec::new();
    for found in read {
        let (connection, state) = found?;
        if has_packets(state) && !connection.remote.ip().is_loopback() {
            connections.push(connection);
        }
    }
    Ok(connections)
}

/// From linux/tcp_states.h: all but TIME_WAIT (6), CLOSE (7) and LISTEN (10).
fn has_packets(state: u8) -> bool {
    matches!(state, 1..=5 | 8 | 9 | 11 | 12)
}

/// `0100007F:1F90`: words of 32 bits as the machine reads them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    });
    let octets = words.collect::<Option<Vec<_>>>()?.concat();
    let ip = match octets.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(octets).ok()?),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    Yes,
    /// It was tracked already.
    No,
}

fn track(socket: &mut NetlinkSocket, connection: &Connection) -> io::Result<News> {
    match ask(socket, &Ask::track(connection)) {
        Ok(()) => Ok(News::Yes),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(News::No),
        Err(error) => Err(error),
    }
}

fn ask(socket: &mut NetlinkSocket, request: &Ask) -> io::Result<()> {
    socket
        .request(request)
        .map_err(ReplyError::from)
        .and_then(|mut reply| reply.recv_ack())
        .map_err(io::Error::from)
}

/// A message of linux/netfilter/nfnetlink_conntrack.h.
struct Ask {
    kind: u16,
    flags: u16,
    payload: Vec<u8>,
}

impl Ask {
    /// IPCTNL_MSG_CT_NEW.
    fn track(connection: &Connection) -> Self {
        Self {
            kind: 0,
            flags: (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16,
            payload: payload(connection),
        }
    }

    /// IPCTNL_MSG_CT_DELETE, of one entry: without a tuple it would be of all.
    fn forget(connection: &Connection) -> Self {
        let mut payload = head(connection);
        tuple(
            &mut payload,
            CTA_TUPLE_ORIG,
            connection.local,
            connection.remote,
        );
        Self {
            kind: 2,
            flags: 0,
            payload,
        }
    }
}

impl NetlinkRequest for Ask {
    fn protocol(&self) -> Protocol {
        Protocol::Raw {
            protonum: libc::NETLINK_NETFILTER as u16,
            request_type: (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | self.kind,
        }
    }

    fn flags(&self) -> u16 {
        self.flags
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    type ReplyType<'buf> = ();

    fn decode_reply(_: &[u8]) {}
}

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
/// IPS_SEEN_REPLY, IPS_ASSURED and IPS_CONFIRMED.
const STATUS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// TCP_CONNTRACK_ESTABLISHED.
const ESTABLISHED: u8 = 3;
/// IP_CT_TCP_FLAG_BE_LIBERAL, as value and mask: where the windows stand is not known.
const LIBERAL: [u8; 2] = [0x08, 0x08];
/// The kernel's own default for established connections: five days; each packet sets it anew.
const SECONDS: u32 = 432_000;

/// The header that each message begins with.
fn head(connection: &Connection) -> Vec<u8> {
    let family = match connection.local {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    vec![family as u8, libc::NFNETLINK_V0 as u8, 0, 0]
}

fn payload(connection: &Connection) -> Vec<u8> {
    let Connection { local, remote } = *connection;
    let mut buffer = head(connection);
    tuple(&mut buffer, CTA_TUPLE_ORIG, local, remote);
    tuple(&mut buffer, CTA_TUPLE_REPLY, remote, local);
    put(&mut buffer, CTA_STATUS, &STATUS.to_be_bytes());
    nest(&mut buffer, CTA_PROTOINFO, |buffer| {
        // CTA_PROTOINFO_TCP with its state and the flags of both directions.
        nest(buffer, 1, |buffer| {
            put(buffer, 1, &[ESTABLISHED]);
            put(buffer, 4, &LIBERAL);
            put(buffer, 5, &LIBERAL);
        });
    });
    put(&mut buffer, CTA_TIMEOUT, &SECONDS.to_be_bytes());
    buffer
}

fn tuple(buffer: &mut Vec<u8>, kind: u16, source: SocketAddr, destination: SocketAddr) {
    nest(buffer, kind, |buffer| {
        // CTA_TUPLE_IP: source and destination of the family.
        nest(buffer, 1, |buffer| match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                put(buffer, 1, &source.octets());
                put(buffer, 2, &destination.octets());
            }
            (source, destination) => {
                put(buffer, 3, &v6(source).octets());
                put(buffer, 4, &v6(destination).octets());
            }
        });
        // CTA_TUPLE_PROTO: number and ports.
        nest(buffer, 2, |buffer| {
            put(buffer, 1, &[libc::IPPROTO_TCP as u8]);
            put(buffer, 2, &source.port().to_be_bytes());
            put(buffer, 3, &destination.port().to_be_bytes());
        });
    });
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn put(buffer: &mut Vec<u8>, kind: u16, value: &[u8]) {
    push_header(buffer, kind, value.len() as u16);
    buffer.extend_from_slice(value);
    // Attributes begin at multiples of four, and the last one is padded too.
    buffer.resize(buffer.len().next_multiple_of(4), 0);
}

fn nest(buffer: &mut Vec<u8>, kind: u16, content: impl FnOnce(&mut Vec<u8>)) {
    let start = push_nested_header(buffer, kind);
    content(buffer);
    finalize_nested_header(buffer, start);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_read_in_both_families() {
        let text = format!(
            "{HEAD}   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n\
                1: 0A01A8C0:D431 0B01A8C0:0050 01 00000000:00000000 00:00000000 00000000\n\
                2: 0A01A8C0:D432 0B01A8C0:0050 06 00000000:00000000 00:00000000 00000000\n\
                3: 0100007F:D433 0100007F:0050 01 00000000:00000000 00:00000000 00000000\n"
        );
        let expected = Connection {
            local: "192.168.1.10:54321".parse().unwrap(),
            remote: "192.168.1.11:80".parse().unwrap(),
        };
        assert_eq!(parse("tcp", &text).unwrap(), [expected]);
        let mapped = format!(
            "{HEAD}0: 0000000000000000FFFF00000A01A8C0:D431 0000000000000000FFFF00000B01A8C0:0050 08 0\n"
        );
        assert_eq!(parse("tcp6", &mapped).unwrap(), [expected]);
        let v6 = format!(
            "{HEAD}0: 000077FD000000000000000002000000:0050 000077FD000000000000000001000000:D431 01 0\n"
        );
        let found = parse("tcp6", &v6).unwrap();
        assert_eq!(found[0].remote, "[fd77::1]:54321".parse().unwrap());
        let error = parse("tcp", &format!("{HEAD}0: nonsense\n")).unwrap_err();
        assert!(error.to_string().contains("nonsense"), "{error}");
    }

    #[test]
    fn an_entry_is_a_list_of_aligned_attributes() {
        let connection = Connection {
            local: "10.9.0.2:40528".parse().unwrap(),
            remote: "10.9.0.1:80".parse().unwrap(),
        };
        let bytes = payload(&connection);
        assert_eq!(bytes.len() % 4, 0);
        let mut rest = &bytes[4..];
        let mut kinds = Vec::new();
        while let [a, b, c, d, ..] = rest {
            kinds.push(u16::from_ne_bytes([*c, *d]) & 0x3fff);
            rest = &rest[usize::from(u16::from_ne_bytes([*a, *b])).next_multiple_of(4)..];
        }
        assert_eq!(
            kinds,
            [
                CTA_TUPLE_ORIG,
                CTA_TUPLE_REPLY,
                CTA_STATUS,
                CTA_PROTOINFO,
                CTA_TIMEOUT
            ]
        );
    }

    #[test]
    fn what_ended_meanwhile_is_tracked_no_more() {
        let connection = |port| Connection {
            local: SocketAddr::from(([10, 9, 0, 2], port)),
            remote: "10.9.0.1:80".parse().unwrap(),
        };
        let (open, ended) = (connection(40_001), connection(40_002));
        let netns = capture::Netns::create().unwrap();
        let visit = netns.spawn_thread_in("conntrack", move || {
            let mut socket = NetlinkSocket::new();
            for one in [open, ended] {
                assert_eq!(track(&mut socket, &one).unwrap(), News::Yes);
                assert_eq!(track(&mut socket, &one).unwrap(), News::No);
            }
            forget_ended(&mut socket, &[open, ended], &[open]);
            assert_eq!(track(&mut socket, &open).unwrap(), News::No);
            assert_eq!(track(&mut socket, &ended).unwrap(), News::Yes);
        });
        visit.unwrap().join().unwrap().unwrap();
    }
}
