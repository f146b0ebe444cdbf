// SPDX-License-Identifier: Apache-2.0
//! The application's end of a connection, and how it is told what became of it.

use std::io;
use std::net::SocketAddr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::failure::Failure;
use crate::proxy::{canonical, reset};
use crate::socks5::{self, Reply};

/// An application that waits for its connection.
pub struct Client {
    socket: TcpStream,
    told: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// It believes to be connected already: that all went well says nothing, that it didn't says RST.
    BySocket,
    ByReply,
}

impl Client {
    /// One whose connection was redirected.
    pub fn captured(socket: TcpStream) -> Self {
        Self {
            socket,
            told: Told::BySocket,
        }
    }

    /// One that has asked by SOCKS5, and was not answered yet.
    pub fn of_socks5(socket: TcpStream) -> Self {
        Self {
            socket,
            told: Told::ByReply,
        }
    }

    /// The address that it reached.
    pub(super) fn reached(&self) -> Option<SocketAddr> {
        self.socket.local_addr().map(canonical).ok()
    }

    /// The other end is there: from now on the bytes are the application's.
    pub(super) async fn opened(mut self) -> io::Result<TcpStream> {
        if self.told == Told::ByReply {
            self.socket.write_all(&Reply::Succeeded.bytes()).await?;
        }
        Ok(self.socket)
    }

    pub(super) async fn refuse(self, failure: &Failure) {
        self.refusal(failure).await;
    }

    /// As [`Self::refuse`], for a failure that does not live as long.
    pub(super) fn refusal(self, failure: &Failure) -> impl Future<Output = ()> + use<> {
        let reply = Reply::of(failure);
        async move {
            match self.told {
                Told::BySocket => reset(self.socket),
                Told::ByReply => socks5::farewell(self.socket, &reply.bytes()).await,
            }
        }
    }
}
