// SPDX-License-Identifier: Apache-2.0
//! Certificates over their life, by a clock that the tests turn.
#![expect(clippy::unwrap_used, reason = "a failed step of a test must stop it")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use identity::testing::{TestAuthority, Validity};
use identity::{
    BoxFuture, CaClient, CertificateError, CertificateSource, CertificateState, Certificates,
    Clock, Config, CsrRequest,
};
use spiffe::SpiffeId;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn id(account: &str) -> SpiffeId {
    format!("spiffe://cluster.local/ns/shop/sa/{account}")
        .parse()
        .unwrap()
}

/// How the authority behaves.
#[derive(Clone, Copy)]
enum Mood {
    Signs,
    /// Signs, after this long.
    Slow(Duration),
    Refuses,
    Hangs,
    /// Signs something that has run out already.
    Stale,
}

struct FakeCa {
    authority: TestAuthority,
    clock: Clock,
    mood: Mutex<Mood>,
    requests: Mutex<Vec<CsrRequest>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl FakeCa {
    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn calls(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    async fn answer(&self, request: CsrRequest) -> Result<Vec<String>, CertificateError> {
        let mood = *self.mood.lock().unwrap();
        let identity = request.identity.clone();
        let csr = request.csr_pem.clone();
        let ttl = request.ttl;
        self.requests.lock().unwrap().push(request);
        match mood {
            Mood::Signs | Mood::Stale => {}
            Mood::Slow(time) => sleep(time).await,
            Mood::Hangs => std::future::pending().await,
            Mood::Refuses => {
                return Err(CertificateError::Authority {
                    identity,
                    reason: "not today".into(),
                });
            }
        }
        let now = (self.clock)();
        let validity = match mood {
            Mood::Stale => Validity {
                not_before: now - ttl,
                not_after: now - MINUTE,
            },
            _ => Validity {
                not_before: now,
                not_after: now + ttl,
            },
        };
        Ok(self.authority.answer(&csr, &identity, validity))
    }
}

struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl CaClient for FakeCa {
    fn sign(&self, request: CsrRequest) -> BoxFuture<'_, Result<Vec<String>, CertificateError>> {
        Box::pin(async move {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_running.fetch_max(running, Ordering::SeqCst);
            let _running = Running(&self.running);
            self.answer(request).await
        })
    }
}

/// A set of certificates for an hour each, by tokio's clock.
fn set_up(mood: Mood) -> (Certificates, Arc<FakeCa>, Clock) {
    let (wall, start) = (SystemTime::now(), Instant::now());
    let clock: Clock = Arc::new(move || wall + start.elapsed());
    let ca = Arc::new(FakeCa {
        authority: TestAuthority::new("root"),
        clock: Arc::clone(&clock),
        mood: Mutex::new(mood),
        requests: Mutex::default(),
        running: AtomicUsize::new(0),
        most_running: AtomicUsize::new(0),
    });
    let config = Config {
        ttl: HOUR,
        ..Config::default()
    };
    let certificates = Certificates::with_clock(
        Arc::clone(&ca) as Arc<dyn CaClient>,
        config,
        Handle::current(),
        Arc::clone(&clock),
    );
    (certificates, ca, clock)
}

fn renewal_failure(certificates: &Certificates) -> Option<CertificateError> {
    match &certificates.states()[0].state {
        CertificateState::Available {
            renewal_failure, ..
        } => renewal_failure.clone(),
        other => panic!("no certificate: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_around_its_half_life() {
    let (certificates, ca, clock) = set_up(Mood::Signs);
    let first = certificates.certificate(&id("web")).await.unwrap();
    sleep(26 * MINUTE).await;
    assert_eq!(ca.calls(), 1, "not before half-life less a tenth");
    sleep(8 * MINUTE).await;
    assert_eq!(ca.calls(), 2, "by half-life and a tenth");
    let second = certificates.certificate(&id("web")).await.unwrap();
    assert!(second.not_after() > first.not_after());
    // Renewals go on for days without anybody asking.
    sleep(48 * HOUR).await;
    assert!((80..=110).contains(&ca.calls()), "{} fetches", ca.calls());
    let last = certificates.certificate(&id("web")).await.unwrap();
    assert!(last.not_after() > clock() + 25 * MINUTE);
}

#[tokio::test(start_paused = true)]
async fn renewals_of_one_moment_are_spread() {
    let (certificates, ca, _) = set_up(Mood::Signs);
    for number in 0..50 {
        certificates
            .certificate(&id(&format!("sa-{number}")))
            .await
            .unwrap();
    }
    sleep(29 * MINUTE).await;
    let renewed = ca.calls() - 50;
    assert!(
        (1..50).contains(&renewed),
        "{renewed} of 50 renewed after 29 minutes"
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_of_roots_renews_all_that_is_held_and_breaks_nothing_meanwhile() {
    const SPREAD: Duration = Duration::from_secs(20);
    let (certificates, ca, _) = set_up(Mood::Signs);
    let first = certificates.certificate(&id("web")).await.unwrap();
    for number in 0..40 {
        let id = id(&format!("sa-{number}"));
        certificates.certificate(&id).await.unwrap();
    }
    certificates.renew_all(SPREAD);
    let held = certificates.certificate(&id("web")).await.unwrap();
    assert!(Arc::ptr_eq(&held, &first));
    sleep(SPREAD / 2).await;
    let halfway = ca.calls() - 41;
    assert!(
        (1..41).contains(&halfway),
        "{halfway} of 41 after half of the time"
    );
    sleep(SPREAD / 2 + Duration::from_secs(1)).await;
    assert_eq!(ca.calls(), 82);
    let renewed = certificates.certificate(&id("web")).await.unwrap();
    assert!(!Arc::ptr_eq(&renewed, &first));
    // One alone, at once, even while it is being fetched for another reason.
    certificates.renew(&id("web"));
    certificates.renew(&id("nobody"));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(ca.calls(), 83);
    // A renewal that fails is tried again, and what is held stays in use.
    ca.set(Mood::Refuses);
    certificates.renew(&id("web"));
    sleep(Duration::from_secs(5)).await;
    assert!(ca.calls() > 84);
    assert!(certificates.certificate(&id("web")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_last_good_certificate_is_kept_until_it_expires() {
    let (certificates, ca, clock) = set_up(Mood::Signs);
    let first = certificates.certificate(&id("web")).await.unwrap();
    ca.set(Mood::Refuses);
    sleep(40 * MINUTE).await;
    assert!(ca.calls() > 1, "renewal was tried");
    let kept = certificates.certificate(&id("web")).await.unwrap();
    assert!(Arc::ptr_eq(&kept, &first));
    assert!(
        renewal_failure(&certificates)
            .unwrap()
            .to_string()
            .contains("not today")
    );

    let left = first.not_after().duration_since(clock()).unwrap();
    sleep(left - Duration::from_secs(1)).await;
    assert!(
        certificates.certificate(&id("web")).await.is_ok(),
        "to its last second"
    );
    sleep(Duration::from_secs(2)).await;
    let error = certificates.certificate(&id("web")).await.unwrap_err();
    assert!(error.to_string().contains("not today"), "{error}");

    ca.set(Mood::Signs);
    sleep(MINUTE).await;
    let renewed = certificates.certificate(&id("web")).await.unwrap();
    assert!(renewed.not_after() > clock());
    assert_eq!(renewal_failure(&certificates), None);
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_does_not_replace_a_good_certificate() {
    let (certificates, ca, _) = set_up(Mood::Signs);
    let first = certificates.certificate(&id("web")).await.unwrap();
    ca.set(Mood::Stale);
    sleep(40 * MINUTE).await;
    let kept = certificates.certificate(&id("web")).await.unwrap();
    assert!(Arc::ptr_eq(&kept, &first));
    let failure = renewal_failure(&certificates).unwrap();
    assert!(
        matches!(failure, CertificateError::Expired { .. }),
        "{failure}"
    );
}

#[tokio::test(start_paused = true)]
async fn callers_of_one_moment_share_one_fetch() {
    let (certificates, ca, _) = set_up(Mood::Slow(Duration::from_secs(2)));
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let certificates = certificates.clone();
            tokio::spawn(async move { certificates.certificate(&id("web")).await.unwrap() })
        })
        .collect();
    let mut got = Vec::new();
    for caller in callers {
        got.push(caller.await.unwrap());
    }
    assert_eq!(ca.calls(), 1);
    assert!(
        got.iter()
            .all(|certificate| Arc::ptr_eq(certificate, &got[0]))
    );
    assert_eq!(ca.requests.lock().unwrap()[0].ttl, HOUR);
}

#[tokio::test(start_paused = true)]
async fn a_failed_fetch_is_told_at_once_and_retried_in_the_background() {
    let (certificates, ca, _) = set_up(Mood::Refuses);
    for _ in 0..5 {
        let error = certificates.certificate(&id("web")).await.unwrap_err();
        assert!(error.to_string().contains("not today"), "{error}");
    }
    assert_eq!(ca.calls(), 1, "callers do not add attempts");
    sleep(10 * MINUTE).await;
    let tries = ca.calls();
    // 1, 2, 4, 8, 16 s, then 30 s each, all of them give or take a fifth.
    assert!((18..=30).contains(&tries), "{tries} tries in ten minutes");
    ca.set(Mood::Signs);
    sleep(Duration::from_secs(37)).await;
    assert!(certificates.certificate(&id("web")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_does_not_answer_costs_the_time_out() {
    let (certificates, _, _) = set_up(Mood::Hangs);
    let asked = Instant::now();
    let error = certificates.certificate(&id("web")).await.unwrap_err();
    assert!(
        matches!(error, CertificateError::TimedOut { .. }),
        "{error}"
    );
    assert_eq!(asked.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn forgetting_ends_waits_and_fetches() {
    let (certificates, ca, _) = set_up(Mood::Hangs);
    let waiter = {
        let certificates = certificates.clone();
        tokio::spawn(async move { certificates.certificate(&id("web")).await })
    };
    sleep(Duration::from_secs(1)).await;
    assert_eq!(ca.running.load(Ordering::SeqCst), 1);
    certificates.forget(&id("web"));
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error, CertificateError::Forgotten(id("web")));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        ca.running.load(Ordering::SeqCst),
        0,
        "the fetch is abandoned"
    );
    assert!(certificates.states().is_empty());

    ca.set(Mood::Signs);
    assert!(
        certificates.certificate(&id("web")).await.is_ok(),
        "it may come back"
    );
}

#[tokio::test(start_paused = true)]
async fn forgetting_drops_the_key_and_stops_renewal() {
    let (certificates, ca, _) = set_up(Mood::Signs);
    let held = Arc::downgrade(&certificates.certificate(&id("web")).await.unwrap());
    assert!(held.upgrade().is_some());
    certificates.forget(&id("web"));
    sleep(Duration::from_millis(1)).await;
    assert!(held.upgrade().is_none(), "nobody holds the key any more");
    sleep(HOUR).await;
    assert_eq!(ca.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_set_ends_its_tasks() {
    let (certificates, ca, _) = set_up(Mood::Signs);
    certificates.certificate(&id("web")).await.unwrap();
    drop(certificates);
    sleep(HOUR).await;
    assert_eq!(ca.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn prefetches_run_side_by_side_and_leave_room_for_connections() {
    let (certificates, ca, _) = set_up(Mood::Slow(Duration::from_secs(1)));
    for number in 0..30 {
        certificates.prefetch(id(&format!("sa-{number}")));
    }
    sleep(Duration::from_millis(500)).await;
    assert_eq!(ca.most_running.load(Ordering::SeqCst), 6);
    // Neither a new identity nor one that queues as a prefetch waits for the queue.
    let asked = Instant::now();
    let last = id("sa-29");
    let new = id("new");
    let (fresh, queued) = tokio::join!(
        certificates.certificate(&new),
        certificates.certificate(&last)
    );
    assert!(fresh.is_ok() && queued.is_ok());
    assert!(
        asked.elapsed() < Duration::from_millis(1100),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(ca.most_running.load(Ordering::SeqCst), 8);
    sleep(10 * Duration::from_secs(1)).await;
    let states = certificates.states();
    assert_eq!(states.len(), 31);
    assert!(states.is_sorted_by_key(|status| status.identity.clone()));
    assert!(
        states
            .iter()
            .all(|status| matches!(status.state, CertificateState::Available { .. }))
    );
    assert_eq!(ca.calls(), 31);
}

/// Proxy workers have runtimes of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn any_thread_may_ask() {
    let ca = Arc::new(TestAuthority::new("root"));
    let certificates = Certificates::new(ca, Config::default(), Handle::current());
    let worker = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(async {
                let source: &dyn CertificateSource = &certificates;
                source.certificate(&id("web")).await
            })
    });
    let certificate = tokio::task::spawn_blocking(|| worker.join().unwrap())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(certificate.identity(), &id("web"));
}
