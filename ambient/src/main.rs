// SPDX-License-Identifier: Apache-2.0
//! `ambient`: what an operator asks a mesh.
//!
//! [`admin`] fetches what a ztunnel believes; [`ps`] turns that into rows and [`check`] into findings, both pure; [`table`]
//! lays them out. The columns are those of `istioctl ztunnel-config`. Exit status: 0, 1 where a check fails, 2 where the
//! question was not understood or could not be asked.

mod admin;
mod check;
mod ps;
mod table;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::Value;
use time::OffsetDateTime;

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
        after_help = "Examples:\n  kubectl -n istio-system port-forward pod/ztunnel-xyz 15000 &\n  ambient ps workloads --namespace shop\n  ambient ps certificates --ztunnel 10.0.0.1:15000 --ztunnel 10.0.0.2:15000\n  ambient ps connections --output json"
    )]
    Ps {
        what: What,
        /// Of this namespace alone
        #[arg(short, long)]
        namespace: Option<String>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Says whether ztunnels can do their work, and what stands in the way
    #[command(
        after_help = "Examples:\n  ambient check\n  ambient check --ztunnel 10.0.0.1:15000 --ztunnel 10.0.0.2:15000 --output json\n\nThe exit status is 1 if something fails."
    )]
    Check {
        #[command(flatten)]
        asked: Asked,
    },
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
    /// Admin address of a ztunnel, HOST:PORT; may be given again
    #[arg(long, default_value = "127.0.0.1:15000")]
    ztunnel: Vec<String>,
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
    let (text, code) = match Arguments::parse().command {
        Command::Ps {
            what,
            namespace,
            asked,
        } => match list(what, namespace.as_deref(), &asked) {
            Ok(text) => (text, ExitCode::SUCCESS),
            Err(error) => {
                eprintln!("ambient: {error}");
                return ExitCode::from(2);
            }
        },
        Command::Check { asked } => checked(&asked),
    };
    print!("{text}");
    code
}

fn list(what: What, namespace: Option<&str>, asked: &Asked) -> Result<String, admin::Error> {
    let dumps: Result<Vec<Value>, _> = asked.ztunnel.iter().map(|it| dump_of(it)).collect();
    let mut listing = ps::list(what, &dumps?, OffsetDateTime::now_utc());
    listing.retain(namespace);
    Ok(match asked.output {
        Output::Table => listing.table(),
        Output::Json => json(&listing.json()),
    })
}

fn checked(asked: &Asked) -> (String, ExitCode) {
    let now = OffsetDateTime::now_utc();
    let findings: Vec<check::Finding> = asked
        .ztunnel
        .iter()
        .flat_map(|ztunnel| check::judge(ztunnel, dump_of(ztunnel), now))
        .collect();
    let text = match asked.output {
        Output::Table => check::table(&findings),
        Output::Json => json(&check::json(&findings)),
    };
    match check::works(&findings) {
        true => (text, ExitCode::SUCCESS),
        false => (text, ExitCode::FAILURE),
    }
}

fn dump_of(ztunnel: &str) -> Result<Value, admin::Error> {
    admin::get(ztunnel, "/config_dump")
}

fn json(value: &Value) -> String {
    format!("{value:#}\n")
}
