// SPDX-License-Identifier: Apache-2.0
//! The same of a cluster behind a real API server: pods that many clients make there, services that select them, policies.
//!
//! ```text
//!  objects ─► kube-apiserver ─► istiod-lite starts ─► first client holds all ─► many clients hold all
//!    └── a pod's readiness changes there ─► the last of them has the push       (several times)
//!    └── pods take the places of others there ─► the last client has heard of all of them
//! ```

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cluster::Kind;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::control_plane::{CHANGES, Plan, join, median, programs};
use crate::environment::Environment;
use crate::kubernetes::Cluster;
use crate::plane::client::{Client, Clients, Held};
use crate::plane::{ControlPlane, Source};
use crate::tokens::AUDIENCE;

/// A change of one pod has to be at the last client within this, from when the API server has taken it.
const MOST_PUSH: Duration = Duration::from_millis(50);
/// Memory for each pod, once the state is complete.
const MOST_KIB_PER_POD: f64 = 10.0;
/// Requests under way at once, as of so many clients of the server.
const AT_ONCE: usize = 32;
const NAMESPACE: &str = "bench";

/// What one size of cluster came to; times in milliseconds unless they say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Row {
    pub pods: usize,
    pub services: usize,
    pub policies: usize,
    /// Until all objects are in the API server, in seconds: what it takes, not what we do.
    pub populated_s: f64,
    /// From the start of the program until its first client holds everything, and the processor time of that.
    pub first_state: f64,
    pub first_state_cpu: f64,
    /// Resident memory then, and at its highest once all clients hold everything.
    pub kib_per_pod: f64,
    pub all_clients: f64,
    pub peak_mib: f64,
    /// From when the API server has taken a pod's readiness until the last client has it.
    pub push: f64,
    /// From the first to the last of so many pods that take the places of others, until every client has heard of them.
    pub replaced: usize,
    pub rolling: f64,
    /// Until all clients that come back are answered, and what they were sent again.
    pub reconnect: f64,
    pub sent_again: usize,
}

impl Row {
    fn holds(&self) -> bool {
        let most = MOST_PUSH.as_secs_f64() * 1e3;
        self.push <= most && self.kib_per_pod <= MOST_KIB_PER_POD && self.sent_again == 0
    }
}

/// Measures once for each size and prints. Returns whether all bounds hold.
pub(super) fn run(plan: &Plan, environment: &Environment) -> Result<bool> {
    let programs = programs(plan, environment)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut rows = Vec::new();
    for pods in &plan.pods {
        rows.push(runtime.block_on(measure(&programs, *pods, plan))?);
    }
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print_table(&rows, plan.clients);
    }
    Ok(rows.iter().all(Row::holds))
}

async fn measure(programs: &Path, pods: usize, plan: &Plan) -> Result<Row> {
    let Plan {
        services, policies, ..
    } = *plan;
    let cluster = Cluster::start().await?;
    let began = Instant::now();
    populate(&cluster, pods, services, policies).await?;
    let populated = began.elapsed();

    let started = Instant::now();
    let source = Source::Kubernetes {
        kubeconfig: &cluster.kubeconfig(),
        token: cluster.token(&proxy(), AUDIENCE).await?,
    };
    let plane = ControlPlane::start(programs, cluster.folder(), source).await?;
    let who = Clients::new(&plane)?;
    let client = Client::open(&who, 0, &Held::default()).await?;
    let (first, held) = client.complete().await?;
    let first_state = started.elapsed();
    let first_state_cpu = plane.processor_seconds()?;
    ensure!(
        held.len() >= pods + services,
        "only {} of {pods} pods and {services} services arrived",
        held.len()
    );
    let kib_per_pod = plane.memory_kib("VmRSS")? as f64 / pods as f64;

    let began = Instant::now();
    let open = async |number: usize, held: &Held| Client::open(&who, number, held).await;
    let mut all = vec![first];
    all.extend(
        join(1..plan.clients, |number| {
            let who = who.clone();
            async move {
                let client = Client::open(&who, number, &Held::default()).await?;
                Ok(client.complete().await?.0)
            }
        })
        .await?,
    );
    let all_clients = began.elapsed();
    let peak_mib = plane.memory_kib("VmHWM")? as f64 / 1024.0;

    let mut pushes = Vec::new();
    for version in 0..CHANGES {
        let (push, heard) = change(&cluster, services, version % 2 == 1, all).await?;
        pushes.push(push);
        all = heard;
    }
    let replaced = plan.replaced.min(pods);
    let (rolling, all) = replace(&cluster, pods, services, replaced, all).await?;

    drop(all);
    let held = open(0, &Held::default()).await?.complete().await?.1;
    let began = Instant::now();
    let answered = join(0..plan.clients, |number| {
        let (who, held) = (who.clone(), held.clone());
        async move {
            let client = Client::open(&who, number, &held).await?;
            Ok(client.complete().await?.1.len())
        }
    })
    .await?;
    let reconnect = began.elapsed();
    plane.stop().await?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Row {
        pods,
        services,
        policies,
        populated_s: populated.as_secs_f64(),
        first_state: milliseconds(first_state),
        first_state_cpu: first_state_cpu * 1e3,
        kib_per_pod,
        all_clients: milliseconds(all_clients),
        peak_mib,
        push: milliseconds(median(&mut pushes)),
        replaced,
        rolling: milliseconds(rolling),
        reconnect: milliseconds(reconnect),
        sent_again: answered.iter().sum(),
    })
}

