// SPDX-License-Identifier: Apache-2.0

use super::*;

const OWN: &str = "02-istio-cni.conflist";

fn ours() -> Value {
    entry("/run/agent".as_ref(), &["kube-system".to_owned()], "mesh")
}

fn wanted(place: Place) -> Wanted {
    Wanted {
        place,
        own: OWN.to_owned(),
        entry: ours(),
    }
}

fn folder(files: &[(&str, Value)]) -> Folder {
    let file = |(name, value): &(&str, Value)| {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        ((*name).to_owned(), Ok(text.into_bytes()))
    };
    files.iter().map(file).collect()
}

fn primary_list() -> Value {
    json!({
        "cniVersion": "0.3.1", "name": "bridge-net", "somethingNew": {"b": 1, "a": [true, null]},
        "plugins": [
            {"type": "bridge", "zeta": 1, "ipam": {"type": "host-local", "alpha": "x"}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn chained(mut list: Value) -> Value {
    list["plugins"].as_array_mut().unwrap().push(ours());
    list
}

fn write(name: &str, list: Value) -> Change {
    Change::Write {
        name: name.to_owned(),
        list,
    }
}

fn remove(name: &str) -> Change {
    Change::Remove {
        name: name.to_owned(),
    }
}

/// Makes the changes, as the shell would.
fn made(mut folder: Folder, changes: &[Change]) -> Folder {
    for change in changes {
        match change {
            Change::Write { name, list } => {
                folder.insert(name.clone(), Ok(list.to_string().into_bytes()))
            }
            Change::Remove { name } => folder.remove(name),
        };
    }
    folder
}

/// The changes, after which nothing is left to change and the plugin is in force by `file`.
fn check(files: &[(&str, Value)], place: Place, expected: &[Change], file: &str) {
    let (before, wanted) = (folder(files), wanted(place));
    let first = plan(&before, &wanted);
    assert_eq!(first.changes, expected, "{files:?}");
    assert_eq!(first.file, Ok(file.to_owned()));
    let second = plan(&made(before, &first.changes), &wanted);
    assert_eq!((second.changes, second.file), (vec![], first.file));
}

#[test]
fn in_its_own_file_the_plugin_follows_a_copy_of_the_primarys() {
    let primary = ("10-bridge.conflist", primary_list());
    let copy = write(OWN, chained(primary_list()));
    check(
        std::slice::from_ref(&primary),
        Place::Own,
        std::slice::from_ref(&copy),
        OWN,
    );
    // A copy of what the primary said before is made anew, and so is one that somebody spoiled.
    let mut older = chained(primary_list());
    older["plugins"][0]["zeta"] = json!(0);
    for stale in [older, json!("{ half"), json!([])] {
        check(
            &[(OWN, stale), primary.clone()],
            Place::Own,
            std::slice::from_ref(&copy),
            OWN,
        );
    }
    check(
        &[(OWN, chained(primary_list())), primary],
        Place::Own,
        &[],
        OWN,
    );
}

#[test]
fn in_the_primarys_file_the_plugin_comes_last_and_once() {
    let name = "10-bridge.conflist";
    let all = write(name, chained(primary_list()));
    check(
        &[(name, primary_list())],
        Place::Chained,
        std::slice::from_ref(&all),
        name,
    );
    let mut older = primary_list();
    let stale = json!({"type": "istio-cni", "cni_agent_run_dir": "/old"});
    older["plugins"].as_array_mut().unwrap().insert(1, stale);
    check(
        &[(name, older)],
        Place::Chained,
        std::slice::from_ref(&all),
        name,
    );
    // A file of its own from before goes.
    let own = (OWN, chained(primary_list()));
    check(
        &[own, (name, primary_list())],
        Place::Chained,
        &[all, remove(OWN)],
        name,
    );
}

#[test]
fn a_lone_plugin_becomes_a_list_under_its_own_name_and_in_its_version() {
    let alone = |version: &str| json!({"cniVersion": version, "name": "pods", "type": "bridge"});
    for (version, becomes) in [("1.0.0", "1.0.0"), ("0.2.0", "0.3.1")] {
        let list = json!({
            "cniVersion": becomes, "name": "pods", "plugins": [{"name": "pods", "type": "bridge"}, ours()],
        });
        let files = [("05-pods.conf", alone(version))];
        check(&files, Place::Own, &[write(OWN, list.clone())], OWN);
        let changes = [write("05-pods.conflist", list), remove("05-pods.conf")];
        check(&files, Place::Chained, &changes, "05-pods.conflist");
    }
}

#[test]
fn the_first_file_that_a_runtime_can_use_is_the_primary() {
    let mut files = folder(&[
        ("03-a.conflist", json!("{ half")),
        ("04-b.conflist", json!({"plugins": []})),
        ("05-c.conf", json!({"name": "no type"})),
        ("06-d.conflist", json!({"plugins": [{"type": "istio-cni"}]})),
        ("07-e.conflist", primary_list()),
        (
            "08-f.conflist",
            json!({"cniVersion": "1.0.0", "plugins": [{"type": "later"}]}),
        ),
    ]);
    files.insert("01-z.conflist".to_owned(), Err("denied".to_owned()));
    let expected = [write(OWN, chained(primary_list()))];
    assert_eq!(plan(&files, &wanted(Place::Own)).changes, expected);

    files.remove("07-e.conflist");
    files.remove("08-f.conflist");
    let none = plan(&files, &wanted(Place::Own));
    assert_eq!(none.changes, []);
    let text = none.file.unwrap_err().to_string();
    for part in [
        "01-z.conflist: denied",
        "03-a.conflist",
        "no other plugin",
        "without `type`",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn what_would_start_no_pod_or_not_be_asked_is_not_called_installed() {
    let mut future = primary_list();
    future["cniVersion"] = json!("2.0.0");
    let mut several = primary_list();
    several["cniVersions"] = json!(["1.0.0", "2.0.0"]);
    let mut silent = primary_list();
    silent.as_object_mut().unwrap().remove("cniVersion");
    for (list, version) in [(future, "2.0.0"), (several, "2.0.0"), (silent, "")] {
        let refused = plan(&folder(&[("10-x.conflist", list)]), &wanted(Place::Own));
        assert_eq!(refused.changes, []);
        let file = "10-x.conflist".to_owned();
        let version = version.to_owned();
        assert_eq!(refused.file, Err(Missing::Version { file, version }));
    }
    let second = plan(
        &folder(&[("00-multus.conf", json!({"type": "multus"}))]),
        &wanted(Place::Own),
    );
    let text = second.file.unwrap_err().to_string();
    assert!(text.contains("takes 00-multus.conf"), "{text}");
}

#[test]
fn without_a_primary_what_is_there_of_ours_stays() {
    let left = plan(
        &folder(&[(OWN, chained(primary_list()))]),
        &wanted(Place::Own),
    );
    assert_eq!(left.changes, []);
    assert_eq!(left.file, Err(Missing::Primary(vec![])));
}

#[test]
fn removal_leaves_what_was_there_before() {
    for place in [Place::Own, Place::Chained] {
        let before = folder(&[
            ("10-bridge.conflist", primary_list()),
            ("99-x.conf", json!("{ half")),
        ]);
        let installed = made(before.clone(), &plan(&before, &wanted(place)).changes);
        assert_ne!(installed, before);
        let after = made(installed.clone(), &removal(&installed, &wanted(place)));
        let read = |folder: &Folder| held(folder, "10-bridge.conflist");
        assert_eq!(read(&after), read(&before), "{place:?}");
        assert_eq!(after.len(), before.len());
        assert_eq!(removal(&after, &wanted(place)), []);
    }
    let alone = folder(&[("20-ours.conflist", json!({"plugins": [ours()]}))]);
    assert_eq!(
        removal(&alone, &wanted(Place::Own)),
        [remove("20-ours.conflist")]
    );
}

#[test]
fn only_names_that_runtimes_read_count() {
    for (name, counts) in [
        ("10-a.conflist", true),
        ("a.conf", true),
        ("a.json", true),
        (".02-istio-cni.conflist.new", false),
        (".hidden.conf", false),
        ("a.conflist.cilium_bak", false),
        ("README", false),
    ] {
        assert_eq!(is_configuration(name), counts, "{name}");
    }
}
