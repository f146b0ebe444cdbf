// SPDX-License-Identifier: Apache-2.0
//! The commands: what a person types, and which part of the lab answers.
//!
//! Commands that enter namespaces do so before anything starts a thread; the others may use a runtime.

mod objects;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bench::Bench;
use crate::bench::data_path::load::{self, Load};
use crate::dns::client::Resolve;
use crate::environment::Environment;
use crate::handle::{Access, Lab, Start};
use crate::lab::LabOptions;
use crate::launch::{Launch, Surroundings};
use crate::link::Terms;
use crate::namespaces::Joining;
use crate::sniff::{Capture, Limits, Show};
use crate::state::{Disks, StateDir, process_start};
use crate::topology::{Cluster, Layout, Node, Place};
use crate::traffic::client::{Conversation, converse};
use crate::traffic::server::{Service, serve};
use crate::{
    binaries, conformance, gateway, hostile, lab, link, namespaces, native, peers, status, tour,
};

/// A real two-node ambient mesh on this machine: every node and pod is a network namespace, every program the one that
/// a cluster runs.
#[derive(Debug, Parser)]
#[command(name = "e2e", version, max_term_width = 110, after_help = AFTER_HELP)]
pub struct Cli {
    /// Which lab is meant; each name is a lab of its own
    #[arg(long, global = true, default_value = "default", value_name = "NAME")]
    lab: String,
    #[command(subcommand)]
    command: Verb,
}

const AFTER_HELP: &str = "\
A first walk:
  e2e up                                               start the mesh, prove what it does, stay up
  e2e status                                           (in another terminal) nodes, pods, policies, daemons
  e2e exec shop/client -- e2e traffic get web.shop:80      a request through a Service
  e2e capture node-b                                   what the wire carries meanwhile
  e2e apply policy.yaml                                change the cluster
  e2e logs ztunnel-b                                   what the proxy says about it
  e2e down

