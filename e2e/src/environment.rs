// SPDX-License-Identifier: Apache-2.0
//! What the lab takes from its surroundings: the environment variables that it reads, and the directories it derives
//! from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The variables of the process, read once.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// `variables` is `std::env::vars_os()` of the process, those that are text.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self {
            variables: variables.into_iter().collect(),
        }
    }

    /// The environment of this process; values that are no text are left out.
    pub fn of_process() -> Self {
        Self::new(
            std::env::vars_os().filter_map(|(key, value)| {
                Some((key.into_string().ok()?, value.into_string().ok()?))
            }),
        )
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The search path for programs, handed on to what the lab starts.
    pub fn path(&self) -> &str {
        self.value("PATH").unwrap_or("/usr/local/bin:/usr/bin:/bin")
    }

    /// Cargo: `$CARGO` (set by `cargo run` and `cargo test`), else the first one on the path.
    pub fn cargo(&self) -> Result<PathBuf> {
        if let Some(cargo) = self.value("CARGO") {
            return Ok(cargo.into());
        }
        let found = self
            .path()
            .split(':')
            .map(|folder| Path::new(folder).join("cargo"))
            .find(|cargo| cargo.is_file());
        found.or_else(|| Some(Path::new(self.value("HOME")?).join(".cargo/bin/cargo")).filter(|cargo| cargo.is_file())).context(
            "no cargo in $CARGO, $PATH or ~/.cargo/bin: the lab needs it to build the programs it runs, \
             or --bin-dir DIR with programs already built",
        )
    }

    /// Envoy's binary, for the tests that speak with it.
    pub fn envoy(&self) -> Option<PathBuf> {
        self.value("ENVOY").map(PathBuf::from)
    }

    /// By which engine the nodes' proxies carry tunnels: their own, unless `HBONE_ENGINE` says `library`.
    pub fn hbone_engine(&self) -> &str {
        self.value("HBONE_ENGINE").unwrap_or("own")
    }

    /// A folder with kube-apiserver and etcd that is to be used instead of the one that `e2e/kubernetes/build` fills.
    pub fn kubernetes_assets(&self) -> Option<PathBuf> {
        self.value("KUBEBUILDER_ASSETS").map(PathBuf::from)
    }

    /// How many pods a test of pods' starts starts; few, unless somebody has the time.
    pub fn pod_starts(&self) -> usize {
        let number = self.value("POD_STARTS").and_then(|text| text.parse().ok());
        number.unwrap_or(60)
    }

    /// Where labs keep their state: `$XDG_RUNTIME_DIR/culvert`, else a folder of this user's in the system's temporary
    /// directory. Short, because unix sockets live below it.
    pub fn state_root(&self) -> Result<PathBuf> {
        let root = match self
            .value("XDG_RUNTIME_DIR")
            .map(Path::new)
            .filter(|path| path.is_dir())
        {
            Some(runtime) => runtime.join("culvert"),
            None => std::env::temp_dir().join(format!("culvert-{}", nix::unistd::getuid())),
        };
        private_directory(&root)?;
        Ok(root)
    }
}

/// Makes a directory that only this user may enter; refuses one that belongs to somebody else.
pub fn private_directory(path: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.with_context(|| format!("cannot make the directory {}", path.display()))?;
    let owner = std::fs::symlink_metadata(path)?.uid();
    if owner != nix::unistd::getuid().as_raw() {
        bail!(
            "{} belongs to user {owner}; remove it or set XDG_RUNTIME_DIR",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_named_by_the_environment_wins() {
        let environment = Environment::new([
            ("CARGO".into(), "/opt/cargo".into()),
            ("PATH".into(), "/bin".into()),
        ]);
        assert_eq!(environment.cargo().unwrap(), PathBuf::from("/opt/cargo"));
    }

    #[test]
    fn a_missing_cargo_is_explained() {
        let error = Environment::new([("PATH".into(), "/nonexistent".into())])
            .cargo()
            .unwrap_err();
        assert!(error.to_string().contains("--bin-dir"), "{error}");
    }
}
