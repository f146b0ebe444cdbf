// SPDX-License-Identifier: Apache-2.0
//! Builds the parts and joins them.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use ops::{health::Readiness, metrics::Metrics, shutdown::DrainSignal};
use parking_lot::RwLock;
use proto::{
    ads::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer,
    ca::istio_certificate_service_server::IstioCertificateServiceServer,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::transport::Server;

use crate::{
    admin,
    authenticate::{Authenticator, NodeAuthorizer, Tokens, claims::Expected, review::Reviewer},
    authority::{Asked, Upkeep},
    ca::{self, LiveAuthority, Material, Origin, Secrets},
    ca_service::Certificates,
    catalogue::Catalogue,
    config::{AuthorityConfig, Config, TokenAuthority, TokenConfig},
    controller::{Conditions, Controller, State},
    index::Index,
    key_sets::Fetcher,
    replicas, root_configmaps,
    serving::{self, Bounds, Shown},
    source::Cluster,
    waypoints,
    xds_server::Discovery,
};

/// Requests of clients that come back list all that they hold.
const MAX_REQUEST: usize = 32 << 20;
/// As large as HTTP/2 allows: many small frames must not look like a flood.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const STREAM_WINDOW: u32 = 1 << 20;
const MAX_STREAMS: u32 = 100;
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams end before this by themselves; it is for connections without any.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(35 * 60);
const MAX_CONNECTION_AGE_GRACE: Duration = Duration::from_secs(30);
/// How often idle metrics are looked at.
const UPKEEP: Duration = Duration::from_secs(60);

/// A control plane that serves.
#[derive(Debug)]
pub struct Running {
    /// Where clients connect.
    pub address: SocketAddr,
    /// Where operators look.
    pub admin: SocketAddr,
    /// Where kubelets and scrapers look.
    pub monitoring: SocketAddr,
    servers: JoinHandle<anyhow::Result<()>>,
}

/// Starts everything; the parts wind down when `drain` asks for it.
///
/// # Errors
/// What can't be opened, read or bound.
pub async fn start(
    config: Config,
    metrics: Metrics,
    drain: DrainSignal,
) -> anyhow::Result<Running> {
    let readiness = Readiness::default();
    let known = readiness.register("cluster");
    let signs = readiness.register("certificate authority");
    let cluster = Cluster::open(&config.source).await?;
    let (origin, material) = origin(&config, &cluster).await?;
    let lifetimes = config.authority.lifetimes;
    let authority = LiveAuthority::open(&material, lifetimes, SystemTime::now())?;
    let authority = Arc::new(authority);
    let tokens = Arc::new(open_tokens(&config.tokens, &cluster)?);
    let listener = bind(config.listen).await?;
    let admin_listener = bind(config.admin).await?;
    let monitoring_listener = bind(config.monitoring).await?;
    let (address, admin_address) = (listener.local_addr()?, admin_listener.local_addr()?);
    let monitoring_address = monitoring_listener.local_addr()?;

    let state = State {
        index: Arc::new(RwLock::new(
            Index::new(config.mesh.clone()).answering_to(config.revisions.clone()),
        )),
        catalogue: Arc::new(Catalogue::default()),
        source_problems: Arc::default(),
    };
    let source = cluster.source(&config.mesh.root_namespace)?;
    let (leadership, campaign) =
        cluster.leadership(&config.mesh.root_namespace, &config.replica, drain.clone());
    let conditions = Conditions {
        writer: cluster.status_writer(&config.revisions)?,
        leadership: leadership.clone(),
    };
    let fetcher = Fetcher::new(&config.jwks_roots)?;
    Controller::start(
        source,
        state.clone(),
        (conditions, fetcher),
        cluster.client(),
        known,
        drain.clone(),
    );

    let discovery = Discovery::new(
        Arc::clone(&state.catalogue),
        Arc::clone(&state.index),
        Arc::clone(&tokens),
        drain.clone(),
    );
    let connections = discovery.connections();
    let asked = Asked {
        authority,
        authorizer: Arc::new(NodeAuthorizer::new(
            config.mesh.trust_domain.clone(),
            config.tokens.node_accounts.clone(),
        )),
        index: Arc::clone(&state.index),
    };
    let certificates = Certificates {
        asked: asked.clone(),
        tokens,
        cluster_id: config.mesh.cluster_id.as_str().into(),
    };
    let shown = Shown::nothing();
    let upkeep = Upkeep {
        asked: asked.clone(),
        origin,
        published: config.authority.state.join("root-cert.pem"),
        shown: Arc::clone(&shown),
        names: config.authority.serving_names.clone(),
        ready: signs,
    };
    let root = &config.mesh.root_namespace;
    let told = cluster.client().map(|client| {
        asked.authority.expect_others();
        let (root, replica) = (root.clone(), config.replica.clone());
        let (asked, drain) = (asked.clone(), drain.clone());
        tokio::spawn(Box::pin(async move {
            replicas::tell_each_other(client, &root, &replica, asked, drain).await;
        }))
    });
    upkeep.start();
    if let Some((source, client)) = cluster.follow(root_configmaps::followed())? {
        let authority = Arc::clone(&asked.authority);
        let leadership = leadership.clone();
        let kept = root_configmaps::keep(source, client, authority, leadership, drain.clone());
        tokio::spawn(Box::pin(kept));
    }
    if let Some((source, client)) = cluster.follow(waypoints::followed(root))? {
        let settings = waypoints::Settings {
            image: config.waypoint_image.clone(),
            cluster_id: config.mesh.cluster_id.clone(),
            cluster_domain: config.mesh.cluster_domain.clone(),
            trust_domain: config.mesh.trust_domain.to_string(),
            control_plane: format!("istiod.{root}.svc:15012"),
            revisions: config.revisions.clone(),
            root_namespace: root.clone(),
        };
        let kept = waypoints::keep(source, client, settings, leadership, drain.clone());
        tokio::spawn(Box::pin(kept));
    }
    let incoming = serving::incoming(
        listener,
        serving::tls_config(shown)?,
        drain.clone(),
        Bounds::default(),
    );
    let draining = drain.clone();
    let server = Server::builder()
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_connection_age(MAX_CONNECTION_AGE)
        .max_connection_age_grace(MAX_CONNECTION_AGE_GRACE)
        .add_service(
            AggregatedDiscoveryServiceServer::new(discovery).max_decoding_message_size(MAX_REQUEST),
        )
        .add_service(IstioCertificateServiceServer::new(certificates))
        .serve_with_incoming_shutdown(incoming, async move { draining.requested().await });
    spawn_expiry(metrics.clone());
    let monitoring = admin::monitoring(&state, readiness, metrics);
    let routes = admin::debug(monitoring.clone(), state, asked, connections);
    let admin_server = routes.serve(admin_listener, "admin", drain.clone());
    let monitoring_server = monitoring.serve(monitoring_listener, "monitoring", drain);
    let servers = tokio::spawn(Box::pin(async move {
        let server = async { server.await.context("the server failed") };
        let admin_server = async { admin_server.await.context("the admin server failed") };
        let monitoring_server = async {
            monitoring_server
                .await
                .context("the monitoring server failed")
        };
        tokio::try_join!(server, admin_server, monitoring_server)?;
        // One gives its lease back, the other tells what it has signed.
        for last in campaign.into_iter().chain(told) {
            last.await.context("a task of the replica's panicked")?;
        }
        Ok(())
    }));
    tracing::info!(%address, admin = %admin_address, monitoring = %monitoring_address, source = ?config.source, "control plane started");
    Ok(Running {
        address,
        admin: admin_address,
        monitoring: monitoring_address,
        servers,
    })
}

impl Running {
    /// Waits until the servers have wound down, or failed; to be called again until it returns.
    ///
    /// # Errors
    /// When one failed.
    pub async fn finished(&mut self) -> anyhow::Result<()> {
        (&mut self.servers).await.context("a server panicked")?
    }
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
}

/// Where the authority is kept: in the directory that is named, else in the cluster, else in a directory of our own.
async fn origin(config: &Config, cluster: &Cluster) -> anyhow::Result<(Origin, Material)> {
    let AuthorityConfig { state, cacerts, .. } = &config.authority;
    let trust_domain = &config.mesh.trust_domain;
    Ok(match (cacerts, cluster.client()) {
        (Some(directory), _) => Origin::directory(directory.clone())?,
        (None, Some(client)) => {
            let namespace = &config.mesh.root_namespace;
            let secrets = Secrets::new(client, namespace, trust_domain.clone());
            Origin::secrets(secrets).await
        }
        (None, None) => {
            let now = SystemTime::now();
            Origin::directory(ca::open_or_create(state, trust_domain, now)?)?
        }
    })
}

fn open_tokens(tokens: &TokenConfig, cluster: &Cluster) -> anyhow::Result<Tokens> {
    match &tokens.authority {
        TokenAuthority::Server => {
            let client = cluster
                .client()
                .context("tokens can't be reviewed without an API server")?;
            let reviewer = Reviewer::new(client, tokens.audiences.clone());
            Ok(Tokens::Server(reviewer))
        }
        TokenAuthority::Keys { jwks, issuer } => {
            let expected = Expected {
                issuer: issuer.clone(),
                audiences: tokens.audiences.clone(),
                leeway: Expected::DEFAULT_LEEWAY,
            };
            Ok(Tokens::Keys(Authenticator::open(jwks, expected)?))
        }
    }
}

fn spawn_expiry(metrics: Metrics) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            metrics.expire(Instant::now());
        }
    });
}
