// SPDX-License-Identifier: Apache-2.0
//! What a waypoint does with requests: shares them out, goes by a header, redirects, copies, tries again; and what each hop
//! says of them. Applied to the lab by the tour itself, and left there to be played with.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::access_log;
use crate::handle::{Access, eventually};
use crate::telemetry::Metrics;
use crate::topology::Node;
use crate::tour::Claim;
use crate::traffic::{Outcome, Report};
use crate::waypoints::Waypoint;

const OBJECTS: &str = include_str!("waypoint.yaml");
const WAYPOINT: Waypoint = Waypoint {
    namespace: "store",
    name: "wp",
    node: Node::A,
    serves: "service",
    number: 40,
};
const FRONT: &str = "10.96.0.43:80";
const CLIENT: &str = "shop/client";
const PATIENCE: Duration = Duration::from_secs(60);

const REQUESTS: u32 = 200;
/// Of so many with a share of a tenth, 20 are expected; the standard deviation is 4.2.
const TENTH: std::ops::RangeInclusive<usize> = 4..=40;

pub(super) fn gather(lab: &Access) -> Result<Vec<Claim>> {
    lab.apply(OBJECTS)?;
    let waypoint = WAYPOINT.deploy(lab)?;
    for pod in ["store/old", "store/new"] {
        lab.wait_ready(pod)?;
    }
    eventually("the waypoint goes by the route", PATIENCE, || {
        let report = ask(lab, "/", &["--header", "x-version: new"])?;
        ensure!(pods(&report) == ["new"], "{report:?}");
        Ok(())
    })?;
    let before = Hops::read(lab, &waypoint)?;
    // The hops have counted all of them once they are proved.
    Ok(vec![
        claim("90 of 100 to one, 10 to the other", split(lab)),
        claim("a header decides", header(lab)),
        claim("redirect", redirect(lab)),
        claim("mirror", mirror(lab)),
        claim("retry", retry(lab, &waypoint)),
        claim("metrics of each hop", before.counted(lab, &waypoint)),
    ])
}

fn claim(what: &str, proof: Result<String>) -> Claim {
    let holds = proof.is_ok();
    let seen = proof.unwrap_or_else(|error| format!("{error:#}"));
    Claim {
        what: what.into(),
        seen,
        holds,
    }
}

fn ask(lab: &Access, path: &str, more: &[&str]) -> Result<Report> {
    let arguments: Vec<&str> = ["get", FRONT, path]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    lab.traffic(CLIENT, &arguments)
}

/// Which pods answered, in order.
fn pods(report: &Report) -> Vec<String> {
    let pages = report.answer.as_deref().unwrap_or_default().lines();
    let pages = pages.filter_map(|page| serde_json::from_str::<serde_json::Value>(page).ok());
    let names = pages.filter_map(|page| Some(page["pod"].as_str()?.to_owned()));
    names.collect()
}

fn split(lab: &Access) -> Result<String> {
    let report = ask(lab, "/shared", &["--times", &REQUESTS.to_string()])?;
    let pods = pods(&report);
    let new = pods.iter().filter(|pod| *pod == "new").count();
    let old = pods.iter().filter(|pod| *pod == "old").count();
    ensure!(
        report.is_done() && old + new == REQUESTS as usize,
        "{}: {old} + {new}",
        report.outcome
    );
    ensure!(
        TENTH.contains(&new),
        "{old} by store/old, {new} by store/new"
    );
    Ok(format!("{old} by store/old, {new} by store/new"))
}

fn header(lab: &Access) -> Result<String> {
    let report = ask(
        lab,
        "/chosen",
        &["--header", "x-version: new", "--times", "10"],
    )?;
    let pods = pods(&report);
    ensure!(
        pods.len() == 10 && pods.iter().all(|pod| pod == "new"),
        "{}: {pods:?}",
        report.outcome
    );
    Ok("x-version: new: 10 of 10 by store/new".into())
}

fn redirect(lab: &Access) -> Result<String> {
    let report = ask(lab, "/moved/on", &[])?;
    let location = report.header("location").unwrap_or("nowhere").to_owned();
    let redirected = report.outcome == Outcome::Failed("status 302".into());
    ensure!(
        redirected && location == "http://elsewhere.example/here/on",
        "{}, to {location}",
        report.outcome
    );
    Ok(format!("302 to {location}, by the waypoint itself"))
}

fn mirror(lab: &Access) -> Result<String> {
    let report = ask(lab, "/copied", &[])?;
    let answered = pods(&report);
    ensure!(answered == ["old"], "{}: {answered:?}", report.outcome);
    eventually("the copy arrives", Duration::from_secs(5), || {
        // Asked in plaintext from its own node, and so not itself by way of the waypoint.
        let target = lab.v4("store/new", 8080)?.to_string();
        let asked = lab.traffic(Node::B.name(), &["get", &target, "/asked/copied"])?;
        let times = asked.answer.unwrap_or_default();
        ensure!(times == "1", "store/new was asked {times} times");
        Ok(())
    })?;
    Ok("answered by store/old, and store/new had a copy".into())
}

fn retry(lab: &Access, waypoint: &str) -> Result<String> {
    let report = ask(lab, "/fail/2", &[])?;
    ensure!(report.is_done(), "{}", report.outcome);
    let attempts = eventually("the waypoint logs it", Duration::from_secs(5), || {
        let entries = access_log::parse(&lab.log(waypoint)?);
        let found = entries
            .into_iter()
            .rev()
            .find(|entry| entry.is("path", "/fail/2"));
        let entry = found.context("the waypoint's log has no line of it")?;
        entry.number("attempts").with_context(|| entry.to_string())
    })?;
    ensure!(attempts == 3, "{attempts} attempts");
    Ok("503, 503, 200 by store/old: one answer for the client".into())
}

/// What each hop had counted.
struct Hops {
    client: f64,
    waypoint: f64,
    endpoint: f64,
}

impl Hops {
    fn read(lab: &Access, pod: &str) -> Result<Self> {
        let waypoint = WAYPOINT.identity();
        let report = lab.traffic(pod, &["get", "127.0.0.1:15020", "/metrics"])?;
        let of_waypoint = Metrics::parse(&report.answer.context("the waypoint's metrics")?);
        let client = [
            ("reporter", "source"),
            ("destination_principal", &*waypoint),
        ];
        let endpoint = [
            ("reporter", "destination"),
            ("source_principal", &*waypoint),
        ];
        let opened = "istio_tcp_connections_opened_total";
        Ok(Self {
            client: lab.metrics(Node::A)?.sum(opened, &client),
            waypoint: of_waypoint.sum("istio_requests_total", &[("reporter", "waypoint")]),
            endpoint: lab.metrics(Node::B)?.sum(opened, &endpoint),
        })
    }

    /// What they have counted since.
    fn counted(&self, lab: &Access, pod: &str) -> Result<String> {
        eventually("all is counted", Duration::from_secs(5), || {
            let now = Self::read(lab, pod)?;
            let client = now.client - self.client;
            let waypoint = now.waypoint - self.waypoint;
            let words = format!(
                "{client} connections at the client's ztunnel, {waypoint} requests at the waypoint, {} connections of its own at the endpoints'",
                now.endpoint
            );
            // One connection of the client's for each request that it made; copies and attempts are the waypoint's.
            let made = f64::from(REQUESTS) + 13.0;
            ensure!(
                client == made && waypoint >= made && now.endpoint >= 2.0,
                "{words}"
            );
            Ok(words)
        })
    }
}
