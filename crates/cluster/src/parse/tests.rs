// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;
use crate::kinds::{Action, MtlsMode, Resolution};

fn read(text: &str, format: Format) -> Vec<Item> {
    documents(text, format)
        .into_iter()
        .flat_map(|document| {
            parse(document.text, format)
                .into_iter()
                .map(move |item| match item {
                    Item::Object { line, object } => Item::Object {
                        line: line.map(|line| line + document.lines_before),
                        object,
                    },
                    Item::Finding(mut finding) => {
                        finding.line = finding.line.map(|line| line + document.lines_before);
                        Item::Finding(finding)
                    }
                })
        })
        .collect()
}

fn objects(text: &str, format: Format) -> Vec<Object> {
    read(text, format)
        .into_iter()
        .map(|item| match item {
            Item::Object { object, .. } => object,
            Item::Finding(finding) => panic!("{finding:?}"),
        })
        .collect()
}

fn one(text: &str) -> Object {
    objects(text, Format::Yaml).pop().unwrap()
}

/// Prints findings as `line: object: field: reason`.
fn findings(text: &str, format: Format) -> Vec<String> {
    read(text, format)
        .into_iter()
        .filter_map(|item| match item {
            Item::Object { .. } => None,
            Item::Finding(Finding {
                line,
                object,
                field,
                reason,
                ..
            }) => Some(format!(
                "{}: {}: {}: {reason}",
                line.map_or("?".to_owned(), |line| line.to_string()),
                object.map_or("?".to_owned(), |key| key.to_string()),
                field.unwrap_or_default(),
            )),
        })
        .collect()
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n";

#[test]
fn mistakes_are_named_by_line_object_and_field() {
    for (text, expected) in [
        ("apiVersion: v1\nkind: Pod\n", "1: ?: metadata: is required"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata:\n  generateName: a-\n",
            "4: ?: metadata.name: is required",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: Web\n",
            "4: ?: metadata.name: \"Web\" is not a name: a-z, 0-9 and - inside",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: 7\n",
            "4: ?: metadata.name: expected a text",
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: a.b\n",
            "4: ?: metadata.name: \"a.b\" must not contain a dot",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  namespace: x/y\n",
            "5: ?: metadata.namespace: \"x/y\" is not a name: a-z, 0-9 and - inside",
        ),
        (
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  namespace: b\n",
            "5: ?: metadata.namespace: a Node lives outside of namespaces",
        ),
        ("kind: Pod\n", "1: ?: apiVersion: is required"),
        ("\n\napiVersion: v1\n", "3: ?: kind: is required"),
        (
            "- 1\n",
            "1: ?: : expected an object with apiVersion, kind and metadata",
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  ports:\n  - port: http\n",
            "7: Service default/web: spec.ports[0].port: expected an integer, found string \"http\"",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels:\n    a.b/c: 1\n",
            "6: Pod default/web: metadata.labels[\"a.b/c\"]: expected a string, found integer `1`",
        ),
        (
            "apiVersion: security.istio.io/v7\nkind: AuthorizationPolicy\nmetadata: {name: p}\n",
            "1: AuthorizationPolicy default/p: apiVersion: version security.istio.io/v7 of AuthorizationPolicy is not \
             understood; understood are v1, v1beta1",
        ),
        (
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: n}\nspec:\n  \
             rules:\n  - from:\n    - source:\n        principals: cluster.local/ns/a/sa/b\n",
            "8: AuthorizationPolicy n/p: spec.rules[0].from[0].source.principals: expected a sequence, found string \
             \"cluster.local/ns/a/sa/b\"",
        ),
        (
            "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p}\nspec:\n  \
             portLevelMtls:\n    http: {mode: STRICT}\n",
            "6: PeerAuthentication default/p: spec.portLevelMtls.http: expected a number as key, found \"http\"",
        ),
        ("a: [\n", "1: ?: : not valid YAML: "),
        (
            "apiVersion: example.com/v1\nkind: Thing\n",
            "1: ?: : ignored: kind Thing of example.com/v1 is not known",
        ),
    ] {
        let found = findings(text, Format::Yaml);
        assert_eq!(found.len(), 1, "{text}\n{found:?}");
        // The wording of syntax errors is the parser's, and so is their line.
        if expected.contains("not valid YAML") {
            assert!(found[0].contains("not valid YAML: "), "{found:?}");
        } else {
            assert_eq!(found[0], expected, "{text}");
        }
    }
}

