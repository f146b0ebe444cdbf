// SPDX-License-Identifier: Apache-2.0
//! Holds back warnings that say the same again and again, and says how many there were. Pure.
//!
//! ```text
//!  first FREE in a window ─► written at once
//!  further ones ───────────► held; when the window is over the latest is written with `repeated=<how many>`
//! ```
//! Two warnings are the same if their lines are, but for the time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Format;

/// Written at once in each window.
const FREE: u32 = 5;
const WINDOW: Duration = Duration::from_secs(10);
/// Different warnings that are watched; what comes on top is written as it is.
const MOST: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Repeats {
    format: Format,
    seen: HashMap<u64, Seen>,
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    written: u32,
    held: u64,
    /// The latest that was held.
    latest: String,
}

impl Repeats {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            seen: HashMap::new(),
        }
    }

    /// The line, unless it is held back.
    pub(super) fn pass(&mut self, key: u64, line: String, now: Instant) -> Option<String> {
        if self.seen.len() >= MOST && !self.seen.contains_key(&key) {
            return Some(line);
        }
        let seen = self.seen.entry(key).or_insert_with(|| Seen {
            since: now,
            written: 0,
            held: 0,
            latest: String::new(),
        });
        if seen.written < FREE {
            seen.written += 1;
            return Some(line);
        }
        seen.held += 1;
        seen.latest = line;
        None
    }

    /// What was held in windows that are over.
    pub(super) fn due(&mut self, now: Instant) -> Vec<String> {
        self.take(|seen| seen.since + WINDOW <= now)
    }

    /// What is held now: nothing comes any more, or somebody waits for all of it.
    pub(super) fn rest(&mut self) -> Vec<String> {
        self.take(|_| true)
    }

    /// How long until a window is over.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let next = self.seen.values().map(|seen| seen.since + WINDOW).min();
        next.map(|next| next.saturating_duration_since(now))
    }

    fn take(&mut self, over: impl Fn(&Seen) -> bool) -> Vec<String> {
        let mut lines = Vec::new();
        let format = self.format;
        self.seen.retain(|_, seen| {
            let over = over(seen);
            if over && seen.held > 0 {
                lines.push(repeated(&seen.latest, seen.held, format));
            }
            !over
        });
        // Each begins with its time.
        lines.sort();
        lines
    }
}

/// The line with one more field.
fn repeated(line: &str, count: u64, format: Format) -> String {
    let line = line.trim_end_matches('\n');
    match format {
        Format::Json => {
            let object = line.strip_suffix('}').unwrap_or(line);
            format!("{object},\"repeated\":{count}}}\n")
        }
        Format::Plain => {
            // Time, level, scope, message, fields: the last column may be missing.
            let separator = if line.matches('\t').count() > 3 {
                ' '
            } else {
                '\t'
            };
            format!("{line}{separator}repeated={count}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn of_many_equal_warnings_some_are_written_and_the_others_counted() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let line = |n: u32| format!("t{n}\twarn\tscope\tno way\n");
        let written = (0..100).filter_map(|n| repeats.pass(1, line(n), start));
        assert_eq!(written.count(), 5);
        assert_eq!(repeats.wait(start), Some(WINDOW));
        assert!(repeats.due(after(start, 9)).is_empty());
        assert_eq!(
            repeats.due(after(start, 10)),
            ["t99\twarn\tscope\tno way\trepeated=95\n"]
        );
        assert!(repeats.pass(1, line(0), after(start, 10)).is_some());
        assert!(repeats.due(after(start, 20)).is_empty(), "nothing was held");
        assert_eq!(repeats.wait(start), None);
    }

    #[test]
    fn different_warnings_are_not_held_up_by_one_another() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for key in 0..2000 {
            assert!(repeats.pass(key, "line\n".to_owned(), now).is_some());
        }
        assert!(repeats.seen.len() <= MOST);
    }

    #[test]
    fn the_count_is_one_more_field_in_either_format() {
        assert_eq!(
            repeated("t\twarn\ts\tm\ta=1 b=2\n", 7, Format::Plain),
            "t\twarn\ts\tm\ta=1 b=2 repeated=7\n"
        );
        let json = repeated("{\"level\":\"warn\",\"x\":{}}\n", 7, Format::Json);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["repeated"], 7);
    }

    #[test]
    fn nothing_that_was_held_is_lost_at_the_end() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        (0..7).for_each(|_| drop(repeats.pass(1, "t\tw\ts\tm\n".to_owned(), now)));
        assert_eq!(repeats.rest(), ["t\tw\ts\tm\trepeated=2\n"]);
    }
}
