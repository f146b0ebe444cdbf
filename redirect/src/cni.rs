// SPDX-License-Identifier: Apache-2.0
//! The CNI plugin: asks the node's agent about a new pod and lets it start only once the agent is content.
//!
//! In: the environment and the bytes of stdin, as a container runtime hands them over. Out: the bytes for stdout and
//! whether it went well. The plugin itself decides nothing about enrolment: it passes what no mesh could want (not
//! Kubernetes, excluded namespaces, the agent's own pod), and asks the agent about everything else. No answer means no
//! pod: a pod that may belong to the mesh never starts outside of it.

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::agent_client::{AgentError, ask};
use crate::plugin_api::{self, AddReply, AddRequest, DelRequest, GcRequest, PodAddress, PodIp};

/// The versions of the CNI specification that the plugin speaks, oldest first.
pub const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The agent's own pods, which must start while no agent runs.
const AGENT_POD_PREFIX: &str = "istio-cni-node-";

const ADD_TIMEOUT: Duration = Duration::from_secs(5);
/// Removal waits for nobody for long.
const DEL_TIMEOUT: Duration = Duration::from_millis(500);
const DEFAULT_RUN_DIR: &str = "/var/run/istio-cni";
const DEFAULT_EXCLUDED: &str = "kube-system";

/// An error as the CNI specification wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniError {
    pub code: u32,
    pub message: String,
    pub details: String,
}

const INCOMPATIBLE_VERSION: u32 = 1;
const BAD_ENVIRONMENT: u32 = 4;
const UNDECODABLE: u32 = 6;
const BAD_CONFIGURATION: u32 = 7;
const TRY_AGAIN: u32 = 11;
const NOT_AVAILABLE: u32 = 50;
/// CHECK found a pod that is not as it should be.
const NOT_CAPTURED: u32 = 100;

/// What the runtime gets to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub stdout: String,
    pub success: bool,
}

/// One call of the plugin.
pub fn run(environment: &BTreeMap<String, String>, stdin: &[u8]) -> Outcome {
    match answer(environment, stdin) {
        Ok(stdout) => Outcome {
            stdout,
            success: true,
        },
        Err(error) => {
            let version =
                asked_version(stdin).filter(|version| VERSIONS.contains(&version.as_str()));
            let stdout = json!({
                "cniVersion": version.as_deref().unwrap_or(VERSIONS[VERSIONS.len() - 1]),
                "code": error.code,
                "msg": error.message,
                "details": error.details,
            });
            Outcome {
                stdout: stdout.to_string(),
                success: false,
            }
        }
    }
}

fn answer(environment: &BTreeMap<String, String>, stdin: &[u8]) -> Result<String, CniError> {
    match variable(environment, "CNI_COMMAND")? {
        "ADD" => add(environment, stdin),
        "DEL" => {
            del(environment, stdin);
            Ok(String::new())
        }
        "CHECK" => check(environment, stdin),
        "GC" => gc(stdin),
        "STATUS" => status(stdin),
        "VERSION" => Ok(json!({
            "cniVersion": asked_version(stdin).as_deref().unwrap_or(VERSIONS[VERSIONS.len() - 1]),
            "supportedVersions": VERSIONS,
        })
        .to_string()),
        other => Err(error(
            BAD_ENVIRONMENT,
            format!("CNI_COMMAND: unknown command {other:?}"),
        )),
    }
}

/// The plugin's part of the network configuration.
#[derive(Debug, Deserialize)]
struct Config {
    #[serde(rename = "cniVersion", default)]
    version: String,
    #[serde(default)]
    cni_agent_run_dir: Option<PathBuf>,
    #[serde(default)]
    ambient_enabled: Option<bool>,
    /// Absent is the default, null is none.
    #[serde(default = "default_excluded")]
    exclude_namespaces: Option<Vec<String>>,
    #[serde(default)]
    pod_namespace: Option<String>,
    #[serde(rename = "prevResult", default)]
    previous: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments", default)]
    valid_attachments: Vec<Attachment>,
}

#[derive(Debug, Deserialize)]
struct Attachment {
    #[serde(rename = "containerID")]
    container_id: String,
}

fn default_excluded() -> Option<Vec<String>> {
    Some(vec![DEFAULT_EXCLUDED.to_owned()])
}

