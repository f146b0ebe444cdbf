// SPDX-License-Identifier: Apache-2.0
//! Builds the parts and joins them; then waits for the end and brings it about.
//!
//! ```text
//!  main thread: xDS, certificates, admin, metrics, ZDS        proxy-0 … proxy-n: connections
//!
//!  control plane ─► xds_handlers ─► mesh_state ──────────────► route, authorize
//!  CA            ─► certificates ────────────────────────────► tunnels
//!  node agent    ─► zds_client ─► pods ─► proxy ─ listeners ─► outbound, socks5, inbound, passthrough, dns ─► record
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use identity::{
    AuthenticatedChannel, Certificates, ControlPlane, ControlPlaneConfig, ControlPlaneError,
    IstioCa, Revocation, RootSource, TokenSource,
};
use mesh::{LocalConfig, Store};
use ops::admin::Routes;
use ops::health::Readiness;
use ops::logging::Logs;
use ops::metrics::Metrics;
use tokio::runtime::Handle;
use tracing::{info, warn};

use crate::admin::{self, Shown};
use crate::config::{Config, Endpoint, Following, Local, Token};
use crate::crl::Crl;
use crate::dns::Resolver;
use crate::dns::upstreams::Upstreams;
use crate::endpoints::Endpoints;
use crate::handover::Predecessors;
use crate::hostnames::Hostnames;
use crate::limits::Limits;
use crate::mesh_state::MeshState;
use crate::node::node;
use crate::on_demand::OnDemand;
use crate::operators::Tables;
use crate::otlp::{self, Finder};
use crate::proxy::{Gate, LocalPods, Proxies, Settings, Shared};
use crate::record::Recorder;
use crate::roots;
use crate::succession::{Carried, Succession};
use crate::telling::Connections;
use crate::xds_handlers::{Addresses, Authorizations, follow_identities};
use crate::zds_client::{Signals, ZdsClient};
use ops::workers::Workers;

/// How often idle metric series are looked for.
const EXPIRY_PERIOD: Duration = Duration::from_secs(60);

