// SPDX-License-Identifier: Apache-2.0
//! The server of the load: a port for each kind of work.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{BULK, CHUNK, ECHO, HTTP, REQUEST, REQUESTS, UP, requests, response, tune};
use crate::lifeline::input_ended;

/// Serves until the input ends; says `ready` once it does.
pub async fn serve() -> Result<()> {
    tune()?;
    let response: Rc<[u8]> = response().into();
    for port in [BULK, HTTP, ECHO, REQUESTS] {
        let listener = TcpListener::bind(("::", port))
            .await
            .with_context(|| format!("port {port}"))?;
        let response = Rc::clone(&response);
        tokio::task::spawn_local(async move {
            // Whoever is gone before it is served needs nothing; for want of descriptors the bench fails elsewhere.
            loop {
                let Ok((socket, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let _ = socket.set_nodelay(true);
                let response = Rc::clone(&response);
                tokio::task::spawn_local(async move {
                    // A client that has seen enough ends its connections as it likes.
                    let _ = match port {
                        BULK => bulk(socket).await,
                        HTTP => answer(socket, &response).await,
                        REQUESTS => requests::answer(socket, &response).await,
                        _ => echo(socket).await,
                    };
                });
            }
        });
    }
    println!("ready");
    input_ended().await;
    Ok(())
}

pub(super) async fn bulk(mut socket: TcpStream) -> std::io::Result<()> {
    let mut block = vec![0; CHUNK];
    match socket.read_u8().await? {
        UP => {
            let mut total = 0u64;
            loop {
                match socket.read(&mut block).await? {
                    0 => break,
                    count => total += count as u64,
                }
            }
            socket.write_u64(total).await
        }
        _ => loop {
            socket.write_all(&block).await?;
        },
    }
}

pub(super) async fn answer(mut socket: TcpStream, response: &[u8]) -> std::io::Result<()> {
    let (mut block, mut had) = (vec![0; 16 << 10], 0);
    loop {
        let count = socket.read(&mut block).await?;
        if count == 0 {
            return Ok(());
        }
        had += count;
        while had >= REQUEST.len() {
            had -= REQUEST.len();
            socket.write_all(response).await?;
        }
    }
}

pub(super) async fn echo(mut socket: TcpStream) -> std::io::Result<()> {
    let mut byte = [0; 64];
    loop {
        let count = socket.read(&mut byte).await?;
        if count == 0 {
            return Ok(());
        }
        socket.write_all(&byte[..count]).await?;
    }
}
