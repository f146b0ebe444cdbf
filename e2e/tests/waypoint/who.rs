// SPDX-License-Identifier: Apache-2.0
//! Who goes through a waypoint: each way to a pod or service, and who saw the request on it.
//!
//! ```text
//!  node a: client, waypoint svc, pod by-all        node b: waypoints wl and all, all other pods
//! ```
//! So a waypoint stands on the source's node, on the destination's, and on one that is neither's.
//! Who saw a request is told by the request: a waypoint writes into it who it is, and nobody else can.

mod objects;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use e2e::handle::{Tunnel, eventually};
use e2e::traffic::Report;

use crate::ground::{CLIENT_ID, PATIENCE, lab, waypoint_entry_of};
use objects::{ALL, SVC, WL};

/// Who asks.
#[derive(Debug, Clone, Copy)]
enum Caller {
    /// A pod of the mesh.
    Mesh,
    /// A pod outside of it.
    Outside,
    /// A pod that tunnels itself: to the pod's own proxy, or to this waypoint.
    Native(Option<&'static str>),
    /// An ingress gateway: it does what the control plane says of the service.
    Ingress,
}

/// For whom.
#[derive(Debug, Clone, Copy)]
enum To {
    Pod(&'static str),
    Service(&'static str, &'static str),
}

#[derive(Debug, Clone, Copy)]
enum Seen {
    /// No waypoint saw it, and this pod answered.
    Straight,
    /// Each of these waypoints saw some, and no other any.
    Through(&'static [&'static str]),
    /// Nobody got it; the log of the client's node, of the pod's, or of a waypoint says why.
    Refused(&'static str),
}

use Caller::{Ingress, Mesh, Native, Outside};
use Seen::{Refused, Straight, Through};
use To::{Pod, Service};

const ROWS: &[(Caller, To, Seen)] = &[
    // Addressed by service: what the service, or else its namespace, asks for; what the Gateway is for.
    (Mesh, Service("who", "by-svc"), Through(&["svc"])),
    (Mesh, Service("who", "by-all"), Through(&["all"])),
    (Mesh, Service("who", "canary"), Through(&["svc", "all"])),
    (Mesh, Service("who-svc", "inherits"), Through(&["svc"])),
    (Mesh, Service("who-all", "inherits"), Through(&["all"])),
    (Mesh, Service("who", "by-wl"), Straight),
    (Mesh, Service("who", "by-none"), Straight),
    (Mesh, Service("who", "by-absent"), Straight),
    (Mesh, Service("who-svc", "declines"), Straight),
    (
        Mesh,
        Service("who", "by-ghost"),
        Refused("waypoint who/ghost"),
    ),
    // By service, the pods' own waypoints have no part in it.
    (Mesh, Service("who", "over-by-wl"), Straight),
    // Addressed by pod: pods of one Deployment, bound differently.
    (Mesh, Pod("who/plain"), Straight),
    (Mesh, Pod("who/by-wl"), Through(&["wl"])),
    (Mesh, Pod("who/by-all"), Through(&["all"])),
    (Mesh, Pod("who/by-svc"), Straight),
    (Mesh, Pod("who/by-ghost"), Refused("waypoint who/ghost")),
    // By their namespaces: what is for services is passed over for pods, without a word.
    (Mesh, Pod("who-svc/server"), Straight),
    (Mesh, Pod("who-all/inherits"), Through(&["all"])),
    (Mesh, Pod("who-all/declines"), Straight),
    // Callers that no proxy leads anywhere.
    (Outside, Pod("who/plain"), Straight),
    (Outside, Pod("who/by-wl"), Straight),
    (Native(None), Pod("who/by-wl"), Straight),
    (Native(Some("wl")), Pod("who/by-wl"), Through(&["wl"])),
    (
        Native(Some("svc")),
        Service("who", "by-svc"),
        Through(&["svc"]),
    ),
    (
        Native(Some("wl")),
        Service("who", "by-svc"),
        Refused("is not bound to waypoint who/wl"),
    ),
    (
        Native(Some("svc")),
        Pod("who/by-wl"),
        Refused("is not bound to waypoint who/svc"),
    ),
    (Ingress, Service("who", "by-svc"), Straight),
    (Ingress, Service("who", "ingress"), Through(&["svc"])),
    (Ingress, Service("who", "by-none"), Straight),
    // Where the pods demand it, there is no way around.
    (Mesh, Pod("who/closed"), Through(&["wl"])),
    (Mesh, Service("who", "closed"), Through(&["svc"])),
    (Native(Some("wl")), Pod("who/closed"), Through(&["wl"])),
    (Outside, Pod("who/closed"), Refused(CLOSED)),
    (Native(None), Pod("who/closed"), Refused(CLOSED)),
    (Ingress, Service("who", "closed"), Refused(CLOSED)),
    (Mesh, Service("who", "over-closed"), Refused(CLOSED)),
    (
        Mesh,
        Pod("who/closed-by-absent"),
        Refused("culvert_require_waypoint_who.absent"),
    ),
];

const CLOSED: &str = "denied by policy istio-system/culvert_require_waypoint_who.svc_who.wl";

/// The pods, services and waypoints of the table, known to everybody.
fn prepared() {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let lab = lab();
    APPLIED.get_or_init(|| {
        lab.apply(&objects::manifest()).unwrap();
        for pod in objects::PODS {
            lab.wait_ready(&format!("{}/{}", pod.namespace, pod.name))
                .unwrap();
        }
        for waypoint in [SVC, WL, ALL] {
            lab.wait_ready(&waypoint.pod()).unwrap();
        }
        // What is applied last is known once what was applied is.
        eventually("the ways are known", PATIENCE, || {
            for (caller, to, seen) in ROWS {
                if let (Mesh, Through(_) | Refused(_)) = (caller, seen) {
                    row("/prepared", *caller, *to, *seen)?;
                }
            }
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn who_goes_through_a_waypoint() {
    prepared();
    let mut wrong = Vec::new();
    for (number, (caller, to, seen)) in ROWS.iter().enumerate() {
        let path = format!("/row-{number}");
        if let Err(error) = row(&path, *caller, *to, *seen) {
            wrong.push(format!("{number}. {caller:?} {to:?} {seen:?}: {error:#}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_refusal_for_want_of_the_waypoint_is_logged_counted_and_told() {
    prepared();
    let target = lab().v4("who/closed", 8080).unwrap();
    let node = e2e::topology::Node::B;
    let labels = [
        ("reporter", "destination"),
        ("destination_workload", "closed"),
    ];
    let refused = || {
        let metrics = lab().metrics(node).unwrap();
        metrics.sum("istio_tcp_connections_closed_total", &labels)
    };
    let before = refused();
    let report = lab()
        .traffic("outside/legacy", &["get", &target.to_string()])
        .unwrap();
    assert!(!report.is_done(), "{report:?}");
    let source = lab().pod("outside/legacy").unwrap().addresses.unwrap().v4;
    let entry = lab()
        .access_entry(node, "the refusal", |entry| {
            let from = entry.source().map(|source| source.ip().to_canonical());
            from == Some(source.into()) && entry.is("dst.workload", "closed")
        })
        .unwrap();
    assert!(entry.error().unwrap().contains(CLOSED), "{entry}");
    assert!(refused() > before);
    let dump = lab()
        .traffic(node.name(), &["get", "127.0.0.1:15000", "/config_dump"])
        .unwrap();
    assert!(
        dump.answer
            .unwrap()
            .contains("culvert_require_waypoint_who.svc_who.wl")
    );
}

/// Asks, and holds what was seen against what is expected.
fn row(path: &str, caller: Caller, to: To, expected: Seen) -> Result<()> {
    let ask = asker(caller, to)?;
    match expected {
        Straight => {
            let (pod, by) = answered(&ask(path)?)?;
            ensure!(by.is_none(), "{} saw it", by.unwrap_or_default());
            let wanted = objects::backend(to);
            ensure!(pod == wanted, "{pod} answered instead of {wanted}");
        }
        Through(waypoints) => {
            let wanted: BTreeSet<&str> = waypoints.iter().copied().collect();
            let mut seen = BTreeSet::new();
            // Of two with equal shares, one is missed in so many requests once in a million runs.
            for _request in 0..20 {
                let (pod, by) = answered(&ask(path)?)?;
                let by = by.context("no waypoint saw it")?;
                let name = wanted
                    .get(by.as_str())
                    .with_context(|| format!("{by} saw it"))?;
                seen.insert(*name);
                ensure!(pod == objects::backend(to), "{pod} answered");
                if seen == wanted {
                    break;
                }
            }
            ensure!(seen == wanted, "only {seen:?} saw any");
            for name in waypoints {
                waypoint_entry_of(&format!("who/{name}"), "the request", |entry| {
                    entry.is("path", path)
                });
            }
        }
        Refused(why) => {
            let report = ask(path)?;
            ensure!(!report.is_done(), "{report:?}");
            eventually("somebody says why", PATIENCE, || {
                let logs = ["ztunnel-a", "ztunnel-b", "who/svc", "who/wl", "who/all"];
                for log in logs {
                    if lab().log(log)?.contains(why) {
                        return Ok(());
                    }
                }
                anyhow::bail!("nobody says {why:?}")
            })?;
        }
    }
    Ok(())
}

/// Which pod answered, and which waypoint of the table saw the request.
fn answered(report: &Report) -> Result<(String, Option<String>)> {
    ensure!(report.is_done(), "{report:?}");
    let answer = report.answer.as_deref().context("an answer")?;
    let page: serde_json::Value = serde_json::from_str(answer)?;
    let pod = page["pod"].as_str().context("a pod")?.to_owned();
    let headers = page["headers"].as_array().context("headers")?;
    let mut headers = headers.iter().filter_map(|header| header.as_str());
    let certificate = headers.find_map(|header| header.strip_prefix("x-forwarded-client-cert: "));
    let by = certificate.map(|text| {
        let by = text.strip_prefix("By=spiffe://cluster.local/ns/who/sa/");
        let name = by.and_then(|by| by.split(';').next()).map(str::to_owned);
        name.with_context(|| format!("no waypoint of the table: {text}"))
    });
    Ok((pod, by.transpose()?))
}

type Ask = Box<dyn Fn(&str) -> Result<Report>>;

/// The way by which a caller asks.
fn asker(caller: Caller, to: To) -> Result<Ask> {
    let target = match to {
        Pod(pod) => lab().v4(pod, 8080)?,
        Service(namespace, name) => objects::address(namespace, name),
    };
    match (caller, to) {
        (Mesh, _) => Ok(from("shop/client", target.to_string())),
        (Outside, _) => Ok(from("outside/legacy", target.to_string())),
        (Native(waypoint), Pod(pod)) => tunnelled(target, waypoint, pod),
        (Native(waypoint), Service(..)) => tunnelled(target, waypoint, "none"),
        (Ingress, Pod(_)) => anyhow::bail!("an ingress leads to services"),
        (Ingress, Service(namespace, name)) => match waypoint_for_ingress(namespace, name)? {
            Some(waypoint) => {
                ensure!(waypoint == SVC.name, "{waypoint}");
                tunnelled(target, Some(SVC.name), "none")
            }
            None => {
                let pod = format!("{namespace}/{}", objects::backend(to));
                tunnelled(lab().v4(&pod, 8080)?, None, &pod)
            }
        },
    }
}

fn from(place: &'static str, target: String) -> Ask {
    Box::new(move |path| lab().traffic(place, &["get", &target, path]))
}

/// By a tunnel of the caller's own to a waypoint, or to the pod.
fn tunnelled(to: std::net::SocketAddr, waypoint: Option<&str>, pod: &str) -> Result<Ask> {
    let (through, expect) = match waypoint {
        Some(name) => {
            let waypoint = [SVC, WL, ALL].into_iter().find(|one| one.name == name);
            let waypoint = waypoint.context("a waypoint of the table")?;
            (
                Some(lab().v4(&waypoint.pod(), 15008)?.ip()),
                waypoint.identity(),
            )
        }
        None => (
            None,
            format!(
                "spiffe://cluster.local/ns/{}/sa/server",
                pod.split('/').next().unwrap_or_default()
            ),
        ),
    };
    let tunnel = Tunnel {
        pod: "guarded/direct",
        to,
        through,
        expect: &expect,
    };
    let forward = lab().forward(tunnel)?;
    Ok(Box::new(move |path| {
        lab().traffic("guarded/direct", &["get", &forward.address(), path])
    }))
}

/// What the control plane tells ingress gateways of a service: which waypoint to take, if any.
fn waypoint_for_ingress(namespace: &str, name: &str) -> Result<Option<String>> {
    let key = format!("{namespace}/{name}.{namespace}.svc.cluster.local");
    let path = format!("/debug/config_dump?name={key}");
    let report = lab().traffic("istiod-lite", &["get", "127.0.0.1:8080", &path])?;
    let dump: serde_json::Value = serde_json::from_str(&report.answer.context("a dump")?)?;
    let service = &dump["address"][&key]["resource"]["service"];
    ensure!(service["hostname"].is_string(), "no service in {dump}");
    if service["ingressUseWaypoint"] != true {
        return Ok(None);
    }
    let waypoint = service["waypoint"].as_str().context("a waypoint")?;
    let host = waypoint
        .split('/')
        .nth(1)
        .and_then(|host| host.split('.').next());
    Ok(host.map(str::to_owned))
}

#[test]
fn who_the_client_is_travels_on_though_the_endpoint_sees_the_waypoint() {
    prepared();
    let report = lab()
        .traffic(
            "shop/client",
            &[
                "get",
                &objects::address("who", "by-svc").to_string(),
                "/identity",
            ],
        )
        .unwrap();
    let answer = report.answer.unwrap();
    assert!(
        answer.contains(&format!("By={};URI={CLIENT_ID}", SVC.identity())),
        "{answer}"
    );
}
