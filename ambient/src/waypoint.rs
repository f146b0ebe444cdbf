// SPDX-License-Identifier: Apache-2.0
//! Asks for waypoints, and tells what became of them: the commands of `istioctl waypoint`. [`gateway`] is pure.

pub(crate) mod gateway;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::Value;

use self::gateway::{DATAPLANE_MODE, Traffic, USE_WAYPOINT};
use crate::admin::Error;
use crate::kubectl::{self, Cluster};
use crate::{Output, json, table};

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Prints the Gateway that asks for a waypoint, and asks for none
    Generate {
        #[command(flatten)]
        wanted: Wanted,
        #[command(flatten)]
        place: Place,
    },
    /// Asks for a waypoint, or changes the one that is there
    Apply {
        #[command(flatten)]
        wanted: Wanted,
        /// And labels the namespace, so that all of it uses the waypoint
        #[arg(long)]
        enroll_namespace: bool,
        /// Even if the namespace is labelled with another waypoint
        #[arg(long, requires = "enroll_namespace")]
        overwrite: bool,
        #[command(flatten)]
        place: Place,
        /// Until the waypoint takes traffic
        #[arg(short, long, default_value_t = false, num_args = 0..=1, require_equals = true,
            default_missing_value = "true", action = clap::ArgAction::Set)]
        wait: bool,
        #[command(flatten)]
        patience: Patience,
    },
    /// Lists waypoints
    List {
        #[command(flatten)]
        places: Places,
    },
    /// Shows what the control plane says of waypoints; exit status 1 if one takes no traffic
    Status {
        /// These alone
        #[arg(value_parser = kubectl::name)]
        names: Vec<String>,
        #[command(flatten)]
        places: Places,
        /// Until they take traffic
        #[arg(short, long, default_value_t = true, num_args = 0..=1, require_equals = true,
            default_missing_value = "true", action = clap::ArgAction::Set)]
        wait: bool,
        #[command(flatten)]
        patience: Patience,
    },
    /// Deletes waypoints
    Delete {
        #[arg(value_parser = kubectl::name, required_unless_present = "all")]
        names: Vec<String>,
        /// Every one of the namespace
        #[arg(long, conflicts_with = "names")]
        all: bool,
        /// With --all: those of this revision
        #[arg(long, value_parser = kubectl::name, requires = "all")]
        revision: Option<String>,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Wanted {
    #[arg(long, default_value = "waypoint", value_parser = waypoint_name)]
    name: String,
    /// Traffic to what goes through it; services, where nothing is said
    #[arg(long = "for", value_enum, value_name = "TRAFFIC")]
    traffic: Option<Traffic>,
    /// The control plane that is to run it
    #[arg(long, value_parser = kubectl::name)]
    revision: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Place {
    /// kubectl's own, where left out
    #[arg(short, long, value_parser = kubectl::name)]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
    /// table, for people; json, for scripts
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Places {
    /// Of every namespace
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct Patience {
    /// How long --wait waits, in seconds
    #[arg(long, default_value_t = 90, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    waypoint_timeout: u64,
}

fn waypoint_name(text: &str) -> Result<String, String> {
    match text {
        "none" => Err("none means to use no waypoint, so none can be called that".to_owned()),
        text => kubectl::name(text),
    }
}

pub(crate) type Said = Result<(String, ExitCode), Error>;

pub(crate) fn run(action: Action) -> Said {
    match action {
        Action::Generate { wanted, place } => {
            let object = wanted.object(&place.namespace()?);
            // JSON is YAML, which `kubectl apply` takes as well.
            Ok((json(&object), ExitCode::SUCCESS))
        }
        Action::Apply {
            wanted,
            enroll_namespace,
            overwrite,
            place,
            wait,
            patience,
        } => {
            let enrol = enroll_namespace.then_some(overwrite);
            apply(&wanted, enrol, &place, wait.then(|| patience.deadline()))
        }
        Action::List { places } => {
            let found = gateway::waypoints(&places.gateways()?, None);
            let (headings, rows) = (&gateway::LIST, gateway::list_rows);
            Ok((places.show(&found, headings, rows)?, ExitCode::SUCCESS))
        }
        Action::Status {
            names,
            places,
            wait,
            patience,
        } => status(&names, &places, wait.then(|| patience.deadline())),
        Action::Delete {
            names,
            all,
            revision,
            place,
        } => delete(names, all, revision.as_deref(), &place),
    }
}

fn apply(wanted: &Wanted, enrol: Option<bool>, place: &Place, until: Option<Instant>) -> Said {
    let (cluster, namespace, name) = (&place.cluster, place.namespace()?, &wanted.name);
    // Before anything is changed: all that would be refused later.
    if let Some(other) = place.find(&namespace, name)?
        && !gateway::is_waypoint(&other)
    {
        let class = &other["spec"]["gatewayClassName"];
        let cause = format!("there is a Gateway of this name and of class {class}");
        return Err(place.refusal(&namespace, name, cause));
    }
    if let Some(overwrite) = enrol {
        let found = cluster.get(&format!("/api/v1/namespaces/{namespace}"))?;
        let label = |key: &str| found["metadata"]["labels"][key].as_str();
        match label(USE_WAYPOINT) {
            Some(other) if other != name && !overwrite => {
                let cause = format!(
                    "namespace {namespace} uses waypoint {other}; --overwrite has it use this one"
                );
                return Err(place.refusal(&namespace, name, cause));
            }
            _ => {}
        }
        if label(DATAPLANE_MODE) != Some("ambient") {
            eprintln!(
                "ambient: namespace {namespace} is not in the mesh: kubectl label namespace {namespace} {DATAPLANE_MODE}=ambient"
            );
        }
    }
    let mut applied = cluster.apply(&wanted.object(&namespace))?;
    if let Some(overwrite) = enrol {
        cluster.label_namespace(&namespace, &format!("{USE_WAYPOINT}={name}"), overwrite)?;
    }
    let mut code = ExitCode::SUCCESS;
    if let Some(until) = until {
        code = place.wait(&[applied], until);
        applied = cluster.get(&path(&namespace, name))?;
    }
    let text = match (place.output, enrol) {
        (Output::Json, _) => json(&applied),
        (Output::Table, None) => format!("waypoint {namespace}/{name} applied\n"),
        (Output::Table, Some(_)) => {
            format!("waypoint {namespace}/{name} applied\nnamespace {namespace} uses it\n")
        }
    };
    Ok((text, code))
}

fn status(names: &[String], places: &Places, until: Option<Instant>) -> Said {
    let place = &places.place;
    let look = || -> Result<Vec<Value>, Error> {
        let mut found = gateway::waypoints(&places.gateways()?, None);
        if let Some(name) = names
            .iter()
            .find(|name| found.iter().all(|one| gateway::name(one) != **name))
        {
            return Err(place.refusal("", name, "there is no such waypoint".to_owned()));
        }
        found.retain(|one| names.is_empty() || names.contains(&gateway::name(one)));
        Ok(found)
    };
    let mut found = look()?;
    let mut code = ExitCode::SUCCESS;
    if let Some(until) = until
        && !found.iter().all(gateway::is_programmed)
    {
        place.wait(&found, until);
        found = look()?;
    }
    if !found.iter().all(gateway::is_programmed) {
        code = ExitCode::FAILURE;
    }
    let text = places.show(&found, &gateway::STATUS, gateway::status_rows)?;
    Ok((text, code))
}

fn delete(mut names: Vec<String>, all: bool, revision: Option<&str>, place: &Place) -> Said {
    let namespace = place.namespace()?;
    let list = place.cluster.get(&gateways(Some(&namespace)))?;
    let found = gateway::waypoints(&list, revision);
    if all {
        names = found.iter().map(gateway::name).collect();
    }
    for name in &names {
        if found.iter().all(|one| gateway::name(one) != *name) {
            let cause = "there is no such waypoint, and nothing was deleted".to_owned();
            return Err(place.refusal(&namespace, name, cause));
        }
    }
    if !names.is_empty() {
        place.cluster.delete_gateways(&namespace, &names)?;
        let path = format!("/api/v1/namespaces/{namespace}");
        // Whoever may delete Gateways may perhaps not look at the namespace.
        let user = place.cluster.get(&path).unwrap_or_default();
        if let Some(used) = user["metadata"]["labels"][USE_WAYPOINT].as_str()
            && names.iter().any(|name| name == used)
        {
            eprintln!(
                "ambient: namespace {namespace} still names it: kubectl label namespace {namespace} {USE_WAYPOINT}-"
            );
        }
    }
    let text = match place.output {
        Output::Json => {
            let one = |name: &String| serde_json::json!({"namespace": namespace, "name": name});
            json(&names.iter().map(one).collect())
        }
        Output::Table if names.is_empty() => none(Some(&namespace)),
        Output::Table => {
            let line = |name: &String| format!("waypoint {namespace}/{name} deleted\n");
            names.iter().map(line).collect()
        }
    };
    Ok((text, ExitCode::SUCCESS))
}

fn none(namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("no waypoint in namespace {namespace}\n"),
        None => "no waypoint\n".to_owned(),
    }
}

fn gateways(namespace: Option<&str>) -> String {
    let of = namespace.map(|namespace| format!("namespaces/{namespace}/"));
    format!(
        "/apis/gateway.networking.k8s.io/v1/{}gateways",
        of.unwrap_or_default()
    )
}

fn path(namespace: &str, name: &str) -> String {
    format!("{}/{name}", gateways(Some(namespace)))
}

impl Wanted {
    fn object(&self, namespace: &str) -> Value {
        gateway::object(
            namespace,
            &self.name,
            self.traffic,
            self.revision.as_deref(),
        )
    }
}

impl Patience {
    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.waypoint_timeout)
    }
}

impl Place {
    fn namespace(&self) -> Result<String, Error> {
        match &self.namespace {
            Some(namespace) => Ok(namespace.clone()),
            None => self.cluster.namespace(),
        }
    }

    /// A Gateway, if it is there.
    fn find(&self, namespace: &str, name: &str) -> Result<Option<Value>, Error> {
        match self.cluster.get(&path(namespace, name)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.says_not_found(name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Until all of these are programmed, or no longer; whoever is not is said.
    fn wait(&self, waypoints: &[Value], until: Instant) -> ExitCode {
        let mut code = ExitCode::SUCCESS;
        for waypoint in waypoints {
            let (namespace, name) = (gateway::namespace(waypoint), gateway::name(waypoint));
            // What is there already is seen even if no time is left.
            let left = until.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_secs(1));
            if let Err(error) = self.cluster.wait_for_gateway(&namespace, &name, left) {
                eprintln!(
                    "ambient: waypoint {namespace}/{name} takes no traffic: {}",
                    error.cause
                );
                code = ExitCode::FAILURE;
            }
        }
        code
    }

    fn refusal(&self, namespace: &str, name: &str, cause: String) -> Error {
        let slash = if namespace.is_empty() { "" } else { "/" };
        Error {
            asked: format!("waypoint {namespace}{slash}{name}"),
            cause,
        }
    }
}

impl Places {
    fn namespace(&self) -> Result<Option<String>, Error> {
        match self.all_namespaces {
            true => Ok(None),
            false => self.place.namespace().map(Some),
        }
    }

    fn gateways(&self) -> Result<Value, Error> {
        let namespace = self.namespace()?;
        self.place.cluster.get(&gateways(namespace.as_deref()))
    }

    fn show(
        &self,
        found: &[Value],
        headings: &[&str],
        rows: fn(&Value) -> Vec<Vec<String>>,
    ) -> Result<String, Error> {
        if self.place.output == Output::Json {
            return Ok(json(&found.iter().cloned().collect()));
        }
        if found.is_empty() {
            return Ok(none(self.namespace()?.as_deref()));
        }
        if !self.all_namespaces {
            let rows: Vec<_> = found.iter().flat_map(rows).collect();
            return Ok(table::render(headings, &rows));
        }
        let with_namespace = |gateway: &Value| {
            let namespace = gateway::namespace(gateway);
            let first = move |row: Vec<String>| [vec![namespace.clone()], row].concat();
            rows(gateway).into_iter().map(first).collect::<Vec<_>>()
        };
        let rows: Vec<_> = found.iter().flat_map(with_namespace).collect();
        Ok(table::render(&[&["NAMESPACE"], headings].concat(), &rows))
    }
}
