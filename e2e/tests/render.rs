// SPDX-License-Identifier: Apache-2.0
//! What Helm makes of `deploy/chart` and kustomize of `deploy`: the same objects; what a value changes, and that it changes
//! nothing else; and that what can't be meant is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::clients::Client::{Helm, Kubectl};
use e2e::deploy::{self, chart::KEPT};
use serde_json::{Value, json};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart");

/// Objects by what the API server tells them apart by.
type Objects = BTreeMap<String, Value>;

fn by_name(objects: Vec<Value>) -> Result<Objects> {
    let mut found = Objects::new();
    for object in objects {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let name = format!(
            "{} {}/{}",
            text(&object["kind"]),
            text(&metadata["namespace"]),
            text(&metadata["name"])
        );
        ensure!(
            found.insert(name.clone(), object).is_none(),
            "{name} is there twice"
        );
    }
    Ok(found)
}

/// What the chart becomes; each value is written as for `--set`.
fn helm(values: &[&str]) -> Result<Objects> {
    let home = tempfile::tempdir()?;
    let mut arguments = vec!["template", "culvert", CHART, "--namespace", "istio-system"];
    arguments.extend(values.iter().flat_map(|value| ["--set", value]));
    by_name(Helm.objects(home.path(), &arguments)?)
}

fn kustomized(folder: &Path) -> Result<Objects> {
    let home = tempfile::tempdir()?;
    let folder = folder.to_str().context("no text")?;
    by_name(Kubectl.objects(home.path(), &["kustomize", folder])?)
}

/// Every place where two sets of objects differ, as `object /pointer`, and what is there afterwards.
fn changes(before: &Objects, after: &Objects) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let of = |objects: &Objects| objects.get(name).cloned().unwrap_or_default();
        differ(&of(before), &of(after), &format!("{name} "), &mut found);
    }
    found
}

fn differ(before: &Value, after: &Value, at: &str, found: &mut BTreeMap<String, Value>) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                differ(&before[key], &after[key], &format!("{at}/{key}"), found);
            }
        }
        // Of lists of named things the order is nobody's matter.
        (Value::Array(a), Value::Array(b)) if named(a) && named(b) => {
            let of = |list: &[Value]| -> Value {
                let named = list
                    .iter()
                    .map(|one| (one["name"].to_string(), one.clone()));
                let bare = |(name, one): (String, Value)| (name.trim_matches('"').to_owned(), one);
                Value::Object(named.map(bare).collect())
            };
            differ(&of(a), &of(b), at, found);
        }
        (Value::Array(a), Value::Array(b)) => {
            for index in 0..a.len().max(b.len()) {
                let of = |list: &[Value]| list.get(index).cloned().unwrap_or_default();
                differ(&of(a), &of(b), &format!("{at}/{index}"), found);
            }
        }
        (a, b) if a == b => {}
        _ => {
            found.insert(at.to_owned(), after.clone());
        }
    }
}

/// Whether each has a name of its own.
fn named(list: &[Value]) -> bool {
    let names: BTreeSet<_> = list.iter().filter_map(|one| one["name"].as_str()).collect();
    names.len() == list.len()
}

#[test]
fn kustomize_and_helm_make_the_same_objects() -> Result<()> {
    let kustomized = kustomized(Path::new(DEPLOY))?;
    // Which are those that all other tests take from the files themselves.
    let written = by_name(deploy::objects()?)?;
    assert_eq!(changes(&written, &kustomized), BTreeMap::new());
    let mut expected = kustomized;
    // There before Helm, which keeps its records in it.
    expected
        .remove("Namespace /istio-system")
        .context("no Namespace")?;
    let mut definitions = 0;
    for object in expected.values_mut() {
        if object["kind"] == "CustomResourceDefinition" {
            let (key, value) = KEPT;
            object["metadata"]["annotations"] = json!({key: value});
            definitions += 1;
        }
    }
    assert_eq!(definitions, 9, "each once");
    let made = helm(&[])?;
    assert_eq!(changes(&expected, &made), BTreeMap::new());
    assert_eq!(made.len(), expected.len());
    Ok(())
}

/// What these values change, all of it.
fn check(values: &[&str], expected: &[(&str, Value)]) -> Result<()> {
    let changed = changes(&helm(&[])?, &helm(values)?);
    let expected = expected.iter().cloned();
    let expected: BTreeMap<String, Value> = expected.map(|(at, to)| (at.to_owned(), to)).collect();
    assert_eq!(changed, expected, "{values:?}");
    Ok(())
}

