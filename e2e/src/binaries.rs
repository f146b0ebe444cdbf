// SPDX-License-Identifier: Apache-2.0
//! Builds the programs that the lab runs, so that no stale one is used.
//!
//! One build at a time (a file lock), in the profile of this very executable and in its target directory. Cargo decides
//! what is out of date, so a second call costs a moment.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::environment::Environment;

/// The programs of the mesh.
pub const PROGRAMS: [&str; 5] = [
    "ztunnel",
    "waypoint",
    "istiod-lite",
    "redirect",
    "redirect-cni",
];

/// Where the sources were when this executable was built.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Builds the programs and says where they lie. `executable` is the `e2e` program; progress goes to standard error.
pub fn build(environment: &Environment, executable: &Path) -> Result<PathBuf> {
    build_only(&PROGRAMS, environment, executable)
}

/// The same, of some of them.
pub fn build_only(
    programs: &[&str],
    environment: &Environment,
    executable: &Path,
) -> Result<PathBuf> {
    let folder = executable.parent().context("the folder of this program")?;
    let workspace = Path::new(WORKSPACE);
    ensure!(
        workspace.join("Cargo.toml").is_file(),
        "the sources are no longer at {}; name the folder of built programs with --bin-dir",
        workspace.display()
    );
    let target = folder.parent().context("the target directory")?;
    let _one_at_a_time = lock(&folder.join(".e2e-build.lock"))?;
    let mut command = Command::new(environment.cargo()?);
    command
        .current_dir(workspace)
        .arg("build")
        .arg("--target-dir")
        .arg(target)
        .stdin(Stdio::null());
    // By `--bin` and not by `--package`, features stay those of the whole workspace and nothing is built twice.
    for program in programs {
        command.args(["--bin", program]);
    }
    // The other way round: a lab that a test runs takes the programs as the tests' build has made them. They differ in
    // a clock that tests may stop, and in code that nothing of them calls.
    if identity::FOR_TESTS {
        command.args(["--features", "e2e/as-tested"]);
    }
    let profile = folder
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    match profile {
        "debug" => {}
        "release" => {
            command.arg("--release");
        }
        other => {
            command.args(["--profile", other]);
        }
    }
    // What cargo prints belongs to whoever watches, not into this program's answer.
    command.stdout(std::io::stderr());
    let status = command.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "building the mesh's programs failed ({status})"
    );
    Ok(folder.to_owned())
}

fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    file.lock().context("cannot wait for another build")?;
    Ok(file)
}