/// Runs until a signal or the admin port ends it, or until another process has taken over and nothing is left to carry.
pub async fn run(config: Config, logs: Logs) -> anyhow::Result<()> {
    let own = capture::Netns::current().context("cannot open the own network namespace")?;
    check_privileges(&own, config.inpod.mark)?;
    let metrics = Metrics::default();
    metrics
        .install()
        .map_err(|error| anyhow!("cannot install the metrics recorder: {error}"))?;
    describe(&metrics, &config.node.istio_version);
    let readiness = Readiness::default();
    let state_ready = readiness.register("state manager");
    let pods_ready = readiness.register("workload proxy manager");
    let (shutdown, draining) = ops::shutdown::channel();
    // Operators can look on until the very end.
    let (admin_end, admin_drain) = ops::shutdown::channel();

    let crl = config
        .crl
        .clone()
        .map(|path| Crl::open(path, &metrics, &readiness));
    let certificates = certificates(&config, crl.as_ref().map(Crl::revocation))?;
    if let Some(crl) = crl {
        tokio::spawn(crl.follow(certificates.clone()));
    }
    if let RootSource::File(path) = &config.ca.root {
        tokio::spawn(roots::follow(path.clone(), certificates.clone()));
    }
    let mesh = Arc::new(MeshState::new(Store::new(config.node.name.as_deref())));
    if let Some(local) = &config.local {
        let loaded = load_local(local)?;
        let changes = mesh.update(|store| loaded.load_into(store));
        follow_identities(&certificates, changes);
        capture::memory::give_back();
    }
    let workers = Workers::start(config.workers).context("cannot start the proxy workers")?;
    let recorder = Recorder::new(metrics.clone(), workers.count());
    let endpoints = Endpoints::new(&metrics);
    let (upstreams, ipv6) = (
        Upstreams::read(config.resolv_conf.clone()),
        config.inpod.ipv6,
    );
    let resolver = config.dns.clone().map(|dns| {
        let network = Arc::clone(&config.node.network);
        Resolver::new(dns, Arc::clone(&upstreams), network, ipv6, metrics.clone())
    });
    let hostnames = Hostnames::new(Arc::clone(&upstreams), ipv6, metrics.clone());
    tokio::spawn(async move { upstreams.follow().await });
    let on_demand = match config.following {
        Following::OnDemand => Some(OnDemand::new(metrics.clone())),
        Following::Everything => None,
    };
    let demand = on_demand.as_ref().map(OnDemand::demand);
    let shared = Arc::new(Shared {
        mesh: Arc::clone(&mesh),
        certificates: certificates.clone(),
        recorder: Arc::clone(&recorder),
        endpoints: Arc::clone(&endpoints),
        workers,
        resolver: resolver.clone(),
        hostnames,
        on_demand,
        gate: Gate::default(),
        local: LocalPods::default(),
        settings: Settings {
            network: Arc::clone(&config.node.network),
            inpod: config.inpod.clone(),
            same_node: config.same_node.clone(),
            socks5: config.socks5,
            tcp: config.tcp.clone(),
            hbone: config.hbone.clone(),
            baggage: config.baggage,
            decisions: config.decisions,
            limits: limits(&config)?,
        },
    });
    shared.workers.observe(&metrics);
    let proxies = Arc::new(Proxies::new(shared, &metrics));

    let predecessors = Arc::<Predecessors>::default();
    let finder = Finder {
        mesh: Arc::clone(&mesh),
        endpoints: Arc::clone(&endpoints),
        network: config.node.network.clone(),
    };
    let shown = Shown {
        mesh: Arc::clone(&mesh),
        certificates: certificates.clone(),
        proxies: Arc::clone(&proxies),
        recorder: Arc::clone(&recorder),
        endpoints,
        resolver,
        local: config.local.clone(),
        config: Arc::new(config.effective.clone()),
        drain_deadline: config.drain_deadline,
        istio_version: config.node.istio_version.as_str().into(),
        predecessors: Arc::clone(&predecessors),
    };
    let tables = Tables {
        debug: admin::routes(shown, logs, shutdown.clone()),
        stats: Routes::new().metrics(metrics.clone()),
        readiness: Routes::new().readiness(readiness.clone()),
    };
    let succession = Succession::begin(&config, tables, predecessors, &admin_drain).await?;

    let addresses = Addresses {
        mesh: Arc::clone(&mesh),
        certificates: certificates.clone(),
        demand,
    };
    let logs = Connections(Arc::clone(recorder.telling()));
    let synced = follow_control_plane(&config, addresses, logs)?;
    if let Some(outgoing) = recorder.exporter().outgoing() {
        let node = config.node.clone();
        tokio::spawn(async move { otlp::run(outgoing, finder, &node).await });
    }
    let agent = ZdsClient::new(
        config.inpod.socket.clone(),
        own,
        Arc::clone(&proxies),
        succession.predecessor(),
        pods_ready,
        Signals {
            drain: draining.clone(),
            relieved: succession.relieved(),
        },
        &metrics,
    );
    tokio::spawn(async move {
        if let Some(mut synced) = synced {
            // Pods are taken over only once there is something to decide by.
            let _ = synced.wait_for(|synced| *synced).await;
        }
        state_ready.ready();
        agent.run().await;
    });
    tokio::spawn({
        let proxies = Arc::clone(&proxies);
        async move { proxies.follow_policy().await }
    });
    tokio::spawn(expire_series(metrics, recorder));

    // Kept beyond a drain's beginning, when nobody can take over any more: operators look on until the end.
    let _ports = succession.operators();
    let carried = Carried {
        mesh,
        certificates,
        proxies: Arc::clone(&proxies),
    };
    tokio::select! {
        signal = ops::shutdown::terminated() => {
            info!(signal = signal.context("cannot listen for signals")?, "shutdown asked for by a signal");
            shutdown.start();
        }
        () = draining.requested() => info!("shutdown asked for by the admin port"),
        outcome = succession.run(&readiness, carried) => {
            outcome?;
            info!("the last connection has ended or was cut, another process serves");
            return Ok(());
        }
    }
    // Named in the readiness answer, so that nobody wonders.
    let _not_ready = readiness.register("drain");
    drain(&proxies, config.drain_deadline).await;
    admin_end.start();
    info!("shut down");
    Ok(())
}

async fn drain(proxies: &Proxies, limit: Duration) {
    info!(?limit, "draining");
    tokio::select! {
        () = proxies.drain(limit) => {}
        signal = ops::shutdown::terminated() => {
            warn!(signal = signal.unwrap_or("unknown"), "second signal, not waiting any longer");
            proxies.cut_all().await;
        }
    }
}

/// What every later step needs; better to fail here, in words, than in each pod.
fn check_privileges(own: &capture::Netns, mark: u32) -> anyhow::Result<()> {
    own.enter(|| ())
        .context("cannot enter a network namespace: is CAP_SYS_ADMIN granted?")?;
    capture::socket::tcp_socket(own, socket2::Domain::IPV4, Some(mark), None)
        .context("cannot mark a socket: is CAP_NET_ADMIN granted?")?;
    Ok(())
}

