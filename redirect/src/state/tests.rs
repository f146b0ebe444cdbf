// SPDX-License-Identifier: Apache-2.0

use super::release::PATIENCE;
use super::*;
use crate::enroll::Network;
use crate::zds_server::{Answer, Report};

fn labels(mode: &str) -> Labels {
    [("istio.io/dataplane-mode".to_owned(), mode.to_owned())].into()
}

fn pod(uid: &str) -> Pod {
    Pod {
        uid: uid.into(),
        namespace: "shop".into(),
        name: "web".into(),
        service_account: "web".into(),
        labels: Labels::new(),
        annotations: Labels::new(),
        network: Network::Own,
        life: Life::Running,
        ips: Vec::new(),
        redirection: None,
    }
}

fn sandbox(uid: &str, ino: u64) -> Sandbox {
    Sandbox {
        uid: uid.into(),
        namespace: "shop".into(),
        name: "web".into(),
        container_id: None,
        netns: "/run/netns/web".into(),
        dev: 4,
        ino,
        ips: vec!["10.77.0.2".parse().unwrap()],
        captured: false,
    }
}

/// As an agent before this one left it.
fn captured(uid: &str, ino: u64) -> Sandbox {
    Sandbox {
        captured: true,
        ..sandbox(uid, ino)
    }
}

fn state(sandboxes: &[Sandbox]) -> State {
    let options = Options {
        enrolment: Settings::default(),
        families: Families::Dual,
        dns: Dns::Untouched,
        release_deadline: Duration::from_secs(300),
    };
    let sandboxes = sandboxes
        .iter()
        .map(|sandbox| (sandbox.uid.clone(), sandbox.clone()))
        .collect();
    let mut state = State::new(options, sandboxes);
    state.namespace_applied("shop", labels("ambient"));
    state
}

fn answer(state: &mut State, uid: &str, ino: u64, error: &str) {
    let answer = Answer::new(NetnsId { dev: 4, ino }, error.into(), 1);
    state.answers_arrived([(uid.to_owned(), answer)].into());
}

/// ztunnel serves the pod of sandbox 1 and says how far it is with letting it go.
fn report(state: &mut State, uid: &str, open: u64, plain: bool) {
    let mut answer = Answer::new(NetnsId { dev: 4, ino: 1 }, String::new(), 1);
    answer.reports.insert(1, Report { open, plain });
    state.answers_arrived([(uid.to_owned(), answer)].into());
}

/// Does all that is due, successfully; tells what that was.
fn settle(state: &mut State, continuity: Continuity) -> Vec<String> {
    settle_at(state, continuity, Instant::now())
}

fn settle_at(state: &mut State, continuity: Continuity, now: Instant) -> Vec<String> {
    let mut done = Vec::new();
    while let Some(step) = state.next(now) {
        assert!(done.len() < 10, "no end of it: {done:?}");
        match step {
            Step::Capture { sandbox, options } => {
                state.captured(&sandbox, options, continuity);
                done.push(format!("capture {}", sandbox.uid));
            }
            Step::LookForResolver { sandbox } => {
                state.looked_for_resolver(&sandbox, true, now);
                done.push(format!("look for a resolver in {}", sandbox.uid));
            }
            Step::Loosen {
                sandbox,
                options,
                reach,
            } => {
                state.loosened(&sandbox, options, reach);
                done.push(format!("loosen {} to {reach:?}", sandbox.uid));
            }
            Step::Release { sandbox } => {
                state.released(&sandbox);
                done.push(format!("release {}", sandbox.uid));
            }
            Step::Annotate { uid, value, .. } => {
                state.annotated(&uid, value);
                done.push(format!(
                    "annotate {uid} {}",
                    value.map_or("nothing", Redirection::as_str)
                ));
            }
            Step::Forget { sandbox } => {
                state.sandbox_gone(&sandbox.uid);
                done.push(format!("forget {}", sandbox.uid));
            }
        }
    }
    done
}

