// SPDX-License-Identifier: Apache-2.0
//! Which waypoint an object's traffic goes through, or why it has none.

use proto::workload::{
    ApplicationTunnel, GatewayAddress, NamespacedHostname, WeightedWaypoint,
    application_tunnel::Protocol, gateway_address::Destination,
};

use super::network_address;
use crate::facts::{
    Labels, NamespacedName,
    gateway::{Address, Class, Gateway, Readiness, SameNamespace, Serves},
    mesh_config::Visibility,
    waypoint::{self as wanted, Choice},
};

/// Where waypoints take tunnels, whatever their listeners say.
const HBONE_PORT: u16 = 15008;

/// What is addressed: that decides which waypoints may serve it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressed {
    /// A service.
    Service,
    /// A pod or other workload.
    Workload,
}

/// Who asked for a waypoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedBy {
    /// The object's own label.
    Object,
    /// Its namespace's label.
    Namespace,
}

/// A Gateway that is asked for as a waypoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The Gateway.
    pub gateway: NamespacedName,
    /// Who asks.
    pub asked_by: AskedBy,
}

/// What became of a wish.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Binding {
    /// Nobody asks for a waypoint, or the one inherited isn't for such objects.
    #[default]
    Unbound,
    /// It is bound. A Gateway with addresses none of which can be used gives no address.
    Bound {
        /// The Gateway.
        gateway: NamespacedName,
        /// Where it is.
        address: Option<GatewayAddress>,
        /// What became of the one that is to take a share of the connections.
        canary: Canary,
    },
    /// It cannot be bound; nothing else takes its place.
    Refused {
        /// The Gateway.
        gateway: NamespacedName,
        /// Why.
        refusal: Refusal,
    },
}

/// What became of a waypoint that is to take a share of the connections.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Canary {
    /// Nobody asks for one.
    #[default]
    Unwanted,
    /// It takes a share, the other one the rest.
    Share {
        /// The Gateway.
        gateway: NamespacedName,
        /// Where it is; nowhere where none of its addresses can be used.
        address: Option<GatewayAddress>,
        /// Its share in percent.
        percent: u32,
    },
    /// It takes none: all connections go through the other one.
    Refused(CanaryRefusal),
}

/// Why a waypoint takes no share of the connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CanaryRefusal {
    /// It is the one that takes the rest.
    SameAsPrimary,
    /// Its share is no number from 0 to 100.
    InvalidWeight(String),
    /// It can't be bound.
    Unbound(NamespacedName, Refusal),
}

/// Why a waypoint that was asked for is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such Gateway, or it has no address yet.
    NotReady,
    /// Its listener doesn't admit the object's namespace.
    AttachmentDenied,
    /// It isn't for objects of this kind.
    UnsupportedTrafficType,
    /// It would take what only a namespace may see out of that namespace.
    CrossNamespace,
}

/// The waypoint that is asked for. An object that chooses, even badly, is never
/// given its namespace's instead.
pub fn wish(object: &Choice, inherited: &Choice, namespace: &str) -> Option<Wish> {
    let (choice, asked_by) = match object {
        Choice::Unset => (inherited, AskedBy::Namespace),
        Choice::None | Choice::Named { .. } => (object, AskedBy::Object),
    };
    choice
        .gateway(namespace)
        .map(|gateway| Wish { gateway, asked_by })
}

/// A Gateway with what its class adds.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The Gateway.
    pub gateway: &'a Gateway,
    /// Its class, if that exists.
    pub class: Option<&'a Class>,
}

/// Who asks to be bound.
#[derive(Debug, Clone, Copy)]
pub struct Attacher<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// That namespace's labels.
    pub labels: &'a Labels,
    /// What is addressed.
    pub addressed: Addressed,
    /// Who sees it.
    pub visibility: Visibility,
}

/// Binds a wish to the Gateway that was found for it.
pub fn bind(
    wish: Wish,
    known: Option<Known<'_>>,
    attacher: Attacher<'_>,
    network: &str,
) -> Binding {
    let Wish { gateway, asked_by } = wish;
    let refuse = |gateway, refusal| Binding::Refused { gateway, refusal };
    let Some(known) = known.filter(|known| known.gateway.readiness == Readiness::Ready) else {
        return refuse(gateway, Refusal::NotReady);
    };
    if !known.admits(&gateway, attacher) {
        return refuse(gateway, Refusal::AttachmentDenied);
    }
    let suits = match (known.serves(), attacher.addressed) {
        (Serves::All, _)
        | (Serves::Services, Addressed::Service)
        | (Serves::Workloads, Addressed::Workload) => true,
        (Serves::Nothing | Serves::Services | Serves::Workloads, _) => false,
    };
    if !suits {
        // A namespace's label is meant for whatever its waypoint serves.
        return if asked_by == AskedBy::Namespace && attacher.addressed == Addressed::Workload {
            Binding::Unbound
        } else {
            refuse(gateway, Refusal::UnsupportedTrafficType)
        };
    }
    if attacher.visibility == Visibility::Namespace && *gateway.namespace != *attacher.namespace {
        return refuse(gateway, Refusal::CrossNamespace);
    }
    let destination = known.gateway.address.as_ref().map(|address| match address {
        Address::Hostname(host) => Destination::Hostname(NamespacedHostname {
            namespace: gateway.namespace.to_string(),
            hostname: host.clone(),
        }),
        Address::Ip(ip) => Destination::Address(network_address(network, *ip)),
    });
    let address = destination.map(|destination| GatewayAddress {
        destination: Some(destination),
        hbone_mtls_port: HBONE_PORT.into(),
    });
    Binding::Bound {
        gateway,
        address,
        canary: Canary::Unwanted,
    }
}

