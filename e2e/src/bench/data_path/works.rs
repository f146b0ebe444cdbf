// SPDX-License-Identifier: Apache-2.0
//! What is measured: each row of the table. Pure.

use super::load::Kind;

/// One row: a kind of work on so many connections, to a server of the other node or of the client's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub id: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    pub connections: usize,
    pub same_node: bool,
}

const fn work(id: &'static str, title: &'static str, kind: Kind, connections: usize) -> Work {
    Work {
        id,
        title,
        kind,
        connections,
        same_node: false,
    }
}

const fn same_node(work: Work) -> Work {
    Work {
        same_node: true,
        ..work
    }
}

/// In the order of the table.
pub const WORKS: &[Work] = &[
    work("bulk-up-1", "bulk up, 1 stream", Kind::BulkUp, 1),
    work("bulk-down-1", "bulk down, 1 stream", Kind::BulkDown, 1),
    work("bulk-up-8", "bulk up, 8 streams", Kind::BulkUp, 8),
    work("bulk-down-8", "bulk down, 8 streams", Kind::BulkDown, 8),
    work("http-16", "HTTP keep-alive, 16 connections", Kind::Http, 16),
    work("http-64", "HTTP keep-alive, 64 connections", Kind::Http, 64),
    work(
        "connect-1",
        "new connections, 1 at a time",
        Kind::Connect,
        1,
    ),
    work(
        "connect-16",
        "new connections, 16 at a time",
        Kind::Connect,
        16,
    ),
    work("ping-1", "1-byte round trips", Kind::Ping, 1),
    same_node(work(
        "same-bulk-up-1",
        "same node: bulk up, 1 stream",
        Kind::BulkUp,
        1,
    )),
    same_node(work(
        "same-bulk-down-1",
        "same node: bulk down, 1 stream",
        Kind::BulkDown,
        1,
    )),
    same_node(work(
        "same-http-16",
        "same node: HTTP, 16 connections",
        Kind::Http,
        16,
    )),
    same_node(work(
        "same-connect-16",
        "same node: new connections, 16 at a time",
        Kind::Connect,
        16,
    )),
    same_node(work(
        "same-ping-1",
        "same node: 1-byte round trips",
        Kind::Ping,
        1,
    )),
];

impl Work {
    pub fn named(id: &str) -> Option<&'static Self> {
        WORKS.iter().find(|work| work.id == id)
    }

    /// What a rate counts.
    pub fn unit(&self) -> &'static str {
        match self.kind {
            Kind::BulkUp | Kind::BulkDown => "Gbit/s",
            Kind::Http | Kind::Requests => "requests/s",
            Kind::Connect | Kind::Idle | Kind::IdleRequests => "connections/s",
            Kind::Ping => "trips/s",
        }
    }

    /// A rate in that unit.
    pub fn rate(&self, units: u64, seconds: f64) -> f64 {
        let per_second = units as f64 / seconds;
        match self.kind {
            Kind::BulkUp | Kind::BulkDown => per_second * 8.0 / 1e9,
            _ => per_second,
        }
    }

    /// How much work CPU time is told for.
    pub fn per(&self) -> &'static str {
        match self.kind {
            Kind::BulkUp | Kind::BulkDown => "GiB",
            _ => "10,000",
        }
    }

    /// How many times that so much work was.
    pub fn portions(&self, units: u64) -> f64 {
        match self.kind {
            Kind::BulkUp | Kind::BulkDown => units as f64 / f64::from(1 << 30),
            _ => units as f64 / 1e4,
        }
    }
}
