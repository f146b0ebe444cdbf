// SPDX-License-Identifier: Apache-2.0
//! Where the requests of an HTTP/1.1 connection begin and end, by the bytes themselves, and whether their heads can be
//! read in one way only. Pure.
//!
//! In: the client's bytes as they come. Out: one verdict for each head. The HTTP library mends what it can (it takes two
//! lengths for one, and a bare LF for the end of a line), where others before or behind may have read something else; so
//! it never answers a head that has no good verdict. Whatever is not exactly so is refused, and nothing is read behind it.
//!
//! ```text
//!        ┌───────────── no body ─────────────┐
//!  head ─┼─ length ─► so many bytes ─────────┼─► head
//!    │   └─ chunked ─► size ─► data ─► ... ─► trailers
//!    └─ not in one way only ─► lost
//! ```

use crate::hygiene::Malformed;

/// The longest line of a chunk's size, with what extends it, and of a trailer; the library takes no longer ones.
const LONGEST_LINE: usize = 16 * 1024;

/// Bytes of one body's trailers.
const MOST_TRAILERS: usize = 16 * 1024;

/// What a head is found to be.
pub type Verdict = Result<(), Malformed>;

/// Follows a connection.
#[derive(Debug)]
pub struct Framing {
    state: State,
    /// What has come of a head, or of a line.
    part: Vec<u8>,
    longest_head: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    /// So much of a body is to come.
    Body(u64),
    ChunkSize,
    /// With the line's end behind it.
    Chunk(u64),
    /// Bytes that there were.
    Trailers(usize),
    /// What comes has no meaning any more.
    Lost,
}

/// What follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    None,
    Length(u64),
    Chunked,
}

impl Framing {
    /// At the beginning of a connection whose heads have at most so many bytes.
    pub fn new(longest_head: usize) -> Self {
        Self {
            state: State::Head,
            part: Vec::new(),
            longest_head,
        }
    }

    /// The next bytes; says what each head is that ends among them.
    pub fn read(&mut self, mut bytes: &[u8], mut verdict: impl FnMut(Verdict)) {
        while !bytes.is_empty() {
            let taken = match self.state {
                State::Head => self.head(bytes, &mut verdict),
                State::Body(left) => {
                    let taken = within(left, bytes);
                    self.state = match left - taken as u64 {
                        0 => State::Head,
                        left => State::Body(left),
                    };
                    taken
                }
                State::Chunk(left) => {
                    let taken = within(left, bytes);
                    self.state = match left - taken as u64 {
                        0 => State::ChunkSize,
                        left => State::Chunk(left),
                    };
                    taken
                }
                State::ChunkSize | State::Trailers(_) => self.line(bytes),
                State::Lost => return,
            };
            bytes = &bytes[taken..];
        }
    }

    /// Whether all that has come belongs to requests that are whole.
    pub fn is_between(&self) -> bool {
        self.state == State::Head && self.part.is_empty()
    }

    fn lose(&mut self) {
        self.state = State::Lost;
        self.part = Vec::new();
    }

    fn head(&mut self, bytes: &[u8], verdict: &mut impl FnMut(Verdict)) -> usize {
        if self.part.is_empty() {
            // The library too skips empty lines before a request.
            let empty = bytes.iter().take_while(|byte| b"\r\n".contains(byte));
            let empty = empty.count();
            if empty > 0 {
                return empty;
            }
            // Nearly always a head comes as a whole.
            if let Some(end) = end_of_head(bytes, 0) {
                self.judge(&bytes[..end], verdict);
                return end;
            }
        }
        let before = self.part.len();
        self.part.extend_from_slice(bytes);
        match end_of_head(&self.part, before.saturating_sub(2)) {
            Some(end) => {
                let head = std::mem::take(&mut self.part);
                self.judge(&head[..end], verdict);
                end - before
            }
            None => {
                if self.part.len() > self.longest_head {
                    self.lose();
                }
                bytes.len()
            }
        }
    }

    fn judge(&mut self, head: &[u8], verdict: &mut impl FnMut(Verdict)) {
        // However it came: the library takes no longer one either.
        if head.len() > self.longest_head {
            self.lose();
            return;
        }
        let body = judge(head);
        self.state = match body {
            Ok(Body::None | Body::Length(0)) => State::Head,
            Ok(Body::Length(length)) => State::Body(length),
            Ok(Body::Chunked) => State::ChunkSize,
            Err(_) => State::Lost,
        };
        verdict(body.map(|_| ()));
    }

    /// A line between chunks, or behind the last.
    fn line(&mut self, bytes: &[u8]) -> usize {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(bytes.len(), |end| end + 1);
        if self.part.len() + taken > LONGEST_LINE {
            self.lose();
            return taken;
        }
        self.part.extend_from_slice(&bytes[..taken]);
        if end.is_none() {
            return taken;
        }
        let line = std::mem::take(&mut self.part);
        let next = line.strip_suffix(b"\r\n").filter(|line| is_text(line));
        let next = next.and_then(|line| match self.state {
            State::ChunkSize => match chunk_size(line)? {
                0 => Some(State::Trailers(0)),
                // And the end of its line.
                size => Some(State::Chunk(size.checked_add(2)?)),
            },
            State::Trailers(_) if line.is_empty() => Some(State::Head),
            State::Trailers(before) => {
                let all = before + line.len();
                (all <= MOST_TRAILERS).then_some(State::Trailers(all))
            }
            _ => None,
        });
        match next {
            Some(next) => self.state = next,
            None => self.lose(),
        }
        taken
    }
}

fn within(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

/// Where a head ends, its empty line with it, whatever the ends of its lines are.
fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(found) = bytes.get(at..)?.iter().position(|byte| *byte == b'\n') {
        at += found + 1;
        match bytes.get(at..)? {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
    None
}

fn judge(head: &[u8]) -> Result<Body, Malformed> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\r").ok_or(Malformed::Line)?;
        match is_text(line) {
            true => Ok(line),
            false => Err(Malformed::Line),
        }
    });
    // The request's own.
    lines.next().unwrap_or(Err(Malformed::Line))?;
    let (mut length, mut is_chunked) = (None, false);
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return Err(Malformed::Fold);
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.ok_or(Malformed::Line)?);
        if name.eq_ignore_ascii_case(b"content-length") {
            let value = content_length(value[1..].trim_ascii()).ok_or(Malformed::Lengths)?;
            if length.replace(value).is_some() {
                return Err(Malformed::Lengths);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            is_chunked = true;
        }
    }
    match (length, is_chunked) {
        (Some(_), true) => Err(Malformed::Lengths),
        (Some(length), false) => Ok(Body::Length(length)),
        // Whether it is chunked, and alone, the library and hygiene say, and end the connection if not.
        (None, true) => Ok(Body::Chunked),
        (None, false) => Ok(Body::None),
    }
}

/// Whether a line has no byte that ends lines or texts elsewhere.
fn is_text(line: &[u8]) -> bool {
    !line
        .iter()
        .any(|byte| matches!(byte, b'\r' | b'\n' | b'\0'))
}

/// Digits and nothing else.
fn content_length(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let digits = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    digits.parse().ok()
}

/// Hexadecimal digits, and extensions that nobody reads behind a semicolon.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let size = line.split(|byte| *byte == b';').next()?;
    let size = match size.len() == line.len() {
        true => size,
        false => size.trim_ascii_end(),
    };
    let is_number = !size.is_empty() && size.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(size).ok().filter(|_| is_number)?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests;
