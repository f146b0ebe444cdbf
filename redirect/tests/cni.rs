// SPDX-License-Identifier: Apache-2.0
//! The CNI plugin, run as a process, against a scripted agent.
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PLUGIN: &str = env!("CARGO_BIN_EXE_redirect-cni");
const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u1";

struct Answer {
    success: bool,
    stdout: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    fn expect_code(&self, code: u32) -> Value {
        let json = self.json();
        assert!(!self.success, "{json}");
        assert_eq!(json["code"], code, "{json}");
        assert!(
            json["cniVersion"].is_string() && json["msg"].is_string(),
            "{json}"
        );
        json
    }
}

fn call(command: &str, args: &str, stdin: &str) -> Answer {
    let environment = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/web"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", args),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    call_in(&environment, stdin)
}

fn call_in(environment: &[(&str, &str)], stdin: &str) -> Answer {
    let mut child = Command::new(PLUGIN)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(stdin.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    Answer {
        success: output.status.success(),
        stdout: String::from_utf8(output.stdout).unwrap(),
    }
}

fn previous(version: &str) -> Value {
    let mut ips = json!([
        {"address": "10.77.0.2/24", "gateway": "10.77.0.1", "interface": 0},
        {"address": "fd77::2/64"}
    ]);
    if version.starts_with("0.") {
        ips[0]["version"] = "4".into();
        ips[1]["version"] = "6".into();
    }
    json!({
        "cniVersion": version,
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/web"}],
        "ips": ips,
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.77.0.1"}],
        "dns": {},
        "somethingNew": [1, 2],
    })
}

fn config(version: &str, run_dir: &Path) -> Value {
    json!({
        "cniVersion": version,
        "name": "lab",
        "type": "istio-cni",
        "cni_agent_run_dir": run_dir,
        "prevResult": previous(version),
        "unknownKey": true,
    })
}

/// An agent that takes one question and gives one answer; yields the question's first line and body.
fn agent(run_dir: &Path, answer: &'static str) -> std::thread::JoinHandle<(String, Value)> {
    let listener = UnixListener::bind(run_dir.join("pluginevent.sock")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        let (head, body) = loop {
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).unwrap();
            bytes.extend(&buffer[..length]);
            let text = String::from_utf8(bytes.clone()).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .unwrap()
                .parse()
                .unwrap();
            if body.len() == length {
                break (head.to_owned(), body.to_owned());
            }
        };
        stream.write_all(answer.as_bytes()).unwrap();
        let body = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&body).unwrap()
        };
        (head.lines().next().unwrap().to_owned(), body)
    })
}

const ENROLLED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"enrolled\":true}";
const OUTSIDE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{\"enrolled\":false}";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const REFUSED: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 7\r\n\r\nno room";

#[test]
fn add_asks_the_agent_and_returns_the_previous_result_in_every_version() {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        for answer in [ENROLLED, OUTSIDE, EMPTY] {
            let folder = tempfile::tempdir().unwrap();
            let agent = agent(folder.path(), answer);
            let result = call("ADD", POD, &config(version, folder.path()).to_string());
            assert!(result.success, "{}", result.stdout);
            assert_eq!(result.json(), previous(version));
            let (line, body) = agent.join().unwrap();
            assert_eq!(line, "POST /cmdadd HTTP/1.1");
            assert_eq!(
                body,
                json!({
                    "Netns": "/run/netns/web",
                    "PodName": "web",
                    "PodNamespace": "shop",
                    "IPs": [
                        {"Interface": 0, "Address": {"IP": "10.77.0.2", "Mask": "////AA=="}, "Gateway": "10.77.0.1"},
                        {"Interface": null, "Address": {"IP": "fd77::2", "Mask": "//////////8AAAAAAAAAAA=="}, "Gateway": ""},
                    ],
                    "ContainerID": "c1",
                    "PodUID": "u1",
                })
            );
        }
    }
}

