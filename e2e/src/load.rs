// SPDX-License-Identifier: Apache-2.0
//! Traffic in the background of a test, and what became of it.
//!
//! In: where it starts and where it goes. Out: a [`Tally`] of all that happened, to be asked how many bytes went wrong,
//! what failed, how long a fault was felt. The traffic itself is made by [`crate::traffic::load`] inside a pod.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::handle::Access;
pub use crate::traffic::load::{Event, Line, What, now};
use crate::traffic::{Outcome, Report};

/// How much traffic. The default is enough to notice any fault, and leaves a small machine room for the fault itself.
#[derive(Debug, Clone)]
pub struct Volume {
    pub transfers: u32,
    /// Bytes per second of each transfer, in each direction.
    pub rate: u64,
    pub talks: u32,
    /// Requests per second of each talk.
    pub requests: u32,
    /// New connections per second.
    pub visits: u32,
    /// Without a byte for so long, a connection in use counts as broken.
    pub stall: Duration,
}

impl Volume {
    pub const USUAL: Self = Self {
        transfers: 2,
        rate: 512 << 10,
        talks: 2,
        requests: 20,
        visits: 20,
        stall: Duration::from_secs(20),
    };
}

impl Default for Volume {
    fn default() -> Self {
        Self::USUAL
    }
}

/// Running traffic. Dropping it ends it without a word.
pub struct Load {
    process: Child,
    heard: Arc<Heard>,
}

#[derive(Default)]
struct Heard {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    /// What it said last of all.
    report: Option<Report>,
    over: bool,
}

/// How long the traffic may take to get going, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

