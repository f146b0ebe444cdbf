// SPDX-License-Identifier: Apache-2.0
//! This process between the one before it and the one after it: takes over, serves, is relieved, lingers.
//!
//! In: the configuration, what is answered on the process's own ports. Out: those ports served from the right moment on,
//! and a future that ends when this process has nothing left to do. What passes between processes is in [`crate::handover`].

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use capture::seqpacket::SeqPacket;
use capture::{Netns, NetnsId};
use identity::Certificates;
use ops::health::Readiness;
use ops::shutdown::{DrainSignal, Shutdown};
use parking_lot::Mutex;
use proto::handover::Hello;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::{Config, Ports};
use crate::handover::{Giver, Predecessor, Predecessors, Sockets, Successor, hello, linger};
use crate::mesh_state::MeshState;
use crate::operators::{Operators, Tables};
use crate::pods::PodUid;
use crate::proxy::Proxies;

/// The name of a line to a process that an earlier one has relieved.
const LINE: &str = "predecessor";
/// How often it is looked whether everything is ready to be taken over.
const LOOK: Duration = Duration::from_millis(20);
/// So long after the probation, in which nothing was accepted either, no connection is still being opened.
const SETTLED: Duration = Duration::from_secs(20);

/// What the relieved process goes on carrying, and what it can do without.
pub struct Carried {
    pub mesh: Arc<MeshState>,
    pub certificates: Certificates,
    pub proxies: Arc<Proxies>,
}

/// The own ports: none until a predecessor on the same ones has been relieved, and after this process has been. Whoever
/// holds this keeps them answering, through a drain to its very end.
pub type OpenPorts = Arc<Mutex<Option<Operators>>>;

pub struct Succession {
    socket: Option<PathBuf>,
    deadline: Duration,
    hello: Hello,
    predecessor: Option<Arc<Predecessor>>,
    predecessors: Arc<Predecessors>,
    ports: Ports,
    tables: Tables,
    operators: OpenPorts,
    end: DrainSignal,
    relieved: Shutdown,
}

impl Succession {
    /// Looks for a process to take over from, and opens the own ports unless that one has them.
    ///
    /// # Errors
    /// A port can't be had.
    pub async fn begin(
        config: &Config,
        tables: Tables,
        predecessors: Arc<Predecessors>,
        end: &DrainSignal,
    ) -> anyhow::Result<Self> {
        let hello = hello().context("cannot tell the own network namespace")?;
        let own = Netns::current()?.id();
        let socket = config.handover.socket.clone();
        let predecessor = match &socket {
            Some(socket) => match Predecessor::meet(socket, hello.clone()).await {
                Ok(found) => found,
                Err(error) => {
                    warn!(%error, socket = %socket.display(), "no handover from the process before");
                    None
                }
            },
            None => None,
        };
        let (relieved, _) = ops::shutdown::channel();
        let succession = Self {
            socket,
            deadline: config.handover.deadline,
            hello,
            predecessor: predecessor.map(Arc::new),
            predecessors,
            ports: config.ports,
            tables,
            operators: OpenPorts::default(),
            end: end.clone(),
            relieved,
        };
        let waits = succession.predecessor.as_ref();
        if !waits.is_some_and(|predecessor| predecessor.is_in(own)) {
            succession.open(Sockets::default())?;
        }
        Ok(succession)
    }

    pub fn predecessor(&self) -> Option<Arc<Predecessor>> {
        self.predecessor.clone()
    }

    pub fn operators(&self) -> OpenPorts {
        Arc::clone(&self.operators)
    }

    /// Comes when another process serves in this one's place.
    pub fn relieved(&self) -> DrainSignal {
        self.relieved.subscribe()
    }

    /// Takes over once everything is ready, waits to be relieved, carries what is open to its end.
    ///
    /// # Errors
    /// The predecessor did not let go, so that two processes would serve.
    pub async fn run(mut self, readiness: &Readiness, carried: Carried) -> anyhow::Result<()> {
        if let Some(predecessor) = self.predecessor.take() {
            while readiness.report().is_err() {
                sleep(LOOK).await;
            }
            self.take_over(&predecessor).await?;
        }
        let Some(giver) = self.giver() else {
            return std::future::pending().await;
        };
        let estate = Estate {
            proxies: Arc::clone(&carried.proxies),
            predecessors: Arc::clone(&self.predecessors),
            operators: Arc::clone(&self.operators),
            end: self.end.clone(),
        };
        let successor = giver.until_relieved(&estate).await;
        // The ports are the successor's alone from here on.
        drop(self.operators.lock().take());
        info!(successor = successor.pid, limit = ?self.deadline, "relieved; what is open is carried to its end");
        self.relieved.start();
        self.carry_to_the_end(&successor, carried).await;
        Ok(())
    }

