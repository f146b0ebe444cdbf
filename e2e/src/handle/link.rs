// SPDX-License-Identifier: Apache-2.0
//! A worse link between the nodes of a running lab, for as long as it is held.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::Access;
use crate::link::Terms;
use crate::topology::Layout;

/// The link at work. Dropping it gives the lab its own link back.
#[derive(Debug)]
pub struct Link {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Access {
    /// Leads the traffic between the nodes, and to the control plane, over a link of these terms.
    pub fn link(&self, terms: &Terms) -> Result<Link> {
        ensure!(
            self.state().read_record()?.layout == Layout::OneCluster,
            "networks of their own are joined by nothing that could be made worse without joining their pods"
        );
        let mut process = self
            .command(&["link", &terms.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run e2e link")?;
        let output = process.stdout.take().context("the link's output")?;
        let mut link = Link {
            process,
            output: BufReader::new(output),
        };
        link.expect("linked")?;
        Ok(link)
    }
}

impl Link {
    /// From the return of this call on, packets meet these terms.
    pub fn change(&mut self, terms: &Terms) -> Result<()> {
        let input = self.process.stdin.as_mut().context("the link's input")?;
        writeln!(input, "{terms}").context("the link is gone")?;
        self.expect("changed")
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .context("the link's output")?;
        ensure!(
            line.trim() == word,
            "the link did not say `{word}`: {line:?}"
        );
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _reaped = self.process.wait();
    }
}
