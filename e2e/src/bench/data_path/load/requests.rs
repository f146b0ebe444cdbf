// SPDX-License-Identifier: Apache-2.0
//! Requests that proxies may read and write anew: of whatever length they arrive, they are told apart by their empty lines.

use std::io;

use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Proxies that go by headers go by this one.
const REQUEST: &[u8] =
    b"GET /sixty-four HTTP/1.1\r\nHost: bench.example\r\nAccept: */*\r\nx-version: v0\r\n\r\n";
const END: &[u8] = b"\r\n\r\n";
const BODY: usize = 64;
/// The longest head of an answer.
const MOST: usize = 16 << 10;

/// Answers each request.
pub(super) async fn answer(mut socket: TcpStream, response: &[u8]) -> io::Result<()> {
    let mut had: Vec<u8> = Vec::with_capacity(MOST);
    loop {
        while let Some(end) = memmem::find(&had, END) {
            had.drain(..end + END.len());
            socket.write_all(response).await?;
        }
        if had.len() > MOST {
            return Err(io::Error::other("a request without an end"));
        }
        if socket.read_buf(&mut had).await? == 0 {
            return Ok(());
        }
    }
}

/// One request and its answer, which must be the expected one; `had` is empty before and after.
pub(super) async fn ask(socket: &mut TcpStream, had: &mut Vec<u8>) -> io::Result<()> {
    socket.write_all(REQUEST).await?;
    loop {
        if let Some(end) = memmem::find(had, END) {
            let whole = end + END.len() + BODY;
            if had.len() == whole {
                let good = had.starts_with(b"HTTP/1.1 200 ");
                had.clear();
                return match good {
                    true => Ok(()),
                    false => Err(io::Error::other("an answer other than 200")),
                };
            }
            if had.len() > whole {
                return Err(io::Error::other("more than an answer"));
            }
        }
        if had.len() > MOST {
            return Err(io::Error::other("an answer without an end"));
        }
        if socket.read_buf(had).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
