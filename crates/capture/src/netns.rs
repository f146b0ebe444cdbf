// SPDX-License-Identifier: Apache-2.0
//! Network namespaces as values: hold one, tell two apart, run code inside one.
//!
//! A namespace lives as long as somebody holds a file descriptor of it, so a [`Netns`] of a pod that is gone stays valid
//! and harmless. Short work (making a socket) enters on the calling thread; long work (netlink conversations) gets a
//! thread of its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, setns, unshare};

const THIS_THREAD: &str = "/proc/thread-self/ns/net";

/// A network namespace, held open.
#[derive(Debug, Clone)]
pub struct Netns {
    fd: Arc<OwnedFd>,
    id: NetnsId,
}

/// What tells one network namespace from another while it exists. The kernel may reuse it afterwards, so whoever
/// compares ids of different moments must hold the [`Netns`] in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsId {
    pub dev: u64,
    pub ino: u64,
}

impl Netns {
    /// The namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Self::open(THIS_THREAD)
    }

    /// The namespace behind a path: `/proc/<pid>/ns/net` or a bind mount such as `/var/run/netns/<name>`.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_fd(File::open(path)?.into())
    }

    /// The namespace behind a descriptor, often one received from another process. Refuses whatever is no network
    /// namespace.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        require_network_namespace(&file)?;
        let metadata = file.metadata()?;
        Ok(Self {
            id: NetnsId {
                dev: metadata.dev(),
                ino: metadata.ino(),
            },
            fd: Arc::new(file.into()),
        })
    }

    /// A new and empty namespace, without a name: gone once its last holder is. Its loopback is down.
    pub fn create() -> io::Result<Self> {
        std::thread::Builder::new()
            .name("netns-create".into())
            .spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET)?;
                Self::current()
            })?
            .join()
            .expect("broken invariant: creating a namespace does not panic")
    }

    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Runs `work` with the calling thread inside this namespace, then goes back.
    ///
    /// For short synchronous work: sockets keep the namespace they were made in, so only making them belongs here. A
    /// thread that can't go back would carry other pods' traffic in the wrong place, so failing that aborts the process.
    /// Home is where the thread was at the first call; it must not move by other means afterwards.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let to = way_back()?;
        setns(self.fd.as_fd(), CloneFlags::CLONE_NEWNET)?;
        let _way_back = WayBack::of(to);
        Ok(work())
    }

    /// Starts a thread that spends its whole life inside this namespace, for work that takes time or blocks.
    pub fn spawn_thread_in<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<io::Result<T>>> {
        let netns = self.clone();
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                setns(netns.fd.as_fd(), CloneFlags::CLONE_NEWNET)?;
                Ok(work())
            })
    }

    /// The addresses that interfaces inside the namespace have at this moment, those of the loopback included.
    ///
    /// # Errors
    /// Those of entering it, and of asking the kernel, which takes a descriptor.
    pub fn addresses(&self) -> io::Result<BTreeSet<IpAddr>> {
        let interfaces = self.enter(nix::ifaddrs::getifaddrs)??;
        let addresses = interfaces.filter_map(|interface| interface.address);
        let ip = |address: nix::sys::socket::SockaddrStorage| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        Ok(addresses.filter_map(ip).collect())
    }

    /// Brings the loopback interface up, as every pod's sandbox has it.
    pub fn loopback_up(&self) -> io::Result<()> {
        self.enter(set_loopback_up)?
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PartialEq for Netns {
    fn eq(&self, other: &Self) -> bool {
        // Both are held open here, so equal ids are the same namespace.
        self.id == other.id
    }
}

impl Eq for Netns {}

impl std::fmt::Display for NetnsId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "net:[{}]", self.ino)
    }
}

thread_local! {
    /// Where this thread lives. Opened once: a proxy enters a namespace for each connection.
    static HOME: RefCell<Option<Rc<File>>> = const { RefCell::new(None) };
    /// Namespaces entered and not left yet.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// The namespace to come back to; from inside another one that is not home.
fn way_back() -> io::Result<Rc<File>> {
    if DEPTH.get() > 0 {
        return Ok(Rc::new(File::open(THIS_THREAD)?));
    }
    HOME.with_borrow_mut(|home| match home {
        Some(home) => Ok(Rc::clone(home)),
        None => Ok(Rc::clone(home.insert(Rc::new(File::open(THIS_THREAD)?)))),
    })
}

/// Brings the thread back, also when the work inside panics.
struct WayBack {
    to: Rc<File>,
}

impl WayBack {
    /// Of a thread that has just left.
    fn of(to: Rc<File>) -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self { to }
    }
}

impl Drop for WayBack {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if let Err(error) = setns(&*self.to, CloneFlags::CLONE_NEWNET) {
            eprintln!("cannot return to the own network namespace: {error}");
            std::process::abort();
        }
    }
}

#[expect(unsafe_code, reason = "no safe wrapper of this ioctl exists")]
fn require_network_namespace(file: &File) -> io::Result<()> {
    // From linux/nsfs.h: _IO(0xb7, 3).
    const NS_GET_NSTYPE: libc::Ioctl = 0xb703u16 as libc::Ioctl;
    // SAFETY: NS_GET_NSTYPE takes no argument and touches no memory; the descriptor is open while `file` is borrowed.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    if kind == libc::CLONE_NEWNET {
        return Ok(());
    }
    let found = match kind {
        -1 => io::Error::last_os_error().to_string(),
        other => format!("a namespace of type {other:#x}"),
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("not a network namespace: {found}"),
    ))
}

#[expect(unsafe_code, reason = "no safe wrapper of this ioctl exists")]
fn set_loopback_up() -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: all-zero bytes are a valid ifreq: arrays of integers and a union of such.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which lives on this stack frame during the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
