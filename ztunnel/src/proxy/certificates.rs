// SPDX-License-Identifier: Apache-2.0
//! The certificates that a pod's connections are made and taken with. A pod that has just started waits for its first
//! one where others learn at once why there is none: an authority may hear of a pod a moment later than its node does,
//! and refuse it until then.

use std::sync::Arc;
use std::time::Duration;

use identity::{BoxFuture, CertificateError, CertificateSource, Certificates, WorkloadCertificate};
use spiffe::SpiffeId;
use tokio::time::{Instant, sleep_until};

/// How often a certificate that was refused is asked for. It is fetched at the pace of its own retries.
const ASK_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct Patient {
    certificates: Certificates,
    /// From then on a refusal is final.
    until: Instant,
}

impl Patient {
    pub(super) fn new(certificates: Certificates, until: Instant) -> Self {
        Self {
            certificates,
            until,
        }
    }
}

impl CertificateSource for Patient {
    fn certificate(
        &self,
        id: &SpiffeId,
    ) -> BoxFuture<'_, Result<Arc<WorkloadCertificate>, CertificateError>> {
        let id = id.clone();
        Box::pin(async move { patiently(self.until, || self.certificates.certificate(&id)).await })
    }
}

async fn patiently<T, E, A: Future<Output = Result<T, E>>>(
    until: Instant,
    ask: impl Fn() -> A,
) -> Result<T, E> {
    loop {
        match ask().await {
            Err(_) if Instant::now() < until => {
                sleep_until(until.min(Instant::now() + ASK_AGAIN)).await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Asks somebody who says no so many times; tells what came of it and how long that took.
    async fn asked(refusals: u32, until: Duration) -> (Result<u32, &'static str>, Duration) {
        let (begun, asked) = (Instant::now(), Cell::new(0));
        let answer = patiently(begun + until, || {
            asked.set(asked.get() + 1);
            let refused = asked.get() <= refusals;
            std::future::ready(if refused { Err("no") } else { Ok(asked.get()) })
        });
        (answer.await, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_waited_out_while_the_pod_is_young() {
        let young = Duration::from_secs(15);
        assert_eq!(asked(0, young).await, (Ok(1), Duration::ZERO));
        assert_eq!(asked(3, young).await, (Ok(4), ASK_AGAIN * 3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_refusal_is_told_once_the_pod_is_not_young_any_more() {
        let young = Duration::from_millis(250);
        assert_eq!(asked(u32::MAX, young).await, (Err("no"), young));
        assert_eq!(
            asked(u32::MAX, Duration::ZERO).await,
            (Err("no"), Duration::ZERO)
        );
    }
}