/// The waypoint that is to take a share of the connections: the one that the object
/// names, or else the one that comes with the namespace's waypoint.
pub fn canary<'a>(
    object: (&Choice, Option<&'a wanted::Canary>),
    inherited: Option<&'a wanted::Canary>,
) -> Option<&'a wanted::Canary> {
    match object {
        (_, Some(own)) => Some(own),
        (Choice::Named { .. }, None) => None,
        (Choice::Unset | Choice::None, None) => inherited,
    }
}

/// Adds a share for a second waypoint to a binding. Whatever is wrong with it, all
/// connections go through the first one.
pub fn share(
    binding: Binding,
    wanted: &wanted::Canary,
    known: Option<Known<'_>>,
    attacher: Attacher<'_>,
    network: &str,
) -> Binding {
    let Binding::Bound {
        gateway, address, ..
    } = binding
    else {
        return binding;
    };
    let wish = Wish {
        gateway: wanted.gateway(attacher.namespace),
        asked_by: AskedBy::Object,
    };
    let canary = match &wanted.weight {
        _ if wish.gateway == gateway => Canary::Refused(CanaryRefusal::SameAsPrimary),
        Err(text) => Canary::Refused(CanaryRefusal::InvalidWeight(text.clone())),
        Ok(percent) => match bind(wish, known, attacher, network) {
            Binding::Bound {
                gateway, address, ..
            } => Canary::Share {
                gateway,
                address,
                percent: *percent,
            },
            Binding::Refused { gateway, refusal } => {
                Canary::Refused(CanaryRefusal::Unbound(gateway, refusal))
            }
            Binding::Unbound => Canary::Unwanted,
        },
    };
    Binding::Bound {
        gateway,
        address,
        canary,
    }
}

impl Known<'_> {
    fn serves(&self) -> Serves {
        let by_class = || self.class.and_then(|class| class.serves);
        self.gateway
            .serves
            .or_else(by_class)
            .unwrap_or(Serves::Services)
    }

    /// How traffic is handed to the Gateway's own pods where ztunnel captures them.
    pub fn binding(&self) -> Option<ApplicationTunnel> {
        self.gateway
            .binding
            .or_else(|| self.class.and_then(|class| class.binding))
    }

    fn admits(&self, gateway: &NamespacedName, attacher: Attacher<'_>) -> bool {
        let same = if *gateway.namespace == *attacher.namespace {
            SameNamespace::Yes
        } else {
            SameNamespace::No
        };
        let listeners = &self.gateway.listeners;
        let bound = self.binding().and_then(|binding| {
            listeners.iter().find(|listener| match binding.port {
                0 => binding.protocol() == Protocol::Proxy && listener.protocol == "istio.io/PROXY",
                port => i64::from(listener.port) == i64::from(port),
            })
        });
        let hbone = || {
            listeners.iter().find(|listener| {
                listener.protocol == "HBONE" && listener.port == i32::from(HBONE_PORT)
            })
        };
        match bound.or_else(hbone) {
            Some(listener) => listener.admits.admits(same, attacher.labels),
            None => same == SameNamespace::Yes,
        }
    }
}

impl Binding {
    /// Where the waypoint is, as services and workloads carry it.
    pub fn address(&self) -> Option<GatewayAddress> {
        match self {
            Self::Bound { address, .. } => address.clone(),
            Self::Unbound | Self::Refused { .. } => None,
        }
    }

    /// The Gateways that serve it: both learn of it, whatever their shares.
    pub fn gateways(&self) -> impl Iterator<Item = &NamespacedName> {
        let (first, second) = match self {
            Self::Unbound | Self::Refused { .. } => (None, None),
            Self::Bound {
                gateway, canary, ..
            } => match canary {
                Canary::Share { gateway: other, .. } => (Some(gateway), Some(other)),
                Canary::Unwanted | Canary::Refused(_) => (Some(gateway), None),
            },
        };
        first.into_iter().chain(second)
    }

    /// Both waypoints with their shares, where there are two.
    pub fn weighted(&self) -> Vec<WeightedWaypoint> {
        let Self::Bound {
            address: Some(primary),
            canary:
                Canary::Share {
                    address: Some(canary),
                    percent,
                    ..
                },
            ..
        } = self
        else {
            return Vec::new();
        };
        let share = |destination: &GatewayAddress, weight| WeightedWaypoint {
            destination: Some(destination.clone()),
            weight,
        };
        vec![share(primary, 100 - percent), share(canary, *percent)]
    }
}

#[cfg(test)]
mod tests;
