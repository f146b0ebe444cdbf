// SPDX-License-Identifier: Apache-2.0
//! Logs: one line an event on standard output, the level changed at run time.
//!
//! Plain lines are tab-separated: time (RFC 3339 UTC, microseconds), level, scope with its spans, message, fields.
//! JSON lines hold `level`, `time`, `scope`, `message`, the event's fields, then one object a span. Both are the
//! shapes that operators of Istio know and that its tools parse.
//!
//! Lines leave through a thread of their own and a bounded queue, so that a slow terminal costs the data plane
//! nothing until [`QUEUE`] lines wait; from then on the caller waits too, since a lost access log line is worse. A line
//! is written at once, and those of the next 5 ms together. A warning that repeats itself is held back and counted; access lines never are. A full disk stops nobody: lines wait
//! for it, up to a bound (see `sink`).

mod line;
mod repeats;
mod sink;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

use line::LineLayer;
use repeats::Repeats;
use sink::Sink;

/// Lines that may wait for the writer.
pub const QUEUE: usize = 10_000;
/// Target of events whose message is a line as somebody else's format has it: nothing is written around it.
pub const READY_MADE: &str = "access::line";
/// Lines written with one call.
const BATCH: usize = 256;
/// How long lines gather after a write. Waking the writer for each costs a proxy more than making the line does.
const GATHER: Duration = Duration::from_millis(5);

/// Directives that a filter may have: each is compared with every event.
const MOST_DIRECTIVES: usize = 64;

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Tab-separated text.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

/// What to log and how.
#[derive(Debug, Clone, Default)]
pub struct LogConfig {
    /// The shape of a line (`LOG_FORMAT=json` or nothing).
    pub format: Format,
    /// `RUST_LOG`: a comma list of `level` or `target=level`; empty means `info`.
    pub filter: String,
    /// Directives that hold under every filter that does not name the same target; not shown as part of it.
    pub always: &'static str,
}

/// Why logging could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error("log filter {filter:?}: {problem}")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The process already logs.
    #[error("logging is set up already")]
    AlreadySetUp,
    /// No thread for the writer.
    #[error("cannot start the log writer: {0}")]
    Writer(#[from] io::Error),
}

/// The running log; clones share it.
#[derive(Clone)]
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
    current: Arc<Mutex<String>>,
    default: Arc<str>,
    always: &'static str,
    lines: SyncSender<Line>,
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Logs").field(&self.filter()).finish()
    }
}

enum Line {
    Text {
        text: String,
        /// The same for all that say the same; none where each counts.
        repeats: Option<u64>,
    },
    Flush(SyncSender<()>),
}

/// Starts logging to standard output for the whole process.
///
/// # Errors
/// A filter that does not parse, or a second call.
pub fn init(config: &LogConfig) -> Result<Logs, LogError> {
    let text = if config.filter.trim().is_empty() {
        "info"
    } else {
        config.filter.trim()
    };
    let (filter, handle) = reload::Layer::new(parse_filter(config.always, text)?);
    let (lines, queue) = mpsc::sync_channel(QUEUE);
    let repeats = Repeats::new(config.format);
    // Not by way of the library's buffer, which does not say how much of a line was written when one fails.
    let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut sink = Sink::new(out, standard_output(), config.format);
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || write_lines(&queue, repeats, &mut sink))?;
    let layer = LineLayer {
        format: config.format,
        lines: lines.clone(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .try_init()
        .map_err(|_| LogError::AlreadySetUp)?;
    Ok(Logs {
        filter: handle,
        current: Arc::new(Mutex::new(text.to_owned())),
        default: text.into(),
        always: config.always,
        lines,
    })
}

impl Logs {
    /// The filter in force.
    pub fn filter(&self) -> String {
        self.current.lock().clone()
    }

    /// Adds directives to the filter in force; each replaces what there was for its target.
    ///
    /// # Errors
    /// Directives that do not parse, or too many of them; the filter stays as it was.
    pub fn add(&self, directives: &str) -> Result<String, LogError> {
        self.set(merged(&self.filter(), directives))
    }

    /// Goes back to the filter of the start, and adds directives to that.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn reset(&self, directives: &str) -> Result<String, LogError> {
        self.set(merged(&self.default, directives))
    }

    /// Waits, up to `limit`, until all lines logged so far are written.
    pub fn flush(&self, limit: Duration) {
        let (done, written) = mpsc::sync_channel(1);
        if self.lines.try_send(Line::Flush(done)).is_ok() {
            let _ = written.recv_timeout(limit);
        }
    }

    fn set(&self, text: String) -> Result<String, LogError> {
        let filter = parse_filter(self.always, &text)?;
        let mut current = self.current.lock();
        self.filter
            .reload(filter)
            .map_err(|error| LogError::Filter {
                filter: text.clone(),
                problem: error.to_string(),
            })?;
        current.clone_from(&text);
        Ok(text)
    }
}

