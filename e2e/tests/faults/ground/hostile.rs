// SPDX-License-Identifier: Apache-2.0
//! Hostile peers at work, from a node: there nothing is captured.

use std::io::Read as _;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use e2e::handle::proxy_of;
use e2e::topology::{CONTROL_PLANE_NAME, CONTROL_PLANE_PORT, Node};
use serde::de::DeserializeOwned;

use super::Turn;

impl Turn {
    /// Where a pod takes tunnels.
    pub(crate) fn tunnel(&self, pod: &str) -> String {
        self.lab.v4(pod, hbone::wire::PORT).unwrap().to_string()
    }

    /// The arguments by which a peer is the proxy of a node to the control plane.
    pub(crate) fn member(&self, node: Node) -> Vec<String> {
        let state = self.lab.state();
        let volume = format!("volumes/istio-system_{}/tokens/istio-token", proxy_of(node));
        [
            ("--account", "istio-system/ztunnel".to_owned()),
            (
                "--control-plane",
                format!("https://{CONTROL_PLANE_NAME}:{CONTROL_PLANE_PORT}"),
            ),
            (
                "--token",
                state.node(node).join(volume).display().to_string(),
            ),
            ("--roots", state.root_certificates().display().to_string()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    }

    /// Stores a chain and key for a peer to show.
    pub(crate) fn credentials(&self, pem: &str) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.lab.state().root().join(format!("forged-{number}.pem"));
        std::fs::write(&path, pem).unwrap();
        path
    }

    /// Has a hostile peer do one thing, with these credentials if any, and tells what it met.
    pub(crate) fn hostile<T: DeserializeOwned>(
        &self,
        from: Node,
        credentials: Option<&str>,
        arguments: &[&str],
    ) -> T {
        let file = credentials.map(|pem| self.credentials(pem));
        let mut arguments = [&["hostile"], arguments].concat();
        if let Some(file) = &file {
            arguments.extend(["--credentials", file.to_str().unwrap()]);
        }
        self.lab.answer(from.name(), &arguments).unwrap()
    }
}

/// A hostile peer that goes on until it is told to end. Dropping it ends it at once.
pub(crate) struct Background<T> {
    process: Child,
    report: PhantomData<T>,
}

impl<T: DeserializeOwned> Background<T> {
    pub(crate) fn start(turn: &Turn, from: Node, arguments: &[&str]) -> Self {
        let arguments = [&["hostile"], arguments].concat();
        let mut command = turn.lab.tool(from.name(), &arguments);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Self {
            process: process.unwrap(),
            report: PhantomData,
        }
    }

    /// Tells it to end, waits for it, and returns what it met.
    pub(crate) fn end(mut self) -> T {
        drop(self.process.stdin.take());
        let mut text = String::new();
        let mut output = self.process.stdout.take().unwrap();
        output.read_to_string(&mut text).unwrap();
        let last = text.trim_end().lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}
