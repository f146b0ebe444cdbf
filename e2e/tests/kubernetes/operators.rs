// SPDX-License-Identifier: Apache-2.0
//! What operators ask: `ambient` with a real kubectl at a real API server. In the lab waypoints come and go by it; of an
//! installation that the server alone holds it tells what is ready. No kubelet is here, so a port-forward ends at the
//! API server, and how that is told is looked at too; ztunnels are asked by their own addresses instead.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::Kind;
use e2e::clients::Client::Kubectl;
use e2e::environment::Environment;
use e2e::handle::{Finished, Lab, eventually};
use e2e::kubernetes::Cluster;
use e2e::{binaries, deploy};
use serde_json::{Value, json};

use super::lab::SHARED;
use super::waypoints::gateway;

const PATIENCE: Duration = Duration::from_secs(60);
/// A ztunnel, as it is asked on its node.
const HERE: &str = "--ztunnel=127.0.0.1:15000";

/// The program, built as the tests are.
fn ambient() -> Result<PathBuf> {
    let e2e = Path::new(env!("CARGO_BIN_EXE_e2e"));
    let folder = binaries::build_only(&["ambient"], &Environment::of_process(), e2e)?;
    Ok(folder.join("ambient"))
}

/// Whoever asks from a node of the lab.
struct Operator<'l> {
    lab: &'l Lab,
    ambient: String,
    kubectl: String,
    kubeconfig: PathBuf,
}

impl<'l> Operator<'l> {
    fn new(lab: &'l Lab) -> Result<Self> {
        Ok(Self {
            lab,
            ambient: ambient()?.display().to_string(),
            kubectl: Kubectl.path()?.display().to_string(),
            kubeconfig: lab.state().kubeconfig(),
        })
    }

    fn run(&self, program: &str, words: &str) -> Result<Finished> {
        let home = format!("HOME={}", self.lab.state().kubernetes().display());
        let words = words.split_whitespace();
        let command = ["exec", "node-a", "--", "env", &home, program];
        self.lab
            .run(&command.into_iter().chain(words).collect::<Vec<_>>())
    }

    /// `ambient`, of this cluster.
    fn ask(&self, words: &str) -> Result<Finished> {
        let (kubectl, kubeconfig) = (&self.kubectl, self.kubeconfig.display());
        let place = format!("--kubectl {kubectl} --kubeconfig {kubeconfig}");
        self.run(&self.ambient, &format!("{words} {place}"))
    }

    /// The same: what it prints, with this status.
    fn told(&self, words: &str, status: i32) -> Result<String> {
        let said = self.ask(words)?;
        ensure!(said.code == Some(status), "ambient {words}: {said:?}");
        Ok(said.stdout)
    }

    /// The same, as JSON.
    fn json(&self, words: &str, status: i32) -> Result<Value> {
        let told = self.told(&format!("{words} --output json"), status)?;
        serde_json::from_str(&told).context(told)
    }

    /// Why it was not done.
    fn refused(&self, words: &str) -> Result<String> {
        let said = self.ask(words)?;
        ensure!(
            said.code == Some(2) && said.stdout.is_empty(),
            "ambient {words}: {said:?}"
        );
        Ok(said.stderr)
    }

    fn kubectl(&self, words: &str) -> Result<String> {
        let kubeconfig = self.kubeconfig.display();
        let words = format!("--kubeconfig {kubeconfig} {words}");
        let said = self.run(&self.kubectl, &words)?;
        ensure!(said.code == Some(0), "kubectl {words}: {said:?}");
        Ok(said.stdout)
    }
}

/// The cells of a table's lines; two spaces part them.
fn cells(table: &str) -> Vec<Vec<&str>> {
    fn cells(line: &str) -> Vec<&str> {
        let cells = line.split("  ").map(str::trim);
        cells.filter(|cell| !cell.is_empty()).collect()
    }
    table.lines().map(cells).collect()
}

/// In the mesh, and nobody's but this story's.
const DESK: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: desk, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: desk}
spec: {gatewayClassName: nobodys, listeners: [{name: http, port: 80, protocol: HTTP}]}
"#;

