// SPDX-License-Identifier: Apache-2.0
//! What applications at the two ends see of each other: every byte, every end, every reset.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Mesh, config, echo, listen, soon, tcp_pair};
use hbone::{Config, End, Meter, Outcome, Side, Stop, relay_tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MIB: usize = 1024 * 1024;

/// Bytes that don't repeat in any useful period.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

async fn expect_reset(socket: &mut TcpStream) {
    let mut rest = Vec::new();
    let error = soon(socket.read_to_end(&mut rest)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

fn reset(socket: TcpStream) {
    socket.set_zero_linger().unwrap();
    drop(socket);
}

async fn end_of(relay: tokio::task::JoinHandle<Outcome>) -> Outcome {
    soon(relay).await.unwrap()
}

#[tokio::test]
async fn bytes_sent_come_back_and_are_counted_at_both_ends() {
    let mut mesh = Mesh::new().await;
    let (mut application, relay) = mesh.connect(echo().await).await;
    for size in [1, 2, 255, 256, 300, 5_000, 16_384, 100_000] {
        let sent = noise(size as u64, size);
        application.write_all(&sent).await.unwrap();
        let mut back = vec![0; size];
        soon(application.read_exact(&mut back)).await.unwrap();
        assert!(back == sent, "{size} bytes");
    }
    drop(application);
    let total = 1 + 2 + 255 + 256 + 300 + 5_000 + 16_384 + 100_000;
    let near = end_of(relay).await;
    assert!(matches!(near.end, End::Finished), "{near:?}");
    assert_eq!((near.sent, near.received), (total, total));
    let far = soon(mesh.server.outcomes.recv()).await.unwrap();
    assert!(matches!(far.end, End::Finished), "{far:?}");
    assert_eq!((far.sent, far.received), (total, total));
}

#[tokio::test]
async fn bulk_arrives_whole_both_ways_at_once() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let up = Arc::new(noise(1, 9 * MIB + 17));
    let down = Arc::new(noise(2, 7 * MIB + 3));
    let server = tokio::spawn({
        let (up, down) = (Arc::clone(&up), Arc::clone(&down));
        async move {
            let (socket, _) = listener.accept().await.unwrap();
            exchange(socket, down, up).await;
        }
    });
    let (application, relay) = mesh.connect(address).await;
    soon(exchange(application, up, down)).await;
    soon(server).await.unwrap();
    assert!(matches!(end_of(relay).await.end, End::Finished));
}

async fn exchange(socket: TcpStream, out: Arc<Vec<u8>>, expected: Arc<Vec<u8>>) {
    let (mut read, mut write) = socket.into_split();
    let writer = tokio::spawn(async move {
        for part in out.chunks(70_001) {
            write.write_all(part).await.unwrap();
        }
        write.shutdown().await.unwrap();
    });
    let mut seen = Vec::new();
    read.read_to_end(&mut seen).await.unwrap();
    assert!(
        seen == *expected,
        "{} bytes of {}",
        seen.len(),
        expected.len()
    );
    writer.await.unwrap();
}

#[tokio::test]
async fn client_closes_first_and_still_hears_the_answer() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (mut client, relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut heard = Vec::new();
    soon(server.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"question");
    server.write_all(b"answer").await.unwrap();
    drop(server);
    let mut heard = Vec::new();
    soon(client.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"answer");
    assert!(matches!(end_of(relay).await.end, End::Finished));
}

#[tokio::test]
async fn server_closes_first_and_still_hears_the_client() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (mut client, relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    server.write_all(b"banner").await.unwrap();
    server.shutdown().await.unwrap();
    let mut heard = Vec::new();
    soon(client.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"banner");
    client.write_all(b"thanks").await.unwrap();
    drop(client);
    let mut heard = Vec::new();
    soon(server.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"thanks");
    assert!(matches!(end_of(relay).await.end, End::Finished));
}

#[tokio::test]
async fn what_the_application_has_not_read_yet_survives_an_orderly_end() {
    let mut mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (stream, _) = soon(mesh.open(address)).await.unwrap();
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    // Little room at the client, so that most of the answer waits in the relay's socket when the relay ends.
    let (near, near_address) = listen().await;
    socket2::SockRef::from(&near)
        .set_recv_buffer_size(4096)
        .unwrap();
    let (captured, client) = tokio::join!(TcpStream::connect(near_address), near.accept());
    let mut client = client.unwrap().0;
    let meter = Arc::clone(&mesh.meter);
    let captured = captured.unwrap();
    socket2::SockRef::from(&captured)
        .set_send_buffer_size(512 * 1024)
        .unwrap();
    let relay = tokio::spawn(async move { stream.relay(captured, &meter, &Stop::new()).await });
    client.shutdown().await.unwrap();
    let answer = noise(9, 100_000);
    server.write_all(&answer).await.unwrap();
    drop(server);
    assert!(matches!(end_of(relay).await.end, End::Finished));
    assert!(matches!(
        soon(mesh.server.outcomes.recv()).await.unwrap().end,
        End::Finished
    ));
    let mut heard = Vec::new();
    soon(client.read_to_end(&mut heard)).await.unwrap();
    assert!(heard == answer);
}

#[tokio::test]
async fn reset_by_the_client_reaches_the_server_as_reset() {
    let mut mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (client, relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    reset(client);
    expect_reset(&mut server).await;
    assert!(matches!(
        end_of(relay).await.end,
        End::Reset { by: Side::Near }
    ));
    let far = soon(mesh.server.outcomes.recv()).await.unwrap();
    assert!(matches!(far.end, End::Reset { by: Side::Far }), "{far:?}");
}

#[tokio::test]
async fn reset_by_the_server_reaches_the_client_as_reset() {
    let mut mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (mut client, relay) = mesh.connect(address).await;
    let (server, _) = soon(listener.accept()).await.unwrap();
    reset(server);
    expect_reset(&mut client).await;
    assert!(matches!(
        end_of(relay).await.end,
        End::Reset { by: Side::Far }
    ));
    let far = soon(mesh.server.outcomes.recv()).await.unwrap();
    assert!(matches!(far.end, End::Reset { by: Side::Near }), "{far:?}");
}

#[tokio::test]
async fn reset_after_half_close_is_noticed_without_another_byte() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    // By the client, which has sent FIN.
    let (mut client, relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(soon(server.read(&mut [0; 8])).await.unwrap(), 0);
    reset(client);
    let error = soon(until_broken(&mut server)).await;
    assert!(error, "the server is told");
    assert!(matches!(
        end_of(relay).await.end,
        End::Reset { by: Side::Near }
    ));
    // By the server, which has sent FIN.
    let (mut client, relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(soon(client.read(&mut [0; 8])).await.unwrap(), 0);
    reset(server);
    assert!(soon(until_broken(&mut client)).await, "the client is told");
    assert!(matches!(
        end_of(relay).await.end,
        End::Reset { by: Side::Far }
    ));
}

/// A socket that has read FIN learns of a later reset by its error state.
async fn until_broken(socket: &mut TcpStream) -> bool {
    socket.ready(tokio::io::Interest::ERROR).await.is_ok()
}

#[tokio::test]
async fn reset_is_mirrored_while_the_peer_reads_nothing() {
    let config = Config {
        stream_window: 65_535,
        send_buffer: 65_535,
        ..config()
    };
    let mesh = Mesh::with(config).await;
    let (listener, address) = listen().await;
    let (client, relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    fill(&client, &mesh.meter).await;
    reset(client);
    assert!(matches!(
        end_of(relay).await.end,
        End::Reset { by: Side::Near }
    ));
    expect_reset(&mut server).await;
}

/// Writes until nothing more is taken and nothing more moves.
async fn fill(socket: &TcpStream, meter: &Meter) -> usize {
    let block = vec![b'x'; 256 * 1024];
    let mut total = 0;
    let mut still = 0;
    let mut before = meter.sent();
    while still < 10 {
        match socket.try_write(&block) {
            Ok(written) => {
                total += written;
                still = 0;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        if meter.sent() == before {
            still += 1;
        } else {
            (still, before) = (0, meter.sent());
        }
    }
    total
}

#[tokio::test]
async fn what_was_said_before_a_reset_is_still_heard() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (mut client, _relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    server.write_all(b"you talk too much").await.unwrap();
    reset(server);
    let mut heard = [0; 17];
    soon(client.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"you talk too much");
    expect_reset(&mut client).await;
}

#[tokio::test]
async fn stop_resets_both_sides_and_gives_its_reason() {
    let mut mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let stop = Stop::new();
    let (mut client, relay) = mesh.connect_with(address, stop.clone()).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    stop.stop("pod is gone");
    let outcome = end_of(relay).await;
    assert!(
        matches!(&outcome.end, End::Stopped { reason } if &**reason == "pod is gone"),
        "{outcome:?}"
    );
    expect_reset(&mut client).await;
    expect_reset(&mut server).await;
    // The accepting end's own.
    let _ = soon(mesh.server.outcomes.recv()).await;
    let (mut client, _relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    mesh.server.stop.stop("policy change");
    expect_reset(&mut client).await;
    expect_reset(&mut server).await;
    let far = soon(mesh.server.outcomes.recv()).await.unwrap();
    assert!(matches!(&far.end, End::Stopped { reason } if &**reason == "policy change"));
}

#[tokio::test]
async fn an_aborted_relay_resets_both_sides() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (mut client, relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    client.write_all(b"running").await.unwrap();
    soon(server.read_exact(&mut [0; 7])).await.unwrap();
    relay.abort();
    expect_reset(&mut client).await;
    expect_reset(&mut server).await;
}

#[tokio::test]
async fn a_relay_dropped_before_it_ran_resets_both_sides() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (stream, _) = soon(mesh.open(address)).await.unwrap();
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    let (mut client, captured) = tcp_pair().await;
    drop(stream.relay(captured, &Arc::new(Meter::new()), &Stop::new()));
    expect_reset(&mut client).await;
    expect_reset(&mut server).await;
}

#[tokio::test]
async fn a_stalled_reader_holds_a_bounded_amount_and_loses_nothing() {
    let config = Config {
        stream_window: 256 * 1024,
        send_buffer: 128 * 1024,
        ..config()
    };
    let mesh = Mesh::with(config).await;
    let (listener, address) = listen().await;
    let (mut client, _relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    let offered = soon(fill(&client, &mesh.meter)).await;
    let held = mesh.meter.sent() - mesh.server.meter.received();
    assert!(held >= 256 * 1024, "the window was used: {held}");
    assert!(
        held <= 384 * 1024,
        "window and send buffer bound it: {held}"
    );
    client.shutdown().await.unwrap();
    let mut seen = Vec::new();
    soon(server.read_to_end(&mut seen)).await.unwrap();
    assert_eq!(seen.len(), offered);
}

#[tokio::test]
async fn what_is_there_leaves_in_one_frame() {
    // A raw server counts the frames.
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let certificate = mesh.authority.issue(&crate::common::id("server"));
    *mesh.dial.instead.lock().unwrap() = Some(address);
    let frames = tokio::spawn(async move {
        let builder = h2::server::Builder::new();
        let mut tunnel = crate::common::raw::accept(&listener, &certificate, &builder).await;
        let (request, mut respond) = tunnel.accept().await.unwrap().unwrap();
        let driver = tokio::spawn(async move { while tunnel.accept().await.is_some() {} });
        let mut send = respond
            .send_response(http::Response::new(()), false)
            .unwrap();
        let mut frames = Vec::new();
        let mut body = request.into_body();
        while let Some(frame) = body.data().await {
            frames.push(frame.unwrap().len());
        }
        send.send_data(bytes::Bytes::new(), true).unwrap();
        drop((send, body));
        let _ = driver.await;
        frames
    });
    let (stream, _) = soon(mesh.open("10.0.0.1:80")).await.unwrap();
    let (mut application, captured) = tcp_pair().await;
    for _ in 0..1000 {
        application.write_all(b"x").await.unwrap();
    }
    application.shutdown().await.unwrap();
    let outcome = soon(stream.relay(captured, &Arc::new(Meter::new()), &Stop::new())).await;
    assert!(matches!(outcome.end, End::Finished), "{outcome:?}");
    drop(mesh);
    let frames = soon(frames).await.unwrap();
    assert_eq!(frames.iter().sum::<usize>(), 1000);
    assert!(frames.len() <= 3, "{frames:?}");
}

#[tokio::test]
async fn a_stream_also_serves_as_reader_and_writer() {
    let mesh = Mesh::new().await;
    let (stream, _) = soon(mesh.open(echo().await)).await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let sent = noise(5, 3 * MIB);
    let writer = tokio::spawn({
        let sent = sent.clone();
        async move {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
            write
        }
    });
    let mut seen = Vec::new();
    soon(read.read_to_end(&mut seen)).await.unwrap();
    assert!(seen == sent);
    soon(writer).await.unwrap();
}

#[tokio::test]
async fn a_reader_of_a_reset_stream_gets_an_error() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (mut stream, _) = soon(mesh.open(address)).await.unwrap();
    reset(soon(listener.accept()).await.unwrap().0);
    let error = soon(stream.read(&mut [0; 8])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Two applications joined by a relay without a tunnel.
async fn tcp_relay(stop: Stop) -> (TcpStream, TcpStream, tokio::task::JoinHandle<Outcome>) {
    let (near, captured) = tcp_pair().await;
    let (dialled, far) = tcp_pair().await;
    let relay =
        tokio::spawn(
            async move { relay_tcp(captured, dialled, &Arc::new(Meter::new()), &stop).await },
        );
    (near, far, relay)
}

#[tokio::test]
async fn tcp_relay_carries_bulk_both_ways_and_counts_it() {
    let (near, far, relay) = tcp_relay(Stop::new()).await;
    let up = Arc::new(noise(3, 5 * MIB + 1));
    let down = Arc::new(noise(4, 6 * MIB + 2));
    let server = tokio::spawn(exchange(far, Arc::clone(&down), Arc::clone(&up)));
    soon(exchange(near, Arc::clone(&up), Arc::clone(&down))).await;
    soon(server).await.unwrap();
    let outcome = end_of(relay).await;
    assert!(matches!(outcome.end, End::Finished), "{outcome:?}");
    assert_eq!(outcome.sent as usize, up.len());
    assert_eq!(outcome.received as usize, down.len());
}

#[tokio::test]
async fn tcp_relay_mirrors_fin_and_reset_each_way() {
    for near_first in [true, false] {
        let (near, far, relay) = tcp_relay(Stop::new()).await;
        let (mut first, mut second) = if near_first { (near, far) } else { (far, near) };
        first.write_all(b"last words").await.unwrap();
        first.shutdown().await.unwrap();
        let mut heard = Vec::new();
        soon(second.read_to_end(&mut heard)).await.unwrap();
        assert_eq!(heard, b"last words");
        second.write_all(b"more").await.unwrap();
        let mut heard = [0; 4];
        soon(first.read_exact(&mut heard)).await.unwrap();
        reset(second);
        let broken = soon(until_broken(&mut first)).await;
        assert!(broken);
        let by = if near_first { Side::Far } else { Side::Near };
        let outcome = end_of(relay).await;
        assert!(
            matches!(outcome.end, End::Reset { by: found } if found == by),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn tcp_relay_is_stopped_with_a_reason() {
    let stop = Stop::new();
    let (mut near, mut far, relay) = tcp_relay(stop.clone()).await;
    stop.stop("policy change");
    expect_reset(&mut near).await;
    expect_reset(&mut far).await;
    assert!(matches!(end_of(relay).await.end, End::Stopped { .. }));
}

/// A relay between two sockets and what it counts.
async fn counted_relay() -> (
    TcpStream,
    TcpStream,
    Arc<Meter>,
    tokio::task::JoinHandle<Outcome>,
) {
    let (near, captured) = tcp_pair().await;
    let (dialled, far) = tcp_pair().await;
    let meter = Arc::new(Meter::new());
    let relay = tokio::spawn({
        let meter = Arc::clone(&meter);
        async move { relay_tcp(captured, dialled, &meter, &Stop::new()).await }
    });
    (near, far, meter, relay)
}

/// Writes so much that the direction is spliced, and checks that it arrives.
async fn make_bulk(from: &mut TcpStream, to: &mut TcpStream, seed: u64) -> u64 {
    let bytes = noise(seed, 24 * MIB + 13);
    let mut seen = vec![0; bytes.len()];
    let (written, read) =
        soon(async { tokio::join!(from.write_all(&bytes), to.read_exact(&mut seen)) }).await;
    written.unwrap();
    read.unwrap();
    assert!(seen == bytes, "bulk arrived changed");
    bytes.len() as u64
}

#[tokio::test]
async fn bulk_between_sockets_is_spliced_each_way_and_ends_in_order() {
    for near_first in [true, false] {
        let (mut near, mut far, meter, relay) = counted_relay().await;
        let (first, second) = match near_first {
            true => (&mut near, &mut far),
            false => (&mut far, &mut near),
        };
        let bulk = make_bulk(first, second, 11).await;
        let spliced = meter.spliced();
        assert!(
            spliced >= bulk / 2,
            "{spliced} of {bulk} bytes were spliced"
        );
        // The other direction is what it was, also after the first has ended.
        first.write_all(b"the end").await.unwrap();
        first.shutdown().await.unwrap();
        let mut rest = Vec::new();
        soon(second.read_to_end(&mut rest)).await.unwrap();
        assert_eq!(rest, b"the end");
        second.write_all(b"answer").await.unwrap();
        second.shutdown().await.unwrap();
        let mut rest = Vec::new();
        soon(first.read_to_end(&mut rest)).await.unwrap();
        assert_eq!(rest, b"answer");
        let outcome = end_of(relay).await;
        assert!(matches!(outcome.end, End::Finished), "{outcome:?}");
        let (there, back) = match near_first {
            true => (outcome.sent, outcome.received),
            false => (outcome.received, outcome.sent),
        };
        assert_eq!((there, back), (bulk + 7, 6));
    }
}

#[tokio::test]
async fn a_reset_amid_spliced_bulk_is_mirrored_from_either_end() {
    for writer_resets in [true, false] {
        let (mut near, mut far, meter, relay) = counted_relay().await;
        make_bulk(&mut near, &mut far, 12).await;
        // Until nothing moves any more: the far end has stopped reading.
        fill(&near, &meter).await;
        let (first, mut second, by) = match writer_resets {
            true => (near, far, Side::Near),
            false => (far, near, Side::Far),
        };
        reset(first);
        assert!(soon(until_broken(&mut second)).await);
        let outcome = end_of(relay).await;
        assert!(
            matches!(outcome.end, End::Reset { by: found } if found == by),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn what_is_small_again_is_copied_again() {
    let (mut near, mut far, meter, relay) = counted_relay().await;
    make_bulk(&mut near, &mut far, 13).await;
    let talk = async |near: &mut TcpStream, far: &mut TcpStream| {
        let mut heard = [0; 10];
        near.write_all(b"small talk").await.unwrap();
        soon(far.read_exact(&mut heard)).await.unwrap();
        assert_eq!(&heard, b"small talk");
    };
    for _ in 0..40 {
        talk(&mut near, &mut far).await;
    }
    let spliced = meter.spliced();
    for _ in 0..10 {
        talk(&mut near, &mut far).await;
    }
    assert_eq!(meter.spliced(), spliced, "still spliced");
    drop((near, far));
    end_of(relay).await;
}

/// Whoever accepts a connection has its socket reset when the process is killed; that must not outlive the connection.
#[tokio::test]
async fn what_the_kernel_still_holds_when_all_went_well_arrives() {
    let mesh = Mesh::new().await;
    let (listener, target) = listen().await;
    let (stream, _) = soon(mesh.open(target)).await.unwrap();
    let (mut application, captured) = tcp_pair().await;
    captured.set_zero_linger().unwrap();
    let (meter, stop) = (Arc::new(Meter::new()), Stop::new());
    let relay = tokio::spawn(async move { stream.relay(captured, &meter, &stop).await });
    let (mut server, _) = listener.accept().await.unwrap();
    application.shutdown().await.unwrap();
    let answer = noise(7, MIB / 2);
    server.write_all(&answer).await.unwrap();
    drop(server);
    // All is over before the application reads its first byte.
    assert!(matches!(end_of(relay).await.end, End::Finished));
    let mut received = Vec::new();
    soon(application.read_to_end(&mut received)).await.unwrap();
    assert!(received == answer, "{} bytes", received.len());
}
