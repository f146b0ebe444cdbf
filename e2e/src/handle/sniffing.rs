// SPDX-License-Identifier: Apache-2.0
//! A capture that runs beside what a test does.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::Access;
use crate::sniff::Traffic;
use crate::topology::Node;

/// A running capture of a node's wire. Dropping it ends it without a word.
pub struct Sniffing {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Access {
    /// Watches the wire of a node from the return of this call on.
    pub fn start_sniffing(&self, node: Node, marker: Option<&str>) -> Result<Sniffing> {
        let mut arguments = vec!["capture", node.name(), "--output", "json", "--flows"];
        if let Some(marker) = marker {
            arguments.extend(["--marker", marker]);
        }
        let mut process = self
            .command(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run e2e capture")?;
        let output = process.stdout.take().context("the capture's output")?;
        let mut sniffing = Sniffing {
            process,
            output: BufReader::new(output),
        };
        let mut first = String::new();
        sniffing
            .output
            .read_line(&mut first)
            .context("the capture's output")?;
        ensure!(
            first.contains("capturing"),
            "the capture on {node} did not start: {first}"
        );
        Ok(sniffing)
    }

    /// Watches the wire of a node while `during` runs.
    pub fn sniff<T>(
        &self,
        node: Node,
        marker: Option<&str>,
        during: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Traffic)> {
        let sniffing = self.start_sniffing(node, marker)?;
        let outcome = during();
        let traffic = sniffing.finish()?;
        Ok((outcome?, traffic))
    }
}

impl Sniffing {
    /// Ends the capture and tells what it has seen.
    pub fn finish(mut self) -> Result<Traffic> {
        drop(self.process.stdin.take());
        let mut rest = String::new();
        self.output
            .read_to_string(&mut rest)
            .context("the capture's output")?;
        self.process.wait().context("the capture")?;
        serde_json::from_str(rest.trim()).with_context(|| format!("the capture printed {rest}"))
    }
}

impl Drop for Sniffing {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}
