// SPDX-License-Identifier: Apache-2.0
//! `waypoint [proxy|version|help]`: configuration, logs, run, exit code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use ops::logging::{LogConfig, Logs};
use waypoint::app;
use waypoint::config::{Config, Sources, VARIABLES};

fn main() -> ExitCode {
    // Arguments after the first are there in existing manifests and mean nothing.
    match std::env::args().nth(1).as_deref() {
        None | Some("proxy") => run(),
        Some("version" | "--version" | "-V") => {
            println!("waypoint {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Some("help" | "--help" | "-h") => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Some(other) => {
            eprint!("unknown argument {other:?}\n\n{}", help());
            ExitCode::FAILURE
        }
    }
}

fn run() -> ExitCode {
    let sources = Sources {
        variables: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let config = match Config::from_sources(&sources) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let logs = match ops::logging::init(&LogConfig {
        format: config.log.format,
        filter: config.log.filter.clone(),
        always: "",
    }) {
        Ok(logs) => logs,
        Err(error) => {
            eprintln!("RUST_LOG: {error}");
            return ExitCode::FAILURE;
        }
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        workers = config.workers,
        "starting"
    );
    for (name, value) in &config.effective {
        tracing::info!(name, value, "configuration");
    }
    let code = match serve(config, logs.clone()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    };
    logs.flush(Duration::from_secs(1));
    code
}

fn serve(config: Config, logs: Logs) -> anyhow::Result<()> {
    ops::serve::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control runtime")?;
    let served = runtime.block_on(app::run(config, logs));
    // What still runs is of no more use to anybody.
    runtime.shutdown_background();
    served
}

fn help() -> String {
    ops::variables::help(
        "waypoint: the L7 proxy of the mesh\n\nusage: waypoint [proxy|version|help]",
        VARIABLES,
    )
}