/// A filter in which each target stands once, with its latest level.
fn merged(filter: &str, more: &str) -> String {
    let target = |item: &str| {
        item.rsplit_once('=')
            .map_or("", |(target, _)| target)
            .to_owned()
    };
    let mut items: Vec<&str> = Vec::new();
    let all = filter.split(',').chain(more.split(',')).map(str::trim);
    for item in all.filter(|item| !item.is_empty()) {
        items.retain(|kept| target(kept) != target(item));
        items.push(item);
    }
    items.join(",")
}

/// A bare word that is no level would silently mean "this target, everything": refuse it.
fn parse_filter(always: &str, text: &str) -> Result<EnvFilter, LogError> {
    let refuse = |problem: String| LogError::Filter {
        filter: text.to_owned(),
        problem,
    };
    let items = || text.split(',').map(str::trim).filter(|i| !i.is_empty());
    if items().count() > MOST_DIRECTIVES {
        return Err(refuse(format!("it has more than {MOST_DIRECTIVES} parts")));
    }
    for item in items() {
        let level = item.rsplit('=').next().unwrap_or(item);
        let known = ["off", "error", "warn", "info", "debug", "trace"];
        if !known.contains(&level.to_ascii_lowercase().as_str()) {
            return Err(refuse(format!(
                "{item:?} does not end in a level: off, error, warn, info, debug or trace"
            )));
        }
    }
    EnvFilter::try_new(merged(always, text)).map_err(|error| refuse(error.to_string()))
}

/// What standard output leads to.
fn standard_output() -> String {
    std::fs::read_link("/proc/self/fd/1").map_or_else(
        |_| "standard output".to_owned(),
        |path| path.display().to_string(),
    )
}

