// SPDX-License-Identifier: Apache-2.0
//! The lab's API server, with Kubernetes' own controllers: on the link beside the nodes, kept running, and held down for as
//! long as somebody wants it to be.
//!
//! ```text
//!  start ─► etcd, kube-apiserver, controllers ─► kinds, accounts and rights of deploy/base ─► built-in manifests
//!                 ▲ anew, when it ends                       └─► the token of istiod-lite, renewed
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::future::try_join_all;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::environment::private_directory;
use crate::kubernetes::{API_SERVER, Admin, Cluster, Terms, TokenRequest};
use crate::lab::objects::{self, Objects};
use crate::lab::progress;
use crate::state::{StateDir, write_atomically, write_json};
use crate::tokens::ISSUER;
use crate::topology::{API_SERVER_PORT, SYSTEM_NAMESPACE, api_server};

/// Of both families, as the addresses of the built-in Services are.
const SERVICES: &str = "10.96.0.0/16,fd96::/108";
/// The account of the control plane.
const ACCOUNT: &str = "istiod";
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
const RETRY: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// The running server.
pub struct ApiServer {
    state: StateDir,
    admin: Admin,
    /// To be completed with the file of a token.
    kubeconfig: Value,
    stop: CancellationToken,
    keeper: JoinHandle<()>,
}

impl ApiServer {
    /// Returns once it is ready and knows all kinds and rights that the mesh needs.
    pub async fn start(state: &StateDir) -> Result<Self> {
        let folder = state.kubernetes();
        private_directory(&folder)?;
        let terms = Terms {
            address: SocketAddr::new(api_server().v4.into(), API_SERVER_PORT),
            services: SERVICES.to_owned(),
            logs: state.logs(),
        };
        let mut cluster = Cluster::start_at(&folder, terms).await?;
        note_pid(state, &cluster);
        let admin = Admin::named("e2e", &state.kubeconfig()).await?;
        deploy(&admin).await?;
        // After the kinds, which they would else find much later.
        cluster.start_controllers()?;
        let kubeconfig = cluster.kubeconfig_by_token(&PathBuf::new());
        renew_token(&admin, state).await?;
        let stop = CancellationToken::new();
        let keeper = keep(cluster, state.clone(), admin.clone(), stop.clone());
        Ok(Self {
            state: state.clone(),
            admin,
            kubeconfig,
            stop,
            keeper: tokio::task::spawn_local(keeper),
        })
    }

    /// As kubelets have them.
    pub async fn objects(&self) -> Result<Objects> {
        let (admin, kubeconfig) = (self.admin.clone(), self.kubeconfig.clone());
        Objects::of_server(admin, &self.state.kubeconfig(), kubeconfig).await
    }

    /// What the control plane is told of its source: it comes with the rights of its account and no others.
    pub fn control_plane_arguments(&self) -> Result<Vec<String>> {
        let mut file = self.kubeconfig.clone();
        file["users"][0]["user"]["tokenFile"] = token_of(&self.state).display().to_string().into();
        let path = self.state.kubernetes().join(format!("{ACCOUNT}.json"));
        write_json(&path, &file)?;
        Ok(vec![
            "--source=kubernetes".to_owned(),
            format!("--kubeconfig={}", path.display()),
        ])
    }

    pub async fn stop(self) {
        self.stop.cancel();
        let _joined = self.keeper.await;
    }
}

/// Where the control plane's token lies.
fn token_of(state: &StateDir) -> PathBuf {
    state.kubernetes().join(format!("{ACCOUNT}.token"))
}

async fn renew_token(admin: &Admin, state: &StateDir) -> Result<()> {
    let wanted = TokenRequest {
        namespace: SYSTEM_NAMESPACE,
        account: ACCOUNT,
        pod: None,
        audience: ISSUER,
        lifetime: TOKEN_LIFETIME,
    };
    let token = admin.request_token(wanted).await?;
    write_atomically(&token_of(state), token.as_bytes())
}

/// Kinds first, all at once: each takes the server a while.
async fn deploy(admin: &Admin) -> Result<()> {
    let (kinds, others): (Vec<Value>, Vec<Value>) = objects::deployed()?
        .into_iter()
        .partition(|object| object["kind"] == "CustomResourceDefinition");
    try_join_all(kinds.iter().map(|kind| admin.define_as(kind))).await?;
    for object in &others {
        admin.put(object).await?;
    }
    Ok(())
}

async fn keep(mut cluster: Cluster, state: StateDir, admin: Admin, stop: CancellationToken) {
    let held_down = state.held_down(API_SERVER);
    let mut due = Instant::now() + TOKEN_LIFETIME / 2;
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stop.cancelled() => return,
        }
        if held_down.exists() {
            continue;
        }
        let kept = match cluster.is_running() {
            Ok(true) if Instant::now() < due => continue,
            Ok(true) => {
                let renewed = renew_token(&admin, &state).await;
                due = Instant::now() + renewed.as_ref().map_or(RETRY, |()| TOKEN_LIFETIME / 2);
                if let Err(error) = renewed {
                    progress(format!("the token of {ACCOUNT} is not renewed: {error:#}"));
                }
                continue;
            }
            Ok(false) => cluster.restart().await,
            Err(error) => Err(error),
        };
        match kept {
            Ok(()) => progress(format!("{API_SERVER} ended, and serves again")),
            Err(error) => progress(format!("{API_SERVER}: {error:#}")),
        }
        note_pid(&state, &cluster);
    }
}

/// For `e2e kill`.
fn note_pid(state: &StateDir, cluster: &Cluster) {
    let pid = cluster.pid().unwrap_or_default().to_string();
    let written = write_atomically(&state.api_server_pid(), pid.as_bytes());
    if let Err(error) = written.context("its process id") {
        progress(format!("{API_SERVER}: {error:#}"));
    }
}
