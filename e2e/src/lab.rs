// SPDX-License-Identifier: Apache-2.0
//! The lab's own process: pid 1 of its pid namespace, the parent of everything that runs in the lab.
//!
//! It builds the network, starts an API server if its objects are to be there, writes the built-in cluster, starts the control plane and plays the kubelet of both nodes. It
//! ends when its standard input does, so it never outlives whoever started it. On standard output it says how far it is,
//! one [`Message`] a line.

pub mod api_server;
pub mod cgroups;
pub mod container;
pub mod control_plane;
pub mod in_force;
pub mod kubelet;
pub mod objects;
pub mod probe;
pub mod resolver;
pub mod sandbox;
pub mod volumes;

use std::io::Write as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::lab::api_server::ApiServer;
use crate::lab::cgroups::Cgroups;
use crate::lab::container::Programs;
use crate::lab::control_plane::ControlPlane;
use crate::lab::kubelet::Kubelet;
use crate::lab::objects::Objects;
use crate::lab::resolver::Resolver;
use crate::lifeline::input_ended;
use crate::state::{Disks, LabRecord, StateDir, process_start, write_json};
use crate::tokens::TokenIssuer;
use crate::topology::{Cluster, Layout};
use crate::{launch, manifests, namespaces, network};

/// How a lab is to be.
#[derive(Debug, Clone, clap::Args)]
pub struct LabOptions {
    /// The lab's name
    #[arg(long)]
    pub lab: String,
    /// The lab's state directory
    #[arg(long)]
    pub state: PathBuf,
    /// Where the mesh's programs lie
    #[arg(long)]
    pub bin_dir: PathBuf,
    /// Manifests to apply beside the built-in ones
    #[arg(long)]
    pub manifests: Option<PathBuf>,
    /// Which clusters there are
    #[arg(long, value_enum, default_value = "one-cluster")]
    pub layout: Layout,
    /// Leave the state directory behind
    #[arg(long)]
    pub keep: bool,
    /// Where its files lie
    #[arg(long, value_enum, default_value = "shared")]
    pub disks: Disks,
    /// Keep its objects in an API server
    #[arg(long)]
    pub api_server: bool,
}

/// What the lab process tells whoever started it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "event")]
pub enum Message {
    Progress { text: String },
    Ready,
    Failed { error: String },
}

