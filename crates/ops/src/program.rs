// SPDX-License-Identifier: Apache-2.0
//! The life of a proxy's process: arguments, configuration, logs, run, exit code.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use crate::logging::{LogConfig, Logs};
use crate::serve::raise_descriptor_limit;
use crate::variables::ConfigError;

/// How long the last lines may take to leave.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What every configuration has.
pub trait Config {
    /// What to log and how.
    fn log(&self) -> &LogConfig;
    /// The variables as used, secrets left out.
    fn effective(&self) -> &BTreeMap<String, String>;
}

/// A program without options, configured by its environment.
pub struct Program<C> {
    /// Its name and version, as `version` prints them.
    pub name: (&'static str, &'static str),
    /// What `help` prints.
    pub help: fn() -> String,
    /// Reads the variables.
    pub configure: fn(BTreeMap<String, String>) -> Result<C, ConfigError>,
}

impl<C: Config> Program<C> {
    /// `NAME [proxy|version|help]`. Arguments after the first are there in existing manifests and mean nothing. `app` runs
    /// on a thread that is the control work's alone; what it left running when it ends is of no more use to anybody.
    pub fn run<E: Display>(self, app: impl AsyncFnOnce(C, Logs) -> Result<(), E>) -> ExitCode {
        let (name, version) = self.name;
        match std::env::args().nth(1).as_deref() {
            None | Some("proxy") => self.proxy(app),
            Some("version" | "--version" | "-V") => {
                println!("{name} {version}");
                ExitCode::SUCCESS
            }
            Some("help" | "--help" | "-h") => {
                print!("{}", (self.help)());
                ExitCode::SUCCESS
            }
            Some(other) => {
                eprint!("unknown argument {other:?}\n\n{}", (self.help)());
                ExitCode::FAILURE
            }
        }
    }

    fn proxy<E: Display>(self, app: impl AsyncFnOnce(C, Logs) -> Result<(), E>) -> ExitCode {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let config = match (self.configure)(variables.collect()) {
            Ok(config) => config,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        };
        let logs = match crate::logging::init(config.log()) {
            Ok(logs) => logs,
            Err(error) => {
                eprintln!("RUST_LOG: {error}");
                return ExitCode::FAILURE;
            }
        };
        tracing::info!(version = self.name.1, "starting");
        for (name, value) in config.effective() {
            tracing::info!(name, value, "configuration");
        }
        raise_descriptor_limit();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let code = match runtime {
            Ok(runtime) => {
                let ended = runtime.block_on(app(config, logs.clone()));
                runtime.shutdown_background();
                code(ended)
            }
            Err(error) => code(Err(format!("cannot start the control runtime: {error}"))),
        };
        logs.flush(LAST_LINES);
        code
    }
}

fn code<E: Display>(ended: Result<(), E>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
