// SPDX-License-Identifier: Apache-2.0
//! Where the authority's parts come from, and when they change: files, or Secrets of the cluster.
//!
//! ```text
//!  Secret cacerts ──────────there?──► plugged in
//!  Secret istio-ca-secret ──there?──► of our own; made where neither is, by whoever is first
//! ```
//! Secrets are asked for by name, again and again: that takes the right to get these two and no other, and nothing is
//! held that is not used. Replicas agree, since only one of them can make an object.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use cluster::k8s_openapi::api::core::v1::Secret;
use cluster::{Client, RequestError};
use http::{Request, header};
use ops::file::{Followed, LOOK_EVERY};
use serde_json::{Value, json};
use spiffe::TrustDomain;
use tokio::sync::mpsc;

use super::material::Material;
use super::{CaError, chain, store};
use crate::status;

/// Somebody else's intermediate (Istio page "Plug in CA Certificates").
const PLUGGED_IN: &str = "cacerts";
/// A root of the mesh's own, as Istio keeps it.
const OWN: &str = "istio-ca-secret";
/// Marks a root of the mesh's own that Istio was told to keep as if it were plugged in.
const GENERATED: &str = "istio-generated";
/// How often Secrets are asked for.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// What is read again when it changes.
#[derive(Debug)]
pub enum Origin {
    Directory {
        directory: PathBuf,
        files: Followed,
    },
    /// What was found whenever it differed.
    Secrets(mpsc::Receiver<Result<Material, CaError>>),
}

impl Origin {
    /// The files in a directory.
    ///
    /// # Errors
    /// What is there can't be read.
    pub fn directory(directory: PathBuf) -> Result<(Self, Material), CaError> {
        // Made before the first look, so that no change is missed.
        let files = Followed::new(chain::files(&directory));
        let material = Material::in_directory(&directory)?;
        Ok((Self::Directory { directory, files }, material))
    }

    /// The cluster's Secrets. Waits for as long as the API server can't be asked.
    pub async fn secrets(mut secrets: Secrets) -> (Self, Material) {
        let material = secrets.first().await;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(secrets.follow(sender));
        (Self::Secrets(receiver), material)
    }

    /// Waits for a second or less; then says what there is, if it is something else.
    pub async fn look(&mut self) -> Option<Result<Material, CaError>> {
        match self {
            Self::Directory { directory, files } => {
                let changed = files.look().await;
                changed.then(|| Material::in_directory(directory))
            }
            Self::Secrets(found) => {
                let found = tokio::time::timeout(LOOK_EVERY, found.recv()).await.ok()?;
                Some(found.expect("broken invariant: Secrets are followed for ever"))
            }
        }
    }
}

/// The Secrets that an authority may be kept in.
#[derive(Debug)]
pub struct Secrets {
    client: Client,
    namespace: String,
    trust_domain: TrustDomain,
    /// Which of them, and its version.
    seen: Option<(&'static str, String)>,
}

/// What is there.
enum Found {
    Nothing,
    Secret {
        name: &'static str,
        version: String,
        secret: Box<Secret>,
    },
}

impl Secrets {
    /// Those of `namespace`; a root of our own is made for the trust domain.
    pub fn new(client: Client, namespace: &str, trust_domain: TrustDomain) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            trust_domain,
            seen: None,
        }
    }

    async fn first(&mut self) -> Material {
        let mut said = None;
        loop {
            let error = match self.find().await {
                Ok(found) => match self.news(found) {
                    Some(Ok(material)) => return material,
                    Some(Err(gone)) => gone,
                    // Nothing has been seen yet, so that whatever there is is news.
                    None => match self.make().await {
                        Ok(()) => continue,
                        Err(error) => error,
                    },
                },
                Err(error) => error,
            };
            let error = error.to_string();
            if said.as_ref() != Some(&error) {
                tracing::warn!(error, "waiting for the CA's Secret");
                said = Some(error);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn follow(mut self, news: mpsc::Sender<Result<Material, CaError>>) {
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            let found = match self.find().await {
                Ok(found) => self.news(found),
                // Whoever may not ask has to be told; that a server is lost is told by those who follow it.
                Err(error) if error.is_refusal() => {
                    self.seen = None;
                    Some(Err(error))
                }
                Err(_) => None,
            };
            if let Some(found) = found
                && news.send(found).await.is_err()
            {
                return;
            }
        }
    }

    /// What differs from what was seen last. What was never there is none.
    fn news(&mut self, found: Found) -> Option<Result<Material, CaError>> {
        let (name, version, secret) = match found {
            Found::Nothing => {
                let namespace = self.namespace.clone();
                return self.seen.take().map(|_| Err(CaError::Gone { namespace }));
            }
            Found::Secret {
                name,
                version,
                secret,
            } => (name, version, secret),
        };
        let seen = Some((name, version));
        if self.seen == seen {
            return None;
        }
        self.seen = seen;
        let generated = |data: &BTreeMap<String, _>| data.contains_key(GENERATED);
        let own = name == OWN || secret.data.as_ref().is_some_and(generated);
        let material = Material::in_secret(&self.namespace, name, *secret);
        Some(Ok(match own {
            true => material.or_self_signed(),
            false => material,
        }))
    }

    async fn find(&self) -> Result<Found, CaError> {
        for name in [PLUGGED_IN, OWN] {
            let request = Request::get(format!("{}/{name}", self.path())).body(Vec::new());
            let request = request.map_err(|error| self.failed(name, &error))?;
            match self.client.call(request).await {
                Err(error) if error.code() == Some(404) => {}
                Err(error) => return Err(self.refused(name, error)),
                Ok(object) => {
                    let secret: Box<Secret> = serde_json::from_value(object)
                        .map_err(|error| self.failed(name, &error))?;
                    let metadata = &secret.metadata;
                    let part = |text: &Option<String>| text.clone().unwrap_or_default();
                    let version = part(&metadata.uid) + "/" + &part(&metadata.resource_version);
                    return Ok(Found::Secret {
                        name,
                        version,
                        secret,
                    });
                }
            }
        }
        Ok(Found::Nothing)
    }

    /// Keeps a new root in the cluster, unless another replica was faster.
    async fn make(&self) -> Result<(), CaError> {
        let parts = store::self_signed(&self.trust_domain, SystemTime::now())
            .map_err(CaError::Create)?
            .map(|(name, text)| (name.to_owned(), Value::String(text.to_string())));
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "istio.io/ca-root",
            "metadata": {"namespace": self.namespace, "name": OWN},
            "stringData": serde_json::Map::from_iter(parts),
        });
        let request = Request::post(format!("{}?fieldManager={}", self.path(), status::MANAGER))
            .header(header::CONTENT_TYPE, "application/json")
            .body(object.to_string().into_bytes())
            .map_err(|error| self.failed(OWN, &error))?;
        match self.client.call(request).await {
            Ok(_) => {
                tracing::info!(
                    namespace = self.namespace,
                    name = OWN,
                    trust_domain = %self.trust_domain,
                    "made a root certificate of our own"
                );
                Ok(())
            }
            Err(error) if error.code() == Some(409) => Ok(()),
            Err(error) => Err(self.refused(OWN, error)),
        }
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets", self.namespace)
    }

    fn refused(&self, name: &str, error: RequestError) -> CaError {
        CaError::Secret {
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            error,
        }
    }

    fn failed(&self, name: &str, error: &dyn std::error::Error) -> CaError {
        self.refused(name, RequestError::Broken(error.to_string()))
    }
}
