// SPDX-License-Identifier: Apache-2.0
//! What a hostile node agent reaches: packets, and the state of a connection that they come in.
//!
//! Built for the fuzz targets only.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use capture::Netns;
use capture::seqpacket::Packet;

use super::message::{Message, decode};
use crate::pods::{Action, Pods};

/// One packet: its bytes and what came along.
pub struct Sent<'a> {
    pub bytes: &'a [u8],
    pub descriptors: usize,
    pub truncated: bool,
}

/// A connection's packets in order; `descriptor` makes what comes along, and every start of a proxy succeeds if `starts`.
pub fn converse<'a>(
    packets: impl IntoIterator<Item = Sent<'a>>,
    descriptor: impl Fn() -> OwnedFd,
    starts: bool,
) {
    let mut pods: Pods<Netns> = Pods::new();
    let mut running = BTreeSet::new();
    pods.connected();
    for sent in packets {
        let message = decode(Packet {
            bytes: sent.bytes.to_vec(),
            fds: (0..sent.descriptors).map(|_| descriptor()).collect(),
            truncated: sent.truncated,
        });
        let actions = match message {
            Err(error) if error.is_about_one_pod() => continue,
            Err(_) => return,
            Ok(Message::Add(pod)) => pods.add(pod).actions,
            Ok(Message::Keep(uid)) => match pods.keep(uid) {
                Ok(()) => continue,
                Err(_) => return,
            },
            Ok(Message::Delete(uid)) => pods.delete(&uid),
            // Asks the proxies to drain; what runs does not change.
            Ok(Message::Release(_)) => continue,
            Ok(Message::SnapshotSent) => match pods.snapshot_sent() {
                Ok(actions) => actions,
                Err(_) => return,
            },
        };
        for action in actions {
            match action {
                Action::Start(pod) if starts => {
                    running.insert(pod.uid.clone());
                    pods.started(pod);
                }
                Action::Start(pod) => pods.failed(pod),
                Action::Stop(uid) => assert!(running.remove(&uid), "{uid} was not running"),
                Action::Stay(uid) => assert!(running.contains(&uid), "{uid} was not running"),
            }
        }
        assert_eq!(pods.running_count(), running.len());
    }
}
