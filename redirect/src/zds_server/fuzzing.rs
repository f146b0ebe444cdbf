// SPDX-License-Identifier: Apache-2.0
//! What a hostile ztunnel reaches in the agent. Built for the fuzz targets only.

use prost::Message as _;
use proto::zds::ZdsHello;

use super::parse_answer;

/// A packet as hello and as answer.
pub fn packet(bytes: &[u8]) {
    let _ = ZdsHello::decode(bytes);
    let _ = parse_answer(bytes);
}
