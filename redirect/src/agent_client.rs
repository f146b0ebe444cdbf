// SPDX-License-Identifier: Apache-2.0
//! One HTTP exchange with the agent over its unix socket, blocking, within a deadline. For the plugin, which lives for
//! one question and needs no runtime for it.

#[cfg(fuzzing)]
pub(crate) mod fuzzing;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// More than any answer of the agent.
const MAX_ANSWER: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("no agent at {socket}: {cause}")]
    Unreachable { socket: String, cause: io::Error },
    #[error("the agent did not answer within {0:?}")]
    Late(Duration),
    #[error("the agent's answer broke off: {0}")]
    Broken(io::Error),
    #[error("the agent's answer is no HTTP: {0}")]
    NotHttp(&'static str),
    #[error("the agent refused ({status}): {text}")]
    Refused { status: u16, text: String },
}

/// The body of the agent's answer if its status is 200.
pub(crate) fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: &[u8],
    timeout: Duration,
) -> Result<Vec<u8>, AgentError> {
    let deadline = Instant::now() + timeout;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(AgentError::Late(timeout)),
        left => Ok(left),
    };
    let mut stream = UnixStream::connect(socket).map_err(|cause| AgentError::Unreachable {
        socket: socket.display().to_string(),
        cause,
    })?;
    let broken = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AgentError::Late(timeout),
        _ => AgentError::Broken(error),
    };
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: unix\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend(body);
    stream.set_write_timeout(Some(left()?)).map_err(broken)?;
    stream.write_all(&request).map_err(broken)?;

    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(parsed) = parse(&answer)? {
            return parsed.into_result();
        }
        stream.set_read_timeout(Some(left()?)).map_err(broken)?;
        match stream.read(&mut buffer).map_err(broken)? {
            0 => return Err(AgentError::Broken(io::ErrorKind::UnexpectedEof.into())),
            length if answer.len() + length > MAX_ANSWER => {
                return Err(AgentError::NotHttp("it is too long"));
            }
            length => answer.extend(&buffer[..length]),
        }
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Answer {
    fn into_result(self) -> Result<Vec<u8>, AgentError> {
        match self.status {
            200 => Ok(self.body),
            status => {
                let text = String::from_utf8_lossy(&self.body).trim().to_owned();
                Err(AgentError::Refused { status, text })
            }
        }
    }
}

/// None while bytes are missing. The agent always sends a length.
fn parse(bytes: &[u8]) -> Result<Option<Answer>, AgentError> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end])
        .map_err(|_| AgentError::NotHttp("its head is no text"))?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1."))
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|status| status.parse().ok())
        .ok_or(AgentError::NotHttp("it has no status"))?;
    let length: usize = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or(AgentError::NotHttp("it has no length"))?;
    let body = &bytes[end + 4..];
    Ok((body.len() >= length).then(|| Answer {
        status,
        body: body[..length].to_vec(),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_answer_is_complete_once_its_length_has_arrived() {
        let whole = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 3\r\n\r\nbad";
        for cut in 0..whole.len() {
            assert!(parse(&whole[..cut]).unwrap().is_none(), "{cut}");
        }
        let answer = parse(whole).unwrap().unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (500, &b"bad"[..]));
    }

    #[test]
    fn what_is_no_http_is_refused() {
        for bytes in [
            "hello\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
        ] {
            assert!(
                matches!(parse(bytes.as_bytes()), Err(AgentError::NotHttp(_))),
                "{bytes}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            _ = parse(&bytes);
        }
    }
}
