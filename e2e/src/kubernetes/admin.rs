// SPDX-License-Identifier: Apache-2.0
//! The administrator of a cluster: puts objects there, takes them away, has tokens issued.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::{Client, Connection, Kind, RequestError, object::Scope};
use http::{Method, Request, header};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

/// Somebody who may do everything.
#[derive(Debug, Clone)]
pub struct Admin {
    client: Client,
    /// In whose name objects are applied.
    name: &'static str,
}

/// What a kubelet asks the API server for on behalf of a pod.
#[derive(Debug, Clone, Copy)]
pub struct TokenRequest<'a> {
    pub namespace: &'a str,
    pub account: &'a str,
    /// The name and the uid of the pod whose end is the token's too, where it is a pod's.
    pub pod: Option<(&'a str, &'a str)>,
    pub audience: &'a str,
    pub lifetime: Duration,
}

impl Admin {
    /// As a kubeconfig says, for a test.
    pub async fn of(kubeconfig: &Path) -> Result<Self> {
        Self::named("test", kubeconfig).await
    }

    /// As a kubeconfig says. What is applied under one name and not again under it is taken back.
    pub async fn named(name: &'static str, kubeconfig: &Path) -> Result<Self> {
        let connection = Connection::kubeconfig(kubeconfig).await?;
        Ok(Self {
            client: connection.client()?,
            name,
        })
    }

    /// Creates an object or changes it to what is said here, status included.
    pub async fn put(&self, object: &Value) -> Result<()> {
        let path = path(object)?;
        let apply = async |path: &str| {
            let applied = self.client.apply(path, self.name, object).await;
            applied.with_context(|| format!("applying {path}"))
        };
        apply(&path).await?;
        if object["status"].is_object() {
            apply(&format!("{path}/status")).await?;
        }
        Ok(())
    }

    /// Changes the status of an object that is there to what is said here, and nothing else of it.
    pub async fn put_status(&self, object: &Value) -> Result<()> {
        let path = format!("{}/status", path(object)?);
        let applied = self.client.apply(&path, self.name, object).await;
        applied
            .map(drop)
            .with_context(|| format!("applying {path}"))
    }

