// SPDX-License-Identifier: Apache-2.0
//! The packets of a handover as values. Bytes are foreign: whatever they hold, the result is a message or an error.

use std::io;
use std::time::Duration;

use capture::seqpacket::{Packet, SeqPacket};
use capture::{Netns, NetnsId};
use prost::Message as _;
use proto::handover::{
    Done, Hello, Operators, Pod, Refused, Report, Request, Response, Serving, Sockets as Names,
    request, response,
};
use tokio::time::timeout;

use super::Sockets;
use crate::pods::PodUid;

/// Both ends must speak this version. It changes when an older process could misunderstand a newer one.
pub(super) const VERSION: u32 = 1;
/// How long either end waits for the other's word.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);
const MAX_PACKET: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error("{doing}: {cause}")]
    Io {
        doing: &'static str,
        cause: io::Error,
    },
    #[error("the other process said nothing for {DEADLINE:?}")]
    Late,
    #[error("the other process has gone")]
    Gone,
    #[error("the other process runs as user {found}, we as {own}")]
    Stranger { found: u32, own: u32 },
    #[error("the other process speaks version {0} of the handover, we {VERSION}")]
    Version(u32),
    #[error("the other process refuses: {0}")]
    Refused(String),
    #[error("the other process said something that can't be understood: {0}")]
    Malformed(String),
}

/// What a successor asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Hello { pid: u32, build: String },
    Pod { uid: PodUid, netns: NetnsId },
    Operators,
    Serving,
}

/// How this process introduces itself.
///
/// # Errors
/// The own network namespace can't be told.
pub fn hello() -> io::Result<Hello> {
    let netns = Netns::current()?.id();
    Ok(Hello {
        version: VERSION,
        pid: std::process::id(),
        build: format!(
            "{} ({})",
            env!("CARGO_PKG_VERSION"),
            env!("BUILD_GIT_REVISION")
        ),
        netns: Some(proto::handover::Netns {
            dev: netns.dev,
            ino: netns.ino,
        }),
    })
}

pub(super) fn request(asked: request::Kind) -> Vec<u8> {
    Request { kind: Some(asked) }.encode_to_vec()
}

pub(super) fn pod(uid: &PodUid, netns: NetnsId) -> request::Kind {
    request::Kind::Pod(Pod {
        uid: uid.to_string(),
        netns: Some(proto::handover::Netns {
            dev: netns.dev,
            ino: netns.ino,
        }),
    })
}

pub(super) fn operators() -> request::Kind {
    request::Kind::Operators(Operators {})
}

pub(super) fn serving() -> request::Kind {
    request::Kind::Serving(Serving {})
}

pub(super) fn refused(reason: impl ToString) -> response::Kind {
    response::Kind::Refused(Refused {
        reason: reason.to_string(),
    })
}

pub(super) fn done() -> response::Kind {
    response::Kind::Done(Done {})
}

/// Sends an answer.
pub(super) async fn answer(channel: &SeqPacket, kind: response::Kind) -> Result<(), HandoverError> {
    let bytes = Response { kind: Some(kind) }.encode_to_vec();
    send(channel, &bytes, &Sockets::default()).await
}

/// Sends sockets under their names.
pub(super) async fn answer_sockets(
    channel: &SeqPacket,
    sockets: &Sockets,
) -> Result<(), HandoverError> {
    let names = Names {
        names: sockets.names(),
    };
    let kind = Some(response::Kind::Sockets(names));
    send(channel, &Response { kind }.encode_to_vec(), sockets).await
}

pub(super) async fn send(
    channel: &SeqPacket,
    bytes: &[u8],
    sockets: &Sockets,
) -> Result<(), HandoverError> {
    let sent = timeout(DEADLINE, channel.send_with(bytes, &sockets.fds())).await;
    sent.map_err(|_| HandoverError::Late)?
        .map_err(|cause| match cause.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => HandoverError::Gone,
            _ => HandoverError::Io {
                doing: "sending",
                cause,
            },
        })
}

/// The next packet, however long it takes.
pub(super) async fn receive(channel: &SeqPacket) -> Result<Packet, HandoverError> {
    let packet = channel.recv(MAX_PACKET).await;
    let packet = packet.map_err(|cause| match cause.kind() {
        io::ErrorKind::ConnectionReset => HandoverError::Gone,
        _ => HandoverError::Io {
            doing: "receiving",
            cause,
        },
    })?;
    if packet.is_end() {
        return Err(HandoverError::Gone);
    }
    if packet.truncated {
        return Err(HandoverError::Malformed("the packet is too long".into()));
    }
    Ok(packet)
}

