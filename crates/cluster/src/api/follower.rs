// SPDX-License-Identifier: Apache-2.0
//! Follows all objects of one kind, for as long as anybody listens.
//!
//! ```text
//!            ┌── no such kind: look again later ──┐
//!            ▼                                    │
//!  find a version ──► list or stream all ──► watch what happens ──► connection ends: watch from the last version
//!                        ▲                        │
//!                        └── 410: that version is no longer known ──┘
//! ```
//!
//! Whatever fails is tried again, later and later, and takes nothing back: a server that is lost, or that says it does
//! not know a kind while its definition is still there, leaves all objects as they were.

use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::connection::{Client, RequestError, chain};
use super::ledger::Report;
use super::protocol::{self, Follow, Line, Parts, Since};
use crate::object::Kind;
use crate::packed::Packed;
use crate::parse;
use crate::problem::Severity;

/// Longer lines are no objects: a server stores none of more than 1.5 MiB.
const MAX_LINE: usize = 16 << 20;
const MAX_PAGE: usize = 64 << 20;
const PAGE: usize = 250;
const MAX_SMALL_ANSWER: usize = 4 << 20;
/// A server says something in each minute, if only that nothing happened.
const SILENCE: Duration = Duration::from_secs(150);
/// Between the objects that are there at the beginning. Servers that don't know how to stream them never say that
/// these were all.
const SILENCE_IN_LISTING: Duration = Duration::from_secs(15);
/// How often to look whether a kind is there by now.
const ABSENT: Duration = Duration::from_secs(4);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Failures before this have passed are nobody's business.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Follower {
    client: Client,
    follow: Follow,
    reports: mpsc::Sender<(Kind, Report)>,
    /// The version of the group to ask for; None while it has to be found.
    group_version: Option<&'static str>,
    /// What has been told so far; None when all has to be told again.
    told: Option<String>,
    /// The server is able to stream a list.
    streams: bool,
    page: usize,
    /// Anything has been told completely.
    heard_of: bool,
    failing: Option<Failing>,
    /// When following last went well, until it fails.
    well_since: Option<Instant>,
    standing: Option<(Severity, String)>,
}

struct Failing {
    since: Instant,
    pause: Duration,
}

/// Why following stopped.
enum Stopped {
    /// Nobody listens any more.
    Unheard,
    Failed(RequestError),
}

impl From<RequestError> for Stopped {
    fn from(error: RequestError) -> Self {
        Self::Failed(error)
    }
}

impl Follower {
    pub(crate) fn new(
        client: Client,
        follow: Follow,
        reports: mpsc::Sender<(Kind, Report)>,
    ) -> Self {
        Self {
            client,
            follow,
            reports,
            group_version: None,
            told: None,
            streams: true,
            page: PAGE,
            heard_of: false,
            failing: None,
            well_since: None,
            standing: None,
        }
    }

