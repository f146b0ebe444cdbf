// SPDX-License-Identifier: Apache-2.0
//! A layer-3 device whose other end is a file: what the kernel routes to it is read there, packet by packet, and what is
//! written there arrives on it. For the links of test labs; it stands here because it takes an ioctl.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::Netns;

/// Makes a device of this name in a namespace. It is down, has no address, and is gone once the descriptor is closed.
///
/// Each read gives one IP packet without anything before it, checksums filled in; each write takes one.
///
/// # Errors
/// The kernel has no TUN, this process may not use it, or the name is taken.
pub fn create(netns: &Netns, name: &str) -> io::Result<OwnedFd> {
    netns.enter(|| {
        // The device belongs to the namespace in which the file is opened.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        name_device(&file, name)?;
        Ok(file.into())
    })?
}

#[expect(unsafe_code, reason = "no safe wrapper of this ioctl exists")]
fn name_device(file: &File, name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is no name for a device"),
        ));
    }
    // SAFETY: all-zero bytes are a valid ifreq: arrays of integers and a union of such.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives on this stack frame during the call; the descriptor is
    // open while `file` is borrowed.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(netns: &Netns) -> String {
        // The listing is of the namespace of the thread that opens it.
        let list = || std::fs::read_to_string("/proc/thread-self/net/dev");
        netns.enter(list).unwrap().unwrap()
    }

    #[test]
    fn a_device_lives_as_long_as_its_descriptor() {
        let netns =
            Netns::create().expect("creating a network namespace needs root, or `unshare -Urnm`");
        let device = create(&netns, "wire").unwrap();
        assert!(devices(&netns).contains("wire"));
        assert!(create(&netns, "wire").is_err(), "the name is taken");
        drop(device);
        assert!(!devices(&netns).contains("wire"));
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        let netns = Netns::current().unwrap();
        for name in ["", "sixteen-letters.", "a\0b"] {
            let error = create(&netns, name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
