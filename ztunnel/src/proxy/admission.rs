// SPDX-License-Identifier: Apache-2.0
//! Whether there is room for one more in this pod, and what becomes of those for whom there is none.

use std::net::SocketAddr;
use std::time::Instant;

use spiffe::SpiffeId;
use tokio::net::TcpStream;

use super::{Entrance, PodProxy, canonical, reset};
use crate::failure::Failure;
use crate::limits::{Full, Place, Standing, Telling};
use crate::record::{Reporter, Security};
use crate::relaying::original_destination;

/// The places of an accepted socket.
pub(super) struct Admitted {
    /// Held until the socket is closed.
    pub(super) _connection: Place,
    /// Of a tunnel, until its handshake is over.
    pub(super) half_open: Option<Standing>,
}

impl PodProxy {
    pub(super) fn admit(&self, entrance: Entrance, peer: SocketAddr) -> Result<Admitted, Full> {
        let connection = self.gates.connections.enter(Instant::now())?;
        Ok(Admitted {
            _connection: connection,
            half_open: match entrance {
                Entrance::Hbone => Some(self.gates.half_open_tunnels.enter(peer.ip())),
                Entrance::Outbound | Entrance::Plaintext | Entrance::Socks5 => None,
            },
        })
    }

    /// Tells of a tunnel that had to make room for another before its handshake was over.
    pub fn made_room(&self, peer: SocketAddr, reached: SocketAddr) {
        let full = self.gates.crowded(Instant::now());
        self.refuse_full(Reporter::Destination, peer, reached, None, full);
    }

    /// Closes with RST a socket that was accepted and has no place.
    pub(super) fn turn_away(
        &self,
        entrance: Entrance,
        socket: TcpStream,
        peer: SocketAddr,
        full: Full,
    ) {
        let wanted = match entrance {
            Entrance::Hbone => socket.local_addr(),
            _ => original_destination(&socket),
        };
        if let Ok(wanted) = wanted.map(canonical) {
            self.refuse_full(entrance.reporter(), peer, wanted, None, full);
        }
        reset(socket);
    }

    /// A place for a connection whose client is known for certain.
    pub fn admit_stream(
        &self,
        peer: SocketAddr,
        reached: SocketAddr,
        identity: &SpiffeId,
        security: Security,
    ) -> Option<Place> {
        match self.gates.connections.enter(Instant::now()) {
            Ok(place) => Some(place),
            Err(full) => {
                let identity = Some((identity, security));
                self.refuse_full(Reporter::Destination, peer, reached, identity, full);
                None
            }
        }
    }

    fn refuse_full(
        &self,
        reporter: Reporter,
        src: SocketAddr,
        dst: SocketAddr,
        identity: Option<(&SpiffeId, Security)>,
        full: Full,
    ) {
        let reason = full.kind.label();
        metrics::counter!("culvert_connections_refused_total", "reason" => reason).increment(1);
        let failure = Failure::Limit(full);
        let labels = self.early_labels(reporter, identity);
        let recorder = &self.shared.recorder;
        match full.telling {
            Telling::Tell { .. } => recorder.refuse_early(&labels, src, dst, &failure),
            Telling::CountOnly => recorder.count_refusal(&labels, &failure),
        }
    }
}
