// SPDX-License-Identifier: Apache-2.0
//! One pod's listeners and what its connections share.
//!
//! In: a pod to serve. Out: its listeners inside its network namespace, whose connections run on the workers until they
//! end, the pod goes away or the process drains. Every socket of a pod is made inside its namespace.

mod admission;
mod binding;
mod certificates;
mod connect;
mod cutting;
mod entrance;
mod local_pods;
mod permission;
mod proxies;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use capture::Netns;
use futures_util::FutureExt as _;
use futures_util::future::Either;
use hbone::BoxFuture;
use identity::{CertificateError, CertificateSource, Certificates, WorkloadCertificate};
use mesh::workload::TunnelProtocol;
use mesh::{Recent, Workload};
use ops::serve::Arrivals;
use ops::shutdown::{DrainSignal, Shutdown};
use parking_lot::Mutex;
use spiffe::SpiffeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument as _, debug, info_span, warn};

use self::admission::Admitted;
use self::binding::Held;
use self::certificates::Patient;
pub use self::connect::{CONNECT_TIMEOUT, OtherEnd, SeenSource};
use self::cutting::UntilCut;
use self::entrance::Entrance;
pub use self::local_pods::LocalPods;
pub use self::proxies::{PodState, Proxies, Remaining};
use crate::config::{Baggage, DecisionLog, InPod, SameNode, Socks5, Tcp};
use crate::connections::{Connections, InboundFacts};
use crate::dns::{self, Resolver};
use crate::endpoints::Endpoints;
use crate::failure::Failure;
use crate::habits::Habits;
use crate::handover::Sockets;
use crate::hostnames::Hostnames;
use crate::limits::{Gates, Limits};
use crate::mesh_state::MeshState;
use crate::on_demand::OnDemand;
use crate::pods::{Pod, PodInfo, PodUid};
use crate::record::{End, Labels, Recorder, Reporter, Security};
use crate::relaying::{POD_GONE, original_destination};
use crate::route::{self, OwnPorts};
use crate::{inbound, outbound, passthrough, socks5};
use ops::workers::{Expected, Place, WorkerId, Workers};

/// How long a pod that is removed may take to tell its peers. Its runtime waits for it.
const FAREWELL: Duration = Duration::from_millis(250);
/// A pod that starts is here before the control plane has told of it, and its first connections wait so long for that
/// and for its certificate. From then on it is as any other.
const YOUTH: Duration = Duration::from_secs(15);

/// What all pods share.
pub struct Shared {
    pub mesh: Arc<MeshState>,
    pub certificates: Certificates,
    pub recorder: Arc<Recorder>,
    pub endpoints: Arc<Endpoints>,
    pub workers: Workers,
    /// None: pods' DNS is not served.
    pub resolver: Option<Arc<Resolver>>,
    pub hostnames: Hostnames,
    /// None where this node follows the whole mesh.
    pub on_demand: Option<OnDemand>,
    /// Closed while another process accepts in this one's place.
    pub gate: Gate,
    /// All that are served, to be found by each other.
    pub local: LocalPods,
    pub settings: Settings,
}

/// Whether listeners accept. Those that are open stay so, and connections wait in their queues.
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(true))
    }
}

impl Gate {
    pub fn set_open(&self, open: bool) {
        self.0.send_replace(open);
    }
}

pub struct Settings {
    pub network: Arc<str>,
    pub inpod: InPod,
    pub same_node: SameNode,
    pub socks5: Socks5,
    pub tcp: Tcp,
    pub hbone: hbone::Config,
    pub baggage: Baggage,
    pub decisions: DecisionLog,
    pub limits: Limits,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on port {port} inside the pod: {error}")]
    Listen { port: u16, error: io::Error },
    #[error("cannot read the addresses of the pod: {0}")]
    Addresses(io::Error),
    #[error("cannot speak to the pod from its clients' addresses: {0}")]
    Source(io::Error),
}

/// A connection as it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// With where the pod wants to go.
    Outbound(SocketAddr),
    Hbone,
    /// With the address that the client meant.
    Plaintext(SocketAddr),
    Socks5,
}

impl Taken {
    fn reporter(self) -> Reporter {
        match self {
            Self::Outbound(_) | Self::Socks5 => Reporter::Source,
            Self::Hbone | Self::Plaintext(_) => Reporter::Destination,
        }
    }
}

