// SPDX-License-Identifier: Apache-2.0
//! What operators see: readiness, metrics, what is served to whom, what is wrong.

mod policy;

use std::{collections::BTreeMap, sync::Arc};

use http::StatusCode;
use ops::{
    admin::{AdminRequest, AdminResponse, Routes, json, text},
    health::Readiness,
    metrics::Metrics,
};
use serde_json::{Value, json as object};

use crate::{
    authority::Asked, catalogue::ResourceType, controller::State, describe,
    xds_server::connections::Connections,
};

/// The pages that tell nothing of the cluster.
pub fn monitoring(state: &State, readiness: Readiness, metrics: Metrics) -> Routes {
    let ready = readiness.clone();
    let (index, catalogue) = (Arc::clone(&state.index), Arc::clone(&state.catalogue));
    Routes::new()
        .readiness(readiness)
        .metrics(metrics)
        .get("/ready", move |_| match ready.report() {
            Ok(body) => text(StatusCode::OK, body),
            Err(body) => text(StatusCode::SERVICE_UNAVAILABLE, body),
        })
        // Answers only while what is known can be read: a lock that is never given back is a reason to start anew.
        .get("/live", move |_| {
            drop(index.read());
            drop(catalogue.read());
            text(StatusCode::OK, "alive\n")
        })
}

/// These, and those that tell who is where and may do what.
pub fn debug(
    monitoring: Routes,
    state: State,
    asked: Asked,
    connections: Arc<Connections>,
) -> Routes {
    let (dumped, tried) = (state.clone(), state.clone());
    monitoring
        .get("/debug/config_dump", move |request| {
            config_dump(&dumped, &request)
        })
        .get("/debug/connections", move |_| json(&connections.reports()))
        .get("/debug/ca", move |_| json(&asked.report()))
        .post("/debug/policy", move |request| {
            policy::page(&tried, &request)
        })
        .get("/debug/problems", move |_| json(&problems(&state)))
}

/// All resources with their versions, or those whose name holds `?name=`.
fn config_dump(state: &State, request: &AdminRequest) -> AdminResponse {
    let wanted = request.query_value("name").unwrap_or_default();
    let found: Vec<_> = {
        let tables = state.catalogue.read();
        let for_all = ResourceType::ALL.into_iter().flat_map(|of| {
            let all = tables.of(of).iter();
            all.map(move |(name, entry)| (of, name.to_string(), entry))
        });
        let for_waypoints = ResourceType::ALL.into_iter().flat_map(|of| {
            let each = tables.waypoints(of);
            each.flat_map(move |(waypoint, table)| {
                table.iter().map(move |(name, entry)| {
                    let name = format!("{name} for {waypoint}");
                    (of, name, entry)
                })
            })
        });
        for_all
            .chain(for_waypoints)
            .filter(|(_, name, _)| name.contains(wanted))
            .map(|(of, name, entry)| (of, name, entry.clone()))
            .collect()
    };
    let mut dump: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    for (of, name, entry) in found {
        let described = describe::resource(of, &entry.body)
            .unwrap_or_else(|error| object!({ "undecodable": error.to_string() }));
        let value = object!({ "version": entry.version.to_string(), "resource": described });
        dump.entry(of.label()).or_default().insert(name, value);
    }
    json(&dump)
}

/// What can't be used as it is written: in files, and in objects.
fn problems(state: &State) -> Value {
    let source: Vec<String> = state
        .source_problems
        .read()
        .iter()
        .map(ToString::to_string)
        .collect();
    let index = state.index.read();
    let mut objects: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (object, problem) in index.problems() {
        objects
            .entry(object.to_string())
            .or_default()
            .push(problem.to_string());
    }
    object!({ "source": source, "objects": objects })
}
