// SPDX-License-Identifier: Apache-2.0
//! A lab's directory: where each thing lies, and the two small records that other commands read.
//!
//! ```text
//! STATE/lab.json              who runs the lab (pids), written once it is up
//!      /keep                  its files outlive the lab
//!      /lock                  held by the running lab
//!      /manifests/            the cluster: one object per file, `.status/` beside them
//!      /netns/                one file per network namespace, bound there in the lab's mount namespace
//!      /pods/NS_NAME.json     what the runtime knows of a pod
//!      /logs/NAME.log         what a daemon or container printed
//!      /node-a/ /node-b/      sockets, tokens, CNI configuration of a node
//!      /down/NAME             the daemon or pod of that log name is not to be started
//!      /kubernetes/           with an API server: its files, and the kubeconfig of whoever may do everything (admin.json)
//!      /in-force/             what readers of a broken manifest go by; with an API server, the cluster as last seen
//!      /istiod/               state of the control plane: its CA, roots, the keys tokens are checked with
//!      /manifests-2/ /istiod-2/  the same for the second cluster, where there is one
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::environment::private_directory;
use crate::topology::{Cluster, Layout, Node, Pair, Place, PodName};

/// The paths of one lab.
#[derive(Debug, Clone)]
pub struct StateDir {
    root: PathBuf,
    /// Whose manifests and control plane are meant.
    cluster: Cluster,
}

/// Longest path of the state directory that leaves room for the sockets in it (108 bytes with the closing zero).
const LONGEST_ROOT: usize = 70;

impl StateDir {
    /// The directory of the lab `name` below `state_root`.
    pub fn of_lab(state_root: &Path, name: &str) -> Result<Self> {
        if name.is_empty()
            || !name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        {
            bail!("`{name}` is no name for a lab: letters, digits, `-` and `_` only");
        }
        Self::at(state_root.join(name))
    }

    pub fn at(root: PathBuf) -> Result<Self> {
        if root.as_os_str().len() > LONGEST_ROOT {
            bail!(
                "the state directory {} is too long a path for the unix sockets in it; set XDG_RUNTIME_DIR",
                root.display()
            );
        }
        Ok(Self {
            root,
            cluster: Cluster::First,
        })
    }

    /// The same lab, seen from one of its clusters.
    pub fn of_cluster(&self, cluster: Cluster) -> Self {
        Self {
            root: self.root.clone(),
            cluster,
        }
    }

    pub fn cluster(&self) -> Cluster {
        self.cluster
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn manifests(&self) -> PathBuf {
        self.root.join(self.cluster.file("manifests"))
    }

    /// While a manifest is broken, what its readers go by. With an API server, what it has said last, always.
    pub fn in_force(&self) -> PathBuf {
        self.root.join(self.cluster.file("in-force"))
    }

    /// Where the API server's files lie, if there is one.
    pub fn kubernetes(&self) -> PathBuf {
        self.root.join("kubernetes")
    }

    /// How the API server is reached by whoever may do everything, from anywhere in the lab.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubernetes().join("admin.json")
    }

    /// Its process, as the lab sees it.
    pub fn api_server_pid(&self) -> PathBuf {
        self.root.join("kube-apiserver.pid")
    }

    /// What has a disk of its own where disks are small.
    pub fn small_disks(&self) -> Vec<PathBuf> {
        let pods = Node::ALL.map(|node| self.node(node).join("istio-cni").join("pods"));
        let others = [self.logs(), self.manifests().join(".status"), self.istiod()];
        others.into_iter().chain(pods).collect()
    }

