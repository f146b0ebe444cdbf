// SPDX-License-Identifier: Apache-2.0
//! Clocks that are set, on the node and at the authority, and what becomes of certificates.
#![expect(clippy::unwrap_used, reason = "a failed step of a test must stop it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use identity::testing::{TestAuthority, Validity};
use identity::{
    BoxFuture, CaClient, CertificateError, CertificateState, Certificates, Clock, Config,
    CsrRequest,
};
use spiffe::SpiffeId;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const SKEW: Duration = Duration::from_secs(120);

fn web() -> SpiffeId {
    "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap()
}

/// A clock that goes with tokio's, and is set by this many seconds.
#[derive(Clone, Default)]
struct Set(Arc<AtomicI64>);

impl Set {
    fn by(&self, seconds: i64) {
        self.0.store(seconds, Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        let (wall, start, set) = (SystemTime::now(), Instant::now(), Arc::clone(&self.0));
        Arc::new(move || {
            let now = wall + start.elapsed();
            let seconds = set.load(Ordering::SeqCst);
            let by = Duration::from_secs(seconds.unsigned_abs());
            if seconds < 0 { now - by } else { now + by }
        })
    }
}

/// Signs for an hour from its own now.
struct Ca {
    authority: TestAuthority,
    clock: Clock,
    calls: AtomicUsize,
}

impl CaClient for Ca {
    fn sign(&self, request: CsrRequest) -> BoxFuture<'_, Result<Vec<String>, CertificateError>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let now = (self.clock)();
        let validity = Validity {
            not_before: now - SKEW,
            not_after: now + request.ttl,
        };
        let answer = self
            .authority
            .answer(&request.csr_pem, &request.identity, validity);
        Box::pin(async move { Ok(answer) })
    }
}

struct Scene {
    certificates: Certificates,
    ca: Arc<Ca>,
    node: Set,
    authority: Set,
}

impl Scene {
    fn new() -> Self {
        let (node, authority) = (Set::default(), Set::default());
        let ca = Arc::new(Ca {
            authority: TestAuthority::new("root"),
            clock: authority.clock(),
            calls: AtomicUsize::new(0),
        });
        let config = Config {
            ttl: HOUR,
            ..Config::default()
        };
        let certificates = Certificates::with_clock(
            Arc::clone(&ca) as Arc<dyn CaClient>,
            config,
            Handle::current(),
            node.clock(),
        );
        Self {
            certificates,
            ca,
            node,
            authority,
        }
    }

    fn calls(&self) -> usize {
        self.ca.calls.load(Ordering::SeqCst)
    }

    /// Why there is none, or why what is held was not renewed.
    fn failure(&self) -> Option<CertificateError> {
        match &self.certificates.states()[0].state {
            CertificateState::Available {
                renewal_failure, ..
            } => renewal_failure.clone(),
            CertificateState::Unavailable(error) => Some(error.clone()),
            CertificateState::Initializing => None,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_set_past_the_end_of_a_certificate_has_it_renewed_at_once() {
    let scene = Scene::new();
    let first = scene.certificates.certificate(&web()).await.unwrap();
    let jump = 30 * MINUTE;
    // Both: as when a machine that hosts both has slept.
    scene.node.by(2 * 3600);
    scene.authority.by(2 * 3600);
    let asked = Instant::now();
    let second = scene.certificates.certificate(&web()).await.unwrap();
    assert!(second.not_after() > first.not_after() + jump);
    assert!(
        asked.elapsed() <= 3 * SECOND,
        "who asked has waited for {:?}",
        asked.elapsed()
    );
    assert_eq!(scene.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_far_ahead_of_the_authority_has_no_certificate_until_its_clock_is_right_again() {
    let scene = Scene::new();
    scene.certificates.certificate(&web()).await.unwrap();
    scene.node.by(2 * 3600);
    sleep(3 * SECOND).await;
    let error = scene.certificates.certificate(&web()).await.unwrap_err();
    assert!(
        error.to_string().contains("do their clocks differ?"),
        "{error}"
    );
    sleep(10 * MINUTE).await;
    scene.node.by(0);
    sleep(3 * SECOND).await;
    scene.certificates.certificate(&web()).await.unwrap();
    assert_eq!(scene.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_clock_was_set_back_goes_on_renewing_in_time_for_its_peers() {
    let scene = Scene::new();
    let first = scene.certificates.certificate(&web()).await.unwrap();
    scene.node.by(-24 * 3600);
    // For the rest of the mesh the first one ends in an hour.
    let end = first.not_after();
    for _ in 0..6 {
        sleep(10 * MINUTE).await;
        let held = scene.certificates.certificate(&web()).await.unwrap();
        assert!(held.not_after() > (scene.ca.clock)() + 20 * MINUTE);
    }
    let held = scene.certificates.certificate(&web()).await.unwrap();
    assert!(held.not_after() > end);
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_is_ahead_does_not_take_good_certificates_away() {
    let scene = Scene::new();
    let first = scene.certificates.certificate(&web()).await.unwrap();
    scene.authority.by(2 * 3600);
    sleep(50 * MINUTE).await;
    let kept = scene.certificates.certificate(&web()).await.unwrap();
    assert!(Arc::ptr_eq(&kept, &first));
    let failure = scene.failure().unwrap();
    assert!(
        matches!(failure, CertificateError::NotYetValid { .. }),
        "{failure}"
    );
    scene.authority.by(0);
    sleep(3 * MINUTE).await;
    let renewed = scene.certificates.certificate(&web()).await.unwrap();
    assert!(renewed.not_after() > first.not_after() + 40 * MINUTE);
    assert_eq!(scene.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_is_behind_does_not_either() {
    let scene = Scene::new();
    let first = scene.certificates.certificate(&web()).await.unwrap();
    scene.authority.by(-2 * 3600);
    sleep(50 * MINUTE).await;
    let kept = scene.certificates.certificate(&web()).await.unwrap();
    assert!(Arc::ptr_eq(&kept, &first));
    assert!(matches!(
        scene.failure(),
        Some(CertificateError::Expired { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_nobody_sets_costs_no_renewal() {
    let scene = Scene::new();
    scene.certificates.certificate(&web()).await.unwrap();
    sleep(20 * MINUTE).await;
    assert_eq!(scene.calls(), 1);
}
