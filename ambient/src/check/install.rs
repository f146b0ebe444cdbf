// SPDX-License-Identifier: Apache-2.0
//! Pure: is the mesh installed whole, by what the API server shows of its parts.

use serde_json::Value;

use super::{Finding, Level};
use crate::admin::Error;
use crate::ps::{items, text};
use crate::waypoint::gateway;

/// Something that has to be there, and the page of the API server that shows it.
pub(crate) struct Part {
    category: &'static str,
    pub(crate) path: String,
    judge: fn(&Value) -> Vec<(Level, String)>,
    /// What it means that there is no such thing.
    missing: (Level, &'static str),
}

/// Of a mesh whose programs run in this namespace.
pub(crate) fn parts(namespace: &str) -> [Part; 4] {
    let apps =
        |kind: &str, name: &str| format!("/apis/apps/v1/namespaces/{namespace}/{kind}/{name}");
    let absent = (Level::Failure, "is not installed");
    [
        Part {
            category: "control plane",
            path: apps("deployments", "istiod"),
            judge: deployment,
            missing: absent,
        },
        Part {
            category: "node agents",
            path: apps("daemonsets", "istio-cni-node"),
            judge: daemons,
            missing: absent,
        },
        Part {
            category: "ztunnels",
            path: apps("daemonsets", "ztunnel"),
            judge: daemons,
            missing: absent,
        },
        Part {
            category: "waypoints",
            path: "/apis/gateway.networking.k8s.io/v1/gateways".to_owned(),
            judge: waypoints,
            missing: (
                Level::Warning,
                "the cluster has no Gateway API: no waypoint can be asked for",
            ),
        },
    ]
}

impl Part {
    pub(crate) fn judge(&self, answer: Result<Value, Error>) -> Vec<Finding> {
        let said = match answer {
            Ok(found) => (self.judge)(&found),
            Err(error) if error.cause.contains("(NotFound)") => {
                let (level, says) = self.missing;
                vec![(level, says.to_owned())]
            }
            Err(error) => vec![(Level::Warning, format!("can't be seen: {error}"))],
        };
        let finding = |(level, says)| Finding {
            category: self.category.to_owned(),
            level,
            says,
        };
        said.into_iter().map(finding).collect()
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Images tell the version.
fn version(workload: &Value) -> String {
    let containers = items(&workload["spec"]["template"]["spec"], "containers");
    let images: Vec<String> = containers.iter().map(|one| text(&one["image"])).collect();
    images.join(", ")
}

fn deployment(found: &Value) -> Vec<(Level, String)> {
    let wanted = found["spec"]["replicas"].as_u64().unwrap_or(1);
    let ready = number(&found["status"]["readyReplicas"]);
    let level = match ready {
        0 => Level::Failure,
        ready if ready < wanted => Level::Warning,
        _ => Level::Ok,
    };
    let image = version(found);
    vec![(
        level,
        format!("{ready} of {wanted} replicas are ready ({image})"),
    )]
}

fn daemons(found: &Value) -> Vec<(Level, String)> {
    let status = &found["status"];
    let wanted = number(&status["desiredNumberScheduled"]);
    let (ready, updated) = (
        number(&status["numberReady"]),
        number(&status["updatedNumberScheduled"]),
    );
    let level = match ready {
        0 => Level::Failure,
        ready if ready < wanted => Level::Warning,
        _ => Level::Ok,
    };
    let image = version(found);
    let mut said = vec![(
        level,
        format!("ready on {ready} of {wanted} nodes ({image})"),
    )];
    if updated < wanted {
        let says = format!("{updated} of {wanted} nodes have this version");
        said.push((Level::Warning, says));
    }
    said
}

fn waypoints(found: &Value) -> Vec<(Level, String)> {
    let waypoints = gateway::waypoints(found, None);
    let mut said = Vec::new();
    for waypoint in waypoints.iter().filter(|one| !gateway::is_programmed(one)) {
        let (namespace, name) = (gateway::namespace(waypoint), gateway::name(waypoint));
        let says = format!(
            "{namespace}/{name} takes no traffic: ambient waypoint status {name} -n {namespace}"
        );
        said.push((Level::Warning, says));
    }
    if said.is_empty() {
        said.push((Level::Ok, format!("{} take traffic", waypoints.len())));
    }
    said
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(category: &str, answer: Result<Value, &str>, expected: &[(Level, &str)]) {
        let parts = parts("istio-system");
        let part = parts.iter().find(|part| part.category == category).unwrap();
        let answer = answer.map_err(|cause| Error {
            asked: part.path.clone(),
            cause: cause.to_owned(),
        });
        let found = part.judge(answer);
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.level, one.says.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_missing_or_not_ready_is_told_by_how_bad_it_is() {
        let template = json!({"spec": {"containers": [{"image": "i:1"}]}});
        let istiod = |ready| {
            json!({
                "spec": {"replicas": 2, "template": template}, "status": {"readyReplicas": ready},
            })
        };
        for (ready, level) in [(2, Level::Ok), (1, Level::Warning), (0, Level::Failure)] {
            let says = format!("{ready} of 2 replicas are ready (i:1)");
            check("control plane", Ok(istiod(ready)), &[(level, &says)]);
        }
        let daemons = |ready, updated| {
            json!({
                "spec": {"template": template},
                "status": {"desiredNumberScheduled": 3, "numberReady": ready, "updatedNumberScheduled": updated},
            })
        };
        let (whole, part, none) = (
            (Level::Ok, "ready on 3 of 3 nodes (i:1)"),
            (Level::Warning, "ready on 2 of 3 nodes (i:1)"),
            (Level::Failure, "ready on 0 of 3 nodes (i:1)"),
        );
        check("ztunnels", Ok(daemons(3, 3)), &[whole]);
        check("node agents", Ok(daemons(0, 3)), &[none]);
        let old = (Level::Warning, "1 of 3 nodes have this version");
        check("ztunnels", Ok(daemons(2, 1)), &[part, old]);
        let not_found = Err("Error from server (NotFound): daemonsets.apps \"ztunnel\" not found");
        check(
            "ztunnels",
            not_found,
            &[(Level::Failure, "is not installed")],
        );
        let part = parts("istio-system");
        let refused = format!("can't be seen: {}: forbidden", part[0].path);
        check(
            "control plane",
            Err("forbidden"),
            &[(Level::Warning, &refused)],
        );
    }

    #[test]
    fn waypoints_that_take_no_traffic_are_named() {
        let waypoint = |name: &str, status: &str| {
            let mut gateway = gateway::object("shop", name, None, None);
            gateway["status"]["conditions"] = json!([{"type": "Programmed", "status": status}]);
            gateway
        };
        let list = |status| Ok(json!({"items": [waypoint("a", "True"), waypoint("b", status)]}));
        check("waypoints", list("True"), &[(Level::Ok, "2 take traffic")]);
        let says = "shop/b takes no traffic: ambient waypoint status b -n shop";
        check("waypoints", list("False"), &[(Level::Warning, says)]);
    }
}
