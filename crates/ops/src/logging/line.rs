// SPDX-License-Identifier: Apache-2.0
//! An event and its spans as one line of text, plain or JSON.

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::mpsc::SyncSender;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, span};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::{Format, Line};

/// Sends each event to the writer as a line.
pub(super) struct LineLayer {
    pub(super) format: Format,
    pub(super) lines: SyncSender<Line>,
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
        if event.metadata().target() == super::READY_MADE {
            let text = fields.message + "\n";
            // The receiver lives as long as the process does.
            let _ = self.lines.send(Line::Text {
                text,
                repeats: None,
            });
            return;
        }
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
        let repeats = line.may_repeat().then(|| same_text(&text, &line.time));
        // The receiver lives as long as the process does.
        let _ = self.lines.send(Line::Text { text, repeats });
    }
}

/// A line about the log itself.
pub(super) fn warning<const N: usize>(
    format: Format,
    message: &str,
    fields: [(&'static str, Value); N],
) -> String {
    let line = EventLine {
        time: now(),
        level: Level::WARN,
        target: module_path!(),
        fields: Fields {
            message: message.to_owned(),
            values: fields.into(),
            displayed: Vec::new(),
        },
        spans: Vec::new(),
    };
    match format {
        Format::Plain => line.plain(),
        Format::Json => line.json(),
    }
}

struct EventLine<'a> {
    time: String,
    level: Level,
    target: &'a str,
    fields: Fields,
    spans: Vec<(&'static str, Fields)>,
}

/// Each of their lines counts, however many there are.
const NEVER_HELD: [&str; 2] = ["access", "denied"];

/// Equal for lines that differ in their time only.
fn same_text(text: &str, time: &str) -> u64 {
    let (before, after) = text.split_once(time).unwrap_or((text, ""));
    let mut hasher = DefaultHasher::new();
    (before, after).hash(&mut hasher);
    hasher.finish()
}

impl EventLine<'_> {
    /// Whether it is a warning that may be held back when it says the same again.
    fn may_repeat(&self) -> bool {
        self.level <= Level::WARN && !NEVER_HELD.contains(&self.target)
    }

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
