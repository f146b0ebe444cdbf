// SPDX-License-Identifier: Apache-2.0
//! The processes: etcd, kube-apiserver and, where they are asked for, Kubernetes' controllers, on ports of the loopback that nobody else has.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::{Child, Command};

use super::assets::COMMAND;
use super::certificates;
use crate::plane::{free_port, get};

/// Two processors that others use as well make half a minute of a few seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// Who issues tokens here, and whom tokens for the API server itself are for.
pub(super) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// What is noted of requests that change something, once each is answered.
pub(super) const AUDIT: &str = "audit.log";
const AUDIT_POLICY: &str = r#"{
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "userGroups": ["system:apiserver"]},
        {"level": "Metadata"}
    ]
}"#;

/// How a server is to be.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Where it serves.
    pub address: SocketAddr,
    /// Where the addresses of Services are taken from, as CIDRs separated by commas; one of each family makes it dual-stack.
    pub services: String,
    /// Where all that is said goes, a file for each program.
    pub logs: PathBuf,
}

impl Terms {
    /// On the loopback, for one test.
    pub(super) fn of_test(folder: &Path) -> Result<Self> {
        Ok(Self {
            address: free_port()?,
            services: "10.96.0.0/16".to_owned(),
            logs: folder.to_owned(),
        })
    }
}

/// Killed when it is dropped.
pub(super) struct Server {
    programs: PathBuf,
    folder: PathBuf,
    etcd: SocketAddr,
    pub(super) terms: Terms,
    _store: Child,
    api: Child,
    controllers: Option<Child>,
}

/// The program of the API server, and what its log is called.
pub const API_SERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const CONTROLLERS: &str = "namespace-controller,serviceaccount-controller,root-ca-certificate-publisher-controller,\
    endpointslice-controller,deployment-controller,replicaset-controller,garbage-collector-controller";

impl Server {
    /// Starts both; the API server may not be ready yet.
    pub(super) async fn start(programs: &Path, folder: &Path, terms: Terms) -> Result<Self> {
        certificates::write(folder, terms.address.ip())?;
        std::fs::write(folder.join("audit.json"), AUDIT_POLICY).context("the audit's policy")?;
        let (etcd, peers) = (free_port()?, free_port()?);
        let mut store = Command::new(programs.join("etcd"));
        store
            .arg(format!("--data-dir={}", folder.join("etcd").display()))
            .arg(format!("--listen-client-urls=http://{etcd}"))
            .arg(format!("--advertise-client-urls=http://{etcd}"))
            .arg(format!("--listen-peer-urls=http://{peers}"))
            .arg("--log-level=warn")
            // Nothing here outlives the test.
            .env("ETCD_UNSAFE_NO_FSYNC", "true");
        let log = log_of(&terms, "etcd");
        let mut store = spawn(store, &log)?;
        let deadline = Instant::now() + PATIENCE;
        while !get(etcd, "/health")
            .await
            .is_ok_and(|answer| answer.contains("200 OK"))
        {
            alive(&mut store, "etcd", &log)?;
            ensure!(
                Instant::now() < deadline,
                "etcd is not ready after {PATIENCE:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let api = serve(programs, folder, etcd, &terms)?;
        Ok(Self {
            programs: programs.to_owned(),
            folder: folder.to_owned(),
            etcd,
            terms,
            _store: store,
            api,
            controllers: None,
        })
    }

    /// Starts the controllers, as the administrator.
    pub(super) fn start_controllers(&mut self) -> Result<()> {
        let program = self.programs.join(CONTROLLER_MANAGER);
        ensure!(
            program.is_file(),
            "no {CONTROLLER_MANAGER} in {}: run {COMMAND}, and leave KUBEBUILDER_ASSETS unset if its folder has none",
            self.programs.display()
        );
        let file =
            |flag: &str, name: &str| format!("--{flag}={}", self.folder.join(name).display());
        let mut controllers = Command::new(program);
        controllers
            .args([
                file("kubeconfig", "admin.json"),
                file("service-account-private-key-file", "accounts.key"),
                file("root-ca-file", "ca.crt"),
            ])
            .arg(format!("--controllers={CONTROLLERS}"))
            // It is alone, serves nobody, and is not to wait for leave to ask.
            .args(["--leader-elect=false", "--secure-port=0"])
            .args(["--kube-api-qps=500", "--kube-api-burst=1000"]);
        let log = log_of(&self.terms, CONTROLLER_MANAGER);
        self.controllers = Some(spawn(controllers, &log)?);
        Ok(())
    }

    /// An error as soon as the API server has ended.
    pub(super) fn alive(&mut self) -> Result<()> {
        alive(&mut self.api, API_SERVER, &log_of(&self.terms, API_SERVER))
    }

    /// The API server's process, while there is one.
    pub(super) fn pid(&self) -> Option<u32> {
        self.api.id()
    }

    /// Starts the controllers anew where they have ended.
    pub(super) fn keep_controllers(&mut self) -> Result<()> {
        let ended = match &mut self.controllers {
            Some(controllers) => controllers.try_wait()?.is_some(),
            None => false,
        };
        if ended {
            self.start_controllers()?;
        }
        Ok(())
    }

    /// Takes the API server away, as its machine would.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.api.kill().await.context("cannot kill kube-apiserver")
    }

    /// Gives it back, on the same port and with all that is stored.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.api = serve(&self.programs, &self.folder, self.etcd, &self.terms)?;
        Ok(())
    }

