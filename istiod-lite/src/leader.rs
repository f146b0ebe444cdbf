// SPDX-License-Identifier: Apache-2.0
//! Which of several replicas writes: the one that holds a Lease. All of them serve.
//!
//! ```text
//!  nobody's, given back, or untouched for DURATION ──taken──► held ──renewed every ROUND──► held
//!                             not renewed for DEADLINE, which is sooner than that ──► nothing is written here any more
//! ```
//! A holder goes by its own clock, from before it asked; others by theirs, from when they saw the Lease change. So it has
//! stopped to write before another begins, whatever their clocks say, also where it slept in between: whoever writes asks
//! [`Leadership::is_held`] right before. What was sent before that and lingers on the way has the time between the two.

use std::time::{Duration, SystemTime};

use cluster::k8s_openapi::api::coordination::v1::Lease;
use cluster::k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use cluster::k8s_openapi::jiff::Timestamp;
use cluster::{Client, RequestError};
use http::{Request, header};
use ops::shutdown::DrainSignal;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::status;

const NAME: &str = "istiod-lite-leader";
/// How long a Lease that nobody touches is its holder's.
const DURATION: Duration = Duration::from_secs(15);
/// How long its holder believes so.
const DEADLINE: Duration = Duration::from_secs(10);
/// Between one attempt and the next.
const ROUND: Duration = Duration::from_secs(2);
/// For one attempt, so that one that hangs leaves time for others.
const PATIENCE: Duration = Duration::from_secs(4);

/// Whether this replica may write. Clones say the same.
#[derive(Debug, Clone)]
pub struct Leadership(Option<watch::Receiver<Option<Instant>>>);

impl Leadership {
    /// Where there is but one replica.
    pub fn alone() -> Self {
        Self(None)
    }

    /// Whether nobody else writes at this moment. To be asked before each write.
    pub fn is_held(&self) -> bool {
        let Some(until) = &self.0 else { return true };
        until.borrow().is_some_and(|until| Instant::now() < until)
    }
}

/// Tries to become, or to stay, the leader until the drain; then gives the Lease back, so that nobody has to wait.
/// `replica` names this one; what makes it unique is added.
pub fn campaign(
    client: Client,
    namespace: &str,
    replica: &str,
    drain: DrainSignal,
) -> (Leadership, JoinHandle<()>) {
    let (until, receiver) = watch::channel(None);
    let candidate = Candidate {
        path: format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
        name: format!("{replica}_{:016x}", rand::random::<u64>()),
        client,
        observed: Observed::default(),
        until,
    };
    let running = tokio::spawn(Box::pin(candidate.run(drain)));
    (Leadership(Some(receiver)), running)
}

struct Candidate {
    client: Client,
    /// Of the namespace's Leases.
    path: String,
    /// As holder.
    name: String,
    observed: Observed,
    until: watch::Sender<Option<Instant>>,
}

impl Candidate {
    async fn run(mut self, drain: DrainSignal) {
        let mut told = Told::default();
        loop {
            let asked = Instant::now();
            match tokio::time::timeout(PATIENCE, self.round()).await {
                Ok(Ok(true)) => {
                    self.until.send_replace(Some(asked + DEADLINE));
                    told.failing = false;
                }
                Ok(Ok(false)) => {
                    self.until.send_replace(None);
                    told.failing = false;
                }
                // What is held stays so until its time is over.
                Ok(Err(error)) => told.fails(&error.to_string()),
                Err(_) => told.fails("no answer"),
            }
            told.leads(self.is_leader(), &self.name);
            tokio::select! {
                () = tokio::time::sleep(ROUND) => {}
                () = drain.requested() => break,
            }
        }
        if self.is_leader() {
            self.until.send_replace(None);
            // Who can't be told waits until it is over.
            let _best_effort = tokio::time::timeout(PATIENCE, self.give_back()).await;
        }
    }

    fn is_leader(&self) -> bool {
        self.until
            .borrow()
            .is_some_and(|until| Instant::now() < until)
    }

    /// Whether the Lease is ours now.
    async fn round(&mut self) -> Result<bool, RequestError> {
        let found = self.find().await?;
        let step = self
            .observed
            .step(&self.name, found.as_ref(), Instant::now());
        let spec = match &step {
            Step::Wait => return Ok(false),
            Step::Renew => json!({ "renewTime": now() }),
            Step::Take { transitions } => json!({
                "holderIdentity": self.name, "leaseDurationSeconds": DURATION.as_secs(),
                "acquireTime": now(), "renewTime": now(), "leaseTransitions": transitions,
            }),
        };
        self.write(found.as_ref(), &spec).await
    }

    async fn give_back(&self) -> Result<(), RequestError> {
        let found = self.find().await?;
        if found
            .as_ref()
            .is_some_and(|found| found.holder == self.name)
        {
            let spec = json!({ "holderIdentity": "" });
            self.write(found.as_ref(), &spec).await?;
        }
        Ok(())
    }

