// SPDX-License-Identifier: Apache-2.0
//! Tunnels shared by the connections of one worker and pod, each tunnel by those with the same two ends.
//!
//! ```text
//!   open ─► a tunnel of this key with room? ── yes ──────────────► CONNECT ─► stream
//!              │ no                              ▲                    │ tunnel was dead, nothing delivered:
//!              ├─ one is being made: wait ───────┤                    └─ once more
//!              └─ make one (others wait for it) ─┘
//! ```
//!
//! The map's lock is only held for look-ups, never while waiting.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use identity::CertificateSource;
use parking_lot::Mutex;
use spiffe::SpiffeId;
use tokio::sync::watch;

use crate::client::{self, Checkout, Dial, Lease, RequestError, Tunnel, TunnelInfo};
use crate::config::Config;
use crate::error::{OpenError, TunnelError};
use crate::stream::Stream;
use crate::wire::ConnectRequest;

/// How often a stream that the peer did not take is offered to another tunnel.
const MAX_REFUSALS: usize = 3;

/// The two ends of a tunnel. Connections share one only if all of it is equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// On whose behalf the tunnel is opened; its certificate is shown to the peer.
    pub source: SpiffeId,
    /// Who the peer may be.
    pub destination: Arc<[SpiffeId]>,
    /// Where the peer listens.
    pub address: SocketAddr,
    /// The address of the connections' source, which the tunnel is dialled from.
    pub source_ip: IpAddr,
}

/// Opens streams, over tunnels that it keeps. Cloning shares them; when the last clone is dropped, each tunnel
/// closes as soon as its last stream has ended.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    config: Config,
    certificates: Arc<dyn CertificateSource>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<PoolKey, Entry>,
    closed: bool,
}

#[derive(Default)]
struct Entry {
    tunnels: Vec<Arc<Tunnel>>,
    /// Present while one is being made. Its value is the error, should making it fail; that it closes without one
    /// means "look again".
    making: Option<watch::Receiver<Option<OpenError>>>,
}

enum Step {
    Use(Lease),
    Wait(watch::Receiver<Option<OpenError>>),
    Make(Making),
}

impl Pool {
    /// An empty pool. Its tunnels run on the runtime in which they are opened.
    pub fn new(config: Config, certificates: Arc<dyn CertificateSource>) -> Self {
        Self(Arc::new(Inner {
            config,
            certificates,
            entries: Mutex::default(),
        }))
    }

