// SPDX-License-Identifier: Apache-2.0
//! Standard input as a lifeline: whoever started this process holds the other end, and its end is the signal to stop.

use std::io::Read as _;

use tokio::sync::oneshot;

/// Completes once standard input has ended.
///
/// The reading is left to a thread of its own: a runtime would wait for such a read when it shuts down.
pub fn input_ended() -> impl Future<Output = ()> {
    let (ended, end) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let mut scratch = [0; 64];
        let mut input = std::io::stdin().lock();
        while input.read(&mut scratch).is_ok_and(|count| count > 0) {}
        drop(ended);
    });
    async move {
        // The sender says nothing; that it is dropped is the message.
        let _dropped = end.await;
    }
}
