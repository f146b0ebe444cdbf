// SPDX-License-Identifier: Apache-2.0
//! What a proxy holds, to be compared before and after.

use std::time::Duration;

use anyhow::ensure;
use e2e::handle::{Process, eventually, proxy_of};
use e2e::topology::Node;
use serde_json::Value;

use super::Turn;

/// What a proxy holds: descriptors, accepted sockets, connections in its own view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    descriptors: usize,
    sockets: u64,
    connections: usize,
}

/// Waits until a daemon has no more descriptors open than that: what others took of it is given back.
pub(crate) fn until_let_go(process: &Process, most: usize) {
    eventually(
        "it holds nothing of theirs",
        Duration::from_secs(30),
        || {
            let now = process.descriptors()?;
            ensure!(now <= most, "{now} descriptors, {most} at the most before");
            Ok(())
        },
    )
    .unwrap();
}

impl Turn {
    pub(crate) fn holding(&self, node: Node) -> anyhow::Result<Holding> {
        let lab = self.lab;
        let dump = self.dump(node)?;
        let workloads = dump["workloadState"].as_object();
        ensure!(workloads.is_some(), "the dump has no workloadState: {dump}");
        let lists = workloads.into_iter().flatten().flat_map(|(_, pod)| {
            ["inbound", "outbound"]
                .map(|way| pod["connections"][way].as_array().map_or(0, Vec::len))
        });
        Ok(Holding {
            descriptors: lab.process(proxy_of(node))?.descriptors()?,
            sockets: lab.metrics(node)?.sum("istio_tcp_sockets_open", &[]) as u64,
            connections: lists.sum(),
        })
    }

    /// Waits until a proxy holds no more than before, beside what the usual traffic and its tunnels take.
    pub(crate) fn until_released(&self, node: Node, before: Holding, traffic: usize) {
        eventually("all is as before", Duration::from_secs(40), || {
            let now = self.holding(node)?;
            ensure!(
                now.descriptors <= before.descriptors + 2 * traffic
                    && now.sockets <= before.sockets + traffic as u64
                    && now.connections <= before.connections + traffic,
                "{node}: {now:?}, before {before:?}, and {traffic} for the traffic"
            );
            Ok(())
        })
        .unwrap();
    }

    /// What a proxy's admin view says of the latest refusals.
    pub(crate) fn refusals(&self, node: Node) -> String {
        self.dump(node).unwrap()["refusals"].to_string()
    }

    fn dump(&self, node: Node) -> anyhow::Result<Value> {
        let dump = self.get(node.name(), "127.0.0.1:15000", "/config_dump")?;
        Ok(serde_json::from_str(&dump)?)
    }

    /// A page, as a client in that place gets it.
    pub(crate) fn get(&self, place: &str, address: &str, path: &str) -> anyhow::Result<String> {
        let report = self.lab.traffic(place, &["get", address, path])?;
        ensure!(report.is_done(), "{address}{path} in {place}: {report:?}");
        Ok(report.answer.unwrap_or_default())
    }
}
