// SPDX-License-Identifier: Apache-2.0
//! What a rule of a VirtualService says of time and of further attempts.

use cluster::kinds::virtual_service as vs;
use proto::waypoint as wire;

use super::super::{Faults, values};

const DEFAULT_ATTEMPTS: i64 = 2;
const MAX_ATTEMPTS: u32 = 100;

/// The whole request's time, and an attempt's.
pub(super) fn timeouts(one: &vs::HttpRoute, at: &str, own: &mut Faults) -> Option<wire::Timeouts> {
    let mut read = |text: Option<&str>, field: &str| match values::fraction(text?) {
        Ok(duration) => Some(duration).filter(|duration| !duration.is_zero()),
        Err(words) => {
            own.add(format!("{at}.{field}"), words);
            None
        }
    };
    let request = read(one.timeout.as_deref(), "timeout");
    let retries = one.retries.as_ref();
    let attempt = retries.and_then(|retries| retries.per_try_timeout.as_deref());
    let attempt = read(attempt, "retries.perTryTimeout");
    (request.is_some() || attempt.is_some()).then(|| wire::Timeouts {
        request: request.map(values::wire),
        // One that is longer than all of them together says nothing.
        backend_request: attempt
            .filter(|attempt| request.is_none_or(|request| *attempt <= request))
            .map(values::wire),
    })
}

/// What is tried again. What can't be is told in `notes`: less is tried again, which changes nothing else.
pub(super) fn read(
    wanted: Option<&vs::Retries>,
    at: &str,
    own: &mut Faults,
    notes: &mut Faults,
) -> Option<wire::Retry> {
    let wanted = wanted?;
    let at = format!("{at}.retries");
    own.unknown(&at, &wanted.unknown_fields);
    let attempts = wanted.attempts.unwrap_or(DEFAULT_ATTEMPTS).max(0);
    if attempts > MAX_ATTEMPTS.into() {
        let words = format!("{attempts} are as good as unbounded: {MAX_ATTEMPTS} count");
        notes.add(format!("{at}.attempts"), words);
    }
    for (given, field) in [
        (
            wanted.retry_remote_localities == Some(true),
            "retryRemoteLocalities",
        ),
        (
            wanted.retry_ignore_previous_hosts == Some(false),
            "retryIgnorePreviousHosts",
        ),
    ] {
        if given {
            let words = "is not used by waypoints: another endpoint is tried, the nearest first";
            notes.add(format!("{at}.{field}"), words);
        }
    }
    let attempts = u32::try_from(attempts)
        .unwrap_or(MAX_ATTEMPTS)
        .min(MAX_ATTEMPTS);
    let backoff = wanted
        .backoff
        .as_deref()
        .and_then(|text| match values::fraction(text) {
            Ok(duration) => Some(values::wire(duration)),
            Err(words) => {
                own.add(format!("{at}.backoff"), words);
                None
            }
        });
    let mut codes: Vec<u32> = Vec::new();
    let mut beyond_safe = false;
    let conditions = wanted.retry_on.as_deref().unwrap_or_default().split(',');
    for condition in conditions.map(str::trim).filter(|text| !text.is_empty()) {
        match condition {
            // No application can have seen the request.
            "connect-failure"
            | "refused-stream"
            | "reset-before-request"
            | "retriable-status-codes" => {}
            "reset" => beyond_safe = true,
            "5xx" => codes.extend(500..=599),
            "gateway-error" => codes.extend(502..=504),
            "retriable-4xx" => codes.push(409),
            other => match other.parse::<u32>() {
                Ok(code @ 400..=599) => codes.push(code),
                _ => notes.add(
                    format!("{at}.retryOn"),
                    format!(
                        "{other:?} is no condition that is known: nothing is tried again for it"
                    ),
                ),
            },
        }
    }
    codes.sort_unstable();
    codes.dedup();
    // What is safe is tried again without being asked for.
    (attempts == 0 || beyond_safe || !codes.is_empty()).then_some(wire::Retry {
        attempts,
        codes,
        backoff,
    })
}
