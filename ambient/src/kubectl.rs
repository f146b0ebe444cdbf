// SPDX-License-Identifier: Apache-2.0
//! The way into a cluster: the operator's own `kubectl`, which knows all the ways in which clusters let people in. No
//! credential is read here. Blocking.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::admin::{Error, MAX_ANSWER, PATIENCE};

/// More than kubectl ever complains.
const MAX_COMPLAINT: u64 = 64 * 1024;
pub(crate) const GATEWAYS: &str = "gateways.gateway.networking.k8s.io";

/// Which cluster, and the kubectl that asks it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The cluster")]
pub(crate) struct Cluster {
    /// As kubectl takes it; without it, kubectl's own choice
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The kubectl that is used
    #[arg(
        long,
        env = "KUBECTL",
        default_value = "kubectl",
        value_name = "PROGRAM"
    )]
    kubectl: PathBuf,
}

/// What the API server calls a thing: no more than these characters, so that a path stays the path that was meant.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    match (1..=253).contains(&text.len()) && text.chars().all(known) {
        true => Ok(text.to_owned()),
        false => Err("a name has lowercase letters, digits, '-' and '.'".to_owned()),
    }
}

impl Cluster {
    /// What stands at a path of the API server.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Error> {
        self.json(&["get", "--raw", path, LIMIT], None)
    }

    /// The namespace that is meant where none is said.
    pub(crate) fn namespace(&self) -> Result<String, Error> {
        let template = "--output=jsonpath={.contexts[0].context.namespace}";
        let namespace = self.run(&["config", "view", "--minify", template], None)?;
        let namespace = String::from_utf8_lossy(&namespace).trim().to_owned();
        Ok(match namespace.is_empty() {
            true => "default".to_owned(),
            false => namespace,
        })
    }

    /// Has an object be as it is said here, in the fields that are said here; returns all of it. Fields that somebody else
    /// has set to something else are a conflict.
    pub(crate) fn apply(&self, object: &Value) -> Result<Value, Error> {
        let apply = [
            "apply",
            "--server-side",
            "--field-manager=ambient",
            "--filename=-",
            "--output=json",
            LIMIT,
        ];
        self.json(&apply, Some(object))
    }

    pub(crate) fn label_namespace(
        &self,
        namespace: &str,
        label: &str,
        overwrite: bool,
    ) -> Result<(), Error> {
        let overwrite = format!("--overwrite={overwrite}");
        let arguments = ["label", "namespace", namespace, label, &overwrite, LIMIT];
        self.run(&arguments, None).map(drop)
    }

    pub(crate) fn delete_gateways(&self, namespace: &str, names: &[String]) -> Result<(), Error> {
        let mut arguments = vec!["delete", GATEWAYS, "--namespace", namespace];
        arguments.extend(names.iter().map(String::as_str));
        self.run(&arguments, None).map(drop)
    }

    /// Waits until a Gateway is programmed as it stands there now.
    pub(crate) fn wait_for_gateway(
        &self,
        namespace: &str,
        name: &str,
        patience: Duration,
    ) -> Result<(), Error> {
        let gateway = format!("{GATEWAYS}/{name}");
        let timeout = format!("--timeout={}ms", patience.as_millis());
        let programmed = "--for=condition=Programmed";
        let arguments = ["wait", programmed, &gateway, "-n", namespace, &timeout];
        self.run(&arguments, None).map(drop)
    }

    /// A way to a port that a pod opens for itself alone.
    pub(crate) fn forward(&self, namespace: &str, pod: &str, port: u16) -> Result<Forward, Error> {
        let (pod, port) = (format!("pod/{pod}"), format!(":{port}"));
        let arguments = [
            "port-forward",
            "--address=127.0.0.1",
            "-n",
            namespace,
            &pod,
            &port,
        ];
        let failed = |cause: String| self.error(&arguments, cause);
        let mut child = self.spawn(&arguments, Stdio::null())?;
        let stdout = child.stdout.take();
        let (sender, receiver) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut line = String::new();
            let mut stdout = stdout.map(|stdout| BufReader::new(stdout.take(MAX_COMPLAINT)));
            if let Some(stdout) = &mut stdout {
                // What can't be read names no address.
                _ = stdout.read_line(&mut line);
            }
            // Whoever has given up hears nothing.
            _ = sender.send((line, stdout));
        });
        let (line, stdout) = receiver.recv_timeout(PATIENCE).unwrap_or_default();
        // "Forwarding from 127.0.0.1:40001 -> 15000"
        let address = line.split(' ').find(|word| word.starts_with("127.0.0.1:"));
        let forward = |address: &str| Forward {
            address: address.to_owned(),
            child,
            _stdout: stdout,
        };
        match address.map(str::to_owned) {
            Some(address) => Ok(forward(&address)),
            None => Err(failed(forward("").complaint())),
        }
    }

    fn json(&self, arguments: &[&str], stdin: Option<&Value>) -> Result<Value, Error> {
        let answer = self.run(arguments, stdin)?;
        serde_json::from_slice(&answer)
            .map_err(|error| self.error(arguments, format!("the answer: {error}")))
    }

    fn run(&self, arguments: &[&str], stdin: Option<&Value>) -> Result<Vec<u8>, Error> {
        let failed = |cause: String| self.error(arguments, cause);
        let given = match stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        };
        let mut child = self.spawn(arguments, given)?;
        if let (Some(mut pipe), Some(object)) = (child.stdin.take(), stdin) {
            // One that ends without reading says why itself.
            _ = pipe.write_all(object.to_string().as_bytes());
        }
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (answer, complaint) = std::thread::scope(|scope| {
            let complaint = scope.spawn(|| all(stderr, MAX_COMPLAINT));
            let answer = all(stdout, MAX_ANSWER);
            (answer, complaint.join().unwrap_or_default())
        });
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        let complaint = String::from_utf8_lossy(&complaint).trim().to_owned();
        match status.success() {
            true => Ok(answer),
            false if complaint.is_empty() => Err(failed(status.to_string())),
            false => Err(failed(complaint)),
        }
    }

    fn spawn(&self, arguments: &[&str], stdin: Stdio) -> Result<Child, Error> {
        let mut command = Command::new(&self.kubectl);
        for (flag, value) in [
            ("--kubeconfig", self.kubeconfig.as_deref().map(OsStr::new)),
            ("--context", self.context.as_deref().map(OsStr::new)),
        ] {
            if let Some(value) = value {
                command.arg(flag).arg(value);
            }
        }
        command.args(arguments).stdin(stdin);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        child.map_err(|error| {
            let instead = "install it, name it with --kubectl, or name a ztunnel with --ztunnel";
            self.error(arguments, format!("{error}; {instead}"))
        })
    }

    fn error(&self, arguments: &[&str], cause: String) -> Error {
        Error {
            asked: format!("{} {}", self.kubectl.display(), arguments.join(" ")),
            cause,
        }
    }
}

