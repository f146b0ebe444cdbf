// SPDX-License-Identifier: Apache-2.0
//! Containers as processes: which program an image stands for, with which environment, capabilities and log.
//!
//! There are no image files. An image named `culvert/…` stands for a program that the lab has; a container's `args`,
//! `env` and `securityContext.capabilities` mean what they mean in a cluster.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use cluster::k8s_openapi::api::core::v1::Container;
use cluster::kinds::Pod;
use tokio::process::{Child, Command};

use crate::launch::{Grant, Launch, Surroundings};

/// Where the programs lie.
#[derive(Debug, Clone)]
pub struct Programs {
    /// This program: servers in pods, and the launcher of all others.
    pub executable: PathBuf,
    /// The mesh's programs.
    pub bin_dir: PathBuf,
}

impl Programs {
    /// A program of the mesh.
    pub fn of_mesh(&self, name: &str) -> Result<PathBuf> {
        let path = self.bin_dir.join(name);
        if !path.is_file() {
            bail!(
                "there is no program {}; build it with `cargo build --bins`",
                path.display()
            );
        }
        Ok(path)
    }
}

/// What a container becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub grant: Grant,
    /// What it resolves names by, if not as its node does.
    pub resolv_conf: Option<PathBuf>,
    /// What tells whose process it is, where the lab can make one.
    pub cgroup: Option<PathBuf>,
}

/// Words that a container may use as `$(NAME)` in its arguments and environment.
pub type Variables = BTreeMap<String, String>;

impl Process {
    /// Reads a container's specification. `variables` are what the kubelet knows and the lab adds.
    pub fn of_container(
        pod: &Pod,
        container: &Container,
        programs: &Programs,
        variables: &Variables,
    ) -> Result<Self> {
        let image = container.image.as_deref().unwrap_or_default();
        // There is one version of each.
        let name = image.split_once(':').map_or(image, |(name, _version)| name);
        let (program, first) = match name {
            "culvert/app" => (programs.executable.clone(), vec!["serve".to_owned()]),
            "culvert/load" => (
                programs.executable.clone(),
                vec![
                    "traffic".to_owned(),
                    "load".to_owned(),
                    "--forever".to_owned(),
                ],
            ),
            "culvert/client" => (programs.executable.clone(), vec!["traffic".to_owned()]),
            "culvert/native" => (
                programs.executable.clone(),
                vec!["native".to_owned(), "serve".to_owned()],
            ),
            "culvert/gateway" => (programs.executable.clone(), vec!["gateway".to_owned()]),
            "culvert/ztunnel" => (programs.of_mesh("ztunnel")?, vec![]),
            "culvert/waypoint" => (programs.of_mesh("waypoint")?, vec![]),
            "culvert/redirect" => (programs.of_mesh("redirect")?, vec![]),
            _ => bail!(
                "container {}: image `{image}`: the lab has culvert/app, culvert/client, culvert/load, culvert/gateway, culvert/native, culvert/ztunnel, culvert/waypoint and culvert/redirect",
                container.name
            ),
        };
        let mut known = variables.clone();
        let mut environment = BTreeMap::new();
        let volumes = known.get("LAB_VOLUMES").cloned().unwrap_or_default();
        let found = |text: String| mounted(text, container, &volumes);
        for variable in container.env.iter().flatten() {
            let value = match (&variable.value, &variable.value_from) {
                (Some(text), _) => expand(text, &known),
                (None, Some(source)) => {
                    let path = source
                        .field_ref
                        .as_ref()
                        .map(|field| field.field_path.as_str())
                        .unwrap_or_default();
                    field(pod, path, &known).with_context(|| {
                        format!("container {}: env {}", container.name, variable.name)
                    })?
                }
                (None, None) => String::new(),
            };
            let value = found(value);
            known.insert(variable.name.clone(), value.clone());
            environment.insert(variable.name.clone(), value);
        }
        let arguments = container
            .command
            .iter()
            .flatten()
            .chain(container.args.iter().flatten());
        let granted = container
            .security_context
            .as_ref()
            .and_then(|context| context.capabilities.clone())
            .unwrap_or_default();
        let grant = Grant::from_security_context(
            &granted.add.unwrap_or_default(),
            &granted.drop.unwrap_or_default(),
        )
        .with_context(|| format!("container {}", container.name))?;
        Ok(Self {
            program,
            arguments: first
                .into_iter()
                .chain(arguments.map(|argument| found(expand(argument, &known))))
                .collect(),
            environment,
            grant,
            resolv_conf: None,
            cgroup: None,
        })
    }

    /// Starts the process in a network namespace; what it prints goes to the log file.
    pub fn start(&self, programs: &Programs, netns: &Path, log: &Path) -> Result<Child> {
        let out = File::options()
            .append(true)
            .create(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let err = out.try_clone().context("cannot share a log file")?;
        let mut command = Command::from(Launch::command(
            &programs.executable,
            Surroundings {
                netns: Some(netns),
                resolv_conf: self.resolv_conf.as_deref(),
                cgroup: self.cgroup.as_deref(),
            },
            &self.grant,
            &self.program,
        ));
        command
            .args(&self.arguments)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .envs(&self.environment);
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .kill_on_drop(true);
        command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))
    }
}

