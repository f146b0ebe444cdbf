// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::zds_server::Answer;

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
    }
}

fn state(sandboxes: &[Sandbox]) -> State {
    let options = Options {
        enrolment: Settings::default(),
        families: Families::Dual,
        dns: Dns::Untouched,
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
    let answer = Answer {
        netns: NetnsId { dev: 4, ino },
        error: error.into(),
    };
    state.answers_arrived([(uid.to_owned(), answer)].into());
}

/// Does all that is due, successfully; tells what that was.
fn settle(state: &mut State, continuity: Continuity) -> Vec<String> {
    let mut done = Vec::new();
    while let Some(step) = state.next(Instant::now()) {
        assert!(done.len() < 10, "no end of it: {done:?}");
        match step {
            Step::Capture { sandbox, options } => {
                state.captured(&sandbox, options, continuity);
                done.push(format!("capture {}", sandbox.uid));
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
fn a_new_pod_is_pending_until_ztunnel_consents() {
    let mut state = state(&[]);
    state.pod_applied(pod("a"));
    assert_eq!(settle(&mut state, Continuity::Fresh), [""; 0]);
    assert!(state.wanted().is_empty());
    state.sandbox_arrived(sandbox("a", 1));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a pending"]
    );
    assert_eq!(state.wanted()["a"].1, Some(NetnsId { dev: 4, ino: 1 }));
    assert_eq!(
        state.members(),
        [("10.77.0.2".parse().unwrap(), "a".to_owned())].into()
    );
    answer(&mut state, "a", 1, "");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a enabled"]
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
        ["capture a", "annotate a pending"]
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
    assert_eq!(state.wanted()["a"].1, None);
}

#[test]
fn labels_enrol_and_release_running_pods() {
    let mut state = state(&[]);
    state.namespace_applied("shop", Labels::new());
    state.pod_applied(pod("a"));
    state.sandbox_arrived(sandbox("a", 1));
    assert_eq!(settle(&mut state, Continuity::Fresh), [""; 0]);
    state.namespace_applied("shop", labels("ambient"));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a pending"]
    );
    state.namespace_deleted("shop");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["release a", "annotate a nothing"]
    );
    assert!(state.wanted().is_empty());
    assert!(state.members().is_empty());
}

#[test]
fn rules_of_a_leaving_pod_hold_until_ztunnel_has_let_go() {
    let mut state = state(&[]);
    state.pod_applied(pod("a"));
    state.sandbox_arrived(sandbox("a", 1));
    answer(&mut state, "a", 1, "");
    settle(&mut state, Continuity::Fresh);
    state.namespace_deleted("shop");
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a nothing"],
        "ztunnel still serves it"
    );
    assert!(state.wanted().is_empty(), "ztunnel is asked to let go");
    state.answers_arrived(Answers::new());
    assert_eq!(settle(&mut state, Continuity::Fresh), ["release a"]);
}

#[test]
fn a_silent_ztunnel_does_not_keep_a_pod_captured_for_good() {
    let mut state = state(&[]);
    state.pod_applied(pod("a"));
    state.sandbox_arrived(sandbox("a", 1));
    answer(&mut state, "a", 1, "");
    settle(&mut state, Continuity::Fresh);
    state.namespace_deleted("shop");
    let start = Instant::now();
    settle(&mut state, Continuity::Fresh);
    let retry = state.next_retry(start).expect("it asks again");
    assert!(retry <= Instant::now() + RELEASE_PATIENCE);
    assert_eq!(state.next(retry - Duration::from_millis(1)), None);
    assert!(matches!(state.next(retry), Some(Step::Release { .. })));
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
    let mut state = state(&[sandbox("a", 1)]);
    state.pod_applied(pod("a"));
    settle(&mut state, Continuity::Fresh);
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
    let mut state = state(&[]);
    state.pod_applied(pod("a"));
    state.sandbox_arrived(sandbox("a", 1));
    answer(&mut state, "a", 1, "");
    settle(&mut state, Continuity::Fresh);
    state.sandbox_arrived(sandbox("a", 2));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a pending"]
    );
}

#[test]
fn changed_annotations_change_the_rules() {
    let mut state = state(&[sandbox("a", 1)]);
    state.pod_applied(pod("a"));
    settle(&mut state, Continuity::Fresh);
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
    let mut state = state(&[sandbox("a", 1), sandbox("b", 2)]);
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
    let mut state = state(&[]);
    state.pod_applied(pod("a"));
    state.sandbox_arrived(sandbox("a", 1));
    settle(&mut state, Continuity::Fresh);
    state.sandbox_torn_down("a");
    assert!(state.wanted().is_empty());
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["annotate a nothing"]
    );
    state.sandbox_arrived(sandbox("a", 2));
    assert_eq!(
        settle(&mut state, Continuity::Fresh),
        ["capture a", "annotate a pending"]
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