/// For each request; waiting for a condition has a limit of its own.
const LIMIT: &str = "--request-timeout=10s";

fn all(pipe: Option<impl Read>, limit: u64) -> Vec<u8> {
    let mut read = Vec::new();
    if let Some(pipe) = pipe {
        // What broke off is no JSON, or half a complaint.
        _ = pipe.take(limit).read_to_end(&mut read);
    }
    read
}

/// Ends when it is dropped.
pub(crate) struct Forward {
    /// Of this machine, HOST:PORT.
    pub(crate) address: String,
    child: Child,
    /// kubectl ends once nobody can hear it.
    _stdout: Option<BufReader<std::io::Take<ChildStdout>>>,
}

impl Forward {
    /// Why there is no way.
    fn complaint(mut self) -> String {
        self.end();
        let complaint = all(self.child.stderr.take(), MAX_COMPLAINT);
        match String::from_utf8_lossy(&complaint).trim() {
            "" => format!("no address within {PATIENCE:?}"),
            complaint => complaint.to_owned(),
        }
    }

    fn end(&mut self) {
        // It may have ended by itself.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(kubectl: &str) -> Cluster {
        Cluster {
            kubeconfig: None,
            context: None,
            kubectl: kubectl.into(),
        }
    }

    #[test]
    fn a_kubectl_that_is_missing_silent_or_speaks_otherwise_is_named() {
        for (kubectl, part) in [
            ("/nowhere/kubectl", "No such file"),
            ("false", "exit status: 1"),
            ("echo", "the answer: expected value"),
        ] {
            let error = with(kubectl).get("/api").unwrap_err().to_string();
            let asked = format!("{kubectl} get --raw /api");
            assert!(error.starts_with(&asked) && error.contains(part), "{error}");
        }
        let refused = with("true").forward("istio-system", "ztunnel-1", 15000);
        let refused = refused.err().expect("no address").to_string();
        assert!(
            refused.contains("pod/ztunnel-1 :15000: no address"),
            "{refused}"
        );
    }

    #[test]
    fn a_name_is_no_way_to_another_path() {
        assert_eq!(name("shop-1.a").as_deref(), Ok("shop-1.a"));
        for bad in ["", "a/b", "a?b", "A", "a b", &"a".repeat(254)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