    /// Creates an object or changes it to what is said here, its status left alone, and says what it has become.
    ///
    /// # Errors
    /// The server's, of the object.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        let path = path(object)?;
        let applied = self.client.apply(&path, self.name, object).await;
        applied.with_context(|| format!("applying {path}"))
    }

    /// The object as it is; `None` where there is none.
    pub async fn find(&self, object: &Value) -> Result<Option<Value>> {
        let path = path(object)?;
        match self.call(Method::GET, &path, None).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("GET {path}")),
        }
    }

    /// Lays a JSON merge patch over an object.
    pub async fn merge(&self, object: &Value, patch: &Value) -> Result<()> {
        let path = path(object)?;
        let body = Some(("application/merge-patch+json", patch));
        let patched = self.call(Method::PATCH, &path, body).await;
        patched.with_context(|| format!("PATCH {path}"))?;
        Ok(())
    }

    /// Asks whether the server would take an object, to the letter: nothing in it that the server would drop or find twice.
    /// Nothing is stored.
    ///
    /// # Errors
    /// Says what the server has against it.
    pub async fn check(&self, object: &Value) -> Result<()> {
        let path = path(object)?;
        let body = Some(("application/apply-patch+yaml", object));
        let question =
            format!("{path}?dryRun=All&fieldValidation=Strict&fieldManager=test&force=true");
        let checked = self.call(Method::PATCH, &question, body).await;
        checked
            .map(drop)
            .with_context(|| format!("checking {path}"))
    }

    /// Lays a JSON merge patch over an object's status. False where the patch names a version that is not the object's any
    /// more.
    pub async fn merge_status(&self, object: &Value, patch: &Value) -> Result<bool> {
        let path = format!("{}/status", path(object)?);
        let body = Some(("application/merge-patch+json", patch));
        match self.call(Method::PATCH, &path, body).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(409) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("PATCH {path}")),
        }
    }

    /// Puts a pod that nobody has put anywhere on a node, as a scheduler does.
    pub async fn bind(&self, pod: &Value, node: &str) -> Result<()> {
        let path = format!("{}/binding", path(pod)?);
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let body = Some(("application/json", &binding));
        let bound = self.call(Method::POST, &path, body).await;
        bound.map(drop).with_context(|| format!("POST {path}"))
    }

    /// The objects of a kind in a namespace that bear these labels, written as selectors are.
    pub async fn list(&self, kind: Kind, namespace: &str, labels: &str) -> Result<Vec<Value>> {
        let (group, version) = (kind.group(), kind.versions()[0]);
        let of = if group.is_empty() { "api" } else { "apis/" };
        let plural = kind.plural();
        let path = format!(
            "/{of}{group}/{version}/namespaces/{namespace}/{plural}?labelSelector={labels}"
        );
        let mut listed = self.call(Method::GET, &path, None).await;
        let items = listed.as_mut().map(|list| list["items"].take());
        let items = items.map_err(|error| anyhow::anyhow!("GET {path}: {error}"))?;
        serde_json::from_value(items).with_context(|| format!("GET {path}"))
    }

    pub async fn get(&self, object: &Value) -> Result<Value> {
        let path = path(object)?;
        let got = self.call(Method::GET, &path, None).await;
        got.with_context(|| format!("GET {path}"))
    }

    /// Deletes an object at once, for there is no kubelet to wait for, and returns when it is gone.
    pub async fn delete(&self, object: &Value) -> Result<()> {
        let uid = self.get(object).await?["metadata"]["uid"].take();
        self.begin_delete(object).await?;
        let path = path(object)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.call(Method::GET, &path, None).await {
                Err(error) if error.code() == Some(404) => return Ok(()),
                Err(error) => return Err(error).with_context(|| format!("GET {path}")),
                // Somebody has made another.
                Ok(left) if left["metadata"]["uid"] != uid => return Ok(()),
                Ok(left) => ensure!(Instant::now() < deadline, "it does not go: {left}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Deletes an object, whose going may take the cluster a while.
    pub async fn begin_delete(&self, object: &Value) -> Result<()> {
        let path = path(object)?;
        let options = json!({"gracePeriodSeconds": 0});
        let body = Some(("application/json", &options));
        let deleted = self.call(Method::DELETE, &path, body).await;
        deleted.map(drop).with_context(|| format!("DELETE {path}"))
    }

    /// Asks for the end of an object, as `kubectl delete` does: a pod that runs somewhere has its time for it, and others may
    /// have to be let go first. False where there is none, or none with this uid.
    pub async fn ask_to_end(&self, object: &Value, end: End<'_>) -> Result<bool, RequestError> {
        let path = path(object).map_err(|error| RequestError::Broken(format!("{error:#}")))?;
        let options = match end {
            End::InItsTime => json!({}),
            End::Now { uid } => json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}),
        };
        let body = Some(("application/json", &options));
        match self.call(Method::DELETE, &path, body).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A token as a kubelet mounts it: of the pod's account, for an audience, for as long as the pod lives.
    pub async fn token(&self, pod: &Value, audience: &str) -> Result<String> {
        let pod = self.get(pod).await?;
        let (metadata, account) = (&pod["metadata"], &pod["spec"]["serviceAccountName"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text(&metadata["name"]), text(&metadata["uid"]));
        self.request_token(TokenRequest {
            namespace: metadata["namespace"].as_str().context("no namespace")?,
            account: account.as_str().context("the pod has no account")?,
            pod: Some((&name, &uid)),
            audience,
            lifetime: Duration::from_secs(3600),
        })
        .await
    }

    /// A token of an account.
    pub async fn request_token(&self, wanted: TokenRequest<'_>) -> Result<String> {
        let TokenRequest {
            namespace, account, ..
        } = wanted;
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let mut request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {
                "audiences": [wanted.audience], "expirationSeconds": wanted.lifetime.as_secs(),
            },
        });
        if let Some((name, uid)) = wanted.pod {
            request["spec"]["boundObjectRef"] =
                json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        }
        let issued = self
            .call(Method::POST, &path, Some(("application/json", &request)))
            .await;
        let issued = issued.with_context(|| format!("POST {path}"))?;
        let token = issued["status"]["token"].as_str().context("no token")?;
        Ok(token.to_owned())
    }

    /// Defines a kind that takes anything, and returns when objects of it can be made.
    pub async fn define(&self, kind: Kind) -> Result<()> {
        self.define_as(&definition(kind)).await
    }

    /// The same, by a definition of one's own.
    pub async fn define_as(&self, definition: &Value) -> Result<()> {
        self.put(definition).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &definition["spec"];
        let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
        let version = text(&spec["versions"][0]["name"]);
        let list = format!("/apis/{group}/{version}/{plural}");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let conditions = self.get(definition).await?["status"]["conditions"].take();
            let established = conditions
                .as_array()
                .into_iter()
                .flatten()
                .any(|condition| {
                    condition["type"] == "Established" && condition["status"] == "True"
                });
            // The handler follows a moment later.
            if established && self.call(Method::GET, &list, None).await.is_ok() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{plural}.{group} is not established: {conditions}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, RequestError> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some((content, _)) = body {
            request = request.header(header::CONTENT_TYPE, content);
        }
        let body = body.map(|(_, body)| body.to_string().into_bytes());
        let request = request.body(body.unwrap_or_default());
        self.client.call(request.expect("a path is a URI")).await
    }
}

