// SPDX-License-Identifier: Apache-2.0
//! `/debug/pprof/profile`: where the process spends its processor time, measured for some seconds.
//!
//! A timer of processor time interrupts whichever thread runs, and its stack is noted. Outside of a measurement it costs
//! nothing.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use ops::admin::{AdminRequest, AdminResponse, answer, text};
use pprof::{ProfilerGuardBuilder, Report};
use prost::Message as _;
use tokio::sync::Mutex;

use super::pprof_format::{Builder, Call, Profile};

/// Libraries in which a stack cannot be walked without risk: the interrupted thread may hold their locks.
const NOT_WALKED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// The timer is the process's only one.
static MEASURING: Mutex<()> = Mutex::const_new(());

pub(super) async fn cpu(request: AdminRequest) -> AdminResponse {
    let plan = match Plan::asked_for(&request) {
        Ok(plan) => plan,
        Err(problem) => return text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
    };
    let Ok(_measuring) = MEASURING.try_lock() else {
        return text(StatusCode::CONFLICT, "a profile is being taken already\n");
    };
    match plan.measure().await {
        Ok(profile) => answer(
            StatusCode::OK,
            "application/octet-stream",
            profile.encode_to_vec(),
        ),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    seconds: u64,
    /// Samples per second of processor time.
    frequency: i32,
}

impl Plan {
    fn asked_for(request: &AdminRequest) -> Result<Self, String> {
        Ok(Self {
            seconds: within(request, "seconds", 10, 1..=300)?,
            frequency: within(request, "frequency", 100, 1..=1000)?,
        })
    }

    async fn measure(self) -> Result<Profile, String> {
        let begun = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let started = Instant::now();
        let guard = ProfilerGuardBuilder::default()
            .frequency(self.frequency)
            .blocklist(&NOT_WALKED)
            .build()
            .map_err(|error| format!("cannot start the profiler: {error}"))?;
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        let took = started.elapsed();
        // Finding the names takes a while, and this thread has other things to do.
        let named = tokio::task::spawn_blocking(move || {
            let report = guard.report().build();
            report.map(|report| self.profile(&report, begun, took))
        });
        match named.await {
            Ok(report) => report.map_err(|error| format!("cannot read the profile: {error}")),
            Err(error) => Err(format!("cannot read the profile: {error}")),
        }
    }

    fn profile(self, report: &Report, begun: Duration, took: Duration) -> Profile {
        let mut builder = Builder::cpu(1_000_000_000 / i64::from(self.frequency));
        for (stack, count) in &report.data {
            let calls = stack.frames.iter().map(|inlined| {
                let calls = inlined.iter().map(|symbol| Call {
                    function: symbol.name(),
                    file: symbol.filename().into_owned(),
                    line: symbol.lineno(),
                });
                calls.collect()
            });
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            builder.add(&stack.thread_name, calls.collect(), count);
        }
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        builder.finish(nanos(begun), nanos(took))
    }
}

fn within<T>(
    request: &AdminRequest,
    name: &str,
    default: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let Some(given) = request.query_value(name) else {
        return Ok(default);
    };
    let number = given.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        format!(
            "{name}={given}: want a number from {} to {}",
            range.start(),
            range.end()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &[(&str, &str)]) -> Result<Plan, String> {
        Plan::asked_for(&AdminRequest {
            method: http::Method::GET,
            path: String::new(),
            query: query
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            headers: http::HeaderMap::new(),
            body: Default::default(),
        })
    }

    #[test]
    fn times_and_frequencies_are_checked() {
        let plan = |seconds, frequency| Ok(Plan { seconds, frequency });
        assert_eq!(asked(&[]), plan(10, 100));
        assert_eq!(
            asked(&[("seconds", "300"), ("frequency", "1000")]),
            plan(300, 1000)
        );
        for (name, bad) in [
            ("seconds", "0"),
            ("seconds", "301"),
            ("seconds", "x"),
            ("frequency", "0"),
            ("frequency", "1001"),
            ("frequency", "-1"),
        ] {
            let error = asked(&[(name, bad)]).unwrap_err();
            assert!(error.contains(&format!("{name}={bad}")), "{error}");
        }
    }
}
