// SPDX-License-Identifier: Apache-2.0
//! What hostile certificate requests reach. Built for the fuzz targets only.

use super::csr;

/// Reads a request; true if its key would be certified.
pub fn request(pem: &str) -> bool {
    csr::public_key(pem).is_ok()
}