#[test]
fn a_new_pod_is_pending_until_ztunnel_consents_and_captured_only_then() {
    let mut state = state(&[]);
    state.pod_applied(pod("a"));
    assert_eq!(settle(&mut state, Continuity::Fresh), [""; 0]);
    assert!(state.wanted().is_empty());
    state.sandbox_arrived(captured("a", 1));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a pending"],
        "nobody listens where rules would lead"
    );
    assert_eq!(state.wanted()["a"].netns, Some(NetnsId { dev: 4, ino: 1 }));
    assert_eq!(state.wanted()["a"].intent, Intent::Serve);
    // The node knows its address before anything is captured.
    assert_eq!(
        state.members(),
        [("10.77.0.2".parse().unwrap(), "a".to_owned())].into()
    );
    answer(&mut state, "a", 1, "");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a enabled"]
    );
    answer(&mut state, "a", 1, "port taken");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a pending"]
    );
}

#[test]
fn consent_for_another_namespace_counts_for_nothing() {
    let mut state = state(&[]);
    state.pod_applied(pod("a"));
    state.sandbox_arrived(sandbox("a", 2));
    answer(&mut state, "a", 1, "");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a pending"]
    );
    assert_eq!(state.consent("a", NetnsId { dev: 4, ino: 2 }), None);
}

#[test]
fn a_restarted_agent_leaves_an_enabled_pod_enabled_until_ztunnel_answers() {
    let mut state = state(&[sandbox("a", 1)]);
    state.pod_applied(Pod {
        redirection: Some(Redirection::Enabled),
        ..pod("a")
    });
    assert_eq!(settle(&mut state, Continuity::Found), ["capture a"]);
    answer(&mut state, "a", 1, "");
    assert_eq!(settle(&mut state, Continuity::Found), [""; 0]);
}

#[test]
fn an_enabled_pod_without_memory_is_kept_not_dropped() {
    let mut state = state(&[]);
    state.pod_applied(Pod {
        redirection: Some(Redirection::Enabled),
        ..pod("a")
    });
    assert_eq!(settle(&mut state, Continuity::Found), [""; 0]);
    assert_eq!(state.wanted()["a"].netns, None);
}

/// A pod that ztunnel serves and that is captured.
fn enrolled() -> State {
    let mut state = state(&[]);
    state.pod_applied(pod("a"));
    state.sandbox_arrived(sandbox("a", 1));
    answer(&mut state, "a", 1, "");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a enabled"]
    );
    state
}

#[test]
fn labels_enrol_running_pods() {
    let mut state = state(&[sandbox("a", 1)]);
    state.namespace_applied("shop", Labels::new());
    state.pod_applied(pod("a"));
    assert_eq!(settle(&mut state, Continuity::Fresh), [""; 0]);
    assert!(state.wanted().is_empty());
    state.namespace_applied("shop", labels("ambient"));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a pending"]
    );
    answer(&mut state, "a", 1, "");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a enabled"]
    );
}

#[test]
fn a_pod_leaves_the_mesh_bit_by_bit_as_ztunnel_and_the_control_plane_go_along() {
    let mut state = enrolled();
    state.namespace_deleted("shop");
    let start = Instant::now();
    let at = |state: &mut State, second| {
        settle_at(
            state,
            Continuity::Fresh,
            start + Duration::from_secs(second),
        )
    };
    assert_eq!(at(&mut state, 0), ["loosen a to Inbound"]);
    assert_eq!(state.wanted()["a"].intent, Intent::LetGo);
    assert!(!state.members().is_empty(), "probes are still to be told");
    report(&mut state, "a", 2, false);
    assert_eq!(at(&mut state, 1), ["annotate a nothing"]);
    report(&mut state, "a", 2, true);
    assert_eq!(at(&mut state, 2), ["loosen a to Nothing"]);
    report(&mut state, "a", 0, true);
    assert_eq!(at(&mut state, 60), [""; 0], "ztunnel has it still");
    assert!(state.wanted().is_empty(), "ztunnel is asked to drop it");
    state.answers_arrived(Answers::new());
    assert_eq!(at(&mut state, 61), ["release a"]);
    assert!(state.members().is_empty());
    assert_eq!(at(&mut state, 1000), [""; 0]);
}

