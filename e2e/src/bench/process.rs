// SPDX-License-Identifier: Apache-2.0
//! The control plane's own program over a folder of files, on the loopback.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::files::Files;
use crate::tokens::{AUDIENCE, Bearer, ISSUER, Named, Terms, TokenIssuer};

const PATIENCE: Duration = Duration::from_secs(300);

pub(super) struct ControlPlane {
    process: Child,
    listen: SocketAddr,
    state: PathBuf,
    token: String,
}

impl ControlPlane {
    /// Starts it and waits until it has read the cluster.
    pub(super) async fn start(programs: &Path, files: &Files) -> Result<Self> {
        let issuer = TokenIssuer::generate()?;
        let (jwks, state) = (files.root().join("jwks.json"), files.root().join("state"));
        std::fs::write(&jwks, serde_json::to_vec(&issuer.jwks()?)?)?;
        let (listen, admin) = (free_port()?, free_port()?);
        let log = std::fs::File::create(files.root().join("log"))?;
        let mut process = Command::new(programs.join("istiod-lite"))
            .arg(format!("--source=dir:{}", files.manifests().display()))
            .arg(format!("--state={}", state.display()))
            .arg(format!("--jwks={}", jwks.display()))
            .arg(format!("--issuer={ISSUER}"))
            .arg(format!("--audience={AUDIENCE}"))
            .arg(format!("--listen={listen}"))
            .arg(format!("--admin={admin}"))
            .arg("--name=127.0.0.1")
            .stderr(log.try_clone()?)
            .stdout(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run istiod-lite of {}", programs.display()))?;
        let deadline = Instant::now() + PATIENCE;
        while !is_ready(admin).await {
            if let Some(status) = process.try_wait()? {
                let log = std::fs::read_to_string(files.root().join("log")).unwrap_or_default();
                bail!("istiod-lite ended ({status}): {log}");
            }
            ensure!(
                Instant::now() < deadline,
                "istiod-lite is not ready after {PATIENCE:?}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
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
        Ok(Self {
            process,
            listen,
            state,
            token: issuer.issue(&bearer, &terms)?,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.listen
    }

    pub(super) fn roots(&self) -> PathBuf {
        self.state.join("root-cert.pem")
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// `VmRSS` or `VmHWM`.
    pub(super) fn memory_kib(&self, field: &str) -> Result<u64> {
        memory_kib(&self.process, field)
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.process.kill().await.context("cannot end istiod-lite")
    }
}

/// A field of what the kernel says of a process's memory (proc_pid_status(5)).
pub(super) fn memory_kib(process: &Child, field: &str) -> Result<u64> {
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

pub(super) fn free_port() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
    Ok(listener.local_addr()?)
}

async fn is_ready(admin: SocketAddr) -> bool {
    let answer = get(admin, "/ready").await;
    answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The whole answer to an HTTP request.
pub(super) async fn get(from: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(from).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}
