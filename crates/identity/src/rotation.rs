// SPDX-License-Identifier: Apache-2.0
//! One certificate per identity, renewed before it expires.
//!
//! In: identities that somebody needs. Out: their current certificates. One task
//! per identity fetches, publishes, sleeps and fetches again; callers on any
//! thread read what it published last, or wait for its first word.
//!
//! ```text
//!            first answer                      renewal answered
//! Initializing ────────► Available ◄──────────────────────┐
//!      │                     │  half-life: renew ─────────┤
//!      │ failed              │  failed, still valid: keep ┘
//!      ▼                     ▼  failed, expired
//! Unavailable ◄──────────────┘     (backs off, tries on, may become Available)
//! ```

mod clock;
mod keeper;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use spiffe::SpiffeId;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;

use self::keeper::{Fetching, Keeper};
use crate::{BoxFuture, CaClient, CertificateError, Revocation, WorkloadCertificate};

/// Fetches kept free for connections that wait, out of [`Config::concurrency`].
const RESERVED_FOR_WAITING: usize = 2;

/// How long to spread fetches over after the clock was set: peers may refuse what is held by now.
const AFTER_CLOCK_STEP: Duration = Duration::from_secs(1);

/// How certificates are fetched.
#[derive(Debug, Clone)]
pub struct Config {
    /// The validity asked for.
    pub ttl: Duration,
    /// Fetches at the same time.
    pub concurrency: usize,
    /// How long the authority may take to answer.
    pub fetch_timeout: Duration,
    /// The pause after a first failure; it doubles with each further one.
    pub backoff_min: Duration,
    /// The longest pause after failures.
    pub backoff_max: Duration,
    /// The longest pause after failures while connections are refused for want of the certificate.
    pub pause_if_needed: Duration,
    /// What peers of the workloads are checked against beyond their roots.
    pub revocation: Option<Revocation>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(24 * 60 * 60),
            concurrency: 8,
            fetch_timeout: Duration::from_secs(10),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            pause_if_needed: Duration::from_secs(5),
            revocation: None,
        }
    }
}

/// Where certificates come from.
pub trait CertificateSource: Send + Sync {
    /// The current certificate of an identity.
    fn certificate(
        &self,
        id: &SpiffeId,
    ) -> BoxFuture<'_, Result<Arc<WorkloadCertificate>, CertificateError>>;
}

/// A set of certificates that never changes.
#[derive(Debug, Default)]
pub struct FixedCertificates(HashMap<SpiffeId, Arc<WorkloadCertificate>>);

impl FromIterator<Arc<WorkloadCertificate>> for FixedCertificates {
    fn from_iter<I: IntoIterator<Item = Arc<WorkloadCertificate>>>(certificates: I) -> Self {
        let by_identity = certificates
            .into_iter()
            .map(|certificate| (certificate.identity().clone(), certificate));
        Self(by_identity.collect())
    }
}

impl CertificateSource for FixedCertificates {
    fn certificate(
        &self,
        id: &SpiffeId,
    ) -> BoxFuture<'_, Result<Arc<WorkloadCertificate>, CertificateError>> {
        let found = self
            .0
            .get(id)
            .cloned()
            .ok_or_else(|| CertificateError::Unknown(id.clone()));
        Box::pin(std::future::ready(found))
    }
}

/// What is known of one identity's certificate.
#[derive(Debug, Clone)]
pub enum CertificateState {
    /// The first fetch is under way.
    Initializing,
    /// There is one.
    Available {
        /// The newest that was had.
        certificate: Arc<WorkloadCertificate>,
        /// Why it could not be renewed, if the last attempt failed.
        renewal_failure: Option<CertificateError>,
    },
    /// There is none, and this is why.
    Unavailable(CertificateError),
}

/// An identity and what is known of its certificate.
#[derive(Debug, Clone)]
pub struct CertificateStatus {
    /// Whose.
    pub identity: SpiffeId,
    /// What is known.
    pub state: CertificateState,
}

/// The time of day; handed in, so that tests can turn the clock.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The certificates of a node's workloads. Clones share them.
#[derive(Clone)]
pub struct Certificates {
    fetching: Arc<Fetching>,
    runtime: Handle,
    entries: Arc<RwLock<HashMap<SpiffeId, Entry>>>,
}

