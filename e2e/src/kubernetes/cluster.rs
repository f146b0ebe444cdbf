// SPDX-License-Identifier: Apache-2.0
//! A clean cluster for one test.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::RequestError;
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::admin::Admin;
use super::assets::assets;
use super::certificates::{USERS, kubeconfig, kubeconfig_by_token};
use super::gate::Gate;
use super::server::{AUDIT, ISSUER, Server, Terms};
use crate::environment::Environment;

const PATIENCE: Duration = Duration::from_secs(120);

/// A request that changed something, as the API server has noted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub user: String,
    pub verb: String,
    pub uri: String,
}

/// An API server with nothing in it but what it makes itself. All of it ends when it is dropped.
pub struct Cluster {
    server: Server,
    /// The way that the kubeconfig for others takes; the administrator has another.
    pub gate: Gate,
    admin: Admin,
    folder: Folder,
}

/// Where its files lie.
enum Folder {
    /// Until it ends.
    Own(TempDir),
    /// Somebody else sees to them.
    Given(PathBuf),
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Self::Own(folder) => folder.path(),
            Self::Given(folder) => folder,
        }
    }
}

impl Cluster {
    /// Returns when it is ready.
    pub async fn start() -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the cluster")?;
        let terms = Terms::of_test(folder.path())?;
        Self::begin(Folder::Own(folder), terms).await
    }

    /// The same on terms of one's own, with its files in a folder that is there.
    pub async fn start_at(folder: &Path, terms: Terms) -> Result<Self> {
        Self::begin(Folder::Given(folder.to_owned()), terms).await
    }

    async fn begin(folder: Folder, terms: Terms) -> Result<Self> {
        let programs = assets(&Environment::of_process())?;
        let server = Server::start(&programs, folder.path(), terms).await?;
        let address = server.terms.address;
        let gate = Gate::to(address).await?;
        for user in USERS {
            let way = match user {
                "admin" => address,
                _ => gate.address,
            };
            let file = kubeconfig(folder.path(), user, &format!("https://{way}"));
            std::fs::write(folder.path().join(format!("{user}.json")), file.to_string())
                .context("cannot write a kubeconfig")?;
        }
        let admin = Admin::of(&folder.path().join("admin.json")).await?;
        let mut cluster = Self {
            server,
            gate,
            admin,
            folder,
        };
        cluster.ready().await?;
        Ok(cluster)
    }

    /// For whoever holds the token in a file, which is read again and again; without a detour.
    pub fn kubeconfig_by_token(&self, token: &Path) -> Value {
        let server = format!("https://{}", self.server.terms.address);
        kubeconfig_by_token(self.folder.path(), &server, token)
    }

    /// For whoever is tried, through the gate.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("replica-a.json")
    }

    /// The same for another, whom the server tells from the first.
    pub fn second_kubeconfig(&self) -> PathBuf {
        self.folder.path().join("replica-b.json")
    }

    /// All that `replica-a`, `replica-b` and the test have changed, or tried to, in order.
    pub fn writes(&self) -> Result<Vec<Write>> {
        let log = std::fs::read_to_string(self.folder.path().join(AUDIT)).unwrap_or_default();
        // The last line may be half written.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        let read = |line: &str| {
            let event: Value = serde_json::from_str(line).context("the audit's log")?;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            Ok(Write {
                user: text(&event["user"]["username"]),
                verb: text(&event["verb"]),
                uri: text(&event["requestURI"]),
            })
        };
        whole.lines().map(read).collect()
    }

    /// For what runs in this pod, with the rights of its account and no others, through the gate.
    pub async fn kubeconfig_of(&self, pod: &Value) -> Result<PathBuf> {
        let name = pod["spec"]["serviceAccountName"].as_str();
        let name = name.context("the pod has no account")?;
        let token = self.token(pod, ISSUER).await?;
        let server = format!("https://{}", self.gate.address);
        let mut file = kubeconfig(self.folder.path(), name, &server);
        file["users"][0]["user"] = json!({ "token": token });
        let path = self.folder.path().join(format!("{name}.json"));
        std::fs::write(&path, file.to_string()).context("cannot write a kubeconfig")?;
        Ok(path)
    }

    /// From now on Kubernetes' own controllers follow the cluster: those of namespaces, accounts and the cluster's root
    /// certificate, endpoints, Deployments and their pods, and what has lost its owner. Kinds that are defined later they
    /// find within half a minute.
    ///
    /// # Errors
    /// Where the program is not among Kubernetes' programs.
    pub fn start_controllers(&mut self) -> Result<()> {
        self.server.start_controllers()
    }

    /// Whether the API server runs; the controllers, where they were started, do from now on.
    pub fn is_running(&mut self) -> Result<bool> {
        self.server.keep_controllers()?;
        Ok(self.server.alive().is_ok())
    }

    /// The API server's process, while there is one.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Room for files of the test's own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Takes the API server away; what is stored stays.
    pub async fn kill(&mut self) -> Result<()> {
        self.server.kill().await
    }

    /// Gives it back.
    pub async fn restart(&mut self) -> Result<()> {
        self.server.restart()?;
        self.ready().await
    }

    /// Has the store forget all that happened until now, so that nobody can ask for it.
    pub async fn forget_the_past(&self) -> Result<()> {
        let list = self
            .call(Method::GET, "/api/v1/namespaces?limit=1", None)
            .await?;
        let version = list["metadata"]["resourceVersion"].as_str();
        self.server.compact(version.context("no version")?).await
    }

    async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.server.alive()?;
            // Namespaces are made by the server itself, as the last thing.
            let ready = self.call(Method::GET, "/readyz", None).await;
            let ready = match ready {
                // It says `ok`, which is no JSON.
                Err(RequestError::Broken(reason)) if reason.contains("not understood") => Ok(()),
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            let known = self
                .call(Method::GET, "/api/v1/namespaces/default", None)
                .await;
            match ready.and(known.map(drop)) {
                Ok(()) => return Ok(()),
                Err(error) => ensure!(
                    Instant::now() < deadline,
                    "kube-apiserver is not ready after {PATIENCE:?}: {error}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl std::ops::Deref for Cluster {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.admin
    }
}
