// SPDX-License-Identifier: Apache-2.0
//! The wire contracts as Rust types: one module per protobuf package, generated
//! from the schemas beside this crate, and no logic.

/// Type URL of [`workload::Address`] resources.
pub const ADDRESS_TYPE_URL: &str = "type.googleapis.com/istio.workload.Address";

/// Type URL of [`security::Authorization`] resources.
pub const AUTHORIZATION_TYPE_URL: &str = "type.googleapis.com/istio.security.Authorization";

/// Type URL of [`waypoint::Service`] resources.
pub const WAYPOINT_SERVICE_TYPE_URL: &str = "type.googleapis.com/culvert.waypoint.Service";

/// Type URL of [`waypoint::Waypoint`] resources.
pub const WAYPOINT_TYPE_URL: &str = "type.googleapis.com/culvert.waypoint.Waypoint";

/// Type URL of [`telemetry::ConnectionLogs`] resources.
pub const CONNECTION_LOGS_TYPE_URL: &str = "type.googleapis.com/culvert.telemetry.ConnectionLogs";

macro_rules! package {
    ($(#[$doc:meta])* $module:ident = $package:literal) => {
        $(#[$doc])*
        #[allow(
            clippy::all,
            clippy::allow_attributes_without_reason,
            clippy::large_futures,
            clippy::use_self,
            missing_docs,
            unreachable_pub,
            unused_qualifications,
            reason = "generated code is not ours to style"
        )]
        pub mod $module {
            tonic::include_proto!($package);
        }
    };
}

package! {
    /// `istio.workload`: workloads and services.
    workload = "istio.workload"
}
package! {
    /// `istio.security`: authorization policies.
    security = "istio.security"
}
package! {
    /// `istio.workload.zds`: pods handed from the node agent to the node proxy.
    zds = "istio.workload.zds"
}
package! {
    /// `istio.v1.auth`: certificate signing.
    ca = "istio.v1.auth"
}
package! {
    /// `envoy.service.discovery.v3`: aggregated discovery.
    ads = "envoy.service.discovery.v3"
}
package! {
    /// `envoy.service.auth.v3`: external authorization.
    auth = "envoy.service.auth.v3"
}
package! {
    /// `culvert.handover`: a node proxy's listeners handed to the next one.
    handover = "culvert.handover"
}
package! {
    /// `culvert.waypoint`: what a waypoint does with a service's traffic.
    waypoint = "culvert.waypoint"
}

package! {
    /// `culvert.telemetry`: what nodes' proxies tell of connections.
    telemetry = "culvert.telemetry"
}

/// `opentelemetry`: OTLP, as far as it is sent. Its packages name each other by their places.
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::large_futures,
    clippy::use_self,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code is not ours to style"
)]
pub mod opentelemetry {
    pub mod proto {
        pub mod common {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.common.v1");
            }
        }
        pub mod resource {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.resource.v1");
            }
        }
        pub mod trace {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.trace.v1");
            }
        }
        pub mod logs {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.logs.v1");
            }
        }
        pub mod collector {
            pub mod trace {
                pub mod v1 {
                    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
                }
            }
            pub mod logs {
                pub mod v1 {
                    tonic::include_proto!("opentelemetry.proto.collector.logs.v1");
                }
            }
        }
    }
}