    /// The same from outside of a lab, whose disks show in its own mount namespace only.
    pub fn from_outside(self, lab: &LabRecord) -> Self {
        let root = match lab.disks {
            Disks::Shared => self.root,
            Disks::Small => {
                let inside = self.root.strip_prefix("/").unwrap_or(&self.root);
                PathBuf::from(format!("/proc/{}/root", lab.pid)).join(inside)
            }
        };
        Self { root, ..self }
    }

    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }

    pub fn record(&self) -> PathBuf {
        self.root.join("lab.json")
    }

    /// As long as this is there, the lab's files outlive it.
    pub fn keep(&self) -> PathBuf {
        self.root.join("keep")
    }

    pub fn hosts(&self) -> PathBuf {
        self.root.join("hosts")
    }

    /// What nodes resolve names by.
    pub fn resolv_conf(&self) -> PathBuf {
        self.root.join("resolv.conf")
    }

    /// The same for a pod.
    pub fn resolv_conf_of(&self, pod: &PodName) -> PathBuf {
        let name = format!("{}.resolv.conf", pod.slug());
        self.root.join("pods").join(name)
    }

    pub fn istiod(&self) -> PathBuf {
        self.root.join(self.cluster.file("istiod"))
    }

    /// Its process, as the lab sees it.
    pub fn control_plane_pid(&self) -> PathBuf {
        self.root.join(self.cluster.file("istiod.pid"))
    }

    pub fn jwks(&self) -> PathBuf {
        self.istiod().join("jwks.json")
    }

    /// The roots that everybody trusts, as the control plane writes them.
    pub fn root_certificates(&self) -> PathBuf {
        self.istiod().join("root-cert.pem")
    }

    pub fn node(&self, node: Node) -> PathBuf {
        self.root.join(node.name())
    }

    pub fn netns(&self, place: &Place) -> PathBuf {
        let folder = self.root.join("netns");
        match place {
            Place::Node(node) => folder.join(node.name()),
            Place::ControlPlane(cluster) => folder.join(cluster.daemon()),
            Place::Resolver => folder.join("resolver"),
            Place::Pod(pod) => folder.join(format!("pod_{}", pod.slug())),
        }
    }

    /// As long as this is there, the daemon or pod of that log name is not started again once it has ended.
    pub fn held_down(&self, name: &str) -> PathBuf {
        self.root.join("down").join(name)
    }

    /// Once this is there, the daemon or pod of that log name gets another process beside the one that runs; the lab
    /// removes it when that has started and the record names it. Holds more variables for it, one `NAME=VALUE` a line.
    pub fn upgrade_order(&self, name: &str) -> PathBuf {
        self.root.join("down").join(format!("upgrade.{name}"))
    }

    /// Once this is there, the node loses its power and comes back; the lab removes it when the power is back.
    pub fn reboot_order(&self, node: Node) -> PathBuf {
        self.root
            .join("down")
            .join(format!("reboot.{}", node.name()))
    }

    /// Variables for the control plane, one `NAME=VALUE` a line, read whenever it is started.
    pub fn control_plane_environment(&self) -> PathBuf {
        self.istiod().join("environment")
    }

    pub fn pod_record(&self, pod: &PodName) -> PathBuf {
        self.root.join("pods").join(format!("{}.json", pod.slug()))
    }

    /// Makes every folder of the tree.
    pub fn create(&self, layout: Layout) -> Result<()> {
        private_directory(&self.root)?;
        for cluster in layout.clusters() {
            let state = self.of_cluster(*cluster);
            private_directory(&state.manifests())?;
            private_directory(&state.in_force())?;
            private_directory(&state.istiod())?;
        }
        let folders = ["logs", "netns", "pods", "down", "node-a", "node-b"];
        for folder in folders {
            private_directory(&self.root.join(folder))?;
        }
        Ok(())
    }

    /// Claims the lab's directory for this process, or says who holds it. The claim ends with the process.
    pub fn lock(&self) -> Result<Lock> {
        private_directory(&self.root)?;
        let file =
            File::create(self.root.join("lock")).context("cannot make the lab's lock file")?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(std::fs::TryLockError::WouldBlock) => {
                bail!(
                    "this lab is running already (state in {}); see `e2e status`, end it with `e2e down`, or start another with --lab NAME",
                    self.root.display()
                )
            }
            Err(std::fs::TryLockError::Error(error)) => {
                Err(error).context("cannot lock the lab's directory")
            }
        }
    }

    pub fn read_record(&self) -> Result<LabRecord> {
        let path = self.record();
        if !path.exists() {
            bail!(
                "no lab is running here ({} is missing); start one with `e2e up`",
                path.display()
            );
        }
        read_json(&path)
    }

    /// What the runtime knows of every pod.
    pub fn pods(&self) -> Result<Vec<PodRecord>> {
        let mut pods = Vec::new();
        for entry in std::fs::read_dir(self.root.join("pods")).context("the lab's pod records")? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                // A record may go away between listing and reading: the pod is gone then.
                if let Ok(pod) = read_json(&path) {
                    pods.push(pod);
                }
            }
        }
        pods.sort_by(|a: &PodRecord, b| a.pod.cmp(&b.pod));
        Ok(pods)
    }

    pub fn read_pod(&self, pod: &PodName) -> Result<PodRecord> {
        let path = self.pod_record(pod);
        if !path.exists() {
            let known: Vec<String> = self
                .pods()?
                .iter()
                .map(|record| record.pod.to_string())
                .collect();
            bail!(
                "no pod `{pod}` runs in this lab; there are: {}",
                known.join(", ")
            );
        }
        read_json(&path)
    }
}

