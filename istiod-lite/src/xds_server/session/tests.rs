// SPDX-License-Identifier: Apache-2.0
//! A scripted client against the session and a real catalogue.

mod demand;

use proto::ads;

use super::*;
use crate::catalogue::{Catalogue, Change, Place};

const ADDRESS: ResourceType = ResourceType::Address;
const POLICY: ResourceType = ResourceType::Authorization;

struct Client {
    session: Session,
    catalogue: Catalogue,
}

/// What one response said: type, names, names removed.
type Said = (&'static str, Vec<String>, Vec<String>);

impl Client {
    fn new(resources: &[(ResourceType, &str)]) -> Self {
        let client = Self {
            session: Session::default(),
            catalogue: Catalogue::default(),
        };
        let all: Vec<_> = resources
            .iter()
            .map(|(of, name)| (*of, *name, Some("1")))
            .collect();
        client.publish(&all);
        client
    }

    fn publish(&self, changes: &[(ResourceType, &str, Option<&'static str>)]) {
        let change = |(of, name, body): &(ResourceType, &str, Option<&'static str>)| Change {
            place: Place::new(*of, None, *name),
            body: body.map(|text| bytes::Bytes::from_static(text.as_bytes())),
        };
        self.catalogue.publish(changes.iter().map(change).collect());
    }

    fn ask(&mut self, request: DeltaDiscoveryRequest) -> Heard {
        self.session.hear(request).expect("no violation")
    }

    fn subscribe(&mut self, of: ResourceType) {
        self.ask(wildcard(of));
    }

    fn push(&mut self) -> Vec<DeltaDiscoveryResponse> {
        self.session
            .push(&self.catalogue.read())
            .expect("remembered")
            .responses
    }

    fn pushed(&mut self) -> Vec<Said> {
        self.push().iter().map(said).collect()
    }

    fn acknowledge(&mut self, responses: &[DeltaDiscoveryResponse]) {
        for response in responses {
            let heard = self.ask(answer(response, None));
            assert!(matches!(heard, Heard::Accepted(_)), "{heard:?}");
        }
    }

    /// Pushes and acknowledges.
    fn settle(&mut self) -> Vec<Said> {
        let responses = self.push();
        self.acknowledge(&responses);
        responses.iter().map(said).collect()
    }
}

fn said(response: &DeltaDiscoveryResponse) -> Said {
    let label = match ResourceType::from_url(&response.type_url) {
        Some(ResourceType::Address) => "address",
        Some(
            of @ (ResourceType::Waypoint
            | ResourceType::WaypointService
            | ResourceType::ConnectionLogs),
        ) => of.label(),
        Some(ResourceType::Authorization) | None => "policy",
    };
    let names = response.resources.iter().map(|r| r.name.clone()).collect();
    (label, names, response.removed_resources.clone())
}

fn wildcard(of: ResourceType) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: of.url().into(),
        ..Default::default()
    }
}

fn answer(response: &DeltaDiscoveryResponse, error: Option<&str>) -> DeltaDiscoveryRequest {
    let status = |message: &str| ads::Status {
        message: message.into(),
        ..Default::default()
    };
    DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        error_detail: error.map(status),
        ..Default::default()
    }
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn policies_go_before_the_workloads_that_name_them_though_asked_for_later() {
    let mut client = Client::new(&[(ADDRESS, "w"), (POLICY, "p")]);
    client.subscribe(ADDRESS);
    assert!(client.session.waits_for_policies());
    assert_eq!(client.pushed(), []);
    client.subscribe(POLICY);
    let order = client.settle();
    assert_eq!(
        order,
        [
            ("policy", names(&["p"]), vec![]),
            ("address", names(&["w"]), vec![])
        ]
    );
    client.publish(&[
        (ADDRESS, "w", Some("2")),
        (POLICY, "q", Some("1")),
        (POLICY, "p", None),
    ]);
    let order = client.settle();
    assert_eq!(
        order,
        [
            ("policy", names(&["q"]), vec![]),
            ("address", names(&["w"]), vec![]),
            ("policy", vec![], names(&["p"])),
        ]
    );
}

#[test]
fn a_client_that_never_asks_for_policies_is_served_after_a_while() {
    let mut client = Client::new(&[(ADDRESS, "w")]);
    client.subscribe(ADDRESS);
    assert_eq!(client.pushed(), []);
    client.session.stop_waiting();
    assert_eq!(client.settle(), [("address", names(&["w"]), vec![])]);
}

#[test]
fn the_first_request_is_answered_even_if_there_is_nothing() {
    let mut client = Client::new(&[]);
    client.subscribe(POLICY);
    assert_eq!(client.settle(), [("policy", vec![], vec![])]);
    assert_eq!(client.settle(), []);
}

#[test]
fn nothing_is_sent_before_the_cluster_is_known() {
    let mut client = Client {
        session: Session::default(),
        catalogue: Catalogue::default(),
    };
    client.subscribe(POLICY);
    assert_eq!(client.pushed(), []);
}

#[test]
fn changes_during_a_push_are_merged_into_the_next() {
    let mut client = Client::new(&[(POLICY, "p")]);
    client.subscribe(POLICY);
    let first = client.push();
    client.publish(&[(POLICY, "p", Some("2")), (POLICY, "q", Some("1"))]);
    client.publish(&[(POLICY, "p", Some("3")), (POLICY, "q", None)]);
    assert_eq!(client.pushed(), [], "one push at a time");
    client.acknowledge(&first);
    assert_eq!(client.settle(), [("policy", names(&["p"]), names(&["q"]))]);
}

#[test]
fn a_client_that_comes_back_gets_only_what_it_does_not_hold() {
    let mut client = Client::new(&[(POLICY, "same"), (POLICY, "changed"), (POLICY, "new")]);
    let version = {
        let tables = client.catalogue.read();
        tables
            .of(POLICY)
            .get("same")
            .expect("there")
            .1
            .version
            .to_string()
    };
    let held = [
        ("same".to_owned(), version),
        ("changed".to_owned(), "0".to_owned()),
        ("gone".to_owned(), "1".to_owned()),
    ];
    client.ask(DeltaDiscoveryRequest {
        initial_resource_versions: held.into(),
        ..wildcard(POLICY)
    });
    assert_eq!(
        client.settle(),
        [("policy", names(&["changed", "new"]), names(&["gone"]))]
    );
}

#[test]
fn after_a_rejection_nothing_is_sent_again_until_the_next_change() {
    let mut client = Client::new(&[(POLICY, "p")]);
    client.subscribe(POLICY);
    let first = client.push();
    let heard = client.ask(answer(&first[0], Some("p: bad")));
    assert_eq!(heard, Heard::Rejected(POLICY, "p: bad".into()));
    assert_eq!(
        client.session.report()["authorization"].rejected.as_deref(),
        Some("p: bad")
    );
    assert_eq!(client.settle(), []);
    client.publish(&[(POLICY, "p", Some("2"))]);
    assert_eq!(client.settle(), [("policy", names(&["p"]), vec![])]);
    assert_eq!(client.session.report()["authorization"].rejected, None);
}

#[test]
fn answers_to_forgotten_responses_are_ignored() {
    let mut client = Client::new(&[(POLICY, "p")]);
    client.subscribe(POLICY);
    let first = client.push();
    client.acknowledge(&first);
    assert_eq!(client.ask(answer(&first[0], None)), Heard::Stale(POLICY));
    assert!(client.session.is_idle());
}

#[test]
fn a_client_by_name_gets_its_names_and_learns_which_do_not_exist() {
    let mut client = Client::new(&[(POLICY, "a"), (POLICY, "b")]);
    // Subscribing to and unsubscribing from everything at once means: nothing yet.
    client.ask(DeltaDiscoveryRequest {
        resource_names_subscribe: names(&["*"]),
        resource_names_unsubscribe: names(&["*"]),
        ..wildcard(POLICY)
    });
    assert_eq!(client.settle(), [("policy", vec![], vec![])]);
    let subscribe = names(&["a", "x"]);
    client.ask(DeltaDiscoveryRequest {
        resource_names_subscribe: subscribe,
        ..wildcard(POLICY)
    });
    assert_eq!(client.settle(), [("policy", names(&["a"]), names(&["x"]))]);
    client.publish(&[
        (POLICY, "a", Some("2")),
        (POLICY, "b", Some("2")),
        (POLICY, "x", Some("1")),
    ]);
    assert_eq!(client.settle(), [("policy", names(&["a", "x"]), vec![])]);
    let unsubscribe = names(&["a"]);
    client.ask(DeltaDiscoveryRequest {
        resource_names_unsubscribe: unsubscribe,
        ..wildcard(POLICY)
    });
    assert_eq!(client.settle(), [("policy", vec![], vec![])]);
    client.publish(&[(POLICY, "a", None), (POLICY, "x", None)]);
    assert_eq!(client.settle(), [("policy", vec![], names(&["x"]))]);
}

#[test]
fn a_name_asked_for_on_a_wildcard_stream_is_sent_again() {
    let mut client = Client::new(&[(POLICY, "p"), (POLICY, "q")]);
    client.subscribe(POLICY);
    client.settle();
    let again = names(&["p"]);
    client.ask(DeltaDiscoveryRequest {
        resource_names_subscribe: again,
        ..wildcard(POLICY)
    });
    assert_eq!(client.settle(), [("policy", names(&["p"]), vec![])]);
    client.publish(&[(POLICY, "q", Some("2"))]);
    assert_eq!(
        client.settle(),
        [("policy", names(&["q"]), vec![])],
        "still everything"
    );
}

#[test]
fn an_unknown_type_is_answered_with_nothing_once() {
    let mut client = Client::new(&[]);
    let request = DeltaDiscoveryRequest {
        type_url: "type/of.Tomorrow".into(),
        ..Default::default()
    };
    let Heard::UnknownType(response) = client.ask(request) else {
        panic!("must be answered")
    };
    assert_eq!(response.type_url, "type/of.Tomorrow");
    assert_eq!(client.ask(answer(&response, None)), Heard::Ignored);
}

#[test]
fn the_number_of_names_is_bounded() {
    let mut session = Session::default();
    let many = (0..=MAX_NAMES).map(|i| i.to_string()).collect();
    let request = DeltaDiscoveryRequest {
        resource_names_subscribe: many,
        ..wildcard(ADDRESS)
    };
    assert_eq!(session.hear(request), Err(Violation::TooManyNames));
}

#[test]
fn a_push_never_takes_more_than_was_said_before() {
    let mut client = Client::new(&[(ADDRESS, "a"), (ADDRESS, "b"), (POLICY, "p")]);
    let at_most = |client: &Client| client.session.at_most(&client.catalogue.read());
    let pushed = |client: &mut Client| {
        let push = client.session.push(&client.catalogue.read());
        let Push { responses, bytes } = push.expect("remembered");
        client.acknowledge(&responses);
        bytes
    };
    assert_eq!(at_most(&client), 0, "nothing is asked for");
    client.subscribe(POLICY);
    client.subscribe(ADDRESS);
    let all = at_most(&client);
    assert!(all > 0);
    assert_eq!(pushed(&mut client), all);
    assert_eq!((at_most(&client), pushed(&mut client)), (0, 0));
    client.publish(&[(ADDRESS, "a", Some("2")), (ADDRESS, "b", None)]);
    let one = at_most(&client);
    assert!(0 < one && one < all, "{one} of {all}");
    assert_eq!(pushed(&mut client), one);
    // What it holds already counts, until it is looked at.
    let tables = client.catalogue.read();
    let version = tables.of(ADDRESS).get("a").expect("it is there").1.version;
    drop(tables);
    let mut back = Client {
        session: Session::default(),
        catalogue: client.catalogue,
    };
    back.ask(DeltaDiscoveryRequest {
        initial_resource_versions: [("a".to_owned(), version.to_string())].into(),
        ..wildcard(ADDRESS)
    });
    back.session.stop_waiting();
    assert!(at_most(&back) > 0);
    assert_eq!(pushed(&mut back), 0);
}

const SERVICE: ResourceType = ResourceType::WaypointService;

fn of_waypoint(waypoint: &str, name: &str, body: Option<&'static str>) -> Change {
    let waypoint = NamespacedName::new("x", waypoint);
    Change {
        place: Place::new(SERVICE, Some(waypoint), name),
        body: body.map(|text| bytes::Bytes::from_static(text.as_bytes())),
    }
}

/// A client that is an instance of this waypoint, or of none.
fn instance(waypoint: Option<&str>) -> Client {
    let mut client = Client::new(&[]);
    let waypoint = waypoint.map(|name| NamespacedName::new("x", name));
    client.session = Session::new(None, waypoint);
    let published = vec![
        of_waypoint("a", "x/s", Some("1")),
        of_waypoint("b", "x/t", Some("1")),
    ];
    client.catalogue.publish(published);
    client.subscribe(SERVICE);
    client
}

#[test]
fn a_waypoint_is_told_of_the_services_that_it_serves_and_of_no_others() {
    let mut client = instance(Some("a"));
    assert_eq!(
        client.settle(),
        [("waypoint_service", names(&["x/s"]), names(&[]))]
    );
    client
        .catalogue
        .publish(vec![of_waypoint("b", "x/t", Some("2"))]);
    assert_eq!(client.settle(), []);
    // A service that passes to another waypoint is gone for the one, and new for the other.
    client.catalogue.publish(vec![
        of_waypoint("a", "x/s", None),
        of_waypoint("b", "x/s", Some("1")),
    ]);
    assert_eq!(
        client.settle(),
        [("waypoint_service", names(&[]), names(&["x/s"]))]
    );
}

#[test]
fn who_is_no_waypoint_is_answered_with_nothing_even_by_name() {
    let mut client = instance(None);
    assert_eq!(
        client.settle(),
        [("waypoint_service", names(&[]), names(&[]))]
    );
    let mut request = wildcard(SERVICE);
    request.resource_names_subscribe = names(&["x/s"]);
    client.ask(request);
    assert_eq!(
        client.settle(),
        [("waypoint_service", names(&[]), names(&["x/s"]))]
    );
    client
        .catalogue
        .publish(vec![of_waypoint("a", "x/s", Some("3"))]);
    assert_eq!(client.settle(), []);
    let mut foreign = instance(Some("b"));
    let mut request = wildcard(SERVICE);
    request.resource_names_subscribe = names(&["x/s"]);
    foreign.settle();
    foreign.ask(request);
    assert_eq!(
        foreign.settle(),
        [("waypoint_service", names(&[]), names(&["x/s"]))]
    );
}

#[test]
fn a_waypoint_that_comes_back_gets_only_what_it_does_not_hold() {
    let mut client = Client::new(&[]);
    client.session = Session::new(None, Some(NamespacedName::new("x", "a")));
    let published = vec![
        of_waypoint("a", "x/s", Some("1")),
        of_waypoint("a", "x/t", Some("2")),
    ];
    client.catalogue.publish(published);
    let held = [
        ("x/s", crate::catalogue::Version::of(b"1").to_string()),
        ("x/u", "old".to_owned()),
    ];
    client.ask(DeltaDiscoveryRequest {
        initial_resource_versions: held
            .map(|(name, version)| (name.to_owned(), version))
            .into(),
        ..wildcard(SERVICE)
    });
    assert_eq!(
        client.settle(),
        [("waypoint_service", names(&["x/t"]), names(&["x/u"]))]
    );
}