    /// Opens a stream to where `request` says, over a tunnel between the two ends of `key`.
    ///
    /// A kept tunnel that proves dead before the peer's answer is replaced, once: no byte of the connection has been
    /// delivered by then.
    ///
    /// # Errors
    /// Each names the party or step at fault. Connections that waited for the same tunnel share its error.
    pub async fn open(
        &self,
        key: &PoolKey,
        dial: &dyn Dial,
        request: ConnectRequest,
    ) -> Result<(Stream, TunnelInfo), OpenError> {
        let authority = || -> Arc<str> { request.authority.to_string().into() };
        let mut replaced = false;
        let mut refusals = 0;
        loop {
            let lease = self.lease(key, dial).await?;
            let tunnel = Arc::clone(&lease.tunnel);
            let reused = lease.reused;
            let http = request.to_http().map_err(|error| OpenError::Request {
                authority: authority(),
                reason: error.to_string().into(),
            })?;
            let error = match lease.request(http, &self.0.config).await {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            match error {
                RequestError::Refused(status) => {
                    return Err(OpenError::Refused {
                        address: key.address,
                        authority: authority(),
                        status: status.as_u16(),
                    });
                }
                RequestError::TimedOut => {
                    return Err(OpenError::ResponseTimeout {
                        address: key.address,
                        authority: authority(),
                        after: self.0.config.response_timeout,
                    });
                }
                RequestError::Tunnel(error) => {
                    if error.is_fatal_to_tunnel() {
                        tunnel.retire();
                        if reused && !replaced {
                            replaced = true;
                            continue;
                        }
                    } else if error.was_not_processed() && refusals < MAX_REFUSALS {
                        // The peer's limit of streams is known by now. One that goes on refusing is no use.
                        if refusals > 0 {
                            tunnel.retire();
                        }
                        refusals += 1;
                        continue;
                    }
                    return Err(OpenError::Tunnel {
                        address: key.address,
                        source: error,
                    });
                }
            }
        }
    }

    /// Opens nothing more. Tunnels close when their last stream has ended, idle ones now.
    pub fn close(&self) {
        for tunnel in self.0.entries.lock().close() {
            tunnel.retire();
        }
    }

    /// Opens nothing more and cuts every tunnel with its streams, at once.
    pub fn abort(&self) {
        for tunnel in self.0.entries.lock().close() {
            tunnel.abort();
        }
    }

    /// How many tunnels are kept now.
    pub fn tunnels(&self) -> usize {
        self.0.entries.lock().tunnels().count()
    }

    /// How many streams the kept tunnels carry now.
    pub fn streams(&self) -> usize {
        self.0.entries.lock().tunnels().map(|t| t.streams()).sum()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn certificates(&self) -> &dyn CertificateSource {
        &*self.0.certificates
    }

    async fn lease(&self, key: &PoolKey, dial: &dyn Dial) -> Result<Lease, OpenError> {
        loop {
            match self.step(key)? {
                Step::Use(lease) => return Ok(lease),
                Step::Wait(mut making) => {
                    if let Ok(outcome) = making.wait_for(Option::is_some).await
                        && let Some(error) = &*outcome
                    {
                        return Err(error.clone());
                    }
                }
                // Boxed: rare, and far larger than the rest.
                Step::Make(making) => return Box::pin(self.make(making, dial)).await,
            }
        }
    }

    fn step(&self, key: &PoolKey) -> Result<Step, OpenError> {
        let mut entries = self.0.entries.lock();
        if entries.closed {
            return Err(OpenError::PoolClosed);
        }
        if !entries.by_key.contains_key(key) {
            entries.by_key.insert(key.clone(), Entry::default());
        }
        let entry = entries
            .by_key
            .get_mut(key)
            .expect("broken invariant: the entry was inserted above");
        let mut found = None;
        entry.tunnels.retain(|tunnel| {
            if found.is_some() {
                return true;
            }
            match tunnel.checkout() {
                Checkout::Ready(lease) => found = Some(lease),
                Checkout::Full => {}
                Checkout::Dead => return false,
            }
            true
        });
        if let Some(lease) = found {
            return Ok(Step::Use(lease));
        }
        if let Some(making) = &entry.making {
            return Ok(Step::Wait(making.clone()));
        }
        let (sender, receiver) = watch::channel(None);
        entry.making = Some(receiver);
        Ok(Step::Make(Making {
            pool: Arc::downgrade(&self.0),
            key: key.clone(),
            sender,
        }))
    }

    async fn make(&self, making: Making, dial: &dyn Dial) -> Result<Lease, OpenError> {
        let Inner {
            config,
            certificates,
            ..
        } = &*self.0;
        let connected = match client::connect(&making.key, dial, &**certificates, config).await {
            Ok(connected) => connected,
            Err(error) => {
                making.fail(error.clone());
                return Err(error);
            }
        };
        let tunnel = connected.tunnel;
        let key = making.key.clone();
        let pool = Arc::downgrade(&self.0);
        let forgotten = Arc::clone(&tunnel);
        let driver = connected.driver;
        tokio::spawn(async move {
            let peer = key.address;
            match driver.await {
                Ok(()) => tracing::debug!(%peer, "tunnel closed"),
                Err(error) => tracing::debug!(%peer, %error, "tunnel ended"),
            }
            forgotten.retire();
            if let Some(pool) = pool.upgrade() {
                pool.entries.lock().forget(&key, &forgotten);
            }
        });
        self.keep(&making.key, tunnel)
    }

    /// Keeps a new tunnel and takes the first place in it.
    fn keep(&self, key: &PoolKey, tunnel: Arc<Tunnel>) -> Result<Lease, OpenError> {
        let mut entries = self.0.entries.lock();
        if entries.closed {
            tunnel.retire();
            return Err(OpenError::PoolClosed);
        }
        let lease = match tunnel.checkout() {
            Checkout::Ready(lease) => lease,
            Checkout::Full | Checkout::Dead => {
                return Err(OpenError::Tunnel {
                    address: key.address,
                    source: TunnelError::closed(),
                });
            }
        };
        let evicted = entries.make_room(self.0.config.pool_max_tunnels);
        entries
            .by_key
            .entry(key.clone())
            .or_default()
            .tunnels
            .push(tunnel);
        drop(entries);
        for tunnel in evicted {
            tunnel.retire();
        }
        Ok(lease)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("tunnels", &self.tunnels())
            .field("streams", &self.streams())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for tunnel in self.entries.get_mut().close() {
            tunnel.retire();
        }
    }
}

impl Entries {
    fn tunnels(&self) -> impl Iterator<Item = &Arc<Tunnel>> {
        self.by_key.values().flat_map(|entry| &entry.tunnels)
    }

    fn close(&mut self) -> Vec<Arc<Tunnel>> {
        self.closed = true;
        let entries = std::mem::take(&mut self.by_key);
        entries.into_values().flat_map(|e| e.tunnels).collect()
    }

    /// Takes out the least useful tunnels until there is room for one more.
    fn make_room(&mut self, most: usize) -> Vec<Arc<Tunnel>> {
        let mut evicted = Vec::new();
        while self.tunnels().count() >= most.max(1) {
            let least = self
                .by_key
                .iter()
                .flat_map(|(key, entry)| entry.tunnels.iter().map(move |tunnel| (key, tunnel)))
                .min_by_key(|(_, tunnel)| tunnel.usefulness())
                .map(|(key, tunnel)| (key.clone(), Arc::clone(tunnel)));
            let Some((key, tunnel)) = least else {
                break;
            };
            self.forget(&key, &tunnel);
            evicted.push(tunnel);
        }
        evicted
    }

    fn forget(&mut self, key: &PoolKey, tunnel: &Arc<Tunnel>) {
        if let Some(entry) = self.by_key.get_mut(key) {
            entry.tunnels.retain(|kept| !Arc::ptr_eq(kept, tunnel));
        }
        self.drop_if_empty(key);
    }

    fn drop_if_empty(&mut self, key: &PoolKey) {
        if let Some(entry) = self.by_key.get(key)
            && entry.tunnels.is_empty()
            && entry.making.is_none()
        {
            self.by_key.remove(key);
        }
    }
}

/// The right to make a tunnel for a key. However it ends, by success, error or because its connection gave up, those
/// who wait are woken: with the error, or to look again.
struct Making {
    pool: Weak<Inner>,
    key: PoolKey,
    sender: watch::Sender<Option<OpenError>>,
}

impl Making {
    fn fail(self, error: OpenError) {
        self.sender.send_replace(Some(error));
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            let mut entries = pool.entries.lock();
            if let Some(entry) = entries.by_key.get_mut(&self.key) {
                entry.making = None;
            }
            entries.drop_if_empty(&self.key);
        }
    }
}