/// Held by the running lab.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Who runs the lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LabRecord {
    pub name: String,
    /// The lab process as others outside its pid namespace see it.
    pub pid: u32,
    /// The boot-relative start time of that process, so that a reused pid isn't taken for it.
    pub started: u64,
    /// The commands that run programs of the lab use the same executable.
    pub executable: PathBuf,
    pub bin_dir: PathBuf,
    #[serde(default)]
    pub layout: Layout,
    #[serde(default)]
    pub disks: Disks,
    /// Whether its objects are an API server's.
    #[serde(default)]
    pub api_server: bool,
}

/// Where the files of a lab lie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Disks {
    /// All on the machine's own.
    #[default]
    Shared,
    /// What daemons write again and again, each on a disk of its own that is soon full.
    Small,
}

impl Disks {
    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Small => "small",
        }
    }
}

/// What the runtime knows of a pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodRecord {
    pub pod: PodName,
    pub uid: String,
    pub node: Node,
    pub netns: PathBuf,
    pub addresses: Option<Pair>,
    pub host_network: bool,
    /// Process ids of its containers, in the lab's pid namespace.
    pub containers: Vec<ContainerRecord>,
    pub phase: Phase,
    pub message: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub name: String,
    pub pid: Option<u32>,
    pub restarts: u32,
    pub ready: bool,
    /// Processes that the present one has relieved and that have not ended.
    #[serde(default)]
    pub relieved: Vec<u32>,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    Pending,
    Running,
    Failed,
}

/// Writes a file so that a reader sees the old content or the new one, nothing in between.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .context("a file name")?;
    let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
    std::fs::write(&temporary, content)
        .with_context(|| format!("cannot write {}", temporary.display()))?;
    std::fs::rename(&temporary, path)
        .with_context(|| format!("cannot put {} in place", path.display()))
}

pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write_atomically(path, &serde_json::to_vec_pretty(value)?)
}

pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text)
        .with_context(|| format!("{} is not what the lab wrote there", path.display()))
}

/// When the process started, in clock ticks since boot: field 22 of its stat line. With the pid it names one process.
pub fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything, so count from its closing parenthesis.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_that_runs_is_not_started_again() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::of_lab(root.path(), "one").unwrap();
        let _held = state.lock().unwrap();
        let error = state.lock().unwrap_err();
        assert!(error.to_string().contains("running already"), "{error}");
    }

    #[test]
    fn lab_names_are_checked() {
        assert!(StateDir::of_lab(Path::new("/tmp"), "../etc").is_err());
        assert!(StateDir::of_lab(Path::new("/tmp"), "my-lab_2").is_ok());
    }

    #[test]
    fn own_start_time_is_known() {
        assert!(process_start(std::process::id()).is_some());
    }
}
