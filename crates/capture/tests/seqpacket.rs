// SPDX-License-Identifier: Apache-2.0
//! Packets and descriptors over unix sockets.
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

use std::os::fd::AsFd;

use capture::netns::Netns;
use capture::seqpacket::{SeqPacket, SeqPacketListener};

#[tokio::test]
async fn packets_keep_their_borders_and_order() {
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(b"one", None).await.unwrap();
    a.send(b"two", None).await.unwrap();
    assert_eq!(b.recv(64).await.unwrap().bytes, b"one");
    assert_eq!(b.recv(64).await.unwrap().bytes, b"two");
}

#[tokio::test]
async fn a_namespace_crosses_the_socket() {
    let (a, b) = SeqPacket::pair().unwrap();
    let netns =
        Netns::create().expect("creating a network namespace needs root, or `unshare -Urnm`");
    a.send(b"add", Some(netns.as_fd())).await.unwrap();
    let mut packet = b.recv(64).await.unwrap();
    assert!(!packet.truncated);
    assert_eq!(packet.fds.len(), 1);
    assert_eq!(Netns::from_fd(packet.fds.remove(0)).unwrap(), netns);
}

#[tokio::test]
async fn received_descriptors_are_closed_on_exec() {
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(b"add", Some(a.as_fd())).await.unwrap();
    let packet = b.recv(64).await.unwrap();
    let flags = nix::fcntl::fcntl(&packet.fds[0], nix::fcntl::FcntlArg::F_GETFD).unwrap();
    assert_ne!(flags & libc::FD_CLOEXEC, 0);
}

#[tokio::test]
async fn a_packet_that_is_too_long_is_marked_as_cut() {
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(&[7; 65], None).await.unwrap();
    let packet = b.recv(64).await.unwrap();
    assert!(packet.truncated);
    assert_eq!(packet.bytes, [7; 64]);
    a.send(&[7; 64], None).await.unwrap();
    assert!(!b.recv(64).await.unwrap().truncated);
}

#[tokio::test]
async fn a_closed_peer_is_an_end() {
    let (a, b) = SeqPacket::pair().unwrap();
    drop(a);
    assert!(b.recv(64).await.unwrap().is_end());
}

#[tokio::test]
async fn a_listener_takes_over_the_path_of_a_dead_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zds.sock");
    let first = SeqPacketListener::bind(&path).unwrap();
    let second = SeqPacketListener::bind(&path).unwrap();
    // The older one must not take the newer one's path along.
    drop(first);
    let client = SeqPacket::connect(&path).unwrap();
    let server = second.accept().await.unwrap();
    client.send(b"hello", None).await.unwrap();
    assert_eq!(server.recv(64).await.unwrap().bytes, b"hello");
    drop(second);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_listener_never_removes_what_is_no_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    assert!(SeqPacketListener::bind(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[tokio::test]
async fn several_descriptors_cross_in_one_packet_in_their_order() {
    let (a, b) = SeqPacket::pair().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = ["one", "two", "three"]
        .into_iter()
        .map(|name| {
            std::fs::write(folder.path().join(name), name).unwrap();
            std::fs::File::open(folder.path().join(name)).unwrap()
        })
        .collect();
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    a.send_with(b"three files", &fds).await.unwrap();
    let packet = b.recv(64).await.unwrap();
    assert_eq!(packet.bytes, b"three files");
    let read: Vec<String> = packet
        .fds
        .into_iter()
        .map(|fd| std::io::read_to_string(std::fs::File::from(fd)).unwrap())
        .collect();
    assert_eq!(read, ["one", "two", "three"]);
}

#[tokio::test]
async fn a_private_listener_is_for_its_own_user_and_knows_its_peers() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("private.sock");
    let listener = SeqPacketListener::bind_private(&path).unwrap();
    let file = std::fs::metadata(&path).unwrap();
    assert_eq!(file.mode() & 0o777, 0o600);
    let _client = SeqPacket::connect(&path).unwrap();
    let served = listener.accept().await.unwrap();
    assert_eq!(served.peer_uid().unwrap(), file.uid());
}

#[tokio::test]
async fn only_a_socket_of_packets_is_taken_over_as_one() {
    let (a, b) = SeqPacket::pair().unwrap();
    let handed = AsFd::as_fd(&a).try_clone_to_owned().unwrap();
    let taken = SeqPacket::from_received(handed).unwrap();
    taken.send(b"x", None).await.unwrap();
    assert_eq!(b.recv(8).await.unwrap().bytes, b"x");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(SeqPacket::from_received(file.into()).is_err());
    let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(SeqPacket::from_received(stream.into()).is_err());
}