#[test]
fn a_previous_result_of_another_version_is_returned_in_the_asked_one() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to) in [("1.0.0", "0.4.0"), ("0.3.1", "1.1.0")] {
        let mut config = config(to, folder.path());
        config["prevResult"] = previous(from);
        let result = call("ADD", "", &config.to_string());
        assert_eq!(result.json(), previous(to));
    }
}

#[test]
fn pods_that_no_mesh_could_want_pass_without_an_agent() {
    let folder = tempfile::tempdir().unwrap();
    let pass = |args: &str, change: Value| {
        let mut config = config("1.1.0", folder.path());
        config
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let result = call("ADD", args, &config.to_string());
        assert!(result.success, "{args}: {}", result.stdout);
        assert_eq!(result.json(), previous("1.1.0"));
    };
    pass("", json!({}));
    pass("IgnoreUnknown=1", json!({}));
    pass("K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=dns", json!({}));
    pass(POD, json!({"exclude_namespaces": ["other", "shop"]}));
    pass(POD, json!({"ambient_enabled": false}));
    pass(
        "K8S_POD_NAMESPACE=istio-system;K8S_POD_NAME=istio-cni-node-x7",
        json!({"pod_namespace": "istio-system"}),
    );
}

#[test]
fn without_an_agent_no_pod_starts_and_the_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let error = call("ADD", POD, &config("1.1.0", folder.path()).to_string()).expect_code(11);
    assert!(
        error["msg"].as_str().unwrap().contains("shop/web"),
        "{error}"
    );
    assert!(
        error["details"]
            .as_str()
            .unwrap()
            .contains("pluginevent.sock"),
        "{error}"
    );
    // The name alone excludes nobody.
    let own = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=istio-cni-node-x7";
    call("ADD", own, &config("1.1.0", folder.path()).to_string()).expect_code(11);
    let mut none = config("1.1.0", folder.path());
    none["exclude_namespaces"] = Value::Null;
    call(
        "ADD",
        "K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=dns",
        &none.to_string(),
    )
    .expect_code(11);
}

#[test]
fn a_refusal_is_passed_on_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let _agent = agent(folder.path(), REFUSED);
    let error = call("ADD", POD, &config("0.4.0", folder.path()).to_string()).expect_code(11);
    assert_eq!(error["cniVersion"], "0.4.0");
    assert!(
        error["details"].as_str().unwrap().contains("no room"),
        "{error}"
    );
}

#[test]
fn an_agent_that_talks_nonsense_lets_no_pod_start() {
    for nonsense in [
        "hello\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let _agent = agent(folder.path(), nonsense);
        call("ADD", POD, &config("1.1.0", folder.path()).to_string()).expect_code(11);
    }
}