impl Config {
    /// `since`: the first version that knows the command.
    fn parse(stdin: &[u8], since: &str) -> Result<Self, CniError> {
        let value: Value = serde_json::from_slice(stdin)
            .map_err(|cause| error(UNDECODABLE, format!("network configuration: {cause}")))?;
        if !value.is_object() {
            return Err(error(
                BAD_CONFIGURATION,
                "network configuration: not an object".to_owned(),
            ));
        }
        let config: Self = serde_json::from_value(value)
            .map_err(|cause| error(BAD_CONFIGURATION, format!("network configuration: {cause}")))?;
        let position = |version: &str| VERSIONS.iter().position(|known| *known == version);
        match position(&config.version) {
            Some(found) if Some(found) >= position(since) => Ok(config),
            _ => Err(error(
                INCOMPATIBLE_VERSION,
                format!(
                    "network configuration: cniVersion {:?}: need one of {VERSIONS:?}, from {since}",
                    config.version
                ),
            )),
        }
    }

    fn socket(&self) -> PathBuf {
        self.cni_agent_run_dir
            .clone()
            .unwrap_or_else(|| DEFAULT_RUN_DIR.into())
            .join(plugin_api::SOCKET)
    }

    /// Pods that no agent need be asked about.
    fn passes(&self, pod: &Pod<'_>) -> bool {
        let own = self.pod_namespace.as_deref() == Some(pod.namespace)
            && pod.name.starts_with(AGENT_POD_PREFIX);
        let excluded = self
            .exclude_namespaces
            .iter()
            .flatten()
            .any(|namespace| namespace == pod.namespace);
        own || excluded || self.ambient_enabled == Some(false)
    }

    /// The result of the plugin before us, in the asked version.
    fn result(self) -> String {
        let mut result = self.previous.unwrap_or_else(|| json!({"dns": {}}));
        if let Some(result) = result.as_object_mut() {
            result.insert("cniVersion".into(), self.version.clone().into());
            let tells_family = self.version.starts_with("0.");
            for ip in result
                .get_mut("ips")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                let Some(ip) = ip.as_object_mut() else {
                    continue;
                };
                if tells_family && !ip.contains_key("version") {
                    let v6 = ip
                        .get("address")
                        .and_then(Value::as_str)
                        .is_some_and(|address| address.contains(':'));
                    ip.insert("version".into(), if v6 { "6" } else { "4" }.into());
                } else if !tells_family {
                    ip.remove("version");
                }
            }
        }
        result.to_string()
    }
}

/// The pod as the runtime names it.
struct Pod<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: Option<&'a str>,
}

fn pod(environment: &BTreeMap<String, String>) -> Result<Option<Pod<'_>>, CniError> {
    let arguments = environment
        .get("CNI_ARGS")
        .map(String::as_str)
        .unwrap_or_default();
    let mut pairs = BTreeMap::new();
    for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            error(
                BAD_ENVIRONMENT,
                format!("CNI_ARGS: {pair:?} is not KEY=VALUE"),
            )
        })?;
        pairs.insert(key, value);
    }
    let named = |key: &str| pairs.get(key).copied().filter(|value| !value.is_empty());
    Ok(match (named("K8S_POD_NAMESPACE"), named("K8S_POD_NAME")) {
        (Some(namespace), Some(name)) => Some(Pod {
            namespace,
            name,
            uid: named("K8S_POD_UID"),
        }),
        _ => None,
    })
}

fn add(environment: &BTreeMap<String, String>, stdin: &[u8]) -> Result<String, CniError> {
    let config = Config::parse(stdin, VERSIONS[0])?;
    let request = request(environment, &config)?;
    if let Some(request) = request {
        let body = serde_json::to_vec(&request)
            .expect("broken invariant: a request of strings is valid JSON");
        let refused = |cause: String| CniError {
            code: TRY_AGAIN,
            message: format!(
                "pod {}/{}: not ready for the mesh",
                request.pod_namespace, request.pod_name
            ),
            details: cause,
        };
        let reply = ask(
            &config.socket(),
            "POST",
            plugin_api::ADD,
            &body,
            ADD_TIMEOUT,
        )
        .map_err(|cause| refused(cause.to_string()))?;
        // Istio's agent answers with an empty body.
        if !reply.is_empty() {
            serde_json::from_slice::<AddReply>(&reply)
                .map_err(|cause| refused(format!("the agent's answer: {cause}")))?;
        }
    }
    Ok(config.result())
}

fn check(environment: &BTreeMap<String, String>, stdin: &[u8]) -> Result<String, CniError> {
    let config = Config::parse(stdin, "0.4.0")?;
    if let Some(request) = request(environment, &config)? {
        let body = serde_json::to_vec(&request)
            .expect("broken invariant: a request of strings is valid JSON");
        ask(
            &config.socket(),
            "POST",
            plugin_api::CHECK,
            &body,
            ADD_TIMEOUT,
        )
        .map_err(|cause| CniError {
            code: match cause {
                AgentError::Refused { .. } => NOT_CAPTURED,
                _ => TRY_AGAIN,
            },
            message: format!(
                "pod {}/{}: not as the mesh wants it",
                request.pod_namespace, request.pod_name
            ),
            details: cause.to_string(),
        })?;
    }
    Ok(String::new())
}

