// SPDX-License-Identifier: Apache-2.0
//! The control plane's process: config, logs, run, exit code.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser as _;
use istiod_lite::{
    app,
    config::{Arguments, Config},
};
use ops::{
    logging,
    metrics::{Limits, Metrics},
    shutdown,
};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match Config::read(&arguments, &std::env::vars().collect()) {
        Ok(config) => config,
        Err(mistakes) => {
            eprintln!("istiod-lite: {mistakes}");
            return ExitCode::from(2);
        }
    };
    let logs = match logging::init(&config.log) {
        Ok(logs) => logs,
        Err(error) => {
            eprintln!("istiod-lite: {error}");
            return ExitCode::from(2);
        }
    };
    let outcome = run(config);
    if let Err(error) = &outcome {
        tracing::error!("{error:#}");
    }
    logs.flush(Duration::from_secs(1));
    if outcome.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(config: Config) -> anyhow::Result<()> {
    let metrics = Metrics::new(Limits::default());
    metrics.install().context("metrics")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tracing::info!(?config, "effective configuration");
        let (shutdown, drain) = shutdown::channel();
        let mut running = app::start(config, metrics, drain).await?;
        tokio::select! {
            signal = shutdown::terminated() => tracing::info!(signal = signal?, "shutting down"),
            ended = running.finished() => {
                ended?;
                anyhow::bail!("the servers ended by themselves");
            }
        }
        shutdown.start();
        let deadline = shutdown::drain_deadline(None, None);
        match tokio::time::timeout(deadline, running.finished()).await {
            Ok(ended) => ended,
            Err(_) => {
                tracing::warn!("connections were still open at the deadline");
                Ok(())
            }
        }
    })
}