fn write_lines<W: io::Write>(queue: &Receiver<Line>, mut repeats: Repeats, sink: &mut Sink<W>) {
    let mut batch = String::new();
    loop {
        let waits = [repeats.wait(Instant::now()), sink.retry_in()];
        let mut next = match waits.into_iter().flatten().min() {
            None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => queue.recv_timeout(wait),
        };
        let over = matches!(next, Err(RecvTimeoutError::Disconnected));
        let now = Instant::now();
        batch.extend(repeats.due(now));
        let mut flushed = None;
        let mut more = false;
        for place in 1.. {
            match next {
                Ok(Line::Text {
                    text,
                    repeats: None,
                }) => batch.push_str(&text),
                Ok(Line::Text {
                    text,
                    repeats: Some(key),
                }) => batch.extend(repeats.pass(key, text, now)),
                // What comes after one who waits for the lines so far is for the next turn.
                Ok(Line::Flush(done)) => flushed = Some(done),
                Err(_) => break,
            }
            more = place == BATCH;
            if more || flushed.is_some() {
                break;
            }
            next = queue.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        if over || flushed.is_some() {
            batch.extend(repeats.rest());
        }
        sink.put(&batch, now);
        batch.clear();
        if over {
            return;
        }
        match flushed {
            Some(done) => {
                let _ = done.try_send(());
            }
            None if more => {}
            None => gather(),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the writer's own thread, on which no runtime runs"
)]
fn gather() {
    std::thread::sleep(GATHER);
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Logs what `events` does, one string a line, without the time.
    fn lines(format: Format, events: impl FnOnce()) -> Vec<String> {
        let (sender, queue) = mpsc::sync_channel(QUEUE);
        let layer = LineLayer {
            format,
            lines: sender,
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), events);
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, "the test".to_owned(), format);
        write_lines(&queue, Repeats::new(format), &mut sink);
        let text = String::from_utf8(out).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_plain_line_has_five_columns_and_quoted_text() {
        let got = lines(Format::Plain, || {
            let span = tracing::info_span!("inbound", id = 7u64, peer = "a b");
            span.in_scope(|| {
                tracing::info!(target: "access", { src.addr = %"1.2.3.4:5", src.workload = "a-1", bytes = 9u64, why = %"a b=c" }, "connection\ncomplete");
            });
        });
        let columns: Vec<_> = got[0].split('\t').collect();
        assert_eq!(got.len(), 1, "{got:?}");
        assert_eq!(columns[0].len(), "2026-01-02T03:04:05.000000Z".len());
        assert_eq!(
            columns[1..],
            [
                "info",
                "access:inbound{id=7 peer=\"a b\"}",
                "connection\\ncomplete",
                "src.addr=1.2.3.4:5 src.workload=\"a-1\" bytes=9 why=\"a b=c\""
            ]
        );
    }

    #[test]
    fn a_json_line_is_one_object_with_the_spans_as_objects() {
        let got = lines(Format::Json, || {
            let span = tracing::info_span!("proxy", wl = "ns/name");
            span.in_scope(|| tracing::warn!(error = "no \"way\"", "failed"));
        });
        assert!(
            got[0].starts_with("{\"level\":\"warn\",\"time\":"),
            "{}",
            got[0]
        );
        let object: Value = serde_json::from_str(&got[0]).unwrap();
        assert_eq!(object["level"], "warn");
        assert_eq!(object["message"], "failed");
        assert_eq!(object["error"], "no \"way\"");
        assert_eq!(object["proxy"]["wl"], "ns/name");
        assert!(
            object["scope"]
                .as_str()
                .unwrap()
                .starts_with("ops::logging")
        );
    }

    #[test]
    fn what_always_holds_gives_way_to_a_filter_that_names_it() {
        for (filter, expected) in [
            ("off", "denied=warn,off"),
            ("info,denied=off", "info,denied=off"),
        ] {
            assert_eq!(merged("denied=warn", filter), expected);
        }
    }

    #[test]
    fn a_warning_that_repeats_itself_is_counted_and_an_access_line_is_not() {
        for format in [Format::Plain, Format::Json] {
            let got = lines(format, || {
                for _ in 0..50 {
                    tracing::warn!(port = 1u64, "cannot accept");
                    tracing::warn!(target: "access", "connection failed");
                }
                tracing::warn!(port = 2u64, "cannot accept");
            });
            let of = |part: &str| got.iter().filter(|line| line.contains(part)).count();
            assert_eq!(of("connection failed"), 50);
            assert_eq!(of("cannot accept"), 5 + 1 + 1);
            let last = got.iter().find(|line| line.contains("repeated"));
            assert!(last.is_some_and(|line| line.contains("45")), "{got:?}");
        }
    }

    #[test]
    fn no_line_is_lost_between_batches() {
        let got = lines(Format::Plain, || {
            for i in 0..1000u64 {
                tracing::info!(i, "n");
            }
        });
        assert_eq!(got.len(), 1000);
        assert!(got[999].ends_with("i=999"), "{}", got[999]);
    }

    #[test]
    fn a_target_stands_in_the_filter_once_with_its_latest_level() {
        for (filter, more, expected) in [
            ("info", "", "info"),
            ("info", "debug", "debug"),
            ("info", "a=debug", "info,a=debug"),
            ("info,a=debug", "a=trace,b=off", "info,a=trace,b=off"),
            ("info,a=debug", "warn", "a=debug,warn"),
            ("info, a[x=1]=debug", " a[x=1]=off ,", "info,a[x=1]=off"),
        ] {
            assert_eq!(merged(filter, more), expected, "{filter} and {more}");
        }
        let many = vec!["a=info"; MOST_DIRECTIVES + 1].join(",");
        assert!(parse_filter("", &many).is_err());
    }

    #[test]
    fn a_filter_without_a_level_is_refused_by_name() {
        for (filter, ok) in [
            ("info", true),
            ("warn,access=info", true),
            ("debug,", true),
            ("access", false),
            ("access=loud", false),
        ] {
            assert_eq!(parse_filter("", filter).is_ok(), ok, "{filter}");
        }
        let error = parse_filter("", "info,hyper").unwrap_err().to_string();
        assert!(
            error.contains("\"hyper\" does not end in a level"),
            "{error}"
        );
    }
}
