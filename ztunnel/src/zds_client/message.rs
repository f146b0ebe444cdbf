// SPDX-License-Identifier: Apache-2.0
//! Packets of the node agent as messages, and the two packets that go back.
//!
//! Bytes are foreign: whatever they hold, the result is a message or an error, and every descriptor that came along has
//! an owner or is closed.

use capture::Netns;
use capture::seqpacket::Packet;
use prost::Message as _;
use proto::zds::{
    Ack, Extension, Release, Version, WorkloadRequest, WorkloadResponse, ZdsHello,
    workload_request, workload_response,
};

use crate::pods::{Pod, PodInfo, PodUid};
use crate::proxy::Remaining;

#[derive(Debug)]
pub(super) enum Message {
    Add(Pod<Netns>),
    Keep(PodUid),
    Delete(PodUid),
    /// Let the pod go bit by bit, and say how far it is.
    Release(PodUid),
    SnapshotSent,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error("packet is longer than {} bytes", super::MAX_MESSAGE)]
    Truncated,
    #[error("packet is no WorkloadRequest: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("{0} descriptors came with one message")]
    Descriptors(usize),
    #[error("a descriptor came with a message that takes none")]
    UnexpectedDescriptor,
    #[error("WorkloadRequest.payload is of a kind unknown here")]
    UnknownKind,
    #[error("add of pod {0:?} came without its network namespace")]
    NoDescriptor(String),
    #[error("add of pod {0:?} lacks workload_info")]
    NoInfo(String),
    #[error("pod uid is empty")]
    NoUid,
    #[error("descriptor of pod {uid:?} can't be used as a network namespace: {error}")]
    Netns { uid: String, error: std::io::Error },
}

impl MessageError {
    /// The message was understood as far as needed to say no to it alone.
    pub(super) fn is_about_one_pod(&self) -> bool {
        match self {
            Self::UnknownKind
            | Self::NoDescriptor(_)
            | Self::NoInfo(_)
            | Self::NoUid
            | Self::Netns { .. } => true,
            Self::Truncated
            | Self::Decode(_)
            | Self::Descriptors(_)
            | Self::UnexpectedDescriptor => false,
        }
    }
}

pub(super) fn decode(packet: Packet) -> Result<Message, MessageError> {
    if packet.truncated {
        return Err(MessageError::Truncated);
    }
    let mut fds = packet.fds;
    if fds.len() > 1 {
        return Err(MessageError::Descriptors(fds.len()));
    }
    let fd = fds.pop();
    let request = WorkloadRequest::decode(packet.bytes.as_slice())?;
    let payload = request.payload.ok_or(MessageError::UnknownKind)?;
    if fd.is_some() && !matches!(payload, workload_request::Payload::Add(_)) {
        return Err(MessageError::UnexpectedDescriptor);
    }
    match payload {
        workload_request::Payload::Add(add) => {
            uid(&add.uid)?;
            let info = add
                .workload_info
                .ok_or_else(|| MessageError::NoInfo(add.uid.clone()))?;
            let fd = fd.ok_or_else(|| MessageError::NoDescriptor(add.uid.clone()))?;
            let netns = Netns::from_fd(fd).map_err(|error| MessageError::Netns {
                uid: add.uid.clone(),
                error,
            })?;
            let info = PodInfo {
                name: info.name.into(),
                namespace: info.namespace.into(),
                service_account: info.service_account.into(),
            };
            Ok(Message::Add(Pod {
                uid: uid(&add.uid)?,
                info,
                netns,
            }))
        }
        workload_request::Payload::Keep(keep) => Ok(Message::Keep(uid(&keep.uid)?)),
        workload_request::Payload::Del(del) => Ok(Message::Delete(uid(&del.uid)?)),
        workload_request::Payload::Release(release) => Ok(Message::Release(uid(&release.uid)?)),
        workload_request::Payload::SnapshotSent(_) => Ok(Message::SnapshotSent),
    }
}

fn uid(uid: &str) -> Result<PodUid, MessageError> {
    if uid.is_empty() {
        Err(MessageError::NoUid)
    } else {
        Ok(PodUid::from(uid))
    }
}