/// One story, since each part of it stands on the one before.
#[test]
fn waypoints_are_asked_for_told_of_and_deleted_by_the_operators_program() -> Result<()> {
    let lab = SHARED.lab();
    lab.apply(DESK)?;
    let operator = Operator::new(lab)?;
    let none = "no waypoint in namespace desk\n";
    assert_eq!(operator.told("waypoint list -n desk", 0)?, none);
    let refused = operator.refused("waypoint status wp -n desk")?;
    assert_eq!(refused, "ambient: waypoint wp: there is no such waypoint\n");
    let refused = operator.refused("waypoint apply --name door -n desk")?;
    ensure!(
        refused.contains(r#"desk/door: there is a Gateway of this name and of class "nobodys""#),
        "{refused}"
    );
    let refused = operator.refused("waypoint apply -n nowhere")?;
    ensure!(
        refused.contains(r#"(NotFound): namespaces "nowhere" not found"#),
        "{refused}"
    );

    let applied = operator.told(
        "waypoint apply --name wp -n desk --enroll-namespace --wait",
        0,
    )?;
    assert_eq!(
        applied,
        "waypoint desk/wp applied\nnamespace desk uses it\n"
    );
    let label = operator
        .kubectl(r"get namespace desk -o jsonpath={.metadata.labels.istio\.io/use-waypoint}")?;
    assert_eq!(label, "wp");
    let listed = operator.told("waypoint list -n desk", 0)?;
    assert_eq!(
        cells(&listed),
        [
            ["NAME", "REVISION", "TRAFFIC TYPE", "PROGRAMMED"],
            ["wp", "default", "service", "True"]
        ]
    );
    let everywhere = operator.told("waypoint list -A", 0)?;
    ensure!(
        cells(&everywhere).contains(&vec!["desk", "wp", "default", "service", "True"]),
        "{everywhere}"
    );
    let status = operator.told("waypoint status wp -n desk", 0)?;
    let rows = cells(&status);
    assert_eq!(
        rows[0],
        ["NAME", "STATUS", "TYPE", "REASON", "MESSAGE", "ADDRESSES"]
    );
    assert_eq!(rows[1][..4], ["wp", "True", "Accepted", "Accepted"]);
    assert_eq!(rows[2][..4], ["wp", "True", "Programmed", "Programmed"]);
    let gateways = operator.json("waypoint status -n desk", 0)?;
    let addresses = gateways[0]["status"]["addresses"].as_array();
    let addresses: Vec<&str> = addresses
        .into_iter()
        .flatten()
        .filter_map(|one| one["value"].as_str())
        .collect();
    ensure!(
        addresses.contains(&"wp.desk.svc.cluster.local"),
        "{gateways}"
    );
    assert_eq!(rows[2].last(), Some(&addresses.join(",").as_str()));

    // Before anything is changed.
    let refused = operator.refused("waypoint apply --name other -n desk --enroll-namespace")?;
    ensure!(
        refused.contains("namespace desk uses waypoint wp; --overwrite has it use this one"),
        "{refused}"
    );
    assert_eq!(
        operator
            .json("waypoint list -n desk", 0)?
            .as_array()
            .map(Vec::len),
        Some(1)
    );

    // One that nobody runs is waited for, and told of.
    let idle = "waypoint apply --name idle --revision nobody --for all -n desk";
    let said = operator.ask(&format!("{idle} --wait --waypoint-timeout 1"))?;
    ensure!(said.code == Some(1), "{said:?}");
    ensure!(
        said.stderr
            .contains("waypoint desk/idle takes no traffic: ")
            && said.stderr.contains("timed out waiting"),
        "{said:?}"
    );
    let applied = operator.json(idle, 0)?;
    let labels = json!({"istio.io/rev": "nobody", "istio.io/waypoint-for": "all"});
    assert_eq!(applied["metadata"]["labels"], labels);
    let status = operator.told("waypoint status idle -n desk --wait=false", 1)?;
    let rows = cells(&status);
    assert_eq!(rows[1][..4], ["idle", "Unknown", "Accepted", "Pending"]);

    rights(&operator)?;

    let refused = operator.refused("waypoint delete idle never -n desk")?;
    ensure!(
        refused.contains("desk/never: there is no such waypoint, and nothing was deleted"),
        "{refused}"
    );
    let refused = operator.refused("waypoint delete door -n desk")?;
    ensure!(refused.contains("no such waypoint"), "{refused}");
    let deleted = operator.json("waypoint delete --all --revision nobody -n desk", 0)?;
    assert_eq!(deleted, json!([{"namespace": "desk", "name": "idle"}]));
    let said = operator.ask("waypoint delete wp -n desk")?;
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (Some(0), "waypoint desk/wp deleted\n")
    );
    ensure!(
        said.stderr
            .contains("namespace desk still names it: kubectl label namespace desk"),
        "{said:?}"
    );
    eventually("with it all goes that was made for it", PATIENCE, || {
        let left = operator.kubectl("get deployments,services,serviceaccounts -n desk -o name")?;
        ensure!(!left.contains("/wp"), "{left}");
        Ok(())
    })?;
    assert_eq!(operator.told("waypoint list -n desk", 0)?, none);
    Ok(())
}

/// Who may not make or delete Gateways hears so from the API server, and nothing comes of it.
fn rights(operator: &Operator<'_>) -> Result<()> {
    let kubeconfig = operator.lab.state().kubernetes().join("istiod.json");
    let other = Operator {
        kubeconfig,
        ambient: operator.ambient.clone(),
        kubectl: operator.kubectl.clone(),
        lab: operator.lab,
    };
    for words in [
        "waypoint delete wp -n desk",
        "waypoint apply --name mine -n desk",
    ] {
        let refused = other.refused(words)?;
        ensure!(
            refused.contains("(Forbidden)")
                && refused.contains("system:serviceaccount:istio-system:istiod"),
            "{words}: {refused}"
        );
    }
    let left = operator.json("waypoint list -n desk", 0)?;
    assert_eq!(left.as_array().map(Vec::len), Some(2));
    Ok(())
}

const NOBODY: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: strict}
spec: {action: DENY, rules: [{to: [{operation: {ports: ["9001"]}}]}]}
"#;