pub(super) async fn receive_in_time(channel: &SeqPacket) -> Result<Packet, HandoverError> {
    timeout(DEADLINE, receive(channel))
        .await
        .map_err(|_| HandoverError::Late)?
}

/// What a successor asks; a hello of another version is an error of its own.
pub(super) fn read_request(packet: &Packet) -> Result<Asked, HandoverError> {
    if !packet.fds.is_empty() {
        return Err(malformed("a request brings descriptors along"));
    }
    let request = Request::decode(packet.bytes.as_slice()).map_err(malformed)?;
    match request.kind.ok_or_else(|| malformed("it asks nothing"))? {
        request::Kind::Hello(hello) => {
            check_version(&hello)?;
            Ok(Asked::Hello {
                pid: hello.pid,
                build: hello.build,
            })
        }
        request::Kind::Pod(pod) if pod.uid.is_empty() => Err(malformed("a pod without uid")),
        request::Kind::Pod(pod) => Ok(Asked::Pod {
            netns: netns_of(pod.netns).ok_or_else(|| malformed("a pod without namespace"))?,
            uid: PodUid::from(pod.uid.as_str()),
        }),
        request::Kind::Operators(_) => Ok(Asked::Operators),
        request::Kind::Serving(_) => Ok(Asked::Serving),
    }
}

/// A predecessor's answer; a refusal is an error.
pub(super) fn read_response(packet: Packet) -> Result<(response::Kind, Sockets), HandoverError> {
    let response = Response::decode(packet.bytes.as_slice()).map_err(malformed)?;
    match response
        .kind
        .ok_or_else(|| malformed("it answers nothing"))?
    {
        response::Kind::Refused(refused) => Err(HandoverError::Refused(refused.reason)),
        response::Kind::Hello(hello) => {
            check_version(&hello)?;
            Ok((response::Kind::Hello(hello), Sockets::default()))
        }
        response::Kind::Sockets(names) => {
            let sockets = Sockets::from_wire(names.names.clone(), packet.fds).map_err(malformed)?;
            Ok((response::Kind::Sockets(names), sockets))
        }
        other => Ok((other, Sockets::default())),
    }
}

/// A report, where the packet is one.
pub(super) fn read_report(packet: Packet) -> Result<Report, HandoverError> {
    match read_response(packet)?.0 {
        response::Kind::Report(report) => Ok(report),
        _ => Err(malformed("it is no report")),
    }
}

pub(super) fn netns_of(netns: Option<proto::handover::Netns>) -> Option<NetnsId> {
    netns.map(|netns| NetnsId {
        dev: netns.dev,
        ino: netns.ino,
    })
}

fn check_version(hello: &Hello) -> Result<(), HandoverError> {
    match hello.version {
        VERSION => Ok(()),
        other => Err(HandoverError::Version(other)),
    }
}

pub(super) fn malformed(what: impl ToString) -> HandoverError {
    HandoverError::Malformed(what.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(bytes: Vec<u8>) -> Packet {
        Packet {
            bytes,
            fds: vec![],
            truncated: false,
        }
    }

    #[test]
    fn a_request_survives_the_wire() {
        let netns = NetnsId { dev: 4, ino: 9 };
        let uid = PodUid::from("u");
        for (sent, expected) in [
            (pod(&uid, netns), Asked::Pod { uid, netns }),
            (operators(), Asked::Operators),
            (serving(), Asked::Serving),
        ] {
            let read = read_request(&packet(request(sent))).expect("is understood");
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn another_version_is_told_so_on_both_sides() {
        let hello = Hello {
            version: 2,
            ..Hello::default()
        };
        let asked = request(request::Kind::Hello(hello.clone()));
        assert!(matches!(
            read_request(&packet(asked)),
            Err(HandoverError::Version(2))
        ));
        let answered = Response {
            kind: Some(response::Kind::Hello(hello)),
        };
        assert!(matches!(
            read_response(packet(answered.encode_to_vec())),
            Err(HandoverError::Version(2))
        ));
    }

    #[test]
    fn a_refusal_is_an_error_with_its_reason() {
        let refused = Response {
            kind: Some(refused("busy")),
        };
        let error = read_response(packet(refused.encode_to_vec())).expect_err("is one");
        assert!(matches!(error, HandoverError::Refused(reason) if reason == "busy"));
    }

    proptest! {
        #[test]
        fn no_packet_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_request(&packet(bytes.clone()));
            let _ = read_response(packet(bytes));
        }
    }
}
