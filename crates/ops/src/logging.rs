// SPDX-License-Identifier: Apache-2.0
//! Logs: one line an event on standard output, the level changed at run time.
//!
//! Plain lines are tab-separated: time (RFC 3339 UTC, microseconds), level, scope with its spans, message, fields.
//! JSON lines hold `level`, `time`, `scope`, `message`, the event's fields, then one object a span. Both are the
//! shapes that operators of Istio know and that its tools parse.
//!
//! Lines leave through a thread of their own and a bounded queue, so that a slow terminal costs the data plane
//! nothing until [`QUEUE`] lines wait; from then on the caller waits too, since a lost access log line is worse.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Lines that may wait for the writer.
pub const QUEUE: usize = 10_000;
/// Lines written with one call.
const BATCH: usize = 64;

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
    lines: SyncSender<Line>,
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Logs").field(&self.filter()).finish()
    }
}

enum Line {
    Text(String),
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
    let (filter, handle) = reload::Layer::new(parse_filter(text)?);
    let (lines, queue) = mpsc::sync_channel(QUEUE);
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || write_lines(&queue, &mut io::stdout()))?;
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
        lines,
    })
}

impl Logs {
    /// The filter in force.
    pub fn filter(&self) -> String {
        self.current.lock().clone()
    }

    /// Adds directives to the filter in force; later ones win.
    ///
    /// # Errors
    /// Directives that do not parse; the filter stays as it was.
    pub fn add(&self, directives: &str) -> Result<String, LogError> {
        let joined = format!("{},{directives}", self.filter());
        self.set(joined)
    }

    /// Goes back to the filter of the start.
    ///
    /// # Errors
    /// Never in practice: that filter has been parsed before.
    pub fn reset(&self) -> Result<String, LogError> {
        self.set(self.default.to_string())
    }

    /// Waits, up to `limit`, until all lines logged so far are written.
    pub fn flush(&self, limit: Duration) {
        let (done, written) = mpsc::sync_channel(1);
        if self.lines.try_send(Line::Flush(done)).is_ok() {
            let _ = written.recv_timeout(limit);
        }
    }

    fn set(&self, text: String) -> Result<String, LogError> {
        let filter = parse_filter(&text)?;
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

/// A bare word that is no level would silently mean "this target, everything": refuse it.
fn parse_filter(text: &str) -> Result<EnvFilter, LogError> {
    let refuse = |problem: String| LogError::Filter {
        filter: text.to_owned(),
        problem,
    };
    for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
        let level = item.rsplit('=').next().unwrap_or(item);
        let known = ["off", "error", "warn", "info", "debug", "trace"];
        if !known.contains(&level.to_ascii_lowercase().as_str()) {
            return Err(refuse(format!(
                "{item:?} does not end in a level: off, error, warn, info, debug or trace"
            )));
        }
    }
    EnvFilter::try_new(text).map_err(|error| refuse(error.to_string()))
}

fn write_lines(queue: &Receiver<Line>, out: &mut impl io::Write) {
    let mut batch = String::new();
    while let Ok(first) = queue.recv() {
        let mut flushed = Vec::new();
        let mut next = Some(first);
        for _ in 0..BATCH {
            match next {
                Some(Line::Text(line)) => batch.push_str(&line),
                Some(Line::Flush(done)) => flushed.push(done),
                None => break,
            }
            next = queue.try_recv().ok();
        }
        match next {
            Some(Line::Text(line)) => batch.push_str(&line),
            Some(Line::Flush(done)) => flushed.push(done),
            None => {}
        }
        // A closed standard output must not stop the process: there is nowhere left to say so.
        let _ = out.write_all(batch.as_bytes()).and_then(|()| out.flush());
        batch.clear();
        for done in flushed {
            let _ = done.try_send(());
        }
    }
}

struct LineLayer {
    format: Format,
    lines: SyncSender<Line>,
}

/// A span's fields, kept for the lines of the events within it.
struct SpanFields(Fields);

impl<S> Layer<S> for LineLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(
        &self,
        attributes: &span::Attributes<'_>,
        id: &span::Id,
        context: Context<'_, S>,
    ) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(SpanFields(fields));
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(SpanFields(fields)) = span.extensions_mut().get_mut::<SpanFields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut spans = Vec::new();
        if let Some(scope) = context.event_scope(event) {
            for span in scope.from_root() {
                let extensions = span.extensions();
                let fields = extensions.get::<SpanFields>().map(|f| f.0.clone());
                spans.push((span.name(), fields.unwrap_or_default()));
            }
        }
        let line = EventLine {
            time: now(),
            level: *event.metadata().level(),
            target: event.metadata().target(),
            fields,
            spans,
        };
        let text = match self.format {
            Format::Plain => line.plain(),
            Format::Json => line.json(),
        };
        // The receiver lives as long as the process does.
        let _ = self.lines.send(Line::Text(text));
    }
}

