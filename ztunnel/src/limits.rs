// SPDX-License-Identifier: Apache-2.0
//! How much one pod may have open at a time, so that it leaves something for the other pods of the node.
//!
//! In: who wants to come in. Out: a place, given back when it is dropped, or a refusal. Refusals are all counted, and told
//! one by one no more often than their [`Teller`] allows, each with the number of those before it.

mod teller;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;

pub use self::teller::{Teller, Telling};
pub use ops::lobby::{Lobby, Standing};

/// The limits of each pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Accepted sockets, tunnels among them, and the connections that tunnels carry.
    pub connections: usize,
    /// Accepted tunnels whose handshake is not over.
    pub half_open_tunnels: usize,
}

impl Limits {
    /// Each connection takes two descriptors; a pod may take a quarter of them where nothing else is said.
    pub fn new(connections: Option<usize>, half_open_tunnels: u32, descriptors: u64) -> Self {
        let share = usize::try_from(descriptors / 2 / 4).unwrap_or(usize::MAX);
        let connections = connections.unwrap_or(share.max(1));
        Self {
            connections,
            // Those who only stand there never take all the places.
            half_open_tunnels: (half_open_tunnels as usize).min(connections / 2).max(1),
        }
    }
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Connections,
    HalfOpenTunnels,
}

impl Kind {
    /// The `reason` of a refusal.
    pub fn label(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::HalfOpenTunnels => "half_open_tunnels",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Connections => "MAX_CONNECTIONS_PER_POD",
            Self::HalfOpenTunnels => "MAX_HALF_OPEN_TUNNELS_PER_POD",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connections => "connections",
            Self::HalfOpenTunnels => "tunnels in their handshake",
        })
    }
}

/// There is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pod has {most} {kind} already, as many as it may ({}){}",
    kind.variable(),
    Untold(*telling)
)]
pub struct Full {
    pub kind: Kind,
    most: usize,
    /// Whether this one is to be told.
    pub telling: Telling,
}

impl Full {
    fn new(kind: Kind, most: usize, telling: Telling) -> Self {
        Self {
            kind,
            most,
            telling,
        }
    }
}

/// Those that came before and were not told, in words.
pub struct Untold(pub Telling);

impl std::fmt::Display for Untold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Telling::Tell { untold } if untold > 0 => {
                write!(f, "; {untold} more were refused since this was last told")
            }
            _ => Ok(()),
        }
    }
}

/// Lets in as many as there is room for.
#[derive(Debug)]
pub struct Gate {
    kind: Kind,
    most: usize,
    open: AtomicUsize,
    refused: AtomicU64,
    teller: Teller,
}

/// A place; dropping it gives it back.
#[derive(Debug)]
pub struct Place(Arc<Gate>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A gate as the admin view shows it.
#[derive(Debug, Serialize)]
pub struct GateView {
    pub open: usize,
    pub most: usize,
    pub refused: u64,
}

impl Gate {
    fn new(kind: Kind, most: usize) -> Arc<Self> {
        Arc::new(Self {
            kind,
            most,
            open: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            teller: Teller::default(),
        })
    }

    pub fn enter(self: &Arc<Self>, now: Instant) -> Result<Place, Full> {
        let room = |open: usize| (open < self.most).then_some(open + 1);
        let entered = self
            .open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        match entered {
            Ok(_) => Ok(Place(Arc::clone(self))),
            Err(_) => Err(self.refuse(now)),
        }
    }

    fn refuse(&self, now: Instant) -> Full {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Full::new(self.kind, self.most, self.teller.happened(now))
    }

    fn view(&self) -> GateView {
        GateView {
            open: self.open.load(Ordering::Relaxed),
            most: self.most,
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// The gates of one pod.
#[derive(Debug)]
pub struct Gates {
    pub connections: Arc<Gate>,
    pub half_open_tunnels: Arc<Lobby>,
    /// Of those who had to leave it.
    crowded: Teller,
    /// Of those who were let in and did not prove who they are.
    pub strangers: Teller,
}

/// As [`Gates`], for the admin view.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatesView {
    pub connections: GateView,
    pub half_open_tunnels: GateView,
}

impl Gates {
    pub fn new(limits: Limits) -> Self {
        Self {
            connections: Gate::new(Kind::Connections, limits.connections),
            half_open_tunnels: Lobby::new(limits.half_open_tunnels),
            crowded: Teller::default(),
            strangers: Teller::default(),
        }
    }

    /// Why a tunnel had to make room for another before its handshake was over.
    pub fn crowded(&self, now: Instant) -> Full {
        let most = self.half_open_tunnels.view().most;
        Full::new(Kind::HalfOpenTunnels, most, self.crowded.happened(now))
    }

    pub fn view(&self) -> GatesView {
        let half_open = self.half_open_tunnels.view();
        GatesView {
            connections: self.connections.view(),
            half_open_tunnels: GateView {
                open: half_open.standing,
                most: half_open.most,
                refused: half_open.made_to_leave,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_takes_a_quarter_of_the_descriptors_unless_something_else_is_said() {
        let limits = |connections, descriptors| Limits::new(connections, 7, descriptors);
        assert_eq!(limits(None, 20_000).connections, 2500);
        assert_eq!(limits(None, 4).connections, 1);
        assert_eq!(limits(Some(9), 20_000).connections, 9);
        assert_eq!(limits(None, 20_000).half_open_tunnels, 7);
        assert_eq!(limits(Some(9), 20_000).half_open_tunnels, 4);
        assert_eq!(limits(None, 8).half_open_tunnels, 1);
    }

    #[test]
    fn a_place_that_is_given_back_is_free_again() {
        let gate = Gate::new(Kind::Connections, 2);
        let now = Instant::now();
        let first = gate.enter(now).unwrap();
        let _second = gate.enter(now).unwrap();
        assert!(gate.enter(now).is_err());
        drop(first);
        let _third = gate.enter(now).unwrap();
        let view = gate.view();
        assert_eq!((view.open, view.most, view.refused), (2, 2, 1));
    }

    #[test]
    fn a_refusal_names_the_limit_its_variable_and_those_that_were_not_told() {
        let full = |untold| Full::new(Kind::HalfOpenTunnels, 7, Telling::Tell { untold });
        assert_eq!(
            full(0).to_string(),
            "the pod has 7 tunnels in their handshake already, as many as it may \
             (MAX_HALF_OPEN_TUNNELS_PER_POD)"
        );
        let told = full(5).to_string();
        assert!(
            told.ends_with("; 5 more were refused since this was last told"),
            "{told}"
        );
    }
}
