// SPDX-License-Identifier: Apache-2.0
//! The PROXY protocol's header as an application reads it, for addresses and names that a peer has chosen.
//!
//! ```text
//! first byte: 1 source is IPv6, 2 destination is IPv6, 4 an identity, 8 a service; then addresses, ports and the names,
//! the first one ending with a line end
//! ```
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use spiffe::SpiffeId;
use ztunnel::proxy_protocol::Announcement;

fuzz_target!(|data: &[u8]| {
    let Some((&flags, mut rest)) = data.split_first() else {
        return;
    };
    let (Some(source), Some(destination)) =
        (address(&mut rest, flags & 1), address(&mut rest, flags & 2))
    else {
        return;
    };
    let Ok(text) = std::str::from_utf8(rest) else {
        return;
    };
    let (identity, service) = text.split_once('\n').unwrap_or((text, ""));
    let identity: Option<SpiffeId> = (flags & 4 != 0).then(|| identity.parse().ok()).flatten();
    let service = (flags & 8 != 0).then_some(service);
    let announcement = Announcement {
        source,
        destination,
        identity: identity.as_ref(),
        service,
    };
    let header = announcement.header();
    let read = Header::read(&header);
    assert_eq!(read.source, canonical(source));
    assert_eq!(read.destination, canonical(destination));
    // What is too long to be anybody's is left out, never cut.
    let told = |value: Option<&str>| value.filter(|value| value.len() <= 2048).map(str::to_owned);
    assert_eq!(read.identity, told(identity.as_ref().map(SpiffeId::as_str)));
    assert_eq!(read.service, told(service));
});

fn address(data: &mut &[u8], v6: u8) -> Option<SocketAddr> {
    let ip: IpAddr = if v6 == 0 {
        Ipv4Addr::from(take::<4>(data)?).into()
    } else {
        Ipv6Addr::from(take::<16>(data)?).into()
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(take(data)?)))
}

fn take<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*taken)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

struct Header {
    source: SocketAddr,
    destination: SocketAddr,
    identity: Option<String>,
    service: Option<String>,
}

impl Header {
    /// By the specification, section 2.2; panics at whatever that does not allow.
    fn read(mut header: &[u8]) -> Self {
        let data = &mut header;
        assert_eq!(
            take(data),
            Some(*b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a")
        );
        assert_eq!(take(data), Some([0x21]), "version 2, PROXY");
        let [family] = take(data).expect("a family");
        let length = u16::from_be_bytes(take(data).expect("a length"));
        assert_eq!(usize::from(length), data.len());
        let (source, destination): (IpAddr, IpAddr) = match family {
            0x11 => {
                let mut next = || Ipv4Addr::from(take::<4>(data).expect("an address"));
                (next().into(), next().into())
            }
            0x21 => {
                let mut next = || Ipv6Addr::from(take::<16>(data).expect("an address"));
                (next().into(), next().into())
            }
            other => panic!("family {other:#x}"),
        };
        let mut port = || u16::from_be_bytes(take(data).expect("a port"));
        let mut read = Self {
            source: canonical(SocketAddr::new(source, port())),
            destination: canonical(SocketAddr::new(destination, port())),
            identity: None,
            service: None,
        };
        while let Some([kind]) = take(data) {
            let length = u16::from_be_bytes(take(data).expect("a length"));
            let (value, rest) = data.split_at(usize::from(length));
            *data = rest;
            let value = Some(std::str::from_utf8(value).expect("is text").to_owned());
            match kind {
                0xd0 if read.identity.is_none() => read.identity = value,
                0xd1 if read.service.is_none() => read.service = value,
                other => panic!("value of type {other:#x}"),
            }
        }
        read
    }
}
