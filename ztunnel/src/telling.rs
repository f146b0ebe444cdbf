// SPDX-License-Identifier: Apache-2.0
//! Who is told of connections beside the log, by namespace.
//!
//! In: [`ConnectionLogs`] of the control plane, made of Istio's Telemetry. Out: for each connection that has ended, whether it
//! has a line in the log, and which collectors are told of it. Where nobody has asked for anything, nothing is looked up.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use prost::Message as _;
use proto::CONNECTION_LOGS_TYPE_URL;
use proto::telemetry::{ConnectionLogs, Logs};
use proto::waypoint as wire;
use tracing::warn;
use xds::{Handler, Rejection, Resource};

use crate::record::Reporter;

/// A service that takes OTLP over gRPC.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collector {
    /// Empty: whichever has such a host.
    pub namespace: Box<str>,
    pub hostname: Box<str>,
    pub port: u16,
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            hostname,
            port,
        } = self;
        match &**namespace {
            "" => write!(f, "{hostname}:{port}"),
            namespace => write!(f, "{namespace}/{hostname}:{port}"),
        }
    }
}

/// What is told of the connections of one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub own_line: bool,
    pub collectors: Vec<Arc<Collector>>,
}

/// Of what a namespace's pods send and take; nothing where the log has it all.
type Sides = [Option<Arc<Told>>; 2];

/// What the control plane has said.
#[derive(Default)]
pub struct Telling {
    is_anything: AtomicBool,
    said: RwLock<Said>,
}

#[derive(Default)]
struct Said {
    /// By the names of resources.
    by_name: HashMap<Arc<str>, (bool, Arc<str>, Sides)>,
    by_namespace: HashMap<Arc<str>, Sides>,
    everywhere: Sides,
}

impl Telling {
    /// What is told of a connection that a pod of this namespace has sent or taken; nothing where the log has it all.
    pub fn of(&self, reporter: Reporter, namespace: &str) -> Option<Arc<Told>> {
        if !self.is_anything.load(Ordering::Relaxed) {
            return None;
        }
        let said = self.said.read();
        let sides = said.by_namespace.get(namespace);
        sides.unwrap_or(&said.everywhere)[reporter as usize].clone()
    }

    fn take_in(&self, resources: &[Resource], removed: &[String]) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        let mut said = self.said.write();
        for resource in resources {
            let read = ConnectionLogs::decode(&*resource.body);
            match read.map_err(|error| error.to_string()).and_then(sides) {
                Ok(sides) => {
                    said.by_name.insert(resource.name.clone(), sides);
                }
                Err(reason) => {
                    let name = resource.name.to_string();
                    warn!(resource = name, reason, "connection logs rejected");
                    rejections.push(Rejection { name, reason });
                }
            }
        }
        for name in removed {
            said.by_name.remove(name.as_str());
        }
        let all: Vec<_> = said.by_name.values().cloned().collect();
        (said.by_namespace, said.everywhere) = Default::default();
        for (everywhere, namespace, sides) in all {
            if everywhere {
                said.everywhere = sides.clone();
            }
            said.by_namespace.insert(namespace, sides);
        }
        let is_anything = !said.by_name.is_empty();
        self.is_anything.store(is_anything, Ordering::Relaxed);
        rejections
    }
}

fn sides(logs: ConnectionLogs) -> Result<(bool, Arc<str>, Sides), String> {
    let side = |logs: &Option<Logs>| logs.as_ref().map(told).transpose();
    let sides = [side(&logs.sent)?, side(&logs.taken)?];
    Ok((logs.everywhere, logs.namespace.into(), sides))
}

fn told(logs: &Logs) -> Result<Arc<Told>, String> {
    let collector = |to: &wire::Collector| {
        let port = u16::try_from(to.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| format!("the port of {} is {}", to.hostname, to.port))?;
        Ok::<_, String>(Arc::new(Collector {
            namespace: to.namespace.as_str().into(),
            hostname: to.hostname.as_str().into(),
            port,
        }))
    };
    Ok(Arc::new(Told {
        own_line: logs.own_line,
        collectors: logs
            .collectors
            .iter()
            .map(collector)
            .collect::<Result<_, _>>()?,
    }))
}

/// Brings them in.
pub struct Connections(pub Arc<Telling>);

impl Handler for Connections {
    fn type_url(&self) -> &'static str {
        CONNECTION_LOGS_TYPE_URL
    }

    /// Istio's control plane knows nothing of it.
    fn is_needed(&self) -> bool {
        false
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        self.0.take_in(&resources, &removed)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn resource(name: &str, everywhere: bool, port: u32) -> Resource {
        let collectors = vec![wire::Collector {
            namespace: String::new(),
            hostname: "otel.obs".to_owned(),
            port,
        }];
        let logs = ConnectionLogs {
            namespace: name.to_owned(),
            everywhere,
            sent: Some(Logs {
                own_line: everywhere,
                collectors,
            }),
            taken: None,
        };
        Resource {
            name: name.into(),
            version: String::new(),
            body: Bytes::from(logs.encode_to_vec()),
        }
    }

    #[test]
    fn a_namespace_has_its_own_word_and_else_the_mesh_has_it() {
        let telling = Telling::default();
        let own_line = |namespace: &str| {
            let told = telling.of(Reporter::Source, namespace);
            told.map(|told| told.own_line)
        };
        assert_eq!(own_line("shop"), None);
        let all = [resource("root", true, 4317), resource("shop", false, 4317)];
        assert!(telling.take_in(&all, &[]).is_empty());
        assert_eq!(
            ["shop", "root", "other"].map(own_line),
            [Some(false), Some(true), Some(true)]
        );
        assert_eq!(telling.of(Reporter::Destination, "shop"), None);
        let rejected = telling.take_in(&[resource("shop", false, 0)], &["root".to_owned()]);
        assert_eq!(rejected[0].reason, "the port of otel.obs is 0");
        assert_eq!(["shop", "other"].map(own_line), [Some(false), None]);
        assert!(telling.take_in(&[], &["shop".to_owned()]).is_empty());
        assert_eq!(own_line("shop"), None);
    }
}
