// SPDX-License-Identifier: Apache-2.0
//! Which of a workload's own ports stands for each port of a service that it backs.
//!
//! A port that a workload doesn't name is left out for that workload alone, so that
//! a rolling rename works.

use proto::workload as wire;

use crate::facts::{
    endpoint::Endpoint,
    pod::Pod,
    service::{Service, ServicePort, TargetPort},
    service_entry::ServiceEntry,
    slice::Slice,
};

/// The ports of a service, as its message lists them. Zero says that each endpoint has its own.
pub fn of_service(ports: &[ServicePort]) -> Vec<wire::Port> {
    let port = |port: &ServicePort| wire::Port {
        service_port: port.port.into(),
        target_port: match &port.target {
            TargetPort::Number(number) => (*number).into(),
            TargetPort::Named(_) => 0,
        },
        app_protocol: port.protocol.into(),
    };
    ports.iter().map(port).collect()
}

/// The ports of a pod that backs a Service.
pub fn service_at_pod(service: &Service, pod: &Pod) -> Vec<wire::Port> {
    each(&service.ports, |_, target| match target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Named(name) => pod.port(name),
    })
}

/// The ports of a workload that is no pod and backs a Service.
pub fn service_at_endpoint(service: &Service, endpoint: &Endpoint) -> Vec<wire::Port> {
    each(&service.ports, |name, target| match target {
        TargetPort::Number(number) => endpoint.port(name).or(Some(*number)),
        TargetPort::Named(name) => endpoint.port(name),
    })
}

/// The ports of a pod that backs a ServiceEntry.
pub fn entry_at_pod(entry: &ServiceEntry, pod: &Pod) -> Vec<wire::Port> {
    each(&entry.ports, |name, target| {
        pod.port(name).or(number(target))
    })
}

/// The ports of a workload that is no pod and backs a ServiceEntry.
pub fn entry_at_endpoint(entry: &ServiceEntry, endpoint: &Endpoint) -> Vec<wire::Port> {
    each(&entry.ports, |name, target| {
        endpoint.port(name).or(number(target))
    })
}

/// The ports of an endpoint of a slice: those that the Service has under the same name.
pub fn slice_of_service(service: &Service, slice: &Slice) -> Vec<wire::Port> {
    let ports = slice.ports.iter().filter_map(|(name, number)| {
        let port = service.ports.iter().find(|port| port.name == *name)?;
        Some(pair(port.port, *number))
    });
    ports.collect()
}

fn number(target: &TargetPort) -> Option<u16> {
    match target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Named(_) => None,
    }
}

/// Of ports that share a number, as TCP and UDP may, all are listed, and the names of
/// the last count for each: who reads the list can't tell them apart.
fn each(ports: &[ServicePort], own: impl Fn(&str, &TargetPort) -> Option<u16>) -> Vec<wire::Port> {
    let port = |port: &ServicePort| {
        let sharing = ports.iter().rev();
        let last = sharing.clone().find(|other| other.port == port.port);
        let last = last.unwrap_or(port);
        let target = match (&port.target, &last.target) {
            (TargetPort::Named(_), TargetPort::Named(_)) => &last.target,
            (own, _) => own,
        };
        Some(pair(port.port, own(&last.name, target)?))
    };
    ports.iter().filter_map(port).collect()
}

