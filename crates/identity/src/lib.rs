// SPDX-License-Identifier: Apache-2.0
//! Certificates of workloads: how one is asked for, kept fresh and used.
//!
//! ```text
//!  Certificates ──CSR──► CaClient ──gRPC──► control plane
//!      │  one task per identity: fetch, publish, sleep to the half-life, fetch ...
//!      ▼
//!  WorkloadCertificate ──► tls::server_config / tls::client_config ──► path: roots, and what is revoked
//! ```
//!
//! In: SPIFFE ids, and a way to the control plane. Out: rustls configurations
//! that accept a peer only by its SPIFFE id. Nothing here knows of pods,
//! policies or tunnels, and no private key leaves this crate.

mod certificate;
pub use certificate::{CertificateError, Issued, Unvouched, WorkloadCertificate};

mod ca_client;
pub use ca_client::{CaClient, CsrRequest, IMPERSONATED_IDENTITY, IstioCa};

mod rotation;
pub use rotation::{
    CertificateSource, CertificateState, CertificateStatus, Certificates, Clock, Config,
    FixedCertificates,
};

mod path;
pub mod tls;

mod revocation;
pub use revocation::{
    MAX_LIST_BYTES, PeerRole, Revocation, RevocationList, RevocationListError, RevocationObserver,
    Revoked, Standing,
};

mod istiod;
pub use istiod::{
    AuthenticatedChannel, Authentication, ControlPlane, ControlPlaneConfig, ControlPlaneError,
    RootSource, Secret, TokenSource,
};

/// Whether this build carries what only tests use.
pub const FOR_TESTS: bool = cfg!(feature = "testing");

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An error and its causes on one line: libraries put the useful part last.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
