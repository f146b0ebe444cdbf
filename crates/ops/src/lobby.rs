// SPDX-License-Identifier: Apache-2.0
//! Where accepted connections stand until they have shown that they are worth a place: until their handshake is over.
//!
//! ```text
//!   enter ─► standing ─► its place is dropped: established, or over
//!              └───────► made to leave: the lobby was full, and its address had more here than any other
//! ```
//! Somebody new is never sent away: an honest peer is through in a moment, and whoever says nothing must not keep it
//! out. Of the address with the most here, whoever has stood longest leaves.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Takes in everybody, for as long as there is room.
#[derive(Debug)]
pub struct Lobby {
    most: usize,
    state: Mutex<State>,
}

/// How full a lobby is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub standing: usize,
    pub most: usize,
    /// How many had to leave so far.
    pub made_to_leave: u64,
}

#[derive(Debug, Default)]
struct State {
    standing: HashMap<IpAddr, BTreeMap<u64, CancellationToken>>,
    count: usize,
    next: u64,
    made_to_leave: u64,
}

/// A place in the lobby; dropping it gives it back.
#[derive(Debug)]
pub struct Standing {
    lobby: Arc<Lobby>,
    from: IpAddr,
    number: u64,
    leave: CancellationToken,
}

impl Lobby {
    /// For `most` at a time, who are one at the least.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            state: Mutex::default(),
        })
    }

    /// A place for somebody from that address. Whoever has to leave for it, hears of it.
    pub fn enter(self: &Arc<Self>, from: IpAddr) -> Standing {
        let leave = CancellationToken::new();
        let mut state = self.state.lock();
        if state.count >= self.most {
            state.make_one_leave();
        }
        let number = state.next;
        state.next += 1;
        state.count += 1;
        let standing = state.standing.entry(from).or_default();
        standing.insert(number, leave.clone());
        Standing {
            lobby: Arc::clone(self),
            from,
            number,
            leave,
        }
    }

    /// How full it is.
    pub fn view(&self) -> View {
        let state = self.state.lock();
        View {
            standing: state.count,
            most: self.most,
            made_to_leave: state.made_to_leave,
        }
    }
}

impl State {
    fn make_one_leave(&mut self) {
        let crowd = self
            .standing
            .iter_mut()
            .max_by_key(|(_, standing)| standing.len());
        if let Some((&from, standing)) = crowd {
            if let Some((_, leave)) = standing.pop_first() {
                leave.cancel();
                self.count -= 1;
                self.made_to_leave += 1;
            }
            if standing.is_empty() {
                self.standing.remove(&from);
            }
        }
    }

    fn remove(&mut self, from: IpAddr, number: u64) {
        let Some(standing) = self.standing.get_mut(&from) else {
            return;
        };
        if standing.remove(&number).is_some() {
            self.count -= 1;
        }
        if standing.is_empty() {
            self.standing.remove(&from);
        }
    }
}

impl Standing {
    /// Resolves once the place is taken away.
    pub fn made_to_leave(&self) -> impl Future<Output = ()> + use<> {
        self.leave.clone().cancelled_owned()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.lobby.state.lock().remove(self.from, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn stands(standing: &Standing) -> bool {
        !standing.leave.is_cancelled()
    }

    #[test]
    fn a_crowd_makes_room_for_others_and_the_oldest_of_it_leaves_first() {
        let lobby = Lobby::new(3);
        let honest = lobby.enter(from(1));
        let crowd: Vec<_> = (0..2).map(|_| lobby.enter(from(2))).collect();
        let another = lobby.enter(from(3));
        assert!(stands(&honest) && stands(&another));
        assert!(!stands(&crowd[0]) && stands(&crowd[1]));
        let view = lobby.view();
        assert_eq!((view.standing, view.made_to_leave), (3, 1));
        drop(crowd);
        drop((honest, another));
        assert_eq!(lobby.view().standing, 0);
        assert!(lobby.state.lock().standing.is_empty());
    }

    #[test]
    fn one_place_is_given_to_whoever_came_last() {
        let lobby = Lobby::new(1);
        let first = lobby.enter(from(1));
        let second = lobby.enter(from(1));
        assert!(!stands(&first) && stands(&second));
        assert_eq!(lobby.view().standing, 1);
    }
}