#[test]
fn mistakes_in_json_are_named_by_line_too() {
    let text = "{\n\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": [\n {\"metadata\": {\"name\": \"a\"}},\n \
                {\"metadata\": {\"name\": \"b\"},\n  \"spec\": {\"hostNetwork\":\n   \"yes\"}}\n]}";
    assert_eq!(
        findings(text, Format::Json),
        ["6: Pod default/b: spec.hostNetwork: expected a boolean, found string \"yes\""]
    );
    assert_eq!(findings("{\n\"a\": }", Format::Json).len(), 1);
    assert_eq!(
        findings("{\n\"kind\": \"Pod\"}", Format::Json),
        ["1: ?: apiVersion: is required"]
    );
    assert_eq!(findings("  \n", Format::Json), Vec::<String>::new());
}

#[test]
fn kinds_that_are_not_read_are_no_problem() {
    for (version, kind) in [
        ("gateway.networking.k8s.io/v1", "UDPRoute"),
        ("apps/v1", "DaemonSet"),
        ("networking.istio.io/v1", "Sidecar"),
        ("networking.istio.io/v1", "Gateway"),
        ("v1", "Secret"),
    ] {
        assert_eq!(
            read(
                &format!("apiVersion: {version}\nkind: {kind}\n"),
                Format::Yaml
            ),
            Vec::new(),
            "{kind}"
        );
    }
}

#[test]
fn routes_are_read_in_all_their_versions_and_a_mistake_is_named_where_it_is() {
    for (version, kind) in [
        ("v1", "HTTPRoute"),
        ("v1beta1", "HTTPRoute"),
        ("v1", "GRPCRoute"),
        ("v1alpha2", "GRPCRoute"),
        ("v1", "TLSRoute"),
        ("v1alpha3", "TLSRoute"),
        ("v1alpha2", "TCPRoute"),
        ("v1beta1", "ReferenceGrant"),
    ] {
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: r}}\n"
        );
        assert_eq!(one(&text).kind().as_str(), kind, "{version}");
    }
    let route = "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, creationTimestamp: '2026-01-02T03:04:05Z'}
spec:
  rules:
  - matches:
    - path: {type: Glob, value: /a}
      later: 1
    backendRefs:
    - {name: a, port: http}
";
    assert_eq!(
        findings(route, Format::Yaml),
        [
            "10: HTTPRoute default/r: spec.rules[0].backendRefs[0].port: expected an integer, found string \"http\""
        ]
    );
    let Object::HTTPRoute(route) = one(&route.replace("port: http", "port: 80")) else {
        panic!("a route expected")
    };
    let seconds = route.metadata.creation_timestamp.as_ref().unwrap();
    assert_eq!(seconds.0.as_second(), 1_767_323_045);
    let matching = &route.spec.rules[0].matches[0];
    let path = matching.path.as_ref().unwrap();
    assert_eq!(
        path.match_type,
        Some(crate::kinds::PathMatchType::Unknown("Glob".into()))
    );
    assert!(matching.unknown_fields.contains_key("later"));
}

#[test]
fn a_syntax_error_ends_with_its_document() {
    let text = format!(
        "{POD}---\na: [\n--- # next\n{}---\n\n",
        POD.replace("web", "other")
    );
    let items = read(&text, Format::Yaml);
    let names: Vec<_> = items
        .iter()
        .map(|item| match item {
            Item::Object { line, object } => (line.unwrap(), object.name().to_owned()),
            Item::Finding(finding) => (finding.line.unwrap(), "broken".to_owned()),
        })
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(names[0], (1, "web".to_owned()));
    assert_eq!(names[1].1, "broken");
    assert_eq!(names[2], (8, "other".to_owned()));
}