No root is needed: as an ordinary user the lab lives in a user namespace of its own.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start the mesh, send real traffic, print what that proved, and stay up until Ctrl-C or `e2e down`
    #[command(
        after_help = "Examples:\n  e2e up\n  e2e up --once --output json | jq '.facts[] | select(.holds | not)'\n  e2e up --manifests ./my-cluster"
    )]
    Up(Up),
    /// Run a command inside a pod, a node (node-a, node-b) or the control plane (istiod-lite)
    #[command(
        after_help = "Examples:\n  e2e exec shop/client -- e2e traffic get 10.96.0.10:80\n  e2e exec shop/client -- curl -s http://10.96.0.10/\n  e2e exec node-a -- e2e traffic get 127.0.0.1:15020 /metrics\n  e2e exec node-a -- e2e traffic get 127.0.0.1:15000 /config_dump\n\n`e2e` inside the lab is this very program."
    )]
    Exec(Exec),
    /// Check objects and store them in the lab's cluster; `-` reads standard input
    #[command(
        after_help = "Example:\n  e2e apply - <<'END'\n  apiVersion: security.istio.io/v1\n  kind: AuthorizationPolicy\n  metadata: {name: nobody, namespace: shop}\n  spec: {}\n  END"
    )]
    Apply {
        file: PathBuf,
        /// Which cluster's, where there are two
        #[arg(long, default_value = "1", value_name = "N")]
        cluster: Cluster,
    },
    /// Give an object of the lab's cluster labels, and take others away
    #[command(
        after_help = "Examples:\n  e2e label namespace outside istio.io/dataplane-mode=ambient\n  e2e label ns outside istio.io/dataplane-mode-"
    )]
    Label {
        kind: String,
        name: String,
        /// NAME=VALUE to give one, NAME- to take it away
        #[arg(required = true)]
        labels: Vec<String>,
        /// Which cluster's, where there are two
        #[arg(long, default_value = "1", value_name = "N")]
        cluster: Cluster,
    },
    /// Remove an object from the lab's cluster
    #[command(
        after_help = "Examples:\n  e2e delete authorizationpolicy shop/nobody\n  e2e delete pod shop/client"
    )]
    Delete {
        kind: String,
        name: String,
        /// Which cluster's, where there are two
        #[arg(long, default_value = "1", value_name = "N")]
        cluster: Cluster,
    },
    /// Show nodes, pods, services, policies and daemons
    Status {
        #[arg(long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Show what the wire of a node carries: TLS records on 15008 for captured pods, plain text for others
    #[command(
        after_help = "Examples:\n  e2e capture node-b\n  e2e capture node-a --seconds 5 --flows\n\nPeer certificates are encrypted in TLS 1.3 and stand on no wire; see them by dialling:\n  e2e exec node-a -- e2e peer 10.77.2.10:15008 --help"
    )]
    Capture(CaptureArguments),
    /// Print the log of a daemon or pod: istiod-lite, ztunnel-a, istio-cni-node-a, shop/client
    Logs { name: String },
    /// End a daemon or pod at once, as a crash would; it is started again
    #[command(
        after_help = "Examples:\n  e2e kill ztunnel-b\n  e2e kill istiod-lite --stay-down; e2e start istiod-lite\n  e2e kill shop/web-b"
    )]
    Kill {
        name: String,
        /// Leave it ended until `e2e start`
        #[arg(long)]
        stay_down: bool,
    },
    /// Start a new process of a daemon, which takes over from the one that runs
    #[command(
        after_help = "Examples:\n  e2e upgrade ztunnel-a\n  e2e upgrade ztunnel-b --env RUST_LOG=debug\n  e2e exec node-a -- e2e traffic get 127.0.0.1:15000 /config_dump    (`predecessors`: what old processes still carry)"
    )]
    Upgrade {
        name: String,
        /// Another variable for the new process
        #[arg(long, value_name = "NAME=VALUE")]
        env: Vec<String>,
    },
    /// Let what `e2e kill --stay-down` ended start again
    Start { name: String },
    /// Make the link between the nodes worse, for as long as the input is open; each line of it is new terms
    #[command(
        after_help = "Terms: delay=20ms,jitter=5ms,loss=1%,reorder=2%,rate=50mbit,mtu=1400,seed=7 (any of them)\nExample:\n  e2e link delay=20ms,loss=1%     (Ctrl-D gives the lab its own link back)"
    )]
    Link { terms: Terms },
    /// Take a node's power away and give it back: all its pods and daemons start anew
    Reboot { node: Node },
    /// End the lab
    Down,
    /// Hold a conversation with one of the lab's servers and report on it as JSON; to be run in a pod
    #[command(subcommand)]
    Traffic(Conversation),
    /// Ask a DNS server one question and report the whole answer as JSON; to be run in a pod
    #[command(
        after_help = "Examples:\n  e2e exec shop/client -- e2e resolve web.shop\n  e2e exec shop/client -- e2e resolve _echo._tcp.lab.example SRV --edns 1232\n  e2e exec shop/client -- e2e resolve large.lab.example TXT --udp"
    )]
    Resolve(Resolve),
    /// Dial a pod's tunnel port with a certificate of the mesh and report the certificate it shows
    Peer(peers::Peer),
    /// Measure, and say whether the bounds hold (programs of a release build: see e2e/bench/README.md)
    #[command(subcommand)]
    Bench(Bench),
    /// Ask the control plane for a certificate with somebody's token and report the answer
    Certificate(peers::Certificate),
    /// Try whether a certificate authority, ours or another, refuses what it has to; status 0 if it does
    Conformance(conformance::Authority),

    #[command(hide = true)]
    EnterLab(LabOptions),
    #[command(hide = true)]
    RunLab(LabOptions),
    #[command(hide = true)]
    RunLink { state: PathBuf, terms: Terms },
    #[command(hide = true)]
    Launch(Launch),
    #[command(hide = true)]
    Serve { services: Vec<Service> },
    #[command(hide = true)]
    ServeDns,
    /// Serve what `bench-load` asks for, until the input ends; to be run in a pod
    #[command(hide = true)]
    BenchServe,
    /// Do one kind of work of the bench and report on it as JSON; to be run in a pod
    #[command(hide = true)]
    BenchLoad(Load),
    /// Let in what other networks send to services of this one; to be run in a pod
    #[command(hide = true)]
    Gateway(gateway::Gateway),
    /// Terminate and open tunnels without a proxy of the node; to be run in a pod
    #[command(hide = true, subcommand)]
    Native(native::Native),
    /// Do to a tunnel port what nobody should, and report what came of it as JSON; to be run in a node
    #[command(hide = true, subcommand)]
    Hostile(hostile::Hostile),
}

