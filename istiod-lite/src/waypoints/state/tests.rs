// SPDX-License-Identifier: Apache-2.0

use super::*;

fn settings() -> Settings {
    Settings {
        image: "registry.example/waypoint:1".to_owned(),
        cluster_id: "one".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        control_plane: "istiod.istio-system.svc:15012".to_owned(),
        root_namespace: "istio-system".to_owned(),
        revisions: vec!["default".to_owned()],
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).expect("a time")
}

/// What is known of one Gateway.
struct Bench {
    state: State,
    gateway: ObjectKey,
}

impl Bench {
    fn new(change: Value) -> Self {
        let mut gateway = json!({
            "metadata": {"namespace": "shop", "name": "waypoint", "uid": "u1", "generation": 3},
            "spec": {
                "gatewayClassName": "istio-waypoint",
                "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
            },
        });
        super::super::overlay::merge(&mut gateway, &change);
        let gateway: kinds::Gateway = serde_json::from_value(gateway).expect("a Gateway");
        let mut state = State::new(settings());
        let key = ObjectKey::namespaced(Kind::Gateway, "shop", "waypoint");
        state.gateways.insert(key.clone(), Arc::new(gateway));
        Self {
            state,
            gateway: key,
        }
    }

    /// Looks up what has to be; of all that only these are there.
    fn look_up(&mut self, there: &[(ObjectKey, Value)]) {
        for key in self.state.lookups(true) {
            let found = there.iter().find(|(known, _)| *known == key);
            self.state
                .learn(key, found.map(|(_, object)| object.clone()));
        }
    }

    /// Does all that is due, as a server would, and says what that was.
    fn round(&mut self) -> Vec<String> {
        let tasks = self.state.due(now(), false).into_iter();
        let done = tasks.map(|task| {
            let said = match &task {
                Task::Make { object, .. } => format!("make {object}"),
                Task::Say { object, .. } => format!("say {object}"),
                Task::Remove { object, .. } => format!("remove {object}"),
            };
            let body = match &task {
                Task::Make { body, .. } => body.clone(),
                Task::Say { object, body } if object.kind == Kind::Gateway => {
                    let gateway = self.state.gateways[object].as_ref();
                    let mut whole = json!({"metadata": gateway.metadata, "spec": gateway.spec});
                    whole["status"] = body["status"].clone();
                    whole
                }
                Task::Say { body, .. } => body.clone(),
                Task::Remove { .. } => Value::Null,
            };
            self.state.done(task, body);
            said
        });
        done.collect()
    }

    fn condition(&self, kind: &str) -> (String, String, String) {
        let status = self.state.gateways[&self.gateway].status.clone();
        let conditions = status.unwrap_or_default().conditions;
        let one = conditions.into_iter().find(|one| one.type_ == kind);
        let one = one.unwrap_or_else(|| panic!("no {kind}"));
        (one.status, one.reason, one.message)
    }

    fn addresses(&self) -> Vec<String> {
        let status = self.state.gateways[&self.gateway].status.clone();
        let addresses = status.unwrap_or_default().addresses;
        addresses.into_iter().map(|one| one.value).collect()
    }

    /// Says this for all Gateways of the class, as of this second.
    fn of_class(&mut self, name: &str, made: i64, data: Value) {
        let made = Timestamp::from_second(made).expect("a time");
        let config = json!({
            "metadata": {"namespace": "istio-system", "name": name, "creationTimestamp": made},
            "data": data,
        });
        let config: kinds::ConfigMap = serde_json::from_value(config).expect("a ConfigMap");
        self.state.put(Object::ConfigMap(Arc::new(config)));
    }

    fn made(&mut self, kind: Kind) -> &mut Value {
        let mut made = self.state.made.iter_mut();
        let found = made.find(|(key, _)| key.kind == kind);
        found.map(|(_, object)| object).expect("made")
    }
}

const ALL: [&str; 4] = [
    "make ServiceAccount shop/waypoint",
    "make Deployment shop/waypoint",
    "make Service shop/waypoint",
    "say Gateway shop/waypoint",
];