fn limits(config: &Config) -> anyhow::Result<Limits> {
    use nix::sys::resource::{Resource, getrlimit};
    let (descriptors, _) =
        getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of descriptors")?;
    Ok(Limits::new(
        config.connections_per_pod,
        config.half_open_tunnels_per_pod,
        descriptors,
    ))
}

fn describe(metrics: &Metrics, version: &str) {
    for (name, help) in [
        ("istio_build", "Istio component build info"),
        (
            "workload_manager_active_proxy_count",
            "The number of pods that are served (unstable)",
        ),
        (
            "workload_manager_pending_proxy_count",
            "The number of pods that wait to be served (unstable)",
        ),
        (
            "workload_manager_proxies_started_total",
            "The total number of proxies started (unstable)",
        ),
        (
            "workload_manager_proxies_stopped_total",
            "The total number of proxies stopped (unstable)",
        ),
        (
            "culvert_connections_refused_total",
            "Connections refused because the pod had all that it may have (unstable)",
        ),
        (
            "culvert_accept_exhausted_total",
            "Accepts that failed for want of descriptors or memory (unstable)",
        ),
    ] {
        metrics.describe(name, help);
    }
    metrics::gauge!("istio_build", "component" => "ztunnel", "tag" => version.to_owned()).set(1.0);
}

async fn expire_series(metrics: Metrics, recorder: Arc<Recorder>) {
    loop {
        tokio::time::sleep(EXPIRY_PERIOD).await;
        recorder.let_go();
        metrics.expire(Instant::now());
    }
}

fn certificates(config: &Config, revocation: Option<Revocation>) -> anyhow::Result<Certificates> {
    let authority = control_plane(config, &config.ca).context("CA_ADDRESS")?;
    let settings = identity::Config {
        ttl: config.secret_ttl,
        revocation,
        ..identity::Config::default()
    };
    Ok(Certificates::new(
        Arc::new(IstioCa::new(authority)),
        settings,
        Handle::current(),
    ))
}

fn control_plane(config: &Config, endpoint: &Endpoint) -> Result<ControlPlane, ControlPlaneError> {
    ControlPlane::new(ControlPlaneConfig {
        address: endpoint.address.clone(),
        root: endpoint.root.clone(),
        token: match &config.token {
            Token::File(path) => TokenSource::File(path.clone()),
            Token::Literal(token) => TokenSource::Literal(token.clone().into()),
            Token::None => TokenSource::None,
        },
        cluster_id: config.node.cluster_id.to_string(),
        alt_hostname: endpoint.alt_hostname.clone(),
        headers: endpoint.headers.clone(),
    })
}

fn load_local(local: &Local) -> anyhow::Result<LocalConfig> {
    let (from, text) = match local {
        Local::File(path) => {
            let text = std::fs::read_to_string(path);
            (
                format!("LOCAL_XDS_PATH {}", path.display()),
                text.with_context(|| format!("LOCAL_XDS_PATH {}", path.display()))?,
            )
        }
        Local::Inline(text) => ("LOCAL_XDS".to_owned(), text.clone()),
    };
    let parsed = LocalConfig::parse(&text).context(from.clone())?;
    info!(
        from,
        workloads = parsed.workloads.len(),
        services = parsed.services.len(),
        policies = parsed.policies.len(),
        "local configuration loaded"
    );
    Ok(parsed)
}

/// None where there is no control plane to wait for.
fn follow_control_plane(
    config: &Config,
    addresses: Addresses,
    logs: Connections,
) -> anyhow::Result<Option<tokio::sync::watch::Receiver<bool>>> {
    let Some(endpoint) = &config.xds else {
        return Ok(None);
    };
    let plane = control_plane(config, endpoint).context("XDS_ADDRESS")?;
    let connect =
        move || -> xds::BoxFuture<'static, Result<AuthenticatedChannel, ControlPlaneError>> {
            let plane = plane.clone();
            Box::pin(async move { plane.channel().await })
        };
    let policies = Authorizations {
        mesh: Arc::clone(&addresses.mesh),
    };
    let handlers: Vec<Box<dyn xds::Handler>> =
        vec![Box::new(addresses), Box::new(policies), Box::new(logs)];
    let client = xds::Client::new(connect, node(&config.node), handlers, xds::Counted::new());
    let synced = client.synced();
    tokio::spawn(client.run());
    Ok(Some(synced))
}
