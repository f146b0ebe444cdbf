// SPDX-License-Identifier: Apache-2.0
//! Builds the parts and joins them; then waits for the end and brings it about.
//!
//! ```text
//!  main thread: xDS, certificates, accept, admin, metrics      proxy-0 … proxy-n: connections
//!
//!  control plane ─► xds_handlers ─► state ──────────────► destination, authorize, endpoints
//!  CA            ─► certificates ───────────────────────► tunnels
//!                                    15008 ─► listener ─► connection ─► tcp, http ─► upstream ─► record
//! ```

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use identity::{
    AuthenticatedChannel, Certificates, ControlPlane, ControlPlaneConfig, ControlPlaneError,
    IstioCa, TokenSource,
};
use ops::admin::Routes;
use ops::health::{Readiness, ReadyHandle};
use ops::logging::Logs;
use ops::metrics::Metrics;
use ops::shutdown::DrainSignal;
use ops::workers::Workers;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::admin;
use crate::config::{Config, Endpoint};
use crate::listener;
use crate::node::node;
use crate::otlp;
use crate::record::Recorder;
use crate::state::State;
use crate::waypoint::{Parts, Waypoint};
use crate::xds_handlers::{Addresses, Authorizations, Services, Whole};

/// How often metric series and connections are looked for that nobody uses.
const EXPIRY_PERIOD: Duration = Duration::from_secs(30);

/// Runs until a signal or the admin port ends it.
pub async fn run(config: Config, logs: Logs) -> anyhow::Result<()> {
    let metrics = Metrics::default();
    metrics
        .install()
        .map_err(|error| anyhow!("cannot install the metrics recorder: {error}"))?;
    describe(&metrics, &config.own.istio_version);
    let readiness = Readiness::default();
    let told = readiness.register("control plane");
    let certified = readiness.register("certificate");
    let (shutdown, draining) = ops::shutdown::channel();
    // Operators can look on until the very end.
    let (admin_end, admin_drain) = ops::shutdown::channel();

    let certificates = certificates(&config)?;
    certificates.prefetch(config.own.identity.clone());
    let state = Arc::new(State::new());
    let workers = Workers::start(config.workers)?;
    workers.observe(&metrics);
    let waypoint = Arc::new(Waypoint::new(Parts {
        own: config.own.clone(),
        state: Arc::clone(&state),
        certificates: certificates.clone(),
        recorder: Recorder::new(metrics.clone(), workers.count()),
        workers,
        hbone: config.hbone.clone(),
        limits: config.limits,
        draining: draining.clone(),
    }));

    let debug = admin::routes(admin::Shown::of(&waypoint, &config), logs, shutdown.clone());
    let ports = config.ports;
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, ports.admin));
    let admin_listener = TcpListener::bind(local)
        .await
        .with_context(|| format!("cannot listen on {local}"))?;
    operate(debug, admin_listener, "admin", &admin_drain);
    let stats = Routes::new().metrics(metrics.clone());
    operate(stats, listen(ports.stats)?, "stats", &admin_drain);
    let ready = Routes::new().readiness(readiness.clone());
    operate(ready, listen(ports.readiness)?, "readiness", &admin_drain);

    let synced = follow_control_plane(&config, &state)?;
    let worker = waypoint.workers.assign_home();
    let exporting = otlp::run(&waypoint, worker);
    waypoint.workers.spawn(worker, exporting);
    tokio::spawn(expire(Arc::clone(&waypoint), metrics));
    tokio::spawn(follow_policy(Arc::clone(&waypoint)));
    let mut serving = tokio::spawn(serve(
        Arc::clone(&waypoint),
        synced,
        (told, certified),
        ports.hbone,
    ));
    tokio::select! {
        signal = ops::shutdown::terminated() => {
            info!(signal = signal.context("cannot listen for signals")?, "shutdown asked for by a signal");
        }
        () = draining.requested() => info!("shutdown asked for by the admin port"),
        ended = &mut serving => return ended.context("serving panicked")?,
    }
    // Named in the readiness answer, so that nobody wonders.
    let _not_ready = readiness.register("drain");
    shutdown.start();
    info!(limit = ?config.drain_deadline, "draining");
    tokio::select! {
        ended = serving => ended.context("serving panicked")??,
        () = tokio::time::sleep(config.drain_deadline) => {
            warn!(open = waypoint.connections.count(), "the time is over, what is open is cut");
        }
        signal = ops::shutdown::terminated() => {
            warn!(signal = signal.unwrap_or("unknown"), "second signal, not waiting any longer");
        }
    }
    admin_end.start();
    info!("shut down");
    Ok(())
}

