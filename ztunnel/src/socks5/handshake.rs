// SPDX-License-Identifier: Apache-2.0
//! Pure: what a SOCKS5 client says before its connection's own bytes (RFC 1928), read without I/O and clock.
//!
//! In: bytes, each time as many as may be read without touching what follows the request. Out: what to answer, then where
//! the client wants to go; or what is wrong, with the answer to that.
//!
//! ```text
//!  Greeting ── version, methods ──► 05 00 ──► Request ── version, CONNECT, address, port ──► Asked
//!     │ not SOCKS5, or without "no authentication"       │ another command, no address
//!     └──────────────────► 05 ff                         └──────────────────► a reply with the reason's code
//! ```
//! No length that a client states makes anything grow: all of it fits into [`LONGEST`] bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::reply::Reply;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const DOMAIN: u8 = 3;
const IPV6: u8 = 4;
/// Version, command, reserved, kind of address, and the first byte of that: every request has as many.
const REQUEST_HEAD: usize = 5;
const PORT: usize = 2;
/// The longest request, with a name of 255 bytes; no greeting is longer.
const LONGEST: usize = REQUEST_HEAD + 255 + PORT;

/// Accepted: no authentication.
pub const GREETED: [u8; 2] = [VERSION, NO_AUTHENTICATION];
const NO_ACCEPTABLE_METHOD: [u8; 2] = [VERSION, 0xff];

/// Where a client wants to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An address.
    Address(SocketAddr),
    /// A name and a port; nobody has looked whether it is a host's.
    Host(Box<str>, u16),
}

/// How far the client has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It has not said enough.
    More,
    /// It waits for [`GREETED`].
    Greeted,
    /// It waits for a reply; whatever it says next is the connection's.
    Asked(Target),
}

/// What is wrong with what a client says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It begins with another protocol.
    #[error("the client begins with byte {0:#04x}, which is not SOCKS version 5")]
    Greeting(u8),
    /// The methods that it can authenticate with do not include none.
    #[error("the client offers no connection without authentication, among {0} methods")]
    Methods(u8),
    /// After the greeting something else follows than a request.
    #[error("the request is of version {0}, not 5")]
    Version(u8),
    /// Only CONNECT is served; 2 is BIND, 3 is UDP ASSOCIATE.
    #[error("command {0} is asked for, only CONNECT (1) is served")]
    Command(u8),
    /// Neither IPv4 nor a name nor IPv6.
    #[error("address type {0} is unknown")]
    AddressType(u8),
    /// A name without a letter.
    #[error("the host name is empty")]
    EmptyName,
    /// A name that is no text.
    #[error("the host name is not UTF-8")]
    Name,
    /// No port to connect to.
    #[error("port 0 is asked for")]
    Port,
}

