// SPDX-License-Identifier: Apache-2.0
//! Keeps a waypoint running for each Gateway of the class `istio-waypoint`: a Deployment, a Service and a ServiceAccount
//! that are the Gateway's own, and an autoscaler and a disruption budget where it asks for them, by server-side apply; and
//! the Gateway's status. The class itself is made where a cluster has none. What somebody changes or deletes is put
//! back; with the Gateway they go, by the cluster's garbage collector. One replica does it: the one that leads.
//!
//! ```text
//!  Gateways, GatewayClasses, what was made ─► state (pure) ─┬─► plan, overlay ─► objects to apply
//!                                                           └─► status ────────► statuses to apply
//! ```

mod overlay;
mod plan;
mod state;
mod status;

use std::{collections::BTreeSet, time::Duration};

use cluster::{Client, Follow, Kind, ObjectKey, RequestError, Source};
use http::{Request, header};
use ops::shutdown::DrainSignal;
use serde_json::{Value, json};
use tokio::time::Instant;

pub use self::plan::Settings;
use self::state::{State, Task};
use crate::{controller, leader::Leadership, wellknown};

/// The name under which Istio writes such objects: whoever took over from it, or will, finds its own fields.
const MANAGER: &str = "istio.io/gateway-controller";
/// How often to try again what failed.
const LOOK: Duration = Duration::from_secs(2);
/// How often to look at what is not followed: ConfigMaps and Services that Gateways name.
const LOOK_UP: Duration = Duration::from_secs(30);

/// What has to be followed for it.
pub fn followed(root_namespace: &str) -> [Follow; 9] {
    let made = format!("{}={}", plan::MANAGED.0, plan::MANAGED.1);
    let of_ours = |follow: Follow| follow.labelled(made.clone());
    [
        Follow::metadata(Kind::Namespace),
        Follow::all(Kind::ConfigMap)
            .within(root_namespace)
            .labelled(format!("{}={}", wellknown::CLASS_DEFAULTS, state::CLASS)),
        Follow::all(Kind::GatewayClass),
        Follow::all(Kind::Gateway),
        of_ours(Follow::all(Kind::Service)),
        of_ours(Follow::all(Kind::Deployment)),
        of_ours(Follow::all(Kind::HorizontalPodAutoscaler)),
        of_ours(Follow::all(Kind::PodDisruptionBudget)),
        of_ours(Follow::metadata(Kind::ServiceAccount)),
    ]
}

/// Keeps them until the drain. `source` yields what is [`followed`].
pub async fn keep(
    mut source: Source,
    client: Client,
    settings: Settings,
    leadership: Leadership,
    drain: DrainSignal,
) {
    let mut state = State::new(settings);
    state.take(source.next().await);
    let mut failing = BTreeSet::new();
    let mut looked: Option<Instant> = None;
    loop {
        if leadership.is_held() {
            let due = looked.is_none_or(|at| at.elapsed() > LOOK_UP);
            if due {
                looked = Some(Instant::now());
            }
            for object in state.lookups(due) {
                let found = look_up(&client, &object).await;
                note(&mut failing, &object, found.as_ref().err());
                if let Ok(found) = found {
                    state.learn(object, found);
                }
            }
            for task in state.due(controller::now(), due) {
                if !leadership.is_held() {
                    break;
                }
                let done = perform(&client, &task).await;
                note(&mut failing, task.object(), done.as_ref().err());
                if let Ok(Some(now)) = done {
                    state.done(task, now);
                }
            }
        }
        tokio::select! {
            batch = source.next() => state.take(batch),
            () = tokio::time::sleep(LOOK) => {}
            () = drain.requested() => return,
        }
    }
}

/// Says once, for as long as it lasts, what goes wrong with an object.
fn note(failing: &mut BTreeSet<ObjectKey>, object: &ObjectKey, error: Option<&RequestError>) {
    let Some(error) = error else {
        failing.remove(object);
        return;
    };
    metrics::counter!("culvert_waypoint_write_failures_total").increment(1);
    if failing.insert(object.clone()) {
        tracing::warn!(%object, %error, "what a waypoint needs can't be read or written");
    }
}

/// What the object has become; None where it is another by now, or gone, of which the next look tells.
async fn perform(client: &Client, task: &Task) -> Result<Option<Value>, RequestError> {
    let (path, body) = match task {
        Task::Make { object, body } => (path(object), body),
        Task::Say { object, body } => (format!("{}/status", path(object)), body),
        Task::Remove { object, uid } => return remove(client, object, uid).await.map(Some),
    };
    match (client.apply(&path, MANAGER, body).await, task) {
        (Ok(now), Task::Make { object, .. }) => {
            tracing::info!(%object, "applied for a waypoint");
            Ok(Some(now))
        }
        (Ok(now), _) => Ok(Some(now)),
        // A server that does not know classes has no Gateways either.
        (Err(error), Task::Make { object, .. })
            if object.kind == Kind::GatewayClass && error.code() == Some(404) =>
        {
            Ok(None)
        }
        (Err(error), Task::Say { .. }) if matches!(error.code(), Some(404 | 409)) => Ok(None),
        (Err(error), _) => Err(error),
    }
}

/// Gone already, or another of that name, is as good.
async fn remove(client: &Client, object: &ObjectKey, uid: &str) -> Result<Value, RequestError> {
    let path = path(object);
    let only = json!({"preconditions": {"uid": uid}});
    let request = Request::delete(&path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(only.to_string().into_bytes());
    let request = request.map_err(|error| RequestError::Broken(format!("{path}: {error}")))?;
    match client.call(request).await {
        Ok(_) => tracing::info!(%object, "removed: its Gateway does not ask for it any more"),
        Err(error) if matches!(error.code(), Some(404 | 409)) => {}
        Err(error) => return Err(error),
    }
    Ok(Value::Null)
}

async fn look_up(client: &Client, object: &ObjectKey) -> Result<Option<Value>, RequestError> {
    let path = path(object);
    let request = Request::get(&path).body(Vec::new());
    let request = request.map_err(|error| RequestError::Broken(format!("{path}: {error}")))?;
    match client.call(request).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where an object is, in the first version of its group. Its name is one that an API server knows.
fn path(object: &ObjectKey) -> String {
    Follow::all(object.kind).object(object)
}
