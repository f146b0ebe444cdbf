// SPDX-License-Identifier: Apache-2.0
//! As much HTTP/1.1 as probes, metrics and the demo pages need: one request on a connection, answered and closed.

use std::io;

use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};

/// Longest head and longest body that are read.
const HEAD_LIMIT: u64 = 64 << 10;
const BODY_LIMIT: u64 = 64 << 20;

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Its headers, each a line.
    pub headers: Vec<String>,
    pub body: String,
}

/// Asks for a page and reads the answer to its end.
pub async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
) -> io::Result<Answer> {
    get_with(stream, host, path, &[]).await
}

/// The same with more headers, each a line.
pub async fn get_with(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
    headers: &[String],
) -> io::Result<Answer> {
    let mut stream = BufReader::new(stream);
    let mut request =
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: */*\r\nconnection: close\r\n");
    for header in headers {
        request.push_str(header);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut head = read_head(&mut stream).await?;
    let status_line = head.first().ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = status_line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok());
    let status =
        status.ok_or_else(|| io::Error::other(format!("no HTTP answer: {status_line:?}")))?;
    let mut body = Vec::new();
    match (
        header(&head, "content-length"),
        header(&head, "transfer-encoding"),
    ) {
        (_, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => {
            read_chunks(&mut stream, &mut body).await?
        }
        (Some(length), _) => {
            let length = length
                .parse()
                .map_err(|_| io::Error::other(format!("content-length: {length:?}")))?;
            (&mut stream).take(length).read_to_end(&mut body).await?;
            if body.len() as u64 != length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        (None, _) => {
            (&mut stream)
                .take(BODY_LIMIT)
                .read_to_end(&mut body)
                .await?;
        }
    }
    Ok(Answer {
        status,
        headers: head.split_off(1),
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// Reads one request's head: the first line and the headers.
pub async fn read_head(
    stream: &mut (impl tokio::io::AsyncBufRead + Unpin),
) -> io::Result<Vec<String>> {
    let mut limited = stream.take(HEAD_LIMIT);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if limited.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(lines);
        }
        lines.push(line.to_owned());
    }
}

/// Writes an answer that ends the connection.
pub async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    status: u16,
    kind: &str,
    body: &str,
) -> io::Result<()> {
    let reason = match status {
        200 => "OK",
        403 => "Forbidden",
        404 => "Not Found",
        _ => "Unavailable",
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn header<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    head.iter().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

async fn read_chunks(
    stream: &mut (impl tokio::io::AsyncBufRead + Unpin),
    body: &mut Vec<u8>,
) -> io::Result<()> {
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let size = line.trim().split(';').next().unwrap_or_default();
        let size = u64::from_str_radix(size, 16)
            .map_err(|_| io::Error::other(format!("chunk size {line:?}")))?;
        stream.take(size).read_to_end(body).await?;
        stream.read_line(&mut String::new()).await?;
        if size == 0 {
            return Ok(());
        }
        if body.len() as u64 > BODY_LIMIT {
            return Err(io::Error::other("the answer is too long"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(response: &str, status: u16, body: &str) {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        server.write_all(response.as_bytes()).await.unwrap();
        let answer = get(client, "h", "/").await.unwrap();
        assert_eq!((answer.status, &*answer.body), (status, body));
        assert_eq!(answer.headers.len(), 1, "{answer:?}");
        let mut request = vec![0; 1024];
        let length = server.read(&mut request).await.unwrap();
        assert!(request[..length].starts_with(b"GET / HTTP/1.1\r\nhost: h\r\n"));
    }

    #[tokio::test]
    async fn bodies_are_read_by_length_and_by_chunks() {
        let whole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        check(whole, 200, "hello").await;
        let pieces =
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
        check(pieces, 200, "hello").await;
        let nothing = "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n";
        check(nothing, 500, "").await;
    }
}
