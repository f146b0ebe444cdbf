// SPDX-License-Identifier: Apache-2.0
//! What the agent can be told, by flags or by environment variables; Istio's names where Istio has one.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use capture::contract::{PROBE_SOURCE_V4, PROBE_SOURCE_V6};
use clap::Parser;
use ops::logging::{Format, LogConfig};

use crate::enroll::{Selector, Settings};
use crate::install::{
    self,
    conflist::{self, Place, Wanted},
};
use crate::plan::{Dns, Families, HostOptions};

#[derive(Debug, Parser)]
#[command(
    name = "redirect",
    about = "Brings the traffic of this node's pods to ztunnel",
    after_help = "`redirect preflight` says whether this node can do that, and what to change if not."
)]
struct Arguments {
    /// Where the cluster is described: `kubernetes`, its API server, or `dir:PATH`, a directory of manifests
    #[arg(long, env = "SOURCE", default_value = "kubernetes")]
    source: String,
    /// File that says how to reach the API server; without one, as the pod's own service account
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The node whose pods are ours
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Holds the plugin's socket and the memory of pods
    #[arg(long, env = "CNI_AGENT_RUN_DIR", default_value = "/var/run/istio-cni")]
    run_dir: PathBuf,
    /// ztunnel connects here
    #[arg(
        long,
        env = "ZTUNNEL_UDS_ADDRESS",
        default_value = "/var/run/ztunnel/ztunnel.sock"
    )]
    ztunnel_socket: PathBuf,
    /// /healthz and /readyz
    #[arg(long, env = "HEALTH_ADDRESS", default_value = "0.0.0.0:8000")]
    health: SocketAddr,
    /// /metrics
    #[arg(long, env = "MONITORING_ADDRESS", default_value = "0.0.0.0:15014")]
    monitoring: SocketAddr,
    /// Which pods are in the mesh, as YAML: a list of podSelector and namespaceSelector
    #[arg(long, env = "AMBIENT_ENABLEMENT_SELECTOR", allow_hyphen_values = true)]
    enablement_selector: Option<String>,
    /// Namespaces whose pods are never in the mesh
    #[arg(
        long,
        env = "EXCLUDE_NAMESPACES",
        default_value = "kube-system",
        value_delimiter = ','
    )]
    exclude_namespaces: Vec<String>,
    /// Capture DNS where ztunnel answers it, unless a pod says otherwise
    #[arg(long, env = "AMBIENT_DNS_CAPTURE", default_value_t = true, action = clap::ArgAction::Set)]
    dns_capture: bool,
    /// Program IPv6 as well
    #[arg(long, env = "AMBIENT_IPV6", default_value_t = true, action = clap::ArgAction::Set)]
    ipv6: bool,
    /// The source address that kubelet probes get
    #[arg(long, env = "HOST_PROBE_SNAT_IP", default_value_t = PROBE_SOURCE_V4)]
    host_probe_snat_ip: Ipv4Addr,
    /// The same for IPv6
    #[arg(long, env = "HOST_PROBE_SNAT_IPV6", default_value_t = PROBE_SOURCE_V6)]
    host_probe_snat_ipv6: Ipv6Addr,
    /// The user that the kubelet runs as
    #[arg(long, env = "KUBELET_UID", default_value_t = 0)]
    kubelet_uid: u32,
    /// The node's network namespace, if it is not our own
    #[arg(long, env = "HOST_NETNS")]
    host_netns: Option<PathBuf>,
    /// Put in front of the paths that the container runtime names
    #[arg(long, env = "HOST_ROOT", default_value = "/")]
    host_root: PathBuf,
    /// The node's folder of network configurations; without it no CNI plugin is installed
    #[arg(long, env = "MOUNTED_CNI_NET_DIR")]
    cni_net_dir: Option<PathBuf>,
    /// The node's folder of CNI plugins
    #[arg(long, env = "MOUNTED_CNI_BIN_DIR", default_value = "/host/opt/cni/bin")]
    cni_bin_dir: PathBuf,
    /// The plugin's program, as it came with the agent
    #[arg(long, env = "CNI_PLUGIN", default_value = "/opt/cni/bin/istio-cni")]
    cni_plugin: PathBuf,
    /// Install the plugin in a file of its own, which comes first; otherwise in that of the primary plugin
    #[arg(long, env = "ISTIO_OWNED_CNI_CONFIG", default_value_t = true, action = clap::ArgAction::Set)]
    owned_cni_config: bool,
    /// The name of that file
    #[arg(
        long,
        env = "ISTIO_OWNED_CNI_CONFIG_FILENAME",
        default_value = "02-istio-cni.conflist"
    )]
    owned_cni_config_filename: String,
    /// The namespace of the agent's own pods, which wait for no agent
    #[arg(long, env = "POD_NAMESPACE", default_value = "istio-system")]
    pod_namespace: String,
    /// Seconds between looks at the rules of every pod
    #[arg(long, env = "RULE_CHECK_INTERVAL", default_value_t = 30)]
    rule_check_interval: u64,
    /// Seconds that connections of a pod may go on after it has left the mesh
    #[arg(long, env = "RELEASE_DEADLINE", default_value_t = 300)]
    release_deadline: u64,
    /// Remove the node's rules on exit instead of leaving them to the next agent
    #[arg(long, env = "AMBIENT_DISABLE_SAFE_UPGRADE", default_value_t = false, action = clap::ArgAction::Set)]
    disable_safe_upgrade: bool,
    /// Log filter: level or target=level, separated by commas
    #[arg(long, env = "RUST_LOG", default_value = "", hide_default_value = true)]
    log: String,
    /// json, or plain
    #[arg(long, env = "LOG_FORMAT", default_value = "plain")]
    log_format: String,
}