#[test]
fn what_ztunnels_believe_is_listed_checked_and_explained() -> Result<()> {
    let lab = SHARED.lab();
    let operator = Operator::new(lab)?;
    lab.traffic("shop/client", &["get", "web.shop:80", "/"])?;
    let ask = |words: &str| format!("{words} {HERE}");

    let workloads = operator.told(&ask("ps workloads -n shop"), 0)?;
    let rows = cells(&workloads);
    assert_eq!(
        rows[0],
        [
            "NAMESPACE",
            "POD NAME",
            "ADDRESS",
            "NODE",
            "WAYPOINT",
            "PROTOCOL"
        ]
    );
    let address = lab.v4("shop/client", 1)?.ip().to_string();
    ensure!(
        rows.contains(&vec!["shop", "client", &address, "node-a", "None", "HBONE"]),
        "{workloads}"
    );
    ensure!(rows[1..].iter().all(|row| row[0] == "shop"), "{workloads}");
    let services = operator.json(&ask("ps services -n shop"), 0)?;
    let services = services.as_array().context("a list")?;
    ensure!(
        services.iter().any(|one| one["name"] == "web"),
        "{services:?}"
    );
    let certificates = operator.json(&ask("ps certificates"), 0)?;
    let certificates = certificates.as_array().context("a list")?;
    ensure!(
        certificates.iter().any(|one| {
            one["identity"] == "spiffe://cluster.local/ns/shop/sa/client"
                && one["type"] == "Leaf"
                && one["valid"] == true
        }),
        "{certificates:?}"
    );
    lab.apply(NOBODY)?;
    eventually("the policy is known", PATIENCE, || {
        let policies = operator.told(&ask("ps policies"), 0)?;
        let row = ["strict", "nobody", "Deny", "Namespace"];
        ensure!(
            cells(&policies).iter().any(|cells| *cells == row),
            "{policies}"
        );
        Ok(())
    })?;

    let explained = operator.told(&ask("explain shop/client strict/ledger:9000"), 0)?;
    for part in ["source", "shop/client", "strict/ledger", "allowed: "] {
        ensure!(explained.contains(part), "{part}: {explained}");
    }
    let words = "explain shop/client strict/ledger:9001";
    let denied = operator.told(&ask(words), 1)?;
    ensure!(
        denied.contains("NOT ALLOWED: ") && denied.contains("strict/nobody"),
        "{denied}"
    );
    assert_eq!(operator.json(&ask(words), 1)?["allowed"], false);
    lab.delete("authorizationpolicy", "strict/nobody")?;
    eventually("nothing denies any more", PATIENCE, || {
        operator.told(&ask(words), 0).map(drop)
    })?;

    let check = operator.told(&ask("check"), 0)?;
    ensure!(
        check.starts_with("ztunnel 127.0.0.1:15000\n  ok    answers, version ")
            && check.contains("certificates are in their time"),
        "{check}"
    );
    let check = operator.json(&ask("check"), 0)?;
    assert_eq!(check["works"], true);
    // Of two the other one is listed all the same.
    let said = operator.ask(&ask("ps workloads -n shop --ztunnel 127.0.0.1:1"))?;
    ensure!(
        said.code == Some(2)
            && said.stdout == workloads
            && said
                .stderr
                .contains("http://127.0.0.1:1/config_dump: Connection refused"),
        "{said:?}"
    );
    Ok(())
}