/// A pod must always be able to go, so nothing here is an error; the agent learns of it from the cluster as well.
fn del(environment: &BTreeMap<String, String>, stdin: &[u8]) {
    let (Ok(config), Some(container_id)) = (
        Config::parse(stdin, VERSIONS[0]),
        environment.get("CNI_CONTAINERID"),
    ) else {
        return;
    };
    let request = DelRequest {
        container_id: container_id.clone(),
        netns: environment.get("CNI_NETNS").cloned(),
    };
    if let Ok(body) = serde_json::to_vec(&request) {
        _ = ask(
            &config.socket(),
            "POST",
            plugin_api::DEL,
            &body,
            DEL_TIMEOUT,
        );
    }
}

fn gc(stdin: &[u8]) -> Result<String, CniError> {
    let config = Config::parse(stdin, "1.1.0")?;
    let container_ids = config
        .valid_attachments
        .iter()
        .map(|attachment| attachment.container_id.clone())
        .collect();
    if let Ok(body) = serde_json::to_vec(&GcRequest { container_ids }) {
        _ = ask(&config.socket(), "POST", plugin_api::GC, &body, DEL_TIMEOUT);
    }
    Ok(String::new())
}

fn status(stdin: &[u8]) -> Result<String, CniError> {
    let config = Config::parse(stdin, "1.1.0")?;
    ask(
        &config.socket(),
        "GET",
        plugin_api::STATUS,
        &[],
        ADD_TIMEOUT,
    )
    .map_err(|cause| CniError {
        code: NOT_AVAILABLE,
        message: "the node's mesh agent can't take pods".to_owned(),
        details: cause.to_string(),
    })?;
    Ok(String::new())
}

/// What to ask the agent; None for pods that pass unasked.
fn request(
    environment: &BTreeMap<String, String>,
    config: &Config,
) -> Result<Option<AddRequest>, CniError> {
    let container_id = variable(environment, "CNI_CONTAINERID")?;
    let netns = variable(environment, "CNI_NETNS")?;
    variable(environment, "CNI_IFNAME")?;
    let Some(pod) = pod(environment)?.filter(|pod| !config.passes(pod)) else {
        return Ok(None);
    };
    Ok(Some(AddRequest {
        netns: netns.to_owned(),
        pod_name: pod.name.to_owned(),
        pod_namespace: pod.namespace.to_owned(),
        ips: config.previous.as_ref().map(addresses).transpose()?,
        container_id: Some(container_id.to_owned()),
        pod_uid: pod.uid.map(str::to_owned),
    }))
}

fn variable<'a>(
    environment: &'a BTreeMap<String, String>,
    name: &str,
) -> Result<&'a str, CniError> {
    match environment.get(name) {
        Some(value) if !value.is_empty() => Ok(value),
        _ => Err(error(BAD_ENVIRONMENT, format!("{name} is not set"))),
    }
}

/// The addresses in the result of the plugin before us.
fn addresses(result: &Value) -> Result<Vec<PodIp>, CniError> {
    let bad = |index: usize, what: String| {
        error(
            BAD_CONFIGURATION,
            format!("prevResult.ips[{index}]: {what}"),
        )
    };
    let ips = result
        .get("ips")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    ips.iter()
        .enumerate()
        .map(|(index, ip)| {
            let text = ip
                .get("address")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let network: ipnet::IpNet = text
                .parse()
                .map_err(|_| bad(index, format!("address {text:?} is no CIDR")))?;
            Ok(PodIp {
                interface: ip.get("interface").and_then(Value::as_i64),
                address: PodAddress {
                    ip: network.addr(),
                    mask: BASE64.encode(octets(network.netmask())),
                },
                gateway: ip
                    .get("gateway")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned(),
            })
        })
        .collect()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn asked_version(stdin: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(stdin).ok()?;
    Some(value.get("cniVersion")?.as_str()?.to_owned())
}

fn error(code: u32, message: String) -> CniError {
    CniError {
        code,
        message,
        details: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_input_panics(command in "[A-Z]{0,7}", args in ".{0,40}", stdin in ".{0,200}") {
            let environment: BTreeMap<String, String> = [("CNI_COMMAND", command), ("CNI_ARGS", args)]
                .map(|(key, value)| (key.to_owned(), value))
                .into();
            _ = run(&environment, stdin.as_bytes());
        }
    }
}
