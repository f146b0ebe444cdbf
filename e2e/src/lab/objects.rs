// SPDX-License-Identifier: Apache-2.0
//! The cluster's objects, as kubelets have them: what is to run, and what they say of it.
//!
//! ```text
//!            folder of manifests                 API server
//!  source    the folder, watched                 a watch for each kind
//!  say       a file beside the manifests         status, by server-side apply
//!  gone      the file and the pod's own removed  DELETE of that very pod, without grace
//!  token     signed with a key of the lab's      TokenRequest
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use cluster::kinds::Pod;
use cluster::{
    Api, Connection, Directory, Event, Follow, Kind, Object, ObjectKey, Partial, Source,
    StatusWriter,
};
use serde_json::Value;

use crate::kubernetes::{self, Admin, End, TokenRequest};
use crate::manifests::{self, Applied, served};
use crate::state::StateDir;
use crate::tokens::{Bearer, Named, Terms, TokenIssuer};
use crate::topology::Node;

/// The name under which kubelets speak of pods.
const MANAGER: &str = "kubelet";

/// Where the objects of a cluster are.
pub struct Objects {
    place: Place,
}

enum Place {
    Folder {
        manifests: PathBuf,
        status: StatusWriter,
        issuer: Rc<TokenIssuer>,
        /// The uids of nodes and service accounts, for tokens.
        uids: RefCell<HashMap<ObjectKey, String>>,
    },
    Server {
        admin: Admin,
        connection: Connection,
        status: StatusWriter,
        /// A kubeconfig that lacks but the token's file.
        kubeconfig: Box<Value>,
    },
}

/// Whom a token is for.
#[derive(Debug, Clone)]
pub struct Holder {
    pub namespace: String,
    pub account: String,
    pub pod: Named,
    pub node: Node,
}

impl Objects {
    /// Of the manifests of the cluster that `state` is seen from.
    pub fn of_folder(state: &StateDir, issuer: Rc<TokenIssuer>) -> Result<Self> {
        let manifests = state.manifests();
        let status = StatusWriter::new(&manifests, MANAGER).context("cannot write status")?;
        Ok(Self {
            place: Place::Folder {
                manifests,
                status,
                issuer,
                uids: RefCell::default(),
            },
        })
    }

    /// Of an API server; `kubeconfig` leads to it, and names no user yet.
    pub async fn of_server(
        admin: Admin,
        admin_kubeconfig: &Path,
        kubeconfig: Value,
    ) -> Result<Self> {
        let connection = Connection::kubeconfig(admin_kubeconfig).await?;
        let status = StatusWriter::to_server(connection.client()?, MANAGER)?;
        Ok(Self {
            place: Place::Server {
                admin,
                connection,
                status,
                kubeconfig: Box::new(kubeconfig),
            },
        })
    }

    /// As the mesh's programs are told of it (`--source`).
    pub fn source_argument(&self) -> String {
        match &self.place {
            Place::Folder { manifests, .. } => format!("dir:{}", manifests.display()),
            Place::Server { .. } => "kubernetes".to_owned(),
        }
    }

    /// How to reach the API server with the token in this file, if there is one.
    pub fn kubeconfig(&self, token: &Path) -> Option<Value> {
        match &self.place {
            Place::Folder { .. } => None,
            Place::Server { kubeconfig, .. } => {
                let mut file = Value::clone(kubeconfig);
                file["users"][0]["user"]["tokenFile"] = token.display().to_string().into();
                Some(file)
            }
        }
    }

    /// Whether they are an API server's.
    pub fn are_served(&self) -> bool {
        matches!(self.place, Place::Server { .. })
    }

    /// All that happens to them, from the beginning.
    pub fn source(&self) -> Result<Source> {
        match &self.place {
            Place::Folder { manifests, .. } => {
                Directory::open(manifests).context("cannot watch the manifests")
            }
            Place::Server { connection, .. } => {
                Api::open(connection, Kind::ALL.iter().copied().map(Follow::all))
                    .context("cannot follow the API server")
            }
        }
    }

    pub async fn apply(&self, name: &str, text: &str) -> Result<Vec<Applied>> {
        match &self.place {
            Place::Folder { manifests, .. } => manifests::apply(manifests, name, text).await,
            Place::Server { admin, .. } => served::apply(admin, name, text).await,
        }
    }

    /// Takes note of what tokens name.
    pub fn learn(&self, event: &Event) {
        if let Place::Folder { uids, .. } = &self.place
            && let Event::Applied(object @ (Object::Node(_) | Object::ServiceAccount(_))) = event
        {
            uids.borrow_mut()
                .insert(object.key(), object.uid().to_owned());
        }
    }

    /// Says all that there is to say of the pod with this uid.
    pub async fn say(&self, pod: &ObjectKey, uid: &str, partial: &Partial) -> Result<()> {
        match &self.place {
            Place::Folder { status, .. } => status.write(pod, uid, partial).map(drop),
            Place::Server { status, .. } => {
                let (status, pod) = (status.clone(), pod.clone());
                let (uid, partial) = (uid.to_owned(), partial.clone());
                // It waits for the answer.
                let written =
                    tokio::task::spawn_blocking(move || status.write(&pod, &uid, &partial));
                written
                    .await
                    .context("writing status ended early")?
                    .map(drop)
            }
        }
        .context("status")
    }