#[derive(Debug)]
pub struct Config {
    pub source: SourceConfig,
    pub node: String,
    pub run_dir: PathBuf,
    pub ztunnel_socket: PathBuf,
    pub health: SocketAddr,
    pub monitoring: SocketAddr,
    pub enrolment: Settings,
    pub dns: Dns,
    pub host: HostOptions,
    pub host_netns: Option<PathBuf>,
    pub host_root: PathBuf,
    /// How the CNI plugin is installed, if it is.
    pub install: Option<install::Settings>,
    /// The namespace of the agent's own pods.
    pub pod_namespace: String,
    pub rule_check_interval: Duration,
    pub release_deadline: Duration,
    pub on_exit: OnExit,
    pub log: LogConfig,
}

/// Where the cluster's objects come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceConfig {
    /// A directory of manifests.
    Directory(PathBuf),
    /// An API server, reached as this kubeconfig says or as the pod's own service account.
    Kubernetes(Option<PathBuf>),
}

/// What becomes of the node's own rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// The next agent takes them over; pods are never touched.
    Leave,
    CleanUp,
}

/// Everything that is wrong with the configuration, one line each.
#[derive(Debug, thiserror::Error)]
#[error("configuration:\n{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

impl Config {
    /// From the command line; exits with a usage message where that is wrong.
    pub fn from_process() -> Result<Self, ConfigError> {
        Self::build(Arguments::parse())
    }

    fn build(arguments: Arguments) -> Result<Self, ConfigError> {
        let mut wrong = Vec::new();
        let kubeconfig = arguments
            .kubeconfig
            .filter(|path| !path.as_os_str().is_empty());
        let source = match (&*arguments.source, arguments.source.strip_prefix("dir:")) {
            ("kubernetes", _) => SourceConfig::Kubernetes(kubeconfig),
            (_, Some(path)) if !path.is_empty() => SourceConfig::Directory(path.into()),
            (text, _) => {
                wrong.push(format!(
                    "source: {text:?} is neither kubernetes nor of the form dir:PATH"
                ));
                SourceConfig::Kubernetes(None)
            }
        };
        let selectors = match arguments.enablement_selector.as_deref().map(selectors) {
            None => Settings::default().selectors,
            Some(Ok(selectors)) => selectors,
            Some(Err(cause)) => {
                wrong.push(format!("AMBIENT_ENABLEMENT_SELECTOR: {cause}"));
                Vec::new()
            }
        };
        if arguments.node_name.is_empty() {
            wrong.push("node-name: is empty".into());
        }
        if arguments.rule_check_interval == 0 {
            wrong.push("rule-check-interval: 0 seconds is no pause".into());
        }
        let format = match arguments.log_format.as_str() {
            "json" => Format::Json,
            "plain" | "" => Format::Plain,
            other => {
                wrong.push(format!("log-format: {other:?} is neither json nor plain"));
                Format::Plain
            }
        };
        let own = arguments.owned_cni_config_filename;
        if !own.ends_with(".conflist") || own.starts_with('.') || own.contains('/') {
            wrong.push(format!(
                "owned-cni-config-filename: {own:?} is no name of a list, such as 02-istio-cni.conflist"
            ));
        }
        if !wrong.is_empty() {
            return Err(ConfigError(wrong));
        }
        let excluded_namespaces: Vec<String> = arguments
            .exclude_namespaces
            .into_iter()
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        let entry = conflist::entry(
            &arguments.run_dir,
            &excluded_namespaces,
            &arguments.pod_namespace,
        );
        let place = match arguments.owned_cni_config {
            true => Place::Own,
            false => Place::Chained,
        };
        let install = arguments.cni_net_dir.map(|net_dir| install::Settings {
            net_dir,
            bin_dir: arguments.cni_bin_dir,
            plugin: arguments.cni_plugin,
            wanted: Wanted { place, own, entry },
        });
        Ok(Self {
            source,
            node: arguments.node_name,
            run_dir: arguments.run_dir,
            ztunnel_socket: arguments.ztunnel_socket,
            health: arguments.health,
            monitoring: arguments.monitoring,
            enrolment: Settings {
                selectors,
                excluded_namespaces,
            },
            dns: if arguments.dns_capture {
                Dns::Captured
            } else {
                Dns::Untouched
            },
            host: HostOptions {
                families: if arguments.ipv6 {
                    Families::Dual
                } else {
                    Families::V4
                },
                kubelet_uid: arguments.kubelet_uid,
                probe_v4: arguments.host_probe_snat_ip,
                probe_v6: arguments.host_probe_snat_ipv6,
            },
            host_netns: arguments.host_netns,
            host_root: arguments.host_root,
            install,
            pod_namespace: arguments.pod_namespace,
            rule_check_interval: Duration::from_secs(arguments.rule_check_interval),
            release_deadline: Duration::from_secs(arguments.release_deadline),
            on_exit: if arguments.disable_safe_upgrade {
                OnExit::CleanUp
            } else {
                OnExit::Leave
            },
            log: LogConfig {
                format,
                filter: arguments.log,
                always: "",
            },
        })
    }
}