const ISTIOD: &str = "Deployment istio-system/istiod /spec/template/spec/containers/discovery";
const AGENT: &str = "DaemonSet istio-system/istio-cni-node /spec/template/spec";
const AGENT_CONTAINER: &str =
    "DaemonSet istio-system/istio-cni-node /spec/template/spec/containers/install-cni";
const ZTUNNEL: &str = "DaemonSet istio-system/ztunnel /spec/template/spec";
const PROXY: &str = "DaemonSet istio-system/ztunnel /spec/template/spec/containers/istio-proxy";

#[test]
fn every_value_changes_what_it_names_and_nothing_else() -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let image = |at: &str| format!("{at}/image");
    let (agent, ztunnel, istiod) = (image(AGENT_CONTAINER), image(PROXY), image(ISTIOD));
    let waypoint = format!("{ISTIOD}/env/WAYPOINT_IMAGE/value");
    let images = |of: &dyn Fn(&str) -> String| {
        vec![
            (istiod.as_str(), json!(of("istiod-lite"))),
            (waypoint.as_str(), json!(of("waypoint"))),
            (agent.as_str(), json!(of("redirect"))),
            (ztunnel.as_str(), json!(of("ztunnel"))),
        ]
    };
    let moved = images(&|name| format!("r.example:5000/mesh/culvert/{name}:{version}"));
    check(&["image.registry=r.example:5000/mesh"], &moved)?;
    check(
        &["image.tag=edge"],
        &images(&|name| format!("culvert/{name}:edge")),
    )?;

    check(
        &["istiod.replicas=1"],
        &[
            ("Deployment istio-system/istiod /spec/replicas", json!(1)),
            (
                "PodDisruptionBudget istio-system/istiod /spec/minAvailable",
                json!(0),
            ),
        ],
    )?;
    check(
        &["istiod.replicas=3"],
        &[("Deployment istio-system/istiod /spec/replicas", json!(3))],
    )?;
    let argument = format!("{ISTIOD}/args/5");
    check(
        &["revision=next\\,canary"],
        &[(&argument, json!("--revision=next,canary"))],
    )?;
    check(
        &["trustDomain=corp.example"],
        &[(&argument, json!("--trust-domain=corp.example"))],
    )?;
    let of_ztunnel = format!("{PROXY}/env/ISTIO_META_CLUSTER_ID/value");
    check(
        &["clusterId=east"],
        &[
            (&argument, json!("--cluster-id=east")),
            (&of_ztunnel, json!("east")),
        ],
    )?;
    let (nets, bins) = (
        format!("{AGENT}/volumes/cni-net/hostPath/path"),
        format!("{AGENT}/volumes/cni-bin/hostPath/path"),
    );
    check(
        &[
            "cni.netDir=/var/lib/rancher/k3s/agent/etc/cni/net.d",
            "cni.binDir=/bin",
        ],
        &[
            (&nets, json!("/var/lib/rancher/k3s/agent/etc/cni/net.d")),
            (&bins, json!("/bin")),
        ],
    )?;
    let (grace, told) = (
        format!("{ZTUNNEL}/terminationGracePeriodSeconds"),
        format!("{PROXY}/env/TERMINATION_GRACE_PERIOD_SECONDS/value"),
    );
    check(
        &["ztunnel.gracePeriodSeconds=300"],
        &[(&grace, json!(300)), (&told, json!("300"))],
    )?;
    let logs = [ISTIOD, AGENT_CONTAINER, PROXY].map(|at| format!("{at}/env/RUST_LOG/value"));
    let logs = logs.each_ref().map(|at| (at.as_str(), json!("debug")));
    check(&["logLevel=debug"], &logs)?;
    for (value, at) in [
        ("istiod", ISTIOD),
        ("cni", AGENT_CONTAINER),
        ("ztunnel", PROXY),
    ] {
        let at = format!("{at}/resources/requests/memory");
        let value = format!("{value}.requests.memory=7Gi");
        check(&[&value], &[(&at, json!("7Gi"))])?;
    }
    Ok(())
}

