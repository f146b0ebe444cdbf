// SPDX-License-Identifier: Apache-2.0
//! How much a task does before others get their turn.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll};

/// Bytes that a task moves in one direction before others get their turn.
pub(crate) const TURN: usize = 1024 * 1024;

/// Ends a turn that leaves something to do: the task is polled again once those in line had theirs and the runtime has
/// looked for what has arrived.
///
/// To wake itself would not do. A few tasks that do so keep the line from ever being empty, and the runtime, which then
/// looks only after so many of them, notices new connections and answers as much later as their turns are long.
pub(crate) fn again(cx: &mut Context<'_>) {
    let behind_all: Poll<()> = pin!(tokio::task::yield_now()).poll(cx);
    debug_assert!(behind_all.is_pending());
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn what_has_arrived_is_noticed_between_two_turns_of_whoever_always_has_more() {
        let turns = Arc::new(AtomicU32::new(0));
        let busy = Arc::clone(&turns);
        tokio::spawn(poll_fn(move |cx| {
            busy.fetch_add(1, Ordering::Relaxed);
            again(cx);
            Poll::<()>::Pending
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let from = TcpStream::connect(to).await.unwrap();
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut byte = [0];
        // Its socket is known to the runtime, and has nothing yet.
        tokio::select! {
            biased;
            _ = socket.read_exact(&mut byte) => unreachable!("nothing was sent"),
            () = tokio::task::yield_now() => {}
        }
        let before = turns.load(Ordering::Relaxed);
        assert_eq!(from.try_write(b"x").unwrap(), 1);
        socket.read_exact(&mut byte).await.unwrap();
        let meanwhile = turns.load(Ordering::Relaxed) - before;
        assert!(meanwhile <= 4, "{meanwhile} turns");
        assert!(before > 0, "nobody was busy");
    }
}