    async fn take_over(&self, predecessor: &Predecessor) -> anyhow::Result<()> {
        let pid = predecessor.pid();
        let mut sockets = match predecessor.operators().await {
            Ok(sockets) => sockets,
            Err(error) => {
                warn!(pid, %error, "no sockets from the process before");
                Sockets::default()
            }
        };
        let mut lines = Vec::new();
        while let Some(line) = sockets.take(LINE) {
            lines.push(line);
        }
        match predecessor.relieve().await {
            Ok(()) => info!(pid, "taken over: this process serves in its place"),
            // It has ended meanwhile: nothing is left to be taken over.
            Err(crate::handover::HandoverError::Gone) => {
                warn!(pid, "the process before ended before it was relieved");
            }
            Err(error) => {
                return Err(anyhow!(error).context(format!("process {pid} did not let go")));
            }
        }
        if self.operators.lock().is_none() {
            self.open(sockets)?;
        }
        self.follow(predecessor.line());
        for line in lines {
            match SeqPacket::from_received(line) {
                Ok(line) => self.follow(Arc::new(line)),
                Err(error) => warn!(%error, "a line to an earlier process can't be used"),
            }
        }
        Ok(())
    }

    /// Until the process at the other end has ended, or the next one hears of it in this one's place.
    fn follow(&self, line: Arc<SeqPacket>) {
        let (all, relieved) = (Arc::clone(&self.predecessors), self.relieved());
        tokio::spawn(async move {
            tokio::select! {
                () = all.follow(line) => {}
                () = relieved.requested() => {}
            }
        });
    }

    fn open(&self, inherited: Sockets) -> anyhow::Result<()> {
        let operators = Operators::open(&self.ports, self.tables.clone(), inherited)?;
        operators.serve(&self.end).context("own ports")?;
        *self.operators.lock() = Some(operators);
        Ok(())
    }

    /// None where no process can take over from this one.
    fn giver(&self) -> Option<Giver> {
        let socket = self.socket.as_ref()?;
        match Giver::bind(socket, self.hello.clone()) {
            Ok(giver) => Some(giver),
            Err(error) => {
                warn!(%error, socket = %socket.display(), "no handover to the next process");
                None
            }
        }
    }

    async fn carry_to_the_end(&self, successor: &Successor, carried: Carried) {
        let proxies = Arc::clone(&carried.proxies);
        let telling = linger(successor, self.deadline, &self.hello.build, || {
            proxies.carried()
        });
        let slimming = async {
            sleep(SETTLED).await;
            carried.slim_down();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = carried.proxies.drain(self.deadline) => {}
            () = telling => {}
            () = slimming => {}
        }
    }
}

impl Carried {
    /// Drops what only new connections would need. What decides on open ones stays: their workloads and all policies.
    fn slim_down(&self) {
        let open = self.proxies.carried();
        self.mesh.reduce_to(|workload| {
            open.iter().any(|(pod, _)| {
                *pod.name == *workload.name && *pod.namespace == *workload.namespace
            })
        });
        for status in self.certificates.states() {
            self.certificates.forget(&status.identity);
        }
        self.proxies.release_tunnels();
    }
}

/// What a successor can be given.
struct Estate {
    proxies: Arc<Proxies>,
    predecessors: Arc<Predecessors>,
    operators: OpenPorts,
    end: DrainSignal,
}

impl crate::handover::Estate for Estate {
    fn listeners(&self, uid: &PodUid, netns: NetnsId) -> io::Result<Sockets> {
        self.proxies.listeners(uid, netns)
    }

    fn operators(&self) -> io::Result<Sockets> {
        let mut sockets = Sockets::default();
        if let Some(operators) = &*self.operators.lock() {
            operators.hand_on(&mut sockets)?;
        }
        self.predecessors.hand_on(LINE, &mut sockets)?;
        Ok(sockets)
    }

    fn pause(&self) {
        self.proxies.set_accepting(false);
        if let Some(operators) = &*self.operators.lock() {
            operators.halt();
        }
    }

    fn resume(&self) {
        self.proxies.set_accepting(true);
        if let Some(operators) = &*self.operators.lock()
            && let Err(error) = operators.serve(&self.end)
        {
            warn!(%error, "the own ports are served no more");
        }
    }
}