/// A pod that is served.
pub struct PodProxy {
    pub uid: PodUid,
    pub info: PodInfo,
    pub netns: Netns,
    held: Held,
    /// Since when it is served here.
    started: Instant,
    certificates: Arc<Patient>,
    pub shared: Arc<Shared>,
    pub connections: Arc<Connections>,
    pub gates: Gates,
    /// Which address the application sees.
    pub source: SeenSource,
    pools: Box<[OnceLock<hbone::Pool>]>,
    /// How much connections to a destination have carried.
    pub habits: Habits,
    /// What was decided on lately.
    recent: Mutex<Recent<InboundFacts>>,
    /// For as long as they are accepted from.
    listeners: Mutex<Vec<(Entrance, Arc<TcpListener>)>>,
    home: WorkerId,
    drain: Shutdown,
    cut: CancellationToken,
    tasks: TaskTracker,
    /// The pod is on its way out of the mesh.
    leaving: AtomicBool,
    /// Since when the pod's workload names a policy that is not known.
    policy_missing_since: Mutex<Option<Instant>>,
}

impl PodProxy {
    /// Serves a pod, with the listeners that another process has opened for it where it left any.
    fn start(
        pod: &Pod<Netns>,
        shared: &Arc<Shared>,
        mut inherited: Sockets,
    ) -> Result<Arc<Self>, StartError> {
        let held = Held::read(&pod.netns).map_err(StartError::Addresses)?;
        let started = Instant::now();
        let dns = match &shared.resolver {
            Some(resolver) => Some((resolver, listen_for_dns(pod, shared, resolver)?)),
            None => None,
        };
        let home = shared.workers.assign_home();
        let mut listeners = Vec::new();
        let source = SeenSource::possible(&pod.netns, &shared.settings.inpod)?;
        for &entrance in Entrance::all(shared.settings.socks5) {
            let listener = match inherited.take(entrance.name()) {
                Some(socket) => entrance::inherit(socket),
                None => entrance.listen(&pod.netns, &shared.settings.inpod),
            };
            let listener = listener.and_then(|listener| {
                let accepted = entrance.accepted(&shared.settings.tcp);
                capture::socket::set_accepted(&listener, accepted)?;
                let _on_its_worker = shared.workers.enter(home);
                TcpListener::from_std(listener)
            });
            let listener = listener.map_err(|error| StartError::Listen {
                port: entrance.port(),
                error,
            })?;
            listeners.push((entrance, Arc::new(listener)));
        }
        let workers = shared.workers.count();
        let (drain, _) = ops::shutdown::channel();
        let proxy = Arc::new(Self {
            uid: pod.uid.clone(),
            info: pod.info.clone(),
            netns: pod.netns.clone(),
            held,
            started,
            certificates: Arc::new(Patient::new(shared.certificates.clone(), started + YOUTH)),
            connections: Connections::new(workers),
            gates: Gates::new(shared.settings.limits),
            source,
            pools: (0..workers).map(|_| OnceLock::new()).collect(),
            habits: Habits::default(),
            recent: Mutex::default(),
            listeners: Mutex::new(listeners.clone()),
            home,
            shared: Arc::clone(shared),
            drain,
            cut: CancellationToken::new(),
            tasks: TaskTracker::new(),
            leaving: AtomicBool::new(false),
            policy_missing_since: Mutex::new(None),
        });
        for (entrance, listener) in listeners {
            let accepting = Arc::clone(&proxy).accept(entrance, listener);
            let span = info_span!("proxy", wl = %pod.info);
            shared.workers.spawn(
                proxy.home,
                proxy.tasks.track_future(accepting.instrument(span)),
            );
        }
        if let Some((resolver, listeners)) = dns {
            dns::serve(&proxy, resolver, listeners);
        }
        Ok(proxy)
    }

    /// Runs on the home worker until the pod drains; then its port is free.
    async fn accept(self: Arc<Self>, entrance: Entrance, listener: Arc<TcpListener>) {
        let drain = self.drain.subscribe();
        let mut gate = self.shared.gate.0.subscribe();
        let mut arrivals = Arrivals::of(&listener, entrance.name());
        loop {
            let open = *gate.borrow_and_update();
            let accepted = tokio::select! {
                biased;
                () = drain.requested() => return,
                changed = gate.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                accepted = arrivals.next(), if open => accepted,
            };
            match accepted {
                Ok((socket, peer)) => self.hand_over(entrance, socket, canonical(peer)),
                Err(error) => {
                    warn!(listener = entrance.name(), %error, "listener broke");
                    return;
                }
            }
        }
    }

    /// Adds duplicates of the pod's listeners, for another process to accept from.
    fn hand_on(&self, sockets: &mut Sockets) -> io::Result<()> {
        let listeners = self.listeners.lock();
        let mut listeners = listeners.iter();
        listeners.try_for_each(|(entrance, listener)| sockets.add(entrance.name(), &**listener))
    }