    /// Ends when nobody listens any more.
    pub(crate) async fn run(mut self) {
        loop {
            let error = match self.round().await {
                Ok(()) => continue,
                Err(Stopped::Unheard) => return,
                Err(Stopped::Failed(error)) => error,
            };
            tracing::debug!(kind = %self.follow.kind, %error, "following was interrupted");
            let pause = self.learn(&error);
            if self.has_failed_for_long() {
                let reason = format!("can't be followed, all is taken to be as it was: {error}");
                if self.stand(Some((Severity::Error, reason))).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One request, with all that comes of it.
    async fn round(&mut self) -> Result<(), Stopped> {
        let Some(version) = self.group_version else {
            return self.find().await;
        };
        match &self.told {
            Some(told) => {
                let url = self.follow.watch(version, Since::Version(told));
                self.watch(&url, Phase::Watching).await
            }
            None if self.streams => {
                let url = self.follow.watch(version, Since::Everything);
                self.watch(&url, Phase::Listing).await
            }
            None => self.list(version).await,
        }
    }

    /// Takes from a failure what to do otherwise next time; gives back how long to wait until then.
    fn learn(&mut self, error: &RequestError) -> Duration {
        let listing = self.told.is_none();
        match error {
            _ if error.code() == Some(410) => {
                tracing::info!(kind = %self.follow.kind, %error, "what was followed is forgotten: all is listed again");
                self.told = None;
            }
            // A version of the group may have gone, or all of the kind. If it comes back, its objects are others.
            _ if error.code() == Some(404) => (self.group_version, self.told) = (None, None),
            RequestError::Refused {
                code: 400 | 422, ..
            }
            | RequestError::Silent(_)
                if listing && self.group_version.is_some() =>
            {
                self.streams = false;
            }
            RequestError::TooLarge(_) => self.page = (self.page / 2).max(1),
            _ => {}
        }
        // What breaks as soon as it begins is no recovery.
        let well_since = self.well_since.take();
        if well_since.is_some_and(|since| since.elapsed() > PATIENCE) {
            self.failing = None;
        }
        let failing = self.failing.get_or_insert_with(|| Failing {
            since: Instant::now(),
            pause: BACKOFF.0,
        });
        let pause = failing.pause;
        failing.pause = (pause * 2).min(BACKOFF.1);
        jittered(pause)
    }

    fn has_failed_for_long(&self) -> bool {
        let failing = self.failing.as_ref();
        failing.is_some_and(|failing| failing.since.elapsed() > PATIENCE)
    }

    async fn report(&self, report: Report) -> Result<(), Stopped> {
        let sent = self.reports.send((self.follow.kind, report)).await;
        sent.map_err(|_| Stopped::Unheard)
    }

    async fn stand(&mut self, standing: Option<(Severity, String)>) -> Result<(), Stopped> {
        if self.standing == standing {
            return Ok(());
        }
        self.standing.clone_from(&standing);
        if let Some((Severity::Error, reason)) = &standing
            && !self.heard_of
        {
            // There is no batch to say it with.
            tracing::warn!(kind = %self.follow.kind, reason, "the cluster is not known yet");
        }
        self.report(Report::Standing(standing)).await
    }

    async fn all_is_well(&mut self) -> Result<(), Stopped> {
        self.well_since.get_or_insert_with(Instant::now);
        self.stand(None).await
    }

    /// Finds the version of the group in which the kind is served, or that there is no such kind.
    async fn find(&mut self) -> Result<(), Stopped> {
        let kind = self.follow.kind;
        let Some(definition) = protocol::definition_path(kind) else {
            self.group_version = kind.versions().first().copied();
            return Ok(());
        };
        // Asked first and believed most: what a server serves may lag behind what is defined, in both directions.
        let definition = get(&definition, protocol::METADATA);
        let unseen = match self.client.read(definition, MAX_SMALL_ANSWER).await {
            Ok(_) => None,
            Err(error) if error.code() == Some(404) => return self.absent().await,
            // We may not look at definitions; what is served may still be said.
            Err(error) if error.code() == Some(403) => Some(error),
            Err(error) => return Err(error.into()),
        };
        for version in kind.versions() {
            let path = protocol::group_path(kind, version);
            match self.client.read(get(&path, JSON), MAX_SMALL_ANSWER).await {
                Ok(text) if protocol::serves(kind, &text)? => {
                    self.group_version = Some(version);
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.code() == Some(404) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(forbidden) = unseen {
            return Err(forbidden.into());
        }
        if !self.heard_of {
            self.nothing_there().await?;
        }
        let understood = kind.versions().join(", ");
        let reason = format!(
            "is defined but not served in a version that is understood ({understood}), all is taken to be as it was"
        );
        self.stand(Some((Severity::Error, reason))).await?;
        tokio::time::sleep(jittered(ABSENT)).await;
        Ok(())
    }

    async fn absent(&mut self) -> Result<(), Stopped> {
        if self
            .standing
            .as_ref()
            .is_none_or(|(severity, _)| *severity != Severity::Info)
        {
            self.nothing_there().await?;
        }
        self.failing = None;
        let reason = "this cluster has no such kind, yet".to_owned();
        self.stand(Some((Severity::Info, reason))).await?;
        tokio::time::sleep(jittered(ABSENT)).await;
        Ok(())
    }

    async fn nothing_there(&mut self) -> Result<(), Stopped> {
        (self.told, self.heard_of) = (None, true);
        self.report(Report::Listing).await?;
        self.report(Report::Listed).await
    }

    /// Asks for all objects, page by page.
    async fn list(&mut self, group_version: &'static str) -> Result<(), Stopped> {
        self.report(Report::Listing).await?;
        let mut next: Option<String> = None;
        loop {
            let url = self.follow.list(group_version, self.page, next.as_deref());
            let request = get(&url, self.follow.list_accept());
            let text = self.client.read(request, MAX_PAGE).await?;
            let page = protocol::page(&text)?;
            for item in page.items {
                self.object(item.get()).await?;
            }
            let Some(more) = page.next else {
                self.report(Report::Listed).await?;
                (self.told, self.heard_of) = (Some(page.version), true);
                return self.all_is_well().await;
            };
            next = Some(more);
        }
    }

    async fn watch(&mut self, url: &str, mut phase: Phase) -> Result<(), Stopped> {
        let opened = self.client.open(get(url, self.follow.accept())).await?;
        let mut lines = Lines::new(opened);
        if phase == Phase::Listing {
            self.report(Report::Listing).await?;
        } else {
            self.all_is_well().await?;
        }
        while let Some(line) = lines.next(phase.patience()).await? {
            let told = match protocol::line(line)? {
                Line::Object { json, version } => {
                    self.object(json).await?;
                    version
                }
                Line::Gone { json, version } => {
                    self.gone(json).await?;
                    version
                }
                Line::Bookmark { version, complete } => {
                    if complete && phase == Phase::Listing {
                        phase = Phase::Watching;
                        self.heard_of = true;
                        self.report(Report::Listed).await?;
                        self.all_is_well().await?;
                    }
                    version
                }
                Line::Refused(error) => return Err(error.into()),
                Line::Unknown(kind) => {
                    tracing::debug!(kind = %self.follow.kind, line = kind, "a line of a watch that is not understood");
                    continue;
                }
            };
            // Versions of objects in a listing are in no order.
            if phase == Phase::Watching && !told.is_empty() {
                self.told = Some(told);
            }
        }
        match phase {
            Phase::Watching => {
                // All watches of a server that restarts end together.
                tokio::time::sleep(jittered(BACKOFF.0)).await;
                Ok(())
            }
            Phase::Listing => {
                let reason = "the connection ended before all objects were listed";
                Err(RequestError::Broken(reason.to_owned()).into())
            }
        }
    }

    async fn object(&self, json: &str) -> Result<(), Stopped> {
        let kind = self.follow.kind;
        // A server that can't leave out what is not needed sends it: it must not look like a change.
        let read = match self.follow.parts {
            Parts::All => parse::object(kind, json),
            Parts::Metadata => parse::metadata(kind, json),
        };
        self.report(match read {
            Ok(object) => Report::Applied(object.key(), Packed::new(&object)),
            Err(finding) => Report::Broken(finding),
        })
        .await
    }

    async fn gone(&self, json: &str) -> Result<(), Stopped> {
        self.report(match parse::key(self.follow.kind, json) {
            Ok(key) => Report::Gone(key),
            Err(finding) => Report::Broken(finding),
        })
        .await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Listing,
    Watching,
}

impl Phase {
    fn patience(self) -> Duration {
        match self {
            Self::Listing => SILENCE_IN_LISTING,
            Self::Watching => SILENCE,
        }
    }
}

const JSON: &str = "application/json";

fn get(url: &str, accept: &str) -> Request<Vec<u8>> {
    Request::get(url)
        .header(http::header::ACCEPT, accept)
        .body(Vec::new())
        .expect("broken invariant: paths are made of names and escaped text")
}

/// Between half of it and all of it.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

/// The lines of a body, one at a time.
struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// Where in the buffer the next line begins …
    start: usize,
    /// … and where to look for its end.
    searched: usize,
}

impl Lines {
    fn new(body: Body) -> Self {
        Self {
            body,
            buffer: Vec::new(),
            start: 0,
            searched: 0,
        }
    }

    /// The next line; None at the end, where half a line counts for nothing.
    async fn next(&mut self, patience: Duration) -> Result<Option<&str>, RequestError> {
        let end = loop {
            if let Some(at) = self.buffer[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                break self.searched + at;
            }
            self.buffer.drain(..self.start);
            (self.start, self.searched) = (0, self.buffer.len());
            if self.buffer.is_empty() && self.buffer.capacity() > KEPT {
                self.buffer = Vec::new();
            }
            if self.buffer.len() > MAX_LINE {
                return Err(RequestError::TooLarge(MAX_LINE));
            }
            match tokio::time::timeout(patience, self.body.frame()).await {
                Err(_) => return Err(RequestError::Silent(patience)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(RequestError::Broken(chain(&error))),
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        };
        let line = self.start..end;
        (self.start, self.searched) = (end + 1, end + 1);
        str::from_utf8(&self.buffer[line])
            .map(Some)
            .map_err(|error| RequestError::Broken(format!("not valid UTF-8: {error}")))
    }
}

/// A buffer that was needed for one large object is not kept for all small ones.
const KEPT: usize = 256 << 10;

#[cfg(test)]
mod tests;
