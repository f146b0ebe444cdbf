// SPDX-License-Identifier: Apache-2.0
//! The task that keeps one identity's certificate fresh: fetch, publish, sleep.
//!
//! In: an identity, an authority and a clock. Out: states on a watch channel. It
//! knows nothing of other identities except that they share the authority's slots.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use spiffe::SpiffeId;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::{CertificateState, Clock, Config};
use crate::certificate::{csr, generate_key};
use crate::{CaClient, CertificateError, CsrRequest, WorkloadCertificate};

/// The longest sleep before the clock is read again: a machine that was suspended,
/// or whose clock was set, renews soon after it is back.
const CLOCK_CHECK: Duration = Duration::from_secs(60);

/// What each identity's task needs.
pub(super) struct Fetching {
    pub(super) ca: Arc<dyn CaClient>,
    pub(super) config: Config,
    pub(super) clock: Clock,
    pub(super) slots: Arc<Semaphore>,
    pub(super) background_slots: Arc<Semaphore>,
}

/// The task of one identity.
pub(super) struct Keeper {
    pub(super) identity: SpiffeId,
    pub(super) fetching: Arc<Fetching>,
    pub(super) waiting: Arc<Notify>,
    pub(super) renewal: watch::Receiver<Duration>,
    pub(super) publish: watch::Sender<CertificateState>,
}

/// Permits of one fetch.
struct Slot {
    _total: OwnedSemaphorePermit,
    _background: Option<OwnedSemaphorePermit>,
}

impl Keeper {
    /// Keeps the identity's certificate fresh until it is aborted.
    pub(super) async fn run(mut self) {
        let mut held: Option<Arc<WorkloadCertificate>> = None;
        let mut failures = 0;
        loop {
            // What is fetched from here on is new enough for whoever asked before.
            self.renewal.borrow_and_update();
            let slot = self.slot().await;
            let fetched = self.fetch().await;
            drop(slot);

            let now = (self.fetching.clock)();
            let jitter = rand::rng().random_range(-1.0..=1.0);
            let renew_at = match fetched.and_then(|fresh| self.usable(fresh, now)) {
                Ok(fresh) => {
                    let renew_at = fresh.refresh_at(now, jitter);
                    self.publish_available(&fresh, None);
                    held = Some(fresh);
                    if renew_at > now {
                        failures = 0;
                        renew_at
                    } else {
                        // Due again at once: the authority's clock or its answer is odd. Ask
                        // again, but not in a tight loop.
                        failures += 1;
                        now + backoff(&self.fetching.config, failures, jitter)
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(identity = %self.identity, %error, failures, "no new certificate");
                    let retry_at = now + backoff(&self.fetching.config, failures, jitter);
                    held = held.filter(|certificate| certificate.not_after() > now);
                    match &held {
                        Some(certificate) => {
                            self.publish_available(certificate, Some(error));
                            retry_at.min(certificate.not_after())
                        }
                        None => {
                            self.publish
                                .send_replace(CertificateState::Unavailable(error));
                            retry_at
                        }
                    }
                }
            };
            self.sleep_until(renew_at).await;
        }
    }

    /// Background fetches leave some slots to connections that wait; a waiting
    /// connection lifts its identity's fetch out of the background queue.
    async fn slot(&self) -> Slot {
        let never_closed = "the semaphores of a set are never closed";
        let total = || Arc::clone(&self.fetching.slots).acquire_owned();
        let background = async {
            let background = Arc::clone(&self.fetching.background_slots)
                .acquire_owned()
                .await
                .expect(never_closed);
            (total().await.expect(never_closed), background)
        };
        tokio::select! {
            biased;
            () = self.waiting.notified() => Slot {
                _total: total().await.expect(never_closed),
                _background: None,
            },
            (total, background) = background => Slot {
                _total: total,
                _background: Some(background),
            },
        }
    }

    async fn fetch(&self) -> Result<Arc<WorkloadCertificate>, CertificateError> {
        let request_failed = |error: rcgen::Error| CertificateError::Request {
            identity: self.identity.clone(),
            reason: error.to_string(),
        };
        let key = generate_key().map_err(request_failed)?;
        let request = CsrRequest {
            csr_pem: csr(&self.identity, &key).map_err(request_failed)?,
            identity: self.identity.clone(),
            ttl: self.fetching.config.ttl,
        };
        let after = self.fetching.config.fetch_timeout;
        let chain = tokio::time::timeout(after, self.fetching.ca.sign(request))
            .await
            .map_err(|_| CertificateError::TimedOut {
                identity: self.identity.clone(),
                after,
            })??;
        let certificate =
            WorkloadCertificate::from_parts(Some(&self.identity), &chain, key.serialized_der())?;
        Ok(Arc::new(match &self.fetching.config.revocation {
            Some(revocation) => certificate.checking(revocation.clone()),
            None => certificate,
        }))
    }

    /// A certificate that has run out already must not replace one that has not.
    fn usable(
        &self,
        fresh: Arc<WorkloadCertificate>,
        now: SystemTime,
    ) -> Result<Arc<WorkloadCertificate>, CertificateError> {
        if fresh.not_after() > now {
            return Ok(fresh);
        }
        Err(CertificateError::Expired {
            identity: self.identity.clone(),
            reason: "the authority issued one that had expired already".into(),
        })
    }

    fn publish_available(
        &self,
        certificate: &Arc<WorkloadCertificate>,
        renewal_failure: Option<CertificateError>,
    ) {
        self.publish.send_replace(CertificateState::Available {
            certificate: Arc::clone(certificate),
            renewal_failure,
        });
    }

    async fn sleep_until(&mut self, mut due: SystemTime) {
        while let Ok(left) = due.duration_since((self.fetching.clock)())
            && !left.is_zero()
        {
            tokio::select! {
                () = tokio::time::sleep(left.min(CLOCK_CHECK)) => {}
                Ok(()) = self.renewal.changed() => {
                    let spread = *self.renewal.borrow_and_update();
                    let pause = spread.mul_f64(rand::rng().random_range(0.0..=1.0));
                    due = due.min((self.fetching.clock)() + pause);
                }
            }
        }
    }
}

/// The pause after the `failures`-th failure in a row: doubled each time, capped,
/// and moved by up to a fifth either way (`jitter` from -1.0 to 1.0).
fn backoff(config: &Config, failures: u32, jitter: f64) -> Duration {
    const SPREAD: f64 = 0.2;
    let doublings = failures.saturating_sub(1).min(16);
    let pause = config
        .backoff_min
        .saturating_mul(1 << doublings)
        .min(config.backoff_max);
    pause.mul_f64(1.0 + SPREAD * jitter.clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_cap_and_is_spread() {
        let config = Config {
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            ..Config::default()
        };
        for (failures, jitter, expected) in [
            (1, 0.0, 1.0),
            (2, 0.0, 2.0),
            (5, 0.0, 16.0),
            (6, 0.0, 30.0),
            (u32::MAX, 0.0, 30.0),
            (1, 1.0, 1.2),
            (1, -1.0, 0.8),
            (6, 1.0, 36.0),
        ] {
            let pause = backoff(&config, failures, jitter).as_secs_f64();
            assert!(
                (pause - expected).abs() < 1e-6,
                "failure {failures}, jitter {jitter}: {pause}, expected {expected}"
            );
        }
    }
}
