// SPDX-License-Identifier: Apache-2.0
//! `ambient`: what an operator asks a mesh.
//!
//! [`kubectl`] is the way into a cluster, [`ztunnels`] finds who is to be asked there, [`admin`] fetches what a ztunnel
//! believes, and asks proxies what would become of a connection ([`explain`]) and of traffic under a policy ([`trial`]);
//! [`ps`] turns what is believed into rows and [`check`] into findings, both pure; [`table`] lays them out. [`waypoint`] asks
//! for waypoints. Commands and columns are those of `istioctl ztunnel-config` and `istioctl waypoint`. Exit status: 0, 1
//! where a check fails, 2 where the question was not understood or could not be asked.

mod admin;
mod check;
mod explain;
mod kubectl;
mod ps;
mod table;
mod trial;
mod waypoint;
mod ztunnels;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::Value;
use time::OffsetDateTime;

use self::admin::{Error, Question};
use self::check::Finding;
use self::ztunnels::Ztunnels;

#[derive(Debug, Parser)]
#[command(
    name = "ambient",
    version,
    about = "Asks an ambient mesh what it believes",
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists what ztunnels believe
    #[command(
        after_help = "Examples:\n  ambient ps workloads --namespace shop\n  ambient ps connections --node node-a --output json\n  ambient ps certificates --ztunnel 10.0.0.1:15000 --ztunnel 10.0.0.2:15000\n\nThe exit status is 2 if a ztunnel could not be asked."
    )]
    Ps {
        what: What,
        /// Of this namespace alone
        #[arg(short, long)]
        namespace: Option<String>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Says what would become of a connection, or of the last minutes' traffic under a policy
    #[command(
        after_help = "Examples:\n  ambient explain shop/web-7c5 cart.shop:80\n  ambient explain 10.0.0.7 10.96.0.2:80 --ztunnel 10.0.0.1:15000 --output json\n  ambient explain shop/web-7c5 cart.shop:80 --waypoint 127.0.0.1:15000 --method POST --path /items --header 'x-user: a'\n  ambient explain --policy deny.yaml\n\nThe client's own node answers best. The exit status is 1 if the connection would not be allowed."
    )]
    Explain {
        /// NAMESPACE/POD, or an address
        #[arg(required_unless_present = "policy")]
        source: Option<String>,
        /// A service by any of its names, an address, or NAMESPACE/POD; :PORT where there are several
        #[arg(required_unless_present = "policy")]
        destination: Option<String>,
        #[command(flatten)]
        tried: trial::Tried,
        #[command(flatten)]
        request: explain::Request,
        #[command(flatten)]
        asked: Asked,
    },
    /// Says whether the mesh is there and can do its work, and what stands in the way
    #[command(
        after_help = "Examples:\n  ambient check\n  ambient check --context staging --output json\n  ambient check --ztunnel 10.0.0.1:15000\n\nThe exit status is 1 if something fails."
    )]
    Check {
        #[command(flatten)]
        asked: Asked,
    },
    /// Asks for waypoints, the L7 proxies of a namespace, and says what became of them
    #[command(
        subcommand,
        after_help = "Examples:\n  ambient waypoint apply --namespace shop --enroll-namespace --wait\n  ambient waypoint status --all-namespaces\n  ambient waypoint delete waypoint --namespace shop"
    )]
    Waypoint(waypoint::Action),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    #[value(alias = "workload", alias = "w")]
    Workloads,
    #[value(alias = "service", alias = "svc", alias = "s")]
    Services,
    #[value(alias = "policy", alias = "pol", alias = "p")]
    Policies,
    #[value(alias = "certificate", alias = "certs", alias = "cert")]
    Certificates,
    #[value(alias = "connection", alias = "cons")]
    Connections,
}

