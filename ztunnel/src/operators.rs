// SPDX-License-Identifier: Apache-2.0
//! The process's own ports: debug on loopback only; metrics and readiness everywhere.
//!
//! In: ports, or the sockets of the process before; what is answered on each. Out: servers that can be halted and set
//! going again, and duplicates of their sockets for the process that comes next.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};

use anyhow::Context as _;
use ops::admin::Routes;
use ops::shutdown::{DrainSignal, Shutdown};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tracing::warn;

use crate::config::Ports;
use crate::handover::Sockets;

/// What is answered on each port.
#[derive(Clone)]
pub struct Tables {
    pub debug: Routes,
    pub stats: Routes,
    pub readiness: Routes,
}

/// Open ports.
pub struct Operators {
    servers: Vec<Server>,
    /// Ends the servers that run now.
    running: Mutex<Option<Shutdown>>,
}

struct Server {
    name: &'static str,
    listener: StdListener,
    routes: Routes,
}

impl Operators {
    /// Opens the ports that were not handed over.
    ///
    /// # Errors
    /// A port can't be had.
    pub fn open(ports: &Ports, tables: Tables, mut inherited: Sockets) -> anyhow::Result<Self> {
        let Tables {
            debug,
            stats,
            readiness,
        } = tables;
        let everywhere = |port| {
            [
                SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
                (Ipv4Addr::UNSPECIFIED, port).into(),
            ]
        };
        let local = [SocketAddr::from((Ipv4Addr::LOCALHOST, ports.admin))];
        let local6 = [SocketAddr::from((Ipv6Addr::LOCALHOST, ports.admin))];
        let mut servers = Vec::new();
        let mut take = |name: &'static str, candidates: &[SocketAddr], routes: Routes| {
            let listener = match inherited.take(name) {
                Some(socket) => StdListener::from(socket),
                None => StdListener::bind(candidates)
                    .with_context(|| format!("cannot listen on {candidates:?}"))?,
            };
            listener.set_nonblocking(true).context(name)?;
            servers.push(Server {
                name,
                listener,
                routes,
            });
            Ok::<_, anyhow::Error>(())
        };
        take("admin", &local, debug.clone())?;
        // Where the loopback has no IPv6, IPv4 has to do.
        let _ = take("admin6", &local6, debug);
        take("stats", &everywhere(ports.stats), stats)?;
        take("readiness", &everywhere(ports.readiness), readiness)?;
        Ok(Self {
            servers,
            running: Mutex::default(),
        })
    }

    /// Answers, until halted or until `end`.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn serve(&self, end: &DrainSignal) -> io::Result<()> {
        let (shutdown, halted) = ops::shutdown::channel();
        for server in &self.servers {
            let listener = TcpListener::from_std(server.listener.try_clone()?)?;
            let (routes, name) = (server.routes.clone(), server.name);
            let drain = either(&halted, end);
            tokio::spawn(async move {
                if let Err(error) = routes.serve(listener, name, drain).await {
                    warn!(server = name, %error, "server ended");
                }
            });
        }
        *self.running.lock() = Some(shutdown);
        Ok(())
    }

    /// Accepts no more; the ports stay open.
    pub fn halt(&self) {
        // A vanished owner counts as asking for the end.
        drop(self.running.lock().take());
    }

    /// Adds duplicates of all sockets under their names.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn hand_on(&self, sockets: &mut Sockets) -> io::Result<()> {
        let mut servers = self.servers.iter();
        servers.try_for_each(|server| sockets.add(server.name, &server.listener))
    }
}

/// A signal that comes with the first of two.
fn either(a: &DrainSignal, b: &DrainSignal) -> DrainSignal {
    let (shutdown, drain) = ops::shutdown::channel();
    let (a, b) = (a.clone(), b.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = a.requested() => {}
            () = b.requested() => {}
        }
        shutdown.start();
    });
    drain
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn ask(port: u16) -> io::Result<String> {
        let mut socket = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        socket
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn ports_go_from_one_to_the_next_and_back_without_being_closed() {
        let free = |_| {
            StdListener::bind("127.0.0.1:0")?
                .local_addr()
                .map(|at| at.port())
        };
        let [admin, stats, readiness] = [0, 1, 2].map(|n: u16| free(n).expect("binds"));
        let ports = Ports {
            admin,
            stats,
            readiness,
        };
        let tables = |words: &'static str| {
            let routes = Routes::new().get("/", move |_| ops::admin::text(StatusCode::OK, words));
            Tables {
                debug: routes.clone(),
                stats: routes.clone(),
                readiness: routes,
            }
        };
        let (_end, drain) = ops::shutdown::channel();
        let first = Operators::open(&ports, tables("first"), Sockets::default()).expect("opens");
        first.serve(&drain).expect("serves");
        assert!(ask(stats).await.expect("answers").ends_with("first"));

        let mut handed = Sockets::default();
        first.hand_on(&mut handed).expect("duplicates");
        let second = Operators::open(&ports, tables("second"), handed).expect("opens");
        first.halt();
        second.serve(&drain).expect("serves");
        // The first one's servers end in a moment of their own.
        for _ in 0..100 {
            if ask(stats).await.expect("answers").ends_with("second") {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        for port in [admin, stats, readiness] {
            assert!(ask(port).await.expect("answers").ends_with("second"));
        }
        second.halt();
        first.serve(&drain).expect("serves again");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(ask(admin).await.expect("answers").ends_with("first"));
    }
}
