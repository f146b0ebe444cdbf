// SPDX-License-Identifier: Apache-2.0
//! A control plane that has gone mad: what it says is refused by name and counted, what was believed before stays in
//! force, and when it takes everything back nothing goes out in the clear.

use std::io::{BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::hostile::forge::{Forger, Validity};
use e2e::hostile::mimic::{Act, Count, Done};
use e2e::load::{Line, What, now};
use e2e::topology::{CONTROL_PLANE_NAME, CONTROL_PLANE_PORT, Node};
use e2e::trial::Trial;
use proto::ADDRESS_TYPE_URL;
use serde::de::DeserializeOwned;

use crate::ground::{Turn, bounded, judge, turn};

/// It, at work in the real one's place; its clients are the two proxies.
struct Mimicry {
    process: Child,
    acts: ChildStdin,
    told: BufReader<ChildStdout>,
    learnt: Count,
}

impl Mimicry {
    fn take_the_place(turn: &Turn) -> Self {
        let forger = Forger::with_the_stolen_key(turn.lab.state()).unwrap();
        let shown = forger.certificate(&[CONTROL_PLANE_NAME], Validity::Now);
        let shown = turn.credentials(&shown.unwrap());
        let listen = format!("0.0.0.0:{CONTROL_PLANE_PORT}");
        let member = turn.member(Node::A);
        let mut arguments = vec!["hostile", "mimic", "--listen", &listen, "--credentials"];
        arguments.push(shown.to_str().unwrap());
        arguments.extend(member.iter().map(String::as_str));
        let mut command = turn.lab.tool("istiod-lite", &arguments);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.unwrap();
        let acts = process.stdin.take().unwrap();
        let mut told = BufReader::new(process.stdout.take().unwrap());
        let learnt = line(&mut told);
        println!("learnt: {learnt:?}");
        turn.lab.hold_down("istiod-lite").unwrap();
        let mut mimicry = Self {
            process,
            acts,
            told,
            learnt,
        };
        let here = mimicry.perform(Act::Wait);
        bounded(
            "until both proxies came",
            here.took,
            Duration::from_secs(20),
        );
        assert_eq!(here.back, 2, "{here:?}");
        mimicry
    }

    fn perform(&mut self, act: Act) -> Done {
        writeln!(self.acts, "{act}").unwrap();
        let done: Done = line(&mut self.told);
        println!(
            "{act}: {} clients, {} messages, {} accepted, {} refused in {:?}: {:.200}",
            done.clients,
            done.messages,
            done.accepted,
            done.refused.len(),
            done.took,
            done.refused.first().map_or("", String::as_str)
        );
        done
    }
}

impl Drop for Mimicry {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn line<T: DeserializeOwned>(from: &mut impl std::io::BufRead) -> T {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// Waits for a line of the proxy's log, which is written a moment later.
fn logged(trial: &Trial<'_>, is_it: &dyn Fn(&str) -> bool) {
    eventually("it is told", Duration::from_secs(5), || {
        let log = trial.log("ztunnel-b")?;
        ensure!(log.lines().any(is_it), "no such line");
        Ok(())
    })
    .unwrap();
}

/// Drive clients away, which come back; a word of what they log.
const ENDS: [(Act, &str); 3] = [
    (Act::NoMessage, "failed to decode"),
    (Act::CutMessage, "failed to decode"),
    (Act::Refusal, "go away"),
];

/// Are refused whole or in part; words of the reason.
const REFUSED: [(Act, &[&str]); 7] = [
    (Act::CutBodies, &["Kubernetes//Pod/shop/web-a: "]),
    (Act::Hollow, &["hollow: resource has no body"]),
    (
        Act::UnknownType,
        &["type.example/Nonsense: type was not subscribed to"],
    ),
    (
        Act::WrongType,
        &["disguised: its body is a \"type.googleapis.com/istio.security"],
    ),
    (
        Act::BadFields,
        &[
            "three-bytes",
            "no-protocol",
            "no-account",
            "no-domain",
            "no-status",
        ],
    ),
    (Act::ManyBad, &["bad-0: ", "and 980 more"]),
    (Act::Duplicates, &["Kubernetes//Pod/shop/web-a: "]),
];

/// Are of no use, and cost nobody anything.
const BORNE: [Act; 4] = [Act::Huge, Act::Versions, Act::Endless, Act::RemoveUnknown];

#[test]
fn a_control_plane_that_talks_nonsense_is_refused_by_name_and_what_was_believed_goes_on() {
    let turn = turn();
    let trial = turn.begin();
    let process = turn.lab.process("ztunnel-b").unwrap();
    let memory = process.memory().unwrap();
    let counted =
        |name: &str, labels: &[(&str, &str)]| turn.lab.metrics(Node::B).unwrap().sum(name, labels);
    let refusals = || counted("culvert_xds_resources_refused_total", &[]);
    let mut mimicry = Mimicry::take_the_place(&turn);

    for (act, word) in ENDS {
        let ended = counted("istio_xds_connection_terminations_total", &[]);
        let done = mimicry.perform(act);
        assert_eq!((done.clients, done.back), (2, 2), "{act}: {done:?}");
        bounded(
            &format!("{act}: until they were back"),
            done.took,
            Duration::from_secs(10),
        );
        assert!(counted("istio_xds_connection_terminations_total", &[]) > ended);
        logged(&trial, &|line| {
            line.contains("xDS stream ended") && line.contains(word)
        });
    }
    for (act, words) in REFUSED {
        let before = refusals();
        let done = mimicry.perform(act);
        assert_eq!(
            (done.refused.len(), done.accepted),
            (2, 0),
            "{act}: {done:?}"
        );
        for (word, reason) in words
            .iter()
            .flat_map(|word| done.refused.iter().map(move |reason| (word, reason)))
        {
            assert!(reason.contains(word), "{act}: no {word} in {reason}");
        }
        assert!(refusals() > before, "{act} is not counted");
        let word = words[0].split(": ").next().unwrap();
        logged(&trial, &|line| {
            line.contains(word) && (line.contains("refused") || line.contains("not subscribed"))
        });
    }
    let many = counted(
        "culvert_xds_resources_refused_total",
        &[("url", ADDRESS_TYPE_URL)],
    );
    assert!(
        many >= 1000.0 + mimicry.learnt.addresses as f64,
        "{many} are counted"
    );
    let log = trial.log("ztunnel-b").unwrap();
    let one_by_one = log
        .lines()
        .filter(|line| line.contains("\"bad-") || line.contains("resource=bad-"));
    assert!(one_by_one.count() <= 21, "a line for each of a thousand");
    for act in BORNE {
        let done = mimicry.perform(act);
        assert_eq!(done.accepted, 2 * done.messages, "{act}: {done:?}");
        bounded(
            &format!("{act}: until it was borne"),
            done.took,
            Duration::from_secs(15),
        );
    }
    let before = trial.log("ztunnel-b").unwrap().len();
    let done = mimicry.perform(Act::Obstinacy);
    assert!(
        done.refused.len() > 10 && done.accepted == 0,
        "{} of {}",
        done.refused.len(),
        done.accepted
    );
    let written = trial.log("ztunnel-b").unwrap().len() - before;
    println!("  {written} bytes of log");
    assert!(written < 100 << 10, "{written} bytes of log");
    let grown = process.memory().unwrap().saturating_sub(memory);
    println!("memory grown by {} KiB", grown >> 10);
    assert!(grown < 64 << 20, "{grown} bytes more than before");
    // So far nothing of it was felt.
    let so_far = trial.load().so_far();
    assert!(so_far.failures().is_empty(), "{:?}", so_far.failures());

    // What it takes back is gone, for it might mean it; whoever is not known any more is refused.
    let removed = now();
    let done = mimicry.perform(Act::RemoveAll);
    assert_eq!(done.accepted, 4, "{done:?}");
    trial
        .load()
        .wait(
            Duration::from_secs(20),
            "new connections are refused",
            |events| {
                let refused = events.iter().filter(|event| {
                    event.at > removed
                        && event.line == Line::Visit
                        && matches!(event.what, What::Refused { .. })
                });
                (refused.count() >= 10).then_some(())
            },
        )
        .unwrap();
    let entry = turn
        .lab
        .access_entry(Node::A, "why", |entry| {
            entry
                .error()
                .is_some_and(|error| error.contains("not known to the mesh"))
        })
        .unwrap();
    println!("  {entry}");
    let done = mimicry.perform(Act::SendAll);
    assert_eq!((done.accepted, done.refused.len()), (6, 0), "{done:?}");
    drop(mimicry);
    let back = now();
    turn.lab.let_start("istiod-lite").unwrap();
    trial
        .load()
        .wait_for_visits(back, 20, Duration::from_secs(60))
        .unwrap();
    turn.all_ready();
    let verdict = judge("a mad control plane", trial);
    let recovery = verdict.traffic.recovery(back, Duration::from_secs(1));
    bounded(
        "from the true one's start until new connections worked",
        recovery.unwrap(),
        Duration::from_secs(20),
    );
}