#[test]
fn a_pod_whose_label_comes_back_is_captured_again() {
    let mut state = enrolled();
    state.namespace_deleted("shop");
    report(&mut state, "a", 2, true);
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["loosen a to Nothing", "annotate a nothing"]
    );
    state.namespace_applied("shop", labels("ambient"));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a enabled"]
    );
    assert_eq!(state.wanted()["a"].intent, Intent::Serve);
}

#[test]
fn a_silent_ztunnel_does_not_keep_a_pod_captured_for_good() {
    let mut state = enrolled();
    state.namespace_deleted("shop");
    let start = Instant::now();
    settle_at(&mut state, Continuity::Fresh, start);
    let retry = state.next_retry(start).expect("it asks again");
    assert_eq!(retry, start + PATIENCE);
    assert_eq!(
        settle_at(&mut state, Continuity::Fresh, retry),
        ["annotate a nothing"]
    );
    assert!(state.wanted().is_empty());
    // It does not answer the deletion either.
    let last = state.next_retry(retry).expect("it asks again");
    assert_eq!(last, retry + PATIENCE);
    assert_eq!(
        settle_at(&mut state, Continuity::Fresh, last),
        ["release a"]
    );
}

#[test]
fn a_pod_released_while_no_agent_ran_is_cleaned_up() {
    let mut state = state(&[sandbox("a", 1)]);
    state.namespace_applied("shop", Labels::new());
    state.pod_applied(Pod {
        redirection: Some(Redirection::Enabled),
        ..pod("a")
    });
    assert_eq!(
        settle(&mut state, Continuity::Found),
        ["release a", "annotate a nothing"]
    );
}

#[test]
fn a_release_that_an_earlier_agent_began_is_carried_on() {
    // Its annotation has gone already; only the memory tells.
    let mut state = state(&[captured("a", 1)]);
    state.namespace_applied("shop", Labels::new());
    state.pod_applied(pod("a"));
    report(&mut state, "a", 1, true);
    assert_eq!(
        settle(&mut state, Continuity::Found),
        ["loosen a to Nothing"]
    );
    assert_eq!(state.wanted()["a"].intent, Intent::LetGo);
    state.answers_arrived(Answers::new());
    assert_eq!(settle(&mut state, Continuity::Found), ["release a"]);
}

#[test]
fn a_pod_that_is_gone_is_forgotten() {
    let mut state = state(&[sandbox("a", 1)]);
    state.pod_applied(pod("a"));
    settle(&mut state, Continuity::Fresh);
    state.pod_deleted("shop", "web", None);
    assert!(state.wanted().is_empty());
    assert_eq!(settle(&mut state, Continuity::Fresh), ["forget a"]);
}

#[test]
fn a_pod_created_again_under_its_name_is_another_pod() {
    let mut state = state(&[sandbox("a", 1)]);
    state.pod_applied(pod("a"));
    settle(&mut state, Continuity::Fresh);
    state.pod_applied(pod("b"));
    assert_eq!(settle(&mut state, Continuity::Fresh), ["forget a"]);
    assert_eq!(state.pod("shop", "web").unwrap().uid, "b");
}

#[test]
fn an_ended_pod_leaves_ztunnel_but_its_rules_stay() {
    let mut state = enrolled();
    state.pod_applied(Pod {
        life: Life::Ended,
        ..pod("a")
    });
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a nothing"]
    );
    assert!(state.wanted().is_empty());
    assert!(state.members().is_empty());
}

#[test]
fn a_new_sandbox_of_a_pod_is_captured_anew() {
    let mut state = enrolled();
    state.sandbox_arrived(sandbox("a", 2));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a pending"]
    );
    answer(&mut state, "a", 2, "");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a enabled"]
    );
}

