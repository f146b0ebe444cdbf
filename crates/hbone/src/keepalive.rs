// SPDX-License-Identifier: Apache-2.0
//! Is the peer still there? Asked only when it has been silent, since any byte of it is an answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep};

use crate::Config;
use crate::error::{TunnelError, TunnelFault};
use crate::io::Pulse;

/// Silence → PING → silence → the tunnel is dead.
///
/// ```text
///   Quiet ── interval, nothing read ──► Asked ── time-out, nothing read ──► dead
///     ▲ └── interval, something read ─┐   │
///     └───────────────────────────────┴───┘ something read
/// ```
pub(crate) struct Keepalive {
    ping: Option<PingPong>,
    state: State,
    timer: Pin<Box<Sleep>>,
    pulse: Pulse,
    /// The pulse when the timer was set.
    before: u64,
    interval: Duration,
    timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Quiet,
    Asked,
}

impl Keepalive {
    pub(crate) fn new(ping: Option<PingPong>, pulse: Pulse, config: &Config) -> Self {
        Self {
            ping,
            state: State::Quiet,
            timer: Box::pin(sleep(config.ping_interval)),
            before: pulse.count(),
            pulse,
            interval: config.ping_interval,
            timeout: config.ping_timeout,
        }
    }

    /// To be called in each turn of the driver.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TunnelError> {
        let Some(ping) = &mut self.ping else {
            return Poll::Pending;
        };
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = self.pulse.count();
            let heard = now != self.before;
            self.before = now;
            let (state, time) = match self.state {
                _ if heard => (State::Quiet, self.interval),
                State::Quiet => {
                    // An answer must be collected before the next PING may be sent. While one is missing, that one
                    // is waited for; that both err once the connection is gone is the driver's business.
                    let _ = ping.poll_pong(cx);
                    let _ = ping.send_ping(Ping::opaque());
                    (State::Asked, self.timeout)
                }
                State::Asked => {
                    return Poll::Ready(TunnelError::new(
                        TunnelFault::PingTimeout,
                        format!("peer silent for {:?} after a PING", self.timeout),
                    ));
                }
            };
            self.state = state;
            self.timer.as_mut().reset(Instant::now() + time);
        }
        Poll::Pending
    }
}