    async fn find(&self) -> Result<Option<Found>, RequestError> {
        let request = Request::get(format!("{}/{NAME}", self.path)).body(Vec::new());
        match self.send(request).await {
            Ok(lease) => Ok(Some(Found::of(lease)?)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// False if somebody else was faster.
    async fn write(&self, found: Option<&Found>, spec: &Value) -> Result<bool, RequestError> {
        let mut object = json!({ "metadata": { "name": NAME }, "spec": spec });
        let manager = status::MANAGER;
        let written = match found {
            // Only upon what was seen; else it is a conflict.
            Some(found) => {
                object["metadata"]["resourceVersion"] = json!(found.version);
                let path = format!("{}/{NAME}", self.path);
                self.client.merge(&path, manager, &object).await
            }
            None => {
                object["apiVersion"] = json!("coordination.k8s.io/v1");
                object["kind"] = json!("Lease");
                let request = Request::post(format!("{}?fieldManager={manager}", self.path))
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(object.to_string().into_bytes());
                self.send(request).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn send(
        &self,
        request: Result<Request<Vec<u8>>, http::Error>,
    ) -> Result<Value, RequestError> {
        let path = &self.path;
        let request = request.map_err(|error| RequestError::Broken(format!("{path}: {error}")))?;
        self.client.call(request).await
    }
}

/// What of a Lease matters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    version: String,
    /// Empty where it was given back.
    holder: String,
    transitions: i32,
}

impl Found {
    fn of(lease: Value) -> Result<Self, RequestError> {
        let lease: Lease = serde_json::from_value(lease).map_err(|error| {
            RequestError::Broken(format!("Lease {NAME} is not understood: {error}"))
        })?;
        let spec = lease.spec.unwrap_or_default();
        Ok(Self {
            version: lease.metadata.resource_version.unwrap_or_default(),
            holder: spec.holder_identity.unwrap_or_default(),
            transitions: spec.lease_transitions.unwrap_or_default(),
        })
    }
}

/// What to do about the Lease.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Wait,
    Renew,
    Take { transitions: i32 },
}

/// Another's Lease in its last version, and since when it is known. Pure.
#[derive(Debug, Default)]
struct Observed(Option<(String, Instant)>);

impl Observed {
    fn step(&mut self, own: &str, found: Option<&Found>, now: Instant) -> Step {
        let Some(found) = found else {
            return Step::Take { transitions: 0 };
        };
        let take = Step::Take {
            transitions: found.transitions.saturating_add(1),
        };
        if found.holder == own {
            return Step::Renew;
        }
        if found.holder.is_empty() {
            return take;
        }
        match &self.0 {
            Some((version, since)) if *version == found.version => {
                if now.duration_since(*since) < DURATION {
                    return Step::Wait;
                }
                take
            }
            _ => {
                self.0 = Some((found.version.clone(), now));
                Step::Wait
            }
        }
    }
}

/// What operators know, told once for as long as it lasts.
#[derive(Debug, Default)]
struct Told {
    leads: bool,
    failing: bool,
}

impl Told {
    fn leads(&mut self, leads: bool, name: &str) {
        metrics::gauge!("culvert_leader").set(f64::from(u8::from(leads)));
        if self.leads != leads {
            tracing::info!(leads, name, "this replica writes if it leads");
        }
        self.leads = leads;
    }

    fn fails(&mut self, error: &str) {
        if !self.failing {
            tracing::warn!(error, "Lease {NAME} can't be had or renewed");
        }
        self.failing = true;
    }
}

/// Kubernetes keeps these times in microseconds; they are for people to read.
fn now() -> MicroTime {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    MicroTime(Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(version: &str, holder: &str) -> Found {
        Found {
            version: version.to_owned(),
            holder: holder.to_owned(),
            transitions: 3,
        }
    }

    const TAKEN: Step = Step::Take { transitions: 4 };

    #[test]
    fn what_is_nobodys_is_taken_and_what_is_ours_renewed() {
        let mut it = Observed::default();
        let now = Instant::now();
        assert_eq!(it.step("a", None, now), Step::Take { transitions: 0 });
        assert_eq!(it.step("a", Some(&found("1", "")), now), TAKEN);
        assert_eq!(it.step("a", Some(&found("2", "a")), now), Step::Renew);
    }

    #[test]
    fn another_holder_is_waited_for_from_when_it_was_last_seen_to_renew() {
        let mut it = Observed::default();
        let start = Instant::now();
        let mut seen = |version, after: u64| {
            let now = start + Duration::from_secs(after);
            it.step("b", Some(&found(version, "a")), now)
        };
        assert_eq!(seen("1", 0), Step::Wait);
        assert_eq!(seen("1", 14), Step::Wait);
        assert_eq!(seen("2", 15), Step::Wait);
        assert_eq!(seen("2", 29), Step::Wait);
        assert_eq!(seen("2", 30), TAKEN);
    }

    #[test]
    fn a_holder_stops_before_another_may_begin() {
        // An attempt that hangs, and the look before the next one, fit in between.
        assert!(ROUND + PATIENCE < DEADLINE && DEADLINE + PATIENCE < DURATION);
    }
}
