// SPDX-License-Identifier: Apache-2.0
//! Lines on their way out, for as long as nobody takes them.
//!
//! ```text
//!  lines ─► waiting ─► the file behind standard output
//!             │ the disk is full: they wait, and are tried again every RETRY
//!             └ more than MOST: the newest are dropped and counted
//! ```
//! The process goes on meanwhile. Once lines are taken again, one of them says for how long they were not, why, and how
//! many are missing.

use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

use super::Format;
use super::line;

/// Bytes that wait at most.
const MOST: usize = 16 << 20;
/// How often what waits is tried again.
const RETRY: Duration = Duration::from_millis(200);

pub(super) struct Sink<W> {
    out: W,
    /// What `out` is, to a person.
    name: String,
    format: Format,
    waiting: Vec<u8>,
    /// Of `waiting`, already written.
    written: usize,
    trouble: Option<Trouble>,
}

/// Since when nothing was taken, and what that has cost.
struct Trouble {
    since: Instant,
    error: io::Error,
    lost: u64,
}

impl<W: Write> Sink<W> {
    pub(super) fn new(out: W, name: String, format: Format) -> Self {
        Self {
            out,
            name,
            format,
            waiting: Vec::new(),
            written: 0,
            trouble: None,
        }
    }

    /// Takes whole lines, and writes as much as can be written now.
    pub(super) fn put(&mut self, lines: &str, now: Instant) {
        for line in lines.split_inclusive('\n') {
            let room = MOST.saturating_sub(self.waiting.len() - self.written);
            match &mut self.trouble {
                Some(trouble) if line.len() > room => {
                    trouble.lost += 1;
                    metrics::counter!("culvert_log_lines_lost_total").increment(1);
                }
                _ => self.waiting.extend_from_slice(line.as_bytes()),
            }
        }
        self.write(now);
    }

    /// Tries again; to be called when [`Self::retry_in`] is over.
    pub(super) fn write(&mut self, now: Instant) {
        if let Err(error) = self.write_all() {
            self.note(error, now);
        } else if let Some(trouble) = self.trouble.take() {
            self.waiting
                .extend_from_slice(self.tell(&trouble, now).as_bytes());
            if let Err(error) = self.write_all() {
                self.note(error, now);
            }
        }
    }

    /// When to try again; none where nothing waits.
    pub(super) fn retry_in(&self) -> Option<Duration> {
        self.trouble.as_ref().map(|_| RETRY)
    }

    fn write_all(&mut self) -> io::Result<()> {
        while self.written < self.waiting.len() {
            match self.out.write(&self.waiting[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.waiting.clear();
        self.waiting.shrink_to(64 << 10);
        self.written = 0;
        self.out.flush()
    }

    fn note(&mut self, error: io::Error, now: Instant) {
        if error.kind() == ErrorKind::BrokenPipe {
            // Whoever read has gone for good: there is nowhere left to say so.
            self.waiting.clear();
            self.written = 0;
            self.trouble = None;
            return;
        }
        metrics::counter!("culvert_log_write_failures_total").increment(1);
        self.waiting.drain(..self.written);
        self.written = 0;
        if self.trouble.is_none() {
            // The one other place where somebody may look; often it is the same file.
            let _ = writeln!(
                io::stderr(),
                "cannot write the log to {}: {error}",
                self.name
            );
            self.trouble = Some(Trouble {
                since: now,
                error,
                lost: 0,
            });
        }
    }

    fn tell(&self, trouble: &Trouble, now: Instant) -> String {
        let fields = [
            ("file", self.name.clone().into()),
            ("error", trouble.error.to_string().into()),
            ("for_seconds", (now - trouble.since).as_secs_f64().into()),
            ("lost_lines", trouble.lost.into()),
        ];
        line::warning(self.format, "the log could not be written", fields)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Takes as many bytes as there is room for.
    struct Disk {
        room: Rc<Cell<usize>>,
        holds: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room.get());
            if count == 0 && !bytes.is_empty() {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room.set(self.room.get() - count);
            self.holds.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn sink(room: usize) -> (Sink<Disk>, Rc<Cell<usize>>) {
        let room = Rc::new(Cell::new(room));
        let disk = Disk {
            room: Rc::clone(&room),
            holds: Vec::new(),
        };
        (Sink::new(disk, "/var/log/x".into(), Format::Plain), room)
    }

    #[test]
    fn a_disk_that_is_full_for_a_while_loses_no_line_and_splits_none() {
        let (mut sink, room) = sink(25);
        let start = Instant::now();
        for number in 0..10 {
            sink.put(&format!("line {number}\n"), start);
        }
        assert_eq!(sink.retry_in(), Some(RETRY));
        room.set(usize::MAX);
        sink.write(start + Duration::from_secs(3));
        assert_eq!(sink.retry_in(), None);
        sink.put("after\n", start);
        let text = String::from_utf8(sink.out.holds).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let expected: Vec<_> = (0..10).map(|number| format!("line {number}")).collect();
        assert_eq!(lines[..10], expected);
        for part in [
            "warn",
            "the log could not be written",
            "file=\"/var/log/x\"",
            "for_seconds=3",
            "lost_lines=0",
        ] {
            assert!(lines[10].contains(part), "{part} in {}", lines[10]);
        }
        assert_eq!(lines[11..], ["after"]);
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_lost_is_counted() {
        let (mut sink, room) = sink(0);
        let start = Instant::now();
        let line = "x".repeat((1 << 20) - 1) + "\n";
        // The first is taken before it is known that nothing is.
        for _ in 0..20 {
            sink.put(&line, start);
        }
        assert!(sink.waiting.len() <= MOST);
        room.set(usize::MAX);
        sink.write(start);
        let text = String::from_utf8(sink.out.holds).unwrap();
        assert!(
            text.ends_with("lost_lines=4\n"),
            "{}",
            &text[text.len() - 200..]
        );
        assert_eq!(text.lines().count(), 16 + 1);
    }

    #[test]
    fn a_reader_that_is_gone_is_not_waited_for() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = Sink::new(Gone, "a pipe".into(), Format::Plain);
        sink.put("line\n", Instant::now());
        assert_eq!((sink.retry_in(), sink.waiting.len()), (None, 0));
    }
}