#[test]
fn what_a_gateway_needs_is_made_once_and_it_has_addresses_once_an_instance_is_ready() {
    let mut bench = Bench::new(json!({}));
    assert_eq!(
        bench.round(),
        [""; 0],
        "nobody knows yet whose the names are"
    );
    bench.look_up(&[]);
    assert_eq!(bench.round(), ALL);
    assert_eq!(bench.round(), [""; 0]);
    assert_eq!(bench.condition("Programmed").1, "AddressNotAssigned");
    assert_eq!(bench.addresses(), [""; 0]);
    bench.made(Kind::Service)["spec"]["clusterIPs"] = json!(["10.0.0.7", "fd00::7"]);
    assert_eq!(
        bench.round(),
        [""; 0],
        "an address alone is nobody who answers"
    );
    bench.made(Kind::Deployment)["status"] = json!({"readyReplicas": 1});
    assert_eq!(bench.round(), ALL[3..]);
    let programmed = ("True".to_owned(), "Programmed".to_owned(), String::new());
    assert_eq!(bench.condition("Programmed"), programmed);
    let expected = ["10.0.0.7", "fd00::7", "waypoint.shop.svc.cluster.local"];
    assert_eq!(bench.addresses(), expected);
    // They stay while nobody is ready.
    bench.made(Kind::Deployment)["status"] = json!({});
    assert_eq!(bench.round(), [""; 0]);
}

#[test]
fn what_somebody_changes_or_deletes_is_put_back_and_what_is_added_stays() {
    let mut bench = Bench::new(json!({}));
    bench.look_up(&[]);
    bench.round();
    bench.made(Kind::Deployment)["spec"]["replicas"] = json!(3);
    bench.made(Kind::Service)["spec"]["ports"][0]["nodePort"] = json!(30000);
    assert_eq!(bench.round(), [""; 0]);
    let image = "/spec/template/spec/containers/0/image";
    *bench
        .made(Kind::Deployment)
        .pointer_mut(image)
        .expect("an image") = json!("other");
    assert_eq!(bench.round(), ALL[1..2]);
    bench.made(Kind::Service)["metadata"]["ownerReferences"] = json!([]);
    assert_eq!(bench.round(), ALL[2..3]);
    bench.state.made.clear();
    assert_eq!(bench.round(), ALL[..3]);
}

#[test]
fn what_nobody_made_for_it_is_left_alone() {
    let mut bench = Bench::new(json!({}));
    let service = ObjectKey::namespaced(Kind::Service, "shop", "waypoint");
    bench.look_up(&[(service.clone(), json!({"metadata": {}}))]);
    let done = bench.round();
    assert!(!done.contains(&ALL[2].to_owned()), "{done:?}");
    let (status, reason, words) = bench.condition("Programmed");
    assert_eq!((&*status, &*reason), ("False", "Invalid"));
    assert!(words.contains("Service shop/waypoint"), "{words}");
    // Whose mark somebody took away is its own all the same.
    let own = json!({"metadata": {"ownerReferences": [{"uid": "u1"}]}});
    bench.look_up(&[(service, own)]);
    assert!(bench.round().contains(&ALL[2].to_owned()));
}

#[test]
fn a_gateway_of_another_class_revision_or_later_controller_is_nobody_of_ours() {
    for change in [
        json!({"spec": {"gatewayClassName": "istio"}}),
        json!({"metadata": {"labels": {"istio.io/rev": "canary"}}}),
        json!({"metadata": {"annotations": {"gateway.istio.io/controller-version": "6"}}}),
        json!({"metadata": {"annotations": {"gateway.istio.io/controller-version": "x"}}}),
    ] {
        let mut bench = Bench::new(change.clone());
        bench.look_up(&[]);
        assert_eq!(bench.round(), [""; 0], "{change}");
    }
}

