// SPDX-License-Identifier: Apache-2.0
//! An Envoy in a pod that is its own proxy: with a certificate of the mesh's authority, told statically what to do.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::environment::Environment;
use crate::handle::{Access, eventually};

/// How long one may take to serve.
const START: Duration = Duration::from_secs(30);
/// How long one may take to end.
const FAREWELL: Duration = Duration::from_secs(10);
/// Where each of ours takes tunnels; it listens on this port last, once it has all others.
const TUNNELS: u16 = 15008;

/// It ends with this value.
pub(super) struct Envoy {
    process: Child,
    /// By which the program is known among all processes of the machine.
    configuration: String,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
        // What was waited for is the program that entered the pod. Until Envoy itself is gone, another can't have its names.
        let ended = eventually("Envoy is gone", FAREWELL, || {
            ensure!(self.pid().is_err(), "it runs still");
            Ok(())
        });
        if let Err(error) = ended {
            eprintln!("{error:#}");
        }
    }
}

impl Envoy {
    /// Starts it in `place`, a pod of an account of the same name, and waits until it takes tunnels. `text` makes its
    /// configuration, told the folder that holds its certificate; `id` tells it from the others of the machine.
    pub(super) fn start(
        lab: &Access,
        place: &str,
        (program, id): (&Path, u32),
        text: impl FnOnce(&str) -> String,
    ) -> Result<Self> {
        ensure!(
            program.is_file(),
            "there is no Envoy at {}",
            program.display()
        );
        let folder = lab.state().root().join(format!("envoy-{id}"));
        std::fs::create_dir_all(&folder)?;
        let files = folder.to_str().context("a path that is text")?;
        certify(lab, place, files)?;
        let configuration = folder.join("envoy.yaml");
        std::fs::write(&configuration, text(files))?;
        let mut command = lab.command(&["exec", place, "--"]);
        // As many descriptors as it may have: unlike ours, it does not ask for them itself.
        command.args(["sh", "-c", "ulimit -n $(ulimit -Hn); exec \"$@\"", "envoy"]);
        command.arg(program).arg("-c").arg(&configuration);
        command.args(["--base-id", &id.to_string()]);
        command.args(["--concurrency", "2", "-l", "warning"]);
        let process = command.stdin(Stdio::null()).spawn().context("Envoy")?;
        let mut envoy = Self {
            process,
            configuration: configuration.display().to_string(),
        };
        envoy.settle()?;
        Ok(envoy)
    }

    /// Waits until it takes tunnels.
    fn settle(&mut self) -> Result<()> {
        let what = format!("Envoy takes tunnels on port {TUNNELS}");
        let ended = eventually(&what, START, || {
            // One that has ended never will, and has said why.
            if let Some(status) = self.process.try_wait().context("Envoy")? {
                return Ok(Some(status));
            }
            ensure!(listens(self.pid()?)?, "nobody listens there");
            Ok(None)
        })?;
        match ended {
            Some(status) => bail!("Envoy has ended at once, with {status}; it has said why"),
            None => Ok(()),
        }
    }

    /// Its process id, outside of the lab.
    pub(super) fn pid(&self) -> Result<u32> {
        for entry in std::fs::read_dir("/proc").context("cannot list processes")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let said = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = said.split('\0');
            let is_envoy = words.next().is_some_and(|program| !program.contains("e2e"));
            if is_envoy && words.any(|word| word == self.configuration) {
                return Ok(pid);
            }
        }
        bail!("Envoy does not run")
    }
}

/// Whether the process's network has somebody who takes tunnels.
fn listens(pid: u32) -> Result<bool> {
    let path = format!("/proc/{pid}/net/tcp");
    let sockets = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    Ok(has_listener(&sockets, TUNNELS))
}

/// Whether the kernel's list of TCP sockets has one in state LISTEN (0A) on this port.
fn has_listener(sockets: &str, port: u16) -> bool {
    let local = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words
            .next()
            .is_some_and(|address| address.ends_with(&local))
            && words.nth(1) == Some("0A")
    })
}

/// Where it is, by a flag, $ENVOY or the path.
pub(super) fn find(environment: &Environment) -> Option<PathBuf> {
    environment.envoy().or_else(|| {
        std::env::split_paths(environment.path())
            .map(|folder| folder.join("envoy"))
            .find(|program| program.is_file())
    })
}

/// Who may talk to whom by tunnel: TLS 1.3 both ways with certificates of the mesh, as lines of a TLS context.
pub(super) fn secrets(files: &str, indent: usize) -> String {
    let text = format!(
        r#"alpn_protocols: [h2]
tls_params: {{tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}}
tls_certificates: [{{certificate_chain: {{filename: "{files}/certificate.pem"}}, private_key: {{filename: "{files}/key.pem"}}}}]
validation_context:
  trusted_ca: {{filename: "{files}/roots.pem"}}
  match_typed_subject_alt_names: [{{san_type: URI, matcher: {{prefix: "spiffe://cluster.local/ns/"}}}}]"#
    );
    text.replace('\n', &format!("\n{}", " ".repeat(indent)))
}

fn certify(lab: &Access, place: &str, files: &str) -> Result<()> {
    let mut arguments = ["native", "certify", "--directory", files]
        .map(str::to_owned)
        .to_vec();
    arguments.extend(lab.membership(place, place)?);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let status = lab.tool(place, &arguments).status()?;
    ensure!(status.success(), "no certificate for {place}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_told_from_a_connection_on_its_port() {
        let listens = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
            0: 00000000:3AA0 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1337\n";
        let carries = listens.replace(" 0A ", " 01 ");
        assert!(has_listener(listens, TUNNELS));
        assert!(!has_listener(&carries, TUNNELS));
        assert!(!has_listener(listens, 15_000));
    }
}
