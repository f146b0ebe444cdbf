// SPDX-License-Identifier: Apache-2.0
//! A fault with everybody watching: traffic in the background, both wires, every log.
//!
//! ```text
//!  Trial::begin ─► (do the worst) ─► Trial::end ─► Verdict: what the traffic met, what the wires carried
//! ```
//! Whatever the fault, [`Verdict::check`] wants no wrong byte, no silent loss, nothing of a captured pod in the clear,
//! no panic. What else a fault may cost is for its test to say.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};

use crate::handle::{Access, Sniffing};
use crate::load::{Load, Tally, Volume, now};
use crate::sniff::Traffic;
use crate::topology::{Node, PodName};

/// Where the traffic of a trial runs.
#[derive(Debug, Clone)]
pub struct Course<'a> {
    pub from: &'a str,
    pub to: Vec<SocketAddr>,
    pub volume: Volume,
}

/// A trial under way.
pub struct Trial<'a> {
    lab: &'a Access,
    load: Load,
    wires: Vec<Sniffing>,
    marker: String,
    logs: BTreeMap<String, u64>,
    begun: u64,
}

/// What a trial showed.
#[derive(Debug)]
pub struct Verdict {
    pub traffic: Tally,
    pub wires: Vec<Traffic>,
    /// Lines of any log, since the beginning, that tell of a panic.
    pub panics: Vec<String>,
    /// Addresses of pods that are not in the mesh: what they say is plain.
    outside: Vec<IpAddr>,
}

impl<'a> Trial<'a> {
    /// Starts to watch, then the traffic; returns once all kinds of it work.
    pub fn begin(lab: &'a Access, course: &Course<'_>) -> Result<Self> {
        let marker = format!("trial-{:016x}", rand::random::<u64>());
        let logs = log_lengths(lab)?;
        let begun = now();
        let wires = Node::ALL
            .into_iter()
            .map(|node| lab.start_sniffing(node, Some(&marker)))
            .collect::<Result<Vec<_>>>()?;
        let load = Load::start(lab, course.from, &course.to, &course.volume, &marker)?;
        Ok(Self {
            lab,
            load,
            wires,
            marker,
            logs,
            begun,
        })
    }

    pub fn load(&self) -> &Load {
        &self.load
    }

    /// The text that is woven into all the traffic.
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// What a daemon or pod has logged since the trial began.
    pub fn log(&self, name: &str) -> Result<String> {
        let whole = self.lab.log(name)?;
        let path = self.lab.log_path(name)?;
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        let before = self.logs.get(stem).copied().unwrap_or_default();
        let before = usize::try_from(before).context("a log's length")?;
        Ok(whole.get(before..).unwrap_or_default().to_owned())
    }

    /// Ends the traffic in order and tells what everybody saw.
    pub fn end(self) -> Result<Verdict> {
        let traffic = self.load.stop()?;
        let wires = self
            .wires
            .into_iter()
            .map(Sniffing::finish)
            .collect::<Result<Vec<_>>>()?;
        Ok(Verdict {
            traffic: traffic.between(self.begun, u64::MAX),
            wires,
            panics: panics(self.lab, &self.logs)?,
            outside: pods_outside(self.lab)?,
        })
    }
}

impl Verdict {
    /// What no fault may cost.
    pub fn check(&self) -> Result<()> {
        let wrong = self.traffic.wrong();
        ensure!(
            wrong.is_empty(),
            "bytes were wrong or lost without a word:\n  {}",
            wrong.join("\n  ")
        );
        let plain: Vec<String> = self.in_the_clear().collect();
        ensure!(plain.is_empty(), "in the clear:\n  {}", plain.join("\n  "));
        ensure!(
            self.panics.is_empty(),
            "panics:\n  {}",
            self.panics.join("\n  ")
        );
        ensure!(
            self.wires.iter().any(|wire| wire
                .flows
                .iter()
                .any(|flow| flow.is_tunnel() && flow.tls_records > 0)),
            "the wires carried no tunnel at all, so that nothing was seen"
        );
        Ok(())
    }

    fn in_the_clear(&self) -> impl Iterator<Item = String> {
        let flows = self.wires.iter().flat_map(|wire| &wire.flows);
        let ours = |address: SocketAddr| !self.outside.contains(&address.ip());
        flows
            .filter(move |flow| {
                let between_captured = ours(flow.source) && ours(flow.destination);
                flow.marker || between_captured && flow.is_in_the_clear()
            })
            .map(|flow| format!("{flow:?}"))
    }
}

fn log_lengths(lab: &Access) -> Result<BTreeMap<String, u64>> {
    let mut lengths = BTreeMap::new();
    for entry in std::fs::read_dir(lab.state().logs()).context("the lab's logs")? {
        let entry = entry?;
        let path = entry.path();
        if let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) {
            lengths.insert(stem.to_owned(), entry.metadata()?.len());
        }
    }
    Ok(lengths)
}

/// Lines that tell of a panic, in any log, behind what was there before.
fn panics(lab: &Access, before: &BTreeMap<String, u64>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for stem in log_lengths(lab)?.into_keys() {
        let text = std::fs::read(lab.state().log(&stem)).context("a log")?;
        let skip = before.get(&stem).copied().unwrap_or_default();
        let new = text.get(usize::try_from(skip)?..).unwrap_or_default();
        for line in String::from_utf8_lossy(new).lines() {
            if line.contains("panicked") {
                found.push(format!("{stem}: {line}"));
            }
        }
    }
    Ok(found)
}

/// Namespaces that the built-in cluster leaves outside of the mesh.
const OUTSIDE: [&str; 2] = ["outside", "default"];

fn pods_outside(lab: &Access) -> Result<Vec<IpAddr>> {
    let outside = |pod: &PodName| OUTSIDE.contains(&pod.namespace.as_str());
    let pods = lab.state().pods()?;
    let addresses = pods
        .iter()
        .filter(|record| outside(&record.pod))
        .filter_map(|record| record.addresses);
    Ok(addresses.flat_map(|pair| pair.both()).collect())
}