#[test]
fn where_no_kubelet_lets_in_every_ztunnel_is_named_with_the_reason() -> Result<()> {
    let lab = SHARED.lab();
    let operator = Operator::new(lab)?;
    let said = operator.ask("ps workloads")?;
    ensure!(said.code == Some(2), "{said:?}");
    for (node, pod) in [("node-a", "ztunnel-a"), ("node-b", "ztunnel-b")] {
        ensure!(
            said.stderr.contains(&format!("pod/{pod} :15000: ")),
            "{node}: {said:?}"
        );
    }
    let words = "explain shop/client web.shop:80";
    ensure!(operator.refused(words)?.contains("port-forward"));
    ensure!(
        operator
            .refused("ps workloads --node node-z")?
            .contains("no ztunnel runs on node node-z")
    );

    let check = operator.json("check", 1)?;
    assert_eq!(check["works"], false);
    let findings = check["findings"].as_array().context("a list")?;
    let says = |category: &str, level: &str, part: &str| {
        findings.iter().any(|one| {
            let said = one["says"].as_str().unwrap_or_default();
            one["category"] == category && one["level"] == level && said.contains(part)
        })
    };
    // The lab runs these itself, and has no Deployment of them.
    for category in ["control plane", "node agents", "ztunnels"] {
        ensure!(says(category, "failure", "is not installed"), "{check}");
    }
    for ztunnel in ["ztunnel node-a (ztunnel-a)", "ztunnel node-b (ztunnel-b)"] {
        ensure!(says(ztunnel, "failure", "can't be asked: "), "{check}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_installation_lacks_is_told_by_its_parts() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (ambient, kubectl) = tokio::task::block_in_place(|| (ambient(), Kubectl.path()));
    let (ambient, kubectl) = (ambient?, kubectl?);
    let kubeconfig = cluster.kubeconfig();
    let ask = |output: &str| -> Result<(Option<i32>, String)> {
        let mut command = Command::new(&ambient);
        command.env_clear().env("HOME", cluster.folder());
        command.arg("check").args(["--output", output]);
        command.arg("--kubectl").arg(&kubectl);
        command.arg("--kubeconfig").arg(&kubeconfig);
        let output = tokio::task::block_in_place(|| command.output())?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    let (code, nothing) = ask("table")?;
    assert_eq!(code, Some(1), "{nothing}");
    for part in [
        "control plane\n  FAIL  is not installed\n",
        "node agents\n  FAIL  is not installed\n",
        "waypoints\n  warn  the cluster has no Gateway API: no waypoint can be asked for\n",
    ] {
        ensure!(nothing.contains(part), "{nothing}");
    }

    let objects = deploy::objects()?;
    cluster.define(Kind::Gateway).await?;
    let workloads = ["Deployment", "DaemonSet"];
    let wanted = |object: &&Value| workloads.iter().any(|kind| object["kind"] == *kind);
    cluster.put(&objects[0]).await?;
    for object in objects.iter().filter(wanted) {
        let mut object = object.clone();
        object["status"] = match object["kind"] == "Deployment" {
            true => json!({"replicas": 2, "readyReplicas": 1}),
            false => json!({
                "desiredNumberScheduled": 3, "currentNumberScheduled": 3, "numberMisscheduled": 0,
                "numberReady": 3, "updatedNumberScheduled": 2,
            }),
        };
        cluster.put(&object).await?;
    }
    let mut shop = gateway("late");
    cluster.put(&super::ground::namespace("shop")).await?;
    shop["status"] = json!({"conditions": [{"type": "Programmed", "status": "False"}]});
    cluster.put(&shop).await?;
    let version = env!("CARGO_PKG_VERSION");
    let (code, installed) = ask("table")?;
    let expected = format!(
        "control plane
  warn  1 of 2 replicas are ready (culvert/istiod-lite:{version})
node agents
  ok    ready on 3 of 3 nodes (culvert/redirect:{version})
  warn  2 of 3 nodes have this version
ztunnels
  ok    ready on 3 of 3 nodes (culvert/ztunnel:{version})
  warn  2 of 3 nodes have this version
waypoints
  warn  shop/late takes no traffic: ambient waypoint status late -n shop
ztunnels
  FAIL  can't be asked: /api/v1/namespaces/istio-system/pods?labelSelector=app%3Dztunnel: no ztunnel runs
"
    );
    assert_eq!((code, installed), (Some(1), expected));
    let (_, said) = ask("json")?;
    let said: Value = serde_json::from_str(&said)?;
    let levels: Vec<&Value> = said["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| &one["level"])
        .collect();
    assert_eq!(
        levels,
        [
            "warning", "ok", "warning", "ok", "warning", "warning", "failure"
        ]
    );
    Ok(())
}
