// SPDX-License-Identifier: Apache-2.0

use super::*;

fn gateway(serves: Option<Serves>) -> Gateway {
    Gateway {
        class: "istio-waypoint".into(),
        readiness: Readiness::Ready,
        address: Some(Address::Hostname("wp.x.svc".into())),
        serves,
        binding: None,
        listeners: Vec::new(),
        leads: None,
        explains: false,
    }
}

fn bound(known: Option<Known<'_>>, addressed: Addressed, asked_by: AskedBy) -> Binding {
    let wish = Wish {
        gateway: NamespacedName::new("x", "wp"),
        asked_by,
    };
    let attacher = Attacher {
        namespace: "x",
        labels: &Labels::new(),
        addressed,
        visibility: Visibility::Public,
    };
    bind(wish, known, attacher, "")
}

#[test]
fn what_a_gateway_is_for_decides_over_who_is_addressed_and_who_asks() {
    use Addressed::{Service, Workload};
    use AskedBy::{Namespace, Object};
    use Serves::{All, Nothing, Services, Workloads};
    let unfit = "UnsupportedTrafficType";
    // by the Gateway, by its class, what is addressed, whose label asks → what comes of it
    let table = [
        (Some(Services), None, Service, Object, "bound"),
        (Some(Services), None, Service, Namespace, "bound"),
        (Some(Services), None, Workload, Object, unfit),
        (Some(Services), None, Workload, Namespace, "unbound"),
        (Some(Workloads), None, Service, Object, unfit),
        (Some(Workloads), None, Service, Namespace, unfit),
        (Some(Workloads), None, Workload, Object, "bound"),
        (Some(Workloads), None, Workload, Namespace, "bound"),
        (Some(All), None, Service, Object, "bound"),
        (Some(All), None, Workload, Namespace, "bound"),
        (Some(Nothing), None, Service, Object, unfit),
        (Some(Nothing), None, Service, Namespace, unfit),
        (Some(Nothing), None, Workload, Object, unfit),
        (Some(Nothing), None, Workload, Namespace, "unbound"),
        // Nobody says: services. The Gateway's word comes before its class's.
        (None, None, Service, Object, "bound"),
        (None, None, Workload, Object, unfit),
        (None, Some(Workloads), Workload, Object, "bound"),
        (None, Some(Workloads), Service, Object, unfit),
        (Some(Services), Some(Workloads), Workload, Object, unfit),
    ];
    for (own, by_class, addressed, asked_by, expected) in table {
        let (gateway, class) = (
            gateway(own),
            Class {
                serves: by_class,
                binding: None,
            },
        );
        let known = Known {
            gateway: &gateway,
            class: by_class.map(|_| &class),
        };
        let came = match bound(Some(known), addressed, asked_by) {
            Binding::Unbound => "unbound".to_owned(),
            Binding::Bound { .. } => "bound".to_owned(),
            Binding::Refused { refusal, .. } => format!("{refusal:?}"),
        };
        let row = format!("{own:?}, {by_class:?}, {addressed:?}, {asked_by:?}");
        assert_eq!(came, expected, "{row}");
    }
}

#[test]
fn a_gateway_that_is_not_there_or_has_no_address_is_not_ready_whoever_asks() {
    let unborn = Gateway {
        readiness: Readiness::NoAddress,
        address: None,
        ..gateway(Some(Serves::All))
    };
    let known = Known {
        gateway: &unborn,
        class: None,
    };
    for known in [None, Some(known)] {
        for asked_by in [AskedBy::Object, AskedBy::Namespace] {
            let binding = bound(known, Addressed::Workload, asked_by);
            let refused = matches!(
                binding,
                Binding::Refused {
                    refusal: Refusal::NotReady,
                    ..
                }
            );
            assert!(refused, "{asked_by:?}: {binding:?}");
            assert_eq!(binding.address(), None);
        }
    }
}
