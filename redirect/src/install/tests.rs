// SPDX-License-Identifier: Apache-2.0
//! Real folders, and the plugin that is found there.

use std::time::Duration;

use ops::health::Readiness;
use serde_json::{Value, json};

use super::conflist::{PLUGIN, Place};
use super::*;

const OWN: &str = "02-istio-cni.conflist";
const PRIMARY: &str = "10-bridge.conflist";

struct Node {
    folder: tempfile::TempDir,
    settings: Settings,
}

impl Node {
    fn new(place: Place) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| folder.path().join(name);
        let settings = Settings {
            net_dir: below("net.d"),
            bin_dir: below("bin"),
            plugin: below("istio-cni-of-the-image"),
            wanted: Wanted {
                place,
                own: OWN.to_owned(),
                entry: conflist::entry("/run/agent".as_ref(), &[], "mesh"),
            },
        };
        fs::create_dir(&settings.net_dir).unwrap();
        fs::create_dir(&settings.bin_dir).unwrap();
        fs::write(&settings.plugin, "program 1").unwrap();
        Self { folder, settings }
    }

    fn write_primary(&self, version: u32) {
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "version": version}]});
        let beside = self.folder.path().join("beside");
        fs::write(&beside, list.to_string()).unwrap();
        fs::set_permissions(&beside, Permissions::from_mode(0o644)).unwrap();
        fs::rename(beside, self.settings.net_dir.join(PRIMARY)).unwrap();
    }

    fn list(&self, name: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.settings.net_dir.join(name)).ok()?).ok()
    }

    fn mode(&self, path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn names(&self) -> Vec<String> {
        let folders = [&self.settings.net_dir, &self.settings.bin_dir];
        let entries = folders
            .into_iter()
            .flat_map(|path| fs::read_dir(path).unwrap());
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn a_look_installs_program_and_configuration_and_the_next_finds_nothing_to_do() {
    let node = Node::new(Place::Own);
    assert!(matches!(
        node.settings.look(),
        Err(InstallError::Missing(Missing::Primary(_)))
    ));
    node.write_primary(1);
    let look = |repaired| Look {
        file: OWN.to_owned(),
        repaired,
    };
    assert_eq!(node.settings.look().unwrap(), look(true));
    assert_eq!(node.settings.look().unwrap(), look(false));
    assert_eq!(node.names(), [OWN, PRIMARY, PLUGIN]);
    let program = node.settings.bin_dir.join(PLUGIN);
    assert_eq!(fs::read(&program).unwrap(), b"program 1");
    assert_eq!(node.mode(&program), 0o755);
    assert_eq!(node.mode(&node.settings.net_dir.join(OWN)), 0o600);

    // The next version, and somebody who takes the right to run it away.
    fs::write(&node.settings.plugin, "program 2").unwrap();
    assert_eq!(node.settings.look().unwrap(), look(true));
    assert_eq!(fs::read(&program).unwrap(), b"program 2");
    fs::set_permissions(&program, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(node.settings.look().unwrap(), look(true));
    assert_eq!(node.mode(&program), 0o755);

    assert!(node.settings.remove().unwrap());
    assert!(!node.settings.remove().unwrap());
    assert_eq!(node.names(), [PRIMARY, PLUGIN]);
}

#[test]
fn in_the_primarys_file_its_mode_stays_and_removal_gives_it_back() {
    let node = Node::new(Place::Chained);
    node.write_primary(1);
    let before = node.list(PRIMARY);
    assert_eq!(node.settings.look().unwrap().file, PRIMARY);
    assert_eq!(node.list(PRIMARY).unwrap()["plugins"][1]["type"], PLUGIN);
    assert_eq!(node.mode(&node.settings.net_dir.join(PRIMARY)), 0o644);
    assert!(node.settings.remove().unwrap());
    assert_eq!(node.list(PRIMARY), before);
}

#[test]
fn a_program_that_can_not_be_written_leaves_no_configuration_that_names_it() {
    let node = Node::new(Place::Own);
    node.write_primary(1);
    fs::remove_dir(&node.settings.bin_dir).unwrap();
    let error = node.settings.look().unwrap_err().to_string();
    assert!(error.contains("bin/istio-cni"), "{error}");
    assert_eq!(node.list(OWN), None);
}

#[tokio::test]
async fn what_others_change_is_put_back_at_once() {
    for place in [Place::Own, Place::Chained] {
        let node = Node::new(place);
        let readiness = Readiness::default();
        let (shutdown, drain) = ops::shutdown::channel();
        let ready = readiness.register("plugin");
        let keeper = tokio::spawn(keep(node.settings.clone(), ready, drain));
        let until = async |what: &str, hoped: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !hoped() {
                // Less than the pause between looks: it was heard of.
                assert!(start.elapsed() < CHECK / 2, "{place:?}: {what}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ours = match place {
            Place::Own => OWN,
            Place::Chained => PRIMARY,
        };
        let holds = |version: u32| {
            node.list(ours).is_some_and(|list| {
                list["plugins"][0]["version"] == version && list["plugins"][1]["type"] == PLUGIN
            })
        };
        let program = node.settings.bin_dir.join(PLUGIN);
        until("the program", &|| program.exists()).await;
        assert_eq!(readiness.pending(), ["plugin"]);
        node.write_primary(1);
        until("installed", &|| holds(1) && readiness.pending().is_empty()).await;
        node.write_primary(2);
        until("written anew", &|| holds(2)).await;
        fs::remove_file(&program).unwrap();
        until("program removed", &|| program.exists()).await;
        fs::remove_file(node.settings.net_dir.join(PRIMARY)).unwrap();
        until("no primary", &|| !readiness.pending().is_empty()).await;
        assert_eq!(node.list(OWN).is_some(), place == Place::Own);
        shutdown.start();
        keeper.await.unwrap();
    }
}
