// SPDX-License-Identifier: Apache-2.0
//! The mesh's root is exchanged for another, in steps of which each is seen to have reached everybody.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use e2e::authority::Ca;
use e2e::topology::Node;
use serde_json::{Value, json};

use crate::ground::{judge, turn, undisturbed};

/// The line of one root in the authority's view.
fn root<'r>(report: &'r Value, name: &str) -> &'r Value {
    let subject = format!("CN={name}");
    let roots = report["roots"].as_array().into_iter().flatten();
    roots
        .into_iter()
        .find(|root| root["subject"] == *subject)
        .unwrap_or(&Value::Null)
}

/// Every certificate came with this root.
fn all_trust(report: &Value, name: &str) -> Result<()> {
    let (trusted, all) = (&root(report, name)["trustedBy"], &report["certificates"]);
    ensure!(trusted == all && *all != json!(0), "{trusted} of {all}");
    Ok(())
}

fn signed_under(report: &Value, name: &str) -> Option<u64> {
    root(report, name)["signedUnder"].as_u64()
}

#[test]
fn a_root_is_exchanged_in_three_observed_steps_while_certificates_live_for_seconds() {
    let mut turn = turn();
    let trial = turn.begin();
    let mut leaves = BTreeSet::new();
    let next = Ca::new("next root").unwrap();
    let before = turn.ca_report().unwrap();
    let old = before["roots"][0]["subject"].as_str().unwrap();
    let old = old.trim_start_matches("CN=").to_owned();
    let both = [turn.ca.root.clone(), next.root.clone()];
    let both = both.each_ref().map(String::as_str);

    // (a) Both are trusted, the old one signs.
    turn.put_ca(&turn.ca, &both);
    let took = turn.until_ca("hands out both roots", |report| {
        ensure!(signed_under(report, "next root") == Some(0));
        Ok(())
    });
    println!("(a) handed out after {took:?}");
    leaves.extend(turn.leaves());
    // (b) is asked for too early, and taken when everybody has got both.
    turn.put_ca(&next, &both);
    turn.until_ca("holds the next step back", |report| {
        let waits = report["waits"][0].as_str().unwrap_or_default();
        ensure!(
            waits.starts_with("signing under \"CN=next root\""),
            "{waits:?}"
        );
        ensure!(signed_under(report, "next root") == Some(0));
        Ok(())
    });
    let took = turn.until_ca("signs by the next root", |report| {
        all_trust(report, "next root")?;
        ensure!(report["waits"] == json!([]));
        Ok(())
    });
    println!("(a) reached everybody after {took:?}");
    leaves.extend(turn.leaves());
    // (c) likewise: until nothing is left that the old root signed.
    turn.put_ca(&next, &[&next.root]);
    let took = turn.until_ca("trusts the next root alone", |report| {
        ensure!(*root(report, &old) == Value::Null && report["waits"] == json!([]));
        ensure!(signed_under(report, "next root") == report["certificates"].as_u64());
        Ok(())
    });
    println!("(b) reached everybody after {took:?}");
    leaves.extend(turn.leaves());
    let serial = turn.ca_report().unwrap()["roots"][0]["serial"].clone();
    let only = BTreeSet::from([serial.as_str().unwrap().to_owned()]);
    let started = std::time::Instant::now();
    for node in Node::ALL {
        e2e::handle::eventually("only the next root", crate::ground::LIFETIME, || {
            for held in turn.certificates(node)? {
                ensure!(held.roots == only, "{}: {:?}", held.identity, held.roots);
            }
            Ok(())
        })
        .unwrap();
    }
    println!("(c) reached everybody after {:?}", started.elapsed());
    leaves.extend(turn.leaves());
    *turn.ca = next;

    let verdict = judge("another root", trial);
    let failures = verdict.traffic.failures();
    assert!(failures.is_empty(), "{failures:?}");
    undisturbed(&verdict);
    // One each at the four moments.
    let identities = Node::ALL.map(|node| turn.certificates(node).unwrap().len());
    let each = leaves.len() / identities.iter().sum::<usize>().max(1);
    assert!(each >= 3, "{} certificates were seen", leaves.len());
}