#[test]
fn an_agent_that_says_nothing_is_given_five_seconds_for_add_and_half_a_second_for_del() {
    let folder = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(folder.path().join("pluginevent.sock")).unwrap();
    let config = config("1.1.0", folder.path()).to_string();
    let start = Instant::now();
    assert!(call("DEL", POD, &config).success);
    assert!(start.elapsed() < Duration::from_secs(2));
    let start = Instant::now();
    let error = call("ADD", POD, &config).expect_code(11);
    assert!(error["details"].as_str().unwrap().contains("5s"), "{error}");
    assert!(
        (Duration::from_secs(5)..Duration::from_secs(8)).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn bad_input_has_the_codes_of_the_specification() {
    let folder = tempfile::tempdir().unwrap();
    let good = config("1.1.0", folder.path());
    call("ADD", POD, "{").expect_code(6);
    call("ADD", POD, "").expect_code(6);
    call("ADD", POD, "[]").expect_code(7);
    let with = |key: &str, value: Value| {
        let mut config = good.clone();
        config[key] = value;
        config.to_string()
    };
    assert!(
        call("ADD", POD, &with("cni_agent_run_dir", json!(7))).expect_code(7)["msg"]
            .as_str()
            .unwrap()
            .contains("configuration")
    );
    call("ADD", POD, &with("exclude_namespaces", json!("shop"))).expect_code(7);
    let error = call(
        "ADD",
        POD,
        &with("prevResult", json!({"ips": [{"address": "10.77.0.2"}]})),
    )
    .expect_code(7);
    assert!(
        error["msg"].as_str().unwrap().contains("prevResult.ips[0]"),
        "{error}"
    );
    for version in [json!("0.2.0"), json!("2.0.0"), json!("")] {
        call("ADD", POD, &with("cniVersion", version)).expect_code(1);
    }
    let good = good.to_string();
    call("ADD", "K8S_POD_NAME", &good).expect_code(4);
    call("FROBNICATE", POD, &good).expect_code(4);
    call_in(&[], &good).expect_code(4);
    let error = call_in(
        &[
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
        ],
        &good,
    )
    .expect_code(4);
    assert!(
        error["msg"].as_str().unwrap().contains("CNI_NETNS"),
        "{error}"
    );
}

#[test]
fn del_never_fails() {
    let folder = tempfile::tempdir().unwrap();
    let good = config("0.4.0", folder.path()).to_string();
    for stdin in [good.as_str(), "", "{", r#"{"cniVersion": "9.9.9"}"#] {
        assert!(call("DEL", POD, stdin).success, "{stdin}");
        assert!(
            call_in(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1")], stdin).success,
            "{stdin}"
        );
    }
    let agent = agent(
        folder.path(),
        "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
    );
    assert!(call("DEL", POD, &good).success);
    assert_eq!(
        agent.join().unwrap(),
        (
            "POST /cmddel HTTP/1.1".into(),
            json!({"ContainerID": "c1", "Netns": "/run/netns/web"})
        )
    );
}

#[test]
fn version_names_all_versions() {
    for (stdin, version) in [("", "1.1.0"), (r#"{"cniVersion": "0.4.0"}"#, "0.4.0")] {
        let answer = call_in(&[("CNI_COMMAND", "VERSION")], stdin);
        assert!(answer.success);
        let supported = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
        assert_eq!(
            answer.json(),
            json!({"cniVersion": version, "supportedVersions": supported})
        );
    }
}

#[test]
fn check_asks_the_agent_from_version_0_4() {
    let folder = tempfile::tempdir().unwrap();
    call("CHECK", POD, &config("0.3.1", folder.path()).to_string()).expect_code(1);
    call("CHECK", POD, &config("0.4.0", folder.path()).to_string()).expect_code(11);
    assert!(call("CHECK", "", &config("0.4.0", folder.path()).to_string()).success);
    let refusing = agent(folder.path(), REFUSED);
    let error = call("CHECK", POD, &config("1.0.0", folder.path()).to_string()).expect_code(100);
    assert!(
        error["msg"].as_str().unwrap().contains("shop/web"),
        "{error}"
    );
    assert_eq!(refusing.join().unwrap().0, "POST /cmdcheck HTTP/1.1");
    std::fs::remove_file(folder.path().join("pluginevent.sock")).unwrap();
    let _content = agent(folder.path(), ENROLLED);
    assert!(call("CHECK", POD, &config("1.0.0", folder.path()).to_string()).success);
}

#[test]
fn status_and_gc_exist_from_version_1_1() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["STATUS", "GC"] {
        call(command, "", &config("1.0.0", folder.path()).to_string()).expect_code(1);
    }
    call("STATUS", "", &config("1.1.0", folder.path()).to_string()).expect_code(50);
    let mut gc = config("1.1.0", folder.path());
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
    assert!(
        call("GC", "", &gc.to_string()).success,
        "no agent is no reason to fail"
    );
    let asked = agent(folder.path(), EMPTY);
    assert!(call("GC", "", &gc.to_string()).success);
    assert_eq!(
        asked.join().unwrap(),
        (
            "POST /cmdgc HTTP/1.1".into(),
            json!({"ContainerIDs": ["c1"]})
        )
    );
    std::fs::remove_file(folder.path().join("pluginevent.sock")).unwrap();
    let _ready = agent(folder.path(), EMPTY);
    assert!(call("STATUS", "", &config("1.1.0", folder.path()).to_string()).success);
}
