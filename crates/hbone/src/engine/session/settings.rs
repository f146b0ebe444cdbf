// SPDX-License-Identifier: Apache-2.0
//! SETTINGS (RFC 9113 §6.5): what we say, and what the peer has said.

use super::super::frame::{FrameHeader, Kind};
use super::super::outgoing::Outgoing;
use super::{DEFAULT_WINDOW, Limits, Role, Violation};

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// The smallest and the largest limit on frames that a peer may set.
const FRAMES: std::ops::RangeInclusive<u32> = 16_384..=16_777_215;

/// Says ours. Without a header table a connection's state stays small, and could be handed over.
pub(super) fn send(role: Role, limits: &Limits, out: &mut Outgoing) {
    let mut payload = Vec::with_capacity(36);
    let mut set = |setting: u16, value: u32| {
        payload.extend_from_slice(&setting.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    };
    set(HEADER_TABLE_SIZE, 0);
    match role {
        Role::Client => set(ENABLE_PUSH, 0),
        Role::Server => set(MAX_CONCURRENT_STREAMS, limits.max_streams),
    }
    if limits.windows.first != DEFAULT_WINDOW {
        set(INITIAL_WINDOW_SIZE, limits.windows.first);
    }
    set(MAX_FRAME_SIZE, limits.max_frame);
    set(MAX_HEADER_LIST_SIZE, limits.header_list);
    out.frame(
        FrameHeader::new(Kind::Settings, 0, 0, payload.len()),
        &payload,
    );
}

/// What the peer allows.
pub(super) struct PeerSettings {
    pub(super) initial_window: i64,
    pub(super) max_frame: usize,
    pub(super) max_streams: u32,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            initial_window: i64::from(DEFAULT_WINDOW),
            max_frame: *FRAMES.start() as usize,
            max_streams: u32::MAX,
        }
    }
}

impl PeerSettings {
    /// Takes a SETTINGS frame; says by how much the window of each open stream changes.
    pub(super) fn apply(&mut self, role: Role, payload: &[u8]) -> Result<i64, Violation> {
        if !payload.len().is_multiple_of(6) {
            return Err(Violation::FrameSize("SETTINGS"));
        }
        let before = self.initial_window;
        for setting in payload.as_chunks::<6>().0 {
            let [a, b, c, d, e, f] = *setting;
            let value = u32::from_be_bytes([c, d, e, f]);
            match u16::from_be_bytes([a, b]) {
                ENABLE_PUSH if value > 1 || value == 1 && role == Role::Client => {
                    return Err(Violation::Protocol("ENABLE_PUSH"));
                }
                MAX_CONCURRENT_STREAMS => self.max_streams = value,
                INITIAL_WINDOW_SIZE if value >= 1 << 31 => {
                    return Err(Violation::FlowControl("INITIAL_WINDOW_SIZE"));
                }
                INITIAL_WINDOW_SIZE => self.initial_window = i64::from(value),
                MAX_FRAME_SIZE if !FRAMES.contains(&value) => {
                    return Err(Violation::Protocol("MAX_FRAME_SIZE"));
                }
                MAX_FRAME_SIZE => self.max_frame = value as usize,
                // Our encoder uses no table, our header lists are small, and the rest does not concern CONNECT.
                _ => {}
            }
        }
        Ok(self.initial_window - before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(settings: &[(u16, u32)]) -> Result<i64, Violation> {
        let mut payload = Vec::new();
        for (setting, value) in settings {
            payload.extend_from_slice(&setting.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        PeerSettings::default().apply(Role::Client, &payload)
    }

    #[test]
    fn each_value_is_checked() {
        assert_eq!(apply(&[]), Ok(0));
        assert_eq!(apply(&[(INITIAL_WINDOW_SIZE, 0)]), Ok(-65_535));
        assert_eq!(
            apply(&[(INITIAL_WINDOW_SIZE, 1), (INITIAL_WINDOW_SIZE, 65_536)]),
            Ok(1)
        );
        assert_eq!(apply(&[(999, 5)]), Ok(0));
        assert!(matches!(
            apply(&[(INITIAL_WINDOW_SIZE, 1 << 31)]),
            Err(Violation::FlowControl(_))
        ));
        for wrong in [
            (ENABLE_PUSH, 1),
            (ENABLE_PUSH, 2),
            (MAX_FRAME_SIZE, 16_383),
            (MAX_FRAME_SIZE, 1 << 24),
        ] {
            assert!(
                matches!(apply(&[wrong]), Err(Violation::Protocol(_))),
                "{wrong:?}"
            );
        }
        assert!(matches!(
            PeerSettings::default().apply(Role::Server, &[0; 5]),
            Err(Violation::FrameSize(_))
        ));
    }
}