impl Message {
    /// Prints the message; whoever listened may be gone, which ends the lab anyway.
    pub fn say(&self) {
        let line = serde_json::to_string(self).expect("broken invariant: a message is plain data");
        let mut out = std::io::stdout().lock();
        let _listener_gone = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

pub fn progress(text: impl Into<String>) {
    Message::Progress { text: text.into() }.say();
}

/// Lives the lab's life from the first mount to the end. Called in a process that has one thread still.
pub fn run(options: &LabOptions) -> Result<()> {
    let outcome = live(options);
    if let Err(error) = &outcome {
        Message::Failed {
            error: format!("{error:#}"),
        }
        .say();
    }
    outcome
}

fn live(options: &LabOptions) -> Result<()> {
    // The process as those outside see it, before /proc changes.
    let pid = std::fs::read_link("/proc/self").context("/proc/self")?;
    let pid: u32 = pid
        .to_string_lossy()
        .parse()
        .context("/proc/self names no process")?;
    let started = process_start(pid).context("cannot tell when this process started")?;

    let state = StateDir::at(options.state.clone())?;
    let _lock = state.lock()?;
    state.create(options.layout)?;
    let disks = match options.disks {
        Disks::Shared => vec![],
        Disks::Small => state.small_disks(),
    };
    for disk in &disks {
        crate::environment::private_directory(disk)?;
        namespaces::mount_small_disk(disk)?;
    }
    write_hosts(&state)?;
    namespaces::mount_hosts(&state.hosts())?;
    resolver::write_of_nodes(&state.resolv_conf())?;
    namespaces::mount_resolv_conf(&state.resolv_conf())?;
    if let Err(error) = namespaces::mount_proc() {
        progress(format!("/proc keeps showing all processes ({error})"));
    }
    // The node agent recognises health checks by the process that makes them.
    launch::name_process("kubelet")?;
    network::build(&state, options.layout)?;
    if options.api_server {
        network::join_link(crate::topology::api_server())?;
    }
    progress("two nodes and the link between them are up");

    let record = LabRecord {
        name: options.lab.clone(),
        pid,
        started,
        executable: std::env::current_exe().context("the path of this program")?,
        bin_dir: options.bin_dir.clone(),
        layout: options.layout,
        disks: options.disks,
        api_server: options.api_server,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("a runtime")?;
    let outcome =
        runtime.block_on(tokio::task::LocalSet::new().run_until(operate(options, &state, &record)));
    for disk in &disks {
        namespaces::unmount_small_disk(disk)?;
    }
    // What runs in the lab ends with this process; its files stay only if somebody wants them.
    if !options.keep && !state.keep().exists() && outcome.is_ok() {
        std::fs::remove_dir_all(state.root()).or_else(|_| remove_what_is_not_bound(&state))?;
    }
    outcome
}

/// Bound namespace files can't be removed while they are mounted in this mount namespace.
fn remove_what_is_not_bound(state: &StateDir) -> Result<()> {
    for entry in std::fs::read_dir(state.root().join("netns")).context("the lab's namespaces")? {
        network::remove(&entry?.path())?;
    }
    std::fs::remove_dir_all(state.root()).context("cannot remove the lab's state directory")
}

async fn operate(options: &LabOptions, state: &StateDir, record: &LabRecord) -> Result<()> {
    let stop = CancellationToken::new();
    let end = tokio::task::spawn_local(wait_for_the_end(stop.clone()));

    let issuer = Rc::new(TokenIssuer::generate()?);
    let layout = options.layout;
    let server = match options.api_server {
        true => Some(ApiServer::start(state).await?),
        false => None,
    };
    let mut clusters = Vec::new();
    for cluster in layout.clusters() {
        let state = state.of_cluster(*cluster);
        let objects = match &server {
            Some(server) => server.objects().await?,
            None => Objects::of_folder(&state, issuer.clone())?,
        };
        write_json(&state.jwks(), &issuer.jwks()?)?;
        apply_built_in(&objects, *cluster, layout).await?;
        if let Some(folder) = &options.manifests {
            apply_folder(&objects, folder).await?;
        }
        clusters.push((state, Rc::new(objects)));
    }
    if server.is_some() {
        progress("the API server serves, and holds the built-in cluster");
    }
    write_json(&state.record(), record)?;
    let programs = Rc::new(Programs {
        executable: record.executable.clone(),
        bin_dir: record.bin_dir.clone(),
    });
    let resolver = Resolver::start(state, programs.clone());
    let mut control_planes = Vec::new();
    for (state, _) in &clusters {
        let cluster = state.cluster();
        if cluster != Cluster::First {
            share_root(state)?;
        }
        let source = match &server {
            Some(server) => server.control_plane_arguments()?,
            None => control_plane::of_manifests(state),
        };
        let mut control_plane = ControlPlane::start(state, programs.clone(), source)?;
        // A node's daemons mount the roots that the control plane publishes, so no kubelet could start them earlier.
        tokio::select! {
            outcome = control_plane.ready() => outcome?,
            () = stop.cancelled() => return Ok(()),
        }
        progress(format!("{} serves", cluster.daemon()));
        control_planes.push(control_plane);
    }
    let cgroups = Rc::new(Cgroups::make());
    let mut kubelets = Vec::new();
    for (state, objects) in clusters {
        kubelets.push(Kubelet::start(
            state,
            layout,
            programs.clone(),
            objects,
            cgroups.clone(),
        )?);
    }
    let deadline = tokio::time::Instant::now() + START_DEADLINE;
    for kubelet in &mut kubelets {
        tokio::select! {
            outcome = kubelet.settled() => outcome?,
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep_until(deadline) => {
                anyhow::bail!("the mesh was not ready within {START_DEADLINE:?}:\n{}", kubelet.complaints(state))
            }
        }
    }
    Message::Ready.say();

    stop.cancelled().await;
    end.abort();
    for kubelet in kubelets {
        kubelet.stop().await;
    }
    for control_plane in control_planes {
        control_plane.stop().await;
    }
    if let Some(server) = server {
        server.stop().await;
    }
    resolver.stop().await;
    Ok(())
}

/// What a cluster starts with: of the built-in manifests what runs on its nodes, and what its network needs.
async fn apply_built_in(objects: &Objects, cluster: Cluster, layout: Layout) -> Result<()> {
    for (name, text) in manifests::BUILT_IN {
        let text = manifests::on_nodes(text, layout.nodes(cluster))
            .with_context(|| format!("built-in {name}"))?;
        objects
            .apply(name, &text)
            .await
            .with_context(|| format!("built-in {name}"))?;
    }
    if layout == Layout::TwoNetworks {
        let (name, text) = manifests::of_network(cluster);
        objects
            .apply(name, text)
            .await
            .with_context(|| format!("built-in {name}"))?;
    }
    Ok(())
}

/// Gives a further cluster the certificate authority of the first, as whoever runs both would: each trusts the other's
/// workloads only if both chains end in one root.
fn share_root(state: &StateDir) -> Result<()> {
    let (from, to) = (
        state.of_cluster(Cluster::First).istiod().join("ca"),
        state.istiod().join("ca"),
    );
    crate::environment::private_directory(&to)?;
    for entry in std::fs::read_dir(&from).with_context(|| format!("{}", from.display()))? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            std::fs::copy(&path, to.join(name))
                .with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

const START_DEADLINE: Duration = Duration::from_secs(90);

/// Standard input ends with whoever started the lab; `e2e down` sends a signal.
async fn wait_for_the_end(stop: CancellationToken) {
    let mut terminate =
        signal(SignalKind::terminate()).expect("broken invariant: SIGTERM can be handled");
    let mut interrupt =
        signal(SignalKind::interrupt()).expect("broken invariant: SIGINT can be handled");
    tokio::select! {
        () = input_ended() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.cancel();
}

async fn apply_folder(objects: &Objects, folder: &std::path::Path) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("--manifests {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|ending| ["yaml", "yml", "json"].iter().any(|known| ending == *known))
    });
    paths.sort();
    for path in paths {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        objects.apply(&path.to_string_lossy(), &text).await?;
    }
    Ok(())
}

fn write_hosts(state: &StateDir) -> Result<()> {
    let named = [Cluster::First, Cluster::Second].map(|cluster| {
        let address = cluster.control_plane().v4;
        format!("{address} {}\n", cluster.control_plane_name())
    });
    let text = "127.0.0.1 localhost\n::1 localhost\n".to_owned() + &named.concat();
    std::fs::write(state.hosts(), text).context("cannot write the lab's hosts file")
}
