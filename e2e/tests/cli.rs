// SPDX-License-Identifier: Apache-2.0
//! The commands, as a person or a script uses them.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use e2e::handle::{Lab, Shared};
use e2e::status::Status;
use e2e::tour::Proved;

static SHARED: Shared = Shared::new("cli", env!("CARGO_BIN_EXE_e2e"));

fn lab() -> &'static Lab {
    SHARED.lab()
}

fn e2e(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_e2e"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs a command about the shared lab.
fn here(arguments: &[&str]) -> (Option<i32>, String, String) {
    let finished = lab().run(arguments).unwrap();
    (finished.code, finished.stdout, finished.stderr)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn up_once_proves_everything_and_says_so_as_data() {
    let name = format!("once-{}", std::process::id());
    let output = e2e(&["--lab", &name, "up", "--once", "--output", "json"]);
    let proved: Proved = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    for fact in &proved.facts {
        assert!(fact.holds, "{}: {:?}", fact.path, fact.failures);
    }
    for claim in &proved.claims {
        assert!(claim.holds, "{}: {}", claim.what, claim.seen);
    }
    assert_eq!(proved.claims.len(), 6, "{:?}", proved.claims);
    assert!(
        proved.facts.len() >= 12,
        "only {} facts",
        proved.facts.len()
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // The lab is gone, and so are its files.
    let output = e2e(&["--lab", &name, "status"]);
    assert!(
        text(&output.stderr).contains("no lab is running"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn exec_passes_on_what_the_command_says_and_how_it_ends() {
    let (code, stdout, _) = here(&[
        "exec",
        "shop/client",
        "--",
        "sh",
        "-c",
        "echo hello; exit 7",
    ]);
    assert_eq!((code, stdout.as_str()), (Some(7), "hello\n"));
}

#[test]
fn exec_runs_in_the_pods_own_network() {
    let address = lab().pod("shop/client").unwrap().addresses.unwrap();
    let (code, stdout, stderr) = here(&["exec", "shop/client", "--", "cat", "/proc/net/fib_trie"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(&address.v4.to_string()), "{stdout}");
    let (_, other, _) = here(&["exec", "node-b", "--", "cat", "/proc/net/fib_trie"]);
    assert!(!other.contains(&address.v4.to_string()), "{other}");
}

#[test]
fn exec_names_the_pods_there_are_when_asked_for_another() {
    let (code, _, stderr) = here(&["exec", "shop/nobody", "--", "true"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("shop/client"), "{stderr}");
}

/// For those who look at what is wrong with the manifests, and those who break them.
static MANIFESTS: Mutex<()> = Mutex::new(());

#[test]
fn status_shows_what_is_in_force_of_a_broken_manifest() {
    let _manifests = MANIFESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
                  metadata: {name: mangled, namespace: outside}\nspec: {action: DENY, rules: [{}]}\n";
    lab().apply(policy).unwrap();
    let file = lab()
        .state()
        .manifests()
        .join("authorizationpolicy.outside.mangled.yaml");
    let good = std::fs::read_to_string(&file).unwrap();
    let mangled = |what: &str, holds: &dyn Fn(Option<&e2e::status::PolicyStatus>) -> bool| {
        e2e::handle::eventually(what, std::time::Duration::from_secs(10), || {
            let (_, json, _) = here(&["status", "--output", "json"]);
            let status: Status = serde_json::from_str(&json)?;
            let found = status
                .policies
                .iter()
                .find(|policy| policy.name == "outside/mangled");
            anyhow::ensure!(holds(found), "{found:?}");
            Ok(())
        })
        .unwrap();
    };
    mangled("it is accepted", &|found| {
        found.is_some_and(|policy| policy.broken.is_none() && !policy.conditions.is_empty())
    });
    std::fs::write(&file, good.replace("DENY", "[")).unwrap();
    mangled(
        "its last good version is shown with what is wrong",
        &|found| {
            found.is_some_and(|policy| {
                let why = policy.broken.as_deref().unwrap_or_default();
                policy.summary == "DENY"
                    && !policy.conditions.is_empty()
                    && why.contains("authorizationpolicy.outside.mangled.yaml")
            })
        },
    );
    let (_, table, _) = here(&["status"]);
    assert!(
        table.contains("last good version, as its manifest is broken"),
        "{table}"
    );
    std::fs::write(&file, good).unwrap();
    mangled("it is mended", &|found| {
        found.is_some_and(|policy| policy.broken.is_none())
    });
    lab()
        .delete("authorizationpolicy", "outside/mangled")
        .unwrap();
    mangled("it is gone", &|found| found.is_none());
}

#[test]
fn status_shows_every_pod_with_identity_and_capture() {
    let _manifests = MANIFESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let (code, stdout, stderr) = here(&["status", "--output", "json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let status: Status = serde_json::from_str(&stdout).unwrap();
    let pod = |name: &str| {
        status
            .pods
            .iter()
            .find(|pod| pod.name == name)
            .unwrap_or_else(|| panic!("no {name}: {stdout}"))
    };
    let client = pod("shop/client");
    assert!(
        client.ready && client.redirection == "enabled",
        "{client:?}"
    );
    assert_eq!(client.identity, "spiffe://cluster.local/ns/shop/sa/client");
    assert_eq!(pod("outside/legacy").redirection, "");
    assert!(
        status.daemons.len() == 5 && status.daemons.iter().all(|daemon| daemon.healthy),
        "{:?}",
        status.daemons
    );
    let policy = status
        .policies
        .iter()
        .find(|policy| policy.name == "shop/vault-clients")
        .unwrap();
    assert!(
        policy
            .conditions
            .iter()
            .any(|condition| condition.starts_with("ZtunnelAccepted=True")),
        "{policy:?}"
    );
    assert_eq!(status.problems, Vec::<String>::new());
    // The same for people.
    let (_, table, _) = here(&["status"]);
    assert!(
        table.contains("redirection enabled") && table.contains("PODS"),
        "{table}"
    );
}

#[test]
fn apply_and_delete_change_the_cluster() {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    write!(file, "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: note, namespace: shop}}\ndata: {{a: b}}\n").unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(here(&["apply", path]).1, "ConfigMap shop/note created\n");
    assert_eq!(here(&["apply", path]).1, "ConfigMap shop/note unchanged\n");
    assert_eq!(
        here(&["delete", "configmap", "shop/note"]).1,
        "ConfigMap shop/note deleted\n"
    );
    let (code, _, stderr) = here(&["delete", "configmap", "shop/note"]);
    assert!(
        code == Some(1) && stderr.contains("there is no ConfigMap shop/note"),
        "{stderr}"
    );
}

#[test]
fn apply_explains_a_mistake_and_changes_nothing() {
    let error = lab().apply("apiVersion: v1\nkind: Service\nmetadata: {name: broken, namespace: shop}\nspec: {ports: [{port: many}]}\n");
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("broken") && error.contains("port"),
        "{error}"
    );
    let (_, stdout, _) = here(&["status"]);
    assert!(!stdout.contains("shop/broken"), "{stdout}");
}

#[test]
fn capture_shows_what_the_wire_carries() {
    let mut command = lab().command(&["capture", "node-b", "--seconds", "4"]);
    let watching = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let target = lab().v4("shop/web-b", 9000).unwrap().to_string();
    for _ in 0..6 {
        assert!(
            lab()
                .traffic("shop/client", &["echo", &target])
                .unwrap()
                .is_done()
        );
        assert!(
            lab()
                .traffic(
                    "outside/legacy",
                    &["echo", &target, "--marker", "in the clear "]
                )
                .unwrap()
                .is_done()
        );
        std::thread::park_timeout(std::time::Duration::from_millis(300));
    }
    let shown = text(&watching.wait_with_output().unwrap().stdout);
    assert!(shown.contains("TLS application data"), "{shown}");
    assert!(shown.contains("PLAINTEXT \"in the clear"), "{shown}");
}

#[test]
fn logs_are_found_by_the_names_people_use() {
    for name in [
        "istiod-lite",
        "ztunnel-a",
        "istio-cni-node-b",
        "shop/client",
    ] {
        let (code, stdout, stderr) = here(&["logs", name]);
        assert!(code == Some(0) && !stdout.is_empty(), "{name}: {stderr}");
    }
}

#[test]
fn a_second_up_says_that_the_lab_runs() {
    let (code, _, stderr) = here(&["up"]);
    assert!(
        code == Some(1) && stderr.contains("running already"),
        "{stderr}"
    );
}

#[test]
fn a_lab_leaves_nothing_behind_however_it_ends() {
    for end in [End::Down, End::Killed] {
        let name = format!("{end:?}-{}", std::process::id()).to_lowercase();
        let mut up = Command::new(env!("CARGO_BIN_EXE_e2e"))
            .args(["--lab", &name, "up", "--no-tour"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let environment = e2e::environment::Environment::of_process();
        let access =
            e2e::handle::eventually("the lab is up", std::time::Duration::from_secs(120), || {
                e2e::handle::Access::to_running(&environment, &name)
            })
            .unwrap();
        let root: PathBuf = access.state().root().to_owned();
        match end {
            End::Down => access.must(&["down"]).map(drop).unwrap(),
            End::Killed => up.kill().unwrap(),
        }
        up.wait().unwrap();
        let root = root.to_str().unwrap();
        e2e::handle::eventually(
            "every process is gone",
            std::time::Duration::from_secs(20),
            || {
                let left = processes_with(root);
                anyhow::ensure!(left.is_empty(), "{left:?}");
                Ok(())
            },
        )
        .unwrap();
    }
}

#[test]
fn each_daemon_has_exactly_the_capabilities_that_it_is_granted() {
    let (_, stdout, _) = here(&["status", "--output", "json"]);
    let status: Status = serde_json::from_str(&stdout).unwrap();
    let (net_admin, net_raw, sys_ptrace, sys_admin, dac_override) =
        (1 << 12, 1 << 13, 1 << 19, 1 << 21, 1 << 1);
    for daemon in &status.daemons {
        let granted: u64 = match daemon.name.as_str() {
            "istiod-lite" => 0,
            name if name.starts_with("ztunnel") => net_admin | net_raw | sys_admin,
            _ => net_admin | net_raw | sys_ptrace | sys_admin | dac_override,
        };
        let path = format!("/proc/{}/status", daemon.pid.unwrap());
        let (_, process, stderr) = here(&["exec", "node-a", "--", "cat", &path]);
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            let line = process
                .lines()
                .find(|line| line.starts_with(set))
                .unwrap_or_else(|| panic!("{path}: {stderr}"));
            let held = u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap();
            assert_eq!(held, granted, "{}: {line}", daemon.name);
        }
    }
}

#[test]
fn an_ordinary_user_has_the_same_mesh() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    if !nix::unistd::geteuid().is_root() {
        // Then every other test of these files has run as one.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_e2e"));
    // The lab of the other tests has built them.
    let _built = lab();
    for program in e2e::binaries::PROGRAMS.into_iter().chain(["e2e"]) {
        std::fs::copy(
            executable.with_file_name(program),
            folder.path().join(program),
        )
        .unwrap();
    }
    let output = Command::new(folder.path().join("e2e"))
        .args([
            "--lab",
            &format!("user-{}", std::process::id()),
            "up",
            "--once",
            "--output",
            "json",
            "--bin-dir",
        ])
        .arg(folder.path())
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/")
        .uid(1000)
        .gid(1000)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let proved: Proved = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    let failed: Vec<_> = proved
        .facts
        .iter()
        .filter(|fact| !fact.holds)
        .map(|fact| (&fact.path, &fact.failures))
        .collect();
    let unproved: Vec<_> = proved.claims.iter().filter(|claim| !claim.holds).collect();
    assert!(
        failed.is_empty() && unproved.is_empty() && output.status.success(),
        "{failed:?} {unproved:?}"
    );
}

#[derive(Debug, Clone, Copy)]
enum End {
    Down,
    Killed,
}

/// Command lines of processes that name a lab's directory.
fn processes_with(root: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| text(&line).replace('\0', " "))
        .filter(|line| line.contains(root))
        .collect()
}