    /// Has the store forget everything before this version.
    pub(super) async fn compact(&self, version: &str) -> Result<()> {
        let body = format!(r#"{{"revision": "{version}", "physical": true}}"#);
        let answer = crate::plane::post(self.etcd, "/v3/kv/compaction", &body).await?;
        ensure!(answer.contains("200 OK"), "etcd did not compact: {answer}");
        Ok(())
    }
}

fn serve(programs: &Path, folder: &Path, etcd: SocketAddr, terms: &Terms) -> Result<Child> {
    let (ip, port) = (terms.address.ip(), terms.address.port());
    let file = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
    let mut api = Command::new(programs.join(API_SERVER));
    api.arg(format!("--etcd-servers=http://{etcd}"))
        .arg(format!("--secure-port={port}"))
        .arg(format!("--bind-address={ip}"))
        .arg(format!("--advertise-address={ip}"))
        .arg(format!("--service-cluster-ip-range={}", terms.services))
        .args([
            file("cert-dir", ""),
            file("tls-cert-file", "server.crt"),
            file("tls-private-key-file", "server.key"),
            file("client-ca-file", "ca.crt"),
            file("service-account-key-file", "accounts.pub"),
            file("service-account-signing-key-file", "accounts.key"),
            file("audit-policy-file", "audit.json"),
            file("audit-log-path", AUDIT),
        ])
        .arg(format!("--service-account-issuer={ISSUER}"))
        .args([
            "--authorization-mode=RBAC",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--profiling=false",
            // Nobody makes the account `default` here, which this would add to every pod.
            "--disable-admission-plugins=ServiceAccount",
        ]);
    spawn(api, &log_of(terms, API_SERVER))
}

fn log_of(terms: &Terms, program: &str) -> PathBuf {
    terms.logs.join(format!("{program}.log"))
}

fn spawn(mut command: Command, log: &Path) -> Result<Child> {
    let program = command.as_std().get_program().to_owned();
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(log)?;
    command
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))
}

fn alive(process: &mut Child, name: &str, log: &Path) -> Result<()> {
    let Some(status) = process.try_wait()? else {
        return Ok(());
    };
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let from = log.len().saturating_sub(4000);
    let last = log.get(from..).unwrap_or(&log);
    bail!("{name} ended ({status}): {last}")
}