/// Accepts tunnels until the drain, then waits for those that are open. Nobody is let in before there is something to
/// decide by, and an identity to serve as.
async fn serve(
    waypoint: Arc<Waypoint>,
    mut synced: watch::Receiver<bool>,
    (told, certified): (ReadyHandle, ReadyHandle),
    port: u16,
) -> anyhow::Result<()> {
    let draining = waypoint.draining.clone();
    let identity = &waypoint.own.identity;
    let prepared = async {
        let _ = synced.wait_for(|synced| *synced).await;
        told.ready();
        while let Err(error) = waypoint.certificates.certificate(identity).await {
            warn!(%identity, %error, "no certificate yet");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = prepared => {}
        () = draining.requested() => return Ok(()),
    }
    let listener = listen(port)?;
    certified.ready();
    info!(port, %identity, "serving");
    let serve = |socket, peer| listener::serve(Arc::clone(&waypoint), socket, peer);
    let limit = waypoint.limits.tunnels;
    ops::serve::serve(listener, "hbone", limit, draining, serve)
        .await
        .context("cannot accept tunnels any more")
}

/// Ends what is open and no longer allowed, at every change.
async fn follow_policy(waypoint: Arc<Waypoint>) {
    let mut changes = waypoint.state.changes();
    while changes.changed().await.is_ok() {
        changes.borrow_and_update();
        if waypoint.connections.count() == 0 {
            continue;
        }
        let stopped = waypoint.decide_again();
        if stopped > 0 {
            info!(stopped, "connections ended by a change of policy");
        }
    }
}

fn operate(routes: Routes, listener: TcpListener, name: &'static str, end: &DrainSignal) {
    let serving = routes.serve(listener, name, end.clone());
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            warn!(server = name, %error, "operators are served no longer");
        }
    });
}

/// Listens on every address, of both families where there are two.
fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let on = |socket: TcpSocket, address: SocketAddr| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(4096)
    };
    let v6 = || on(TcpSocket::new_v6()?, (Ipv6Addr::UNSPECIFIED, port).into());
    let v4 = || on(TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, port).into());
    v6().or_else(|_| v4())
        .with_context(|| format!("cannot listen on port {port}"))
}

fn describe(metrics: &Metrics, version: &str) {
    metrics.describe("istio_build", "Istio component build info");
    let build = [("component", "waypoint"), ("tag", version)];
    metrics.gauge("istio_build", &build).set(1.0);
}

async fn expire(waypoint: Arc<Waypoint>, metrics: Metrics) {
    loop {
        tokio::time::sleep(EXPIRY_PERIOD).await;
        waypoint.recorder.let_go();
        metrics.expire(Instant::now());
        waypoint.expire();
    }
}

fn certificates(config: &Config) -> anyhow::Result<Certificates> {
    let authority = control_plane(config, &config.ca).context("CA_ADDRESS")?;
    let settings = identity::Config {
        ttl: config.secret_ttl,
        ..identity::Config::default()
    };
    Ok(Certificates::new(
        Arc::new(IstioCa::for_itself(authority)),
        settings,
        Handle::current(),
    ))
}

fn control_plane(config: &Config, endpoint: &Endpoint) -> Result<ControlPlane, ControlPlaneError> {
    ControlPlane::new(ControlPlaneConfig {
        address: endpoint.address.clone(),
        root: endpoint.root.clone(),
        token: TokenSource::File(config.token.clone()),
        cluster_id: config.own.cluster_id.to_string(),
        alt_hostname: None,
        headers: Vec::new(),
    })
}

fn follow_control_plane(
    config: &Config,
    state: &Arc<State>,
) -> anyhow::Result<watch::Receiver<bool>> {
    let plane = control_plane(config, &config.xds).context("XDS_ADDRESS")?;
    let connect =
        move || -> xds::BoxFuture<'static, Result<AuthenticatedChannel, ControlPlaneError>> {
            let plane = plane.clone();
            Box::pin(async move { plane.channel().await })
        };
    let handlers: Vec<Box<dyn xds::Handler>> = vec![
        Box::new(Addresses(Arc::clone(state))),
        Box::new(Authorizations(Arc::clone(state))),
        Box::new(Whole(Arc::clone(state))),
        Box::new(Services::new(Arc::clone(state))),
    ];
    let observer = xds::Counted::new();
    let client = xds::Client::new(connect, node(&config.own), handlers, observer);
    let synced = client.synced();
    tokio::spawn(client.run());
    Ok(synced)
}
