// SPDX-License-Identifier: Apache-2.0
//! After a handover: what the relieved process still carries, told to its successor; and the successor's view of all the
//! processes before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use capture::seqpacket::SeqPacket;
use parking_lot::Mutex;
use proto::handover::{PodReport, Report, response};
use serde::Serialize;
use tokio::time::{Instant, interval};
use tracing::{debug, info};

use super::wire::{self, HandoverError, read_report};
use super::{Sockets, Successor};
use crate::pods::PodInfo;

const REPORT_PERIOD: Duration = Duration::from_secs(2);
/// Every so many reports one goes to the log.
const LOG_EVERY: u32 = 30;

/// A process before this one, as it reports of itself.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportView {
    pub pid: u32,
    pub build: String,
    pub connections: u64,
    /// By `namespace/name`.
    pub pods: BTreeMap<String, u64>,
    pub seconds_since_handover: u64,
    pub seconds_left: u64,
    pub resident_bytes: u64,
}

/// All processes before this one that still carry something.
#[derive(Default)]
pub struct Predecessors {
    reports: Mutex<BTreeMap<u32, ReportView>>,
    /// Lines to them; they pass on to the next process.
    lines: Mutex<Vec<Arc<SeqPacket>>>,
}

impl Predecessors {
    pub fn view(&self) -> Vec<ReportView> {
        self.reports.lock().values().cloned().collect()
    }

    /// Keeps a line, so that it can be handed to the next process, and takes in the reports that come on it until the
    /// process at its other end ends.
    pub async fn follow(&self, line: Arc<SeqPacket>) {
        self.lines.lock().push(Arc::clone(&line));
        self.listen(&line).await;
        let mut lines = self.lines.lock();
        lines.retain(|kept| !Arc::ptr_eq(kept, &line));
    }

    /// Adds duplicates of the lines under one name.
    pub(crate) fn hand_on(&self, name: &str, sockets: &mut Sockets) -> std::io::Result<()> {
        let lines = self.lines.lock();
        lines.iter().try_for_each(|line| sockets.add(name, &**line))
    }

    async fn listen(&self, channel: &SeqPacket) {
        let mut pid = None;
        loop {
            let report = match wire::receive(channel).await.and_then(read_report) {
                Ok(report) => report,
                Err(HandoverError::Gone) => break,
                Err(error) => {
                    debug!(%error, "a process before this one is heard no more");
                    break;
                }
            };
            let report = view_of(report);
            pid = Some(report.pid);
            self.reports.lock().insert(report.pid, report);
        }
        if let Some(pid) = pid {
            info!(pid, "a process before this one has ended");
            self.reports.lock().remove(&pid);
        }
    }
}

fn view_of(report: Report) -> ReportView {
    let pods = report.pods.into_iter().map(|pod| {
        let name = format!("{}/{}", pod.namespace, pod.name);
        (name, pod.connections)
    });
    ReportView {
        pid: report.pid,
        build: report.build,
        connections: report.connections,
        pods: pods.collect(),
        seconds_since_handover: report.since,
        seconds_left: report.left,
        resident_bytes: report.memory,
    }
}

/// Tells the successor what is left, for as long as it is polled. A successor that has gone is told nothing; the next
/// one does not know of this process.
pub async fn linger(
    successor: &Successor,
    limit: Duration,
    build: &str,
    carried: impl Fn() -> Vec<(PodInfo, usize)>,
) {
    let relieved = Instant::now();
    let mut period = interval(REPORT_PERIOD);
    let mut heard = true;
    for count in 0_u32.. {
        period.tick().await;
        let pods = carried();
        let connections: usize = pods.iter().map(|(_, open)| open).sum();
        let left = limit.saturating_sub(relieved.elapsed());
        let memory = resident_memory();
        if count % LOG_EVERY == 0 {
            info!(
                successor = successor.pid,
                connections,
                pods = pods.len(),
                ?left,
                resident_bytes = memory,
                "relieved, and still carrying"
            );
        }
        if !heard {
            continue;
        }
        let report = Report {
            pid: std::process::id(),
            build: build.to_owned(),
            connections: connections as u64,
            pods: pods
                .into_iter()
                .map(|(info, open)| PodReport {
                    namespace: info.namespace.to_string(),
                    name: info.name.to_string(),
                    connections: open as u64,
                })
                .collect(),
            since: relieved.elapsed().as_secs(),
            left: left.as_secs(),
            memory,
        };
        match wire::answer(&successor.channel, response::Kind::Report(report)).await {
            Ok(()) => {}
            Err(HandoverError::Gone) => {
                info!(successor = successor.pid, "the successor has ended");
                heard = false;
            }
            Err(error) => debug!(%error, "the successor was not told"),
        }
    }
}

/// From /proc/self/statm: the second number, in pages.
fn resident_memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    let page = page
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok());
    pages.unwrap_or_default() * page.unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_some_memory() {
        assert!(resident_memory() > 1 << 20);
    }

    #[tokio::test]
    async fn reports_are_kept_for_as_long_as_their_process_lives() {
        let (ours, theirs) = SeqPacket::pair().expect("makes a pair");
        let all = Arc::new(Predecessors::default());
        let following = tokio::spawn({
            let all = Arc::clone(&all);
            async move { all.follow(Arc::new(ours)).await }
        });
        let successor = Successor {
            pid: 1,
            channel: theirs,
        };
        let info = PodInfo {
            name: "web".into(),
            namespace: "shop".into(),
            service_account: "web".into(),
        };
        let limit = Duration::from_secs(60);
        let lingering = linger(&successor, limit, "b", || vec![(info.clone(), 3)]);
        let seen = async {
            while all.view().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = lingering => unreachable!("it reports for good"),
            () = seen => {}
        }
        let view = all.view();
        assert_eq!((view[0].connections, view[0].pods["shop/web"]), (3, 3));
        let mut handed = Sockets::default();
        all.hand_on("line", &mut handed).expect("duplicates");
        assert_eq!(handed.len(), 1);
        drop(successor);
        following.await.expect("ends");
        assert!(all.view().is_empty());
    }
}
