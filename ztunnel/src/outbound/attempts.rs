// SPDX-License-Identifier: Apache-2.0
//! Connects, at another endpoint where the first fails, for as long as no byte of the application has left.
//!
//! ```text
//!  hop ─► attempt ─┬─ connected ───────────────────────────────────────────► done
//!                  ├─ failed, and another endpoint may be tried ─► next hop ─► attempt …   at most MOST in 10 s
//!                  ├─ slow, and there is another ────────────────► next hop ─► attempt …
//!                  └─ failed for good, or nobody is left ──────────────────► failure of the last
//! ```
//!
//! Each next hop is routed anew, with what was tried left out: it obeys what the mesh says at that moment. The record is
//! opened as soon as the other end is known, and follows the connection from endpoint to endpoint.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use mesh::Endpoint;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::Caller;
use super::hop::{Hop, Reached, Upstream};
use super::retry::{Blame, Cause, Verdict, judge};
use crate::connections::Tracked;
use crate::endpoints::Using;
use crate::failure::{Failure, Flag};
use crate::proxy::CONNECT_TIMEOUT;
use crate::record::{Opening, Record};

/// Endpoints that one connection tries.
const MOST: u32 = 3;
/// How long an attempt may take where there is another endpoint; long enough for one lost SYN. The last one has what
/// is left of the time.
const PATIENCE: Duration = Duration::from_secs(3);

/// An open connection to an endpoint, which carries it for as long as `using` is held.
pub(super) struct Connected {
    pub(super) upstream: Upstream,
    pub(super) using: Option<Using>,
}

pub(super) struct Attempts<'a> {
    caller: &'a Caller<'a>,
    /// The address that the client reached.
    reached: Option<SocketAddr>,
    deadline: Instant,
    count: u32,
    /// Not asked again.
    tried: Vec<Endpoint>,
    record: Option<Record>,
    /// How the latest attempt failed.
    failed: Flag,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(caller: &'a Caller<'a>, reached: Option<SocketAddr>) -> Self {
        Self {
            caller,
            reached,
            deadline: Instant::now() + CONNECT_TIMEOUT,
            count: 0,
            tried: Vec::new(),
            record: None,
            failed: Flag::None,
        }
    }

    pub(super) async fn connect(
        mut self,
        mut hop: Hop,
        tracked: &Tracked,
    ) -> (Record, Result<Connected, Failure>) {
        let outcome = loop {
            if hop.knows_the_end() {
                self.note(hop.opening(self.caller, None));
            }
            let (failure, next) = match self.attempt(&hop).await {
                Ok((reached, using)) => break Ok((reached, using)),
                Err(lost) => lost,
            };
            self.failed = failure.flag();
            let Some((next, cause)) = next else {
                break Err(failure);
            };
            let caller = self.caller;
            debug!(src = %caller.peer, failed = %hop.to, next = %next.to, error = %failure, "trying another endpoint");
            let service = next.service.as_ref();
            let service = service.map_or("unknown", |service| &service.hostname);
            caller.pod.shared.endpoints.retried(service, cause.as_str());
            tracked.moved(next.view(caller));
            hop = next;
        };
        let (proven, outcome) = match outcome {
            Ok((Reached { upstream, proven }, using)) => {
                (proven, Ok(Connected { upstream, using }))
            }
            Err(failure) => (None, Err(failure)),
        };
        if !hop.knows_the_end() {
            self.note(hop.opening(self.caller, proven));
        }
        let mut record = self
            .record
            .expect("broken invariant: noted at the latest just now");
        record.tried(self.count);
        (record, outcome)
    }

    fn note(&mut self, opening: Opening) {
        let worker = self.caller.worker;
        match &mut self.record {
            Some(record) => record.moved(worker, opening, self.failed),
            None => {
                let recorder = &self.caller.pod.shared.recorder;
                self.record = Some(recorder.open(worker, opening));
            }
        }
    }

    /// What was reached; or why not, and where to turn to and what for.
    async fn attempt(
        &mut self,
        hop: &Hop,
    ) -> Result<(Reached, Option<Using>), (Failure, Option<(Hop, Cause)>)> {
        self.count += 1;
        let first = self.count == 1;
        let endpoints = &self.caller.pod.shared.endpoints;
        let using = hop.endpoint.clone().map(|known| endpoints.begin(known));
        let mut next = None;
        let outcome = {
            let mut connecting = pin!(hop.connect(self.caller));
            let left = self.deadline.saturating_duration_since(Instant::now());
            let patience = if first { PATIENCE } else { PATIENCE.min(left) };
            match timeout(patience, connecting.as_mut()).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let too_slow = |limit| Failure::ConnectTimeout { to: hop.to, limit };
                    next = self.next_while_slow(hop).await;
                    if next.is_some() {
                        Err(too_slow(patience))
                    } else if first {
                        // Each step has a limit of its own and says best what it waited for.
                        connecting.await
                    } else {
                        let outcome = timeout_at(self.deadline, connecting).await;
                        outcome.unwrap_or_else(|_| Err(too_slow(CONNECT_TIMEOUT)))
                    }
                }
            }
        };
        let failure = match outcome {
            Ok(reached) => {
                using.iter().for_each(Using::succeeded);
                return Ok((reached, using));
            }
            Err(failure) => failure,
        };
        let Verdict::Elsewhere { cause, blame } = judge(&failure, hop.role) else {
            return Err((failure, None));
        };
        if let Some(using) = using.filter(|_| blame == Blame::Endpoint && hop.is_chosen()) {
            using.failed(hop.to, &failure);
        }
        if blame != Blame::Behind {
            self.tried.extend(hop.endpoint.clone());
        }
        self.tried.extend(hop.behind.clone());
        let next = match next {
            Some(next) => Some(next),
            None => self.next().await,
        };
        Err((failure, next.map(|next| (next, cause))))
    }

    /// Another endpoint to turn to while this one takes its time.
    async fn next_while_slow(&mut self, hop: &Hop) -> Option<Hop> {
        if hop.is_tunnel() && !self.has_certificate().await {
            // It is not the endpoint that is slow.
            return None;
        }
        let before = self.tried.len();
        self.tried
            .extend(hop.endpoint.iter().chain(&hop.behind).cloned());
        let next = self.next().await;
        self.tried.truncate(before);
        next
    }

    async fn has_certificate(&self) -> bool {
        let certificates = &self.caller.pod.shared.certificates;
        let own = certificates.certificate(&self.caller.source.identity);
        timeout(Duration::ZERO, own).await.is_ok()
    }

    /// Only another endpoint of a service is worth a second attempt, and nothing else is due to this connection.
    async fn next(&self) -> Option<Hop> {
        if self.count >= MOST || Instant::now() >= self.deadline || self.tried.is_empty() {
            return None;
        }
        let hop = self.caller.hop(&self.tried).await.ok()?;
        let good = hop.is_fresh(&self.tried) && !hop.is_loop(self.reached);
        good.then_some(hop)
    }
}
