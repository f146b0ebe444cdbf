// SPDX-License-Identifier: Apache-2.0
//! The clock of one program, to be set while it runs. Nobody but root may set a machine's, and it is everybody's.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Compiles what the programs are started with.
pub(crate) fn build() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Test runs may overlap, and a library that is in use must not be written to.
    let library = folder.join("libclock.so");
    let fresh = folder.join(format!("libclock.so.{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lifetimes/clock.c");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&fresh, &source])
        .output()
        .context("cannot run cc, the C compiler")?;
    ensure!(
        output.status.success(),
        "cc {}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&fresh, &library).context("cannot put the library in place")?;
    Ok(library)
}

/// Sets the clock of the programs that follow this file, against the real one.
pub(crate) fn set(file: &Path, seconds: i64) -> Result<()> {
    // In place: they have it mapped.
    let mut file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(file)
        .with_context(|| format!("cannot open {}", file.display()))?;
    file.write_all(&seconds.to_ne_bytes())
        .context("cannot set a clock")
}
