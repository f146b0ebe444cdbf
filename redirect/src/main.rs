// SPDX-License-Identifier: Apache-2.0
//! The node agent: configuration, logs, the parts joined, exit code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use capture::Netns;
use clap::Parser as _;
use cluster::{Api, Client, Connection, Directory, Follow, Kind, Source, StatusWriter};
use http::StatusCode;
use ops::admin::{Routes, text};
use ops::health::Readiness;
use ops::metrics::{Limits, Metrics};
use redirect::agent::{self, Host, Parts};
use redirect::config::{Config, OnExit, SourceConfig};
use redirect::departure::{self, Departure};
use redirect::install;
use redirect::memory::Memory;
use redirect::plan::host_plan;
use redirect::plugin_api;
use redirect::plugin_server::{self, PluginServer};
use redirect::preflight;
use redirect::program;
use redirect::state::{Options, State};
use redirect::taint;
use redirect::zds_server::ZdsServer;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

/// Questions of plugins that may wait for the loop.
const QUESTIONS: usize = 64;
/// The node's rules are tried this often before the agent gives up.
const HOST_TRIES: u32 = 10;
const HOST_PAUSE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let mut words = std::env::args();
    if words.nth(1).as_deref() == Some("preflight") {
        return preflight();
    }
    let config = match Config::from_process() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let logs = match ops::logging::init(&config.log) {
        Ok(logs) => logs,
        Err(error) => {
            eprintln!("logging: {error}");
            return ExitCode::from(2);
        }
    };
    let result = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")
        .and_then(|runtime| runtime.block_on(run(config)));
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = format!("{error:#}"), "agent ends");
            ExitCode::FAILURE
        }
    };
    logs.flush(Duration::from_secs(1));
    code
}

/// `redirect preflight …`
fn preflight() -> ExitCode {
    let words = std::env::args().skip(1);
    let (text, works) = preflight::run(&preflight::Arguments::parse_from(words));
    print!("{text}");
    if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    info!(values = ?config.values(), "agent starts");
    let metrics = Metrics::new(Limits::default());
    metrics.install().context("metrics")?;
    metrics.describe(
        "redirect_drift_repaired_total",
        "Rules that were not as planned and have been repaired.",
    );
    metrics.describe(
        "redirect_failures_total",
        "Steps that failed and are tried again.",
    );
    metrics.describe(
        "redirect_captured_pods",
        "Pods of this node that are in the mesh.",
    );
    metrics.describe(
        "redirect_wrong_namespaces_total",
        "Network namespaces that were refused because they are not those of the pods named with them.",
    );
    metrics.describe(
        "redirect_sandboxes_found_total",
        "Pods whose network namespace was found among the node's processes.",
    );
    metrics.describe(
        "redirect_cni_repaired_total",
        "Times that the CNI plugin was not as it was installed and has been put back.",
    );
    // Before anyone may ask, or the answer would be that nothing is missing.
    let readiness = Readiness::default();
    let ready = readiness.register("cluster state");
    let install = config.install.clone();
    let install = install.map(|settings| (settings, readiness.register("CNI plugin")));
    let (shutdown, drain) = ops::shutdown::channel();
    let health = serve_health(&config, &readiness, &metrics, &drain).await?;

    let host = Host {
        netns: match &config.host_netns {
            Some(path) => Netns::open(path)
                .with_context(|| format!("host network namespace {}", path.display()))?,
            None => Netns::current().context("own network namespace")?,
        },
        table: host_plan(&config.host),
        families: config.host.families,
    };
    let (host_netns, on_exit) = (host.netns.clone(), config.on_exit);
    let pod_namespace = config.pod_namespace.clone();
    // Before the node is touched: an agent with a mistaken source leaves nothing behind.
    let (source, status, client) = open_cluster(&config).await?;
    prepare_host(&host).await?;

    std::fs::create_dir_all(&config.run_dir)
        .with_context(|| format!("run directory {}", config.run_dir.display()))?;
    let memory = Memory::open(&config.run_dir)?;
    let (sandboxes, broken) = memory.load()?;
    for error in broken {
        warn!(%error, "memory of a pod is lost");
    }
    let state = State::new(
        Options {
            enrolment: config.enrolment,
            families: config.host.families,
            dns: config.dns,
            release_deadline: config.release_deadline,
        },
        sandboxes,
    );

    let (wanted, wanted_receiver) = watch::channel(None);
    let (zds, answers) = ZdsServer::bind(&config.ztunnel_socket, wanted_receiver)
        .with_context(|| format!("ztunnel's socket {}", config.ztunnel_socket.display()))?;
    let (question_sender, questions) = mpsc::channel(QUESTIONS);
    let status_questions = question_sender.clone();
    let plugin_socket = config.run_dir.join(plugin_api::SOCKET);
    let plugin = PluginServer::bind(&plugin_socket, question_sender)
        .with_context(|| format!("plugin socket {}", plugin_socket.display()))?;
    let node = config.node.clone();
    let own_node = node.clone();
    let parts = Parts {
        node: config.node,
        source,
        status,
        memory,
        state,
        host,
        host_root: config.host_root,
        rule_check_interval: config.rule_check_interval,
        questions,
        answers,
        wanted,
        ready,
    };

    let installed = install.as_ref().map(|(settings, _)| settings.clone());
    let servers = [tokio::spawn(zds.run()), tokio::spawn(plugin.run())];
    let until = drain.clone();
    let installer = tokio::spawn(async move {
        if let Some((settings, ready)) = install {
            // Not before the agent can answer: until then a node starts pods as it did.
            tokio::select! {
                () = plugin_server::answering(&status_questions) => {}
                () = until.requested() => return,
            }
            install::keep(settings, ready, until).await;
        }
    });
    let lifting = client
        .clone()
        .map(|client| tokio::spawn(taint::lift(client, node, readiness)));
    let agent = tokio::spawn(agent::run(parts, drain));
    let signal = ops::shutdown::terminated().await.context("signals")?;
    info!(signal, "agent stops");
    shutdown.start();
    agent.await.context("the agent's loop")?;
    for server in servers.into_iter().chain(lifting) {
        server.abort();
    }
    health.abort();
    // Or it would put back what is removed below.
    installer.await.context("the CNI plugin's installer")?;
    let departure = match (on_exit, client) {
        (OnExit::CleanUp, _) => Departure::Last("AMBIENT_DISABLE_SAFE_UPGRADE".to_owned()),
        (OnExit::Leave, None) => Departure::Succeeded,
        (OnExit::Leave, Some(client)) => departure::ask(&client, &pod_namespace, &own_node).await,
    };
    if let Departure::Last(why) = departure {
        info!(
            why,
            "no agent follows on this node: its plugin and its rules go"
        );
        if let Some(installed) = installed {
            installed.remove().context("removing the CNI plugin")?;
        }
        program::remove_host(&host_netns).context("removing the node's rules")?;
    }
    Ok(())
}

