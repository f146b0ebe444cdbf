// SPDX-License-Identifier: Apache-2.0
//! The task that keeps one identity's certificate fresh: fetch, publish, sleep.
//!
//! In: an identity, an authority and a clock. Out: states on a watch channel. It
//! knows nothing of other identities except that they share the authority's slots.
//!
//! No clock is relied on alone: the time of day may be set, and the time since boot stands still while a machine sleeps.
//! What comes first counts.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use spiffe::SpiffeId;
use time::OffsetDateTime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

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
            held = held.filter(|certificate| certificate.not_after() > now);
            let pause = match fetched.and_then(|fresh| usable(fresh, held.as_deref(), now)) {
                Ok(fresh) => {
                    let life = fresh.refresh_after(now, jitter);
                    self.publish_available(&fresh, None);
                    let early = fresh.not_before() > now;
                    if early {
                        tracing::warn!(
                            identity = %self.identity,
                            not_before = ?fresh.not_before(),
                            "the certificate is not valid yet by this machine's clock, which others may not share"
                        );
                    }
                    held = Some(fresh);
                    if early || life.is_zero() {
                        // The authority's clock or ours is odd. Ask again, but not in a tight loop.
                        failures += 1;
                        backoff(&self.fetching.config, failures, jitter)
                    } else {
                        failures = 0;
                        life
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(identity = %self.identity, %error, failures, "no new certificate");
                    let pause = backoff(&self.fetching.config, failures, jitter);
                    match &held {
                        Some(certificate) => {
                            self.publish_available(certificate, Some(error));
                            let left = certificate.not_after().duration_since(now);
                            before_the_end(pause, left.unwrap_or_default(), &self.fetching.config)
                        }
                        None => {
                            self.publish
                                .send_replace(CertificateState::Unavailable(error));
                            pause
                        }
                    }
                }
            };
            self.sleep(now, pause).await;
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

    /// Sleeps until `pause` after `now` by either clock, or until somebody needs the next fetch earlier.
    async fn sleep(&mut self, now: SystemTime, pause: Duration) {
        let slept = Instant::now();
        let mut due = Due {
            by_day: now + pause,
            by_boot: slept + pause,
        };
        while let Some(left) = due.left((self.fetching.clock)(), Instant::now()) {
            tokio::select! {
                () = tokio::time::sleep(left.min(CLOCK_CHECK)) => {}
                Ok(()) = self.renewal.changed() => {
                    let spread = *self.renewal.borrow_and_update();
                    let pause = spread.mul_f64(rand::rng().random_range(0.0..=1.0));
                    due.by_boot = due.by_boot.min(Instant::now() + pause);
                }
                () = self.waiting.notified() => {
                    due.by_boot = due.by_boot.min(slept + self.fetching.config.pause_if_needed);
                }
            }
        }
    }
}

/// When the next fetch is due, by the time of day and by the time since boot.
struct Due {
    by_day: SystemTime,
    by_boot: Instant,
}

impl Due {
    /// How long until the first of them; nothing once it is there.
    fn left(&self, day: SystemTime, boot: Instant) -> Option<Duration> {
        let by_day = self.by_day.duration_since(day).unwrap_or_default();
        let by_boot = self.by_boot.saturating_duration_since(boot);
        Some(by_day.min(by_boot)).filter(|left| !left.is_zero())
    }
}

/// What is worse than what is held must not replace it: a certificate that has run out already, or one that nobody
/// takes yet while the old one is good.
fn usable(
    fresh: Arc<WorkloadCertificate>,
    held: Option<&WorkloadCertificate>,
    now: SystemTime,
) -> Result<Arc<WorkloadCertificate>, CertificateError> {
    if fresh.not_after() <= now {
        let end = OffsetDateTime::from(fresh.not_after());
        return Err(CertificateError::Expired {
            identity: fresh.identity().clone(),
            reason: format!(
                "by this machine's clock, the one that the authority issued just now expired on {end}; do their clocks \
                 differ?"
            ),
        });
    }
    if fresh.not_before() > now && held.is_some_and(|held| held.not_before() <= now) {
        return Err(CertificateError::NotYetValid {
            identity: fresh.identity().clone(),
            not_before: fresh.not_before().into(),
        });
    }
    Ok(fresh)
}

/// The closer the end of what is held, the sooner the next try: the last one must not be missed by a long pause.
fn before_the_end(pause: Duration, left: Duration, config: &Config) -> Duration {
    pause.min((left / 4).max(config.backoff_min)).min(left)
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
    fn a_fetch_is_due_by_the_clock_that_comes_first() {
        const MINUTE: Duration = Duration::from_secs(60);
        let (day, boot) = (SystemTime::UNIX_EPOCH + 1000 * MINUTE, Instant::now());
        let due = Due {
            by_day: day + MINUTE,
            by_boot: boot + MINUTE,
        };
        for (day, boot, expected) in [
            (day, boot, Some(MINUTE)),
            // Set forward, set back, set back long ago.
            (day + MINUTE, boot, None),
            (day - 60 * MINUTE, boot, Some(MINUTE)),
            (day - 60 * MINUTE, boot + MINUTE, None),
        ] {
            assert_eq!(due.left(day, boot), expected, "{day:?}, {boot:?}");
        }
    }

    #[test]
    fn tries_come_closer_together_towards_the_end_of_what_is_held() {
        let config = Config::default();
        let second = Duration::from_secs;
        for (pause, left, expected) in [
            (second(30), second(3600), second(30)),
            (second(30), second(40), second(10)),
            (second(30), second(2), second(1)),
            (second(30), second(0), second(0)),
            (second(1), second(3600), second(1)),
        ] {
            assert_eq!(before_the_end(pause, left, &config), expected);
        }
    }

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
