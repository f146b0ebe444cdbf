// SPDX-License-Identifier: Apache-2.0
//! Compiles the schemas with protox, so that building needs no protoc.

/// Every schema, by owner.
const SCHEMAS: [&str; 17] = [
    "istio/workload.proto",
    "istio/security.proto",
    "istio/zds.proto",
    "istio/ca.proto",
    "envoy/discovery.proto",
    "envoy/auth.proto",
    "mesh/handover.proto",
    "mesh/connection_logs.proto",
    "mesh/waypoint.proto",
    "mesh/waypoint_policy.proto",
    "mesh/waypoint_telemetry.proto",
    "opentelemetry/common.proto",
    "opentelemetry/resource.proto",
    "opentelemetry/trace.proto",
    "opentelemetry/logs.proto",
    "opentelemetry/trace_service.proto",
    "opentelemetry/logs_service.proto",
];

/// Fields that share memory with the message they arrived in.
const SHARED_BYTES: [&str; 4] = [
    ".istio.workload.Workload.addresses",
    ".istio.workload.NetworkAddress.address",
    ".istio.security.Address.address",
    ".envoy.service.discovery.v3.ResourceBody.value",
];

/// Fields that few messages have, and that would make all of them large.
const BOXED: [&str; 2] = [
    ".culvert.waypoint.Port.traffic_policy",
    ".culvert.waypoint.Destination.traffic_policy",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for schema in SCHEMAS {
        println!("cargo:rerun-if-changed={schema}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let descriptors = protox::compile(SCHEMAS, ["."])?;
    // Ordered maps, so that equal messages have equal bytes and content hashes are stable.
    let mut config = tonic_prost_build::configure().btree_map(".");
    for field in SHARED_BYTES {
        config = config.bytes(field);
    }
    for field in BOXED {
        config = config.boxed(field);
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