#[test]
fn documents_are_cut_at_markers_and_nowhere_else() {
    for (text, expected) in [
        ("", 0),
        ("# nothing\n", 0),
        ("a: 1", 1),
        ("---\na: 1\n", 1),
        ("# comment\n---\na: 1\n", 1),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: 1\n--- \nb: 2\n---", 3),
        ("a: 1\r\n---\r\nb: 2\r\n", 2),
        ("a: |\n  ---\n  x\n", 1),
        ("a: 1\n----\n", 1),
        ("%YAML 1.2\n---\na: 1\n...\n%YAML 1.2\n---\nb: 1\n", 2),
    ] {
        assert_eq!(documents(text, Format::Yaml).len(), expected, "{text:?}");
    }
}

#[test]
fn lists_stand_for_their_items() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n- apiVersion: \
                v1\n  kind: Node\n  metadata: {name: b}\n";
    let typed = "apiVersion: v1\nkind: PodList\nmetadata: {resourceVersion: '1'}\nitems:\n- metadata: {name: a}\n- metadata: {name: c}\n";
    let names = |text| {
        objects(text, Format::Yaml)
            .iter()
            .map(|object| object.key().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(list), ["Pod default/a", "Node b"]);
    assert_eq!(names(typed), ["Pod default/a", "Pod default/c"]);
    assert!(objects("apiVersion: v1\nkind: List\nitems: []\n", Format::Yaml).is_empty());
    let nested = format!(
        "{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{}]}}",
        "{\"apiVersion\": \"v1\", \"kind\": \"NodeList\", \"items\": [{\"metadata\": {\"name\": \"n\"}}]}"
    );
    assert_eq!(
        objects(&nested, Format::Json)[0].key().to_string(),
        "Node n"
    );
}

#[test]
fn a_broken_item_of_a_list_takes_no_other_with_it() {
    let text = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n- metadata: {name: B}\n- metadata: {name: c}\n";
    let items = read(text, Format::Yaml);
    assert_eq!(
        items
            .iter()
            .filter(|item| matches!(item, Item::Object { .. }))
            .count(),
        2
    );
    assert_eq!(findings(text, Format::Yaml).len(), 1);
}

#[test]
fn an_object_without_uid_gets_a_stable_one_of_its_own() {
    let (first, again) = (one(POD), one(POD));
    assert_eq!(first.uid(), again.uid());
    assert_eq!(first.uid().len(), 36);
    assert_eq!(&first.uid()[14..15], "8");
    assert!(matches!(&first.uid()[19..20], "8" | "9" | "a" | "b"));
    assert_ne!(first.uid(), one(&POD.replace("web", "other")).uid());
    assert_eq!(one(&format!("{POD}  uid: given\n")).uid(), "given");
    assert_eq!(first.namespace(), "default");
}

#[test]
fn null_counts_as_absent() {
    let Object::Pod(pod) = one(&format!(
        "{POD}  labels:\n  creationTimestamp: null\nspec:\n  containers: null\n"
    )) else {
        panic!()
    };
    assert!(pod.metadata.labels.is_none());
    assert!(pod.spec.as_ref().unwrap().containers.is_empty());
}

#[test]
fn values_and_fields_of_the_future_are_kept_for_those_who_judge() {
    let Object::AuthorizationPolicy(policy) = one(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p}\nspec:\n  action: SHOUT\n  \
         rules:\n  - from:\n    - source:\n        principal: [a]\n        namespaces: [b]\n    quiet: true\n",
    ) else {
        panic!()
    };
    assert_eq!(
        policy.spec.action,
        Some(Action::Unknown("SHOUT".to_owned()))
    );
    let source = &policy.spec.rules[0].from[0].source;
    assert_eq!(source.namespaces, ["b"]);
    assert_eq!(source.unknown_fields["principal"], serde_json::json!(["a"]));
    assert_eq!(
        policy.spec.rules[0].unknown_fields["quiet"],
        serde_json::json!(true)
    );
}