fn pair(service: u16, target: u16) -> wire::Port {
    wire::Port {
        service_port: service.into(),
        target_port: target.into(),
        app_protocol: 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facts::{endpoint, pod, service, service_entry};

    fn service(ports: Value) -> Service {
        let object = serde_json::from_value(json!({ "spec": { "ports": ports } }));
        service::read(&object.expect("a Service"))
            .expect("not an alias")
            .facts
    }

    fn entry(ports: Value) -> ServiceEntry {
        let object = json!({"spec": {"hosts": ["a"], "ports": ports}});
        let object = serde_json::from_value(object).expect("a ServiceEntry");
        service_entry::read(&object).facts.expect("a service")
    }

    /// A pod with `web` on 8080 and, in an init container that stays, `side` on 9000.
    fn a_pod() -> Pod {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {
                "containers": [{"name": "a", "ports": [
                    {"name": "web", "containerPort": 8080},
                    {"name": "udp", "containerPort": 53, "protocol": "UDP"}]}],
                "initContainers": [{"name": "i", "restartPolicy": "Always",
                                    "ports": [{"name": "side", "containerPort": 9000}]}],
            },
        }));
        pod::read(&object.expect("a Pod")).facts
    }

    /// A workload entry with `web` on 7070 and `http` on 7071.
    fn an_endpoint() -> Endpoint {
        let spec = json!({"address": "192.0.2.1", "ports": {"web": 7070, "http": 7071}});
        let spec = serde_json::from_value(spec).expect("a spec");
        endpoint::read(&spec, "spec", &mut Vec::new()).expect("it is somewhere")
    }

    fn check(actual: Vec<wire::Port>, expected: &[(u32, u32)]) {
        let pairs: Vec<_> = actual
            .iter()
            .map(|p| (p.service_port, p.target_port))
            .collect();
        assert_eq!(pairs, expected);
    }

    #[test]
    fn a_services_ports_at_a_pod() {
        let at = |ports: Value, expected: &[(u32, u32)]| {
            check(service_at_pod(&service(ports), &a_pod()), expected);
        };
        at(json!([{"port": 80}]), &[(80, 80)]);
        at(json!([{"port": 80, "targetPort": 8081}]), &[(80, 8081)]);
        at(json!([{"port": 80, "targetPort": "web"}]), &[(80, 8080)]);
        at(json!([{"port": 80, "targetPort": "side"}]), &[(80, 9000)]);
        at(
            json!([{"port": 80, "targetPort": "none"}, {"port": 81, "name": "web"}]),
            &[(81, 81)],
        );
        at(json!([{"port": 80, "targetPort": "udp"}]), &[]);
        at(json!([]), &[]);
    }

    #[test]
    fn ports_that_share_a_number_are_all_listed_with_the_names_of_the_last() {
        let ports = json!([
            {"port": 53, "name": "udp", "protocol": "UDP", "targetPort": "udp"},
            {"port": 53, "name": "tcp", "targetPort": "web"}]);
        check(
            service_at_pod(&service(ports.clone()), &a_pod()),
            &[(53, 8080), (53, 8080)],
        );
        check(of_service(&service(ports).ports), &[(53, 0), (53, 0)]);
        let numbers = json!([
            {"port": 53, "name": "udp", "protocol": "UDP", "targetPort": 5353},
            {"port": 53, "name": "tcp", "targetPort": 53}]);
        check(
            service_at_pod(&service(numbers), &a_pod()),
            &[(53, 5353), (53, 53)],
        );
    }

    #[test]
    fn a_services_ports_at_a_workload_that_is_no_pod() {
        let at = |ports: Value, expected: &[(u32, u32)]| {
            check(
                service_at_endpoint(&service(ports), &an_endpoint()),
                expected,
            );
        };
        at(
            json!([{"port": 80, "name": "x", "targetPort": 8081}]),
            &[(80, 8081)],
        );
        // A number gives way to the entry's port of the service port's name …
        at(
            json!([{"port": 80, "name": "http", "targetPort": 8081}]),
            &[(80, 7071)],
        );
        // … and a name is looked up as the target port's.
        at(
            json!([{"port": 80, "name": "http", "targetPort": "web"}]),
            &[(80, 7070)],
        );
        at(
            json!([{"port": 80, "name": "http", "targetPort": "none"}]),
            &[],
        );
    }

    #[test]
    fn an_entrys_ports_at_a_pod_and_at_another_workload() {
        let ports = json!([
            {"number": 80, "name": "web"}, {"number": 81, "name": "x", "targetPort": 8081},
            {"number": 82, "name": "http"}, {"number": 83, "name": "y"}]);
        check(
            entry_at_pod(&entry(ports.clone()), &a_pod()),
            &[(80, 8080), (81, 8081), (82, 82), (83, 83)],
        );
        check(
            entry_at_endpoint(&entry(ports), &an_endpoint()),
            &[(80, 7070), (81, 8081), (82, 7071), (83, 83)],
        );
    }

    #[test]
    fn a_slices_ports_are_those_that_the_service_names_alike() {
        let slice = Slice {
            service: "s".into(),
            ports: vec![("a".into(), 8080), ("b".into(), 8081)],
            pods: Vec::new(),
            endpoints: Vec::new(),
        };
        let ports = json!([{"port": 80, "name": "a"}, {"port": 82, "name": "c"}]);
        check(slice_of_service(&service(ports), &slice), &[(80, 8080)]);
    }
}
