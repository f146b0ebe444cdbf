// SPDX-License-Identifier: Apache-2.0
//! One message of this waypoint's own to a service, and its answer: a copy that nobody waits for, or a question.

use http::{Request, Response};
use hyper::body::Incoming;

use super::attempt::Attempts;
use super::connecting::connection;
use crate::body::AnyBody;
use crate::endpoints::{Begun, Using};
use crate::failure::Failure;
use crate::pool::{Lease, Unanswered};
use crate::resilience::limits::Work;
use crate::upstream::Version;

/// Endpoints that are tried while none can be reached.
const MOST_ENDPOINTS: usize = 3;

/// What an answer needs until it was read.
pub(super) struct Held {
    pub(super) lease: Lease,
    _using: Using,
    _under_way: Begun,
}

impl Attempts<'_> {
    /// Sends to an endpoint that can be reached, once.
    pub(super) async fn once(
        &self,
        version: Version,
        mut request: Request<AnyBody>,
    ) -> Result<(Response<Incoming>, Held), Failure> {
        let (policy, observed) = (&self.target.policy, &self.target.observed);
        let under_way = observed.begin(Work::Request, &policy.limits)?;
        let waypoint = &self.conversation.waypoint;
        let mut tried = Vec::new();
        loop {
            let (choice, using) = self.choose(&tried)?;
            tried.push(choice.endpoint());
            let reached = async {
                let settled = waypoint.hostnames.settle(choice, waypoint.own.address);
                let chosen = settled.await?;
                let lease = connection(self.conversation, &self.target, &chosen, version);
                Ok::<_, Failure>((lease.await?, chosen.address))
            };
            let (mut lease, to) = match reached.await {
                Ok(reached) => reached,
                Err(failure) if !failure.is_the_endpoints() => return Err(failure),
                Err(failure) => {
                    using.failed(&failure);
                    match tried.len() < MOST_ENDPOINTS {
                        true => continue,
                        false => return Err(failure),
                    }
                }
            };
            using.succeeded();
            let reused = lease.reused;
            match lease.send(request).await {
                Ok(answer) => {
                    let held = Held {
                        lease,
                        _using: using,
                        _under_way: under_way,
                    };
                    return Ok((answer, held));
                }
                Err(unanswered) => {
                    let Unanswered {
                        error,
                        request: unsent,
                    } = *unanswered;
                    match unsent {
                        // It was closed while it waited: that is not an attempt.
                        Some(unsent) if reused => {
                            request = unsent;
                            tried.pop();
                        }
                        _ => {
                            return Err(Failure::Http {
                                to,
                                error: error.to_string().into(),
                            });
                        }
                    }
                }
            }
        }
    }
}