    /// Takes the pod with this uid away, if somebody has deleted it: nothing of it runs any more. An error says that the pod
    /// is still there, and that it is worth trying again.
    pub async fn gone(&self, pod: &ObjectKey, uid: &str) -> Result<()> {
        match &self.place {
            Place::Folder {
                manifests, status, ..
            } => {
                let forgotten = status.remove(pod).context("cannot remove its status");
                manifests::finalize(manifests, pod, uid)?;
                forgotten.map(drop)
            }
            Place::Server { admin, .. } => {
                let ended = admin
                    .ask_to_end(&served::named(pod), End::Now { uid })
                    .await;
                ended.map(drop).with_context(|| pod.to_string())
            }
        }
    }

    /// A token for this audience, or without one for the API server itself.
    pub async fn token(
        &self,
        holder: &Holder,
        audience: Option<&str>,
        lifetime: Duration,
    ) -> Result<String> {
        let audience = audience.unwrap_or(crate::tokens::ISSUER);
        match &self.place {
            Place::Folder { issuer, uids, .. } => {
                let uid_of = |key: ObjectKey| -> Result<Named> {
                    let uid = uids.borrow().get(&key).cloned();
                    Ok(Named {
                        uid: uid.with_context(|| format!("there is no {key}"))?,
                        name: key.name,
                    })
                };
                let account =
                    ObjectKey::namespaced(Kind::ServiceAccount, &holder.namespace, &holder.account);
                let bearer = Bearer {
                    namespace: holder.namespace.clone(),
                    service_account: uid_of(account)?,
                    pod: holder.pod.clone(),
                    node: uid_of(ObjectKey::cluster_wide(Kind::Node, holder.node.name()))?,
                };
                let terms = Terms {
                    audience: audience.to_owned(),
                    lifetime,
                    issued: SystemTime::now(),
                };
                issuer.issue(&bearer, &terms)
            }
            Place::Server { admin, .. } => {
                let wanted = TokenRequest {
                    namespace: &holder.namespace,
                    account: &holder.account,
                    pod: Some((&holder.pod.name, &holder.pod.uid)),
                    audience,
                    lifetime,
                };
                admin.request_token(wanted).await
            }
        }
    }

    /// The pod with all that its author says. What comes from a source lacks what the mesh does not read, as mounts.
    pub async fn whole(&self, pod: &Arc<Pod>, key: &ObjectKey) -> Result<Arc<Pod>> {
        match &self.place {
            Place::Folder { manifests, .. } => {
                let found = manifests::stored(manifests, key);
                let mut found = found.with_context(|| format!("there is no {key}"))?;
                // The rest is as the source has made it up: a uid, a time.
                let mut whole = Pod::clone(pod);
                let spec = serde_json::from_value(found["spec"].take());
                whole.spec = spec.with_context(|| format!("{key}: spec"))?;
                Ok(Arc::new(whole))
            }
            Place::Server { admin, .. } => {
                let found = admin.find(&served::named(key)).await?;
                let found = found.with_context(|| format!("there is no {key}"))?;
                let whole = serde_json::from_value(found);
                whole.map(Arc::new).with_context(|| key.to_string())
            }
        }
    }

    /// The data of a ConfigMap.
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<BTreeMap<String, String>> {
        let key = ObjectKey::namespaced(Kind::ConfigMap, namespace, name);
        let found = match &self.place {
            Place::Folder { manifests, .. } => manifests::stored(manifests, &key),
            Place::Server { admin, .. } => admin.find(&served::named(&key)).await?,
        };
        let mut found = found.with_context(|| format!("there is no {key}"))?;
        serde_json::from_value(found["data"].take())
            .with_context(|| format!("{key}: data: is no map of texts"))
    }

    /// Puts a pod that nobody has put anywhere on a node, as a scheduler does; a folder's pods say where they are.
    pub async fn bind(&self, pod: &ObjectKey, node: Node) -> Result<()> {
        match &self.place {
            Place::Folder { .. } => bail!("{pod}: spec.nodeName: is required in this lab"),
            Place::Server { admin, .. } => admin.bind(&served::named(pod), node.name()).await,
        }
    }
}

/// What `deploy/base` brings to a cluster, but for what the lab itself plays: workloads, and what leads to them.
pub(super) fn deployed() -> Result<Vec<Value>> {
    const LEFT_OUT: [&str; 5] = [
        "DaemonSet",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
    ];
    let mut objects = crate::deploy::objects()?;
    objects.retain(|object| !LEFT_OUT.iter().any(|kind| object["kind"] == *kind));
    let foreign = Kind::ALL
        .iter()
        .copied()
        .filter(|kind| served::is_defined_by_others(*kind));
    objects.extend(foreign.map(kubernetes::definition));
    Ok(objects)
}