#[test]
fn definitions_may_be_left_out_and_mesh_settings_put_in() -> Result<()> {
    let (all, without) = (helm(&[])?, helm(&["crds=false"])?);
    let is_definition = |name: &&String| name.starts_with("CustomResourceDefinition ");
    let expected: Vec<&String> = all.keys().filter(|name| !is_definition(name)).collect();
    assert_eq!(without.keys().collect::<Vec<_>>(), expected);
    assert_eq!(all.len() - without.len(), 9);

    let with = helm(&[
        "meshConfig.trustDomainAliases[0]=old.example",
        "meshConfig.extensionProviders[0].name=audit",
        "meshConfig.extensionProviders[0].opentelemetry.port=4317",
    ])?;
    let changed = changes(&all, &with);
    assert_eq!(
        changed.keys().collect::<Vec<_>>(),
        ["ConfigMap istio-system/istio "]
    );
    let mesh = with["ConfigMap istio-system/istio"]["data"]["mesh"].as_str();
    let mesh = e2e::manifests::documents(mesh.context("no mesh")?)?;
    assert_eq!(
        mesh,
        [json!({
            "trustDomainAliases": ["old.example"],
            "extensionProviders": [{"name": "audit", "opentelemetry": {"port": 4317}}],
        })]
    );
    Ok(())
}

#[test]
fn what_cannot_be_meant_is_refused_with_the_value_that_says_it() -> Result<()> {
    for (value, named) in [
        ("istoid.replicas=3", "istoid"),
        ("istiod.replica=3", "replica"),
        ("istiod.replicas=0", "/istiod/replicas"),
        ("istiod.replicas=two", "/istiod/replicas"),
        ("istiod.requests.gpu=1", "gpu"),
        ("image.registry=https://r.example", "/image/registry"),
        ("image.tag=a b", "/image/tag"),
        ("trustDomain=a\"b", "/trustDomain"),
        ("revision=Next", "/revision"),
        ("cni.binDir=opt/cni/bin", "/cni/binDir"),
        (
            "ztunnel.gracePeriodSeconds=0",
            "/ztunnel/gracePeriodSeconds",
        ),
        ("crds=no way", "/crds"),
    ] {
        let refused = helm(&[value]).err().context(value)?.to_string();
        ensure!(refused.contains(named), "{value}: {refused}");
    }
    let home = tempfile::tempdir()?;
    let elsewhere = ["template", "culvert", CHART, "--namespace", "mesh"];
    let refused = Helm.run(home.path(), &elsewhere).err().context("mesh")?;
    let refused = refused.to_string();
    ensure!(
        refused.contains("--namespace mesh: ") && refused.contains("istio-system"),
        "{refused}"
    );
    Ok(())
}

#[test]
fn helm_finds_nothing_to_complain_of() -> Result<()> {
    let home = tempfile::tempdir()?;
    let said = Helm.run(
        home.path(),
        &["lint", "--strict", "--namespace", "istio-system", CHART],
    )?;
    ensure!(said.contains("0 chart(s) failed"), "{said}");
    ensure!(!said.contains("[WARNING]"), "{said}");
    Ok(())
}

/// The first block of the README that begins with this line.
fn block(first: &str) -> Result<String> {
    let text = std::fs::read_to_string(format!("{DEPLOY}/README.md"))?;
    let begun = text.split_once(&format!("```yaml\n{first}\n"));
    let (_, rest) = begun.with_context(|| format!("README.md: no block `{first}`"))?;
    Ok(rest.split("```").next().unwrap_or_default().to_owned())
}

#[test]
fn the_overlay_of_the_readme_does_what_it_says() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // Kustomize takes relative paths alone.
    let deploy = std::fs::canonicalize(DEPLOY)?;
    let here = std::fs::canonicalize(folder.path())?;
    let mut relative: PathBuf = here.components().skip(1).map(|_| "..").collect();
    relative.extend(deploy.components().skip(1));
    let overlay = block("# mesh/kustomization.yaml")?;
    ensure!(overlay.contains("../culvert/deploy"), "{overlay}");
    let overlay = overlay.replace("../culvert/deploy", &relative.display().to_string());
    std::fs::write(folder.path().join("kustomization.yaml"), &overlay)?;
    let after = kustomized(folder.path())?;
    let changed = changes(&kustomized(Path::new(DEPLOY))?, &after);
    let mut definitions = 0;
    for (at, to) in &changed {
        if at.starts_with("CustomResourceDefinition ") {
            definitions += 1;
            assert_eq!(*to, Value::Null, "{at}");
        } else {
            let to = to.as_str().context("an image")?;
            ensure!(to.starts_with("REGISTRY/culvert/"), "{at}: {to}");
        }
    }
    assert_eq!(definitions, 9);
    assert_eq!(changed.len(), 9 + 4, "{changed:?}");
    Ok(())
}