#[test]
fn what_can_not_be_had_is_said_and_nothing_is_made() {
    let reference = |kind: &str, name: &str| {
        let reference = json!({"group": "", "kind": kind, "name": name});
        json!({"spec": {"infrastructure": {"parametersRef": reference}}})
    };
    let address =
        |kind: &str, value: &str| json!({"spec": {"addresses": [{"type": kind, "value": value}]}});
    let service_type =
        json!({"metadata": {"annotations": {"networking.istio.io/service-type": "ExternalName"}}});
    for (change, reason, words) in [
        (
            reference("Secret", "more"),
            "InvalidParameters",
            "is no ConfigMap",
        ),
        (
            reference("ConfigMap", "more"),
            "InvalidParameters",
            "there is no ConfigMap shop/more",
        ),
        (
            reference("ConfigMap", "../a"),
            "InvalidParameters",
            "is no name",
        ),
        (service_type, "InvalidParameters", "none of ClusterIP"),
        (
            address("IPAddress", "10.0.0.1"),
            "UnsupportedAddress",
            "only a Hostname",
        ),
        (
            address("Hostname", "../../a"),
            "UnsupportedAddress",
            "names no Service",
        ),
    ] {
        let mut bench = Bench::new(change);
        bench.look_up(&[]);
        assert_eq!(bench.round(), ALL[3..]);
        let (status, found, said) = bench.condition("Accepted");
        assert_eq!((&*status, &*found), ("False", reason), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_gateway_may_name_a_service_that_somebody_else_runs() {
    let change = json!({"spec": {"addresses": [{"type": "Hostname", "value": "own.infra.svc.cluster.local"}]}});
    let mut bench = Bench::new(change);
    bench.look_up(&[]);
    assert_eq!(bench.round(), ALL[3..]);
    assert_eq!(bench.condition("Programmed").1, "AddressNotUsable");
    let service = ObjectKey::namespaced(Kind::Service, "infra", "own");
    bench.look_up(&[(service, json!({"spec": {"clusterIP": "10.0.0.9"}}))]);
    assert_eq!(bench.round(), ALL[3..]);
    assert_eq!(
        bench.addresses(),
        ["10.0.0.9", "own.infra.svc.cluster.local"]
    );
}

#[test]
fn a_wrong_listener_is_told_and_the_waypoint_works_all_the_same() {
    let change = json!({"spec": {"listeners": [
        {"name": "mesh", "port": 15008, "protocol": "HBONE"}, {"name": "web", "port": 80, "protocol": "HTTP"},
    ]}});
    let mut bench = Bench::new(change);
    bench.look_up(&[]);
    assert_eq!(bench.round(), ALL);
    assert_eq!(bench.condition("Accepted").1, "ListenersNotValid");
    let status = bench.state.gateways[&bench.gateway].status.clone();
    let listeners = status.unwrap_or_default().listeners;
    let accepted = |position: usize| listeners[position]["conditions"][0]["reason"].clone();
    assert_eq!(
        (accepted(0), accepted(1)),
        (json!("Accepted"), json!("UnsupportedProtocol"))
    );
}

#[test]
fn objects_take_what_the_gateway_and_its_overlay_say() {
    let change = json!({
        "metadata": {
            "labels": {"team": "a", "istio.io/waypoint-for": "all"},
            "annotations": {"gateway.istio.io/service-account": "runner", "networking.istio.io/service-type": "NodePort"},
        },
        "spec": {"infrastructure": {
            "labels": {"team": "b"}, "parametersRef": {"group": "", "kind": "ConfigMap", "name": "more"},
        }},
    });
    let mut bench = Bench::new(change);
    let overlay = "spec:\n  replicas: 2\n  template:\n    spec:\n      containers:\n      - name: istio-proxy\n        image: mine\n";
    let config = ObjectKey::namespaced(Kind::ConfigMap, "shop", "more");
    bench.look_up(&[(config, json!({"data": {"deployment": overlay}}))]);
    let done = bench.round();
    assert_eq!(done[0], "make ServiceAccount shop/runner");
    let deployment = bench.made(Kind::Deployment).clone();
    assert_eq!(deployment["spec"]["replicas"], 2);
    let pod = &deployment["spec"]["template"];
    assert_eq!(pod["spec"]["serviceAccountName"], "runner");
    assert_eq!(pod["spec"]["containers"][0]["image"], "mine");
    assert_eq!(pod["metadata"]["labels"]["team"], "b");
    assert_eq!(pod["metadata"]["labels"]["istio.io/dataplane-mode"], "none");
    assert_eq!(deployment["metadata"]["ownerReferences"][0]["uid"], "u1");
    let service = bench.made(Kind::Service);
    assert_eq!(service["spec"]["type"], "NodePort");
    assert_eq!(service["spec"]["ports"][1]["name"], "mesh");
    assert_eq!(
        service["metadata"]["labels"]["istio.io/waypoint-for"],
        Value::Null
    );
}

#[test]
fn a_class_and_a_gateway_may_ask_for_an_autoscaler_and_a_disruption_budget() {
    let reference = json!({"group": "", "kind": "ConfigMap", "name": "more"});
    let mut bench = Bench::new(json!({"spec": {"infrastructure": {"parametersRef": reference}}}));
    let autoscaler = json!({
        "horizontalPodAutoscaler": "spec: {minReplicas: 2, maxReplicas: 5}", "deployment": "spec: {minReadySeconds: 7}",
    });
    bench.of_class("second", 20, json!({"pod": "nobody reads it"}));
    bench.of_class("first", 10, autoscaler);
    let config = ObjectKey::namespaced(Kind::ConfigMap, "shop", "more");
    let more = json!({
        "horizontalPodAutoscaler": "spec: {maxReplicas: 9}", "podDisruptionBudget": "spec: {minAvailable: 1}",
    });
    bench.look_up(&[(config.clone(), json!({ "data": more }))]);
    bench.round();
    // Now it is known that there are more names to look up.
    bench.look_up(&[(config.clone(), json!({ "data": more }))]);
    let (made_first, optional) = (
        bench.round(),
        ["HorizontalPodAutoscaler", "PodDisruptionBudget"],
    );
    for kind in optional {
        assert!(
            made_first.contains(&format!("make {kind} shop/waypoint")),
            "{made_first:?}"
        );
    }
    let spec = bench.made(Kind::HorizontalPodAutoscaler)["spec"].clone();
    assert_eq!(
        (&spec["minReplicas"], &spec["maxReplicas"]),
        (&json!(2), &json!(9))
    );
    assert_eq!(spec["scaleTargetRef"]["name"], "waypoint");
    let budget = bench.made(Kind::PodDisruptionBudget).clone();
    let selected = "/spec/selector/matchLabels/gateway.networking.k8s.io~1gateway-name";
    assert_eq!(budget.pointer(selected), Some(&json!("waypoint")));
    assert_eq!(budget["metadata"]["ownerReferences"][0]["uid"], "u1");
    assert_eq!(bench.made(Kind::Deployment)["spec"]["minReadySeconds"], 7);
    assert_eq!(bench.round(), [""; 0]);

    // An entry that can't be read takes nothing away, and is told.
    bench.of_class("first", 10, json!({"horizontalPodAutoscaler": "["}));
    assert_eq!(bench.round(), ALL[3..]);
    let (_, reason, words) = bench.condition("Accepted");
    assert_eq!(reason, "InvalidParameters");
    assert!(
        words.contains("ConfigMap istio-system/first: data.horizontalPodAutoscaler"),
        "{words}"
    );

    // Nobody asks for them any more; one is not the Gateway's.
    bench.of_class("first", 10, json!({}));
    bench.look_up(&[(config, json!({}))]);
    bench.made(Kind::PodDisruptionBudget)["metadata"]["ownerReferences"] = json!([]);
    let done = bench.round();
    let removed: Vec<_> = done
        .iter()
        .filter(|task| task.starts_with("remove"))
        .collect();
    assert_eq!(removed, ["remove HorizontalPodAutoscaler shop/waypoint"]);
}

#[test]
fn the_class_is_made_where_there_is_none_and_another_of_that_name_is_left_alone() {
    let mut state = State::new(settings());
    assert_eq!(state.due(now(), false), []);
    let mut tasks = state.due(now(), true);
    let class = ObjectKey::cluster_wide(Kind::GatewayClass, "istio-waypoint");
    let Some(Task::Make { object, body }) = tasks.pop() else {
        panic!("nothing is made");
    };
    assert_eq!(
        (&object, &body["spec"]["controllerName"]),
        (&class, &json!("istio.io/mesh-controller"))
    );
    let made = body.clone();
    state.done(Task::Make { object, body }, made);
    let said = state.due(now(), true);
    assert!(
        matches!(&said[..], [Task::Say { object, .. }] if *object == class),
        "{said:?}"
    );

    state.hear(Event::Deleted(class));
    assert_eq!(state.due(now(), false).len(), 1, "at once");
    let theirs =
        json!({"metadata": {"name": "istio-waypoint"}, "spec": {"controllerName": "theirs"}});
    let theirs: kinds::GatewayClass = serde_json::from_value(theirs).expect("a class");
    state.put(Object::GatewayClass(Arc::new(theirs)));
    assert_eq!(state.due(now(), true), []);
}

#[test]
fn a_gateway_is_of_the_revision_that_it_or_its_namespace_names() {
    let check = |revisions: &[&str], of_namespace: Option<&str>, own: Option<&str>, expected| {
        let labels = own.map(|own| json!({"istio.io/rev": own}));
        let mut bench = Bench::new(json!({"metadata": {"labels": labels}}));
        bench.state.settings.revisions = revisions.iter().map(|&one| one.to_owned()).collect();
        let labels = of_namespace.map(|of| json!({"istio.io/rev": of}));
        let namespace = json!({"metadata": {"name": "shop", "labels": labels}});
        let namespace: kinds::Namespace = serde_json::from_value(namespace).expect("a Namespace");
        bench.state.put(Object::Namespace(Arc::new(namespace)));
        bench.look_up(&[]);
        let is_ours = !bench.round().is_empty();
        assert_eq!(is_ours, expected, "{revisions:?} {of_namespace:?} {own:?}");
        if is_ours {
            let pod = &bench.made(Kind::Deployment)["spec"]["template"]["metadata"];
            assert_eq!(pod["annotations"]["istio.io/rev"], revisions[0]);
        }
    };
    check(&["default"], None, None, true);
    check(&["default"], None, Some("canary"), false);
    check(&["default"], Some("canary"), None, false);
    check(&["default"], Some("canary"), Some("default"), true);
    check(&["canary"], None, None, false);
    check(&["canary"], None, Some("canary"), true);
    check(&["canary"], Some("canary"), None, true);
    check(&["canary", "default"], None, None, true);
}
