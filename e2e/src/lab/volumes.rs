// SPDX-License-Identifier: Apache-2.0
//! What a pod finds in its volumes: tokens of its account and ConfigMaps, written before it starts and renewed after that.
//!
//! There are no mounts: a volume is a folder, and a container that names a path below one of its mounts is given the path
//! in that folder ([`super::container`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::k8s_openapi::api::core::v1::Volume as Spec;
use cluster::kinds::Pod;

use crate::environment::private_directory;
use crate::lab::objects::{Holder, Objects};
use crate::state::write_atomically;

/// How soon a pod sees what a ConfigMap has become.
const CONFIG_MAP_EVERY: Duration = Duration::from_secs(10);

/// A part of a pod's volumes that is made of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volume {
    Token {
        path: PathBuf,
        audience: Option<String>,
        lifetime: Duration,
    },
    ConfigMap {
        folder: PathBuf,
        name: String,
    },
}

/// What a pod asks for; each volume is a folder below `root`.
pub fn volumes(pod: &Pod, root: &Path) -> Vec<Volume> {
    let specs = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    specs
        .flat_map(|spec| {
            let folder = root.join(&spec.name);
            tokens(spec, folder.clone()).chain(config_map(spec, folder))
        })
        .collect()
}

fn tokens(spec: &Spec, folder: PathBuf) -> impl Iterator<Item = Volume> {
    let sources = spec
        .projected
        .iter()
        .flat_map(|projected| projected.sources.iter().flatten());
    let tokens = sources.filter_map(|source| source.service_account_token.as_ref());
    tokens.map(move |token| {
        let seconds = token
            .expiration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(3600);
        Volume::Token {
            path: folder.join(token.path.trim_start_matches('/')),
            audience: token.audience.clone(),
            lifetime: Duration::from_secs(seconds.max(600)),
        }
    })
}

fn config_map(spec: &Spec, folder: PathBuf) -> Option<Volume> {
    let name = spec.config_map.as_ref()?.name.clone();
    Some(Volume::ConfigMap { folder, name })
}

impl Volume {
    /// Writes it anew. Whoever reads a file sees the old content or the new one.
    ///
    /// # Errors
    /// What it is made of is not there, or not to be had now.
    pub async fn write(&self, objects: &Objects, holder: &Holder) -> Result<()> {
        match self {
            Self::Token {
                path,
                audience,
                lifetime,
            } => {
                private_directory(path.parent().context("a token has a folder")?)?;
                let token = objects
                    .token(holder, audience.as_deref(), *lifetime)
                    .await?;
                write_atomically(path, token.as_bytes())
            }
            Self::ConfigMap { folder, name } => {
                private_directory(folder)?;
                for (key, text) in objects.config_map(&holder.namespace, name).await? {
                    ensure!(
                        !key.contains('/'),
                        "ConfigMap {name}: {key:?} is no file's name"
                    );
                    write_atomically(&folder.join(key), text.as_bytes())?;
                }
                Ok(())
            }
        }
    }

    /// When to renew: kubelets do it with a token once four fifths of its lifetime are over.
    pub fn renew_after(&self) -> Duration {
        match self {
            Self::Token { lifetime, .. } => *lifetime * 4 / 5,
            Self::ConfigMap { .. } => CONFIG_MAP_EVERY,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_gets_what_its_volumes_ask_for_each_in_a_folder_of_its_own() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"containers": [], "volumes": [
                {"name": "roots", "configMap": {"name": "istio-ca-root-cert"}},
                {"name": "token", "projected": {"sources": [
                    {"serviceAccountToken": {"audience": "istio-ca", "expirationSeconds": 43200, "path": "istio-token"}},
                    {"serviceAccountToken": {"expirationSeconds": 1, "path": "api"}},
                ]}},
                {"name": "tmp", "emptyDir": {}},
            ]},
        }))
        .unwrap();
        let token = |name: &str, audience: Option<&str>, seconds| Volume::Token {
            path: Path::new("/v/token").join(name),
            audience: audience.map(str::to_owned),
            lifetime: Duration::from_secs(seconds),
        };
        let roots = Volume::ConfigMap {
            folder: "/v/roots".into(),
            name: "istio-ca-root-cert".into(),
        };
        assert_eq!(
            volumes(&pod, Path::new("/v")),
            [
                roots,
                token("istio-token", Some("istio-ca"), 43200),
                token("api", None, 600)
            ]
        );
    }
}