#[derive(Debug, Args)]
struct Asked {
    #[command(flatten)]
    ztunnels: Ztunnels,
    /// table, for people; json, for scripts
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    let said = match Arguments::parse().command {
        Command::Ps {
            what,
            namespace,
            asked,
        } => list(what, namespace.as_deref(), &asked),
        Command::Explain {
            source,
            destination,
            tried,
            request,
            asked,
        } => match &tried.policy {
            Some(policy) => trial::run(policy, &tried, &asked.ztunnels).map(|told| {
                let text = match asked.output {
                    Output::Table => trial::table(&told),
                    Output::Json => json(&told),
                };
                (text, ExitCode::SUCCESS)
            }),
            None => {
                let ends = (source.as_deref(), destination.as_deref());
                explained(
                    (ends.0.unwrap_or_default(), ends.1.unwrap_or_default()),
                    (&request, &tried.waypoint),
                    &asked,
                )
            }
        },
        Command::Check { asked } => Ok(checked(&asked)),
        Command::Waypoint(action) => waypoint::run(action),
    };
    match said {
        Ok((text, code)) => {
            print!("{text}");
            code
        }
        Err(error) => unasked(&error),
    }
}

fn unasked(error: &Error) -> ExitCode {
    eprintln!("ambient: {error}");
    ExitCode::from(2)
}

/// All that a ztunnel believes.
const DUMP: Question<'_> = Question::Get("/config_dump");

fn list(what: What, namespace: Option<&str>, asked: &Asked) -> waypoint::Said {
    let mut code = ExitCode::SUCCESS;
    let mut dumps: Vec<Value> = Vec::new();
    for answer in asked.ztunnels.ask(DUMP)? {
        match answer.said {
            Ok(dump) => dumps.push(dump),
            // Others know as much of the mesh.
            Err(error) => code = unasked(&error),
        }
    }
    let mut listing = ps::list(what, &dumps, OffsetDateTime::now_utc());
    listing.retain(namespace);
    let text = match asked.output {
        Output::Table => listing.table(),
        Output::Json => json(&listing.json()),
    };
    Ok((text, code))
}

fn explained(
    (source, destination): (&str, &str),
    (request, waypoints): (&explain::Request, &[String]),
    asked: &Asked,
) -> waypoint::Said {
    let path = explain::path(source, destination);
    let answers = asked.ztunnels.ask(Question::Get(&path))?;
    let mut answer = explain::best(answers.into_iter().map(|one| one.said))?;
    let mut text = explain::table(&answer);
    let mut is_allowed = explain::allowed(&answer);
    let question = request.question(&answer, destination);
    let mut requests = Vec::new();
    for waypoint in waypoints {
        let Some(question) = &question else {
            text += &format!("note         no waypoint is on the way: {waypoint} was not asked\n");
            continue;
        };
        let told = admin::ask(waypoint, Question::Get(question))?;
        text += &request.table(waypoint, &told);
        is_allowed &= explain::allowed(&told);
        requests.push(told);
    }
    if !requests.is_empty() {
        answer["requests"] = requests.into();
    } else if question.is_some() && waypoints.is_empty() {
        text += "note         --waypoint HOST:PORT asks the waypoint about a request\n";
    }
    let text = match asked.output {
        Output::Table => text,
        Output::Json => json(&answer),
    };
    Ok(match is_allowed {
        true => (text, ExitCode::SUCCESS),
        false => (text, ExitCode::FAILURE),
    })
}

fn checked(asked: &Asked) -> (String, ExitCode) {
    let ztunnels = &asked.ztunnels;
    let mut findings = Vec::new();
    if ztunnels.of_cluster() {
        let namespace = &ztunnels.system_namespace;
        for part in check::install::parts(namespace) {
            findings.extend(part.judge(ztunnels.cluster.get(&part.path)));
        }
    }
    let now = OffsetDateTime::now_utc();
    match ztunnels.ask(DUMP) {
        Ok(answers) => {
            let judged = |one: ztunnels::Answer| check::judge(&one.ztunnel, one.said, now);
            findings.extend(answers.into_iter().flat_map(judged));
        }
        Err(error) => findings.push(Finding {
            category: "ztunnels".to_owned(),
            level: check::Level::Failure,
            says: format!("can't be asked: {error}"),
        }),
    }
    let text = match asked.output {
        Output::Table => check::table(&findings),
        Output::Json => json(&check::json(&findings)),
    };
    match check::works(&findings) {
        true => (text, ExitCode::SUCCESS),
        false => (text, ExitCode::FAILURE),
    }
}

fn json(value: &Value) -> String {
    format!("{value:#}\n")
}