#[test]
fn changed_annotations_change_the_rules() {
    let mut state = enrolled();
    let annotations = [(
        "ambient.istio.io/bypass-inbound-capture".to_owned(),
        "true".to_owned(),
    )]
    .into();
    state.pod_applied(Pod {
        annotations,
        ..pod("a")
    });
    assert_eq!(settle(&mut state, Continuity::Fresh)[0], "capture a");
}

#[test]
fn a_failed_step_is_due_again_later_and_stops_nobody_else() {
    let mut state = state(&[captured("a", 1), captured("b", 2)]);
    state.pod_applied(pod("a"));
    state.pod_applied(Pod {
        name: "other".into(),
        ..pod("b")
    });
    let now = Instant::now();
    state.failed("a", now);
    let Some(Step::Capture { sandbox, .. }) = state.next(now) else {
        panic!("nothing to do")
    };
    assert_eq!(sandbox.uid, "b");
    let retry = state.next_retry(now).unwrap();
    assert_eq!(retry, now + Duration::from_millis(50));
    let Some(Step::Capture { sandbox, .. }) = state.next(retry) else {
        panic!("nothing to do")
    };
    assert_eq!(sandbox.uid, "a");
}

#[test]
fn a_sandbox_that_was_taken_down_is_served_by_nobody() {
    let mut state = enrolled();
    state.sandbox_torn_down("a");
    assert!(state.wanted().is_empty());
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a nothing"]
    );
    state.sandbox_arrived(sandbox("a", 2));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a pending"]
    );
}

#[test]
fn a_retry_that_was_due_and_not_needed_wakes_nobody() {
    let mut state = state(&[]);
    let now = Instant::now();
    state.pod_applied(pod("a"));
    state.failed("a", now);
    assert!(state.next_retry(now).is_some());
    assert_eq!(state.next_retry(now + Duration::from_secs(1)), None);
}

/// A captured pod whose DNS is to be captured, as soon as ztunnel of this number has consented.
fn with_dns(by: u64) -> State {
    let mut state = state(&[]);
    state.options.dns = Dns::Captured;
    state.pod_applied(pod("a"));
    state.sandbox_arrived(sandbox("a", 1));
    consent_of(&mut state, by);
    state
}

fn consent_of(state: &mut State, by: u64) {
    let answer = Answer::new(NetnsId { dev: 4, ino: 1 }, String::new(), by);
    state.answers_arrived([("a".to_owned(), answer)].into());
}

/// Looks once, which must be due, and does what follows; tells the DNS of the rules.
fn look(state: &mut State, listens: bool, now: Instant) -> Dns {
    let Some(Step::LookForResolver { sandbox }) = state.next(now) else {
        panic!("no look is due")
    };
    state.looked_for_resolver(&sandbox, listens, now);
    settle_at(state, Continuity::Fresh, now);
    state.rules["a"].options.dns
}

#[test]
fn dns_is_captured_only_where_somebody_listens() {
    let now = Instant::now();
    let mut state = with_dns(1);
    assert_eq!(look(&mut state, false, now), Dns::Untouched);
    assert!(
        state.is_captured("a"),
        "its connections are captured all the same"
    );
    assert_eq!(state.without_resolver(), 1);
    // Another ztunnel may do what this one doesn't.
    consent_of(&mut state, 2);
    assert_eq!(look(&mut state, true, now), Dns::Captured);
    assert_eq!(state.without_resolver(), 0);
    let later = state.next_retry(now).unwrap();
    assert!(later > now);
    // ztunnel is gone for a moment: rules that lead to nobody are better than wrong answers.
    assert_eq!(look(&mut state, false, later), Dns::Captured);
    let gone = later + Duration::from_secs(60);
    assert_eq!(look(&mut state, false, gone), Dns::Untouched);
    consent_of(&mut state, 3);
    assert_eq!(look(&mut state, true, gone), Dns::Captured);
}

#[test]
fn nobody_looks_where_dns_is_not_to_be_captured() {
    let mut state = with_dns(1);
    state.options.dns = Dns::Untouched;
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a enabled"]
    );
    assert_eq!(state.without_resolver(), 0);
    assert_eq!(state.next_retry(Instant::now()), None);
}