    /// Gives the connection to a worker, where it lives and dies.
    fn hand_over(self: &Arc<Self>, entrance: Entrance, socket: TcpStream, peer: SocketAddr) {
        let admitted = match self.admit(entrance, peer) {
            Ok(admitted) => admitted,
            Err(full) => return self.turn_away(entrance, socket, peer, full),
        };
        let (taken, expected) = match self.taken(entrance, &socket) {
            Ok(taken) => taken,
            Err(error) => return debug!(%peer, %error, "connection ended before it was served"),
        };
        let place = self.shared.workers.place(self.home, expected);
        let proxy = Arc::clone(self);
        if place.worker == self.home {
            self.tasks
                .spawn(proxy.connection(taken, socket, peer, place, admitted));
            return;
        }
        let socket = match socket.into_std() {
            Ok(socket) => socket,
            Err(error) => return debug!(%peer, %error, "connection can't be handed over"),
        };
        let worker = place.worker;
        let connection = async move {
            match TcpStream::from_std(socket) {
                Ok(socket) => proxy.connection(taken, socket, peer, place, admitted).await,
                Err(error) => debug!(%peer, %error, "connection can't be handed over"),
            }
        };
        self.shared
            .workers
            .spawn(worker, self.tasks.track_future(connection));
    }

    /// What is known of a connection as it comes in, and how much it is expected to carry.
    fn taken(&self, entrance: Entrance, socket: &TcpStream) -> io::Result<(Taken, Expected)> {
        let wanted = || original_destination(socket).map(canonical);
        Ok(match entrance {
            Entrance::Outbound => {
                let wanted = wanted()?;
                (Taken::Outbound(wanted), self.habits.expected(wanted))
            }
            Entrance::Plaintext => {
                let wanted = wanted()?;
                (Taken::Plaintext(wanted), self.habits.expected(wanted))
            }
            Entrance::Hbone => (Taken::Hbone, Expected::Much),
            Entrance::Socks5 => (Taken::Socks5, Expected::Little),
        })
    }

    // Not an async function: it would have room for what it is given beside what becomes of that.
    fn connection(
        self: Arc<Self>,
        taken: Taken,
        socket: TcpStream,
        peer: SocketAddr,
        place: Place,
        admitted: Admitted,
    ) -> impl Future<Output = ()> + Send {
        let Admitted {
            _connection,
            half_open,
        } = admitted;
        let counted = self.shared.recorder.socket(taken.reporter());
        let cut = self.cut.clone();
        let worker = place.worker;
        let served = match taken {
            Taken::Outbound(to) => Either::Left(outbound::serve(self, worker, socket, peer, to)),
            // Boxed: few or large, they would make the others as large.
            Taken::Plaintext(to) => {
                Either::Right(Box::pin(passthrough::serve(self, worker, socket, peer, to))
                    as BoxFuture<'static, _>)
            }
            Taken::Hbone => {
                let served = inbound::serve(self, worker, socket, peer, half_open);
                Either::Right(Box::pin(served) as _)
            }
            Taken::Socks5 => {
                Either::Right(Box::pin(socks5::serve(self, worker, socket, peer)) as _)
            }
        };
        UntilCut::new(cut, served).map(move |()| drop((counted, _connection, place)))
    }

    /// Tunnels from this pod; each worker has its own, so that a tunnel never leaves it.
    pub fn pool(&self, worker: WorkerId) -> &hbone::Pool {
        self.pools[worker.index()].get_or_init(|| {
            let certificates: Arc<dyn CertificateSource> = Arc::clone(&self.certificates) as _;
            hbone::Pool::new(self.shared.settings.hbone.clone(), certificates)
        })
    }

    /// The certificate of an identity that this pod is proven to have.
    pub async fn certificate(
        &self,
        identity: &SpiffeId,
    ) -> Result<Arc<WorkloadCertificate>, CertificateError> {
        self.certificates.certificate(identity).await
    }

    /// Ports inside the pod that nothing may be carried to.
    pub fn own_ports(&self) -> OwnPorts {
        OwnPorts::with(self.shared.settings.socks5)
    }

    pub fn drain_signal(&self) -> DrainSignal {
        self.drain.subscribe()
    }

    /// Runs a task on the home worker: a drain waits for it, a cut ends it.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let task = self.until_cut(work);
        self.shared
            .workers
            .spawn(self.home, self.tasks.track_future(task));
    }

    /// Does the work unless the pod's connections are cut meanwhile.
    pub fn until_cut<F: Future<Output = ()>>(&self, work: F) -> UntilCut<F> {
        UntilCut::new(self.cut.clone(), work)
    }

