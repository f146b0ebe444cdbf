// SPDX-License-Identifier: Apache-2.0
//! Asks a program's admin port: one request, one JSON answer. Blocking.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

/// For connecting, and for each silence in between.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// More than a mesh of a hundred thousand workloads takes.
pub(crate) const MAX_ANSWER: u64 = 512 * 1024 * 1024;

/// What was asked, and why there is no answer.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) asked: String,
    pub(crate) cause: String,
}

impl Error {
    /// Whether the API server has no object of this name, and is sound otherwise.
    pub(crate) fn says_not_found(&self, name: &str) -> bool {
        self.cause.contains("(NotFound)") && self.cause.contains(&format!("\"{name}\" not found"))
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.asked, self.cause)
    }
}

/// What is asked of an admin port.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Question<'q> {
    Get(&'q str),
    /// With a body.
    Post(&'q str, &'q str),
}

impl<'q> Question<'q> {
    fn parts(self) -> (&'static str, &'q str, &'q str) {
        match self {
            Self::Get(path) => ("GET", path, ""),
            Self::Post(path, body) => ("POST", path, body),
        }
    }
}

/// What `address`, HOST:PORT, answers.
pub(crate) fn ask(address: &str, question: Question<'_>) -> Result<Value, Error> {
    let (method, path, body) = question.parts();
    let failed = |cause: String| Error {
        asked: format!("http://{address}{path}"),
        cause,
    };
    // Of this version an answer comes in one piece and ends with the connection. Admin ports take requests under
    // names of their own machine alone.
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let answer = fetch(address, &request).map_err(|error| failed(error.to_string()))?;
    parse(&answer).map_err(failed)
}

fn fetch(address: &str, request: &str) -> io::Result<Vec<u8>> {
    let mut last = io::Error::other("the name has no address");
    for at in address.to_socket_addrs()? {
        let mut stream = match TcpStream::connect_timeout(&at, PATIENCE) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        return Ok(answer);
    }
    Err(last)
}

fn parse(answer: &[u8]) -> Result<Value, String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or("the answer is no HTTP")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let status = head.lines().next().unwrap_or_default();
    let body = &answer[end + 4..];
    match status.split(' ').nth(1) {
        Some("200") => serde_json::from_slice(body).map_err(|error| format!("the answer: {error}")),
        _ => Err(format!(
            "{status}: {}",
            String::from_utf8_lossy(body).trim()
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const DUMP: Question<'_> = Question::Get("/config_dump");

    /// A server that gives one answer.
    fn answering(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // All of it: what is left unread at the close would reset the connection.
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut more = [0; 1024];
                let length = stream.read(&mut more).unwrap();
                assert!(length > 0, "{asked:?} is no request");
                asked.extend_from_slice(&more[..length]);
            }
            assert!(asked.starts_with(b"GET /config_dump HTTP/1.0\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn an_answer_is_its_json_or_says_what_is_wrong() {
        let good = answering("HTTP/1.0 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\": 1}\n");
        assert_eq!(ask(&good, DUMP).unwrap()["a"], 1);
        for (answer, part) in [
            (
                "HTTP/1.0 404 Not Found\r\n\r\nnothing here\n",
                "404 Not Found: nothing here",
            ),
            ("HTTP/1.0 200 OK\r\n\r\n{", "EOF"),
            ("hello", "no HTTP"),
        ] {
            let error = ask(&answering(answer), DUMP).unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("/config_dump"),
                "{error}"
            );
        }
        let gone = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        assert!(
            ask(&gone.to_string(), Question::Get("/"))
                .unwrap_err()
                .cause
                .contains("refused")
        );
    }
}
