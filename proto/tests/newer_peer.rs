// SPDX-License-Identifier: Apache-2.0
//! A newer peer sends fields and enum values that we do not know: they must not
//! cost us the message.

use prost::Message;
use proto::{ads, security, workload, zds};

/// Field 2047 as bytes, as varint and as 32 bits: no message of ours has it.
const UNKNOWN_FIELDS: &[u8] = &[
    0xfa, 0x7f, 0x02, 0x01, 0x02, // length-delimited
    0xf8, 0x7f, 0x07, // varint
    0xfd, 0x7f, 0x01, 0x02, 0x03, 0x04, // fixed 32
];

fn with_unknown<M: Message + Default>(known: &M) -> M {
    let mut bytes = UNKNOWN_FIELDS.to_vec();
    known.encode(&mut bytes).expect("a Vec grows");
    bytes.extend_from_slice(UNKNOWN_FIELDS);
    M::decode(&*bytes).expect("unknown fields are skipped")
}

#[test]
fn unknown_fields_are_skipped() {
    let pod = workload::Workload {
        uid: "u".into(),
        capacity: Some(0),
        ..Default::default()
    };
    assert_eq!(with_unknown(&pod), pod);
    let policy = security::Authorization {
        name: "n".into(),
        ..Default::default()
    };
    assert_eq!(with_unknown(&policy), policy);
    let del = zds::DelWorkload { uid: "u".into() };
    assert_eq!(with_unknown(&del), del);
    let response = ads::DeltaDiscoveryResponse {
        nonce: "o".into(),
        ..Default::default()
    };
    assert_eq!(with_unknown(&response), response);
}

#[test]
fn unknown_enum_values_are_kept_as_numbers() {
    let pod = workload::Workload::decode(&[0x28, 0x63, 0x88, 0x01, 0x63][..]).expect("decodes");
    assert_eq!((pod.tunnel_protocol, pod.status), (99, 99));
    assert!(workload::TunnelProtocol::try_from(pod.tunnel_protocol).is_err());
    let policy = security::Authorization::decode(&[0x18, 0x63, 0x20, 0x63][..]).expect("decodes");
    assert_eq!((policy.scope, policy.action), (99, 99));
    let hello = zds::ZdsHello::decode(&[0x08, 0x63][..]).expect("decodes");
    assert_eq!(hello.version, 99);
}

#[test]
fn an_unknown_variant_leaves_a_oneof_empty() {
    // Variant 9 of the request's payload.
    let request = zds::WorkloadRequest::decode(&[0x4a, 0x00][..]).expect("decodes");
    assert_eq!(request.payload, None);
    let address = workload::Address::decode(&[0x4a, 0x00][..]).expect("decodes");
    assert_eq!(address.r#type, None);
}

#[test]
fn an_absent_capacity_differs_from_zero() {
    let absent = workload::Workload::decode(&[][..]).expect("decodes");
    let zero = workload::Workload::decode(&[0xda, 0x01, 0x00][..]).expect("decodes");
    assert_eq!((absent.capacity, zero.capacity), (None, Some(0)));
}

#[test]
fn resource_bodies_share_the_received_buffer() {
    let body = ads::ResourceBody {
        type_url: "t".into(),
        value: vec![7; 64].into(),
    };
    let mut received = bytes::Bytes::from(body.encode_to_vec());
    let span = received.as_ptr_range();
    let decoded = ads::ResourceBody::decode(&mut received).expect("decodes");
    assert!(span.contains(&decoded.value.as_ptr()), "bytes were copied");
}
