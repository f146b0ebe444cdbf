// SPDX-License-Identifier: Apache-2.0
//! Projected service-account tokens of a pod: written before it starts, renewed before they expire.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use cluster::kinds::Pod;

use crate::environment::private_directory;
use crate::state::write_atomically;
use crate::tokens::{Bearer, Terms, TokenIssuer};

/// One token file of a pod.
#[derive(Debug, Clone)]
pub struct ProjectedToken {
    path: PathBuf,
    audience: String,
    lifetime: Duration,
}

/// The token files a pod asks for; each volume is a folder below `root`.
pub fn projected_tokens(pod: &Pod, root: &std::path::Path) -> Vec<ProjectedToken> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let mut tokens = Vec::new();
    for volume in volumes {
        let sources = volume
            .projected
            .iter()
            .flat_map(|projected| projected.sources.iter().flatten());
        for token in sources.filter_map(|source| source.service_account_token.as_ref()) {
            let seconds = token
                .expiration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .unwrap_or(3600);
            tokens.push(ProjectedToken {
                path: root
                    .join(&volume.name)
                    .join(token.path.trim_start_matches('/')),
                audience: token
                    .audience
                    .clone()
                    .unwrap_or_else(|| crate::tokens::ISSUER.into()),
                lifetime: Duration::from_secs(seconds.max(600)),
            });
        }
    }
    tokens
}

impl ProjectedToken {
    /// Writes the token anew. Whoever reads the file sees the old token or the new one.
    pub fn write(&self, issuer: &TokenIssuer, bearer: &Bearer) -> Result<()> {
        let folder = self.path.parent().context("a token has a folder")?;
        private_directory(folder)?;
        let terms = Terms {
            audience: self.audience.clone(),
            lifetime: self.lifetime,
            issued: SystemTime::now(),
        };
        write_atomically(&self.path, issuer.issue(bearer, &terms)?.as_bytes())
    }

    /// When to renew: kubelets do it once four fifths of the lifetime are over.
    pub fn renew_after(&self) -> Duration {
        self.lifetime * 4 / 5
    }
}