#[derive(Debug, Args)]
struct Up {
    /// Run the proofs, end the lab, and exit with status 0 only if every one held
    #[arg(long)]
    once: bool,
    /// How to print what was proved
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    /// Apply these manifests too
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Leave logs and manifests behind when the lab ends
    #[arg(long)]
    keep: bool,
    /// Use the programs in this folder and build nothing
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Which clusters there are; nothing is proved of two networks here, `cargo test -p e2e --test networks` does
    #[arg(
        long,
        value_enum,
        default_value = "one-cluster",
        conflicts_with = "once"
    )]
    layout: Layout,
    /// Keep the cluster's objects in a real API server, with Kubernetes' controllers (e2e/kubernetes/build brings them)
    #[arg(long)]
    api_server: bool,
    /// Start without proving anything
    #[arg(long, conflicts_with = "once")]
    no_tour: bool,
    /// Join the nodes by a worse link, as `delay=20ms,loss=1%` (see `e2e link --help`)
    #[arg(long, value_name = "TERMS")]
    link: Option<Terms>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

#[derive(Debug, Args)]
struct Exec {
    /// NAMESPACE/POD, node-a, node-b or istiod-lite
    place: Place,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct CaptureArguments {
    node: Node,
    /// End after so many packets
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Print one line for each conversation, at the end
    #[arg(long)]
    flows: bool,
    /// Look for this text in the clear
    #[arg(long)]
    marker: Option<String>,
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

/// Runs the program: what `main` does.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let environment = Environment::of_process();
    let name = cli.lab;
    match cli.command {
        Verb::Up(up) => start(&environment, &name, &up),
        Verb::Exec(exec) => execute(&environment, &name, exec),
        Verb::Apply { file, cluster } => {
            let access = Access::to_running(&environment, &name)?;
            objects::apply(&access.in_cluster(cluster), &file)
        }
        Verb::Delete {
            kind,
            name: object,
            cluster,
        } => {
            let access = Access::to_running(&environment, &name)?;
            objects::delete(&access.in_cluster(cluster), &kind, &object)
        }
        Verb::Label {
            kind,
            name: object,
            labels,
            cluster,
        } => {
            let access = Access::to_running(&environment, &name)?;
            objects::label(&access.in_cluster(cluster), &kind, &object, &labels)
        }
        Verb::Status { output } => show_status(&environment, &name, output),
        Verb::Capture(arguments) => capture(&environment, &name, &arguments),
        Verb::Logs { name: log } => logs(&environment, &name, &log),
        Verb::Kill {
            name: victim,
            stay_down,
        } => {
            let access = Access::to_running(&environment, &name)?;
            match stay_down {
                true => access.hold_down(&victim)?,
                false => access.kill(&victim)?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Upgrade { name: daemon, env } => {
            let variables = env.iter().map(|pair| {
                pair.split_once('=')
                    .with_context(|| format!("--env {pair}: expected NAME=VALUE"))
            });
            let variables = variables.collect::<Result<Vec<_>>>()?;
            let old = Access::to_running(&environment, &name)?.upgrade(&daemon, &variables)?;
            println!("another process of {daemon} starts beside {}", old.pid);
            Ok(ExitCode::SUCCESS)
        }
        Verb::Start { name: held } => {
            Access::to_running(&environment, &name)?.let_start(&held)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Link { terms } => {
            let state = StateDir::of_lab(&environment.state_root()?, &name)?;
            let record = namespaces::join_lab(&state, Joining::FilesAndProcesses)?;
            // Born among the lab's processes: whoever enters network namespaces needs a /proc that knows it.
            let mut command = Command::new(&record.executable);
            command
                .arg("run-link")
                .arg(state.root())
                .arg(terms.to_string());
            namespaces::run_through(command)
        }
        Verb::RunLink { state, terms } => {
            link::run(&StateDir::at(state)?, &terms).map(|()| ExitCode::SUCCESS)
        }
        Verb::Reboot { node } => {
            Access::to_running(&environment, &name)?.reboot(node)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Down => down(&environment, &name),
        Verb::Traffic(conversation) => {
            report(runtime()?.block_on(local(async { converse(&conversation).await })))
        }
        Verb::Bench(bench) => match bench.run(&environment)? {
            true => Ok(ExitCode::SUCCESS),
            false => Ok(ExitCode::FAILURE),
        },
        Verb::Peer(peer) => report_of(&runtime()?.block_on(peers::dial(&peer))?),
        Verb::Certificate(request) => report_of(&runtime()?.block_on(peers::request(&request))?),
        Verb::Conformance(authority) => {
            let report = runtime()?.block_on(conformance::check(&authority))?;
            match authority.output {
                Output::Table => print!("{}", report.table()),
                Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
            }
            Ok(match report.conforms() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            })
        }
        Verb::Resolve(question) => {
            let answered = runtime()?.block_on(question.ask())?;
            println!("{}", serde_json::to_string(&answered)?);
            Ok(if answered.outcome == crate::traffic::Outcome::Done {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Verb::ServeDns => runtime()?
            .block_on(local(crate::dns::server::serve()))
            .map(|()| ExitCode::SUCCESS),
        Verb::BenchServe => {
            raise_file_limit();
            runtime()?
                .block_on(local(load::serve()))
                .map(|()| ExitCode::SUCCESS)
        }
        Verb::BenchLoad(load) => {
            raise_file_limit();
            runtime()?
                .block_on(local(load::run(&load)))
                .map(|()| ExitCode::SUCCESS)
        }
        Verb::EnterLab(options) => enter_lab(&options),
        Verb::RunLab(options) => lab::run(&options).map(|()| ExitCode::SUCCESS),
        Verb::Gateway(gateway) => {
            raise_file_limit();
            runtime()?
                .block_on(local(gateway::serve(gateway)))
                .map(|()| ExitCode::SUCCESS)
        }
        Verb::Native(native) => {
            raise_file_limit();
            runtime()?
                .block_on(local(native::run(native)))
                .map(|()| ExitCode::SUCCESS)
        }
        Verb::Hostile(hostile) => {
            raise_file_limit();
            runtime()?
                .block_on(local(async { hostile::run(&hostile).await }))
                .map(|()| ExitCode::SUCCESS)
        }
        Verb::Launch(launch) => launch.exec().map(|()| ExitCode::FAILURE),
        Verb::Serve { services } => {
            raise_file_limit();
            let name = nix::unistd::gethostname()
                .ok()
                .and_then(|name| name.into_string().ok())
                .unwrap_or_default();
            let name = std::env::vars()
                .find(|(key, _)| key == "POD_NAME")
                .map_or(name, |(_, value)| value);
            let tls_file = std::env::vars().find(|(key, _)| key == "TLS_FILE");
            let tls_file = tls_file.map(|(_, path)| path.into());
            runtime()?
                .block_on(local(serve(name, tls_file, services)))
                .map(|()| ExitCode::SUCCESS)
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")
}

async fn local<T>(work: impl Future<Output = T>) -> T {
    tokio::task::LocalSet::new().run_until(work).await
}

fn start(environment: &Environment, name: &str, up: &Up) -> Result<ExitCode> {
    ensure!(
        !up.api_server || up.layout == Layout::OneCluster,
        "--api-server is for a lab of one cluster"
    );
    // Said before anything is built.
    drop(StateDir::of_lab(&environment.state_root()?, name)?.lock()?);
    let executable = std::env::current_exe().context("the path of this program")?;
    let bin_dir = match &up.bin_dir {
        Some(folder) => folder
            .canonicalize()
            .with_context(|| format!("--bin-dir {}", folder.display()))?,
        None => binaries::build(environment, &executable)?,
    };
    let manifests = up
        .manifests
        .as_ref()
        .map(|folder| folder.canonicalize())
        .transpose()
        .context("--manifests")?;
    let options = Start {
        name: name.into(),
        executable,
        bin_dir,
        manifests,
        layout: up.layout,
        keep: up.keep,
        disks: Disks::Shared,
        api_server: up.api_server,
    };
    let mut lab = Lab::start(environment, &options, |line| eprintln!("  {line}"))?;
    let _link = up.link.as_ref().map(|terms| lab.link(terms)).transpose()?;
    let proved = match up.no_tour || up.layout != Layout::OneCluster {
        true => None,
        false => Some(tour::walk(&lab, |line| eprintln!("  {line}"))?),
    };
    let mut held = true;
    if let Some(proved) = &proved {
        held = proved.holds();
        match up.output {
            Output::Json => println!("{}", serde_json::to_string_pretty(proved)?),
            Output::Table => print!("{}", proved.table(colour())),
        }
    }
    if !held {
        lab.keep_files()?;
        eprintln!("logs are kept: {}", lab.state().logs().display());
    }
    if up.once {
        lab.stop()?;
        return Ok(if held {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    eprintln!(
        "\nThe mesh stays up until Ctrl-C or `e2e down`. Try `e2e status`, `e2e exec shop/client -- e2e traffic get web.shop:80`."
    );
    wait_for_interrupt(&mut lab)?;
    lab.stop()?;
    Ok(if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn colour() -> tour::Colour {
    if std::io::stdout().is_terminal() {
        tour::Colour::Ansi
    } else {
        tour::Colour::None
    }
}

/// Until the user has seen enough, or the lab was ended from elsewhere.
fn wait_for_interrupt(lab: &mut Lab) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    runtime()?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot handle SIGHUP")?;
        loop {
            tokio::select! {
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
                _ = hangup.recv() => return Ok(()),
                () = tokio::time::sleep(Duration::from_millis(300)) => if !lab.is_running() { return Ok(()) },
            }
        }
    })
}

/// The step between: this process unshares, its child is pid 1 of the lab.
fn enter_lab(options: &LabOptions) -> Result<ExitCode> {
    let outcome = namespaces::unshare_everything().and_then(|()| {
        let mut command = Command::new("/proc/self/exe");
        command.arg("run-lab").args(["--lab", &options.lab]);
        command
            .arg("--state")
            .arg(&options.state)
            .arg("--bin-dir")
            .arg(&options.bin_dir)
            .args(["--layout", options.layout.name()])
            .args(["--disks", options.disks.name()]);
        if let Some(folder) = &options.manifests {
            command.arg("--manifests").arg(folder);
        }
        if options.keep {
            command.arg("--keep");
        }
        if options.api_server {
            command.arg("--api-server");
        }
        namespaces::run_through(command)
    });
    if let Err(error) = &outcome {
        lab::Message::Failed {
            error: format!("{error:#}"),
        }
        .say();
    }
    outcome
}

fn execute(environment: &Environment, name: &str, exec: Exec) -> Result<ExitCode> {
    let state = StateDir::of_lab(&environment.state_root()?, name)?;
    if let Place::Pod(pod) = &exec.place {
        state.read_pod(pod)?;
    }
    let record = namespaces::join_lab(&state, Joining::FilesAndProcesses)?;
    let netns = match &exec.place {
        // A pod may live in its node's namespace.
        Place::Pod(pod) => state.read_pod(pod)?.netns,
        place => state.netns(place),
    };
    let (program, arguments) = exec.command.split_first().context("no command given")?;
    let program = if program == "e2e" {
        record.executable.clone().into_os_string()
    } else {
        program.clone()
    };
    let resolv_conf = match &exec.place {
        Place::Pod(pod) => Some(state.resolv_conf_of(pod)).filter(|path| path.exists()),
        _ => None,
    };
    let mut command = Launch::command(
        &record.executable,
        Surroundings {
            netns: Some(&netns),
            resolv_conf: resolv_conf.as_deref(),
            cgroup: None,
        },
        &crate::launch::Grant::Everything,
        Path::new(&program),
    );
    command.args(arguments);
    namespaces::run_through(command)
}

fn show_status(environment: &Environment, name: &str, output: Output) -> Result<ExitCode> {
    let access = Access::to_running(environment, name)?;
    let status = runtime()?.block_on(status::gather(&access))?;
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&status)?),
        Output::Table => print!("{}", status.table()),
    }
    Ok(ExitCode::SUCCESS)
}

fn capture(
    environment: &Environment,
    name: &str,
    arguments: &CaptureArguments,
) -> Result<ExitCode> {
    let state = StateDir::of_lab(&environment.state_root()?, name)?;
    namespaces::join_lab(&state, Joining::Files)?;
    namespaces::join_network(&state.netns(&Place::Node(arguments.node)))?;
    let mut capture = Capture::open(arguments.node, arguments.marker.as_deref())?;
    let show = match (arguments.flows, arguments.output) {
        (true, _) => Show::Nothing,
        (false, Output::Table) => Show::Packets,
        (false, Output::Json) => Show::PacketsAsJson,
    };
    let mut out = std::io::stdout();
    // Whoever started this waits for the line before it sends anything.
    match arguments.output {
        Output::Json => println!("{{\"capturing\":\"{}\"}}", arguments.node),
        Output::Table => eprintln!("capturing on {}; Ctrl-C ends it", arguments.node),
    }
    out.flush().context("output")?;
    let limits = Limits {
        packets: arguments.count,
        time: arguments.seconds.map(Duration::from_secs),
    };
    // A terminal is no signal to end; a pipe that closes is.
    let input = std::io::stdin();
    let until = match input.is_terminal() {
        true => None,
        false => Some(
            std::os::fd::AsFd::as_fd(&input)
                .try_clone_to_owned()
                .context("standard input")?,
        ),
    };
    let until = until.filter(|_| arguments.flows);
    capture.run(limits, show, until.as_ref(), &mut out)?;
    let traffic = capture.traffic();
    match (arguments.flows, arguments.output) {
        (true, Output::Json) => println!("{}", serde_json::to_string(&traffic)?),
        (true, Output::Table) => print!("{}", status::flows_table(&traffic)),
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn logs(environment: &Environment, name: &str, log: &str) -> Result<ExitCode> {
    let access = Access::to_running(environment, name)?;
    let path = access.log_path(log)?;
    let mut file =
        std::fs::File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    std::io::copy(&mut file, &mut std::io::stdout()).context("output")?;
    Ok(ExitCode::SUCCESS)
}

fn down(environment: &Environment, name: &str) -> Result<ExitCode> {
    let state = StateDir::of_lab(&environment.state_root()?, name)?;
    let record = state.read_record()?;
    if process_start(record.pid) == Some(record.started) {
        let pid = i32::try_from(record.pid).context("the lab's process id")?;
        kill(Pid::from_raw(pid), Signal::SIGTERM)
            .context("cannot end the lab; does it belong to another user?")?;
        crate::handle::eventually("the lab has ended", Duration::from_secs(40), || {
            if process_start(record.pid) == Some(record.started) {
                bail!("process {} still runs", record.pid)
            }
            Ok(())
        })?;
        println!("the lab `{name}` has ended");
    } else {
        println!("the lab `{name}` was not running any more");
    }
    // A lab started with --keep leaves its files; without its record it counts as ended.
    if state.record().exists() {
        std::fs::remove_file(state.record()).context("cannot remove the lab's record")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Thousands of connections at once take as many descriptors.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Fewer are enough for most conversations.
    let _kept = setrlimit(Resource::Nofile, limit);
}

fn report(report: crate::traffic::Report) -> Result<ExitCode> {
    println!("{}", serde_json::to_string(&report)?);
    Ok(if report.is_done() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn report_of(report: &peers::Answer) -> Result<ExitCode> {
    println!("{}", serde_json::to_string(report)?);
    Ok(if report.error.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