    /// Whether it takes new connections.
    pub fn is_accepting(&self) -> bool {
        !self.tasks.is_closed()
    }

    /// Waits until the pod's connections are cut.
    pub async fn cut(&self) {
        self.cut.cancelled().await;
    }

    /// Keeps a drain waiting for as long as it is held.
    pub fn hold(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// Whether the node agent lets the pod go.
    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// True if that is news.
    fn set_leaving(&self, leaving: bool) -> bool {
        self.leaving.swap(leaving, Ordering::Relaxed) != leaving
    }

    /// Whether peers are told to reach the pod without a tunnel, as far as the control plane has said here.
    fn is_plain(&self) -> bool {
        self.workload()
            .map_or(true, |workload| workload.protocol != TunnelProtocol::Hbone)
    }

    /// Asks, for telemetry's sake, who speaks to this pod and which services it backs; waits for nothing.
    pub fn wonder_at(&self, workload: &Workload, source: IpAddr) {
        if let Some(on_demand) = &self.shared.on_demand {
            let network = &*self.shared.settings.network;
            let names = |store: &mesh::Store| route::needs::names(store, workload, source, network);
            on_demand.wonder(&self.shared.mesh, names);
        }
    }

    /// A connection that ended before its route or its other end was known.
    pub fn refuse_early(
        &self,
        reporter: Reporter,
        src: SocketAddr,
        dst: SocketAddr,
        failure: &Failure,
    ) {
        let labels = self.early_labels(reporter, None);
        let recorder = &self.shared.recorder;
        recorder.refuse_early(&labels, src, dst, failure);
    }

    /// As [`Self::refuse_early`], of one that is not told: too many alike were.
    pub fn count_early(&self, reporter: Reporter, failure: &Failure) {
        let labels = self.early_labels(reporter, None);
        self.shared.recorder.count_refusal(&labels, failure);
    }

    /// As [`Self::refuse_early`], of a stream in a tunnel: who speaks is proven.
    pub fn refuse_stream(
        &self,
        identity: &SpiffeId,
        src: SocketAddr,
        dst: SocketAddr,
        failure: &Failure,
    ) {
        let proven = Some((identity, Security::MutualTls));
        let labels = self.early_labels(Reporter::Destination, proven);
        let recorder = &self.shared.recorder;
        recorder.refuse_early(&labels, src, dst, failure);
    }

    /// This pod at its end, and of the other one what is certain, and by what.
    fn early_labels(&self, reporter: Reporter, proven: Option<(&SpiffeId, Security)>) -> Labels {
        let own = self
            .workload()
            .map(|workload| End::of(&workload))
            .unwrap_or_else(|_| End {
                pod: self.info.name.clone(),
                namespace: self.info.namespace.clone(),
                ..End::default()
            });
        let (source, destination) = match reporter {
            Reporter::Source => (own, End::default()),
            Reporter::Destination => {
                let identity = proven.map(|(identity, _)| identity.clone());
                (End::default().with_principal(identity), own)
            }
        };
        Labels {
            reporter,
            source,
            destination,
            service: None,
            security: proven.map_or(Security::Unknown, |(_, security)| security),
        }
    }

    /// Ends what is open so that the other ends hear of it, as long as there is a network to tell them by: connections
    /// are reset with a reason, tunnels say good-bye. What takes longer than a moment is cut.
    pub async fn let_go(&self) {
        self.stop_accepting();
        self.connections.stop_all(&Arc::from(POD_GONE));
        self.close_pools();
        if timeout(FAREWELL, self.tasks.wait()).await.is_err() {
            debug!(pod = %self.info, "cutting what did not end in time");
        }
        self.cut_open();
    }

    /// Opens no more tunnels and streams; what is open stays.
    fn close_pools(&self) {
        for pool in self.pools.iter().filter_map(OnceLock::get) {
            pool.close();
        }
    }

    fn stop_accepting(&self) {
        self.drain.start();
        self.listeners.lock().clear();
        self.tasks.close();
    }

    fn cut_open(&self) {
        self.cut.cancel();
        for pool in self.pools.iter().filter_map(OnceLock::get) {
            pool.abort();
        }
    }
}

fn listen_for_dns(
    pod: &Pod<Netns>,
    shared: &Shared,
    resolver: &Resolver,
) -> Result<dns::Listeners, StartError> {
    let listen = resolver.listen_at();
    dns::listen(&pod.netns, listen, &shared.settings.inpod).map_err(|error| StartError::Listen {
        port: listen.port(),
        error,
    })
}

/// Closes with RST, so that the client sees a failure and not an empty answer.
pub fn reset(socket: TcpStream) {
    let _ = socket.set_zero_linger();
}

pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