pub(super) fn encode_hello() -> Vec<u8> {
    ZdsHello {
        version: Version::V1 as i32,
        extensions: vec![Extension::Release.into()],
    }
    .encode_to_vec()
}

/// An empty text is success. What remains of a pod answers its release.
pub(super) fn encode_ack(error: &str, remaining: Option<Remaining>) -> Vec<u8> {
    let ack = Ack {
        error: error.to_owned(),
        release: remaining.map(|remaining| Release {
            open: remaining.open as u64,
            plain: remaining.plain,
        }),
    };
    WorkloadResponse {
        payload: Some(workload_response::Payload::Ack(ack)),
    }
    .encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::zds::{AddWorkload, DelWorkload, KeepWorkload, SnapshotSent, WorkloadInfo};
    use std::os::fd::OwnedFd;

    fn packet(payload: workload_request::Payload, fds: Vec<OwnedFd>) -> Packet {
        Packet {
            bytes: WorkloadRequest {
                payload: Some(payload),
            }
            .encode_to_vec(),
            fds,
            truncated: false,
        }
    }

    fn add(uid: &str) -> AddWorkload {
        let info = WorkloadInfo {
            name: "n".into(),
            namespace: "ns".into(),
            service_account: "sa".into(),
        };
        AddWorkload {
            uid: uid.into(),
            workload_info: Some(info),
        }
    }

    fn some_file() -> OwnedFd {
        std::fs::File::open("/dev/null").expect("opens").into()
    }

    #[test]
    fn answers_are_the_bytes_that_agents_expect() {
        // Version 1 and, where only our own agent looks, what else is understood.
        assert_eq!(encode_hello(), [0x08, 0x01, 0xca, 0x3e, 0x01, 0x01]);
        assert_eq!(encode_ack("", None), [0x0a, 0x00]);
        assert_eq!(encode_ack("no", None), [0x0a, 0x04, 0x0a, 0x02, b'n', b'o']);
    }

    #[test]
    fn messages_without_descriptors_are_read() {
        let keep = workload_request::Payload::Keep(KeepWorkload { uid: "u".into() });
        assert!(
            matches!(decode(packet(keep, vec![])), Ok(Message::Keep(uid)) if uid == "u".into())
        );
        let del = Packet {
            bytes: vec![0x12, 0x03, 0x12, 0x01, b'u'],
            fds: vec![],
            truncated: false,
        };
        assert!(matches!(decode(del), Ok(Message::Delete(uid)) if uid == "u".into()));
        let sent = Packet {
            bytes: vec![0x1a, 0x00],
            fds: vec![],
            truncated: false,
        };
        assert!(matches!(decode(sent), Ok(Message::SnapshotSent)));
    }

    #[test]
    fn rules_of_descriptors_are_kept() {
        let add = |uid| workload_request::Payload::Add(add(uid));
        let of = |payload, fds| decode(packet(payload, fds)).expect_err("is refused");
        assert!(matches!(of(add("u"), vec![]), MessageError::NoDescriptor(uid) if uid == "u"));
        assert!(matches!(
            of(add("u"), vec![some_file()]),
            MessageError::Netns { .. }
        ));
        assert!(matches!(
            of(add("u"), vec![some_file(), some_file()]),
            MessageError::Descriptors(2)
        ));
        let sent = workload_request::Payload::SnapshotSent(SnapshotSent {});
        assert!(matches!(
            of(sent, vec![some_file()]),
            MessageError::UnexpectedDescriptor
        ));
        let del = workload_request::Payload::Del(DelWorkload { uid: String::new() });
        assert!(matches!(of(del, vec![]), MessageError::NoUid));
    }

    #[test]
    fn a_kind_of_message_from_the_future_is_refused_alone() {
        let unknown = Packet {
            bytes: vec![0x3a, 0x00],
            fds: vec![],
            truncated: false,
        };
        assert!(decode(unknown).expect_err("is refused").is_about_one_pod());
    }

    proptest! {
        #[test]
        fn no_packet_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), truncated: bool) {
            let _ = decode(Packet { bytes, fds: vec![], truncated });
        }
    }
}
