// SPDX-License-Identifier: Apache-2.0
//! Copies of a request, whose answers nobody waits for.

use std::sync::Arc;
use std::time::Instant;

use super::Life;
use super::attempt::Attempts;
use super::outgoing::Head;
use super::target::Target;
use crate::body::{self, AnyBody, Upward};
use crate::failure::Failure;
use crate::http::Conversation;
use crate::resilience::retry::RetryPolicy;
use crate::resilience::timeouts::Timeouts;
use crate::route::Forward;

impl Life<'_> {
    /// Sends copies, whose answers nobody waits for.
    pub(super) fn mirror(
        &self,
        forward: &Forward<'_>,
        head: &Head,
        sent: &mut Upward,
        is_empty: bool,
    ) {
        let drawn: Vec<_> = forward.mirrors(&mut rand::rng()).collect();
        for destination in drawn {
            let Ok(target) = self.routed(destination) else {
                continue;
            };
            let copy = if is_empty {
                body::empty()
            } else {
                sent.copied()
            };
            let mut head = head.clone();
            self.exchange.propagate_to_copy(&mut head.headers);
            send(self.conversation, target, head, copy);
        }
    }
}

/// Sends a copy, and reads what is answered to its end.
fn send(conversation: &Arc<Conversation>, target: Target, head: Head, copy: AnyBody) {
    let conversation = Arc::clone(conversation);
    let Some(place) = conversation.waypoint.mirror_place() else {
        return;
    };
    tokio::spawn(async move {
        let _place = place;
        let attempts = Attempts {
            conversation: &conversation,
            target,
            retry: &RetryPolicy::safe(),
            deadlines: Timeouts::default().begin(Instant::now()),
            pin: None,
            key: None,
            speaks_for: Some(&conversation.arrival.identity),
        };
        let version = attempts.target.version(http::Version::HTTP_11, None);
        let request = head.for_version(version, attempts.target.policy.tls.as_deref());
        let sent = async {
            let request = request.map(|()| copy);
            let (answer, held) = attempts.once(version, request).await?;
            if body::read_to_end(answer.into_body()).await {
                held.lease.give_back();
            }
            Ok::<_, Failure>(())
        };
        if let Err(failure) = Box::pin(sent).await {
            tracing::debug!(error = %failure, "a copy of a request was not answered");
        }
    });
}
