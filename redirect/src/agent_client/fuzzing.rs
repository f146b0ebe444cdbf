// SPDX-License-Identifier: Apache-2.0
//! What a hostile agent's answer reaches in the plugin. Built for the fuzz targets only.

use super::parse;

/// What comes after a complete answer changes nothing of it.
pub(crate) fn answer(bytes: &[u8]) {
    if let Ok(Some(whole)) = parse(bytes) {
        let more = [bytes, b"\r\n\r\n"].concat();
        let again = parse(&more)
            .expect("it was an answer")
            .expect("it was complete");
        assert_eq!((again.status, &again.body), (whole.status, &whole.body));
        let _ = whole.into_result();
    }
}
