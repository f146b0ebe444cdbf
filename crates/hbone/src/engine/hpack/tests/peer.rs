// SPDX-License-Identifier: Apache-2.0
//! Blocks that h2 makes of requests, with its Huffman code and its dynamic table; and ours, read by h2.

use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Request};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime;
use tokio::time::timeout;

use super::super::table::{STATIC, STATIC_PSEUDO};
use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Without waiting for h2 for ever where it refused something.
const PATIENCE: Duration = Duration::from_secs(30);

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED_OR_PRIORITY: u8 = 0x28;

const HEADER_TABLE_SIZE: u8 = 1;

async fn write_frame(io: &mut DuplexStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = (payload.len() as u32).to_be_bytes();
    io.write_all(&length[1..]).await.unwrap();
    io.write_all(&[kind, flags]).await.unwrap();
    io.write_all(&stream.to_be_bytes()).await.unwrap();
    io.write_all(payload).await.unwrap();
}

async fn read_frame(io: &mut DuplexStream) -> (u8, u8, Vec<u8>) {
    let mut header = [0; 9];
    io.read_exact(&mut header).await.unwrap();
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let mut payload = vec![0; length as usize];
    io.read_exact(&mut payload).await.unwrap();
    (header[3], header[4], payload)
}

async fn read_block(io: &mut DuplexStream) -> Vec<u8> {
    let mut block = Vec::new();
    loop {
        let (kind, flags, payload) = read_frame(io).await;
        if kind == HEADERS || kind == CONTINUATION {
            assert!(kind == CONTINUATION || flags & PADDED_OR_PRIORITY == 0);
            block.extend(payload);
            if flags & END_HEADERS != 0 {
                return block;
            }
        }
    }
}

/// What the fields of `request` are on the wire, sorted: h2 keeps the order among fields of one name only.
fn sorted(mut list: Vec<Field>) -> Vec<Field> {
    list.sort();
    list
}

fn request(authority: &str, headers: &[(HeaderName, HeaderValue)]) -> (Request<()>, Vec<Field>) {
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = authority.parse().unwrap();
    let mut list = fields(&[(":method", "CONNECT"), (":authority", authority)]);
    for (name, value) in headers {
        request.headers_mut().append(name, value.clone());
        list.push((name.as_str().into(), value.as_bytes().to_vec()));
    }
    (request, list)
}

fn authority() -> impl Strategy<Value = &'static str> {
    select(vec!["10.0.0.1:80", "10.0.0.2:8080", "[fd00::1]:443"])
}

fn headers() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    // What h2 looks into: it would refuse most values.
    let special = ["transfer-encoding", "content-length"];
    let known: Vec<HeaderName> = STATIC[STATIC_PSEUDO..]
        .iter()
        .filter(|(name, _)| !special.contains(name))
        .map(|(name, _)| HeaderName::from_static(name))
        .collect();
    let name = prop_oneof![
        2 => select(known),
        1 => select(vec!["baggage", "forwarded", "traceparent"]).prop_map(HeaderName::from_static),
        1 => "x-[a-z0-9_.~!#$%&'*+^`|-]{0,20}".prop_map(|name| name.parse().unwrap()),
    ];
    let byte = any::<u8>().prop_map(|byte| match byte {
        b'\t' | b' '..=b'~' | 0x80.. => byte,
        _ => b'a',
    });
    let value = prop_oneof![
        2 => select(vec!["", "gzip, deflate", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"])
            .prop_map(HeaderValue::from_static),
        2 => vec(byte.clone(), 0..100).prop_map(|value| HeaderValue::from_bytes(&value).unwrap()),
        1 => vec(byte, 0..5000).prop_map(|value| HeaderValue::from_bytes(&value).unwrap()),
    ];
    let header = (name, value, any::<bool>()).prop_map(|(name, mut value, sensitive)| {
        value.set_sensitive(sensitive);
        (name, value)
    });
    vec(header, 0..12)
}

type Case = (&'static str, Vec<(HeaderName, HeaderValue)>);

async fn decode_what_h2_sends(max_table: usize, settings_before: usize, requests: Vec<Case>) {
    let (io, mut peer) = duplex(1 << 16);
    let (mut client, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let mut preface = [0; PREFACE.len()];
    peer.read_exact(&mut preface).await.unwrap();
    assert_eq!(preface, PREFACE);

    let mut decoder = Decoder::new(max_table);
    let mut responses = Vec::new();
    for (place, (authority, headers)) in requests.iter().enumerate() {
        if place == settings_before {
            let size = (max_table as u32).to_be_bytes();
            let payload = [&[0, HEADER_TABLE_SIZE], &size[..]].concat();
            write_frame(&mut peer, SETTINGS, 0, 0, &payload).await;
            while !matches!(read_frame(&mut peer).await, (SETTINGS, ACK, _)) {}
            decoder.settings_acknowledged();
        }
        let (request, list) = request(authority, headers);
        client = client.ready().await.unwrap();
        responses.push(client.send_request(request, true).unwrap());
        let block = read_block(&mut peer).await;
        let decoded = decode(&mut decoder, &block).unwrap();
        assert_eq!(sorted(decoded), sorted(list));
        assert!(decoder.table.allocated() <= model::bound(max_table.max(DEFAULT_TABLE)));
    }
}

async fn let_h2_decode(requests: Vec<Case>) {
    let (io, mut peer) = duplex(1 << 20);
    peer.write_all(PREFACE).await.unwrap();
    write_frame(&mut peer, SETTINGS, 0, 0, &[]).await;
    let mut server = h2::server::Builder::new()
        .max_header_list_size(1 << 20)
        .handshake::<_, Bytes>(io)
        .await
        .unwrap();
    for (place, (authority, headers)) in requests.iter().enumerate() {
        let (sent, list) = request(authority, headers);
        let mut block = Vec::new();
        if place == 0 {
            Encoder::first_block(&mut block);
        }
        for (name, value) in &list {
            Encoder::field(&mut block, name, value);
        }
        let mut parts = block.chunks(1 << 14).peekable();
        let mut kind = HEADERS;
        while let Some(part) = parts.next() {
            let last = match parts.peek() {
                Some(_) => 0,
                None => END_HEADERS,
            };
            let first = match kind {
                HEADERS => END_STREAM,
                _ => 0,
            };
            let stream = 2 * place as u32 + 1;
            write_frame(&mut peer, kind, first | last, stream, part).await;
            kind = CONTINUATION;
        }
        let (received, mut response) = server.accept().await.unwrap().unwrap();
        assert_eq!(received.method(), Method::CONNECT);
        assert_eq!(received.uri(), sent.uri());
        assert_eq!(received.headers(), sent.headers());
        response
            .send_response(http::Response::new(()), true)
            .unwrap();
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let result = runtime.block_on(async { timeout(PATIENCE, test).await });
    result.expect("h2 does its part");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_h2_sends_is_decoded_before_and_after_our_settings(
        max_table in prop_oneof![Just(0), Just(4096), 0usize..20_000],
        settings_before in 0usize..10,
        requests in vec((authority(), headers()), 1..10),
    ) {
        run(decode_what_h2_sends(max_table, settings_before, requests));
    }

    #[test]
    fn what_we_send_is_decoded_by_h2(requests in vec((authority(), headers()), 1..6)) {
        run(let_h2_decode(requests));
    }
}