struct EventLine<'a> {
    time: String,
    level: Level,
    target: &'a str,
    fields: Fields,
    spans: Vec<(&'static str, Fields)>,
}

impl EventLine<'_> {
    fn plain(&self) -> String {
        let mut line = String::with_capacity(256);
        // The crate's own name in front of each module says nothing in a log that only this program writes.
        let scope = self
            .target
            .split_once("::")
            .map_or(self.target, |(_, module)| module);
        let _ = write!(line, "{}\t{}\t{scope}", self.time, level_name(self.level));
        for (name, fields) in &self.spans {
            let _ = write!(line, ":{name}");
            if !fields.values.is_empty() {
                line.push('{');
                fields.write_pairs(&mut line);
                line.push('}');
            }
        }
        line.push('\t');
        escape_control(&mut line, &self.fields.message);
        if !self.fields.values.is_empty() {
            line.push('\t');
            self.fields.write_pairs(&mut line);
        }
        line.push('\n');
        line
    }

    /// Written by hand, since the order of the keys is part of the format and a map would sort them.
    fn json(&self) -> String {
        let mut line = String::with_capacity(512);
        let mut object = JsonObject::open(&mut line);
        object.put("level", &level_name(self.level).into());
        object.put("time", &self.time.as_str().into());
        object.put("scope", &self.target.into());
        object.put("message", &self.fields.message.as_str().into());
        for (name, value) in &self.fields.values {
            object.put(name, value);
        }
        for (name, fields) in &self.spans {
            object.put_object(name, &fields.values);
        }
        object.close();
        line.push('\n');
        line
    }
}

/// One JSON object being written.
struct JsonObject<'a> {
    out: &'a mut String,
    separator: &'static str,
}

impl<'a> JsonObject<'a> {
    fn open(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, separator: "" }
    }

    fn key(&mut self, name: &str) {
        let _ = write!(self.out, "{}{}:", self.separator, Value::from(name));
        self.separator = ",";
    }

    fn put(&mut self, name: &str, value: &Value) {
        self.key(name);
        let _ = write!(self.out, "{value}");
    }

    fn put_object(&mut self, name: &str, values: &[(&'static str, Value)]) {
        self.key(name);
        let mut inner = JsonObject::open(self.out);
        for (name, value) in values {
            inner.put(name, value);
        }
        inner.close();
    }

    fn close(self) {
        self.out.push('}');
    }
}

/// The fields of an event or a span, in the order of their first appearance.
#[derive(Debug, Clone, Default)]
struct Fields {
    message: String,
    values: Vec<(&'static str, Value)>,
    /// Names of the fields that were given as displayed values (`%value`), not as strings.
    displayed: Vec<&'static str>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        if field.name() == "message" {
            self.message = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            return;
        }
        match self
            .values
            .iter_mut()
            .find(|(name, _)| *name == field.name())
        {
            Some((_, old)) => *old = value,
            None => self.values.push((field.name(), value)),
        }
    }

    /// Strings are quoted and so is what only looks harmless, so that a value from a peer cannot pass for another field
    /// or another line. Displayed values such as addresses stand bare, as log parsers of this format expect.
    fn write_pairs(&self, line: &mut String) {
        for (i, (name, value)) in self.values.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            let _ = match (value, self.displayed.contains(name)) {
                (Value::String(text), true) if is_bare(text) => {
                    write!(line, "{space}{name}={text}")
                }
                _ => write!(line, "{space}{name}={value}"),
            };
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        self.put(field, text.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.displayed.push(field.name());
        self.put(field, format!("{value:?}").into());
    }
}

fn is_bare(text: &str) -> bool {
    let unfit = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=' | '\\');
    !text.is_empty() && !text.contains(unfit)
}

fn escape_control(line: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_control() {
            let _ = write!(line, "{}", c.escape_default());
        } else {
            line.push(c);
        }
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn now() -> String {
    use time::format_description::BorrowedFormatItem;
    use time::macros::format_description;
    const FORMAT: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    time::OffsetDateTime::now_utc()
        .format(FORMAT)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
        write_lines(&queue, &mut out);
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
    fn a_filter_without_a_level_is_refused_by_name() {
        for (filter, ok) in [
            ("info", true),
            ("warn,access=info", true),
            ("debug,", true),
            ("access", false),
            ("access=loud", false),
        ] {
            assert_eq!(parse_filter(filter).is_ok(), ok, "{filter}");
        }
        let error = parse_filter("info,hyper").unwrap_err().to_string();
        assert!(
            error.contains("\"hyper\" does not end in a level"),
            "{error}"
        );
    }
}
