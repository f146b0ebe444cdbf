// SPDX-License-Identifier: Apache-2.0
//! What people install and look into a mesh with: `helm` and `kubectl`, of the versions that `e2e/clients` pins. Those that
//! a machine has of its own are never used, and nothing is built or fetched here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::manifests::documents;

const BUILT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/clients");
/// Copies of these stand beside the programs that were built of them.
const SOURCES: [(&str, &str); 3] = [
    ("go.mod", include_str!("../clients/go.mod")),
    ("go.sum", include_str!("../clients/go.sum")),
    ("main.go", include_str!("../clients/kubectl/main.go")),
];
const COMMAND: &str = "e2e/clients/build";

/// One of the programs.
#[derive(Debug, Clone, Copy)]
pub enum Client {
    Helm,
    Kubectl,
}

impl Client {
    /// Where it lies.
    ///
    /// # Errors
    /// Names the one command that brings it, where it is missing or of another version.
    pub fn path(self) -> Result<PathBuf> {
        self.path_in(Path::new(BUILT))
    }

    fn path_in(self, folder: &Path) -> Result<PathBuf> {
        let name = match self {
            Self::Helm => "helm",
            Self::Kubectl => "kubectl",
        };
        let program = folder.join(name);
        ensure!(
            program.is_file(),
            "no {name} in {}: run {COMMAND}",
            folder.display()
        );
        for (name, wanted) in SOURCES {
            let built = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            ensure!(
                built == wanted,
                "{} is of another {name}: run {COMMAND}",
                program.display()
            );
        }
        Ok(program)
    }

    /// The program with nothing of this process' surroundings; `home` is where it may keep what it likes.
    ///
    /// # Errors
    /// As of [`Client::path`].
    pub fn command(self, home: &Path) -> Result<Command> {
        let mut command = Command::new(self.path()?);
        command.env_clear().env("HOME", home);
        Ok(command)
    }

    /// What it prints.
    ///
    /// # Errors
    /// It can't be run, or ends with another status than 0: what it complained of.
    pub fn run(self, home: &Path, arguments: &[&str]) -> Result<String> {
        let output = self.command(home)?.args(arguments).output();
        let output = output.with_context(|| format!("running {self:?}"))?;
        ensure!(
            output.status.success(),
            "{self:?} {arguments:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).context("it is no text")
    }

    /// The objects that it prints as YAML.
    ///
    /// # Errors
    /// As of [`Client::run`], and if that is no YAML.
    pub fn objects(self, home: &Path, arguments: &[&str]) -> Result<Vec<Value>> {
        documents(&self.run(home, arguments)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_of_another_version_is_named_with_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let error = || Client::Helm.path_in(folder.path()).unwrap_err().to_string();
        assert!(error().starts_with("no helm in ") && error().ends_with(COMMAND));
        std::fs::write(folder.path().join("helm"), "").unwrap();
        assert!(error().ends_with("is of another go.mod: run e2e/clients/build"));
        for (name, text) in SOURCES {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        assert!(Client::Helm.path_in(folder.path()).is_ok());
        std::fs::write(folder.path().join("go.sum"), "").unwrap();
        assert!(error().contains("of another go.sum"), "{}", error());
    }
}
