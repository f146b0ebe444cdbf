// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::HeaderMap;
use mesh::address::{NamespacedHostname, Ports};
use mesh::service::{LoadBalancer, Mode, Scope};
use mesh::workload::Membership;
use mesh::{Endpoint, Standings};
use proto::waypoint::SessionPersistence;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;
use crate::resilience::outlier::Policy;
use crate::resilience::retry::Outcome;
use crate::route::{Destination, Protocol, RuleName};
use crate::session::{Session, UnixTime};

const HOST: &str = "cart.shop.svc.cluster.local";

/// A service with endpoints `a`, `b`, ...; those in capitals on the waypoint's own node.
struct Mesh {
    store: Store,
    service: Arc<Service>,
    waypoint: Workload,
    standings: Standings,
    outliers: Outliers,
    loads: Loads,
    slow_start: SlowStart,
    least_well: u32,
    members: Option<BTreeSet<String>>,
    locality: Option<Locality>,
    tried: Vec<Endpoint>,
    now: Instant,
}

fn at(name: &str) -> Endpoint {
    Endpoint {
        workload: name.into(),
        port: 8080,
    }
}

fn workload(name: &str) -> Workload {
    let identity = "spiffe://cluster.local/ns/shop/sa/cart".parse().unwrap();
    let mut workload = Workload::new(name, "shop", identity);
    workload.addresses = vec!["10.0.0.1".parse().unwrap()];
    let is_near = name.chars().all(char::is_uppercase);
    workload.node = if is_near { "here" } else { "there" }.into();
    workload.services = vec![Membership {
        service: NamespacedHostname::new("shop", HOST),
        ports: Ports::from_iter([(80, 8080)]),
    }]
    .into();
    workload
}

fn mesh(endpoints: &[&str]) -> Mesh {
    let mut store = Store::new(None);
    let mut service = Service::new("shop", HOST);
    service.ports = Ports::from_iter([(80, 8080)]);
    service.load_balancer = LoadBalancer {
        routing_preferences: vec![Scope::Node],
        mode: Mode::Failover,
        ..LoadBalancer::default()
    };
    store.upsert_service(service);
    for name in endpoints {
        store.upsert_workload(workload(name));
    }
    let service = store.service("shop", HOST).unwrap().clone();
    let now = Instant::now();
    let loads = Loads::default();
    let loads = loads.settle(
        endpoints.iter().map(|name| at(name)),
        |_| Arc::default(),
        now,
    );
    Mesh {
        store,
        service,
        waypoint: workload("WAYPOINT"),
        standings: Standings::default(),
        outliers: Outliers::default(),
        loads,
        slow_start: SlowStart::default(),
        least_well: 0,
        members: None,
        locality: None,
        tried: Vec::new(),
        now,
    }
}

impl Mesh {
    fn put_out(&mut self, name: &str) {
        let policy = Policy {
            gateway: 1,
            most: 100,
            ..Policy::default()
        };
        let out = self
            .outliers
            .ended(&policy, &at(name), Outcome::Status(503), 100, self.now);
        assert!(out.is_some());
    }

    fn carry(&self, name: &str, requests: u32) {
        let load = self.loads.of(&at(name)).unwrap();
        load.counter().store(requests, Ordering::Relaxed);
    }

    fn pick(
        &self,
        pin: Option<Pin>,
        strategy: Strategy,
        rng: &mut StdRng,
    ) -> Result<String, NoEndpoint> {
        let asked = Asked {
            service: &self.service,
            port: 80,
            pin,
            strategy,
        };
        let seen = Seen {
            standings: &self.standings,
            tried: &self.tried,
            now: self.now,
        };
        let observed = Observed {
            seen,
            outliers: &self.outliers,
            loads: &self.loads,
            slow_start: self.slow_start,
            least_well: self.least_well,
            members: self.members.as_ref(),
            locality: self.locality.as_ref(),
        };
        let picked = pick(&self.store, &self.waypoint, asked, observed, rng)?;
        assert_eq!(picked.port, 8080);
        Ok(picked.workload.uid.to_string())
    }