/// One identity; dropping it ends its task and with it the key's last holder here.
struct Entry {
    state: watch::Receiver<CertificateState>,
    waiting: Arc<Notify>,
    /// Asks for a fetch before its time, within that long.
    renew: watch::Sender<Duration>,
    task: AbortHandle,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Certificates {
    /// An empty set; fetches run on `runtime`, whoever asks.
    pub fn new(ca: Arc<dyn CaClient>, config: Config, runtime: Handle) -> Self {
        Self::with_clock(ca, config, runtime, Arc::new(SystemTime::now))
    }

    /// Fetches all certificates anew that are held now, within `spread`: the roots have changed, or one was revoked.
    /// What is held stays in use until then.
    pub fn renew_all(&self, spread: Duration) {
        for entry in self.entries.read().values() {
            entry.renew.send_replace(spread);
        }
    }

    /// As [`Self::renew_all`], for one identity and at once.
    pub fn renew(&self, id: &SpiffeId) {
        if let Some(entry) = self.entries.read().get(id) {
            entry.renew.send_replace(Duration::ZERO);
        }
    }

    /// As [`Self::new`], by another clock.
    pub fn with_clock(
        ca: Arc<dyn CaClient>,
        config: Config,
        runtime: Handle,
        clock: Clock,
    ) -> Self {
        let slots = config.concurrency.max(1);
        let background = slots.saturating_sub(RESERVED_FOR_WAITING).max(1);
        let certificates = Self {
            fetching: Arc::new(Fetching {
                ca,
                config,
                clock,
                slots: Arc::new(Semaphore::new(slots)),
                background_slots: Arc::new(Semaphore::new(background)),
            }),
            runtime,
            entries: Arc::default(),
        };
        certificates.watch_clock();
        certificates
    }

    /// Fetches everything anew once somebody has set the clock: when what is held runs out, and whether it is valid
    /// at all, was reckoned by the other time.
    fn watch_clock(&self) {
        let clock = Arc::clone(&self.fetching.clock);
        let spread = self.spread(AFTER_CLOCK_STEP);
        let (fetching, entries) = (
            Arc::downgrade(&self.fetching),
            Arc::downgrade(&self.entries),
        );
        let runtime = self.runtime.clone();
        self.runtime.spawn(async move {
            let mut steps = clock::Steps::new(clock());
            loop {
                tokio::time::sleep(clock::LOOK_EVERY).await;
                let (Some(fetching), Some(entries)) = (fetching.upgrade(), entries.upgrade())
                else {
                    return;
                };
                if let Some(step) = steps.observe(clock()) {
                    tracing::warn!(%step, "the clock was set: fetching every certificate anew");
                    let certificates = Self {
                        fetching,
                        runtime: runtime.clone(),
                        entries,
                    };
                    certificates.renew_all(spread);
                }
            }
        });
    }

    /// How long to spread fetches over that fall due at once: so long, or, where certificates live shortly, as long as
    /// makes no more of a rush than ten times the usual.
    pub fn spread(&self, most: Duration) -> Duration {
        most.min(self.fetching.config.ttl / 20)
    }

    /// The current certificate of `id`, fetched now if nobody asked before.
    ///
    /// Callers that ask at the same time share one fetch. While an identity is
    /// unavailable, callers learn why at once instead of waiting for the next try,
    /// which their asking brings closer.
    pub async fn certificate(
        &self,
        id: &SpiffeId,
    ) -> Result<Arc<WorkloadCertificate>, CertificateError> {
        let mut state = self.watch(id, Demand::Waiting);
        let settled = state
            .wait_for(|state| self.is_settled(state))
            .await
            .map_err(|_| CertificateError::Forgotten(id.clone()))?;
        let refusal = match &*settled {
            CertificateState::Available {
                certificate,
                renewal_failure,
            } => {
                if certificate.not_after() > (self.fetching.clock)() {
                    return Ok(Arc::clone(certificate));
                }
                CertificateError::Expired {
                    identity: id.clone(),
                    reason: match renewal_failure {
                        Some(failure) => failure.to_string(),
                        None => "renewal is under way".into(),
                    },
                }
            }
            CertificateState::Unavailable(error) => error.clone(),
            CertificateState::Initializing => CertificateError::Forgotten(id.clone()),
        };
        drop(settled);
        if let Some(entry) = self.entries.read().get(id) {
            entry.waiting.notify_one();
        }
        Err(refusal)
    }

    /// Whether there is an answer for those who wait. A certificate that ran out between two renewals, as when the clock
    /// was set, is none: its successor, or why there is none, is on its way.
    fn is_settled(&self, state: &CertificateState) -> bool {
        match state {
            CertificateState::Initializing => false,
            CertificateState::Available {
                certificate,
                renewal_failure,
            } => renewal_failure.is_some() || certificate.not_after() > (self.fetching.clock)(),
            CertificateState::Unavailable(_) => true,
        }
    }

    /// The current certificate of `id` if it is at hand and has not expired; waits for nothing and fetches nothing.
    pub fn at_hand(&self, id: &SpiffeId) -> Option<Arc<WorkloadCertificate>> {
        let entries = self.entries.read();
        match &*entries.get(id)?.state.borrow() {
            CertificateState::Available { certificate, .. }
                if certificate.not_after() > (self.fetching.clock)() =>
            {
                Some(Arc::clone(certificate))
            }
            _ => None,
        }
    }

    /// Fetches ahead of need; a connection that waits goes first.
    pub fn prefetch(&self, id: SpiffeId) {
        drop(self.watch(&id, Demand::Prefetch));
    }

    /// Drops an identity's key and certificate; a fetch under way is abandoned.
    pub fn forget(&self, id: &SpiffeId) {
        if self.entries.write().remove(id).is_some() {
            tracing::debug!(identity = %id, "certificate forgotten");
        }
    }

    /// Every identity and its certificate, ordered by identity.
    pub fn states(&self) -> Vec<CertificateStatus> {
        let mut states: Vec<_> = self
            .entries
            .read()
            .iter()
            .map(|(identity, entry)| CertificateStatus {
                identity: identity.clone(),
                state: entry.state.borrow().clone(),
            })
            .collect();
        states.sort_by(|a, b| a.identity.cmp(&b.identity));
        states
    }

    fn watch(&self, id: &SpiffeId, demand: Demand) -> watch::Receiver<CertificateState> {
        if let Some(entry) = self.entries.read().get(id).filter(|entry| entry.alive()) {
            return entry.watch(demand);
        }
        let mut entries = self.entries.write();
        // Somebody may have been quicker between the two locks.
        if let Some(entry) = entries.get(id).filter(|entry| entry.alive()) {
            return entry.watch(demand);
        }
        let entry = self.start(id.clone());
        let state = entry.watch(demand);
        entries.insert(id.clone(), entry);
        state
    }

    fn start(&self, identity: SpiffeId) -> Entry {
        let (publish, state) = watch::channel(CertificateState::Initializing);
        let waiting = Arc::new(Notify::new());
        let (renew, renewal) = watch::channel(Duration::ZERO);
        let keeper = Keeper {
            identity,
            fetching: Arc::clone(&self.fetching),
            waiting: Arc::clone(&waiting),
            renewal,
            publish,
        };
        let task = self.runtime.spawn(keeper.run()).abort_handle();
        Entry {
            state,
            waiting,
            renew,
            task,
        }
    }
}

impl CertificateSource for Certificates {
    fn certificate(
        &self,
        id: &SpiffeId,
    ) -> BoxFuture<'_, Result<Arc<WorkloadCertificate>, CertificateError>> {
        let id = id.clone();
        Box::pin(async move { Self::certificate(self, &id).await })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// Nobody waits yet.
    Prefetch,
    /// A connection waits.
    Waiting,
}

impl Entry {
    fn watch(&self, demand: Demand) -> watch::Receiver<CertificateState> {
        if demand == Demand::Waiting
            && matches!(*self.state.borrow(), CertificateState::Initializing)
        {
            self.waiting.notify_one();
        }
        self.state.clone()
    }

    /// False once its task is gone, which only a shut-down runtime or a panic brings about.
    fn alive(&self) -> bool {
        self.state.has_changed().is_ok()
    }
}
