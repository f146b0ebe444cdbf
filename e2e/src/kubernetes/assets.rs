// SPDX-License-Identifier: Apache-2.0
//! Where Kubernetes' programs are. Nothing is built or fetched here.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::environment::Environment;

const BUILT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/kubernetes");
const WANTED: [(&str, &str); 2] = [
    ("go.mod", include_str!("../../kubernetes/go.mod")),
    ("go.sum", include_str!("../../kubernetes/go.sum")),
];
pub(super) const COMMAND: &str = "e2e/kubernetes/build";

/// The folder with `etcd` and `kube-apiserver`.
///
/// # Errors
/// Names the one command that brings them where they are missing or of other versions.
pub fn assets(environment: &Environment) -> Result<PathBuf> {
    if let Some(folder) = environment.kubernetes_assets() {
        return match missing(&folder) {
            None => Ok(folder),
            Some(program) => bail!("KUBEBUILDER_ASSETS={}: no {program}", folder.display()),
        };
    }
    let folder = PathBuf::from(BUILT);
    // Copies of these stand beside the programs that were built of them.
    let stale = WANTED.iter().find(|(name, wanted)| {
        std::fs::read_to_string(folder.join(name)).is_ok_and(|built| built != *wanted)
    });
    let complete = WANTED.iter().all(|(name, _)| folder.join(name).is_file());
    match (
        stale,
        missing(&folder).or((!complete).then_some("complete build")),
    ) {
        (None, None) => Ok(folder),
        (Some(_), _) => bail!("the programs of Kubernetes are of other versions: run {COMMAND}"),
        (None, Some(what)) => bail!("no {what} in {}: run {COMMAND}", folder.display()),
    }
}

fn missing(folder: &Path) -> Option<&'static str> {
    ["etcd", "kube-apiserver"]
        .into_iter()
        .find(|program| !folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_folder_wins_and_must_be_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().display().to_string();
        let environment = Environment::new([("KUBEBUILDER_ASSETS".to_owned(), path)]);
        let error = assets(&environment).expect_err("it is empty");
        assert!(error.to_string().contains("no etcd"), "{error}");
        for program in ["etcd", "kube-apiserver"] {
            std::fs::write(folder.path().join(program), "").expect("written");
        }
        assert_eq!(assets(&environment).expect("complete"), folder.path());
    }
}
