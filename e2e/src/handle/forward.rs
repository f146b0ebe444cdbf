// SPDX-License-Identifier: Apache-2.0
//! A loopback port of a pod that leads elsewhere by a tunnel of the pod's own, whatever the mesh thinks of it.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::Access;
use crate::traffic::Outcome;

/// A tunnel of a pod's own.
#[derive(Debug, Clone, Copy)]
pub struct Tunnel<'a> {
    /// The pod, which runs under an account of the same name.
    pub pod: &'a str,
    /// The application's address.
    pub to: SocketAddr,
    /// Where the tunnel ends, if not there.
    pub through: Option<IpAddr>,
    /// Who may answer it.
    pub expect: &'a str,
}

/// The port; gone when dropped.
pub struct Forward {
    lab: Access,
    pod: String,
    process: Child,
    _lifeline: ChildStdin,
    said: BufReader<ChildStdout>,
    port: u16,
}

impl Access {
    /// What a program in a pod that tunnels itself is told of who it is: an account of the pod's namespace.
    pub fn membership(&self, pod: &str, account: &str) -> Result<Vec<String>> {
        let record = self.pod(pod)?;
        let volumes = self.state().node(record.node).join("volumes");
        let token = volumes.join(record.pod.slug()).join("tokens/istio-token");
        let roots = self.state().root_certificates();
        let control_plane = format!(
            "https://{}:{}",
            crate::topology::CONTROL_PLANE_NAME,
            crate::topology::CONTROL_PLANE_PORT
        );
        let said = [
            ("--account", account.to_owned()),
            ("--control-plane", control_plane),
            ("--token", token.display().to_string()),
            ("--roots", roots.display().to_string()),
        ];
        let words = said.into_iter();
        Ok(words
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect())
    }

    /// Opens a port that leads by such a tunnel.
    pub fn forward(&self, tunnel: Tunnel<'_>) -> Result<Forward> {
        let to = tunnel.to.to_string();
        let mut arguments = vec!["native".to_owned(), "forward".to_owned()];
        arguments.extend(self.membership(tunnel.pod, tunnel.pod)?);
        arguments.extend(["--to", &to, "--expect", tunnel.expect].map(str::to_owned));
        if let Some(through) = tunnel.through {
            arguments.extend(["--through".to_owned(), through.to_string()]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = self.tool(tunnel.pod, &arguments);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run e2e exec")?;
        let lifeline = process.stdin.take().context("its input")?;
        let mut said = BufReader::new(process.stdout.take().context("its output")?);
        let mut line = String::new();
        said.read_line(&mut line).context("its output")?;
        let port = line.trim().parse();
        Ok(Forward {
            lab: self.clone(),
            pod: tunnel.pod.to_owned(),
            process,
            _lifeline: lifeline,
            said,
            port: port.with_context(|| format!("the tunnel's program said {line:?}"))?,
        })
    }
}

impl Forward {
    /// Where to connect to, inside the pod.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Why a connection through it is not opened.
    pub fn refusal(&mut self) -> Result<String> {
        let report = self.lab.traffic(&self.pod, &["echo", &self.address()])?;
        ensure!(report.outcome == Outcome::Reset, "{report:?}");
        let mut line = String::new();
        self.said.read_line(&mut line).context("its output")?;
        Ok(line)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}