impl Violation {
    /// What the client is told.
    pub fn answer(self) -> Vec<u8> {
        match self {
            Self::Greeting(_) | Self::Methods(_) => NO_ACCEPTABLE_METHOD.to_vec(),
            Self::Command(_) => Reply::CommandNotSupported.bytes().to_vec(),
            Self::AddressType(_) => Reply::AddressTypeNotSupported.bytes().to_vec(),
            Self::Version(_) | Self::EmptyName | Self::Name | Self::Port => {
                Reply::GeneralFailure.bytes().to_vec()
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Request,
    Over,
}

/// One client's handshake.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    said: [u8; LONGEST],
    length: usize,
}

impl Default for Handshake {
    fn default() -> Self {
        Self {
            state: State::Greeting,
            said: [0; LONGEST],
            length: 0,
        }
    }
}

impl Handshake {
    /// Where the next bytes go; as long as what is surely still the handshake's, and empty once it is over.
    pub fn room(&mut self) -> &mut [u8] {
        let needed = self.needed();
        &mut self.said[self.length..needed]
    }

    /// Whether the client has said nothing at all.
    pub fn is_untouched(&self) -> bool {
        self.state == State::Greeting && self.length == 0
    }

    /// What a client is told that has not said all, and is waited for no longer.
    pub fn dismissal(&self) -> Vec<u8> {
        match self.state {
            State::Greeting => NO_ACCEPTABLE_METHOD.to_vec(),
            State::Request | State::Over => Reply::GeneralFailure.bytes().to_vec(),
        }
    }

    /// Takes note of so many bytes that were put into the room.
    ///
    /// # Errors
    /// What is wrong with them. The handshake is over then.
    ///
    /// # Panics
    /// If there was no room for as many.
    pub fn filled(&mut self, count: usize) -> Result<Progress, Violation> {
        assert!(
            count <= self.needed() - self.length,
            "more than there is room"
        );
        self.length += count;
        let progress = match self.state {
            State::Greeting => self.greeting(),
            State::Request => self.request(),
            State::Over => Ok(Progress::More),
        };
        match progress {
            Ok(Progress::More) => {}
            Ok(Progress::Greeted) => (self.state, self.length) = (State::Request, 0),
            Ok(Progress::Asked(_)) | Err(_) => (self.state, self.length) = (State::Over, 0),
        }
        progress
    }

    /// The length of the message, as far as can be told from what has come of it.
    fn needed(&self) -> usize {
        match (self.state, &self.said[..self.length]) {
            (State::Greeting, [_, methods, ..]) => 2 + usize::from(*methods),
            (State::Greeting, _) => 2,
            (State::Request, [_, _, _, kind, first, ..]) => match *kind {
                IPV6 => REQUEST_HEAD - 1 + 16 + PORT,
                DOMAIN => REQUEST_HEAD + usize::from(*first) + PORT,
                _ => REQUEST_HEAD - 1 + 4 + PORT,
            },
            (State::Request, _) => REQUEST_HEAD,
            (State::Over, _) => 0,
        }
    }

    fn said(&self) -> &[u8] {
        &self.said[..self.length]
    }

    fn is_complete(&self) -> bool {
        self.length == self.needed()
    }

    fn greeting(&self) -> Result<Progress, Violation> {
        let said = self.said();
        if let Some(&first) = said.first()
            && first != VERSION
        {
            return Err(Violation::Greeting(first));
        }
        let [_, count, methods @ ..] = said else {
            return Ok(Progress::More);
        };
        if !self.is_complete() {
            return Ok(Progress::More);
        }
        match methods.contains(&NO_AUTHENTICATION) {
            true => Ok(Progress::Greeted),
            false => Err(Violation::Methods(*count)),
        }
    }

    fn request(&self) -> Result<Progress, Violation> {
        let said = self.said();
        match *said {
            [version, ..] if version != VERSION => return Err(Violation::Version(version)),
            [_, command, ..] if command != CONNECT => return Err(Violation::Command(command)),
            [_, _, _, kind, ..] if ![IPV4, DOMAIN, IPV6].contains(&kind) => {
                return Err(Violation::AddressType(kind));
            }
            [_, _, _, DOMAIN, 0, ..] => return Err(Violation::EmptyName),
            _ if said.len() < REQUEST_HEAD || !self.is_complete() => return Ok(Progress::More),
            _ => {}
        }
        let (address, port) = said.split_at(said.len() - PORT);
        let port = u16::from_be_bytes([port[0], port[1]]);
        if port == 0 {
            return Err(Violation::Port);
        }
        let target = match address[3] {
            DOMAIN => named(&address[REQUEST_HEAD..], port)?,
            IPV6 => Target::at(Ipv6Addr::from(array(&address[4..])), port),
            _ => Target::at(Ipv4Addr::from(array(&address[4..])), port),
        };
        Ok(Progress::Asked(target))
    }
}

impl Target {
    fn at(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::Address(SocketAddr::new(address.into().to_canonical(), port))
    }
}

/// Some clients give addresses as if they were names.
fn named(name: &[u8], port: u16) -> Result<Target, Violation> {
    let name = str::from_utf8(name).map_err(|_| Violation::Name)?;
    Ok(match name.parse::<IpAddr>() {
        Ok(address) => Target::at(address, port),
        Err(_) => Target::Host(name.into(), port),
    })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let bytes = bytes.try_into();
    bytes.expect("broken invariant: a complete request holds a whole address")
}

#[cfg(test)]
mod tests;
