// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::parse;
use crate::source::Event;

const PODS: [Kind; 1] = [Kind::Pod];

fn pod(name: &str, label: &str) -> Report {
    let json = format!(r#"{{"metadata": {{"name": "{name}", "labels": {{"v": "{label}"}}}}}}"#);
    let object = parse::object(Kind::Pod, &json).expect("a pod");
    Report::Applied(object.key(), Packed::new(&object))
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced(Kind::Pod, "default", name)
}

fn broken(name: &str) -> Report {
    let json = format!(r#"{{"metadata": {{"name": "{name}"}}, "spec": 1}}"#);
    Report::Broken(parse::object(Kind::Pod, &json).expect_err("no pod"))
}

/// What the next batch says, as in `+web -api !web`.
fn said(ledger: &mut Ledger) -> Option<String> {
    let batch = ledger.commit()?;
    let events = batch.events.into_iter().map(|event| match event {
        Event::Applied(object) => format!("+{}", object.name()),
        Event::Deleted(key) => format!("-{}", key.name),
    });
    let problems = batch.problems.iter().map(|problem| match &problem.object {
        Some(key) => format!("!{}", key.name),
        None => format!("!{}", problem.reason),
    });
    Some(events.chain(problems).collect::<Vec<_>>().join(" "))
}

#[track_caller]
fn check(ledger: &mut Ledger, reports: impl IntoIterator<Item = Report>, expected: Option<&str>) {
    for report in reports {
        ledger.take(Kind::Pod, report);
    }
    assert_eq!(said(ledger).as_deref(), expected);
}

/// A ledger whose readers know of `web` and `api`.
fn known() -> Ledger {
    let mut ledger = Ledger::new(PODS);
    let first = [
        Report::Listing,
        pod("web", "1"),
        pod("api", "1"),
        Report::Listed,
    ];
    check(&mut ledger, first, Some("+api +web"));
    ledger
}

#[test]
fn nothing_is_told_before_every_kind_has_been_heard_of() {
    let mut ledger = Ledger::new([Kind::Pod, Kind::Service]);
    check(
        &mut ledger,
        [Report::Listing, pod("web", "1"), Report::Listed],
        None,
    );
    ledger.take(Kind::Service, Report::Listing);
    assert!(!ledger.has_news());
    ledger.take(Kind::Service, Report::Listed);
    assert!(ledger.has_news());
    assert_eq!(said(&mut ledger).as_deref(), Some("+web"));
    assert_eq!(said(&mut ledger), None);
}

#[test]
fn the_first_batch_comes_even_if_there_is_nothing() {
    let mut ledger = Ledger::new(PODS);
    check(&mut ledger, [Report::Listing, Report::Listed], Some(""));
}

#[test]
fn only_what_changed_is_told() {
    let mut ledger = known();
    check(&mut ledger, [pod("web", "1")], None);
    check(
        &mut ledger,
        [pod("web", "2"), Report::Gone(key("api"))],
        Some("-api +web"),
    );
}

#[test]
fn a_new_listing_takes_away_what_it_does_not_show() {
    let mut ledger = known();
    check(&mut ledger, [Report::Listing, pod("web", "1")], None);
    check(&mut ledger, [Report::Listed], Some("-api"));
    check(&mut ledger, [Report::Listing, Report::Listed], Some("-web"));
}

#[test]
fn a_listing_that_was_cut_short_takes_nothing_away() {
    let mut ledger = known();
    let cut = [Report::Listing, pod("web", "1")];
    let whole = [
        Report::Listing,
        pod("api", "1"),
        pod("web", "1"),
        Report::Listed,
    ];
    check(&mut ledger, cut.into_iter().chain(whole), None);
}

#[test]
fn what_cannot_be_read_keeps_its_last_good_form_until_it_is_gone() {
    let mut ledger = known();
    check(&mut ledger, [broken("web")], Some("!web"));
    let again = [
        Report::Listing,
        broken("web"),
        pod("api", "1"),
        Report::Listed,
    ];
    check(&mut ledger, again, None);
    check(&mut ledger, [pod("web", "1")], Some(""));
    check(&mut ledger, [broken("web")], Some("!web"));
    check(&mut ledger, [Report::Gone(key("web"))], Some("-web"));
}

#[test]
fn what_could_never_be_read_is_a_problem_and_no_object() {
    let mut ledger = known();
    check(&mut ledger, [broken("odd")], Some("!odd"));
    check(&mut ledger, [Report::Gone(key("odd"))], Some(""));
}

#[test]
fn what_came_and_went_between_two_batches_is_not_told() {
    let mut ledger = known();
    check(
        &mut ledger,
        [pod("new", "1"), Report::Gone(key("new"))],
        None,
    );
    // Deleted and made again: applied alone, and deleted later.
    check(
        &mut ledger,
        [Report::Gone(key("web")), pod("web", "1")],
        Some("+web"),
    );
    let again = [
        Report::Gone(key("web")),
        pod("web", "2"),
        Report::Gone(key("web")),
    ];
    check(&mut ledger, again, Some("-web"));
}

#[test]
fn how_it_stands_with_a_kind_is_told_once() {
    let mut ledger = known();
    let lost = || Report::Standing(Some((Severity::Error, "no answer".to_owned())));
    check(&mut ledger, [lost()], Some("!Pod: no answer"));
    check(&mut ledger, [lost()], None);
    check(&mut ledger, [Report::Standing(None)], Some(""));
}
