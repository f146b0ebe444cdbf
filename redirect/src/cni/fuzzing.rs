// SPDX-License-Identifier: Apache-2.0
//! What a container runtime's bytes reach in the plugin, up to the question to the agent.
//!
//! Built for the fuzz targets only.

use std::collections::BTreeMap;

use super::{Config, VERSIONS, request};
use crate::plugin_api::{AddReply, AddRequest, DelRequest, GcRequest};

/// An ADD: what the agent would be asked, and what the runtime would be told.
pub fn add(environment: &BTreeMap<String, String>, stdin: &[u8]) {
    let Ok(config) = Config::parse(stdin, VERSIONS[0]) else {
        return;
    };
    if let Ok(Some(asked)) = request(environment, &config) {
        let body = serde_json::to_vec(&asked).expect("a question is valid JSON");
        let heard: AddRequest = serde_json::from_slice(&body).expect("the agent can read it");
        assert_eq!(heard, asked);
    }
    let version = config.version.clone();
    let result: serde_json::Value =
        serde_json::from_str(&config.result()).expect("a result is valid JSON");
    if let Some(result) = result.as_object() {
        assert_eq!(result["cniVersion"], version);
    }
}

/// A question of the plugin as the agent reads it, and the agent's answer as the plugin does.
pub fn question(body: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<AddRequest>(body) {
        let _ = request.addresses();
    }
    let _ = serde_json::from_slice::<DelRequest>(body);
    let _ = serde_json::from_slice::<GcRequest>(body);
    let _ = serde_json::from_slice::<AddReply>(body);
}

/// What the agent answers.
pub fn answer(bytes: &[u8]) {
    crate::agent_client::fuzzing::answer(bytes);
}
