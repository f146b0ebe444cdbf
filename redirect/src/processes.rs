// SPDX-License-Identifier: Apache-2.0
//! Which network namespaces the processes of pods are in, for an agent that has no memory of them.
//!
//! In: a proc file system that shows the node's processes, and UIDs of pods. Out: for each of them the namespaces of its
//! processes, the oldest process first. A process belongs to a pod if its cgroup says so, which the kubelet names after
//! the pod's UID, and which no process of a pod can leave. Whether such a namespace is the pod's is for
//! [`crate::pairing`] to say: a container may make others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use capture::Netns;

/// A namespace that a pod's process is in.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub netns: Netns,
    /// The way to it, as long as its oldest process lives.
    pub path: PathBuf,
    /// When that process started, in ticks since the node did.
    started: u64,
}

/// The namespaces of the processes of these pods, each once. Processes that end meanwhile are left out.
///
/// # Errors
/// The list of processes can't be read.
pub fn of_pods(
    proc: &Path,
    uids: &BTreeSet<String>,
) -> io::Result<BTreeMap<String, Vec<Candidate>>> {
    let mut found: BTreeMap<String, Vec<Candidate>> = BTreeMap::new();
    for entry in std::fs::read_dir(proc)? {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let folder = entry.path();
        let Ok(cgroup) = std::fs::read_to_string(folder.join("cgroup")) else {
            continue;
        };
        let Some(uid) = pod_uid(&cgroup).filter(|uid| uids.contains(uid)) else {
            continue;
        };
        if let Some(candidate) = candidate(&folder) {
            add(found.entry(uid).or_default(), candidate);
        }
    }
    for candidates in found.values_mut() {
        candidates.sort_by_key(|candidate| candidate.started);
    }
    Ok(found)
}

fn candidate(folder: &Path) -> Option<Candidate> {
    let path = folder.join("ns/net");
    let started = started(&std::fs::read_to_string(folder.join("stat")).ok()?)?;
    let netns = Netns::open(&path).ok()?;
    Some(Candidate {
        netns,
        path,
        started,
    })
}

/// Of several processes in one namespace the oldest counts.
fn add(candidates: &mut Vec<Candidate>, new: Candidate) {
    let same = candidates.iter_mut().find(|old| old.netns == new.netns);
    match same {
        Some(old) if new.started < old.started => *old = new,
        Some(_) => {}
        None => candidates.push(new),
    }
}

/// The UID of the pod that a process belongs to, from `/proc/<pid>/cgroup`: lines of `id:controllers:path`.
///
/// The kubelet makes `…/pod<uid>/…` or, by systemd, `…/…-pod<uid with underscores>.slice/…`. The outermost one counts,
/// as a container may make cgroups below its own; hierarchies that name different pods prove nothing.
fn pod_uid(cgroup: &str) -> Option<String> {
    let mut uids = cgroup.lines().filter_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        path.split('/').find_map(uid_of_segment)
    });
    let first = uids.next()?;
    uids.all(|uid| uid == first).then_some(first)
}

fn uid_of_segment(segment: &str) -> Option<String> {
    let uid = match segment.strip_suffix(".slice") {
        Some(slice) => slice.split_once("-pod")?.1.replace('_', "-"),
        None => segment.strip_prefix("pod")?.to_owned(),
    };
    (!uid.is_empty()).then_some(uid)
}

/// Field 22 of `/proc/<pid>/stat`; the second is a name in parentheses that may hold anything.
fn started(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "11111111-2222-3333-4444-555555555555";

    #[test]
    fn cgroups_of_every_runtime_name_the_pod() {
        for cgroup in [
            "0::/kubepods/burstable/pod11111111-2222-3333-4444-555555555555/c0ffee\n",
            "0::/kubepods/pod11111111-2222-3333-4444-555555555555\n",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-c0ffee.scope\n",
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod11111111_2222_3333_4444_555555555555.slice/crio-c0ffee.scope/container\n",
            // Seen from another pod's cgroup namespace.
            "0::/../../pod11111111-2222-3333-4444-555555555555/c0ffee\n",
            "0::/../kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-c0ffee.scope\n",
            // The first version, one line for each controller.
            "12:memory:/kubepods/besteffort/pod11111111-2222-3333-4444-555555555555/c0ffee\n1:name=systemd:/kubepods/besteffort/pod11111111-2222-3333-4444-555555555555/c0ffee\n0::/\n",
        ] {
            assert_eq!(pod_uid(cgroup).as_deref(), Some(UID), "{cgroup}");
        }
    }

    #[test]
    fn what_is_no_pods_cgroup_names_none() {
        for cgroup in [
            "",
            "0::/\n",
            "0::/system.slice/containerd.service\n",
            "0::/user.slice/user-0.slice\n",
            "0::/kubepods/burstable/pod/c0ffee\n",
            "nonsense\n:\n::\n",
        ] {
            assert_eq!(pod_uid(cgroup), None, "{cgroup}");
        }
    }

    #[test]
    fn a_container_cannot_pass_itself_off_as_another_pods() {
        let below = format!("0::/kubepods/pod{UID}/c0ffee/podother\n");
        assert_eq!(pod_uid(&below).as_deref(), Some(UID));
        let torn = format!("1:cpu:/kubepods/podother\n0::/kubepods/pod{UID}\n");
        assert_eq!(pod_uid(&torn), None);
    }

    #[test]
    fn a_name_full_of_parentheses_does_not_hide_the_start() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9\n";
        assert_eq!(started(stat), Some(4711));
        for text in [
            "",
            "7 (a",
            "7 (a) S",
            "7 (a) S 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 x",
        ] {
            assert_eq!(started(text), None, "{text}");
        }
    }

    #[test]
    fn this_very_process_is_found_under_the_pod_of_its_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        let make = |pid: &str, cgroup: &str, started: u64| {
            let process = folder.path().join(pid);
            std::fs::create_dir_all(process.join("ns")).unwrap();
            std::fs::write(process.join("cgroup"), cgroup).unwrap();
            let stat = format!("{pid} (x) S 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 {started} 9\n");
            std::fs::write(process.join("stat"), stat).unwrap();
            std::os::unix::fs::symlink("/proc/thread-self/ns/net", process.join("ns/net")).unwrap();
        };
        make("20", &format!("0::/kubepods/pod{UID}/a\n"), 9);
        make("21", &format!("0::/kubepods/pod{UID}/b\n"), 5);
        make("22", "0::/kubepods/podother/a\n", 1);
        make("self", &format!("0::/kubepods/pod{UID}/b\n"), 1);
        let found = of_pods(folder.path(), &[UID.to_owned()].into()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [UID]);
        let [only] = &found[UID][..] else {
            panic!("{found:?}")
        };
        assert_eq!(only.path, folder.path().join("21/ns/net"));
        assert_eq!(only.netns, Netns::current().unwrap());
    }
}
