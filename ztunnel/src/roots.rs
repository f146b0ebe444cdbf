// SPDX-License-Identifier: Apache-2.0
//! `CA_ROOT_CA` as a file: when it changes, the mesh's roots do, and every certificate of this node is fetched anew.
//!
//! Roots come with certificates, so that who waits for their half-life trusts the old ones for hours. What the file says
//! is not looked at here: connections to the CA read it themselves.

use std::path::PathBuf;
use std::time::Duration;

use identity::Certificates;
use ops::file::Followed;
use tracing::info;

/// All nodes see the change at about the same time. At most; short lives leave less.
const SPREAD: Duration = Duration::from_secs(5);

/// Follows the file for as long as the process lives.
pub async fn follow(path: PathBuf, certificates: Certificates) {
    let mut file = Followed::new([path.clone()]);
    let spread = certificates.spread(SPREAD);
    loop {
        file.changed().await;
        info!(path = %path.display(), within = ?spread, "roots changed: fetching every certificate anew");
        certificates.renew_all(spread);
    }
}