    /// How often each is picked in a thousand tries.
    fn picks(&self, strategy: Strategy) -> BTreeMap<String, u32> {
        let mut rng = StdRng::seed_from_u64(1);
        let mut counts = BTreeMap::new();
        for _ in 0..1000 {
            let picked = self.pick(None, strategy, &mut rng).unwrap();
            *counts.entry(picked).or_default() += 1;
        }
        counts
    }

    fn names(&self, strategy: Strategy) -> String {
        let picks = self.picks(strategy);
        picks.into_keys().collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn near_ones_first_and_those_that_are_out_never() {
    let mut mesh = mesh(&["A", "B", "c", "d"]);
    assert_eq!(mesh.names(Strategy::LeastRequest), "A B");
    mesh.put_out("A");
    assert_eq!(mesh.names(Strategy::LeastRequest), "B");
    // Who is out makes the service fail over, as who can't be connected to.
    mesh.standings.failed(&at("B"), mesh.now);
    assert_eq!(mesh.names(Strategy::LeastRequest), "c d");
    mesh.tried = vec![at("c")];
    assert_eq!(mesh.names(Strategy::LeastRequest), "d");
    // All are bad: the near ones, as before.
    mesh.tried.clear();
    mesh.put_out("c");
    mesh.put_out("d");
    assert_eq!(mesh.names(Strategy::LeastRequest), "B");
    mesh.put_out("B");
    assert_eq!(mesh.names(Strategy::LeastRequest), "A");
    mesh.now += Duration::from_secs(31);
    assert_eq!(mesh.names(Strategy::LeastRequest), "A B");
}

#[test]
fn only_members_are_used_even_where_they_are_out_or_the_client_was_elsewhere() {
    let mut mesh = mesh(&["a", "b", "c"]);
    mesh.members = Some(["a".to_owned(), "gone".to_owned()].into());
    assert_eq!(mesh.names(Strategy::LeastRequest), "a");
    mesh.put_out("a");
    assert_eq!(mesh.names(Strategy::LeastRequest), "a");
    let picked = mesh.pick(
        Some(pin("b")),
        Strategy::Random,
        &mut StdRng::seed_from_u64(1),
    );
    assert_eq!(picked.as_deref(), Ok("a"));
    mesh.tried.push(at("a"));
    let mut rng = StdRng::seed_from_u64(1);
    assert_eq!(
        mesh.pick(None, Strategy::Random, &mut rng),
        Err(NoEndpoint::AllTried)
    );
    mesh.tried.clear();
    mesh.members = Some(["gone".to_owned()].into());
    assert_eq!(
        mesh.pick(None, Strategy::Random, &mut rng),
        Err(NoEndpoint::Empty)
    );
}

#[test]
fn rules_have_their_own_idea_of_what_is_near() {
    use proto::waypoint as wire;
    let mut mesh = mesh(&["A", "b", "c"]);
    for (name, region) in [("A", "eu"), ("b", "us"), ("c", "us")] {
        let mut moved = workload(name);
        moved.locality = Arc::new(mesh::workload::Locality {
            region: region.into(),
            ..Default::default()
        });
        mesh.store.upsert_workload(moved);
    }
    mesh.waypoint.locality = Arc::new(mesh::workload::Locality {
        region: "us".into(),
        ..Default::default()
    });
    assert_eq!(mesh.names(Strategy::Random), "A");
    let by_region = wire::LocalityPreference {
        scopes: vec![wire::locality_preference::Scope::Region.into()],
        ..Default::default()
    };
    mesh.locality = Some(Locality::compile(&by_region).unwrap());
    assert_eq!(mesh.names(Strategy::Random), "b c");
    // Who fails or errs makes room for others.
    mesh.put_out("b");
    mesh.standings.failed(&at("c"), mesh.now);
    assert_eq!(mesh.names(Strategy::Random), "A");
    mesh.now += Duration::from_secs(31);
    let share = |to: &str, weight| wire::locality_preference::Share {
        to: to.into(),
        weight,
    };
    let shares = wire::LocalityPreference {
        distribute: vec![wire::locality_preference::Distribution {
            from: "us".into(),
            to: vec![share("us", 80), share("eu", 20)],
        }],
        ..Default::default()
    };
    mesh.locality = Some(Locality::compile(&shares).unwrap());
    let picks = mesh.picks(Strategy::LeastRequest);
    let far = picks.get("A").copied().unwrap_or_default();
    assert!((150..250).contains(&far), "{picks:?}");
    // What has one key always goes the same way.
    for key in [b"anna", b"bert"] {
        let picks = mesh.picks(Strategy::Hash(Key::new(key)));
        assert_eq!(picks.len(), 1, "{picks:?}");
    }
}

#[test]
fn when_all_are_out_all_are_used() {
    let mut mesh = mesh(&["a", "b"]);
    mesh.put_out("a");
    mesh.put_out("b");
    assert_eq!(mesh.names(Strategy::LeastRequest), "a b");
}

#[test]
fn where_too_few_are_well_all_are_used() {
    let mut mesh = mesh(&["a", "b", "c", "d"]);
    mesh.put_out("a");
    mesh.standings.failed(&at("b"), mesh.now);
    assert_eq!(mesh.names(Strategy::LeastRequest), "c d");
    mesh.least_well = 50;
    assert_eq!(mesh.names(Strategy::LeastRequest), "c d");
    mesh.least_well = 51;
    assert_eq!(mesh.names(Strategy::LeastRequest), "a b c d");
    // Also where none is out but by its connections.
    mesh.now += Duration::from_secs(31);
    mesh.standings.failed(&at("b"), mesh.now);
    assert_eq!(mesh.names(Strategy::LeastRequest), "a c d");
    mesh.least_well = 76;
    assert_eq!(mesh.names(Strategy::LeastRequest), "a b c d");
}

#[test]
fn turns_are_shared_evenly_and_by_weight() {
    let mesh = mesh(&["a", "b", "c"]);
    let mut rng = StdRng::seed_from_u64(1);
    let mut counts = BTreeMap::<_, u32>::new();
    let mut last = String::new();
    for turn in 0..300 {
        let picked = mesh
            .pick(None, Strategy::RoundRobin(turn), &mut rng)
            .unwrap();
        assert_ne!(picked, last, "{turn}");
        *counts.entry(picked.clone()).or_default() += 1;
        last = picked;
    }
    assert!(
        counts.values().all(|count| (97..=103).contains(count)),
        "{counts:?}"
    );
    let mut weighed = [0; 3];
    for turn in 0..1000 {
        weighed[by_turn(turn, [1, 0, 3].into_iter()).unwrap()] += 1;
    }
    assert!(
        (247..=253).contains(&weighed[0]) && weighed[1] == 0,
        "{weighed:?}"
    );
    assert_eq!(by_turn(5, [0, 0].into_iter()), None);
    // Whatever they have to do.
    let random = mesh.picks(Strategy::Random);
    assert!(
        random.values().all(|count| (260..400).contains(count)),
        "{random:?}"
    );
}

#[test]
fn the_less_busy_of_two_is_taken() {
    let mesh = mesh(&["a", "b"]);
    mesh.carry("a", 3);
    assert_eq!(mesh.names(Strategy::LeastRequest), "b");
}

#[test]
fn the_quicker_of_two_is_taken() {
    let mesh = mesh(&["a", "b"]);
    mesh.loads
        .answered(&at("a"), Duration::from_millis(200), mesh.now);
    mesh.loads
        .answered(&at("b"), Duration::from_millis(10), mesh.now);
    assert_eq!(mesh.names(Strategy::PeakEwma), "b");
    // Until it has so much that the slow one answers sooner.
    mesh.carry("b", 30);
    assert_eq!(mesh.names(Strategy::PeakEwma), "a");
}

#[test]
fn keys_stay_with_their_endpoint() {
    let mesh = mesh(&["a", "b", "c"]);
    let mut rng = StdRng::seed_from_u64(1);
    let mut owners = BTreeSet::new();
    for user in 0..50 {
        let strategy = Strategy::Hash(Key::new(format!("user-{user}").as_bytes()));
        let owner = mesh.pick(None, strategy, &mut rng).unwrap();
        for _ in 0..5 {
            assert_eq!(mesh.pick(None, strategy, &mut rng), Ok(owner.clone()));
        }
        owners.insert(owner);
    }
    assert_eq!(owners.len(), 3);
}

#[test]
fn new_endpoints_begin_with_little() {
    let mut mesh = mesh(&["a", "b"]);
    mesh.slow_start.window = Duration::from_secs(100);
    mesh.store.upsert_workload(workload("new"));
    let all = ["a", "b", "new"].map(at);
    mesh.loads = mesh.loads.settle(all, |_| Arc::default(), mesh.now);
    // Equally busy all along, so that weight decides who is of the two.
    let early = mesh.picks(Strategy::LeastRequest)["new"];
    mesh.now += Duration::from_secs(100);
    let late = mesh.picks(Strategy::LeastRequest)["new"];
    assert!(
        (20..100).contains(&early) && (280..390).contains(&late),
        "{early} {late}"
    );
}

fn pin(name: &str) -> Pin {
    let rule = RuleName {
        kind: "HTTPRoute".into(),
        namespace: "shop".into(),
        route: "r".into(),
        rule: "#0".into(),
    };
    let session = Session::compile(&SessionPersistence::default(), &rule).unwrap();
    let to = Destination {
        namespace: "shop".into(),
        hostname: HOST.into(),
        port: 80,
        protocol: Protocol::Http1,
        policy: Arc::default(),
    };
    let mut headers = HeaderMap::new();
    session.write(None, &to, &at(name), UnixTime(1), &mut headers);
    let cookie = headers["set-cookie"].clone();
    session
        .read(
            &HeaderMap::from_iter([(http::header::COOKIE, cookie)]),
            UnixTime(1),
        )
        .unwrap()
}

#[test]
fn a_session_stays_while_its_endpoint_is_well() {
    let mut mesh = mesh(&["A", "B", "c"]);
    let mut rng = StdRng::seed_from_u64(1);
    let mut pick = |mesh: &Mesh, name: &str| {
        mesh.pick(Some(pin(name)), Strategy::LeastRequest, &mut rng)
            .unwrap()
    };
    // Wherever it is.
    for _ in 0..20 {
        assert_eq!(pick(&mesh, "c"), "c");
    }
    // What is not of the service is not picked, whatever a client says.
    assert_ne!(pick(&mesh, "WAYPOINT"), "WAYPOINT");
    mesh.tried = vec![at("c")];
    assert_ne!(pick(&mesh, "c"), "c");
    mesh.tried.clear();
    mesh.put_out("c");
    assert_ne!(pick(&mesh, "c"), "c");
    mesh.standings.failed(&at("A"), mesh.now);
    assert_eq!(pick(&mesh, "A"), "B");
}

#[test]
fn what_left_none_is_named() {
    let none = mesh(&[]);
    let mut mesh = mesh(&["a"]);
    mesh.tried = vec![at("a")];
    let mut rng = StdRng::seed_from_u64(1);
    assert_eq!(
        mesh.pick(None, Strategy::LeastRequest, &mut rng),
        Err(NoEndpoint::AllTried)
    );
    assert_eq!(
        none.pick(None, Strategy::PeakEwma, &mut rng),
        Err(NoEndpoint::Empty)
    );
}
