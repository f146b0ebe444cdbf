// SPDX-License-Identifier: Apache-2.0
//! A connection that stays open until somebody ends it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::traffic::Report;

/// A connection that is held open in a pod.
#[derive(Debug)]
pub struct Held {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Held {
    /// Starts the client and waits until its connection works.
    pub(super) fn start(mut client: Command) -> Result<Self> {
        let client = client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = client.spawn().context("cannot run e2e exec")?;
        let lines = lines_of(process.stdout.take().context("the client's output")?);
        match lines.recv_timeout(Duration::from_secs(30)).as_deref() {
            Ok("open") => Ok(Self { process, lines }),
            Ok(other) => bail!("the connection did not open: {other}"),
            Err(_) => bail!("the client said nothing"),
        }
    }

    /// Waits for the connection to be ended by somebody else.
    pub fn ended(mut self, within: Duration) -> Result<Report> {
        let report = self.report(within);
        // It may still hold on: nobody will tell it to stop.
        let _already_gone = self.process.kill();
        self.process.wait().context("the client")?;
        report
    }

    /// Ends the connection from the client's side.
    pub fn release(mut self) -> Result<Report> {
        drop(self.process.stdin.take());
        let report = self.report(Duration::from_secs(30));
        self.process.wait().context("the client")?;
        report
    }

    fn report(&self, within: Duration) -> Result<Report> {
        let line = self
            .lines
            .recv_timeout(within)
            .with_context(|| format!("the connection was still open after {within:?}"))?;
        serde_json::from_str(&line).with_context(|| format!("the client printed {line}"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn lines_of(output: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