async fn populate(cluster: &Cluster, pods: usize, services: usize, policies: usize) -> Result<()> {
    cluster.define(Kind::AuthorizationPolicy).await?;
    for name in ["istio-system", NAMESPACE] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        cluster.put(&namespace).await?;
    }
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"namespace": "istio-system", "name": "ztunnel"},
    });
    cluster.put(&account).await?;
    cluster.put(&proxy()).await?;
    put_all(cluster, 0..services, service).await?;
    put_all(cluster, 0..policies, |number| policy(number, services)).await?;
    put_all(cluster, 0..pods, |number| pod(number, services, true)).await
}

async fn put_all(
    cluster: &Cluster,
    numbers: Range<usize>,
    object: impl Fn(usize) -> Value,
) -> Result<()> {
    let put = |number| {
        let object = object(number);
        async move { cluster.put(&object).await }
    };
    let puts = stream::iter(numbers).map(put).buffer_unordered(AT_ONCE);
    puts.try_collect().await
}

/// From when the API server has taken a pod's readiness until the last client has it.
async fn change(
    cluster: &Cluster,
    services: usize,
    ready: bool,
    clients: Vec<Client>,
) -> Result<(Duration, Vec<Client>)> {
    let mut waiting = JoinSet::new();
    for client in clients {
        waiting.spawn(async move {
            let (client, resources) = client.next_push().await?;
            anyhow::Ok((client, resources, Instant::now()))
        });
    }
    cluster.put_status(&pod(0, services, ready)).await?;
    let taken = Instant::now();
    let (mut heard, mut last) = (Vec::new(), taken);
    while let Some(push) = waiting.join_next().await {
        let (client, resources, at) = push??;
        ensure!(
            resources == 1,
            "one pod changed, and {resources} resources were sent"
        );
        last = last.max(at);
        heard.push(client);
    }
    Ok((last.saturating_duration_since(taken), heard))
}

/// Has new pods take the places of old ones, in turn, as a rolling update does.
async fn replace(
    cluster: &Cluster,
    pods: usize,
    services: usize,
    replaced: usize,
    clients: Vec<Client>,
) -> Result<(Duration, Vec<Client>)> {
    let mut waiting = JoinSet::new();
    for mut client in clients {
        waiting.spawn(async move {
            let (mut come, mut gone) = (BTreeSet::new(), 0);
            while come.len() < replaced || gone < replaced {
                let push = client.next_addresses().await?;
                let names = push.resources.into_iter().map(|one| one.name);
                come.extend(names.filter(|name| {
                    let number = name.rsplit_once("/pod-").map(|(_, number)| number.parse());
                    matches!(number, Some(Ok(number)) if (pods..).contains(&number))
                }));
                gone += push.removed_resources.len();
            }
            anyhow::Ok(client)
        });
    }
    let began = Instant::now();
    let turns = (0..replaced).map(|number| async move {
        cluster.put(&pod(pods + number, services, true)).await?;
        cluster.begin_delete(&pod(number, services, true)).await
    });
    let turns = stream::iter(turns).buffer_unordered(AT_ONCE);
    turns.try_collect::<()>().await?;
    let mut heard = Vec::new();
    while let Some(client) = waiting.join_next().await {
        heard.push(client??);
    }
    Ok((began.elapsed(), heard))
}

fn proxy() -> Value {
    running("istio-system", "ztunnel-a", "ztunnel", "10.0.0.1", true)
}

fn pod(number: usize, services: usize, ready: bool) -> Value {
    let ip = format!(
        "10.{}.{}.{}",
        1 + (number >> 16),
        (number >> 8) & 255,
        number & 255
    );
    let mut pod = running(NAMESPACE, &format!("pod-{number}"), "default", &ip, ready);
    pod["metadata"]["labels"] = json!({"app": format!("app-{}", number % services.max(1))});
    pod["spec"]["nodeName"] = json!(format!("node-{}", number / 100));
    pod
}

fn running(namespace: &str, name: &str, account: &str, ip: &str, ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "nodeName": "node-0", "serviceAccountName": account,
            "containers": [{"name": "app", "image": "app"}],
        },
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": ready}],
        },
    })
}

fn service(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": format!("service-{number}")},
        "spec": {"selector": {"app": format!("app-{number}")}, "ports": [{"port": 80}]},
    })
}

fn policy(number: usize, services: usize) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"namespace": NAMESPACE, "name": format!("policy-{number}")},
        "spec": {
            "selector": {"matchLabels": {"app": format!("app-{}", number % services.max(1))}},
            "action": "DENY", "rules": [{"to": [{"operation": {"ports": ["81"]}}]}],
        },
    })
}

fn print_table(rows: &[Row], clients: usize) {
    println!(
        "| pods, services, policies | put there (s) | first client complete (ms) | its CPU (ms) | KiB/pod | {clients} clients complete (ms) | peak (MiB) | readiness to last of {clients} (ms) | pods replaced | until all have heard (ms) | {clients} reconnect (ms) | sent again | within bounds |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        println!(
            "| {}, {}, {} | {:.0} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} | {:.0} | {} | {:.0} | {:.0} | {} | {} |",
            row.pods,
            row.services,
            row.policies,
            row.populated_s,
            row.first_state,
            row.first_state_cpu,
            row.kib_per_pod,
            row.all_clients,
            row.peak_mib,
            row.push,
            row.replaced,
            row.rolling,
            row.reconnect,
            row.sent_again,
            if row.holds() { "yes" } else { "no" },
        );
    }
}
