// SPDX-License-Identifier: Apache-2.0
//! Sockets with their names, as they pass from one process to the next.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// More than any pod or process has; the kernel passes no more than 253 at once.
const MOST: usize = 64;

/// Owned sockets, each with a name. Whoever takes one has it; the others are closed.
#[derive(Debug, Default)]
pub struct Sockets(Vec<(String, OwnedFd)>);

impl Sockets {
    /// Adds a duplicate of a socket.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn add(&mut self, name: &str, socket: &impl AsFd) -> io::Result<()> {
        let duplicate = socket.as_fd().try_clone_to_owned()?;
        self.0.push((name.to_owned(), duplicate));
        Ok(())
    }

    /// The first socket of this name.
    pub fn take(&mut self, name: &str) -> Option<OwnedFd> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|(_, fd)| fd.as_fd()).collect()
    }

    /// Names and descriptors as they came; they must be as many.
    pub(super) fn from_wire(names: Vec<String>, fds: Vec<OwnedFd>) -> Result<Self, String> {
        if names.len() != fds.len() || fds.len() > MOST {
            return Err(format!(
                "{} descriptors came for {} names",
                fds.len(),
                names.len()
            ));
        }
        Ok(Self(names.into_iter().zip(fds).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_leads_to_its_own_socket() {
        let sockets = [7, 8].map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("binds"));
        let mut handed = Sockets::default();
        for (name, socket) in ["a", "b"].into_iter().zip(&sockets) {
            handed.add(name, socket).expect("duplicates");
        }
        assert_eq!(handed.names(), ["a", "b"]);
        let b: std::net::TcpListener = handed.take("b").expect("is there").into();
        assert_eq!(
            b.local_addr().expect("is bound"),
            sockets[1].local_addr().expect("is bound")
        );
        assert!(handed.take("b").is_none());
        assert_eq!(handed.len(), 1);
        assert!(Sockets::from_wire(vec!["x".into()], vec![]).is_err());
    }
}
