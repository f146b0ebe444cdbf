// SPDX-License-Identifier: Apache-2.0
//! The control plane's own directory and that of its certificates on a disk that is full: it signs by what it knows,
//! takes nothing that was cut short, and leaves what is there whole.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::authority::Ca;
use e2e::handle::{Lab, eventually};
use e2e::load::Volume;
use serde_json::Value;

use crate::{Filled, begin, bounded, no_leftovers, pod, spoken_to_by_tunnel, turn, unharmed};

const PATIENCE: Duration = Duration::from_secs(30);

/// What the authority says of itself.
fn report(lab: &Lab) -> Result<Value> {
    let report = lab.traffic("istiod-lite", &["get", "127.0.0.1:8080", "/debug/ca"])?;
    let answer = report.answer.unwrap_or_default();
    serde_json::from_str(&answer).with_context(|| format!("/debug/ca: {answer:?}"))
}

fn until(lab: &Lab, what: &str, wanted: impl Fn(&Value) -> bool) {
    eventually(what, PATIENCE, || {
        let report = report(lab)?;
        ensure!(wanted(&report), "{report:#}");
        Ok(())
    })
    .unwrap();
}

/// A pod of an account that nobody has a certificate of yet: it is served only if the authority signs.
fn a_new_account_is_served(lab: &Lab, name: &str) {
    lab.apply(&pod(name, name)).unwrap();
    lab.wait_ready(&format!("shop/{name}")).unwrap();
    spoken_to_by_tunnel(lab, name);
    lab.delete("pod", &format!("shop/{name}")).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn an_authority_whose_disk_is_full_signs_by_what_it_knows_and_takes_only_what_is_whole() {
    let (_turn, lab) = turn();
    let trial = begin(lab, Volume::default());
    let disk = lab.state().istiod();
    let files = disk.join("ca");
    let published = lab.state().root_certificates();
    let before = fs::read_to_string(&published).unwrap();
    let own = fs::read_to_string(files.join("root-cert.pem")).unwrap();
    let other = Ca::new("another root").unwrap().root;
    let filled = Filled::new(&disk);
    a_new_account_is_served(lab, "first");

    // An operator's file that is cut short before the first certificate.
    let padded = format!("{}{own}{other}", "# roots of the mesh\n".repeat(1000));
    let cut = fs::write(files.join("root-cert.pem"), padded).unwrap_err();
    assert_eq!(cut.kind(), std::io::ErrorKind::StorageFull);
    until(lab, "the file is refused by name", |report| {
        let problem = report["problem"].as_str().unwrap_or_default();
        problem.contains("ca/root-cert.pem") && report["signs"] == true
    });
    println!("{}", report(lab).unwrap()["problem"]);
    a_new_account_is_served(lab, "second");
    assert_eq!(fs::read_to_string(&published).unwrap(), before);

    // A whole one has room where the half one was; what others are to read has none.
    let both = format!("{own}{other}");
    fs::write(files.join("root-cert.pem"), &both).unwrap();
    until(lab, "both roots are in force", |report| {
        report["roots"]
            .as_array()
            .is_some_and(|roots| roots.len() == 2)
    });
    let told = |log: &str| {
        let line = log
            .lines()
            .find(|line| line.contains("the root certificates can't be written"));
        line.is_some_and(|line| {
            line.contains("root-cert.pem") && line.contains("No space left on device")
        })
    };
    eventually("it says so", PATIENCE, || {
        ensure!(told(&trial.log("istiod-lite")?), "not yet");
        Ok(())
    })
    .unwrap();
    assert_eq!(fs::read_to_string(&published).unwrap(), before);

    // It comes back on the full disk, too.
    let killed = Instant::now();
    lab.kill("istiod-lite").unwrap();
    until(lab, "it signs again", |report| report["signs"] == true);
    bounded(
        "from its death until it signed",
        killed,
        Duration::from_secs(20),
    );
    a_new_account_is_served(lab, "third");
    assert_eq!(fs::read_to_string(&published).unwrap(), before);

    let room = Instant::now();
    drop(filled);
    let until_published = |wanted: &str| {
        eventually("the roots are published", PATIENCE, || {
            let text = fs::read_to_string(&published)?;
            ensure!(text.contains(wanted), "{text}");
            Ok(text)
        })
        .unwrap()
    };
    until_published(other.trim());
    bounded(
        "from room until others learnt of the root",
        room,
        Duration::from_secs(10),
    );
    no_leftovers(&disk);
    assert!(
        !names(&disk).iter().any(|name| name.ends_with(".new")),
        "{:?}",
        names(&disk)
    );
    fs::write(files.join("root-cert.pem"), &own).unwrap();
    until(lab, "one root is left", |report| {
        report["roots"]
            .as_array()
            .is_some_and(|roots| roots.len() == 1)
            && report["waits"] == serde_json::json!([])
    });
    eventually("and published", PATIENCE, || {
        ensure!(fs::read_to_string(&published)? == before);
        Ok(())
    })
    .unwrap();
    unharmed(trial);
}

#[test]
fn an_authority_that_cannot_be_kept_is_not_made_and_nothing_of_it_stays() {
    let (_turn, lab) = turn();
    let trial = begin(lab, Volume::default());
    let disk = lab.state().istiod();
    let (files, aside) = (disk.join("ca"), disk.join("aside"));
    lab.hold_down("istiod-lite").unwrap();
    // As at the very first start.
    fs::rename(&files, &aside).unwrap();
    let filled = Filled::new(&disk);
    lab.let_start("istiod-lite").unwrap();
    let told = eventually("it says why it does not start", PATIENCE, || {
        let log = trial.log("istiod-lite")?;
        let line = log
            .lines()
            .rev()
            .find(|line| line.contains("No space left on device"));
        line.map(str::to_owned).context("not yet")
    })
    .unwrap();
    println!("{told}");
    assert!(
        told.contains("/istiod/.ca.") && told.contains("-key.pem"),
        "which file? {told}"
    );
    // It may just have ended by itself.
    let _held_all_the_same = lab.hold_down("istiod-lite");
    eventually("nothing of it stays", PATIENCE, || {
        let names = names(&disk);
        let stays = |name: &String| name == "ca" || name.starts_with(".ca.");
        ensure!(!names.iter().any(stays), "{names:?}");
        Ok(())
    })
    .unwrap();
    drop(filled);
    fs::rename(&aside, &files).unwrap();
    let room = Instant::now();
    lab.let_start("istiod-lite").unwrap();
    until(lab, "it signs", |report| report["signs"] == true);
    bounded(
        "from its start until it signed",
        room,
        Duration::from_secs(20),
    );
    a_new_account_is_served(lab, "fourth");
    unharmed(trial);
}
