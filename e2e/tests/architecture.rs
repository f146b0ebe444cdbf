// SPDX-License-Identifier: Apache-2.0
//! The arrows between crates, as a test: who may use whom, and what stays where.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Each crate of the workspace and the crates of the workspace that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "ztunnel",
        &[
            "spiffe", "identity", "xds", "mesh", "hbone", "capture", "ops", "proto",
        ],
    ),
    (
        "waypoint",
        &["spiffe", "identity", "xds", "mesh", "hbone", "ops", "proto"],
    ),
    (
        "istiod-lite",
        &["spiffe", "identity", "cluster", "ops", "proto"],
    ),
    ("redirect", &["cluster", "capture", "ops", "proto"]),
    ("ambient", &[]),
    ("hbone", &["spiffe", "identity"]),
    ("mesh", &["spiffe", "proto"]),
    ("xds", &["proto"]),
    ("identity", &["spiffe", "proto"]),
    ("cluster", &[]),
    ("capture", &[]),
    ("ops", &[]),
    ("spiffe", &[]),
    ("proto", &[]),
];

/// Uses everything, and nothing uses it.
const LAB: &str = "e2e";

/// Crates that may name `dependency` directly; all others may not.
const CONFINED: &[(&str, &[&str])] = &[("kube", &["cluster"])];

struct Package {
    name: String,
    root: PathBuf,
    /// Dependencies that ship: neither for tests nor for build scripts.
    normal: BTreeSet<String>,
    all: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    packages.iter().map(read_package).collect()
}

fn read_package(package: &Value) -> Package {
    let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
    let mut normal = BTreeSet::new();
    let mut all = BTreeSet::new();
    for dependency in package["dependencies"].as_array().expect("a list") {
        let name = dependency["name"].as_str().expect("a name").to_owned();
        if dependency["kind"].is_null() {
            normal.insert(name.clone());
        }
        all.insert(name);
    }
    Package {
        name: package["name"].as_str().expect("a name").to_owned(),
        root: manifest
            .parent()
            .expect("a manifest stands in a folder")
            .to_owned(),
        normal,
        all,
    }
}

#[test]
fn crates_use_only_what_the_picture_allows() {
    let packages = packages();
    let members: BTreeSet<_> = packages.iter().map(|p| p.name.as_str()).collect();
    let allowed: BTreeMap<_, BTreeSet<_>> = ARROWS
        .iter()
        .map(|(name, uses)| (*name, uses.iter().copied().collect()))
        .collect();
    let mut wrong = Vec::new();
    for package in &packages {
        if package.name == LAB {
            continue;
        }
        let Some(may_use) = allowed.get(package.name.as_str()) else {
            wrong.push(format!(
                "{} stands in no picture: add its arrows",
                package.name
            ));
            continue;
        };
        // A test may use no more than the crate: what it needs beyond that belongs to the lab.
        for used in package.all.iter().filter(|d| members.contains(d.as_str())) {
            if !may_use.contains(used.as_str()) && *used != package.name {
                wrong.push(format!("{} must not use {used}", package.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (name, _) in ARROWS {
        assert!(
            members.contains(name),
            "{name} is in the picture but not in the workspace"
        );
    }
}

#[test]
fn the_pure_core_does_not_know_the_runtime() {
    for package in packages() {
        if ["mesh", "spiffe"].contains(&package.name.as_str()) {
            for banned in ["tokio", "hyper", "tonic", "nix", "tracing"] {
                assert!(
                    !package.normal.contains(banned),
                    "{} depends on {banned}",
                    package.name
                );
            }
        }
    }
}

#[test]
fn confined_libraries_stay_where_they_belong() {
    for package in packages() {
        for (library, homes) in CONFINED {
            assert!(
                !package.normal.contains(*library) || homes.contains(&package.name.as_str()),
                "{} depends on {library}, which only {homes:?} may",
                package.name
            );
        }
    }
}

#[test]
fn unsafe_code_stands_in_capture_alone() {
    let mut found = Vec::new();
    for package in packages().iter().filter(|p| p.name != "capture") {
        for file in rust_files(&package.root) {
            let text = std::fs::read_to_string(&file).expect("a source file is readable");
            for (i, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
                // The word itself, not the lint's name nor this very check's text.
                let quoted = code.contains("\"unsafe");
                if !quoted && words.into_iter().any(|word| word == "unsafe") {
                    found.push(format!("{}:{}", file.display(), i + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "unsafe outside capture: {found:?}");
}

#[test]
fn every_source_file_names_its_licence_first() {
    let mut missing = Vec::new();
    for package in packages() {
        for file in rust_files(&package.root) {
            let text = std::fs::read_to_string(&file).expect("a source file is readable");
            if !text.starts_with("// SPDX-License-Identifier: Apache-2.0\n") {
                missing.push(file.display().to_string());
            }
        }
    }
    assert!(missing.is_empty(), "no licence line: {missing:?}");
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder is readable") {
            let path = entry.expect("an entry is readable").path();
            if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                files.push(path);
            }
        }
    }
    files
}
