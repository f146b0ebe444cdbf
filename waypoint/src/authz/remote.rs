// SPDX-License-Identifier: Apache-2.0
//! Where a request comes from, as far as proxies that are trusted say so.

use std::net::IpAddr;

use http::HeaderMap;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// The address that the outermost of `trusted` proxies has seen. Each adds whom it got the request from at the end of the
/// header, and the innermost is the peer. Where the header says less than it should, or what is no address, it is not
/// believed at all: then it is the peer's.
pub fn remote_ip(peer: IpAddr, headers: &HeaderMap, trusted: u32) -> IpAddr {
    let Some(from_the_end) = trusted.checked_sub(1) else {
        return peer;
    };
    let values = headers.get_all(FORWARDED_FOR).iter().rev();
    let mut listed = values.flat_map(|value| value.to_str().unwrap_or_default().rsplit(','));
    let found = usize::try_from(from_the_end)
        .ok()
        .and_then(|n| listed.nth(n));
    let ip = found.and_then(|text| text.trim().parse::<IpAddr>().ok());
    ip.map_or(peer, |ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_trusted_proxies_have_added_is_believed() {
        let peer: IpAddr = [10, 0, 0, 1].into();
        let headers = |values: &[&'static str]| {
            let pairs = values.iter().map(|value| {
                let name = http::HeaderName::from_static(FORWARDED_FOR);
                (name, http::HeaderValue::from_static(value))
            });
            pairs.collect::<HeaderMap>()
        };
        for (values, trusted, expected) in [
            (&["192.0.2.1"][..], 0, "10.0.0.1"),
            (&["192.0.2.1"], 1, "192.0.2.1"),
            (&["192.0.2.1, 192.0.2.2"], 1, "192.0.2.2"),
            (&["192.0.2.1, 192.0.2.2"], 2, "192.0.2.1"),
            (&["192.0.2.1", "192.0.2.2"], 2, "192.0.2.1"),
            (&["192.0.2.1, 192.0.2.2"], 3, "10.0.0.1"),
            (&["unknown"], 1, "10.0.0.1"),
            (&["::ffff:192.0.2.1"], 1, "192.0.2.1"),
            (&[], 1, "10.0.0.1"),
        ] {
            let found = remote_ip(peer, &headers(values), trusted);
            assert_eq!(found.to_string(), expected, "{values:?} {trusted}");
        }
    }
}
