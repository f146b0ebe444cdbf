// SPDX-License-Identifier: Apache-2.0
//! Sizes and time-outs of tunnels. Istio's variables for them are read by the components, not here.

use std::time::Duration;

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// The largest window that HTTP/2 knows (RFC 9113 §6.9.1).
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// How tunnels are sized and how long they wait. The same values serve both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What runs the tunnels.
    pub engine: Engine,
    /// Bytes that one stream may have in flight at first. With the own engine it grows while the application keeps up,
    /// up to [`stream_window`](Self::stream_window), and shrinks when it stalls.
    pub first_window: u32,
    /// What all streams of one tunnel may have beyond their first windows.
    pub tunnel_window_budget: usize,
    /// What all streams of the process may have beyond their first windows.
    pub process_window_budget: usize,
    /// TLS records that one key seals before the next one takes over (RFC 8446 §5.5 allows 2^24.5).
    pub records_per_key: u64,
    /// Bytes that one stream may have in flight; also what a stalled application makes this side hold at most.
    pub stream_window: u32,
    /// Bytes that a whole connection may have in flight, at least. What is advertised is never less than what all
    /// its streams may have together: with less, a few stalled streams would hold up their neighbours.
    pub connection_window: u32,
    /// The largest frame accepted.
    pub max_frame: u32,
    /// Bytes of one stream that wait for the tunnel's socket at most.
    pub send_buffer: usize,
    /// Streams that a client may have open at a time on a connection accepted here.
    pub max_streams: u32,
    /// Streams that this side opens on one connection; a smaller limit of the peer is respected.
    pub pool_max_streams: u32,
    /// Tunnels that one pool keeps for later use; beyond it the one unused for longest is let go.
    pub pool_max_tunnels: usize,
    /// How long a tunnel without streams is kept.
    pub pool_unused_release: Duration,
    /// Bound on fetching the source's certificate.
    pub certificate_timeout: Duration,
    /// Bound on the TCP connect to the peer.
    pub connect_timeout: Duration,
    /// Bound on TLS and HTTP/2 handshake together, at either end.
    pub handshake_timeout: Duration,
    /// Bound on the answer to a CONNECT. Longer than the 10 s in which peers give up on their application, so that
    /// their status is seen instead.
    pub response_timeout: Duration,
    /// A tunnel that has received nothing for so long is probed by a PING.
    pub ping_interval: Duration,
    /// A tunnel that stays silent for so long after the PING is closed.
    pub ping_timeout: Duration,
}

/// What runs the tunnels underneath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// Records and frames of our own, in place.
    #[default]
    Own,
    /// The h2 and rustls libraries throughout: the fallback.
    Library,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: Engine::Own,
            first_window: 65_535,
            tunnel_window_budget: 64 * MIB as usize,
            process_window_budget: 256 * MIB as usize,
            records_per_key: 1 << 24,
            stream_window: 4 * MIB,
            connection_window: 16 * MIB,
            max_frame: MIB,
            send_buffer: 512 * 1024,
            max_streams: 200,
            pool_max_streams: 100,
            pool_max_tunnels: 500,
            pool_unused_release: Duration::from_secs(5 * 60),
            certificate_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(15),
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(20),
        }
    }
}

/// The library counts small unread frames against a budget and ends the whole connection when it is spent. One
/// application that reads slowly what another writes byte by byte would end all streams between two nodes. Frames
/// are taken out of the library as they come and merged, so that their number costs no memory; the budget may be
/// as good as endless.
pub(crate) const DATA_FRAME_BUDGET: usize = usize::MAX / 2;

/// Streams reset by the peer before they were looked at that a connection may hold; more is an attack (rapid reset).
pub(crate) const MAX_PENDING_RESETS: usize = 1024;

/// Streams reset here that are remembered while the peer may still send on them. What comes for a forgotten one counts
/// as the peer's error, and those errors, over a tunnel's whole life, are bounded by [`MAX_ERROR_RESETS`].
pub(crate) const MAX_REMEMBERED_RESETS: usize = 4096;

/// Streams of one tunnel that may be reset for the peer's errors before the tunnel is ended.
pub(crate) const MAX_ERROR_RESETS: usize = 65_536;

/// Header bytes accepted in an answer.
pub(crate) const CLIENT_HEADER_LIST: u32 = 16 * KIB;

/// Header bytes accepted in a request.
pub(crate) const SERVER_HEADER_LIST: u32 = 64 * KIB;

impl Config {
    /// The connection window to advertise when `streams` may be open at once.
    pub(crate) fn connection_window_for(&self, streams: u32) -> u32 {
        self.stream_window
            .saturating_mul(streams)
            .max(self.connection_window)
            .min(MAX_WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_window_covers_every_stream_and_stays_legal() {
        let config = Config::default();
        assert_eq!(config.connection_window_for(200), 800 * MIB);
        assert_eq!(config.connection_window_for(1), 16 * MIB);
        assert_eq!(config.connection_window_for(100_000), MAX_WINDOW);
    }
}