/// How an object is to end.
#[derive(Debug, Clone, Copy)]
pub enum End<'a> {
    InItsTime,
    /// The one with this uid, of which nothing runs any more.
    Now {
        uid: &'a str,
    },
}

/// Kinds that nobody follows, and that are put into clusters all the same.
const OTHERS: [(&str, &str, Scope); 12] = [
    ("ClusterRole", "clusterroles", Scope::Cluster),
    ("ClusterRoleBinding", "clusterrolebindings", Scope::Cluster),
    (
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Scope::Cluster,
    ),
    ("DaemonSet", "daemonsets", Scope::Namespace),
    ("Lease", "leases", Scope::Namespace),
    ("NetworkPolicy", "networkpolicies", Scope::Namespace),
    ("ReplicaSet", "replicasets", Scope::Namespace),
    ("Role", "roles", Scope::Namespace),
    ("RoleBinding", "rolebindings", Scope::Namespace),
    ("Secret", "secrets", Scope::Namespace),
    (
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        Scope::Cluster,
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        Scope::Cluster,
    ),
];

/// The path of an object of a kind that is followed, or of another that tests know.
///
/// # Errors
/// What is no object of such a kind.
pub fn path(object: &Value) -> Result<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let name = text(&object["metadata"]["name"]);
    let group = if version.contains('/') { "apis" } else { "api" };
    let followed = Kind::ALL
        .iter()
        .map(|known| (known.as_str(), known.plural(), known.scope()));
    let mut known = followed.chain(OTHERS);
    let found = known.find(|(known, ..)| *known == kind);
    let (_, plural, scope) = found.with_context(|| format!("kind {kind:?} is not known"))?;
    Ok(match scope {
        Scope::Cluster => format!("/{group}/{version}/{plural}/{name}"),
        Scope::Namespace => {
            let namespace = text(&object["metadata"]["namespace"]);
            format!("/{group}/{version}/namespaces/{namespace}/{plural}/{name}")
        }
    })
}

/// A definition of a custom kind that takes any spec and status, as a cluster may hold objects of versions to come.
pub fn definition(kind: Kind) -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = |name: &&str| {
        json!({
            "name": name, "served": true, "storage": *name == kind.versions()[0],
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"spec": {"x-kubernetes-preserve-unknown-fields": true}, "status": anything},
            }},
        })
    };
    let (plural, group) = (kind.plural(), kind.group());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        // Without it groups that belong to Kubernetes are refused.
        "metadata": {"name": format!("{plural}.{group}"), "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"}},
        "spec": {
            "group": group,
            "scope": match kind.scope() { Scope::Cluster => "Cluster", Scope::Namespace => "Namespaced" },
            "names": {"kind": kind.as_str(), "plural": plural, "singular": kind.as_str().to_lowercase()},
            "versions": kind.versions().iter().map(version).collect::<Vec<_>>(),
        },
    })
}