#[test]
fn the_kinds_of_istio_are_read() {
    let Object::PeerAuthentication(peer) = one(
        "apiVersion: security.istio.io/v1beta1\nkind: PeerAuthentication\nmetadata: {name: p}\nspec:\n  mtls: {mode: \
         STRICT}\n  selector: {matchLabels: {app: a}}\n  portLevelMtls:\n    8080: {mode: DISABLE}\n",
    ) else {
        panic!()
    };
    assert_eq!(
        peer.spec.mtls.as_ref().unwrap().mode,
        Some(MtlsMode::Strict)
    );
    assert_eq!(
        peer.spec.port_level_mtls[&8080].mode,
        Some(MtlsMode::Disable)
    );
    assert_eq!(
        peer.spec.selector.as_ref().unwrap().match_labels["app"],
        "a"
    );
    assert!(peer.spec.unknown_fields.is_empty());

    let Object::ServiceEntry(entry) = one(
        "apiVersion: networking.istio.io/v1alpha3\nkind: ServiceEntry\nmetadata: {name: s}\nspec:\n  hosts: [a.example]\n  \
         resolution: DNS\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  endpoints: [{address: 10.0.0.1, ports: \
         {http: 8080}}]\n",
    ) else {
        panic!()
    };
    assert_eq!(entry.spec.resolution, Some(Resolution::Dns));
    assert_eq!(entry.spec.endpoints[0].ports["http"], 8080);

    let Object::Gateway(gateway) = one(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: waypoint}\nspec:\n  gatewayClassName: \
         istio-waypoint\n  listeners: [{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {namespaces: {from: \
         All}}}]\nstatus:\n  addresses: [{type: IPAddress, value: 10.0.0.9}]\n  conditions:\n  - {type: Programmed, \
         status: 'True', reason: Programmed, message: '', lastTransitionTime: '2026-01-02T03:04:05Z'}\n",
    ) else {
        panic!()
    };
    assert_eq!(gateway.spec.listeners[0].protocol, "HBONE");
    assert_eq!(
        gateway.status.as_ref().unwrap().addresses[0].value,
        "10.0.0.9"
    );
}

#[test]
fn what_nobody_reads_is_dropped() {
    let Object::Pod(pod) = one(&format!(
        "{POD}  managedFields: [{{manager: x}}]\n  annotations:\n    kubectl.kubernetes.io/last-applied-configuration: '{{}}'\n    \
         a: b\nspec:\n  volumes: [{{name: v}}]\n  containers: [{{name: c, volumeMounts: [{{name: v, mountPath: /v}}], ports: [{{containerPort: 80}}]}}]\n"
    )) else {
        panic!()
    };
    assert_eq!(pod.metadata.managed_fields, None);
    assert_eq!(pod.metadata.annotations.as_ref().unwrap().len(), 1);
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.volumes.as_ref().unwrap()[0].name, "v");
    assert_eq!(spec.containers[0].volume_mounts, None);
    assert_eq!(
        spec.containers[0].ports.as_ref().unwrap()[0].container_port,
        80
    );
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        for format in [Format::Yaml, Format::Json] {
            let _items = read(&text, format);
        }
    }

    #[test]
    fn cutting_into_documents_loses_no_content(lines in prop::collection::vec("(---|--- # x|\\.\\.\\.|a: 1|# c|)", 0..12)) {
        let text = lines.join("\n");
        let kept: String = documents(&text, Format::Yaml).iter().map(|document| document.text).collect();
        let content = |text: &str| text.lines().filter(|line| line.starts_with('a')).count();
        prop_assert_eq!(content(&kept), content(&text));
        for document in documents(&text, Format::Yaml) {
            let before = usize::try_from(document.lines_before).unwrap();
            let expected = text.split_inclusive('\n').skip(before).collect::<String>();
            prop_assert!(expected.starts_with(document.text));
        }
    }

    #[test]
    fn names_follow_rfc_1123(name in "[a-zA-Z0-9._-]{0,70}") {
        let label = |label: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            !label.is_empty()
                && label.chars().all(|c| inner(c) || c == '-')
                && label.starts_with(inner)
                && label.ends_with(inner)
        };
        prop_assert_eq!(check_label(&name).is_ok(), name.len() <= 63 && label(&name));
        prop_assert_eq!(check_subdomain(&name).is_ok(), name.split('.').all(label));
    }
}
