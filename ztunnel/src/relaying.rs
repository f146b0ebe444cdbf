// SPDX-License-Identifier: Apache-2.0
//! What the lives of connections share: where one wanted to go, and how it ended.

use std::io;
use std::net::SocketAddr;

use hbone::End;
use tokio::net::TcpStream;

use crate::failure::Failure;

/// The reason by which everything open in a pod is stopped when the pod goes.
pub const POD_GONE: &str = "the pod is gone";

/// Where a captured connection wanted to go; where it was not redirected, the address it reached.
pub fn original_destination(socket: &TcpStream) -> io::Result<SocketAddr> {
    // Without a redirecting rule there may be no connection tracking to ask.
    capture::socket::original_dst(socket).or_else(|_| socket.local_addr())
}

/// What the end of a relay means for the record. An abort by either side was mirrored to the other: as far as the mesh
/// is concerned, all went well.
pub fn result_of(end: End) -> Result<(), Failure> {
    match end {
        End::Finished | End::Reset { .. } => Ok(()),
        End::Failed { error, .. } => Err(Failure::Copy(error.to_string())),
        End::Stopped { reason } if *reason == *POD_GONE => Err(Failure::PodGone),
        End::Stopped { reason } => Err(Failure::PolicyChanged(reason)),
        End::Withdrawn { reason } => Err(Failure::Revoked(reason)),
    }
}
