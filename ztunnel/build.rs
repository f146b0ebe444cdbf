// SPDX-License-Identifier: Apache-2.0
//! What the dump says of the build: which revision, whether the sources were changed since, which compiler.

use std::process::Command;

fn main() {
    // All that the binary is made of, and the revision itself.
    for input in ["src", "../crates", "../proto", "../Cargo.lock"] {
        println!("cargo:rerun-if-changed={input}");
    }
    let log = answer("git", &["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| std::path::Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    let revision = answer("git", &["rev-parse", "HEAD"]);
    let status = match answer("git", &["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => "Clean",
        Some(_) => "Modified",
        None => "Unknown",
    };
    let compiler = answer("rustc", &["--version"]);
    let unknown = || "unknown".to_owned();
    for (name, value) in [
        ("BUILD_GIT_REVISION", revision.unwrap_or_else(unknown)),
        ("BUILD_STATUS", status.to_owned()),
        ("BUILD_RUST_VERSION", compiler.unwrap_or_else(unknown)),
    ] {
        println!("cargo:rustc-env={name}={value}");
    }
}

/// What a program prints; nothing where it fails or is not there.
fn answer(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    // Looking at a working copy shall not lock it.
    command.args(arguments).env("GIT_OPTIONAL_LOCKS", "0");
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
