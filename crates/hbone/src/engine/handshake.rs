// SPDX-License-Identifier: Apache-2.0
//! TLS up to the traffic secrets: rustls is fed one record at a time, so that what was read beyond the handshake is ours.

use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::SystemTime;

use identity::{PeerRole, Standing, WorkloadCertificate, tls};
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, Connection, InvalidMessage, ServerConfig, ServerConnection,
};

use super::record::{HEADER, LONGEST};
use super::secrets::{Catcher, Secrets, Suite};

/// What is read at once.
const READ: usize = 8 * 1024;

/// A connection whose peer has proven who it is.
pub(crate) struct Secured<T> {
    pub(crate) io: T,
    pub(crate) peer: SpiffeId,
    pub(super) standing: Standing,
    pub(super) secrets: Secrets,
    /// What was read beyond the handshake.
    pub(super) rest: Vec<u8>,
}

impl<T> Secured<T> {
    /// When the first certificate of the two ends expires.
    pub(crate) fn valid_until(&self) -> Option<SystemTime> {
        self.standing.valid_until()
    }
}

/// The opening end, on behalf of the workload whose certificate the configuration shows.
pub(crate) async fn connect<T>(
    io: T,
    config: &ClientConfig,
    own: &WorkloadCertificate,
) -> io::Result<Secured<T>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let catcher = Arc::new(Catcher::default());
    let mut config = config.clone();
    config.key_log = Arc::clone(&catcher) as _;
    let connection =
        ClientConnection::new(Arc::new(config), tls::server_name()).map_err(invalid)?;
    let admit = |connection: &Connection| tls::standing(connection, own, PeerRole::Server);
    run(io, connection.into(), &catcher, admit).await
}

/// The accepting end, for the workload whose certificate the configuration shows.
pub(crate) async fn accept<T>(
    io: T,
    config: &ServerConfig,
    own: &WorkloadCertificate,
) -> io::Result<Secured<T>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let catcher = Arc::new(Catcher::default());
    let mut config = config.clone();
    config.key_log = Arc::clone(&catcher) as _;
    let connection = ServerConnection::new(Arc::new(config)).map_err(invalid)?;
    let admit = |connection: &Connection| tls::standing(connection, own, PeerRole::Client);
    run(io, connection.into(), &catcher, admit).await
}

async fn run<T>(
    mut io: T,
    mut connection: Connection,
    catcher: &Catcher,
    admit: impl FnOnce(&Connection) -> Standing,
) -> io::Result<Secured<T>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut input = Vec::new();
    loop {
        say(&mut io, &mut connection).await?;
        if !connection.is_handshaking() {
            break;
        }
        while connection.is_handshaking()
            && let Some(record) = take_record(&mut input)?
        {
            let mut record = &record[..];
            while !record.is_empty() && connection.read_tls(&mut record)? > 0 {}
            if let Err(error) = connection.process_new_packets() {
                // The alert tells the peer why; that it may not arrive is no reason to hide the error.
                let _ = say(&mut io, &mut connection).await;
                return Err(invalid(error));
            }
        }
        if connection.is_handshaking() && !connection.wants_write() {
            let held = input.len();
            input.resize(held + READ, 0);
            let count = io.read(&mut input[held..]).await?;
            input.truncate(held + count);
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    let mut early = [0];
    if connection
        .reader()
        .read(&mut early)
        .is_ok_and(|count| count > 0)
    {
        return Err(io::Error::other("application data inside the handshake"));
    }
    let peer = tls::authenticated_peer(&connection).map_err(io::Error::other)?;
    let secrets = connection
        .negotiated_cipher_suite()
        .and_then(|suite| Suite::of(suite.suite()))
        .and_then(|suite| catcher.take(suite))
        .ok_or_else(|| io::Error::other("a cipher suite that is not the mesh's"))?;
    Ok(Secured {
        io,
        peer,
        standing: admit(&connection),
        secrets,
        rest: input,
    })
}

/// Writes all that rustls has to say.
async fn say<T: AsyncWrite + Unpin>(io: &mut T, connection: &mut Connection) -> io::Result<()> {
    let mut output = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut output)?;
    }
    if !output.is_empty() {
        io.write_all(&output).await?;
        io.flush().await?;
    }
    Ok(())
}

/// Takes the first whole record out.
fn take_record(input: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let Some(header) = input.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length > LONGEST {
        return Err(invalid(InvalidMessage::MessageTooLarge.into()));
    }
    if input.len() < length {
        return Ok(None);
    }
    let rest = input.split_off(length);
    Ok(Some(std::mem::replace(input, rest)))
}

fn invalid(error: tokio_rustls::rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