/// Replaces `$(NAME)`; `$$(` stands for itself and an unknown name stays as it is, as in Kubernetes.
fn expand(text: &str, known: &Variables) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            result.push('$');
            rest = after;
        } else if let Some((name, after)) = rest
            .strip_prefix("$(")
            .and_then(|inner| inner.split_once(')'))
        {
            match known.get(name) {
                Some(value) => result.push_str(value),
                None => result.push_str(&rest[..name.len() + 3]),
            }
            rest = after;
        } else {
            result.push('$');
            rest = &rest[1..];
        }
    }
    result + rest
}

/// Where a path below one of a container's mounts lies, as there are no mounts; any other text stays as it is.
fn mounted(text: String, container: &Container, volumes: &str) -> String {
    let mounts = container.volume_mounts.iter().flatten();
    let below = mounts.filter_map(|mount| {
        let rest = text.strip_prefix(mount.mount_path.trim_end_matches('/'))?;
        let path = || {
            (
                mount.mount_path.len(),
                format!("{volumes}/{}{rest}", mount.name),
            )
        };
        (rest.is_empty() || rest.starts_with('/')).then(path)
    });
    // Of two mounts the inner one.
    let found = below.max_by_key(|(length, _)| *length);
    found.map_or(text.clone(), |(_, path)| path)
}

/// The downward API, as far as the lab's pods use it.
fn field(pod: &Pod, path: &str, known: &Variables) -> Result<String> {
    let spec = pod.spec.as_ref();
    let text = match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()),
        "status.podIP" => known.get("LAB_POD_IP").cloned(),
        "status.hostIP" => known.get("LAB_HOST_IP").cloned(),
        other => bail!("fieldPath `{other}` is not one the lab fills in"),
    };
    text.with_context(|| format!("the pod has no {path}"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::topology::Cluster;
    use crate::{deploy, manifests};

    #[test]
    fn variables_are_expanded_as_kubernetes_does() {
        let known = Variables::from([("A".to_owned(), "1".to_owned())]);
        for (text, expected) in [
            ("x$(A)y", "x1y"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("a$", "a$"),
            ("$(A", "$(A"),
            ("", ""),
        ] {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }

    #[test]
    fn paths_below_mounts_lead_into_volumes() {
        let container: Container = serde_json::from_value(serde_json::json!({
            "name": "app", "volumeMounts": [
                {"name": "outer", "mountPath": "/run/secrets"},
                {"name": "inner", "mountPath": "/run/secrets/tokens/"},
            ],
        }))
        .unwrap();
        for (text, expected) in [
            ("/run/secrets/a.pem", "/v/outer/a.pem"),
            ("/run/secrets/tokens/b", "/v/inner/b"),
            ("/run/secrets", "/v/outer"),
            ("/run/secretsandmore", "/run/secretsandmore"),
            ("a /run/secrets/b", "a /run/secrets/b"),
        ] {
            assert_eq!(
                mounted(text.to_owned(), &container, "/v"),
                expected,
                "{text}"
            );
        }
    }

    /// What the containers of an image are granted, each time it runs.
    fn grants(objects: &[Value], image: &str) -> Vec<Grant> {
        let of_pod = |object: &Value| match object["kind"].as_str() {
            Some("Pod") => Some(object.clone()),
            _ => deploy::pod_of(object),
        };
        let containers = objects.iter().filter_map(of_pod).flat_map(|pod| {
            let containers = pod["spec"]["containers"].as_array().cloned();
            containers.unwrap_or_default()
        });
        let of_image = |container: &Value| {
            let name = container["image"].as_str().unwrap_or_default();
            name.split(':').next() == Some(image)
        };
        let words = |value: &Value| -> Vec<String> {
            serde_json::from_value(value.clone()).unwrap_or_default()
        };
        containers
            .filter(of_image)
            .map(|container| {
                let said = &container["securityContext"]["capabilities"];
                Grant::from_security_context(&words(&said["add"]), &words(&said["drop"])).unwrap()
            })
            .collect()
    }

    #[test]
    fn daemons_have_the_capabilities_that_a_cluster_grants_them() {
        let networks = [Cluster::First, Cluster::Second].map(manifests::of_network);
        let lab = manifests::BUILT_IN.into_iter().chain(networks);
        let lab: Vec<Value> = lab
            .flat_map(|(_, text)| manifests::documents(text).unwrap())
            .collect();
        let cluster = deploy::objects().unwrap();
        for image in ["culvert/ztunnel", "culvert/redirect"] {
            let granted = grants(&cluster, image);
            assert_eq!(granted.len(), 1, "{image}");
            let here = grants(&lab, image);
            assert!(here.len() >= 2, "{image} runs on every node");
            for grant in here {
                assert_eq!(grant, granted[0], "{image}");
            }
        }
        let control_plane = grants(&cluster, "culvert/istiod-lite");
        assert_eq!(control_plane, [super::super::control_plane::GRANT]);
    }
}