fn selectors(yaml: &str) -> Result<Vec<Selector>, String> {
    let selectors: Vec<Selector> =
        serde_saphyr::from_str(yaml).map_err(|cause| cause.to_string())?;
    for (index, selector) in selectors.iter().enumerate() {
        for requirement in selector
            .pod_selector
            .match_expressions
            .iter()
            .chain(&selector.namespace_selector.match_expressions)
        {
            use crate::enroll::Operator;
            let needs_values = matches!(requirement.operator, Operator::In | Operator::NotIn);
            if needs_values == requirement.values.is_empty() {
                let key = &requirement.key;
                return Err(format!(
                    "entry {}: key {key}: {:?} with {} values",
                    index + 1,
                    requirement.operator,
                    requirement.values.len()
                ));
            }
        }
    }
    Ok(selectors)
}

/// The effective values, to be logged at start.
impl Config {
    pub fn values(&self) -> BTreeMap<&'static str, String> {
        [
            ("source", format!("{:?}", self.source)),
            ("node", self.node.clone()),
            ("run_dir", self.run_dir.display().to_string()),
            ("ztunnel_socket", self.ztunnel_socket.display().to_string()),
            ("health", self.health.to_string()),
            ("monitoring", self.monitoring.to_string()),
            (
                "excluded_namespaces",
                self.enrolment.excluded_namespaces.join(","),
            ),
            ("selectors", self.enrolment.selectors.len().to_string()),
            ("dns", format!("{:?}", self.dns)),
            ("host", format!("{:?}", self.host)),
            ("install", format!("{:?}", self.install)),
            (
                "rule_check_interval",
                format!("{:?}", self.rule_check_interval),
            ),
            ("release_deadline", format!("{:?}", self.release_deadline)),
            ("on_exit", format!("{:?}", self.on_exit)),
        ]
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        let all = ["redirect", "--source", "dir:/manifests", "--node-name", "a"]
            .iter()
            .chain(flags);
        Config::build(Arguments::try_parse_from(all).unwrap())
    }

    #[test]
    fn istios_selector_yaml_is_understood() {
        let yaml = "- podSelector:\n    matchLabels:\n      istio.io/dataplane-mode: ambient\n- podSelector:\n    matchExpressions:\n    - {key: istio.io/dataplane-mode, operator: NotIn, values: [none]}\n  namespaceSelector:\n    matchLabels: {istio.io/dataplane-mode: ambient}\n";
        assert_eq!(
            config(&["--enablement-selector", yaml])
                .unwrap()
                .enrolment
                .selectors
                .len(),
            2
        );
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let error = config(&[
            "--enablement-selector",
            "- podSelector: 7",
            "--log-format",
            "xml",
            "--rule-check-interval",
            "0",
        ])
        .unwrap_err()
        .to_string();
        for part in [
            "AMBIENT_ENABLEMENT_SELECTOR",
            "log-format",
            "rule-check-interval",
        ] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    #[test]
    fn without_a_directory_the_cluster_is_followed() {
        let source = |flags: &[&str]| {
            let all = ["redirect", "--node-name", "a"].iter().chain(flags);
            let config = Config::build(Arguments::try_parse_from(all).unwrap());
            config.map(|config| config.source)
        };
        assert_eq!(source(&[]).unwrap(), SourceConfig::Kubernetes(None));
        let file = SourceConfig::Kubernetes(Some("/k".into()));
        assert_eq!(source(&["--kubeconfig", "/k"]).unwrap(), file);
        let directory = SourceConfig::Directory("/m".into());
        assert_eq!(source(&["--source", "dir:/m"]).unwrap(), directory);
        let error = source(&["--source", "/m"]).unwrap_err().to_string();
        assert!(error.contains("\"/m\" is neither"), "{error}");
    }

    #[test]
    fn dns_is_captured_unless_it_is_switched_off() {
        assert_eq!(config(&[]).unwrap().dns, Dns::Captured);
        let off = config(&["--dns-capture", "false"]).unwrap();
        assert_eq!(off.dns, Dns::Untouched);
    }

    #[test]
    fn an_operator_without_values_is_named() {
        let yaml = "- podSelector:\n    matchExpressions:\n    - {key: mesh, operator: In}\n";
        let error = config(&["--enablement-selector", yaml])
            .unwrap_err()
            .to_string();
        assert!(error.contains("key mesh"), "{error}");
    }
}