impl Load {
    /// Starts traffic from a pod to echo servers and waits until each kind of it has worked.
    pub fn start(
        lab: &Access,
        place: &str,
        targets: &[SocketAddr],
        volume: &Volume,
        marker: &str,
    ) -> Result<Self> {
        let mut arguments: Vec<String> = vec!["traffic".into(), "load".into()];
        arguments.extend(targets.iter().map(ToString::to_string));
        for (flag, value) in [
            ("--transfers", u64::from(volume.transfers)),
            ("--rate", volume.rate),
            ("--talks", u64::from(volume.talks)),
            ("--requests", u64::from(volume.requests)),
            ("--visits", u64::from(volume.visits)),
            ("--stall", volume.stall.as_secs()),
        ] {
            arguments.extend([flag.to_owned(), value.to_string()]);
        }
        arguments.extend(["--marker".to_owned(), marker.to_owned()]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut process = lab
            .tool(place, &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run e2e exec")?;
        let output = process.stdout.take().context("the traffic's output")?;
        let heard = Arc::new(Heard::default());
        std::thread::spawn({
            let heard = Arc::clone(&heard);
            move || heard.listen(output)
        });
        let load = Self { process, heard };
        let wanted = [
            (Line::Transfer, volume.transfers),
            (Line::Talk, volume.talks),
            (Line::Visit, volume.visits),
        ];
        for (line, _) in wanted.into_iter().filter(|(_, many)| *many > 0) {
            load.wait(PATIENCE, &format!("the first {line:?}"), |events| {
                events.iter().any(|event| event.is_good(line)).then_some(())
            })
            .with_context(|| format!("traffic from {place} to {targets:?}"))?;
        }
        Ok(load)
    }

    /// All that has happened so far.
    pub fn so_far(&self) -> Tally {
        Tally {
            events: self.heard.lock().events.clone(),
        }
    }

    /// Waits until `found` finds in the events what it looks for; says how they ended otherwise.
    pub fn wait<T>(
        &self,
        within: Duration,
        what: &str,
        mut found: impl FnMut(&[Event]) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + within;
        let mut state = self.heard.lock();
        loop {
            if let Some(value) = found(&state.events) {
                return Ok(value);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.over {
                let last: Vec<String> = state
                    .events
                    .iter()
                    .rev()
                    .take(6)
                    .map(|event| format!("  {event:?}"))
                    .collect();
                bail!(
                    "within {within:?}: {what}; the last of {} events, newest first:\n{}",
                    state.events.len(),
                    last.join("\n")
                );
            }
            state = self
                .heard
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits until new connections work again: `in_a_row` of those begun after `since` succeeded one after the other.
    pub fn wait_for_visits(&self, since: u64, in_a_row: usize, within: Duration) -> Result<()> {
        self.wait(within, "new connections succeed", |events| {
            let mut visits = Visit::among(events, since);
            visits.sort_by_key(|visit| visit.begun);
            let good = visits.iter().rev().take_while(|visit| visit.succeeded);
            (good.count() >= in_a_row).then_some(())
        })
    }

    /// Waits until every kind of connection that is kept works, seen from `since` on.
    pub fn wait_for_connections(&self, since: u64, within: Duration) -> Result<()> {
        self.wait(within, "transfers and talks go on", |events| {
            let works = |line| {
                events
                    .iter()
                    .any(|event| event.at > since && event.is_good(line))
            };
            (works(Line::Transfer) && works(Line::Talk)).then_some(())
        })
    }

    /// Lets the traffic go on for a while.
    pub fn go_on(&self, time: Duration) {
        let deadline = Instant::now() + time;
        while let Some(left) = deadline
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
        {
            std::thread::park_timeout(left);
        }
    }

    /// Ends the traffic in order and tells all that happened.
    pub fn stop(mut self) -> Result<Tally> {
        drop(self.process.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.heard.lock();
        while !state.over {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(
                !left.is_zero(),
                "the traffic did not end within {PATIENCE:?}"
            );
            state = self
                .heard
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        ensure!(
            state.report.is_some(),
            "the traffic ended without its report"
        );
        Ok(Tally {
            events: std::mem::take(&mut state.events),
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

impl Heard {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, output: ChildStdout) {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let mut state = self.lock();
            if let Ok(event) = serde_json::from_str(&line) {
                state.events.push(event);
            } else if let Ok(report) = serde_json::from_str(&line) {
                state.report = Some(report);
            }
            drop(state);
            self.changed.notify_all();
        }
        self.lock().over = true;
        self.changed.notify_all();
    }
}

impl Event {
    /// It shows that this kind of traffic works.
    fn is_good(&self, line: Line) -> bool {
        self.line == line && matches!(self.what, What::Moved { .. } | What::Answered { .. })
    }

    fn failure(&self) -> Option<&Outcome> {
        match &self.what {
            What::Refused { outcome, .. } | What::Ended { outcome, .. }
                if *outcome != Outcome::Done =>
            {
                Some(outcome)
            }
            _ => None,
        }
    }
}

/// One visit, by when it began.
#[derive(Debug, Clone, Copy)]
struct Visit {
    begun: u64,
    micros: u64,
    succeeded: bool,
}

impl Visit {
    fn among(events: &[Event], since: u64) -> Vec<Self> {
        let visits = events.iter().filter(|event| event.line == Line::Visit);
        let visits = visits.filter_map(|event| {
            let (micros, succeeded) = match &event.what {
                What::Answered { micros } => (*micros, true),
                What::Refused { micros, .. } => (*micros, false),
                What::Moved { .. } | What::Ended { .. } => return None,
            };
            Some(Self {
                begun: event.at.saturating_sub(micros),
                micros,
                succeeded,
            })
        });
        visits.filter(|visit| visit.begun >= since).collect()
    }
}

/// All that happened to the traffic.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub events: Vec<Event>,
}

/// How long answers took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    pub count: usize,
    pub median: Duration,
    pub p99: Duration,
    pub longest: Duration,
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            count,
            median,
            p99,
            longest,
        } = self;
        write!(
            f,
            "{count} answers, median {median:?}, p99 {p99:?}, longest {longest:?}"
        )
    }
}

impl Tally {
    /// What happened from `since` on and before `until`.
    pub fn between(&self, since: u64, until: u64) -> Self {
        let inside = |event: &&Event| (since..until).contains(&event.at);
        Self {
            events: self.events.iter().filter(inside).cloned().collect(),
        }
    }

    /// Bytes that were not those sent, and ends that looked in order although bytes were missing: what an application
    /// could not have noticed by itself. A reset is no such thing.
    pub fn wrong(&self) -> Vec<String> {
        let wrong = self.events.iter().filter(|event| {
            matches!(
                event.failure(),
                Some(Outcome::Corrupted(_) | Outcome::Closed)
            )
        });
        wrong.map(|event| format!("{event:?}")).collect()
    }

    /// What failed, of one kind of traffic.
    pub fn failed(&self, line: Line) -> Vec<&Event> {
        let failed = |event: &&Event| event.line == line && event.failure().is_some();
        self.events.iter().filter(failed).collect()
    }

    /// What failed at all.
    pub fn failures(&self) -> Vec<&Event> {
        self.events
            .iter()
            .filter(|event| event.failure().is_some())
            .collect()
    }

    /// How many visits and answers there were.
    pub fn answered(&self, line: Line) -> usize {
        let answered =
            |event: &&Event| event.line == line && matches!(event.what, What::Answered { .. });
        self.events.iter().filter(answered).count()
    }

    /// Bytes that came back, all of them right, on connections that are over.
    pub fn bytes(&self) -> u64 {
        let received = self.events.iter().map(|event| match event.what {
            What::Ended { received, .. } => received,
            _ => 0,
        });
        received.sum()
    }

    /// How long after `fault` new connections were still refused or slow: up to the beginning of the first good one
    /// after the last bad one. Nothing bad is no time at all.
    pub fn recovery(&self, fault: u64, slow: Duration) -> Result<Duration> {
        let mut visits = Visit::among(&self.events, fault);
        visits.sort_by_key(|visit| visit.begun);
        let good = |visit: &Visit| visit.succeeded && Duration::from_micros(visit.micros) <= slow;
        let Some(last_bad) = visits.iter().rposition(|visit| !good(visit)) else {
            ensure!(
                !visits.is_empty(),
                "there was no new connection after the fault"
            );
            return Ok(Duration::ZERO);
        };
        let first_good = visits.get(last_bad + 1).with_context(|| {
            format!("new connections never worked again: {:?}", visits[last_bad])
        })?;
        Ok(Duration::from_micros(
            first_good.begun.saturating_sub(fault),
        ))
    }

    /// The longest time in which no transfer had a byte back.
    pub fn longest_silence(&self) -> Duration {
        let moved = self
            .events
            .iter()
            .filter(|event| event.is_good(Line::Transfer));
        let times: Vec<u64> = moved.map(|event| event.at).collect();
        let pauses = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        Duration::from_micros(pauses.max().unwrap_or_default())
    }

    /// How long answers of one kind took, if there were any.
    pub fn latency(&self, line: Line) -> Option<Latency> {
        let mut micros: Vec<u64> = self
            .events
            .iter()
            .filter(|event| event.line == line)
            .filter_map(|event| match event.what {
                What::Answered { micros } => Some(micros),
                _ => None,
            })
            .collect();
        micros.sort_unstable();
        let at = |share: usize| {
            let index = (micros.len() * share / 100).min(micros.len().saturating_sub(1));
            micros.get(index).copied().map(Duration::from_micros)
        };
        Some(Latency {
            count: micros.len(),
            median: at(50)?,
            p99: at(99)?,
            longest: at(100)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(begun: u64, micros: u64, outcome: Outcome) -> Event {
        let what = match outcome {
            Outcome::Done => What::Answered { micros },
            outcome => What::Refused {
                outcome,
                micros,
                local: None,
            },
        };
        Event {
            at: begun + micros,
            line: Line::Visit,
            what,
        }
    }

    fn ended(at: u64, outcome: Outcome) -> Event {
        Event {
            at,
            line: Line::Transfer,
            what: What::Ended {
                outcome,
                local: None,
                sent: 10,
                received: 10,
            },
        }
    }

    const SLOW: Duration = Duration::from_micros(50);

    #[test]
    fn recovery_is_when_the_first_good_visit_after_the_last_bad_one_began() {
        let check = |events: &[Event], expected: Option<u64>| {
            let tally = Tally {
                events: events.to_vec(),
            };
            let recovery = tally.recovery(100, SLOW).ok();
            assert_eq!(recovery, expected.map(Duration::from_micros), "{events:?}");
        };
        let good = |begun| visit(begun, 5, Outcome::Done);
        let bad = |begun| visit(begun, 5, Outcome::Reset);
        check(&[good(90), good(110), good(120)], Some(0));
        check(&[bad(50), good(110)], Some(0));
        check(&[good(105), bad(110), good(130)], Some(30));
        // A visit that waited is told when it is over, long after later ones.
        check(&[good(130), visit(110, 900, Outcome::Done)], Some(30));
        check(&[bad(110)], None);
        check(&[good(90)], None);
    }

    #[test]
    fn a_reset_is_a_failure_and_a_silent_end_is_wrong() {
        let tally = Tally {
            events: vec![
                ended(1, Outcome::Done),
                ended(2, Outcome::Reset),
                ended(3, Outcome::Closed),
                ended(4, Outcome::Corrupted("x".into())),
            ],
        };
        assert_eq!(tally.failed(Line::Transfer).len(), 3);
        assert_eq!(tally.wrong().len(), 2);
        assert_eq!(tally.bytes(), 40);
        assert_eq!(tally.between(2, 3).failures().len(), 1);
    }

    #[test]
    fn latencies_are_read_from_answers() {
        let events = (1..=100).map(|n| visit(1000, n, Outcome::Done)).collect();
        let latency = Tally { events }.latency(Line::Visit).unwrap();
        assert_eq!(latency.count, 100);
        assert_eq!(latency.median, Duration::from_micros(51));
        assert_eq!(latency.longest, Duration::from_micros(100));
        assert_eq!(Tally::default().latency(Line::Visit), None);
    }
}