/// What the cluster says, and where the agent's own word goes. Of an API server no more is asked than the pods of this
/// node, and of namespaces their labels.
async fn open_cluster(config: &Config) -> anyhow::Result<(Source, StatusWriter, Option<Client>)> {
    const MANAGER: &str = "redirect";
    let kubeconfig = match &config.source {
        SourceConfig::Directory(path) => {
            let (source, status) = (Directory::open(path)?, StatusWriter::new(path, MANAGER)?);
            return Ok((source, status, None));
        }
        SourceConfig::Kubernetes(kubeconfig) => kubeconfig,
    };
    let connection = Connection::open(kubeconfig.as_deref()).await?;
    let follow = [
        Follow::all(Kind::Pod).only(format!("spec.nodeName={}", config.node)),
        Follow::metadata(Kind::Namespace),
    ];
    let source = Api::open(&connection, follow)?;
    let status = StatusWriter::to_server(connection.client()?, MANAGER)?;
    Ok((source, status, Some(connection.client()?)))
}

/// /healthz as soon as the process runs, /readyz once it takes pods, /metrics beside.
async fn serve_health(
    config: &Config,
    readiness: &Readiness,
    metrics: &Metrics,
    drain: &ops::shutdown::DrainSignal,
) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let readiness = readiness.clone();
    let health = Routes::new()
        .get("/healthz", |_| text(StatusCode::OK, "ok\n"))
        .get("/readyz", move |_| match readiness.report() {
            Ok(body) => text(StatusCode::OK, body),
            Err(body) => text(StatusCode::SERVICE_UNAVAILABLE, body),
        });
    let monitoring = Routes::new().metrics(metrics.clone());
    let listen = async |address| {
        TcpListener::bind(address)
            .await
            .with_context(|| format!("listening on {address}"))
    };
    let (health_listener, monitoring_listener) = (
        listen(config.health).await?,
        listen(config.monitoring).await?,
    );
    let (first, second) = (drain.clone(), drain.clone());
    let metrics = metrics.clone();
    Ok(tokio::spawn(async move {
        let expire = async {
            let mut interval = tokio::time::interval(Duration::from_secs(60));
            loop {
                interval.tick().await;
                metrics.expire(std::time::Instant::now());
            }
        };
        tokio::select! {
            result = health.serve(health_listener, "health", first) => warn!(?result, "health server ended"),
            result = monitoring.serve(monitoring_listener, "monitoring", second) => warn!(?result, "monitoring server ended"),
            () = expire => {}
        }
    }))
}

/// The node's rules. Sets that an earlier agent left keep their elements until the cluster is known.
async fn prepare_host(host: &Host) -> anyhow::Result<()> {
    let mut tries = 1;
    loop {
        let (netns, table) = (host.netns.clone(), host.table.clone());
        let applied =
            tokio::task::spawn_blocking(move || program::apply_host_rules(&netns, &table)).await?;
        match applied {
            Ok(applied) => {
                info!(?applied, "the node's rules hold");
                return Ok(());
            }
            Err(error) if tries < HOST_TRIES => {
                warn!(%error, tries, "the node's rules");
                tries += 1;
                tokio::time::sleep(HOST_PAUSE).await;
            }
            Err(error) => return Err(error).context("the node's rules"),
        }
    }
}
