// SPDX-License-Identifier: Apache-2.0
//! Changes of the cluster, in the folder of its manifests or at its API server.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::runtime;
use crate::handle::Access;
use crate::kubernetes::Admin;
use crate::manifests::{self, Labels, served};
use crate::namespaces::{self, Joining};
use crate::topology::Place;

pub(super) fn apply(access: &Access, file: &Path) -> Result<ExitCode> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        text
    } else {
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
    };
    let shown = if file == Path::new("-") {
        "stdin.yaml".into()
    } else {
        file.to_string_lossy()
    };
    let directory = access.state().manifests();
    let server = enter_reach_of_server(access)?;
    let applied = runtime()?.block_on(async {
        match server {
            None => manifests::apply(&directory, &shown, &text).await,
            Some(server) => served::apply(&server.admin().await?, &shown, &text).await,
        }
    });
    for applied in applied? {
        println!("{applied}");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn delete(access: &Access, kind: &str, object: &str) -> Result<ExitCode> {
    let key = manifests::parse_key(kind, object)?;
    match enter_reach_of_server(access)? {
        None => manifests::delete(&access.state().manifests(), &key)?,
        Some(server) => {
            runtime()?.block_on(async { served::delete(&server.admin().await?, &key).await })?
        }
    }
    println!("{key} deleted");
    Ok(ExitCode::SUCCESS)
}

pub(super) fn label(
    access: &Access,
    kind: &str,
    object: &str,
    labels: &[String],
) -> Result<ExitCode> {
    let key = manifests::parse_key(kind, object)?;
    let labels = Labels::read(labels)?;
    match enter_reach_of_server(access)? {
        None => manifests::label(&access.state().manifests(), &key, &labels)?,
        Some(server) => runtime()?
            .block_on(async { served::label(&server.admin().await?, &key, &labels).await })?,
    }
    println!("{key} labelled");
    Ok(ExitCode::SUCCESS)
}

/// The way to a lab's API server, from where it can be reached.
struct Server {
    kubeconfig: PathBuf,
}

impl Server {
    async fn admin(&self) -> Result<Admin> {
        Admin::named("e2e", &self.kubeconfig).await
    }
}

/// Takes this process to where it reaches the API server, if the lab has one: into the namespace of the control plane.
fn enter_reach_of_server(access: &Access) -> Result<Option<Server>> {
    if !access.has_api_server()? {
        return Ok(None);
    }
    let state = access.state();
    namespaces::join_lab(state, Joining::Files)?;
    namespaces::join_network(&state.netns(&Place::ControlPlane(state.cluster())))?;
    Ok(Some(Server {
        kubeconfig: state.kubeconfig(),
    }))
}
