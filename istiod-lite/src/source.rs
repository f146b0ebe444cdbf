// SPDX-License-Identifier: Apache-2.0
//! Where the cluster's objects come from, and where what is said of them goes.

use std::path::PathBuf;

use anyhow::Context as _;
use cluster::{Api, Client, Connection, Directory, Follow, Kind, Source, StatusWriter};
use ops::shutdown::DrainSignal;
use tokio::task::JoinHandle;

use crate::{
    config::SourceConfig,
    leader::{self, Leadership},
    status, wellknown,
};

/// The cluster, as far as it can be reached.
#[derive(Debug)]
pub enum Cluster {
    /// A directory of its objects' manifests.
    Directory(PathBuf),
    /// Its API server, which need not answer yet.
    Server {
        /// How to reach it.
        connection: Connection,
        /// For what is asked and written here.
        client: Client,
    },
}

impl Cluster {
    /// Finds out how to reach it.
    ///
    /// # Errors
    /// A kubeconfig that can't be used; none, outside of a pod.
    pub async fn open(config: &SourceConfig) -> anyhow::Result<Self> {
        let kubeconfig = match config {
            SourceConfig::Directory(path) => return Ok(Self::Directory(path.clone())),
            SourceConfig::Kubernetes(kubeconfig) => kubeconfig,
        };
        let connection = Connection::open(kubeconfig.as_deref()).await?;
        let client = connection.client()?;
        Ok(Self::Server { connection, client })
    }

    /// Begins to follow its objects.
    ///
    /// # Errors
    /// A directory that can't be read.
    pub fn source(&self, root_namespace: &str) -> anyhow::Result<Source> {
        Ok(match self {
            Self::Directory(path) => Directory::open(path)?,
            Self::Server { connection, .. } => Api::open(connection, followed(root_namespace))?,
        })
    }

    /// Writes conditions for who answers to these revisions; to be called within the runtime that shall write them.
    ///
    /// # Errors
    /// A revision whose name can't be a writer's.
    pub fn status_writer(&self, revisions: &[String]) -> anyhow::Result<StatusWriter> {
        let manager = status::manager(revisions);
        let writer = match self {
            Self::Directory(path) => StatusWriter::new(path, &manager),
            Self::Server { client, .. } => StatusWriter::to_server(client.clone(), &manager),
        };
        writer.with_context(|| format!("revision {revisions:?}"))
    }

    /// Begins to follow more of its objects, where it has an API server.
    ///
    /// # Errors
    /// When there is no thread left to follow with.
    pub fn follow(
        &self,
        follow: impl IntoIterator<Item = Follow>,
    ) -> anyhow::Result<Option<(Source, Client)>> {
        Ok(match self {
            Self::Directory(_) => None,
            Self::Server { connection, client } => {
                Some((Api::open(connection, follow)?, client.clone()))
            }
        })
    }

    /// Whether it is for this replica to write. Of a directory it is.
    pub fn leadership(
        &self,
        namespace: &str,
        replica: &str,
        drain: DrainSignal,
    ) -> (Leadership, Option<JoinHandle<()>>) {
        match self.client() {
            None => (Leadership::alone(), None),
            Some(client) => {
                let (leadership, campaign) = leader::campaign(client, namespace, replica, drain);
                (leadership, Some(campaign))
            }
        }
    }

    /// A client of its API server, if it has one.
    pub fn client(&self) -> Option<Client> {
        match self {
            Self::Directory(_) => None,
            Self::Server { client, .. } => Some(client.clone()),
        }
    }
}

/// What the index makes something of, and no more of it than it reads.
fn followed(root_namespace: &str) -> impl Iterator<Item = Follow> {
    Kind::ALL.iter().filter_map(move |kind| match kind {
        Kind::Namespace | Kind::Node => Some(Follow::metadata(*kind)),
        // Services may be led to from everywhere: only Gateways would need grants.
        Kind::ServiceAccount
        | Kind::Deployment
        | Kind::HorizontalPodAutoscaler
        | Kind::PodDisruptionBudget
        | Kind::ReferenceGrant => None,
        Kind::ConfigMap => {
            let name = wellknown::MESH_CONFIG;
            let fields = format!("metadata.namespace={root_namespace},metadata.name={name}");
            Some(Follow::all(*kind).only(fields))
        }
        kind => Some(Follow::all(*kind)),
    })
}
