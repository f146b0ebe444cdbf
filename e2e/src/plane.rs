// SPDX-License-Identifier: Apache-2.0
//! The control plane's own program by itself, on the loopback, and clients that speak to it as ztunnels do.

pub mod client;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::tokens::{AUDIENCE, Bearer, ISSUER, Named, Terms, TokenIssuer};
use crate::traffic::http;

const PATIENCE: Duration = Duration::from_secs(300);

/// Where the control plane learns of the cluster, and by whom it knows its clients.
pub enum Source<'a> {
    /// A folder of manifests, and tokens that are made up here.
    Directory(&'a Path),
    /// An API server, and a token of its own.
    Kubernetes { kubeconfig: &'a Path, token: String },
}

/// Killed when it is dropped.
pub struct ControlPlane {
    process: Child,
    listen: SocketAddr,
    admin: SocketAddr,
    state: PathBuf,
    token: String,
}

impl ControlPlane {
    /// Starts it and waits until it knows the cluster. Whatever it leaves goes below `root`.
    pub async fn start(programs: &Path, root: &Path, source: Source<'_>) -> Result<Self> {
        Self::start_with(programs, root, source, &[]).await
    }

    /// The same with variables besides those of this process.
    pub async fn start_with(
        programs: &Path,
        root: &Path,
        source: Source<'_>,
        variables: &[(&str, &Path)],
    ) -> Result<Self> {
        std::fs::create_dir_all(root)?;
        let state = root.join("state");
        let (source, token) = match source {
            Source::Directory(manifests) => own_tokens(root, manifests)?,
            Source::Kubernetes { kubeconfig, token } => {
                let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
                (vec!["--source=kubernetes".to_owned(), kubeconfig], token)
            }
        };
        let (listen, admin) = (free_port()?, free_port()?);
        let log = std::fs::File::create(root.join("log"))?;
        let mut process = Command::new(programs.join("istiod-lite"))
            .args(source)
            .envs(variables.iter().copied())
            .arg(format!("--state={}", state.display()))
            .arg(format!("--audience={AUDIENCE}"))
            .arg(format!("--listen={listen}"))
            .arg(format!("--admin={admin}"))
            .arg("--monitoring=127.0.0.1:0")
            .arg("--name=127.0.0.1")
            .stderr(log.try_clone()?)
            .stdout(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run istiod-lite of {}", programs.display()))?;
        let deadline = Instant::now() + PATIENCE;
        while !is_ready(admin).await {
            if let Some(status) = process.try_wait()? {
                let log = std::fs::read_to_string(root.join("log")).unwrap_or_default();
                bail!("istiod-lite ended ({status}): {log}");
            }
            ensure!(
                Instant::now() < deadline,
                "istiod-lite is not ready after {PATIENCE:?}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(Self {
            process,
            listen,
            admin,
            state,
            token,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.listen
    }

    /// A page for operators, if it answers with one.
    pub async fn page(&self, path: &str) -> Result<serde_json::Value> {
        let answer = http::get(TcpStream::connect(self.admin).await?, "admin", path).await?;
        ensure!(answer.status == 200, "{path} answered {}", answer.status);
        Ok(serde_json::from_str(&answer.body)?)
    }

    pub fn roots(&self) -> PathBuf {
        self.state.join("root-cert.pem")
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// `VmRSS` or `VmHWM`.
    pub fn memory_kib(&self, field: &str) -> Result<u64> {
        memory_kib(&self.process, field)
    }

    /// Seconds of processor time that it has taken so far.
    pub fn processor_seconds(&self) -> Result<f64> {
        let id = self.process.id().context("the process has ended")?;
        crate::handle::processor_seconds(id)
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: nix::sys::signal::Signal) -> Result<()> {
        let id = self.process.id().context("the process has ended")?;
        let id = nix::unistd::Pid::from_raw(i32::try_from(id)?);
        nix::sys::signal::kill(id, signal).context("cannot signal istiod-lite")
    }

    pub async fn stop(mut self) -> Result<()> {
        self.process.kill().await.context("cannot end istiod-lite")
    }
}

/// The arguments of a folder whose tokens are signed with a new key, and the token of a node's proxy.
fn own_tokens(root: &Path, manifests: &Path) -> Result<(Vec<String>, String)> {
    let issuer = TokenIssuer::generate()?;
    let jwks = root.join("jwks.json");
    std::fs::write(&jwks, serde_json::to_vec(&issuer.jwks()?)?)?;
    let named = |name: &str| Named {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
    };
    let bearer = Bearer {
        namespace: "istio-system".to_owned(),
        service_account: named("ztunnel"),
        pod: named("ztunnel-0"),
        node: named("node-0"),
    };
    let terms = Terms {
        audience: AUDIENCE.to_owned(),
        lifetime: Duration::from_secs(3600),
        issued: SystemTime::now(),
    };
    let arguments = vec![
        format!("--source=dir:{}", manifests.display()),
        format!("--jwks={}", jwks.display()),
        format!("--issuer={ISSUER}"),
    ];
    Ok((arguments, issuer.issue(&bearer, &terms)?))
}

/// A field of what the kernel says of a process's memory (proc_pid_status(5)).
pub fn memory_kib(process: &Child, field: &str) -> Result<u64> {
    let id = process.id().context("the process has ended")?;
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("no {field}"))
}

/// Ports below those that the kernel gives to whoever asks for any: what is free here stays so until its program listens.
const PORTS: Range<u16> = 20_000..32_000;

/// An address on the loopback for a program to listen on; this process gives none twice.
pub fn free_port() -> Result<SocketAddr> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..1000 {
        let address = SocketAddr::from(([127, 0, 0, 1], rand::random_range(PORTS)));
        if !given.contains(&address.port()) && TcpListener::bind(address).is_ok() {
            given.insert(address.port());
            return Ok(address);
        }
    }
    bail!("no free port among {PORTS:?}")
}

async fn is_ready(admin: SocketAddr) -> bool {
    let answer = get(admin, "/ready").await;
    answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The whole answer to an HTTP request.
pub async fn get(from: SocketAddr, path: &str) -> std::io::Result<String> {
    ask(from, "GET", path, "").await
}

/// The whole answer to an HTTP request with a body.
pub async fn post(to: SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    ask(to, "POST", path, body).await
}

async fn ask(to: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(to).await?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_given_once_and_not_by_the_kernel() {
        let ports: Vec<_> = (0..200).map(|_| free_port().unwrap().port()).collect();
        let different: BTreeSet<_> = ports.iter().collect();
        assert_eq!(different.len(), ports.len());
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }
}
